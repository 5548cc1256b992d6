"""Score predictions with bootstrap intervals, by the metrics of each kind of task."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphxai.contract.tasks import Task, TaskKind
from graphxai.learning.metrics import (
    accuracy,
    average_precision,
    brier,
    calibration_error,
    mae,
    mean_roc_auc,
    r2,
    rmse,
    roc_auc,
)

__all__ = [
    "METRICS",
    "ClassifierReport",
    "bound_notes",
    "dummy_predictions",
    "kept_bounds",
    "measure",
    "report_classifier",
    "teacher_ahead",
    "useless_tasks",
    "verdicts",
]

FloatArray = NDArray[np.float64]
Metric = Callable[[FloatArray, FloatArray], float]
RESAMPLES = 1000  # of the graphs, for an interval
RIVALS = {  # simple models that a network should not be worse than
    "forest": "a random forest",
    "descriptor_forest": "a random forest with descriptors",
    "gin": "a GIN of the same budget",
    "feature_forest": "a random forest on mean features",
    "neighbour_forest": "a random forest on the features of a node and its neighbours",
}


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
        kind: kind of the task.
        predictions: probabilities or values by predictor, as from `readings`.
        truth: the labels (n,).
        resamples: number of bootstrap resamples of the graphs, by default `RESAMPLES`.

    Returns:
        JSON values. `n` is the number of graphs, and `positives`, of a binary task, that of the
        second class. `scores` has a value with a 95 % percentile bootstrap interval over graphs,
        [value, low, high], by predictor and metric. `differences` has the same for the first
        predictor minus each other one, from the same resamples. A value is None where it is
        undefined, as for a single class. The ECE has no interval, because resampling inflates it.
    """
    metrics = METRICS[kind]
    rng = np.random.default_rng(0)
    draws = [rng.integers(len(truth), size=len(truth)) for _ in range(resamples or RESAMPLES)]
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


