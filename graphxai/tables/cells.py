"""The cells of a row of a table: what one or several models predict of a molecule, as text."""

import math
from collections.abc import Sequence
from typing import Any

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

LEDGER = (
    *("output", "without_nodes", "nodes", "centrality"),
    *("graph_token", "biases", "structure", "unexplained"),
)
PARENT = ("parent", "note")  # the SMILES of a molecule's parent, and what was done; both may be ""
# A row of a network has the same bits in any batch. Where other models or processors change sums by
# a millionth of the largest number beside them, cells mostly end above this: relevance after 5
# digits of the largest in its row, and shares after 6.
OF_RELEVANCE, OF_SHARES = 5, 6
SIMILARITY = NEARNESS[0]  # how the names of its columns end


def predicted_columns(
    panel: ModelPanel, profile: PropertyProfile | None = None, *, several_models: bool = False
) -> dict[str, type]:
    """Return the columns of `prediction_cells` with their types.

    Args:
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
    columns = ledger_columns(model)
    known = {name: value for name in columns if (value := values.get(name)) is not None}
    texts = above_noise([*known.values()], OF_SHARES)
    return dict.fromkeys(columns, "") | dict(zip(known, texts, strict=True))


def above_noise(values: Sequence[float], digits: int = OF_RELEVANCE) -> list[str]:
    """Return numbers as text that ends where the largest of them has so many digits."""
    largest = max(map(abs, values), default=0.0)
    last = digits - 1 - math.floor(math.log10(largest)) if 0 < largest < math.inf else 0
    return [f"{round(value, last):z.{digits}g}" for value in values]


def _text(name: str, cell: Any) -> str:
    """Write a cell as text, which is empty for None."""
    if cell is None or isinstance(cell, str):
        return cell or ""
    return f"{cell:z.4g}" if name.endswith(SIMILARITY) else f"{cell:z.6g}"
