"""Metrics of predictions, each a function of arrays, and the score that a checkpoint states.

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

from graphxai.contract.tasks import Task
from graphxai.visualization.text import minus_signs

if TYPE_CHECKING:
    from torch import Tensor

FloatArray = NDArray[np.float64]
FEWEST_PAIRS = 20  # matched pairs, below which no figure is given
KINDS = {  # of pairs beside those with a compound that was tested
    "both": "where both compounds were tested",
    "of_folds": "of training pairs within one held-out fold",
}


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


def calibration_error(probability: FloatArray, truth: FloatArray, bins: int = 10) -> float:
    """Return the expected calibration error in bins of equal width.

    With several classes, the likeliest one is judged.
    """
    right = truth
    if probability.ndim == 2:
        right = (probability.argmax(1) == truth).astype(np.float64)
        probability = probability.max(1)
    bin_of = np.minimum((probability * bins).astype(int), bins - 1)
    gap = np.bincount(bin_of, probability - right, minlength=bins)
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


def readings(task: Task, outputs: Tensor) -> FloatArray:
    """Turn a task's outputs (n, columns) into probabilities or values, which `measure` takes."""
    if task.kind == "multiclass":
        return outputs.double().softmax(1).numpy()
    if task.kind == "binary":
        return outputs[:, 0].double().sigmoid().numpy()
    return (task.offset + task.scale * outputs[:, 0].double()).numpy()


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
        low: the lower end of its interval at 95 %.
        pairs: how well it predicts what a measured exchange changes, as text; "" if unknown.
    """

    measure: Literal["R2", "accuracy", "ROC-AUC"]
    value: float
    low: float
    calibration_error: float
    pairs: str = ""

    @property
    def figures(self) -> str:
        """The score with its interval and the calibration error, as text."""
        figures = f"{self.measure} {_as_text(self.value)}"
        if not math.isnan(self.low):
            figures += f", at least {_as_text(self.low)} at 95 %"
        if not math.isnan(self.calibration_error):
            figures += f", calibration error {self.calibration_error:.3f}"
        return f"{figures}; {self.pairs}" if self.pairs else figures


def held_out_score(metadata: Mapping[str, Any], task: str, *, is_class: bool) -> HeldOutScore:
    """Return the score for a task, given the metadata of a checkpoint.

    A model of a table has scores by task, predictor and measure in them. The bundled digit model
    has its accuracy.
    """
    test = _mapping(metadata.get("test"))
    error = _as_number(test.get("ece"))
    if is_class and "accuracy" in test:
        interval = test.get("interval")
        low = interval[0] if isinstance(interval, list | tuple) and interval else None
        return HeldOutScore("accuracy", _as_number(test.get("accuracy")), _as_number(low), error)
    measure: Literal["R2", "ROC-AUC"] = "ROC-AUC" if is_class else "R2"
    value, low = _in_tables(_mapping(metadata.get("scores")), task, measure)
    pairs = _mapping(_mapping(_mapping(metadata.get("scores")).get(task)).get("pairs"))
    of_test = {name: each for name, each in pairs.items() if name not in KINDS}  # one line of trust
    return HeldOutScore(measure, value, low, error, "" if is_class else pairs_text(of_test))


def pairs_text(pairs: Mapping[str, Any]) -> str:
    """Say how well measured changes are predicted, or why there is no figure, or "" if unknown.

    Args:
        pairs: as in the scores of a trained model: `n`, maybe `r` and `right`; the same for the
            pairs of which `both` compounds were tested, and for training pairs `of_folds` that were
            held out together; and of either kind, by method, for the `relevance` at the change.
    """
    if any(map(pairs.get, KINDS)):
        alone = pairs_text({n: v for n, v in pairs.items() if n not in KINDS})
        more = [f"{KINDS[n]}, {pairs_text(_mapping(pairs[n]))}" for n in KINDS if pairs.get(n)]
        return "; ".join([alone, *more])
    if relevance := _mapping(pairs.get("relevance")):
        alone = pairs_text({name: v for name, v in pairs.items() if name != "relevance"})
        each = [f"by {name} {_figures_of_pairs(_mapping(v))}" for name, v in relevance.items()]
        return f"{alone} (relevance at the change: {'; '.join(each)})"
    n, r, right = (_as_number(pairs.get(name)) for name in ("n", "r", "right"))
    if math.isnan(n):
        return ""
    counted = "1 measured pair" if n == 1 else f"{n:,.0f} measured pairs"
    if n < FEWEST_PAIRS:
        return f"{counted}, too few for a figure (at least {FEWEST_PAIRS})"
    if math.isnan(r):
        return f"{counted} without a change, of which there is no figure"
    return f"changes in {counted}: r {_as_text(r)}, {right:.0%} of signs right"


def _figures_of_pairs(pairs: Mapping[str, Any]) -> str:
    """Return r and the share of right signs of `n` pairs, or why there are none."""
    n, r, right = (_as_number(pairs.get(name)) for name in ("n", "r", "right"))
    if n < FEWEST_PAIRS or math.isnan(r):
        return f"no figure of {n:.0f}"
    return f"r {_as_text(r)}, {right:.0%} right of {n:.0f}"


def _in_tables(scores: Mapping[str, Any], task: str, measure: str) -> tuple[float, float]:
    """Return a score and the lower end of its interval."""
    of_task = _mapping(_mapping(scores.get(task)).get("scores"))
    score = _mapping(of_task.get("graphormer")).get(measure)
    value, low, *_ = [*score, None, None] if isinstance(score, list | tuple) else (None, None)
    return _as_number(value), _as_number(low)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _as_number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _as_text(value: float) -> str:
    return minus_signs(f"{value:z.2f}")
