"""Calibrate probabilities with one temperature per task (Guo 2017)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from graphxai.models.graphormer import Graphormer

__all__ = ["fit_temperature", "scale_logits"]


def fit_temperature(logits: Tensor, active: Tensor) -> float:
    """Find the temperature T for which sigmoid(logits / T) fits the labels best (Guo 2017).

    logits and labels `active` (G,): of validation graphs. T is searched from 0.25 to 4 on a fine
    logarithmic grid.
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
    """Divide a task's outputs by `temperature`, by scaling the weights of the linear head."""
    if not isinstance(model.head, torch.nn.Linear):
        raise ValueError("the temperature can only be folded into a linear head.")
    _, columns = model.config.task_columns(task)
    model.head.weight[columns] /= temperature
    model.head.bias[columns] /= temperature
