"""Read what the head of a chemprop network computes as outputs that can be explained.

A class is explained by its logit, and a property by its value in the units of the table. chemprop
returns probabilities for classes; these are the logits from which it computes them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.tasks import TaskKind

Unscale = Callable[[Tensor], Tensor]  # from standardised values to the units of the table
Read = Callable[[Tensor, Unscale], Tensor]


def _values(raw: Tensor, unscale: Unscale) -> Tensor:
    return unscale(raw)


def _mean_of_two(raw: Tensor, unscale: Unscale) -> Tensor:
    """Return the mean of a distribution, the first half of (B, 2 T). Its variance follows."""
    return unscale(raw.chunk(2, 1)[0])


def _mean_of_four(raw: Tensor, unscale: Unscale) -> Tensor:
    """Return the mean of an evidential distribution, the first quarter of (B, 4 T)."""
    return unscale(raw.chunk(4, 1)[0])


def _middle(raw: Tensor, unscale: Unscale) -> Tensor:
    """Return the middle of the two quantiles (B, 2 T)."""
    low, high = raw.chunk(2, 1)
    return (unscale(low) + unscale(high)) / 2


def _logits(raw: Tensor, _: Unscale) -> Tensor:
    return raw


def _log_concentrations(raw: Tensor, _: Unscale) -> Tensor:
    """Return the logarithms of a Dirichlet distribution's concentrations.

    They are logits of its mean, alpha / sum of alpha.
    """
    return torch.log(F.softplus(raw) + 1)


def _binary_log_concentrations(raw: Tensor, _: Unscale) -> Tensor:
    """Return the logit of the second of two concentrations, for (B, 2 T) in pairs."""
    log = torch.log(F.softplus(raw) + 1).reshape(len(raw), -1, 2)
    return log[..., 1] - log[..., 0]


@dataclass(frozen=True)
class Head:
    """How the raw outputs of a predictor are read.

    Args:
        kind: the kind of its tasks.
        read: turns raw outputs into outputs (B, C) that can be explained.
        targets: the number of raw outputs for each output.
    """

    kind: TaskKind
    read: Read
    targets: int = 1


HEADS = {
    "RegressionFFN": Head("regression", _values),
    "MveFFN": Head("regression", _mean_of_two, 2),
    "EvidentialFFN": Head("regression", _mean_of_four, 4),
    "QuantileFFN": Head("regression", _middle, 2),
    "BinaryClassificationFFN": Head("binary", _logits),
    "BinaryDirichletFFN": Head("binary", _binary_log_concentrations, 2),
    "MulticlassClassificationFFN": Head("multiclass", _logits),
    "MulticlassDirichletFFN": Head("multiclass", _log_concentrations),
}


def head_of(predictor: Any) -> str:
    """Return which of `HEADS` a predictor has: its class, or that from which it is derived.

    Raises:
        ValueError: it is none of them.
    """
    for base in type(predictor).__mro__:
        if base.__module__.startswith("chemprop.") and base.__name__ in HEADS:
            return base.__name__
    raise ValueError(unknown_head(type(predictor).__name__))


def unknown_head(name: str) -> str:
    """Say that a predictor is not read, and what to do."""
    return (
        f"the outputs of chemprop's {name} cannot be read as values or classes; those of"
        f" {', '.join(HEADS)} can. Wrap the network with graphxai.wrap(module, forward=...)"
        " instead, where module is your own torch.nn.Module around it."
    )
