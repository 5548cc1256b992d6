"""Explain or predict every row of a table: streamed, restartable, with bad rows reported.

A run folder holds `explanations.csv` (one row per molecule), `rejected.csv` (rows left out, with
the reason), `run.json` (hash of the table, model, weights, method, target, pictures) and
`pictures/`. Rows are written and synced in chunks of `CHUNK`, which are numbered from the top of
the table, so a run that was interrupted continues to the same files, byte for byte. Two further
files are optional: `explanations.sdf`, which also grows, and `explanations.parquet`, converted from
the CSV file at the end of the run. If the table has a column of names, each file holds the names of
the compounds.
"""

import csv
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from graphxai.contract.intervals import LEVEL
from graphxai.datasets.csv_files import iter_records
from graphxai.datasets.molecule_reading import shortened
from graphxai.datasets.molecules import MAX_QUOTED, RejectedRow
from graphxai.datasets.training_set import training_set_of
from graphxai.explainers import Explainer
from graphxai.explanation.compute.models import LoadedModel
from graphxai.explanation.compute.nearness import set_nearness
from graphxai.explanation.files import one_line, require_pyarrow
from graphxai.runtime.progress import Progress
from graphxai.runtime.workers import LostItem, map_in_processes
from graphxai.runtime.writing import exclusive_lock, folder_at, synced_together, write_whole

from .batches import (
    ExplainBatch,
    ExplainedRow,
    NamedRejectedRow,
    Pictures,
    PredictBatch,
    rejected_cells,
    require_molecules,
)
from .files import AppendedCsv, appended_sdf, csv_to_parquet, guarded, rows_in

CHUNK = 128  # rows read, explained and written at a time
FORMATS = ("csv", "parquet", "sdf")
REJECTED_COLUMNS = ("row", "name", "smiles", "reason")
TABLES = ("explanations.csv", "rejected.csv")
WRITTEN = (*TABLES, "explanations.sdf", "explanations.parquet", "pictures")
RUN = {"table", "smiles_column", "model", "method"}  # settings that every run.json of ours has


class Row(NamedTuple):
    """A row of a table: number, SMILES, and the compound's name if the table has one."""

    number: int
    smiles: str
    name: str | None


@dataclass(frozen=True)
class Counts:
    """Rows done, left out, and done by an earlier run; rows done by their word of `Nearness`."""

    done: int = 0
    rejected: int = 0
    earlier: int = 0
    nearness: Mapping[str, int] = field(default_factory=dict)


def count_rows(path: str | Path) -> int:
    """Estimate the rows of a CSV file for a progress bar: its lines minus the header."""
    with Path(path).open("rb") as file:
        return max(sum(1 for _ in file) - 1, 0)


