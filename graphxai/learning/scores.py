"""The training loss, and scores of predictions by the metrics of each kind of task."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.prediction_metrics import (
    FloatArray,
    accuracy,
    average_precision,
    brier,
    calibration_error,
    mae,
    mean_roc_auc,
    r2,
    rmse,
    roc_auc,
    score_task,
)
from graphxai.contract.tasks import Task, TaskKind, TaskSet
from graphxai.learning.splitting import Source

Metric = Callable[[FloatArray, FloatArray], float]
RESAMPLES = 1000  # of the graphs, for an interval
FEWEST = 5  # graphs for an interval; fewer have less than 40 resamples, so none is 2.5 % of them
SPREAD = 0.5  # of a measurement around its prediction, in standard deviations of the labels


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
    resamples: int | None = None,
) -> dict[str, Any]:
    """Score several predictors on the same graphs.

    Args:
        predictions: probabilities or values by predictor, as from `readings`.
        truth: the labels (n,).
        resamples: number of bootstrap resamples of the graphs, by default `RESAMPLES`.

    Returns:
        JSON values. `n` is the number of graphs, and `positives`, of a binary task, that of the
        second class. `scores` has a value with a 95 % percentile bootstrap interval over graphs,
        [value, low, high], by predictor and metric. `differences` has the same for the first
        predictor minus each other one, from the same resamples. A value is None where it is
        undefined, as for a single class, and so is the interval of fewer than `FEWEST` graphs. The
        ECE has no interval, because resampling inflates it.
    """
    metrics = METRICS[kind]
    rng = np.random.default_rng(0)
    count = (resamples or RESAMPLES) if len(truth) >= FEWEST else 0
    draws = [rng.integers(len(truth), size=len(truth)) for _ in range(count)]
    values: dict[str, dict[str, FloatArray]] = {
        name: {
            metric: np.array(
                [function(p, truth)] + [function(p[d], truth[d]) for d in draws if metric != "ECE"]
            )
            for metric, function in metrics.items()
        }
        for name, p in predictions.items()
    }
    first, *others = predictions
    report: dict[str, Any] = {"n": len(truth)}
    if kind == "binary":
        report["positives"] = int(truth.sum())
    report["scores"] = {
        name: {metric: _interval(v) for metric, v in each.items()} for name, each in values.items()
    }
    report["differences"] = {
        name: {
            metric: _interval(values[first][metric] - values[name][metric]) for metric in metrics
        }
        for name in others
    }
    return report


def score_test_part(
    source: Source, predictions: Mapping[str, Mapping[int, FloatArray]]
) -> dict[str, Any]:
    """Score predictions for the test part of a source, and those of a dummy, by task.

    Args:
        source: the labels of the training part and the test part.
        predictions: probabilities or values, as from `predicting.task_readings`, by name of the
            predictor and position of the task. The first predictor is the model.

    Returns:
        JSON values. There are scores only if both parts have labels of the task, see `measure`.
    """
    scores = {}
    nothing: dict[str, Any] = {"n": 0, "scores": {}}
    for k, task in enumerate(source.tasks):
        each = {name: of_task[k] for name, of_task in predictions.items() if k in of_task}
        y, learned = source.test.y[:, k], source.train.y[:, k]
        learned, tested = learned[~np.isnan(learned)], ~np.isnan(y)
        report: dict[str, Any] = {"kind": task.kind, "unit": task.unit, "trained": len(learned)}
        report |= nothing if source.labelled == "molecules" else {"tested": source.labelled}
        if len(learned) and (kept := kept_bounds(each, source.test.bounds[:, k])) is not None:
            report["bounds"] = kept
        if len(learned) and tested.any():
            measured = {name: readings[tested] for name, readings in each.items()}
            measured["dummy"] = dummy_predictions(task, learned, int(tested.sum()))
            report |= measure(task.kind, measured, y[tested])
        scores[task.name] = report if "n" in report else report | nothing
    return scores


def dummy_predictions(task: Task, y: FloatArray, n: int) -> FloatArray:
    """Predict the training mean, or the class frequencies, for each of n molecules."""
    if task.kind == "multiclass":
        shares = np.bincount(y.astype(int), minlength=len(task.classes)) / len(y)
        return np.tile(shares, (n, 1))
    return np.full(n, y.mean())


def kept_bounds(predictions: Mapping[str, FloatArray], bounds: FloatArray) -> dict[str, Any] | None:
    """Count how many predictions (n,) lie within the bounds (n, 2) of values not measured.

    Returns:
        JSON values: the number of bounds, `n`, and by predictor the share that is `kept`; None
        without any bound.
    """
    bounded = np.isfinite(bounds).any(axis=1)
    if not bounded.any():
        return None
    low, high = bounds[bounded].T
    kept = {
        name: float(np.mean((values[bounded] >= low) & (values[bounded] <= high)))
        for name, values in predictions.items()
    }
    return {"n": int(bounded.sum()), "kept": kept}


def _interval(values: FloatArray) -> list[float | None]:
    """Return the first value and the 2.5 % and 97.5 % quantiles of the rest, with None for NaN."""
    defined = values[1:][~np.isnan(values[1:])]
    low, high = np.quantile(defined, (0.025, 0.975)) if defined.size else (math.nan, math.nan)
    return [None if math.isnan(v) else float(v) for v in (values[0], low, high)]


class Objective:
    """The loss over all tasks of a model; labels that are NaN are ignored.

    A binary task has the cross-entropy of a sigmoid, and its labels may be any probability. A
    multi-class task has the cross-entropy of a softmax, and a regression the squared error in
    standardised units. A regression of which only a bound is known, such as ">10", has the censored
    likelihood of a normal error (Tobin 1958) in its place. The result is the mean over the labels
    present, weighted by task.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        weights: Sequence[float] | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        if weights is not None and len(weights) != len(tasks):
            raise ValueError(f"{len(weights)} task weights for {len(tasks)} tasks.")
        self.weights = torch.tensor([1.0] * len(tasks) if weights is None else list(weights))
        self.smoothing = label_smoothing
        self.offset = torch.tensor([task.offset for task in tasks])
        self.scale = torch.tensor([task.scale for task in tasks])
        self.columns = TaskSet(tuple(tasks)).columns
        self.positions = {
            kind: [k for k, task in enumerate(tasks) if task.kind == kind]
            for kind in get_args(TaskKind)
        }

    def __call__(self, outputs: Tensor, y: Tensor, bounds: Tensor | None = None) -> Tensor:
        """Return the loss of outputs (B, num_outputs) for labels y (B, tasks).

        It is 0 if all labels are NaN and there are no bounds (B, tasks, 2), see `GraphBatch`.
        """
        outputs = outputs.float()
        present = ~y.isnan()
        if bounds is not None:
            bounded = bounds.isfinite().any(-1) & ~present  # (B, tasks)
            present = present | bounded
        weights = self.weights.to(y.device) * present  # (B, tasks)
        target = y.nan_to_num()
        losses = torch.zeros_like(target)
        if k := self.positions["binary"]:
            soft = target[:, k] * (1 - self.smoothing) + 0.5 * self.smoothing
            logits = outputs[:, [self.columns[task].start for task in k]]
            losses[:, k] = F.binary_cross_entropy_with_logits(logits, soft, reduction="none")
        if k := self.positions["regression"]:
            offset, scale = (each.to(y.device)[k] for each in (self.offset, self.scale))
            values = outputs[:, [self.columns[task].start for task in k]]
            losses[:, k] = F.mse_loss(values, (target[:, k] - offset) / scale, reduction="none")
            if bounds is not None:
                limits = (bounds[:, k] - offset[:, None]) / scale[:, None]  # (B, k, 2)
                losses[:, k] = torch.where(
                    bounded[:, k], censored_loss(values, limits), losses[:, k]
                )
        for task in self.positions["multiclass"]:
            losses[:, task] = F.cross_entropy(
                outputs[:, self.columns[task]],
                target[:, task].long(),
                reduction="none",
                label_smoothing=self.smoothing,
            )
        return (losses * weights).sum() / weights.sum().clamp(min=1e-12)


