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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO, TypeAlias, TypeVar

from graphxai.api import explain_prepared, predict_prepared
from graphxai.contract.inputs import (
    Input,
    prepare_each,
    prepare_for,
    reads_molecules,
    writes_canonically,
)
from graphxai.datasets.graph import Graph
from graphxai.datasets.labels import with_unit
from graphxai.datasets.molecule_reading import shortened
from graphxai.datasets.molecules import MAX_QUOTED, RejectedRow, iter_records, table_graphs
from graphxai.datasets.progress import Tick
from graphxai.datasets.training_set import UNKNOWN, training_set_of
from graphxai.datasets.writing import alone, folder_at, synced_together, write_whole
from graphxai.explainers import Explainer
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.files import one_line, require_pyarrow
from graphxai.explanation.prediction import Prediction
from graphxai.models.graphormer import Graphormer

from .files import AppendedCsv, appended_sdf, csv_to_parquet, guarded, rows_in

CHUNK = 128  # rows read, explained and written at a time
FORMATS = ("csv", "parquet", "sdf")
REJECTED_COLUMNS = ("row", "smiles", "reason")
TABLES = ("explanations.csv", "rejected.csv")
WRITTEN = (*TABLES, "explanations.sdf", "explanations.parquet", "pictures")
RUN = {"table", "smiles_column", "model", "method"}  # settings that every run.json of ours has
PROBE = "CC"

NamedRow: TypeAlias = tuple[Graph | RejectedRow, str]  # with the compound's name
Encoded: TypeAlias = "list[tuple[int, Input]]"  # rows with their numbers
Result = TypeVar("Result")


@dataclass(frozen=True)
class Counts:
    """Rows done, left out, and done by an earlier run; rows done by the word of `Nearness`."""

    done: int = 0
    rejected: int = 0
    earlier: int = 0
    nearness: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ExplainedRow:
    """A row of a table, its explanation, and the compound's name if the table has one."""

    row: int
    explanation: Explanation
    name: str = ""


@dataclass(frozen=True)
class NamedRejectedRow(RejectedRow):
    """A row that was left out, and the compound's name if the table has one."""

    name: str = ""


@dataclass(frozen=True)
class Pictures:
    """How the pictures for a table look: suffix (".svg", ".png"), palette, colour scale.

    `limit`: relevance at the ends of the colour bar; None fits the scale to each picture;
    `atom_numbers`: whether they are written.
    """

    suffix: str = ".svg"
    palette: str = "red-blue"
    limit: float | None = None
    atom_numbers: bool = False


def count_rows(path: str | Path) -> int:
    """Estimate the rows of a CSV file for a progress bar: its lines minus the header."""
    with Path(path).open("rb") as file:
        return max(sum(1 for _ in file) - 1, 0)


