"""Compute the ratio f(x) / x that the activation rule holds constant."""

from collections.abc import Callable

import torch
from torch import Tensor


def constant_ratio(x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute f(x) / x entry by entry. At x = 0 it is taken at a small positive number instead."""
    point = x.masked_fill(x == 0, 1e-4)
    return f(point) / point


def gelu_ratio(x: Tensor) -> Tensor:
    """Compute GELU(x) / x as the normal distribution function, which also has a value at x = 0."""
    return torch.special.ndtr(x)
