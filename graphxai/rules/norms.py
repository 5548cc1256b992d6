"""Norms of PyTorch under the rule LN: their scales are constant (Ali 2022, section 4).

Each function gets an operation and its arguments, and returns what the operation returns, with None
in place of results that only its own backward pass needs. `conservative` has LayerNorm and RMSNorm
of bundled models.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from graphxai.rules import conservative as rules_of

Function: TypeAlias = Callable[..., Any]


def layer_norm(
    func: Function, x: Tensor, shape: Sequence[int], weight: Any = None, bias: Any = None,
    eps: float = 1e-5,
) -> tuple[Tensor, None, None]:  # fmt: skip
    """Apply LayerNorm over the last axes of x (..., *shape), with a constant scale.

    This is the rule LN (Ali 2022, section 4).
    """
    y = _standardised(x, tuple(range(-len(shape), 0)), eps)
    return affine(y, weight, bias), None, None


def group_norm(
    func: Function, x: Tensor, weight: Any, bias: Any, n: int, c: int, hw: int, groups: int,
    eps: float,
) -> tuple[Tensor, None, None]:  # fmt: skip
    """Apply GroupNorm to x (B, C, ...), with constant scales, as LN does (Ali 2022, section 4)."""
    y = _standardised(x.reshape(n, groups, -1), (-1,), eps).view_as(x)
    return per_channel(y, weight, bias).to(x.dtype), None, None  # statistics may be wider, too


def rms_norm(
    func: Function, x: Tensor, shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> tuple[Tensor, None]:
    """Apply RMSNorm over the last axes of x (..., *shape), with a constant scale.

    This is the rule LN for a norm that does not centre (Achtibat 2024, section 3.3).
    """
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return rules_of.rms_norm(x, weight, eps, tuple(range(-len(shape), 0))), None


def batch_norm(
    func: Function, x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any
) -> tuple[Tensor, None, None]:
    """Apply BatchNorm to x (n, C, ...), with running statistics or with constant scales.

    With running statistics it is affine (Ioffe 2015, section 3.1). Else this is LN (Ali 2022).
    """
    eps = rest[-1]
    if not has_running_statistics((x, weight, bias, mean, var, *rest)):
        y = _standardised(x, (0, *range(2, x.dim())), eps)
    else:
        shape = (1, -1) + (1,) * (x.dim() - 2)
        y = (x - mean.view(shape)) * (var + eps).rsqrt().view(shape)
    return per_channel(y, weight, bias).to(x.dtype), None, None  # statistics may be wider, too


def has_running_statistics(args: Sequence[Any]) -> bool:
    """Whether BatchNorm takes the running statistics, which InstanceNorm does not have."""
    return args[3] is not None and args[5] is not True


def _standardised(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    centred = x - x.mean(axes, keepdim=True)
    return centred * (centred.detach().square().mean(axes, keepdim=True) + eps).rsqrt()


def affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Multiply x by a weight and add a bias, each if there is one."""
    y = x if weight is None else x * weight
    y = y if bias is None else y + bias
    return y.to(x.dtype)  # under autocast the weights may be wider than x


def per_channel(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Multiply x (B, C, ...) by weight (C,) and add bias (C,)."""
    shape = (1, -1) + (1,) * (x.dim() - 2)
    weight, bias = (None if t is None else t.view(shape) for t in (weight, bias))
    return affine(x, weight, bias)
