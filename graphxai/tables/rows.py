"""Read the rows of a table in chunks, and give them to a function here or in other processes.

Data frames are explained by a callable that Ray, Spark and Dask can map over their parts. It can be
pickled. Nothing in a cell stops it. If a row cannot be explained, it has a `reason`.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from rdkit import Chem

from graphxai.datasets.graph import is_from
from graphxai.datasets.molecule_reading import CONTROL, MAX_CHARACTERS, MoleculeError, shortened
from graphxai.datasets.molecules import MAX_QUOTED
from graphxai.datasets.tables.columns import named_column
from graphxai.datasets.tables.table import Table, column_values, open_table, structure_name
from graphxai.explainers import get_explainer
from graphxai.runtime.workers import LostItem, map_in_processes, pieces_of

from .batches import ExplainBatch, NamedRejectedRow
from .files import CsvFormat, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa


# How many rows are read, explained and written at a time. Those of one size share batches, and with
# more rows the batches are fuller.
CHUNK = 1024
SLOW_CHUNK = 128  # where a row takes long, so that an interrupt loses little


class TableRow(NamedTuple):
    """A row of a table.

    Attributes:
        smiles: the structure, without the white space around it.
        name: the compound's name, or None if the table has no column for it.
        problem: why the row cannot be read, or "".
        others: the cells of the other columns, see `RowSource.others`.
        cell: the structure as it stands in the table.
    """

    number: int
    smiles: str
    name: str | None
    problem: str = ""
    others: tuple[str, ...] = ()
    cell: str = ""


Result: TypeAlias = tuple[TableRow, Any]


@dataclass(frozen=True)
class RowSource:
    """A table, and the columns that are read from its rows.

    Attributes:
        name_column: the column with the names of compounds, or None.
    """

    table: Table
    name_column: str | None = None

    @classmethod
    def of(
        cls, path: str | Path, smiles_column: str | None, name_column: str | None
    ) -> "RowSource":
        """Open a table, or raise ValueError if it does not have these columns.

        Without a `name_column`, names are in a column that is called so, see `Table.names_column`.
        """
        table = open_table(path, smiles_column)
        table.structures  # noqa: B018 (raises an error that says what is missing)
        return cls(table, table.column(name_column) if name_column else table.names_column)

    @property
    def others(self) -> tuple[str, ...]:
        """The columns without structures and names, which outputs repeat."""
        taken = (self.table.structures.name, self.name_column)
        columns = self.table.columns
        return tuple(n for n in columns if n not in taken and columns.count(n) == 1)

    @property
    def repeated(self) -> tuple[str, ...]:
        """The columns that outputs repeat in their places: structures, names and the others."""
        kept = (self.table.structures.name, self.name_column, *self.others)
        return tuple(dict.fromkeys(name for name in self.table.columns if name in kept))

    def headings(self, written: Collection[str], columns: Iterable[str]) -> dict[str, str]:
        """Name some columns so that they differ from the `written` columns of an output."""
        headings: dict[str, str] = {}
        for name in columns:
            heading = name
            while heading in written or heading in headings.values():
                heading = f"input {heading}"
            headings[name] = heading
        return headings

    def chunks(
        self, skip: Collection[int] = (), size: int | None = None
    ) -> Iterator[list[TableRow]]:
        """Yield the rows in `pieces_of` `size` or `CHUNK`, except those with all rows in `skip`."""
        structures, named, others = self.table.structures.name, self.name_column, self.others
        columns = (structures, *(others if named is None else (named, *others)))
        records = self.table.records(columns, columns)
        for chunk in pieces_of(records, size or CHUNK):
            if all(record.number in skip for record in chunk):
                continue
            yield [
                TableRow(
                    number,
                    cells[structures].strip(),
                    None if named is None else cells[named],
                    problem,
                    tuple(cells[name] for name in others),
                    cells[structures],
                )
                for number, cells, problem in chunk
            ]


def chunk_size(batch: ExplainBatch) -> int:
    """Return how many rows of a table are explained at a time, by the method and the pictures."""
    is_quick = batch.pictures is None and get_explainer(batch.method).traits.is_quick
    return CHUNK if is_quick else min(CHUNK, SLOW_CHUNK)


def own_cell(text: str) -> str:
    """Return a user's cell as it is, but for control characters, which would reach a terminal."""
    return CONTROL.sub(" ", text)


def other_cells(row: TableRow, headings: Iterable[str]) -> dict[str, str]:
    """Return the cells of a row's other columns as they are, by their headings in an output."""
    return dict(zip(headings, map(own_cell, row.others), strict=True))


