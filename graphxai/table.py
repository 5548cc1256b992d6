"""Explain or predict every row of a table: streamed, restartable, bad rows reported.

A run folder holds `explanations.csv` (one row a molecule), `rejected.csv` (rows left out, with
the reason), `run.json` (hash of the table, model, weights, method, target, pictures) and
`pictures/`. Rows are written when they are done, so that an interrupted run can go on.
"""

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator
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
from graphxai.inputs import Input, prepare, reads_molecules, writes_canonically
from graphxai.models.graphormer import Graphormer
from graphxai.progress import Tick

CHUNK = 128  # rows read, explained and written at a time
REJECTED_COLUMNS = ("row", "smiles", "reason")


@dataclass(frozen=True)
class Counts:
    """Rows done, left out, and done by an earlier run."""

    done: int = 0
    rejected: int = 0
    earlier: int = 0


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
    resume: bool = False,
    tick: Tick = lambda rows: None,
) -> Counts:
    """Explain each molecule of a CSV file into `folder`; see the module's text.

    `resume` goes on after the rows that an earlier run with the same model, method and target
    has written. `tick` is called with the number of rows done since the last call. Raises
    FileExistsError if there are results and `resume` is off, ValueError if they are of another
    run.
    """
    _require_molecules(model)
    folder = Path(folder)
    settings = {
        "table": _digest(Path(path)),
        "smiles_column": smiles_column,
        "model": model.origin.name,
        "sha256": model.origin.sha256,
        "method": explainer.name,
        "target": None if target is None else str(target),
        "pictures": None if pictures is None else asdict(pictures),
    }
    seen = _begin(folder, settings, resume)
    tick(len(seen))
    done = rejected = 0
    columns = _columns(model)
    if pictures is not None:
        (folder / "pictures").mkdir(exist_ok=True)
    with ExitStack() as stack:
        results = stack.enter_context(_appending(folder / "explanations.csv"))
        refused = stack.enter_context(_appending(folder / "rejected.csv"))
        table = _writer(results, columns)
        leftovers = _writer(refused, REJECTED_COLUMNS)
        rows = (row for row in _rows(model, path, smiles_column) if row.row not in seen)
        for chunk in _chunks(rows, CHUNK):
            good, bad = _encoded(model, chunk)
            explained = dict(explain_prepared(model, good, explainer, target=target))
            leftovers.writerows(vars(row) for row in bad)
            refused.flush()
            for row, explanation in sorted(explained.items()):
                picture = ""
                if pictures is not None:
                    picture = f"pictures/{row:06d}{pictures.suffix}"
                    _draw(explanation, folder / picture, pictures)
                table.writerow(_record(row, explanation, picture))
                results.flush()  # what is done stays done, whatever happens next
                tick(1)
            tick(len(bad))
            done += len(good)
            rejected += len(bad)
    return Counts(done, rejected, len(seen))


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
    for chunk in _chunks(_rows(model, path, smiles_column), CHUNK):
        good, _ = _encoded(model, chunk)
        for _, explanation in explain_prepared(model, good, explainer, target=target):
            largest = max(largest, float(abs(explanation.relevance).max()))
        tick(len(chunk))
    return largest


def _rows(model: Graphormer, path: str | Path, smiles_column: str) -> Iterator[Data | RejectedRow]:
    return iter_table(path, smiles_column, canonical=writes_canonically(model.config))


def _require_molecules(model: Graphormer) -> None:
    if not reads_molecules(model.config):
        raise ValueError(
            f"model {model.origin.name!r} reads images, not molecules: a table of SMILES needs a"
            " model of molecules, such as 'bace'."
        )


def _begin(folder: Path, settings: dict[str, Any], resume: bool) -> set[int]:
    """Make the folder, or check that it holds the same run; rows that are done."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = folder / "run.json"
    tables = folder / "explanations.csv", folder / "rejected.csv"
    seen = _rows_in(tables[0]) | _rows_in(tables[1])
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


def _rows_in(path: Path) -> set[int]:
    """Row numbers in the first column; a last line cut off by a kill is dropped from the file."""
    if not path.exists():
        return set()
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if len(whole) < len(raw):
        path.write_bytes(whole)
    with path.open(encoding="utf-8", newline="") as file:
        return {int(record["row"]) for record in csv.DictReader(file)}


def _appending(path: Path) -> TextIO:
    return path.open("a", encoding="utf-8", newline="")


def _writer(file: TextIO, columns: Iterable[str]) -> "csv.DictWriter[str]":
    writer = csv.DictWriter(file, list(columns), lineterminator="\n")
    if file.tell() == 0:
        writer.writeheader()
        file.flush()
    return writer


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


def _columns(model: Graphormer) -> list[str]:
    return ["row", "smiles", *_predicted_columns(model), "target", *LEDGER, "relevance", "picture"]


def _predicted_columns(model: Graphormer) -> list[str]:
    columns = []
    for task in model.config.tasks:
        columns += [task.name, *(f"{task.name}: {name}" for name in task.classes)]
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
        "relevance": " ".join(f"{value:.5g}" for value in explanation.relevance),
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
