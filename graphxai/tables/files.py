"""Write the files of a run over a table: CSV and SD files that grow row by row, and Parquet.

The cells of a row say what one or several models predict of a molecule, as text.
"""

import csv
import io
import math
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from graphxai.chemistry.desirability import DesirabilityScore, PropertyProfile
from graphxai.datasets.tables.dialect import DEFAULT, Dialect
from graphxai.explanation.compute.models import Model, ModelPanel, tasks_with_range
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.files import BYTE_ORDER_MARK, FRAMES, writable
from graphxai.explanation.prediction import (
    NEARNESS,
    Prediction,
    nearness_columns,
    property_columns,
    table_cells,
)
from graphxai.runtime.writing import Appended, atomic_write, place_of

if TYPE_CHECKING:
    import pyarrow as pa

LEDGER = (
    *("output", "without_nodes", "nodes", "centrality"),
    *("graph_token", "biases", "structure", "unexplained"),
)
PARENT = ("parent", "note")  # the SMILES of a molecule's parent, and what was done; both may be ""
# A row of a network has the same bits in any batch. Where other models or processors change sums by
# a millionth of the largest number beside them, cells mostly end above this: relevance after 5
# digits of the largest in its row, and shares after 6.
OF_RELEVANCE, OF_SHARES = 5, 6
SIMILARITY = NEARNESS[0]  # how the names of its columns end


def predicted_columns(
    panel: ModelPanel, profile: PropertyProfile | None = None, *, several_models: bool = False
) -> dict[str, type]:
    """Return the columns of `prediction_cells` with their types.

    Args:
        profile: what is wished for the properties. Desirabilities come first.
        several_models: whether each property has its own nearness.
    """
    columns: dict[str, type] = {}
    if profile is not None:
        columns |= dict.fromkeys(profile.score({}).columns, float)
    for each in panel.properties:
        task, has_range = each.task, each.task.name in tasks_with_range(panel.models[each.place])
        columns |= property_columns(each.name, task.unit, task.classes, has_range=has_range)
        if several_models:
            columns |= dict(zip(nearness_columns(each.name), (float, str), strict=True))
    if not several_models:
        columns |= dict(zip(NEARNESS, (float, str), strict=True))
    return columns


def prediction_cells(
    predictions: Sequence[Prediction],
    score: DesirabilityScore | None = None,
    *,
    several_models: bool = False,
) -> dict[str, str]:
    """Return the cells of a row's predictions, with numbers as text.

    They are how desirable the molecule is, what is predicted, and how near the molecule is to the
    training set. `explanation.prediction.parent_cells` returns those of `PARENT`.
    """
    cells = table_cells(predictions, several_models=several_models)
    cells = cells if score is None else score.columns | cells
    return {name: _text(name, cell) for name, cell in cells.items() if name not in PARENT}


def ledger_columns(model: Model) -> tuple[str, ...]:
    """Return the columns of the ledger. Wrapped models may have relevance in other inputs."""
    return (*LEDGER, "other_inputs") if hasattr(model, "explained_inputs") else LEDGER


def ledger_cells(model: Model, explanation: Explanation) -> dict[str, str]:
    """Return the cells of these columns. Shares are empty for a method without a ledger."""
    values = {"output": explanation.output, "without_nodes": explanation.without_nodes}
    if (ledger := explanation.ledger) is not None:
        values |= vars(ledger) | {
            "structure": sum(ledger.structure.values()),
            "other_inputs": sum(ledger.others.values()),
            "unexplained": ledger.unexplained,
        }
    columns = ledger_columns(model)
    known = {name: value for name in columns if (value := values.get(name)) is not None}
    texts = above_noise([*known.values()], OF_SHARES)
    return dict.fromkeys(columns, "") | dict(zip(known, texts, strict=True))


def above_noise(values: Sequence[float], digits: int = OF_RELEVANCE) -> list[str]:
    """Return numbers as text that ends where the largest of them has so many digits."""
    largest = max(map(abs, values), default=0.0)
    last = digits - 1 - math.floor(math.log10(largest)) if 0 < largest < math.inf else 0
    return [f"{round(value, last):z.{digits}g}" for value in values]


def _text(name: str, cell: Any) -> str:
    """Write a cell as text, which is empty for None."""
    if cell is None or isinstance(cell, str):
        return cell or ""
    return f"{cell:z.4g}" if name.endswith(SIMILARITY) else f"{cell:z.6g}"


RECORD_END = b"$$$$\n"
ROW = re.compile(rb"^>  <Row>[^\n]*\n(\d+)$", re.MULTILINE)
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # Excel may evaluate a cell that begins with these


