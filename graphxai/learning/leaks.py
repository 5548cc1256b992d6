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
from torch_geometric.data import Data

from graphxai.contract.tasks import Task
from graphxai.learning.cleaning import Target
from graphxai.learning.fit import predict
from graphxai.learning.metrics import roc_auc
from graphxai.models.graphormer import Graphormer

__all__ = ["labels_met"]

FloatArray = NDArray[np.float64]
MIN_LABELS = 50
MAX_MOLECULES = 1000
SEEN_ROC_AUC, SEEN_R2 = 0.97, 0.9


def labels_met(
    weights: Graphormer, graphs: Sequence[Data], y: FloatArray, targets: Sequence[Target]
) -> list[str]:
    """Give reasons to suspect that `weights` were trained on labels y (n, targets).

    One reason per suspicious column, or an empty list. Columns with fewer than 50 labels or more
    than two classes are recognised only by name.
    """
    names = {task.name for task in weights.config.tasks}
    chosen = np.linspace(0, len(graphs) - 1, min(len(graphs), MAX_MOLECULES)).astype(int)
    outputs = predict(weights, [graphs[k] for k in chosen]).double().numpy()
    reasons = []
    for k, target in enumerate(targets):
        if target.name in names:
            reasons.append(f"{target.name!r} (a label of that name)")
            continue
        known = ~np.isnan(y[chosen, k])
        if known.sum() < MIN_LABELS or len(target.classes) > 2:
            continue
        found = _best(weights.config.tasks, outputs[known], y[chosen[known], k], target)
        if found:
            reasons.append(f"{target.name!r} ({found})")
    return reasons


def _best(tasks: Sequence[Task], outputs: FloatArray, y: FloatArray, target: Target) -> str:
    """Describe the read-out that predicts y (n,) too well for unseen labels; empty if none does."""
    start, found = 0, ("", 0.0)
    for task in tasks:
        column = outputs[:, start]
        start += task.num_outputs
        if task.num_outputs > 1 or column.std() == 0 or y.std() == 0:
            continue
        if target.classes:
            score = roc_auc(column, y)
            score, limit, metric = max(score, 1 - score), SEEN_ROC_AUC, "ROC-AUC"
        else:
            score, limit, metric = np.corrcoef(column, y)[0, 1] ** 2, SEEN_R2, "r2"
        if score >= max(limit, found[1]):
            found = (f"its read-out {task.name!r} predicts it with {metric} {score:.3f}", score)
    return found[0]
