"""Explain or predict a batch of molecules: SMILES with row numbers in, rows of a table out.

`ExplainBatch` and `PredictBatch` know neither files nor processes. They can be pickled, so that a
pool of processes, or an engine such as Ray, Spark or Dask, can call them wherever it likes. A batch
is explained whole: split differently, results would be rounded differently.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from graphxai.api import load
from graphxai.contract.inputs import Input, prepare_each, prepare_for
from graphxai.contract.intervals import LEVEL
from graphxai.datasets.graph import Graph
from graphxai.datasets.labels import with_unit
from graphxai.datasets.molecule_reading import MoleculeError, shortened
from graphxai.datasets.molecules import MAX_QUOTED, RejectedRow, molecule_graphs
from graphxai.datasets.training_set import UNKNOWN, training_set_of
from graphxai.explainers import get_explainer
from graphxai.explainers.registry import Method
from graphxai.explanation.compute.explaining import explain_prepared, explanations_or_errors
from graphxai.explanation.compute.models import LoadedModel
from graphxai.explanation.compute.nearness import set_nearness
from graphxai.explanation.compute.predicting import predict_prepared
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.files import one_line
from graphxai.explanation.prediction import Prediction
from graphxai.models.graphormer import locate
from graphxai.models.graphormer.inputs import reading_of
from graphxai.runtime.threads import one_thread

if TYPE_CHECKING:
    from graphxai.learning.teachers.stacking import Teacher

PROBE = "CC"
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

Encoded: TypeAlias = "list[tuple[int, Input]]"  # rows with their numbers
Names: TypeAlias = Sequence[str] | None
Result = TypeVar("Result")


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


@dataclass(frozen=True)
class ExplainBatch:
    """Explains batches of molecules; makes the rows of `explanations.csv`.

    model: the name of a bundled model or a checkpoint folder, which every process loads once, or a
    loaded model. method: see `graphxai.methods()`, or an explainer. target: see `Target`. pictures:
    what each row's picture looks like, if there is to be one. sdf: whether each row gets a record
    of an SD file. level: how often the predictions' intervals and sets of classes should hold.
    """

    model: LoadedModel | str | Path
    method: Method = "lrp"
    target: Any = None
    pictures: Pictures | None = None
    sdf: bool = False
    level: float = LEVEL

    def check(self) -> None:
        """Raise ValueError for a model, method or target that would fail on every molecule."""
        model = loaded(self.model)
        require_molecules(model)
        probe, explainer = [(0, prepare_for(model, PROBE))], get_explainer(self.method)
        list(explanations_or_errors(model, probe, explainer, target=self.target))

    def columns(self, named: bool = False) -> dict[str, type]:
        """The columns of a row with their types; `list`: numbers separated by spaces."""
        return {
            "row": int,
            **_named({}, str, named),
            "smiles": str,
            **predicted_columns(loaded(self.model)),
            "target": str,
            **dict.fromkeys(LEDGER, float),
            "relevance": list,
            "picture": str,
        }

    def __call__(
        self, smiles: Sequence[str], numbers: Sequence[int], names: Names = None
    ) -> list[dict[str, Any]]:
        """Explain molecules; returns a row for each, in the order of the numbers.

        A row has the cells of `columns`, those of numbers as text. `picture` is the path for the
        picture, whose SVG or PNG is in a further cell, `drawing`; a record of an SD file is in
        `record`. A molecule that cannot be read, explained or drawn has only `row`, `smiles` and
        `reason`. With names, every row has its `name`.
        """
        training = training_set_of(loaded(self.model))
        explained = self.explanations(smiles, numbers, names)
        for found in explained:
            if isinstance(found, ExplainedRow):
                set_nearness(found.explanation, training)
        return [self._row(found, names is not None) for found in explained]

    def explanations(
        self, smiles: Sequence[str], numbers: Sequence[int], names: Names = None
    ) -> list[ExplainedRow | NamedRejectedRow]:
        """Explain molecules as a call does; returns explanations instead of their cells.

        They do not know how near their molecules are to the training set, see `set_nearness`.
        """
        model, explainer = loaded(self.model), get_explainer(self.method)

        def work(rows: Encoded) -> Iterator[tuple[int, Explanation]]:
            return explain_prepared(model, rows, explainer, target=self.target)

        with one_thread():
            good, bad = _encoded(model, smiles, numbers)
            explained = _tried(work, good, bad)
        called = dict(zip(numbers, names or [""] * len(numbers), strict=True))
        found: list[ExplainedRow | NamedRejectedRow] = [
            *(NamedRejectedRow(**vars(row), name=called[row.row]) for row in bad),
            *(ExplainedRow(row, explanation, called[row]) for row, explanation in explained),
        ]
        return sorted(found, key=lambda one: one.row)

    def _row(self, found: ExplainedRow | NamedRejectedRow, named: bool) -> dict[str, Any]:
        if isinstance(found, ExplainedRow):
            try:
                return self._cells(found, named)
            except Exception as error:  # RDKit raises errors of any type
                smiles, what = found.explanation.smiles or "", "cannot be written: "
                refused = _refused(found.row, smiles, error, what)
                found = NamedRejectedRow(**vars(refused), name=found.name)
        return rejected_cells(found, named)

    def _cells(self, found: ExplainedRow, named: bool) -> dict[str, Any]:
        explanation, pictures = found.explanation.at(self.level), self.pictures
        ledger = vars(explanation.ledger) | {
            "structure": sum(explanation.ledger.structure.values()),
            "unexplained": explanation.ledger.unexplained,
        }
        cells = {
            "row": found.row,
            "smiles": one_line(explanation.smiles or ""),
            **_predicted(explanation.predictions),
            "target": explanation.target,
            **{name: "" if ledger[name] is None else f"{ledger[name]:z.6g}" for name in LEDGER},
            "relevance": " ".join(f"{value:.7g}" for value in explanation.relevance),
            "picture": f"pictures/{found.row:06d}{pictures.suffix}" if pictures else "",
        }
        if self.sdf:
            cells["record"] = explanation.to_sdf(title=found.name, Row=found.row)
        if pictures:
            draw = explanation.png if pictures.suffix == ".png" else explanation.svg
            cells["drawing"] = draw(
                scale=pictures.limit,
                palette=pictures.palette,
                atom_numbers=pictures.atom_numbers,
            )
        return _named(cells, found.name, named)


@dataclass(frozen=True)
class PredictBatch:
    """Predicts batches of molecules; makes the rows of a table of predictions.

    model, level: as for `ExplainBatch`.
    """

    model: LoadedModel | str | Path
    level: float = LEVEL

    def columns(self, named: bool = False) -> dict[str, type]:
        """The columns of a row with their types."""
        found = _named({"row": int}, str, named)
        return found | {"smiles": str} | predicted_columns(loaded(self.model))

    def __call__(
        self, smiles: Sequence[str], numbers: Sequence[int], names: Names = None
    ) -> list[dict[str, Any]]:
        """Predict molecules; returns rows as `ExplainBatch` does, with the cells of `columns`."""
        model = loaded(self.model)
        training = training_set_of(model)

        def work(rows: Encoded) -> Iterator[tuple[int, tuple[Prediction, ...]]]:
            return predict_prepared(model, rows, training=training)

        with one_thread():
            good, bad = _encoded(model, smiles, numbers)
            predicted = _tried(work, good, bad)
            taught = dict(zip(*_taught(model, good), strict=True))
        text = {row: one_line(item.smiles or "") for row, item in good}
        cells = {
            row: {"row": row, "smiles": text[row]}
            | _predicted([p.at(self.level) for p in predictions])
            | taught.get(row, {})
            for row, predictions in predicted
        }
        cells |= {row.row: rejected_cells(NamedRejectedRow(**vars(row)), False) for row in bad}
        pairs = zip(numbers, names or [""] * len(numbers), strict=True)
        return [_named(cells[row], name, names is not None) for row, name in sorted(pairs)]


def loaded(model: LoadedModel | str | Path) -> LoadedModel:
    """The model itself, or the one with this name or folder, which a process loads once."""
    if not isinstance(model, str | Path):
        return model
    folder = locate(model)
    return _load(folder, max(file.stat().st_mtime_ns for file in folder.iterdir()))


@lru_cache(maxsize=2)
def _load(folder: Path, written: int) -> LoadedModel:
    """The model in a folder; written: its date, so that a retrained model is loaded again."""
    return load(folder)


def require_molecules(model: LoadedModel) -> None:
    """Raise ValueError if the model reads something else."""
    if not model.config.reads_molecules:
        raise ValueError(
            f"model {model.origin.name!r} reads images, not molecules: for a table of SMILES,"
            " choose a model that reads molecules, such as 'bace'."
        )


def rejected_cells(found: NamedRejectedRow, named: bool) -> dict[str, Any]:
    """The cells of a row that was left out; named: whether the table has names."""
    cells = {"row": found.row, "smiles": one_line(found.smiles), "reason": one_line(found.reason)}
    return _named(cells, found.name, named)


def _named(cells: dict[str, Any], name: Any, named: bool) -> dict[str, Any]:
    """The cells with a further one, `name`, if the table has names."""
    return cells | {"name": name} if named else cells


def _encoded(
    model: LoadedModel, smiles: Sequence[str], numbers: Sequence[int]
) -> tuple[Encoded, list[RejectedRow]]:
    """Usable molecules, numbered and encoded; rejected rows."""
    graphs: dict[int, Graph] = {}
    rejected: list[RejectedRow] = []
    read = molecule_graphs(smiles, **reading_of(model.config))
    for row, text, graph in zip(numbers, smiles, read, strict=True):
        if isinstance(graph, MoleculeError):
            rejected.append(RejectedRow(row, shortened(text, MAX_QUOTED), str(graph)))
        else:
            graphs[row] = graph
    prepared: Encoded = []
    # errors of any type: one row must not stop the others
    found = prepare_each(model, list(graphs.values()), Exception)
    for (row, graph), item in zip(graphs.items(), found, strict=True):
        if isinstance(item, Exception):
            rejected.append(_refused(row, str(graph.get("smiles") or ""), item))
        else:
            prepared.append((row, item))
    return prepared, rejected


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


def predicted_columns(model: LoadedModel) -> dict[str, type]:
    """The columns of a model's predictions with their types."""
    columns: dict[str, type] = {}
    for task in model.config.tasks:
        columns[with_unit(task.name, task.unit)] = float if task.kind == "regression" else str
        columns |= {f"{task.name}: {name}": float for name in task.classes}
        if task.name in model.conformal:
            names = _range_columns(task.name, task.unit, bool(task.classes))
            columns |= dict.fromkeys(names, str if task.classes else float)
    columns |= {"nearest_similarity": float, "training_set": str}
    teacher = teacher_of(model)
    return columns | dict.fromkeys(teacher.headings if teacher else (), float)