@dataclass(frozen=True)
class CsvFormat:
    """How records become lines of CSV.

    Attributes:
        columns: the columns with their types. Records have numbers, and lists of them, as text.
        dialect: the dialect of the table that the records come from.
        excel_safe: whether text that a spreadsheet would read as a formula gets an apostrophe.
    """

    columns: Mapping[str, type]
    dialect: Dialect = DEFAULT
    excel_safe: bool = False

    @property
    def header(self) -> str:
        """The first line, after a byte-order mark if the dialect has one."""
        mark = BYTE_ORDER_MARK if self.dialect.byte_order_mark else ""
        names = dict(zip(self.columns, self.columns, strict=True))
        return mark + self._text([guarded(names) if self.excel_safe else names])

    def lines(self, records: Iterable[Mapping[str, Any]]) -> str:
        """Write records as lines of CSV."""
        if self.excel_safe:
            records = map(guarded, records)
        if self.dialect.decimal != ".":
            numbers = [name for name, kind in self.columns.items() if kind in (float, list)]
            records = (
                {
                    **r,
                    **{n: self.dialect.number(r[n]) for n in numbers if isinstance(r.get(n), str)},
                }
                for r in records
            )
        return self._text(records)

    def typed(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record with numbers and lists of them, and None for what is missing."""
        return {name: _typed(record.get(name), kind) for name, kind in self.columns.items()}

    def _text(self, records: Iterable[Mapping[str, Any]]) -> str:
        with io.StringIO() as text:
            options: Any = {"delimiter": self.dialect.separator, "lineterminator": "\n"}
            plain = csv.writer(text, **options)
            # Python's writer leaves a carriage return outside quotes
            quoted = csv.writer(text, quoting=csv.QUOTE_ALL, **options)
            for record in records:
                if unknown := record.keys() - self.columns.keys():
                    raise ValueError(f"there are no columns for {sorted(unknown)}.")
                cells = [record.get(name, "") for name in self.columns]
                has_return = "\r" in "".join(map(str, cells))
                (quoted if has_return else plain).writerow(cells)
            return text.getvalue()


def _typed(cell: Any, kind: type) -> Any:
    """Return a cell, which may be text, as a value of this type."""
    if cell is None or isinstance(cell, kind):
        return cell
    if kind is list:
        return [float(number) for number in cell.split()]
    return None if cell == "" else kind(cell)


class AppendedCsv:
    """A CSV file open for appending.

    Raises:
        ValueError: the file has other columns, for example from another version.
    """

    def __init__(self, stack: ExitStack, path: Path, format: CsvFormat) -> None:
        self.file = stack.enter_context(Appended(path))
        self.format = format
        if self.file.size == 0:
            self.file.write(format.header)
            return
        with path.open(encoding="utf-8", newline="") as file:
            before = file.readline()
        if before != format.header:
            raise ValueError(f"{path} has different columns from this run: choose another folder.")

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append rows, all of them or none, and sync the file."""
        self.file.write(self.format.lines(records))
        self.file.sync()


@contextmanager
def table_to_write(
    out: IO[str] | str | Path | list[dict[str, Any]], format: CsvFormat
) -> Iterator[Callable[[Iterable[Mapping[str, Any]]], None]]:
    """Yield a function that writes records to a table, piece by piece.

    A file that is named takes its place, whole, when the block is left.

    Args:
        out: an open file for CSV, the path of a .csv, .tsv or .parquet file, or a list that gets
            the records, with numbers instead of their text.
        format: how the records are written. A .tsv file has tabs, and no cell of a Parquet file
            gets an apostrophe.

    Raises:
        ValueError: the path has another suffix.
        ImportError: Parquet is wanted, but pyarrow is not installed.
        OSError: the file cannot be written.
    """
    if isinstance(out, list):
        yield lambda records: out.extend(map(format.typed, records))
        return
    path = writable(out, FRAMES) if isinstance(out, str | Path) else None
    suffix = "" if path is None else path.suffix.lower()
    if suffix == ".tsv":
        format = replace(format, dialect=replace(format.dialect, separator="\t"))
    if suffix == ".parquet":
        format = replace(format, excel_safe=False)
    with ExitStack() as stack:
        file: Any = out
        if path is not None:
            opened = _as_parquet(path, format) if suffix == ".parquet" else atomic_write(path)
            file = stack.enter_context(opened)
        file.write(format.header)
        yield lambda records: file.write(format.lines(records))


@contextmanager
def _as_parquet(path: Path, format: CsvFormat) -> Iterator[IO[Any]]:
    """Open a file for CSV that becomes a Parquet file when the block is left.

    It has no name, so that nothing is left of it if the process is killed.
    """
    folder = place_of(path).parent
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="", dir=folder) as text:
        yield text
        text.seek(0)
        content: Any = text.buffer
        csv_to_parquet(content, path, format.columns, format.dialect)