def explain_table(
    model: Graphormer,
    path: str | Path,
    folder: str | Path,
    explainer: Explainer,
    *,
    smiles_column: str = "smiles",
    name_column: str | None = None,
    target: Any = None,
    pictures: Pictures | None = None,
    formats: Collection[str] = ("csv",),
    excel_safe: bool = False,
    resume: bool = False,
    tick: Tick = lambda rows: None,
) -> Counts:
    """Explain each molecule of a CSV file into `folder`; the module docstring lists the files.

    `formats`: some of `FORMATS`; the CSV file is always written. `name_column`: column with
    compound names; they become the titles of an SD file, each in one line. `excel_safe`: put an
    apostrophe before text that a spreadsheet would take for a formula. `resume`: continue after
    the rows that an earlier run with the same settings wrote. `tick` is called with the number of
    rows done since the last call.

    A row that cannot be read, explained, drawn or written is rejected; the run goes on. Raises
    FileExistsError if there are results and `resume` is off, or files of another origin,
    ValueError if the results come from a different run or a format is unknown, ImportError for
    Parquet without pyarrow, OSError if a file cannot be written or another run uses the folder.
    """
    _require_molecules(model)
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
        "excel_safe": excel_safe or None,
    }
    done = rejected = 0
    nearness: Counter[str] = Counter()
    columns = _columns(model, name_column)
    with ExitStack() as stack:
        stack.enter_context(alone(folder))
        seen = _begin(folder, settings, resume)
        tick(len(seen))
        if pictures is not None:
            folder_at(folder / "pictures")
        table = AppendedCsv(stack, folder / "explanations.csv", columns, excel_safe)
        left_out = ("row", *_named(name_column), *REJECTED_COLUMNS[1:])
        leftovers = AppendedCsv(stack, folder / "rejected.csv", left_out, excel_safe)
        structures = None
        if "sdf" in formats:
            explained = rows_in(folder / "explanations.csv")
            structures = stack.enter_context(appended_sdf(folder / "explanations.sdf", explained))
        for chunk in _explained(model, path, explainer, smiles_column, name_column, target, seen):
            written, records, refused = [], [], []
            with synced_together():
                for one in chunk:
                    if isinstance(one, ExplainedRow):
                        found = _written(one, folder, name_column, pictures, structures is not None)
                        if not isinstance(found, RejectedRow):
                            written.append(found[0])
                            records.append(found[1])
                            continue
                        one = NamedRejectedRow(**vars(found), name=one.name)
                    text = {"row": one.row, "smiles": one_line(one.smiles)}
                    text["reason"] = one_line(one.reason)
                    refused.append(text | _named(name_column, one.name))
            if structures is not None:
                structures.write("".join(records))
                structures.sync()
            # after pictures and structures, so that a row in this table is always complete
            table.write(written)
            leftovers.write(refused)
            nearness.update(record["training_set"] for record in written)
            done, rejected = done + len(written), rejected + len(refused)
            tick(len(chunk))
        if "parquet" in formats:
            tables = folder / "explanations.csv", folder / "explanations.parquet"
            csv_to_parquet(*tables, columns)
    return Counts(done, rejected, len(seen), nearness)


def explain_rows(
    model: Graphormer,
    path: str | Path,
    explainer: Explainer,
    *,
    smiles_column: str = "smiles",
    name_column: str | None = None,
    target: Any = None,
    skip: Collection[int] = (),
) -> Iterator[ExplainedRow | NamedRejectedRow]:
    """Explain the rows of a CSV file except those in `skip`, in batches; yields them in order.

    A row that cannot be explained is rejected. An error that concerns every molecule is raised.
    """
    for chunk in _explained(model, path, explainer, smiles_column, name_column, target, skip):
        yield from chunk


def _explained(
    model: Graphormer,
    path: str | Path,
    explainer: Explainer,
    smiles_column: str,
    name_column: str | None,
    target: Any,
    skip: Collection[int],
) -> Iterator[list[ExplainedRow | NamedRejectedRow]]:
    """The rows of each chunk, except those in `skip`.

    A chunk with rows left to do is explained whole: in other batches, other roundings would occur.
    """
    _require_molecules(model)
    training = training_set_of(model)

    def work(rows: Encoded) -> Iterator[tuple[int, Explanation]]:
        return explain_prepared(model, rows, explainer, target=target, training=training)

    # an unknown target or an unsuitable method fails here, before it fails on every row
    probe = [(0, prepare_for(model, PROBE))]
    list(explain_prepared(model, probe, explainer, target=target, refuse=lambda *_: None))
    for chunk in _chunks(_rows(model, path, smiles_column, name_column), CHUNK):
        if all(row.row in skip for row, _ in chunk):
            continue
        good, bad, names = _encoded(model, chunk)
        explained = _tried(work, good, bad)
        found: list[ExplainedRow | NamedRejectedRow] = [
            *(NamedRejectedRow(**vars(row), name=names[row.row]) for row in bad),
            *(ExplainedRow(row, explanation, names[row]) for row, explanation in explained),
        ]
        yield sorted((one for one in found if one.row not in skip), key=lambda one: one.row)


