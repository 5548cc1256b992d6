"""Explain or predict every row of a table: streamed, restartable, bad rows reported.

A run folder holds `explanations.csv` (one row a molecule), `rejected.csv` (rows left out, with
the reason), `run.json` (hash of the table, model, weights, method, target, pictures) and
`pictures/`. Rows are written when they are done, so that an interrupted run can go on. On demand
there are `explanations.sdf`, written row by row too, and `explanations.parquet`, made of the CSV
file when the run is complete.
"""

import csv
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from torch_geometric.data import Data

from graphxai.api import explain_prepared, predict_prepared
from graphxai.datasets.molecules import RejectedRow, iter_table
from graphxai.explainers import Explainer
from graphxai.explanation import Explanation, Prediction
from graphxai.export import require_pyarrow, sdf_record
from graphxai.inputs import Input, prepare, reads_molecules, writes_canonically
from graphxai.models.graphormer import Graphormer
from graphxai.progress import Tick
from graphxai.table_files import AppendedCsv, appended_sdf, csv_to_parquet, rows_in

CHUNK = 128  # rows read, explained and written at a time
FORMATS = ("csv", "parquet", "sdf")
REJECTED_COLUMNS = ("row", "smiles", "reason")


@dataclass(frozen=True)
class Counts:
    """Rows done, left out, and done by an earlier run."""

    done: int = 0
    rejected: int = 0
    earlier: int = 0


@dataclass(frozen=True)
class ExplainedRow:
    """A row of a table and its explanation."""

    row: int
    explanation: Explanation


@dataclass(frozen=True)
class Pictures:
    """How the pictures of a table look: suffix (".svg", ".png"), palette, colour scale.

    `limit`: relevance at the ends of the colour bar; None fits each picture by itself.
    """

    suffix: str = ".svg"
    palette: str = "red-blue"
    limit: float | None = None


def count_rows(path: str | Path) -> int:
    """About how many rows a CSV file has, for a progress bar: its lines less the header."""
    with Path(path).open("rb") as file:
        return max(sum(1 for _ in file) - 1, 0)


