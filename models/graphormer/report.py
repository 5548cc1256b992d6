"""How good a trained classifier is: discrimination with an interval, calibration, temperature."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from .model import Graphormer
from .objectives import roc_auc

__all__ = ["ClassifierReport", "fit_temperature", "report_classifier", "scale_logits"]


@dataclass(frozen=True)
class ClassifierReport:
    """Scores of probabilities for one class on `n` graphs, `positives` of them of that class.

    `roc_auc_low`, `roc_auc_high`: 95 % percentile bootstrap over graphs. `brier`: mean squared
    error of the probability. `ece`: expected calibration error, ten bins of equal width.
    """

    n: int
    positives: int
    roc_auc: float
    roc_auc_low: float
    roc_auc_high: float
    brier: float
    ece: float

    def to_dict(self) -> dict[str, float]:
        """Plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"ROC-AUC {self.roc_auc:.3f} (95 % interval {self.roc_auc_low:.3f} to "
            f"{self.roc_auc_high:.3f}), Brier {self.brier:.3f}, ECE {self.ece:.3f}, n = {self.n}"
        )


def report_classifier(
    probability: Tensor, active: Tensor, *, resamples: int = 2000, seed: int = 0
) -> ClassifierReport:
    """Scores of probabilities (G,) for labels `active` (G,), of which both kinds must occur."""
    probability, active = probability.double(), active > 0.5
    value = roc_auc(probability, active)
    if value is None:
        raise ValueError("ROC-AUC needs graphs of both classes.")
    generator = torch.Generator().manual_seed(seed)
    draws = []
    for _ in range(resamples):
        chosen = torch.randint(len(active), (len(active),), generator=generator)
        drawn = roc_auc(probability[chosen], active[chosen])
        if drawn is not None:
            draws.append(drawn)
    low, high = torch.tensor(draws).quantile(torch.tensor([0.025, 0.975])).tolist()
    bins = (probability * 10).long().clamp(max=9)
    gaps = [
        float((probability[bins == b].mean() - active[bins == b].double().mean()).abs())
        * int((bins == b).sum())
        for b in range(10)
        if bool((bins == b).any())
    ]
    brier = float((probability - active.double()).square().mean())
    return ClassifierReport(
        len(active), int(active.sum()), value, low, high, brier, sum(gaps) / len(active)
    )


def fit_temperature(logits: Tensor, active: Tensor) -> float:
    """The number T that makes sigmoid(logits / T) fit the labels best (Guo 2017).

    logits, active (G,): validation graphs. Searched from 0.25 to 4 on a fine logarithmic grid.
    """
    grid = torch.linspace(math.log(0.25), math.log(4.0), 401).exp()
    losses = [
        float(
            torch.nn.functional.binary_cross_entropy_with_logits(
                logits.double() / t, active.double()
            )
        )
        for t in grid
    ]
    return float(grid[int(torch.tensor(losses).argmin())])


@torch.no_grad()
def scale_logits(model: Graphormer, task: str, temperature: float) -> None:
    """Divide a task's outputs by `temperature`, in the weights of a linear head itself."""
    if not isinstance(model.head, torch.nn.Linear):
        raise ValueError("the temperature can only be folded into a linear head.")
    _, columns = model.config.task_columns(task)
    model.head.weight[columns] /= temperature
    model.head.bias[columns] /= temperature
