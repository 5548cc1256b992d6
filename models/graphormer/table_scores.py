"""Scores of predictions for one column of a table, with bootstrap intervals, by kind of task.

Predictions are probabilities of the second class (n,) for a binary task, of every class (n, C) for
a multi-class one, values (n,) for a regression; `truth` (n,) holds class numbers or values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from .config import Task, TaskKind
from .model import Graphormer
from .report import fit_temperature
from .training import predict

__all__ = [
    "METRICS",
    "dummy_predictions",
    "forest_predictions",
    "measure",
    "readings",
    "task_outputs",
    "task_readings",
    "task_temperature",
    "useless_tasks",
    "verdicts",
]

FloatArray = NDArray[np.float64]
Metric = Callable[[FloatArray, FloatArray], float]
MIN_FOR_TEMPERATURE = 20
TREES = 500
PREDICTORS = ("graphormer", "dummy", "forest")  # whose scores are compared in words


def roc_auc(score: FloatArray, truth: FloatArray) -> float:
    """Probability that a positive has the larger score, ties counting half (Mann-Whitney)."""
    positive = truth > 0.5
    n = int(positive.sum())
    if n == 0 or n == len(truth):
        return math.nan
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    rank = (counts.cumsum() - (counts - 1) / 2)[inverse]
    return float((rank[positive].sum() - n * (n + 1) / 2) / (n * (len(truth) - n)))


def average_precision(score: FloatArray, truth: FloatArray) -> float:
    """Area under precision over recall as a step function: sum of precision x gain of recall."""
    positive = truth > 0.5
    if not positive.any():
        return math.nan
    order = np.argsort(-score, kind="stable")
    hits = positive[order].cumsum()
    last = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)  # of each tie
    precision, recall = hits[last] / (last + 1), hits[last] / hits[-1]
    return float((precision * np.diff(recall, prepend=0.0)).sum())


def brier(probability: FloatArray, truth: FloatArray) -> float:
    """Mean squared error of the probability; of several classes summed over them (Brier 1950)."""
    if probability.ndim == 1:
        return float(np.mean((probability - truth) ** 2))
    hot = np.eye(probability.shape[1])[truth.astype(int)]
    return float(np.mean(((probability - hot) ** 2).sum(1)))


def calibration_error(probability: FloatArray, truth: FloatArray) -> float:
    """Expected calibration error, ten bins of equal width; of several classes for the likeliest."""
    right = truth
    if probability.ndim == 2:
        right = (probability.argmax(1) == truth).astype(np.float64)
        probability = probability.max(1)
    bins = np.minimum((probability * 10).astype(int), 9)
    gap = np.bincount(bins, probability - right, minlength=10)
    return float(np.abs(gap).sum() / len(right))


def accuracy(probability: FloatArray, truth: FloatArray) -> float:
    """Share of graphs whose likeliest class is theirs."""
    return float(np.mean(probability.argmax(1) == truth))


def mean_roc_auc(probability: FloatArray, truth: FloatArray) -> float:
    """Mean over the classes that occur of the ROC-AUC of one class against the others."""
    each = [roc_auc(p, (truth == c).astype(float)) for c, p in enumerate(probability.T)]
    found = [value for value in each if not math.isnan(value)]
    return float(np.mean(found)) if found else math.nan


def r2(value: FloatArray, truth: FloatArray) -> float:
    """Coefficient of determination: 1 - squared error / squared error of the mean."""
    total = np.sum((truth - truth.mean()) ** 2)
    return float(1 - np.sum((value - truth) ** 2) / total) if total > 0 else math.nan


def rmse(value: FloatArray, truth: FloatArray) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt(np.mean((value - truth) ** 2)))


def mae(value: FloatArray, truth: FloatArray) -> float:
    """Mean absolute error."""
    return float(np.mean(np.abs(value - truth)))


METRICS: dict[TaskKind, dict[str, Metric]] = {
    "binary": {
        "ROC-AUC": roc_auc,
        "PR-AUC": average_precision,
        "Brier": brier,
        "ECE": calibration_error,
    },
    "multiclass": {
        "ROC-AUC": mean_roc_auc,
        "accuracy": accuracy,
        "Brier": brier,
        "ECE": calibration_error,
    },
    "regression": {"R2": r2, "RMSE": rmse, "MAE": mae},
}


def measure(
    kind: TaskKind,
    predictions: Mapping[str, FloatArray],
    truth: FloatArray,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Scores of several predictors on the same graphs, as JSON values.

    Returns:
        `n`; for a binary task `positives`; `scores`, by predictor and metric
        [value, low, high]: 95 % percentile bootstrap over graphs; and `differences` of the first
        predictor from each other one, by metric, from the same resamples. What is undefined (one
        class only) is None. The ECE has no interval: resampling inflates it.
    """
    metrics = METRICS[kind]
    rng = np.random.default_rng(seed)
    draws = [rng.integers(len(truth), size=len(truth)) for _ in range(resamples)]
    values: dict[str, dict[str, FloatArray]] = {
        name: {
            metric: np.array(
                [function(p, truth)]
                + [function(p[d], truth[d]) for d in draws if metric != "ECE" and len(truth) > 1]
            )
            for metric, function in metrics.items()
        }
        for name, p in predictions.items()
    }
    first, *others = predictions
    found: dict[str, Any] = {"n": len(truth)}
    if kind == "binary":
        found["positives"] = int(truth.sum())
    found["scores"] = {
        name: {metric: _interval(v) for metric, v in each.items()} for name, each in values.items()
    }
    found["differences"] = {
        name: {
            metric: _interval(values[first][metric] - values[name][metric]) for metric in metrics
        }
        for name in others
    }
    return found


