"""Read the rows of a table in chunks, and give them to a function here or in other processes."""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from graphxai.datasets.molecule_reading import CONTROL, shortened
from graphxai.datasets.molecules import MAX_QUOTED
from graphxai.datasets.tables.table import Table, open_table
from graphxai.explainers import Traits, get_explainer
from graphxai.runtime.workers import LostItem, map_in_processes, pieces_of

from .batches import ExplainBatch, NamedRejectedRow

# How many rows are read, explained and written at a time. Those of one size share batches: with 128
# rows, a table of drugs takes a tenth longer, because padding makes up a quarter of its batches.
CHUNK = 512
SLOW_CHUNK = 128  # where a row takes long, so that an interrupt loses little
QUICK = ("1 forward", Traits.cost)  # the costs of methods of which many rows take a moment


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
    is_quick = batch.pictures is None and get_explainer(batch.method).traits.cost in QUICK
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
    rejected: Callable[[NamedRejectedRow], Any],
    workers: int | None,
    total: int,
) -> Generator[list[Result], None, None]:
    """Yield each chunk of rows, with what a batch function makes of each of them, in order.

    Args:
        batch: a function of SMILES, row numbers and names, such as `ExplainBatch`.
        rejected: makes the result of a row that cannot be read, or that made its process end.
        workers: the number of processes, see `runtime.workers.map_in_processes`.
    """
    work = partial(_results_of, batch, rejected)
    with closing(map_in_processes(work, chunks, workers, total)) as done:
        for parts in done:
            results_by_place: dict[int, Result] = {}
            for rows, places, results in parts:
                if isinstance(results, LostItem):
                    results = [rejected(_without_result(rows[0], results.reason))]
                pairs = zip(rows, results, strict=True)
                results_by_place |= dict(zip(places, pairs, strict=True))
            yield [results_by_place[place] for place in sorted(results_by_place)]


def _results_of(
    batch: Callable[..., list[Any]],
    rejected: Callable[[NamedRejectedRow], Any],
    rows: Sequence[TableRow],
) -> list[Any]:
    """Call a batch function, such as `ExplainBatch`, on the rows that could be read.

    The other rows are rejected, in their places.
    """
    usable = [row for row in rows if not row.problem]
    results: Iterator[Any] = iter(())
    if usable:
        names = None if usable[0].name is None else [own_cell(row.name or "") for row in usable]
        results = iter(batch([row.smiles for row in usable], [row.number for row in usable], names))
    return [
        rejected(_without_result(row, row.problem)) if row.problem else next(results)
        for row in rows
    ]


def _without_result(row: TableRow, reason: str) -> NamedRejectedRow:
    return NamedRejectedRow(
        row.number, shortened(row.smiles, MAX_QUOTED), reason, own_cell(row.name or "")
    )
