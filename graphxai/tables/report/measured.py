"""Measured values of a table beside the predictions: where they are, and how well both agree."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from graphxai.datasets.molecules import iter_records
from graphxai.models.graphormer.config import Task
from graphxai.models.graphormer.training.metrics import r2, rmse, roc_auc

PARTS = {  # of the model's data, in the order in which they are shown
    "test": "test part of the model",
    "validation": "validation part of the model",
    "training": "training part of the model (not a test)",
    "": "other molecules",
}


def measured_columns(
    path: Path, smiles_column: str, tasks: Sequence[Task], named: Mapping[str, str]
) -> dict[str, str]:
    """The column with the measured values of each task: as named, or named after the task.

    Raises ValueError if a named task or column does not exist.
    """
    known = [task.name for task in tasks]
    for name, column in named.items():
        if name not in known:
            raise ValueError(f"the model has no task {name!r}; its tasks: {', '.join(known)}.")
        next(iter_records(path, (smiles_column, column)), None)
    found = {name: name for name in known if name not in named}
    return dict(named) | {
        name: name for name in found if path.is_file() and _has(path, smiles_column, name)
    }


def _has(path: Path, smiles_column: str, column: str) -> bool:
    with suppress(ValueError):
        next(iter_records(path, (smiles_column, column)), None)
        return True
    return False


def measured_value(task: Task, text: str) -> float | None:
    """A cell as a value, or as the number of a class; None if it is neither.

    A class is given by its name or, if there are two, as 0 or 1.
    """
    if text in task.classes:
        return float(task.classes.index(text))
    try:
        value = float(text)
    except ValueError:
        return None
    if not task.classes:
        return value if math.isfinite(value) else None
    for number, name in enumerate(task.classes):
        with suppress(ValueError):
            if float(name) == value:
                return float(number)
    return value if len(task.classes) == 2 and value in (0, 1) else None


def shown(task: Task, value: float) -> str:
    """A measured value or class in words."""
    return task.classes[int(value)] if task.classes else f"{value:.4g} {task.unit}".rstrip()


def agreement(
    task: Task, column: str, target: str | None, molecules: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """What the page says about measured and predicted values; None if nothing was measured.

    target: the explained class, if it is one and the same for all molecules. molecules: records
    with `measured`, the number and the text, and `value`, the predicted value or probability.
    """
    known = [m for m in molecules if m.get("measured")]
    if not known:
        return None
    groups = []
    for part, words in PARTS.items():
        chosen = [m for m in known if m["part"] == part]
        if chosen:
            groups.append([part, words, len(chosen), _scores(task, target, chosen)])
    return {
        "task": task.name,
        "column": column,
        "classes": list(task.classes),
        "target": target,
        "groups": groups,
    }


def _scores(task: Task, target: str | None, chosen: Sequence[Mapping[str, Any]]) -> str:
    truth = np.array([m["measured"][0] for m in chosen])
    if not task.classes:
        predicted = np.array([m["value"] for m in chosen], dtype=float)
        coefficient = r2(predicted, truth) if len(truth) > 1 else math.nan
        text = "" if math.isnan(coefficient) else f"R2 {coefficient:.2f}, "
        return f"{text}RMSE {rmse(predicted, truth):.3g} {task.unit}".rstrip()
    right = np.mean([m["label"] == m["measured"][1] for m in chosen])
    area = math.nan
    if target in task.classes:
        is_target = (truth == task.classes.index(target)).astype(float)
        area = roc_auc(np.array([m["value"] for m in chosen], dtype=float), is_target)
    text = "" if math.isnan(area) else f"ROC-AUC {area:.2f}, "
    return f"{text}{right:.0%} predicted right"
