"""Scores of predictions: metrics, each a function of arrays, and what a model scored when held out.

Predictions are scores or probabilities of the second class (n,) for a binary task, probabilities of
every class (n, C) for a multi-class task, values (n,) for a regression; `truth` (n,) has class
numbers or values. Undefined metrics are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from graphxai.visualization.text import minus_signs

from .tasks import Task

if TYPE_CHECKING:
    from torch import Tensor

FloatArray = NDArray[np.float64]


def roc_auc(score: FloatArray, truth: FloatArray) -> float:
    """Return the probability that a positive scores higher than a negative (Mann-Whitney).

    A tie counts one half.
    """
    positive = truth > 0.5
    n = int(positive.sum())
    if n == 0 or n == len(truth):
        return math.nan
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    rank = (counts.cumsum() - (counts - 1) / 2)[inverse]
    return float((rank[positive].sum() - n * (n + 1) / 2) / (n * (len(truth) - n)))


def average_precision(score: FloatArray, truth: FloatArray) -> float:
    """Return the area under the precision-recall steps: the sum of precision x gain in recall."""
    positive = truth > 0.5
    if not positive.any():
        return math.nan
    order = np.argsort(-score, kind="stable")
    hits = positive[order].cumsum()
    last = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)  # of each tie
    precision, recall = hits[last] / (last + 1), hits[last] / hits[-1]
    return float((precision * np.diff(recall, prepend=0.0)).sum())


def brier(probability: FloatArray, truth: FloatArray) -> float:
    """Return the mean squared error of probabilities (Brier 1950), summed over several classes."""
    if probability.ndim == 1:
        return float(np.mean((probability - truth) ** 2))
    hot = np.eye(probability.shape[1])[truth.astype(int)]
    return float(np.mean(((probability - hot) ** 2).sum(1)))


def calibration_error(probability: FloatArray, truth: FloatArray) -> float:
    """Return the expected calibration error in ten bins of equal width.

    With several classes, the likeliest one is judged.
    """
    right = truth
    if probability.ndim == 2:
        right = (probability.argmax(1) == truth).astype(np.float64)
        probability = probability.max(1)
    bins = np.minimum((probability * 10).astype(int), 9)
    gap = np.bincount(bins, probability - right, minlength=10)
    return float(np.abs(gap).sum() / len(right))


def accuracy(probability: FloatArray, truth: FloatArray) -> float:
    """Return the share of graphs for which the likeliest class is the true one."""
    return float(np.mean(probability.argmax(1) == truth))


def mean_roc_auc(probability: FloatArray, truth: FloatArray) -> float:
    """Return the mean one-against-the-rest ROC-AUC over the classes that occur."""
    each = [roc_auc(p, (truth == c).astype(float)) for c, p in enumerate(probability.T)]
    defined = [value for value in each if not math.isnan(value)]
    return float(np.mean(defined)) if defined else math.nan


def r2(value: FloatArray, truth: FloatArray) -> float:
    """Return the coefficient of determination: 1 - squared error / squared error of the mean."""
    total = np.sum((truth - truth.mean()) ** 2)
    return float(1 - np.sum((value - truth) ** 2) / total) if total > 0 else math.nan


def rmse(value: FloatArray, truth: FloatArray) -> float:
    """Return the root of the mean squared error."""
    return float(np.sqrt(np.mean((value - truth) ** 2)))


def mae(value: FloatArray, truth: FloatArray) -> float:
    """Return the mean absolute error."""
    return float(np.mean(np.abs(value - truth)))


def score_task(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """Score one task's outputs (G, columns) for labels y (G,), or return None if undefined."""
    if not len(y):
        return None
    truth, outputs = y.double().cpu().numpy(), outputs.double().cpu()
    if task.kind == "multiclass":
        return accuracy(outputs.numpy(), truth)
    if task.kind == "binary":
        value = roc_auc(outputs[:, 0].numpy(), truth)
    else:
        value = r2((task.offset + task.scale * outputs[:, 0]).numpy(), truth)
    return None if math.isnan(value) else value


@dataclass(frozen=True)
class HeldOutScore:
    """A model's score for one task on test data, with NaN for what is unknown.

    Args:
        measure: what the score is.
        value: the score.
        low: the lower end of its interval at 95 %.
        calibration_error: the expected calibration error of the probabilities.
    """

    measure: Literal["R2", "accuracy", "ROC-AUC"]
    value: float
    low: float
    calibration_error: float

    @property
    def figures(self) -> str:
        """The score with its interval and the calibration error, as text."""
        figures = f"{self.measure} {_plain(self.value)}"
        if not math.isnan(self.low):
            figures += f", at least {_plain(self.low)} at 95 %"
        if not math.isnan(self.calibration_error):
            figures += f", calibration error {self.calibration_error:.3f}"
        return figures


def held_out_score(metadata: Mapping[str, Any], task: str, *, is_class: bool) -> HeldOutScore:
    """Return the score for a task, given the metadata of a checkpoint.

    The metadata have one of three forms. A model trained on a user's table has scores by task,
    predictor and measure. The bundled BACE model has ROC-AUC for its class, and for its value the
    RMSE of the model and of the training mean. The bundled digit model has its accuracy.
    """
    test = _mapping(metadata.get("test"))
    error = _number(test.get("ece"))
    if is_class and "accuracy" in test:
        interval = test.get("interval")
        low = interval[0] if isinstance(interval, list | tuple) and interval else None
        return HeldOutScore("accuracy", _number(test.get("accuracy")), _number(low), error)
    measure: Literal["R2", "ROC-AUC"] = "ROC-AUC" if is_class else "R2"
    value, low = _in_tables(_mapping(metadata.get("scores")), task, measure)
    return HeldOutScore(measure, value, low, error)


def _in_tables(scores: Mapping[str, Any], task: str, measure: str) -> tuple[float, float]:
    """Return a score and the lower end of its interval."""
    of_task = _mapping(_mapping(scores.get(task)).get("scores"))
    score = _mapping(of_task.get("graphormer")).get(measure)
    if isinstance(score, list | tuple) and score:
        return _number(score[0]), _number(score[1] if len(score) > 1 else None)
    if measure == "ROC-AUC":
        model_scores = _mapping(scores.get("graphormer"))
        return _number(model_scores.get("roc_auc")), _number(model_scores.get("roc_auc_low"))
    rmse = _number(scores.get(f"{task} RMSE"))
    mean = _number(scores.get(f"{task} RMSE of the training mean"))
    return 1 - (rmse / mean) ** 2 if mean else math.nan, math.nan


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _plain(value: float) -> str:
    return minus_signs(f"{value:z.2f}")
