"""The cells of a row of a table: predictions, the teacher's values, and what was done to it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphxai.contract.inputs import Input
from graphxai.contract.tasks import Task
from graphxai.datasets.as_given import AsGiven
from graphxai.datasets.labels import with_unit
from graphxai.datasets.training_set import UNKNOWN
from graphxai.explanation.compute.models import Model, conformal_of
from graphxai.explanation.prediction import Prediction, range_columns

if TYPE_CHECKING:
    from graphxai.learning.teachers.stacking import Teacher

PARENT = ("parent", "note")  # the SMILES of a molecule's parent, and what was done; both may be ""


def predicted_columns(model: Model) -> dict[str, type]:
    """Return the columns of a model's predictions with their types."""
    columns: dict[str, type] = {}
    for task in model.config.tasks:
        columns |= property_columns(model, task, task.name)
    columns |= {"nearest_similarity": float, "training_set": str}
    teacher = teacher_of(model)
    return columns | dict.fromkeys(teacher.headings if teacher else (), float)


def property_columns(model: Model, task: Task, name: str) -> dict[str, type]:
    """Return the columns of a model's predictions for a task that the table calls `name`."""
    columns: dict[str, type] = {}
    columns[with_unit(name, task.unit)] = float if task.kind == "regression" else str
    columns |= {f"{name}: {label}": float for label in task.classes}
    if task.name in conformal_of(model):
        names = range_columns(name, task.unit, has_classes=bool(task.classes))
        columns |= dict.fromkeys(names, str if task.classes else float)
    return columns


def teacher_of(model: Model) -> "Teacher | None":
    """Return the teacher stored beside a model, or None if there is none."""
    folder = getattr(model.origin, "folder", None)
    if folder is None or not (folder / "teacher.safetensors").is_file():
        return None
    from graphxai.learning.teachers.saved_teacher import saved_teacher

    return saved_teacher(folder, model.origin.sha256)


def teacher_cells(model: Model, items: Sequence[Input]) -> list[dict[str, str]]:
    """Return what the teacher beside a model predicts, as cells, or [] without a teacher."""
    teacher = teacher_of(model)
    if teacher is None:
        return []
    columns = teacher.columns([item.smiles or "" for item in items])
    return [
        {name: f"{values[k]:z.6g}" for name, values in columns.items()} for k in range(len(items))
    ]


def prediction_cells(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return the cells of a row's predictions, and of how near it is to the training set."""
    record: dict[str, Any] = {}
    for prediction in predictions:
        for name, value in prediction.columns.items():
            record[name] = value if isinstance(value, str) else f"{value:z.6g}"
    return record | (predictions[0].nearness or UNKNOWN).columns


def parent_cells(smiles: str | None, as_given: AsGiven | None) -> dict[str, str]:
    """The cells of `PARENT`: what was predicted instead of the molecule given, and why."""
    if as_given is None:
        return dict.fromkeys(PARENT, "")
    parent = "" if smiles == as_given.smiles else smiles  # unchanged, with a remark
    return dict(zip(PARENT, (parent or "", as_given.sentence), strict=True))