@dataclass(frozen=True)
class ClassifierReport:
    """Scores of the probabilities of a class.

    Attributes:
        n: number of graphs.
        positives: number of graphs in the class.
        roc_auc: probability that a graph in the class scores higher than another.
        roc_auc_low: lower end of its 95 % percentile bootstrap interval over graphs.
        roc_auc_high: upper end of that interval.
        brier: mean squared error of the probability.
        ece: expected calibration error, ten bins of equal width.
    """

    n: int
    positives: int
    roc_auc: float
    roc_auc_low: float
    roc_auc_high: float
    brier: float
    ece: float

    def to_dict(self) -> dict[str, float]:
        """Return plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"ROC-AUC {self.roc_auc:.3f} (95 % interval {self.roc_auc_low:.3f} to "
            f"{self.roc_auc_high:.3f}), Brier {self.brier:.3f}, ECE {self.ece:.3f}, n = {self.n}"
        )


def report_classifier(
    probability: Tensor, active: Tensor, *, resamples: int = 2000
) -> ClassifierReport:
    """Score probabilities (G,) against labels `active` (G,), in which both classes must occur."""
    p, truth = probability.double().numpy(), (active > 0.5).double().numpy()
    value = roc_auc(p, truth)
    if math.isnan(value):
        raise ValueError("ROC-AUC needs graphs of both classes.")
    generator = torch.Generator().manual_seed(0)
    drawn = []
    for _ in range(resamples):
        chosen = torch.randint(len(truth), (len(truth),), generator=generator).numpy()
        drawn.append(roc_auc(p[chosen], truth[chosen]))
    low, high = np.nanquantile(drawn, (0.025, 0.975))
    return ClassifierReport(
        n=len(truth),
        positives=int(truth.sum()),
        roc_auc=value,
        roc_auc_low=float(low),
        roc_auc_high=float(high),
        brier=brier(p, truth),
        ece=calibration_error(p, truth),
    )


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


def bound_notes(scores: Mapping[str, Any]) -> list[str]:
    """Say how many test molecules with a bound are predicted within it, from `kept_bounds`."""
    return [
        f"of {kept['n']:,} test molecules of which only a bound is known, this model predicts"
        f" {kept['kept']['graphormer']:.0%} within it for {name}"
        for name, target_scores in scores.items()
        if (kept := target_scores.get("bounds"))
    ]


def verdicts(scores: Mapping[str, Any]) -> list[str]:
    """Warn of targets that a dummy, or else the best rival, predicts better on the test part.

    Args:
        scores: by target, as from `measure`. The first metric decides: ROC-AUC, or R2.
    """
    warnings = [f"this model is {text}: do not use it" for text in useless_tasks(scores)]
    for name, target_scores in scores.items():
        model, dummy = (_leading(target_scores, key) for key in ("graphormer", "dummy"))
        best = max(RIVALS, key=lambda key: np.nan_to_num(_leading(target_scores, key), nan=-np.inf))
        rival = _leading(target_scores, best)
        if model < dummy or not model < rival:
            continue
        metric, difference = next(iter(target_scores["differences"][best].items()))
        high = difference[2]
        tested = target_scores.get("tested", "molecules")
        chance = "" if high is not None and high < 0 else "; the difference may be due to chance"
        warnings.append(
            f"this model is worse than {RIVALS[best]} for {name}"
            f" ({metric} {model:z.2f} against {rival:z.2f} on test {tested}{chance})"
        )
    return warnings


def teacher_ahead(scores: Mapping[str, Any], *, stored: bool) -> list[str]:
    """Name the targets that the teacher predicts better than the model, by more than the error.

    Args:
        scores: by target, as from `measure`. The first metric decides: ROC-AUC, or R2.
        stored: whether the teacher's predictions will be shown beside the model's.
    """
    notes = []
    for name, target_scores in scores.items():
        difference = target_scores.get("differences", {}).get("teacher")
        if not difference:
            continue
        metric, (_, _, high) = next(iter(difference.items()))
        if high is not None and high < 0:
            teacher, network = (_leading(target_scores, key) for key in ("teacher", "graphormer"))
            notes.append(
                f"the teacher predicts {name} better than this model on the test molecules"
                f" ({metric} {teacher:.3f} against {network:.3f}): "
                + (
                    "its predictions are shown beside the model's"
                    if stored
                    else "--resume --keep-teacher stores its predictions beside the model's"
                )
            )
    return notes


def useless_tasks(scores: Any) -> list[str]:
    """Name the tasks for which a model is worse than a dummy, from the scores in its metadata.

    The list is empty if the scores do not have the form that `measure` returns.
    """
    useless = []
    for name, target_scores in scores.items() if isinstance(scores, Mapping) else ():
        model, dummy = (_leading(target_scores, key) for key in ("graphormer", "dummy"))
        if model < dummy:
            regression = target_scores.get("kind") == "regression"
            metric = "R2" if regression else "ROC-AUC"
            dummy_name = "the training mean" if regression else "the class frequencies"
            figures = f"{metric} {model:z.2f} against {dummy:z.2f} on test molecules"
            useless.append(f"worse than predicting {dummy_name} of {name} ({figures})")
    return useless


def _leading(target_scores: Any, predictor: str) -> float:
    """Return a predictor's first score for a target, or NaN, which fails every comparison."""
    try:
        value = next(iter(target_scores["scores"][predictor].values()))[0]
    except (AttributeError, IndexError, KeyError, StopIteration, TypeError):
        return math.nan
    return float(value) if isinstance(value, int | float) else math.nan


def _interval(values: FloatArray) -> list[float | None]:
    """Return the first value and the 2.5 % and 97.5 % quantiles of the rest, with None for NaN."""
    defined = values[1:][~np.isnan(values[1:])]
    low, high = np.quantile(defined, (0.025, 0.975)) if defined.size else (math.nan, math.nan)
    return [None if math.isnan(v) else float(v) for v in (values[0], low, high)]