def guarded(record: Mapping[str, Any]) -> dict[str, Any]:
    """Put an apostrophe before the cells that a spreadsheet would read as a formula."""
    return {
        name: f"'{cell}" if str(cell).startswith(FORMULA) and not _is_numbers(cell) else cell
        for name, cell in record.items()
    }


def _is_numbers(cell: Any) -> bool:
    try:
        return all(abs(float(part)) < float("inf") for part in str(cell).split())
    except ValueError:
        return False


def csv_options(dialect: Dialect) -> dict[str, Any]:
    """Return the options of `explanation.files.write_csv` for a table in this dialect."""
    return {
        "sep": dialect.separator,
        "decimal": dialect.decimal,
        "byte_order_mark": dialect.byte_order_mark,
    }


def rows_in(path: Path, separator: str = ",") -> set[int]:
    """Return the row numbers in a CSV file, after dropping an incomplete last row from it."""
    if not path.exists():
        return set()
    place_of(path)
    whole = read = quotes = 0
    with path.open("r+b") as lines:
        for line in lines:
            read, quotes = read + len(line), quotes + line.count(b'"')
            # a line that ends between quotes ends within a cell
            whole = read if line.endswith(b"\n") and quotes % 2 == 0 else whole
        lines.truncate(whole)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            records = csv.DictReader(file, delimiter=separator)
            return {int(record["row"]) for record in records}
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise ValueError(f"{path} is damaged ({error}): choose another folder.") from error


def with_items(record: str, items: Mapping[str, str]) -> str:
    """Add data items at the end of a record of an SD file.

    A blank line, which would end the item, is left out.
    """
    body, end, _ = record.rpartition("$$$$")
    lines = []
    for name, text in items.items():
        # no name may end the line of its item, and no line may look like the next item or record
        heading = re.sub(r"[<>\r\n]", "_", name)
        cells = [line for line in text.splitlines() if line.strip()]
        cells = [f" {cell}" if cell.startswith((">", "$$$$")) else cell for cell in cells]
        if cells:
            lines.append("\n".join([f">  <{heading}>", *cells, "", ""]))
    return f"{body}{''.join(lines)}{end}\n" if end else record


def appended_sdf(path: Path, seen: Collection[int]) -> Appended:
    """Open an SD file for appending, after dropping what follows the last record of its rows.

    `seen` are the numbers of the rows that the file should hold.

    Raises ValueError if the record of a row is missing.
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


def arrow_schema(columns: Mapping[str, type]) -> "pa.Schema":
    """Return the names and types of columns for Arrow."""
    import pyarrow as pa

    lists = pa.list_(pa.float32())
    kinds = {int: pa.int64(), float: pa.float64(), str: pa.string(), list: lists}
    return pa.schema([(name, kinds[kind]) for name, kind in columns.items()])


def csv_to_parquet(
    table: Path | IO[bytes], path: Path, columns: Mapping[str, type], dialect: Dialect = DEFAULT
) -> None:
    """Write the rows of a CSV file as Parquet, with the names and types of its columns.

    A column of type `list` holds numbers separated by spaces.
    """
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq

    schema = arrow_schema(columns)
    lists = [name for name, kind in columns.items() if kind is list]
    types = {each.name: pa.string() if each.name in lists else each.type for each in schema}
    as_typed = pa_csv.ConvertOptions(column_types=types, decimal_point=dialect.decimal)
    # The header is read as a row and left out, because its names may have an apostrophe for Excel.
    as_named = pa_csv.ReadOptions(column_names=list(columns), skip_rows_after_names=1)
    as_cut = pa_csv.ParseOptions(delimiter=dialect.separator, newlines_in_values=True)
    with (
        atomic_write(path, "wb") as file,
        pa_csv.open_csv(table, as_named, as_cut, as_typed) as rows,
        pq.ParquetWriter(file, schema) as writer,
    ):
        for batch in rows:
            read = pa.Table.from_batches([batch])
            for name in lists:
                texts = (t.replace(dialect.decimal, ".") for t in read[name].to_pylist())
                values = [[float(v) for v in text.split()] for text in texts]
                place = read.schema.get_field_index(name)
                read = read.set_column(place, name, pa.array(values, schema.field(name).type))
            writer.write_table(read)