def censored_loss(values: Tensor, bounds: Tensor) -> Tensor:
    """Return -2 s^2 log P for values (...) whose truth lies between bounds (..., 2).

    P is the probability that a normal error of standard deviation s = `SPREAD` brings the value
    between the bounds (Tobin 1958). The factor makes it comparable with the squared error: far
    outside, it is the squared distance from the nearer bound.
    """
    # An infinite bound has no gradient; from 30 s within a finite one, the probability is 1.
    low, high = ((bounds[..., k] - values) / SPREAD for k in (0, 1))
    below = torch.special.log_ndtr(low.clamp(min=-30).neg())  # log P(truth > low)
    above = torch.special.log_ndtr(high.clamp(max=30))  # log P(truth < high)
    both = below + above  # the product bounds the probability of an interval
    return -2 * SPREAD**2 * both


def scores(tasks: Sequence[Task], outputs: Tensor, y: Tensor) -> dict[str, float]:
    """Score outputs (G, num_outputs) for labels y (G, tasks), by task name.

    A binary task has the ROC-AUC, a multi-class task the accuracy, and a regression R squared, so
    higher is better. A task without labels, or with a single class, is left out.
    """
    by_task = {}
    for task, columns, labels in zip(tasks, TaskSet(tuple(tasks)).columns, y.T, strict=True):
        present = ~labels.isnan()
        value = score_task(task, outputs[present, columns], labels[present])
        if value is not None:
            by_task[task.name] = value
    return by_task
