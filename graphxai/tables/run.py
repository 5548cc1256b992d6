"""Explain or predict every row of a table: streamed, restartable, with bad rows reported.

A run folder holds `explanations.csv` (one row per molecule), `rejected.csv` (rows left out, with
the reason), `run.json` (hash of the table, model, weights, method, target, pictures) and
`pictures/`. Each row is written as soon as it is done, so an interrupted run can continue. Two
further files are optional: `explanations.sdf`, also written row by row, and
`explanations.parquet`, converted from the CSV file at the end of the run. If the table has a
column of names, each file holds the names of the compounds.
"""

import csv
import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from torch_geometric.data import Data

from graphxai.api import explain_prepared, predict_prepared
from graphxai.contract.inputs import Input, prepare, reads_molecules, writes_canonically
from graphxai.datasets.molecules import RejectedRow, iter_records, iter_table
from graphxai.datasets.progress import Tick
from graphxai.datasets.training_set import UNKNOWN, training_set_of
from graphxai.explainers import Explainer
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.files import one_line, require_pyarrow
from graphxai.explanation.prediction import Prediction
from graphxai.models.graphormer import Graphormer

from .files import AppendedCsv, appended_sdf, csv_to_parquet, rows_in

CHUNK = 128  # rows read, explained and written at a time
FORMATS = ("csv", "parquet", "sdf")
REJECTED_COLUMNS = ("row", "smiles", "reason")

