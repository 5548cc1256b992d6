"""Write the files of a run over a table: CSV and SD files that grow row by row, and Parquet."""

import csv
import io
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from graphxai.runtime.writing import Appended, atomic_write, place_of

RECORD_END = b"$$$$\n"
ROW = re.compile(rb"^>  <Row>[^\n]*\n(\d+)$", re.MULTILINE)
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # Excel may evaluate a cell that begins with these


class AppendedCsv:
    """A CSV file open for appending.

    Attributes:
        columns: the names of the columns.
        excel_safe: whether text that a spreadsheet would read as a formula gets an apostrophe.

    Raises:
        ValueError: the file has other columns, for example from another version.
    """

    def __init__(
        self, stack: ExitStack, path: Path, columns: Iterable[str], excel_safe: bool = False
    ) -> None:
        self.file = stack.enter_context(Appended(path))
        self.columns, self.excel_safe = list(columns), excel_safe
        header = self._lines([dict(zip(self.columns, self.columns, strict=True))])
        if self.file.size == 0:
            self.file.write(header)
            return
        with path.open(encoding="utf-8", newline="") as file:
            before = next(csv.reader(file), [])
        if before != next(csv.reader([header])):
            raise ValueError(f"{path} has different columns from this run: choose another folder.")

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append rows, all of them or none, and sync the file."""
        self.file.write(self._lines(records))
        self.file.sync()

    def _lines(self, records: Iterable[Mapping[str, Any]]) -> str:
        with io.StringIO() as text:
            writer = csv.DictWriter(text, self.columns, lineterminator="\n")
            writer.writerows(map(guarded, records) if self.excel_safe else records)
            return text.getvalue()


def guarded(record: Mapping[str, Any]) -> dict[str, Any]:
    """Put an apostrophe before the cells that a spreadsheet would read as a formula."""
    return {
        name: f"'{cell}" if str(cell).startswith(FORMULA) and not _is_numbers(cell) else cell
        for name, cell in record.items()
    }


def _is_numbers(cell: Any) -> bool:
    """Return whether a cell holds nothing but numbers separated by spaces."""
    try:
        return all(abs(float(part)) < float("inf") for part in str(cell).split())
    except ValueError:
        return False


def rows_in(path: Path) -> set[int]:
    """Return the row numbers in a CSV file, after dropping an incomplete last line from it."""
    if not path.exists():
        return set()
    place_of(path)
    whole = 0
    with path.open("r+b") as lines:
        for line in lines:
            whole += len(line) if line.endswith(b"\n") else 0
        lines.truncate(whole)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return {int(record["row"]) for record in csv.DictReader(file)}
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise ValueError(f"{path} is damaged ({error}): choose another folder.") from error


def appended_sdf(path: Path, seen: Collection[int]) -> Appended:
    """Open an SD file for appending, after dropping what follows the last record of its rows.

    Args:
        path: the SD file.
        seen: the numbers of the rows that the file should hold.

    Raises:
        ValueError: the record of a row is missing.
    """
    missing, kept = set(seen), 0
    if path.exists():
        for end, row in _records(path):
            if row in seen:
                kept = end
                missing.discard(row)
    if missing:
        raise ValueError(f"{path} has lost row {min(missing)}: choose another folder.")
    if path.exists():
        with path.open("r+b") as file:
            file.truncate(kept)
    return Appended(path)


def _records(path: Path) -> Iterator[tuple[int, int | None]]:
    """Yield the end of each complete record of an SD file, in bytes, and its row number."""
    lines: list[bytes] = []
    with path.open("rb") as file:
        end = 0
        for line in file:
            end += len(line)
            lines.append(line)
            if line == RECORD_END:
                match = ROW.search(b"".join(lines))
                yield end, int(match[1]) if match else None
                lines = []


def csv_to_parquet(table: Path, path: Path, columns: Mapping[str, type]) -> None:
    """Write the rows of a CSV file as Parquet, with the types of its columns.

    A column of type `list` holds numbers separated by spaces.
    """
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq

    kinds = {int: pa.int64(), float: pa.float64(), str: pa.string(), list: pa.string()}
    types = {name: kinds[kind] for name, kind in columns.items()}
    lists = [name for name, kind in columns.items() if kind is list]
    numbers = pa.list_(pa.float32())
    schema = pa.schema([(n, numbers if n in lists else kind) for n, kind in types.items()])
    with (
        atomic_write(path, "wb") as file,
        pa_csv.open_csv(table, convert_options=pa_csv.ConvertOptions(column_types=types)) as rows,
        pq.ParquetWriter(file, schema) as writer,
    ):
        for batch in rows:
            read = pa.Table.from_batches([batch])
            for name in lists:
                values = [[float(v) for v in text.split()] for text in read[name].to_pylist()]
                place = read.schema.get_field_index(name)
                read = read.set_column(place, name, pa.array(values, numbers))
            writer.write_table(read)
