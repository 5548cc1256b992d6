"""Detect whether the starting weights were trained on a table's labels, including test labels.

A column is recognised by its name or by its values: weights that still have their read-out predict
labels they were trained on far better than new ones. The limits lie between the two for the
bundled weights `molecules`. On 500 molecules they were trained on, r2 is 0.94 and 0.97 (two tasks)
and the ROC-AUC 0.982 to 1.000 (five tasks). On the same columns, the best read-out of another task
reaches 0.51 and 0.923, and on BACE, which they have not seen, 0.05 and 0.60.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from graphxai.contract.tasks import Task
from graphxai.learning.cleaned_table import TargetColumn
from graphxai.learning.metrics import roc_auc

__all__ = ["labels_met", "leak_warnings"]

FloatArray = NDArray[np.float64]
MIN_LABELS = 50
SEEN_ROC_AUC, SEEN_R2 = 0.97, 0.9


def leak_warnings(
    targets: Sequence[TargetColumn],
    y: FloatArray,
    tasks: Sequence[Task],
    outputs: FloatArray,
    weights: str,
) -> list[str]:
    """Warn if the weights to start from seem to have been trained on a table's labels.

    Args:
        targets: the columns to learn.
        y: the labels of some molecules (n, targets), NaN where one is missing.
        tasks: the tasks of the model that has these weights.
        outputs: what that model predicts for the molecules (n, columns), all tasks side by side.
        weights: the name or folder of the weights.

    Returns:
        The warning, or an empty list.
    """
    reasons = labels_met(targets, y, tasks, outputs)
    if not reasons:
        return []
    return [
        f"the weights {weights!r} seem to have been trained on these labels:"
        f" {', '.join(reasons)}; if so, they have seen test labels and the scores below are too"
        " good; --init-weights none gives honest scores"
    ]


def labels_met(
    targets: Sequence[TargetColumn], y: FloatArray, tasks: Sequence[Task], outputs: FloatArray
) -> list[str]:
    """Give reasons to suspect that a model was trained on labels y (n, targets).

    There is one reason for each suspicious column. Columns with fewer than 50 labels or more than
    two classes are recognised only by name.

    Args:
        tasks, outputs: the model's tasks, and what it predicts for the molecules (n, columns).
    """
    names = {task.name for task in tasks}
    reasons = []
    for k, target in enumerate(targets):
        if target.name in names:
            reasons.append(f"{target.name!r} (a label of that name)")
            continue
        labelled = ~np.isnan(y[:, k])
        if labelled.sum() < MIN_LABELS or len(target.classes) > 2:
            continue
        labels = y[labelled, k]
        reason = _suspicious_output(tasks, outputs[labelled], labels, target)
        if reason:
            reasons.append(f"{target.name!r} ({reason})")
    return reasons


def _suspicious_output(
    tasks: Sequence[Task], outputs: FloatArray, y: FloatArray, target: TargetColumn
) -> str:
    """Describe the task whose output predicts labels y (n,) too well for unseen ones, or return "".

    Args:
        outputs: (n, columns) of all tasks side by side.
    """
    first_column, reason, best = 0, "", 0.0
    for task in tasks:
        column = outputs[:, first_column]
        first_column += task.num_outputs
        if task.num_outputs > 1 or column.std() == 0 or y.std() == 0:
            continue
        if target.classes:
            score = roc_auc(column, y)
            score, limit, metric = max(score, 1 - score), SEEN_ROC_AUC, "ROC-AUC"
        else:
            score, limit, metric = np.corrcoef(column, y)[0, 1] ** 2, SEEN_R2, "r2"
        if score >= max(limit, best):
            reason = f"its read-out {task.name!r} predicts it with {metric} {score:.3f}"
            best = score
    return reason
