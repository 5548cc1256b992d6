"""Metrics of predictions, each a function of arrays.

Predictions are scores or probabilities of the second class (n,) for a binary task, probabilities of
every class (n, C) for a multi-class task, values (n,) for a regression; `truth` (n,) has class
numbers or values. Undefined metrics are NaN.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from graphxai.contract.tasks import Task

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
