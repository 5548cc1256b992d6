"""The files of a run over a table: CSV and SD files that grow row by row, and Parquet."""

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

RECORD_END = b"$$$$\n"
ROW = re.compile(rb"^>  <Row>[^\n]*\n(\d+)$", re.MULTILINE)


class AppendedCsv:
    """A CSV file open for appending; each row is on disk as soon as it is written.

    Raises ValueError if the file has other columns, for example from another version.
    """

    def __init__(self, stack: ExitStack, path: Path, columns: Iterable[str]) -> None:
        self.file = stack.enter_context(path.open("a", encoding="utf-8", newline=""))
        self.rows = csv.DictWriter(self.file, list(columns), lineterminator="\n")
        if self.file.tell() == 0:
            self.rows.writeheader()
            self.file.flush()
        else:
            with path.open(encoding="utf-8", newline="") as file:
                before = next(csv.reader(file), [])
            if before != self.rows.fieldnames:
                raise ValueError(
                    f"{path} has different columns from this run: choose another folder."
                )

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a row."""
        self.rows.writerow(record)
        self.file.flush()


def rows_in(path: Path) -> set[int]:
    """Row numbers in the first column; drops an incomplete last line from the file."""
    if not path.exists():
        return set()
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if len(whole) < len(raw):
        path.write_bytes(whole)
    with path.open(encoding="utf-8", newline="") as file:
        return {int(record["row"]) for record in csv.DictReader(file)}


def appended_sdf(path: Path, seen: Collection[int]) -> TextIO:
    """An SD file open for appending; drops what follows the last record of a row in `seen`."""
    if path.exists():
        kept = 0
        for end, row in _records(path):
            if row in seen:
                kept = end
        with path.open("r+b") as file:
            file.truncate(kept)
    return path.open("a", encoding="utf-8", newline="")


def _records(path: Path) -> Iterator[tuple[int, int | None]]:
    """The end of each complete record of an SD file, in bytes, and its row number."""
    lines: list[bytes] = []
    with path.open("rb") as file:
        end = 0
        for line in file:
            end += len(line)
            lines.append(line)
            if line == RECORD_END:
                found = ROW.search(b"".join(lines))
                yield end, int(found[1]) if found else None
                lines = []


def csv_to_parquet(table: Path, path: Path, columns: Mapping[str, type]) -> None:
    """Write the rows of a CSV file as Parquet, with the types of its columns.

    A column of type `list` holds numbers separated by spaces. While it is being written, the file
    has the suffix .partial.
    """
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq

    kinds = {int: pa.int64(), float: pa.float64(), str: pa.string(), list: pa.string()}
    types = {name: kinds[kind] for name, kind in columns.items()}
    lists = [name for name, kind in columns.items() if kind is list]
    numbers = pa.list_(pa.float32())
    schema = pa.schema([(n, numbers if n in lists else kind) for n, kind in types.items()])
    partial = path.with_name(path.name + ".partial")
    with (
        pa_csv.open_csv(table, convert_options=pa_csv.ConvertOptions(column_types=types)) as rows,
        pq.ParquetWriter(partial, schema) as writer,
    ):
        for batch in rows:
            read = pa.Table.from_batches([batch])
            for name in lists:
                values = [[float(v) for v in text.split()] for text in read[name].to_pylist()]
                place = read.schema.get_field_index(name)
                read = read.set_column(place, name, pa.array(values, numbers))
            writer.write_table(read)
    partial.replace(path)