def teacher_of(model: LoadedModel) -> "Teacher | None":
    """The teacher stored beside a model; None if there is none."""
    folder = model.origin.folder
    if folder is None or not (folder / "teacher.safetensors").is_file():
        return None
    from graphxai.learning.teachers.saved_teacher import saved_teacher

    return saved_teacher(folder)


def _taught(model: LoadedModel, rows: Encoded) -> tuple[list[int], list[dict[str, Any]]]:
    """The rows whose molecules the teacher beside a model predicts, and its cells for each."""
    found = teacher_columns(model, [item for _, item in rows]) if rows else []
    return [row for row, _ in rows][: len(found)], found


def teacher_columns(model: LoadedModel, items: Sequence[Input]) -> list[dict[str, str]]:
    """What the teacher stored beside a model predicts for molecules, in cells; [] without one."""
    teacher = teacher_of(model)
    if teacher is None:
        return []
    found = teacher.columns([item.smiles or "" for item in items])
    return [
        {name: f"{values[k]:z.6g}" for name, values in found.items()} for k in range(len(items))
    ]


def _range_columns(task: str, unit: str, classes: bool) -> list[str]:
    """The columns of a task's interval, or of its set of classes."""
    if classes:
        return [f"{task}_set"]
    return [with_unit(f"{task}_{end}", unit) for end in ("low", "high")]


def _predicted(predictions: Sequence[Prediction]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for prediction in predictions:
        if prediction.label is None:
            record[prediction.heading] = f"{prediction.value:z.6g}"
        else:
            record[prediction.task] = prediction.label
        for name, probability in prediction.probabilities.items():
            record[f"{prediction.task}: {name}"] = f"{probability:.6g}"
        cells = [f"{end:z.6g}" for end in prediction.interval or ()]
        if prediction.classes is not None:
            cells = [" or ".join(prediction.classes)]
        names = _range_columns(prediction.task, prediction.unit, prediction.value is None)
        record |= dict(zip(names, cells, strict=False))  # no cells for models without intervals
    return record | (predictions[0].nearness or UNKNOWN).columns