def explain_table(
    model: Graphormer,
    path: str | Path,
    folder: str | Path,
    explainer: Explainer,
    *,
    smiles_column: str = "smiles",
    target: Any = None,
    pictures: Pictures | None = None,
    formats: Collection[str] = ("csv",),
    resume: bool = False,
    tick: Tick = lambda rows: None,
) -> Counts:
    """Explain each molecule of a CSV file into `folder`; see the module's text.

    `formats`: of `FORMATS`; the CSV file is always there. `resume` goes on after the rows that an
    earlier run with the same model, method and target has written. `tick` is called with the
    number of rows done since the last call. Raises FileExistsError if there are results and
    `resume` is off, ValueError if they are of another run or a format is unknown, ImportError for
    Parquet without pyarrow.
    """
    _require_molecules(model)
    _require_formats(formats)
    folder = Path(folder)
    settings = {
        "table": _digest(Path(path)),
        "smiles_column": smiles_column,
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
    if pictures is not None:
        (folder / "pictures").mkdir(exist_ok=True)
    with ExitStack() as stack:
        table = AppendedCsv(stack, folder / "explanations.csv", _columns(model))
        leftovers = AppendedCsv(stack, folder / "rejected.csv", REJECTED_COLUMNS)
        structures = None
        if "sdf" in formats:
            structures = stack.enter_context(appended_sdf(folder / "explanations.sdf", seen))
        for found in explain_rows(
            model, path, explainer, smiles_column=smiles_column, target=target, skip=seen
        ):
            tick(1)
            if isinstance(found, RejectedRow):
                leftovers.write(vars(found))
                rejected += 1
                continue
            picture = ""
            if pictures is not None:
                picture = f"pictures/{found.row:06d}{pictures.suffix}"
                _draw(found.explanation, folder / picture, pictures)
            if structures is not None:
                structures.write(sdf_record(found.explanation, Row=found.row))
                structures.flush()
            # last: what stands in the table is done, whatever happens next
            table.write(_record(found.row, found.explanation, picture))
            done += 1
    if "parquet" in formats:
        tables = folder / "explanations.csv", folder / "explanations.parquet"
        csv_to_parquet(*tables, _columns(model))
    return Counts(done, rejected, len(seen))


def explain_rows(
    model: Graphormer,
    path: str | Path,
    explainer: Explainer,
    *,
    smiles_column: str = "smiles",
    target: Any = None,
    skip: Collection[int] = (),
) -> Iterator[ExplainedRow | RejectedRow]:
    """Explain the rows of a CSV file but those in `skip`, in batches; yields them in order."""
    _require_molecules(model)
    rows = (row for row in _rows(model, path, smiles_column) if row.row not in skip)
    for chunk in _chunks(rows, CHUNK):
        good, bad = _encoded(model, chunk)
        explained = explain_prepared(model, good, explainer, target=target)
        found: list[ExplainedRow | RejectedRow] = [
            *bad,
            *(ExplainedRow(row, explanation) for row, explanation in explained),
        ]
        yield from sorted(found, key=lambda one: one.row)


def predict_table(
    model: Graphormer,
    path: str | Path,
    out: TextIO,
    *,
    smiles_column: str = "smiles",
    tick: Tick = lambda rows: None,
) -> tuple[Counts, list[RejectedRow]]:
    """Predict each molecule of a CSV file; writes CSV to `out`, gives back the rows left out."""
    _require_molecules(model)
    writer = csv.DictWriter(out, ["row", "smiles", *_predicted_columns(model)], lineterminator="\n")
    writer.writeheader()
    rejected: list[RejectedRow] = []
    done = 0
    for chunk in _chunks(_rows(model, path, smiles_column), CHUNK):
        good, bad = _encoded(model, chunk)
        rejected += bad
        smiles = {row: prepared.smiles for row, prepared in good}
        for row, predictions in sorted(predict_prepared(model, good)):
            writer.writerow({"row": row, "smiles": smiles[row]} | _predicted(predictions))
        done += len(good)
        tick(len(chunk))
    return Counts(done, len(rejected)), rejected


def largest_relevance(
    model: Graphormer,
    path: str | Path,
    explainer: Explainer,
    *,
    smiles_column: str = "smiles",
    target: Any = None,
    tick: Tick = lambda rows: None,
) -> float:
    """Largest absolute relevance of any atom in a table: the limit of a shared colour scale."""
    largest = 0.0
    for found in explain_rows(model, path, explainer, smiles_column=smiles_column, target=target):
        if isinstance(found, ExplainedRow):
            largest = max(largest, float(abs(found.explanation.relevance).max()))
        tick(1)
    return largest


def _rows(model: Graphormer, path: str | Path, smiles_column: str) -> Iterator[Data | RejectedRow]:
    return iter_table(path, smiles_column, canonical=writes_canonically(model.config))


def _require_molecules(model: Graphormer) -> None:
    if not reads_molecules(model.config):
        raise ValueError(
            f"model {model.origin.name!r} reads images, not molecules: a table of SMILES needs a"
            " model of molecules, such as 'bace'."
        )


def _require_formats(formats: Collection[str]) -> None:
    for name in formats:
        if name not in FORMATS:
            raise ValueError(f"unknown format {name!r}; choose from {', '.join(FORMATS)}.")
    if "parquet" in formats:
        require_pyarrow(Path("explanations.parquet"))


def _begin(folder: Path, settings: dict[str, Any], resume: bool) -> set[int]:
    """Make the folder, or check that it holds the same run; rows that are done."""
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
            f"{folder} holds results already: go on with --resume, or choose another folder."
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


def _chunks(rows: Iterable[Data | RejectedRow], size: int) -> Iterator[list[Data | RejectedRow]]:
    iterator = iter(rows)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _encoded(
    model: Graphormer, chunk: list[Data | RejectedRow]
) -> tuple[list[tuple[int, Input]], list[RejectedRow]]:
    """The rows of a chunk that can be used, encoded and by number; and the others."""
    rejected = [item for item in chunk if isinstance(item, RejectedRow)]
    graphs = [item for item in chunk if not isinstance(item, RejectedRow)]
    return [(int(graph.row), prepare(model.config, graph)) for graph in graphs], rejected


def _columns(model: Graphormer) -> dict[str, type]:
    """The columns of `explanations.csv` with the types of their values."""
    return {
        "row": int,
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
    return columns


LEDGER = ("output", "nodes", "graph_token", "biases", "structure", "unexplained")


def _record(row: int, explanation: Explanation, picture: str) -> dict[str, Any]:
    ledger = explanation.ledger.to_dict() | {
        "structure": sum(explanation.ledger.structure.values())
    }
    return {
        "row": row,
        "smiles": explanation.smiles,
        **_predicted(explanation.predictions),
        "target": explanation.target,
        **{name: f"{ledger[name]:.6g}" for name in LEDGER},
        "relevance": " ".join(f"{value:.7g}" for value in explanation.relevance),
        "picture": picture,
    }


def _predicted(predictions: Iterable[Prediction]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for prediction in predictions:
        if prediction.label is None:
            record[prediction.task] = f"{prediction.value:.6g}"
            continue
        record[prediction.task] = prediction.label
        for name, probability in prediction.probabilities.items():
            record[f"{prediction.task}: {name}"] = f"{probability:.6g}"
    return record


def _draw(explanation: Explanation, path: Path, pictures: Pictures) -> None:
    from graphxai.visualization import Scale

    scale = None
    if pictures.limit is not None:
        scale = Scale(pictures.limit, pictures.palette)
    explanation.save(path, scale=scale, palette=pictures.palette)