def map_rows(
    batch: Callable[..., list[Any]],
    chunks: Iterable[list[TableRow]],
    workers: int | None,
    total: int,
) -> Generator[list[Result], None, None]:
    """Yield each chunk of rows, with what a batch function makes of each of them, in order.

    A row that cannot be read, or that made its process end, has a `NamedRejectedRow` instead.

    Args:
        batch: a function of SMILES, row numbers and names, such as `ExplainBatch`.
        workers: the number of processes, see `runtime.workers.map_in_processes`.
    """
    work = partial(_results_of, batch)
    with closing(map_in_processes(work, chunks, workers, total)) as done:
        for parts in done:
            results_by_place: dict[int, Result] = {}
            for rows, places, results in parts:
                if isinstance(results, LostItem):
                    results = [_without_result(rows[0], results.reason)]
                pairs = zip(rows, results, strict=True)
                results_by_place |= dict(zip(places, pairs, strict=True))
            yield [results_by_place[place] for place in sorted(results_by_place)]


def _results_of(batch: Callable[..., list[Any]], rows: Sequence[TableRow]) -> list[Any]:
    """Call a batch function, such as `ExplainBatch`, on the rows that could be read."""
    usable = [row for row in rows if not row.problem]
    results: Iterator[Any] = iter(())
    if usable:
        names = None if usable[0].name is None else [own_cell(row.name or "") for row in usable]
        results = iter(batch([row.smiles for row in usable], [row.number for row in usable], names))
    return [_without_result(row, row.problem) if row.problem else next(results) for row in rows]


def _without_result(row: TableRow, reason: str) -> NamedRejectedRow:
    return NamedRejectedRow(
        row.number, shortened(row.smiles, MAX_QUOTED), reason, own_cell(row.name or "")
    )


@dataclass(frozen=True)
class ExplainFrame:
    """Explain the rows of a data frame.

    Attributes:
        batch: the model, the method and the target.
        smiles_column: the column with structures. Without it, it is one with a usual name, or the
            only one with cells that can be read as SMILES.
        row_column: the column with row numbers. Without it, the result has no such column.
        name_column: the column with compound names. Without it, the result has no such column.
    """

    batch: ExplainBatch
    smiles_column: str | None = None
    row_column: str | None = None
    name_column: str | None = None

    @property
    def schema(self) -> "pa.Schema":
        """The columns of the result: those of `explanations.csv` without pictures, and `reason`."""
        return arrow_schema(self._columns)

    @property
    def _columns(self) -> dict[str, type]:
        columns = self.batch.columns(self.name_column is not None) | {"reason": str}
        left_out = {"picture"} if self.row_column else {"picture", "row"}
        return {name: kind for name, kind in columns.items() if name not in left_out}

    def __call__(self, frame: Any) -> Any:
        """Explain a `pyarrow.Table`, or a `pandas.DataFrame` and keep its index.

        Raises:
            ValueError: a column is missing.
        """
        is_pandas = is_from("pandas", frame)
        existing = list(map(str, frame.columns if is_pandas else frame.schema.names))
        cells = column_values(frame, structure_name(frame, self.smiles_column))
        values = [Chem.MolToSmiles(v) if isinstance(v, Chem.Mol) else v for v in cells]
        numbers, names = (
            None
            if name is None
            else column_values(frame, named_column("the frame", existing, name))
            for name in (self.row_column, self.name_column)
        )
        table = self.explain(values, numbers, names)
        return table.to_pandas().set_index(frame.index) if is_pandas else table

    def explain(
        self, values: Sequence[Any], numbers: Sequence[int] | None, names: Sequence[Any] | None
    ) -> "pa.Table":
        """Explain the values of a column of SMILES, whatever they are."""
        import pyarrow as pa

        rows: list[dict[str, Any]] = []
        texts = None if names is None else ["" if name is None else str(name) for name in names]
        size = chunk_size(self.batch)
        for first in range(0, len(values), size):
            chunk = range(first, min(first + size, len(values)))
            text = [k for k in chunk if values[k] is None or isinstance(values[k], str)]
            chunk_names = None if texts is None else [texts[k] for k in text]
            results = self.batch([values[k] or "" for k in text], text, chunk_names)
            row_of = {row["row"]: row for row in results}
            rows += [row_of.get(k) or _not_text(k, values[k]) for k in chunk]
        for k, row in enumerate(rows):
            row["row"] = None if numbers is None else numbers[k]
            row.setdefault("name", None if texts is None else texts[k])
            if isinstance(value := values[k], str) and len(value) <= MAX_CHARACTERS:
                encoded = value.encode(errors="replace")  # Arrow has no half of a character
                row["smiles"] = own_cell(encoded.decode())
        typed = CsvFormat(self._columns).typed
        return pa.Table.from_pylist(list(map(typed, rows)), schema=self.schema)


def _not_text(row: int, value: Any) -> dict[str, Any]:
    """Make a row that was left out because its cell is not text, or is the error of its row."""
    if isinstance(value, MoleculeError):
        return {"row": row, "smiles": "", "reason": str(value)}
    reason = f"a SMILES must be text, not {type(value).__name__}."
    return {"row": row, "smiles": shortened(repr(value)), "reason": reason}