NamedRow: TypeAlias = "tuple[Data | RejectedRow, str]"  # with the compound's name


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

    `limit`: relevance at the ends of the colour bar; None fits the scale to each picture.
    """

    suffix: str = ".svg"
    palette: str = "red-blue"
    limit: float | None = None


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
    resume: bool = False,
    tick: Tick = lambda rows: None,
) -> Counts:
    """Explain each molecule of a CSV file into `folder`; the module docstring lists the files.

    `formats`: some of `FORMATS`; the CSV file is always written. `name_column`: column with
    compound names; they become the titles of an SD file, each in one line. `resume`: continue
    after the rows that an earlier run with the same settings wrote. `tick` is called with the
    number of rows done since the last call. Raises FileExistsError if there are results and
    `resume` is off, ValueError if they come from a different run or a format is unknown,
    ImportError for Parquet without pyarrow.
    """
    _require_molecules(model)
    _require_formats(formats)
    folder = Path(folder)
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
    }
    seen = _begin(folder, settings, resume)
    tick(len(seen))
    done = rejected = 0
    nearness: Counter[str] = Counter()
    columns = _columns(model, name_column)
    if pictures is not None:
        (folder / "pictures").mkdir(exist_ok=True)
    with ExitStack() as stack:
        table = AppendedCsv(stack, folder / "explanations.csv", columns)
        leftovers = AppendedCsv(
            stack, folder / "rejected.csv", ("row", *_named(name_column), *REJECTED_COLUMNS[1:])
        )
        structures = None
        if "sdf" in formats:
            structures = stack.enter_context(appended_sdf(folder / "explanations.sdf", seen))
        for found in explain_rows(
            model,
            path,
            explainer,
            smiles_column=smiles_column,
            name_column=name_column,
            target=target,
            skip=seen,
        ):
            tick(1)
            if isinstance(found, NamedRejectedRow):
                text = {"row": found.row, "smiles": found.smiles, "reason": found.reason}
                leftovers.write(text | _named(name_column, found.name))
                rejected += 1
                continue
            picture = ""
            if pictures is not None:
                picture = f"pictures/{found.row:06d}{pictures.suffix}"
                _draw(found.explanation, folder / picture, pictures)
            if structures is not None:
                structures.write(found.explanation.to_sdf(title=found.name, Row=found.row))
                structures.flush()
            # last, so that a row in this table is always complete
            record = _record(found, name_column, picture)
            table.write(record)
            nearness[record["training_set"]] += 1
            done += 1
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
    """Explain the rows of a CSV file except those in `skip`, in batches; yields them in order."""
    _require_molecules(model)
    training = training_set_of(model)
    rows = (row for row in _rows(model, path, smiles_column, name_column) if row[0].row not in skip)
    for chunk in _chunks(rows, CHUNK):
        good, bad, names = _encoded(model, chunk)
        explained = explain_prepared(model, good, explainer, target=target, training=training)
        found: list[ExplainedRow | NamedRejectedRow] = [
            *(NamedRejectedRow(**vars(row), name=names[row.row]) for row in bad),
            *(ExplainedRow(row, explanation, names[row]) for row, explanation in explained),
        ]
        yield from sorted(found, key=lambda one: one.row)


def predict_table(
    model: Graphormer,
    path: str | Path,
    out: TextIO,
    *,
    smiles_column: str = "smiles",
    name_column: str | None = None,
    tick: Tick = lambda rows: None,
) -> tuple[Counts, list[RejectedRow]]:
    """Predict each molecule of a CSV file; writes CSV to `out`, returns the rows left out."""
    _require_molecules(model)
    columns = ["row", *_named(name_column), "smiles", *_predicted_columns(model)]
    chunks = _chunks(_rows(model, path, smiles_column, name_column), CHUNK)
    first = next(chunks, [])  # a missing column raises before anything is written
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    rejected: list[RejectedRow] = []
    training, nearness = training_set_of(model), Counter[str]()
    done = 0
    for chunk in chain([first], chunks):
        good, bad, names = _encoded(model, chunk)
        rejected += bad
        smiles = {row: prepared.smiles for row, prepared in good}
        for row, predictions in sorted(predict_prepared(model, good, training=training)):
            cells = {"row": row, **_named(name_column, names[row]), "smiles": smiles[row]}
            predicted = _predicted(predictions)
            writer.writerow(cells | predicted)
            nearness[predicted["training_set"]] += 1
        done += len(good)
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
    rows = iter_table(path, smiles_column, canonical=writes_canonically(model.config))
    if name_column is None:
        return ((row, "") for row in rows)
    # read the file twice in parallel: iter_table keeps only the SMILES
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
    folder.mkdir(parents=True, exist_ok=True)
    stored = folder / "run.json"
    tables = folder / "explanations.csv", folder / "rejected.csv"
    seen = rows_in(tables[0]) | rows_in(tables[1])
    if not seen:  # a new run, or one that failed before its first row
        for table in tables:
            table.unlink(missing_ok=True)
        stored.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        return set()
    if not resume:
        raise FileExistsError(
            f"{folder} already holds results: continue with --resume, or choose another folder."
        )
    try:
        before = json.loads(stored.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{stored} cannot be read ({error}); choose another folder.") from error
    for name, value in settings.items():
        if before.get(name) != value:
            raise ValueError(
                f"{folder} holds a run with {name} = {before.get(name)!r}, not {value!r}: choose"
                " another folder."
            )
    return seen


def _digest(path: Path) -> str:
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
    prepared = [(int(graph.row), prepare(model.config, graph)) for graph in graphs]
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
        columns[task.name] = float if task.kind == "regression" else str
        columns |= {f"{task.name}: {name}": float for name in task.classes}
    return columns | {"nearest_similarity": float, "training_set": str}


LEDGER = ("output", "nodes", "centrality", "graph_token", "biases", "structure", "unexplained")


def _record(found: ExplainedRow, name_column: str | None, picture: str) -> dict[str, Any]:
    explanation = found.explanation
    ledger = vars(explanation.ledger) | {
        "structure": sum(explanation.ledger.structure.values()),
        "unexplained": explanation.ledger.unexplained,
    }
    return {
        "row": found.row,
        **_named(name_column, found.name),
        "smiles": explanation.smiles,
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
            record[prediction.task] = f"{prediction.value:z.6g}"
            continue
        record[prediction.task] = prediction.label
        for name, probability in prediction.probabilities.items():
            record[f"{prediction.task}: {name}"] = f"{probability:.6g}"
    return record | (predictions[0].nearness or UNKNOWN).columns


def _draw(explanation: Explanation, path: Path, pictures: Pictures) -> None:
    from graphxai.visualization import Scale

    scale = None
    if pictures.limit is not None:
        scale = Scale(pictures.limit, pictures.palette)
    explanation.save(path, scale=scale, palette=pictures.palette)