def _tried(
    work: Callable[[Encoded], Iterable[Result]], rows: Encoded, refused: list[RejectedRow]
) -> list[Result]:
    """The results of encoded rows; rows that fail by themselves too are added to `refused`."""
    try:
        return list(work(rows))
    except Exception as error:  # of any type: one row must not stop the others
        if len(rows) == 1:
            ((row, item),) = rows
            refused.append(_refused(row, item.smiles or "", error))
            return []
        half = len(rows) // 2
        return _tried(work, rows[:half], refused) + _tried(work, rows[half:], refused)


def _refused(row: int, smiles: str, error: Exception, what: str = "") -> RejectedRow:
    """A row that failed, with the error in one line."""
    reason = shortened(one_line(str(error)) or type(error).__name__, 300)
    return RejectedRow(row, shortened(smiles, MAX_QUOTED), f"{what}{reason}")


def _written(
    found: ExplainedRow,
    folder: Path,
    name_column: str | None,
    pictures: Pictures | None,
    structure: bool,
) -> tuple[dict[str, Any], str] | RejectedRow:
    """The CSV and SD records of a row, whose picture is written; or why it cannot be written."""
    picture = f"pictures/{found.row:06d}{pictures.suffix}" if pictures else ""
    try:
        row = _record(found, name_column, picture)
        sdf = found.explanation.to_sdf(title=found.name, Row=found.row) if structure else ""
        if pictures is not None:
            _draw(found.explanation, folder / picture, pictures)
    except OSError:  # a full disk is not the row's fault
        raise
    except Exception as error:  # RDKit raises errors of any type
        return _refused(found.row, found.explanation.smiles or "", error, "cannot be written: ")
    return row, sdf


def predict_table(
    model: Graphormer,
    path: str | Path,
    out: TextIO,
    *,
    smiles_column: str = "smiles",
    name_column: str | None = None,
    excel_safe: bool = False,
    tick: Tick = lambda rows: None,
) -> tuple[Counts, list[RejectedRow]]:
    """Predict each molecule of a CSV file; writes CSV to `out`, returns the rows left out.

    excel_safe: as for `explain_table`.
    """
    _require_molecules(model)
    training = training_set_of(model)

    def write(record: Mapping[str, Any]) -> None:
        writer.writerow(guarded(record) if excel_safe else record)

    def work(rows: Encoded) -> Iterator[tuple[int, tuple[Prediction, ...]]]:
        return predict_prepared(model, rows, training=training)

    columns = ["row", *_named(name_column), "smiles", *_predicted_columns(model)]
    chunks = _chunks(_rows(model, path, smiles_column, name_column), CHUNK)
    first = next(chunks, [])  # a missing column raises before anything is written
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    write(dict(zip(columns, columns, strict=True)))
    rejected: list[RejectedRow] = []
    nearness: Counter[str] = Counter()
    done = 0
    for chunk in chain([first], chunks):
        good, bad, names = _encoded(model, chunk)
        smiles = {row: one_line(prepared.smiles or "") for row, prepared in good}
        predicted = _tried(work, good, bad)
        for row, predictions in sorted(predicted, key=lambda one: one[0]):
            cells = {"row": row, **_named(name_column, names[row]), "smiles": smiles[row]}
            found = _predicted(predictions)
            write(cells | found)
            nearness[found["training_set"]] += 1
        rejected += sorted(bad, key=lambda one: one.row)
        done += len(predicted)
        tick(len(chunk))
    return Counts(done, len(rejected), nearness=nearness), rejected


def largest_relevance(
    model: Graphormer,
    path: str | Path,
    explainer: Explainer,
    *,
    smiles_column: str = "smiles",
    target: Any = None,
    tick: Tick = lambda rows: None,
) -> float:
    """Largest |relevance| of any atom in a table, the limit of a shared colour scale."""
    largest = 0.0
    for found in explain_rows(model, path, explainer, smiles_column=smiles_column, target=target):
        if isinstance(found, ExplainedRow):
            largest = max(largest, float(abs(found.explanation.relevance).max()))
        tick(1)
    return largest