def readings(task: Task, outputs: Tensor) -> FloatArray:
    """Probabilities or values, as `measure` takes them, from a task's outputs (n, columns)."""
    if task.kind == "multiclass":
        return outputs.double().softmax(1).numpy()
    if task.kind == "binary":
        return outputs[:, 0].double().sigmoid().numpy()
    return (task.offset + task.scale * outputs[:, 0].double()).numpy()


def task_outputs(model: Graphormer, graphs: Sequence[Data]) -> list[Tensor]:
    """A model's outputs for graphs, (n, columns) a task."""
    found = predict(model, graphs)
    return [found[:, model.config.task_columns(task.name)[1]] for task in model.config.tasks]


def task_readings(model: Graphormer, graphs: Sequence[Data]) -> list[FloatArray]:
    """A model's probabilities and values for graphs, by task."""
    each = zip(model.config.tasks, task_outputs(model, graphs), strict=True)
    return [readings(task, outputs) for task, outputs in each]


def forest_predictions(
    task: Task, features: NDArray[Any], y: FloatArray, test: NDArray[Any], seed: int = 0
) -> FloatArray:
    """Predictions for ECFP4 bits `test` of 500 trees trained on `features` and labels y (n,).

    Probabilities of the second class (m,) or of all (m, C), or values (m,).
    """
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    if task.kind == "regression":
        # A third of the features a cut, as Breiman advises for regression.
        forest = RandomForestRegressor(TREES, max_features=1 / 3, random_state=seed, n_jobs=1)
        return forest.fit(features, y).predict(test)
    forest = RandomForestClassifier(TREES, random_state=seed, n_jobs=1).fit(features, y)
    found = np.zeros((len(test), len(task.classes)))
    found[:, forest.classes_.astype(int)] = forest.predict_proba(test)
    return found[:, 1] if task.kind == "binary" else found


def dummy_predictions(task: Task, y: FloatArray, n: int) -> FloatArray:
    """The training mean of values, or the classes' shares, for every one of n molecules."""
    if task.kind == "multiclass":
        shares = np.bincount(y.astype(int), minlength=len(task.classes)) / len(y)
        return np.tile(shares, (n, 1))
    return np.full(n, y.mean())


def task_temperature(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """The number to divide a task's outputs (n, columns) by, fitted to labels y (n,) (Guo 2017).

    None for a regression, and where there are fewer than 20 labels or fewer than two classes.
    """
    present = ~y.isnan()
    outputs, y = outputs[present].double(), y[present]
    if task.kind == "regression" or len(y) < MIN_FOR_TEMPERATURE or len(y.unique()) < 2:
        return None
    if task.kind == "binary":
        return fit_temperature(outputs[:, 0], y)
    grid = torch.linspace(math.log(0.25), math.log(4.0), 401).exp().tolist()
    return min(grid, key=lambda t: float(torch.nn.functional.cross_entropy(outputs / t, y.long())))


def verdicts(scores: Mapping[str, Any]) -> list[str]:
    """Sentences on the targets that a dummy, or else a forest, predicts better; of test scores.

    scores: by target, as `measure` gives them. The first metric decides: ROC-AUC, or R2.
    """
    found = [f"this model is {told}: do not use it" for told in useless_tasks(scores)]
    for name, of_target in scores.items():
        model, dummy, forest = (_leading(of_target, key) for key in PREDICTORS)
        if model < dummy or not model < forest:
            continue
        metric, difference = next(iter(of_target["differences"]["forest"].items()))
        high = difference[2]
        chance = "" if high is not None and high < 0 else "; the difference may be chance"
        found.append(
            f"this model is worse than a random forest for {name}"
            f" ({metric} {model:z.2f} against {forest:z.2f} on test molecules{chance})"
        )
    return found


def useless_tasks(scores: Any) -> list[str]:
    """What of a model is worse than a dummy, in words, from the scores in any metadata.

    Empty for scores of another shape than `measure` gives.
    """
    found = []
    for name, of_target in scores.items() if isinstance(scores, Mapping) else ():
        model, dummy, _ = (_leading(of_target, key) for key in PREDICTORS)
        if model < dummy:
            regression = of_target.get("kind") == "regression"
            metric = "R2" if regression else "ROC-AUC"
            what = "the training mean" if regression else "the shares of the classes"
            figures = f"{metric} {model:z.2f} against {dummy:z.2f} on test molecules"
            found.append(f"worse than predicting {what} of {name} ({figures})")
    return found


def _leading(of_target: Any, predictor: str) -> float:
    """A predictor's first score for a target; NaN, which no score is less than, without one."""
    try:
        value = next(iter(of_target["scores"][predictor].values()))[0]
    except (AttributeError, IndexError, KeyError, StopIteration, TypeError):
        return math.nan
    return float(value) if isinstance(value, int | float) else math.nan


def _interval(values: FloatArray) -> list[float | None]:
    """The value, and the 2.5 % and 97.5 % quantiles of those after it; None for what is NaN."""
    defined = values[1:][~np.isnan(values[1:])]
    low, high = np.quantile(defined, (0.025, 0.975)) if defined.size else (math.nan, math.nan)
    return [None if math.isnan(v) else float(v) for v in (values[0], low, high)]
