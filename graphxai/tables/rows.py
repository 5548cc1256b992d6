"""Read the rows of a table in chunks, and give them to a function here or in other processes."""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from graphxai.datasets.csv_files import iter_records
from graphxai.datasets.molecule_reading import shortened
from graphxai.datasets.molecules import MAX_QUOTED
from graphxai.explanation.files import one_line
from graphxai.runtime.workers import LostItem, map_in_processes

from .batches import NamedRejectedRow

CHUNK = 128  # how many rows are read, explained and written at a time


class TableRow(NamedTuple):
    """A row of a table: its number, the SMILES, and the compound's name if the table has names."""

    number: int
    smiles: str
    name: str | None


def count_rows(path: str | Path) -> int:
    """Estimate how many rows a CSV file has, as its lines minus the header, for a progress bar."""
    with Path(path).open("rb") as file:
        return max(sum(1 for _ in file) - 1, 0)


def read_rows(
    path: str | Path,
    smiles_column: str,
    name_column: str | None,
    skip: Collection[int] = (),
) -> Iterator[list[TableRow]]:
    """Yield the rows of a table, `CHUNK` at a time, except chunks with all rows in `skip`."""
    columns = [smiles_column] if name_column is None else [smiles_column, name_column]
    records = iter_records(path, columns)
    while chunk := list(islice(records, CHUNK)):
        if all(number in skip for number, _ in chunk):
            continue
        yield [
            TableRow(
                number,
                cells[smiles_column],
                None if name_column is None else one_line(cells[name_column]),
            )
            for number, cells in chunk
        ]


def map_rows(
    batch: Callable[..., list[Any]],
    chunks: Iterable[list[TableRow]],
    result_if_lost: Callable[[NamedRejectedRow], Any],
    workers: int | None,
    total: int,
) -> Generator[list[Any], None, None]:
    """Yield what a batch function makes of each chunk of rows, in their order.

    Args:
        batch: a function of SMILES, row numbers and names, such as `ExplainBatch`.
        chunks: the rows, chunk by chunk.
        result_if_lost: makes the result of a row that made its process end.
        workers: the number of processes, see `runtime.workers.map_in_processes`.
        total: roughly the number of rows.
    """
    with closing(map_in_processes(on_rows(batch), chunks, workers, total)) as done:
        for parts in done:
            results_by_place: dict[int, Any] = {}
            for rows, places, results in parts:
                if isinstance(results, LostItem):
                    number, smiles, name = rows[0]
                    smiles = shortened(smiles, MAX_QUOTED)
                    rejected = NamedRejectedRow(number, smiles, results.reason, name or "")
                    results = [result_if_lost(rejected)]
                results_by_place |= dict(zip(places, results, strict=True))
            yield [results_by_place[place] for place in sorted(results_by_place)]


def on_rows(batch: Callable[..., list[Any]]) -> Callable[[Sequence[TableRow]], list[Any]]:
    """Turn a function such as `ExplainBatch` into a function of rows that can be pickled."""
    return partial(_call_with_columns, batch)


def _call_with_columns(batch: Callable[..., list[Any]], rows: Sequence[TableRow]) -> list[Any]:
    numbers, smiles, names = zip(*rows, strict=True)
    return batch(smiles, numbers, None if names[0] is None else names)