def explain_table(
    model: LoadedModel,
    path: str | Path,
    folder: str | Path,
    explainer: Explainer,
    *,
    smiles_column: str = "smiles",
    name_column: str | None = None,
    target: Any = None,
    pictures: Pictures | None = None,
    formats: Collection[str] = ("csv",),
    level: float = LEVEL,
    excel_safe: bool = False,
    resume: bool = False,
    progress: Progress = lambda rows: None,
    workers: int | None = 1,
) -> Counts:
    """Explain each molecule of a CSV file into `folder`; the module docstring lists the files.

    `formats`: some of `FORMATS`; the CSV file is always written. `name_column`: column with
    compound names; they become the titles of an SD file, each in one line. `level`: how often
    intervals and sets of classes should hold. `excel_safe`: put an
    apostrophe before text that a spreadsheet would read as a formula. `resume`: continue after
    the rows that an earlier run with the same settings wrote. `tick` is called with the number of
    rows done since the last call. `workers`: processes; the files are the same for any number.
    None takes the free cores if that is faster, see `runtime.workers.map_in_processes`.

    A row that cannot be read, explained, drawn or written is rejected; the run goes on. Raises
    FileExistsError if there are results and `resume` is off, or files of another origin,
    ValueError if the results come from a different run or a format is unknown, ImportError for
    Parquet without pyarrow, OSError if a file cannot be written or another run uses the folder.
    """
    batch = ExplainBatch(model, explainer, target, pictures, "sdf" in formats, level)
    require_molecules(model)
    _require_formats(formats)
    folder = folder_at(folder)
    settings = {
        "table": _digest(Path(path)),
        "smiles_column": smiles_column,
        "name_column": name_column,
        "model": model.origin.name,
        "sha256": model.origin.sha256,
        "method": explainer.name,
        "target": None if target is None else str(target),
        "pictures": None if pictures is None else asdict(pictures),
        "sdf": True if "sdf" in formats else None,
        "level": None if level == LEVEL else level,
        "excel_safe": excel_safe or None,
    }
    done = rejected = 0
    nearness: Counter[str] = Counter()
    named = name_column is not None
    columns = batch.columns(named)
    with ExitStack() as stack:
        stack.enter_context(exclusive_lock(folder))
        seen = _begin(folder, settings, resume)
        progress(len(seen))
        if pictures is not None:
            folder_at(folder / "pictures")
        table = AppendedCsv(stack, folder / "explanations.csv", columns, excel_safe)
        left_out = [name for name in REJECTED_COLUMNS if named or name != "name"]
        leftovers = AppendedCsv(stack, folder / "rejected.csv", left_out, excel_safe)
        structures = None
        if "sdf" in formats:
            explained = rows_in(folder / "explanations.csv")
            structures = stack.enter_context(appended_sdf(folder / "explanations.sdf", explained))
        batch.check()
        chunks = _chunks(path, smiles_column, name_column, seen)
        lost = partial(rejected_cells, named=named)
        done_rows = _worked(batch, chunks, lost, workers, count_rows(path) - len(seen))
        for found in stack.enter_context(closing(done_rows)):
            rows = [row for row in found if row["row"] not in seen]
            written = [row for row in rows if "reason" not in row]
            refused = [row for row in rows if "reason" in row]
            records = "".join(row.pop("record", "") for row in written)
            with synced_together():
                for row in written if pictures is not None else ():
                    write_whole(folder / row["picture"], row.pop("drawing"))
            if structures is not None:
                structures.write(records)
                structures.sync()
            # after pictures and structures, so that a row in this table is always complete
            table.write(written)
            leftovers.write(refused)
            nearness.update(row["training_set"] for row in written)
            done, rejected = done + len(written), rejected + len(refused)
            progress(len(rows))
        if "parquet" in formats:
            tables = folder / "explanations.csv", folder / "explanations.parquet"
            csv_to_parquet(*tables, columns)
    return Counts(done, rejected, len(seen), nearness)


def explain_rows(
    model: LoadedModel,
    path: str | Path,
    explainer: Explainer,
    *,
    smiles_column: str = "smiles",
    name_column: str | None = None,
    target: Any = None,
    skip: Collection[int] = (),
    workers: int | None = 1,
) -> Generator[ExplainedRow | NamedRejectedRow, None, None]:
    """Explain the rows of a CSV file except those in `skip`, in batches; yields them in order.

    workers: as for `explain_table`; the processes end with the generator.

    A row that cannot be explained is rejected. An error that concerns every molecule is raised.
    """
    batch = ExplainBatch(model, explainer, target)
    batch.check()
    training = training_set_of(model)
    chunks = _chunks(path, smiles_column, name_column, skip)
    total = count_rows(path) - len(skip)
    with closing(_worked(batch.explanations, chunks, lambda row: row, workers, total)) as done:
        for found in chain.from_iterable(done):
            if isinstance(found, ExplainedRow):
                set_nearness(found.explanation, training)
            if found.row not in skip:
                yield found


def predict_table(
    model: LoadedModel,
    path: str | Path,
    out: TextIO,
    *,
    smiles_column: str = "smiles",
    name_column: str | None = None,
    level: float = LEVEL,
    excel_safe: bool = False,
    progress: Progress = lambda rows: None,
    workers: int | None = 1,
) -> tuple[Counts, list[RejectedRow]]:
    """Predict each molecule of a CSV file; writes CSV to `out`, returns the rows left out.

    level, excel_safe, workers: as for `explain_table`.
    """
    require_molecules(model)
    batch = PredictBatch(model, level)

    def write(record: Mapping[str, Any]) -> None:
        writer.writerow(guarded(record) if excel_safe else record)

    columns = list(batch.columns(name_column is not None))
    chunks = _chunks(path, smiles_column, name_column)
    first = list(islice(chunks, 1))  # a missing column raises before anything is written
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    write(dict(zip(columns, columns, strict=True)))
    rejected: list[RejectedRow] = []
    nearness: Counter[str] = Counter()
    done = 0
    lost = partial(rejected_cells, named=name_column is not None)
    total = count_rows(path)
    with closing(_worked(batch, chain(first, chunks), lost, workers, total)) as found:
        for rows in found:
            for row in rows:
                if "reason" in row:
                    rejected.append(RejectedRow(row["row"], row["smiles"], row["reason"]))
                else:
                    write(row)
                    nearness[row["training_set"]] += 1
                    done += 1
            progress(len(rows))
    return Counts(done, len(rejected), nearness=nearness), rejected