def _rows(
    model: Graphormer, path: str | Path, smiles_column: str, name_column: str | None
) -> Iterator[NamedRow]:
    """The rows of a table, each with the compound's name (empty without a column of names)."""
    rows = table_graphs(path, smiles_column, canonical=writes_canonically(model.config))
    if name_column is None:
        return ((row, "") for row in rows)
    # read the file twice in parallel: table_graphs keeps only the SMILES
    records = iter_records(path, (smiles_column, name_column))
    named = zip(rows, records, strict=True)
    return ((row, one_line(cells[name_column])) for row, (_, cells) in named)


def _named(name_column: str | None, value: Any = str) -> dict[str, Any]:
    """The column "name" with a value, if the table has names."""
    return {} if name_column is None else {"name": value}


def _require_molecules(model: Graphormer) -> None:
    if not reads_molecules(model.config):
        raise ValueError(
            f"model {model.origin.name!r} reads images, not molecules: for a table of SMILES,"
            " choose a model that reads molecules, such as 'bace'."
        )


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


def _chunks(rows: Iterable[NamedRow], size: int) -> Iterator[list[NamedRow]]:
    iterator = iter(rows)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _encoded(
    model: Graphormer, chunk: list[NamedRow]
) -> tuple[list[tuple[int, Input]], list[RejectedRow], dict[int, str]]:
    """Usable rows of a chunk, numbered and encoded; rejected rows; names by row number."""
    rejected = [item for item, _ in chunk if isinstance(item, RejectedRow)]
    graphs = [item for item, _ in chunk if not isinstance(item, RejectedRow)]
    prepared: Encoded = []
    # errors of any type: one row must not stop the others
    for graph, found in zip(graphs, prepare_each(model, graphs, Exception), strict=True):
        if isinstance(found, Exception):
            rejected.append(_refused(int(graph.row), str(graph.get("smiles") or ""), found))
        else:
            prepared.append((int(graph.row), found))
    return prepared, rejected, {int(item.row): name for item, name in chunk}


def _columns(model: Graphormer, name_column: str | None) -> dict[str, type]:
    """The columns of `explanations.csv` with their types."""
    return {
        "row": int,
        **_named(name_column),
        "smiles": str,
        **_predicted_columns(model),
        "target": str,
        **dict.fromkeys(LEDGER, float),
        "relevance": list,
        "picture": str,
    }


def _predicted_columns(model: Graphormer) -> dict[str, type]:
    columns: dict[str, type] = {}
    for task in model.config.tasks:
        columns[with_unit(task.name, task.unit)] = float if task.kind == "regression" else str
        columns |= {f"{task.name}: {name}": float for name in task.classes}
    return columns | {"nearest_similarity": float, "training_set": str}


LEDGER = (
    "output",
    "without_nodes",
    "nodes",
    "centrality",
    "graph_token",
    "biases",
    "structure",
    "unexplained",
)


def _record(found: ExplainedRow, name_column: str | None, picture: str) -> dict[str, Any]:
    explanation = found.explanation
    ledger = vars(explanation.ledger) | {
        "structure": sum(explanation.ledger.structure.values()),
        "unexplained": explanation.ledger.unexplained,
    }
    return {
        "row": found.row,
        **_named(name_column, found.name),
        "smiles": one_line(explanation.smiles or ""),
        **_predicted(explanation.predictions),
        "target": explanation.target,
        **{name: "" if ledger[name] is None else f"{ledger[name]:z.6g}" for name in LEDGER},
        "relevance": " ".join(f"{value:.7g}" for value in explanation.relevance),
        "picture": picture,
    }


def _predicted(predictions: Sequence[Prediction]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for prediction in predictions:
        if prediction.label is None:
            record[prediction.heading] = f"{prediction.value:z.6g}"
            continue
        record[prediction.task] = prediction.label
        for name, probability in prediction.probabilities.items():
            record[f"{prediction.task}: {name}"] = f"{probability:.6g}"
    return record | (predictions[0].nearness or UNKNOWN).columns


def _draw(explanation: Explanation, path: Path, pictures: Pictures) -> None:
    explanation.save(
        path,
        scale=pictures.limit,
        palette=pictures.palette,
        atom_numbers=pictures.atom_numbers,
    )
