"""The cells of a row of a table: what one or several models predict of a molecule, as text."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphxai.chemistry.desirability import DesirabilityScore, PropertyProfile
from graphxai.explanation.compute.models import Model, tasks_with_range
from graphxai.explanation.compute.panel import ModelPanel
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.prediction import (
    NEARNESS,
    Prediction,
    nearness_columns,
    property_columns,
    table_cells,
)

if TYPE_CHECKING:
    from graphxai.learning.teachers.stacking import Teacher

LEDGER = (
    *("output", "without_nodes", "nodes", "centrality"),
    *("graph_token", "biases", "structure", "unexplained"),
)
PARENT = ("parent", "note")  # the SMILES of a molecule's parent, and what was done; both may be ""
SIMILARITY = NEARNESS[0]  # how the names of its columns end


def predicted_columns(
    panel: ModelPanel, profile: PropertyProfile | None = None, *, several_models: bool = False
) -> dict[str, type]:
    """Return the columns of `prediction_cells` and `teacher_cells` with their types.

    Args:
        panel: the models, or the only one.
        profile: what is wished for the properties. Desirabilities come first.
        several_models: whether each property has its own nearness.
    """
    columns: dict[str, type] = {}
    if profile is not None:
        columns |= dict.fromkeys(profile.score({}).columns, float)
    for each in panel.properties:
        task, has_range = each.task, each.task.name in tasks_with_range(panel.models[each.place])
        columns |= property_columns(each.name, task.unit, task.classes, has_range=has_range)
        if several_models:
            columns |= dict(zip(nearness_columns(each.name), (float, str), strict=True))
    if not several_models:
        columns |= dict(zip(NEARNESS, (float, str), strict=True))
    for place, model in enumerate(panel.models):
        teacher = teacher_of(model)
        columns |= dict.fromkeys(_named(panel, place, teacher.headings if teacher else ()), float)
    return columns


def prediction_cells(
    predictions: Sequence[Prediction],
    score: DesirabilityScore | None = None,
    *,
    several_models: bool = False,
) -> dict[str, str]:
    """Return the cells of a row's predictions, with numbers as text.

    They are how desirable the molecule is, what is predicted, and how near the molecule is to the
    training set. `explanation.prediction.parent_cells` returns those of `PARENT`.
    """
    cells = table_cells(predictions, several_models=several_models)
    cells = cells if score is None else score.columns | cells
    return {name: _text(name, cell) for name, cell in cells.items() if name not in PARENT}


def teacher_of(model: Model) -> "Teacher | None":
    """Return the teacher stored beside a model, or None if there is none."""
    folder = getattr(model.origin, "folder", None)
    if folder is None or not (folder / "teacher.safetensors").is_file():
        return None
    from graphxai.learning.teachers.saved_teacher import saved_teacher

    return saved_teacher(folder, model.origin.sha256)


def teacher_cells(panel: ModelPanel, place: int, smiles: Sequence[str]) -> list[dict[str, str]]:
    """Return what the teacher beside the model at a place predicts, or {} each without one."""
    teacher = teacher_of(panel.models[place]) if smiles else None
    if teacher is None:
        return [{} for _ in smiles]
    columns = teacher.columns(smiles)
    names = _named(panel, place, columns)
    return [
        {name: f"{of_all[k]:z.6g}" for name, of_all in zip(names, columns.values(), strict=True)}
        for k in range(len(smiles))
    ]


def ledger_columns(model: Model) -> tuple[str, ...]:
    """Return the columns of the ledger. Wrapped models may have relevance in other inputs."""
    return (*LEDGER, "other_inputs") if hasattr(model, "explained_inputs") else LEDGER


def ledger_cells(model: Model, explanation: Explanation) -> dict[str, str]:
    """Return the cells of these columns. Shares are empty for a method without a ledger."""
    values = {"output": explanation.output, "without_nodes": explanation.without_nodes}
    if (ledger := explanation.ledger) is not None:
        values |= vars(ledger) | {
            "structure": sum(ledger.structure.values()),
            "other_inputs": sum(ledger.others.values()),
            "unexplained": ledger.unexplained,
        }
    return {name: _text(name, values.get(name)) for name in ledger_columns(model)}


def _named(panel: ModelPanel, place: int, headings: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """Name the teacher's columns after the properties, where several models have the same task."""
    names = {each.task.name: each.name for each in panel.properties if each.place == place}
    return [
        next((f"{names[t]}{h[len(t) :]}" for t in names if h.startswith(f"{t}: teacher")), h)
        for h in headings
    ]


def _text(name: str, cell: Any) -> str:
    """Write a cell as text, which is empty for None."""
    if cell is None or isinstance(cell, str):
        return cell or ""
    return f"{cell:z.4g}" if name.endswith(SIMILARITY) else f"{cell:z.6g}"