def largest_relevance(
    model: LoadedModel,
    path: str | Path,
    explainer: Explainer,
    *,
    smiles_column: str = "smiles",
    target: Any = None,
    progress: Progress = lambda rows: None,
    workers: int | None = 1,
) -> float:
    """Largest |relevance| of any atom in a table, the limit of a shared colour scale."""
    largest = 0.0
    columns: dict[str, Any] = {"smiles_column": smiles_column, "target": target}
    with closing(explain_rows(model, path, explainer, workers=workers, **columns)) as rows:
        for found in rows:
            if isinstance(found, ExplainedRow):
                largest = max(largest, float(abs(found.explanation.relevance).max()))
            progress(1)
    return largest


def _chunks(
    path: str | Path, smiles_column: str, name_column: str | None, skip: Collection[int] = ()
) -> Iterator[list[Row]]:
    """The rows of a table, `CHUNK` at a time, without chunks whose rows are all in `skip`."""
    columns = [smiles_column] if name_column is None else [smiles_column, name_column]
    records = iter_records(path, columns)
    while chunk := list(islice(records, CHUNK)):
        if all(number in skip for number, _ in chunk):
            continue
        yield [
            Row(
                number,
                cells[smiles_column],
                None if name_column is None else one_line(cells[name_column]),
            )
            for number, cells in chunk
        ]


def _worked(
    batch: Callable[..., list[Any]],
    chunks: Iterable[list[Row]],
    lost: Callable[[NamedRejectedRow], Any],
    workers: int | None,
    total: int,
) -> Generator[list[Any], None, None]:
    """What a batch function makes of each chunk of rows, in their order.

    lost: what takes the place of a row that ended its process. total: rows, roughly.
    """
    with closing(map_in_processes(on_rows(batch), chunks, workers, total)) as done:
        for parts in done:
            found: dict[int, Any] = {}
            for rows, places, results in parts:
                if isinstance(results, LostItem):
                    number, smiles, name = rows[0]
                    smiles = shortened(smiles, MAX_QUOTED)
                    results = [lost(NamedRejectedRow(number, smiles, results.reason, name or ""))]
                found |= dict(zip(places, results, strict=True))
            yield [found[place] for place in sorted(found)]


def on_rows(batch: Callable[..., list[Any]]) -> Callable[[Sequence[Row]], list[Any]]:
    """A batch function, such as an `ExplainBatch`, as one that takes rows and can be sent."""
    return partial(_on_rows, batch)


def _on_rows(batch: Callable[..., list[Any]], rows: Sequence[Row]) -> list[Any]:
    numbers, smiles, names = zip(*rows, strict=True)
    return batch(smiles, numbers, None if names[0] is None else names)


def _require_formats(formats: Collection[str]) -> None:
    for name in formats:
        if name not in FORMATS:
            raise ValueError(f"unknown format {name!r}; choose from {', '.join(FORMATS)}.")
    if "parquet" in formats:
        require_pyarrow(Path("explanations.parquet"))


def _begin(folder: Path, settings: dict[str, Any], resume: bool) -> set[int]:
    """Make the folder, or check that it holds the same run; returns the rows already done."""
    stored = folder / "run.json"
    before = _settings_in(stored)
    for name in WRITTEN if before is None else ():
        if os.path.lexists(folder / name):
            raise FileExistsError(
                f"{folder / name} is not from a run of this command: choose another folder."
            )
    tables = [folder / name for name in TABLES]
    seen = rows_in(tables[0]) | rows_in(tables[1])
    if before is None or not seen:  # a new run, or one that failed before its first row
        for table in tables:
            table.unlink(missing_ok=True)
        write_whole(stored, json.dumps(settings, indent=1) + "\n")
        return set()
    if not resume:
        raise FileExistsError(
            f"{folder} already holds results: continue with --resume, or choose another folder."
        )
    for name, value in settings.items():
        if before.get(name) != value:
            raise ValueError(
                f"{folder} holds a run with {name} = {before.get(name)!r}, not {value!r}: choose"
                " another folder."
            )
    return seen


def _settings_in(stored: Path) -> dict[str, Any] | None:
    """The settings of the run that a folder holds; None if it holds none."""
    if not os.path.lexists(stored):
        return None
    try:
        found = json.loads(stored.read_text(encoding="utf-8")) if stored.is_file() else None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{stored} cannot be read ({error}); choose another folder.") from error
    if not isinstance(found, dict) or not found.keys() >= RUN:
        raise FileExistsError(f"{stored} is not from a run of this command: choose another folder.")
    return found


def _digest(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file.")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
