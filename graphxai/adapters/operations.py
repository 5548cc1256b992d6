"""PyTorch's normalisations, activations and affine maps in the formulas of `rules.conservative`.

Every function takes the PyTorch function `func` that it replaces, then `constant`, which is applied
to each additive parameter, then the arguments of `func`.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphxai.rules import conservative as propagation

from .vocabulary import ACTIVATION_MODULE, name_of

Constant = Callable[[Tensor], Tensor]


def layer_norm(
    func: Any,
    constant: Constant,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    """LayerNorm over the last axes of input (..., *normalized_shape)."""
    flat = input.flatten(-len(normalized_shape))
    out = _standardised(flat, eps).unflatten(-1, tuple(normalized_shape))
    out = out if weight is None else out * weight
    return out if bias is None else out + constant(bias)


def rms_norm(
    func: Any,
    constant: Constant,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """RMSNorm over the last axes of input (..., *normalized_shape)."""
    axes = tuple(range(-len(normalized_shape), 0))
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    return propagation.rms_norm(input, weight, eps, axes)


def uses_batch_statistics(func: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether a batch norm is called with the statistics of the batch at hand."""
    given = _batch_norm_arguments(func, args, kwargs)
    return bool(given.get("training")) or given.get("running_mean") is None


def batch_norm(func: Any, constant: Constant, *args: Any, **kwargs: Any) -> Tensor:
    """BatchNorm of input (n, C, ...) with its running statistics, an affine map."""
    given = _batch_norm_arguments(func, args, kwargs)
    x = given["input"]
    scale = (given["running_var"] + given.get("eps", 1e-5)).rsqrt()
    shape = (1, -1) + (1,) * (x.dim() - 2)
    out = (x - constant(given["running_mean"]).view(shape)) * scale.view(shape)
    return _per_channel(out, given.get("weight"), given.get("bias"), constant)


def instance_norm(func: Any, constant: Constant, *args: Any, **kwargs: Any) -> Tensor:
    """InstanceNorm of input (B, C, ...) over its spatial axes, or with running statistics."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats")
    given = dict(zip((*names, "momentum", "eps"), args, strict=False)) | kwargs
    if not given.get("use_input_stats", True):
        running = {name: given.get(name) for name in names[:5]} | {"eps": given.get("eps", 1e-5)}
        return batch_norm(F.batch_norm, constant, **running)
    x = given["input"]
    out = _standardised(x.flatten(2), given.get("eps", 1e-5)).view_as(x)
    return _per_channel(out, given.get("weight"), given.get("bias"), constant)


def group_norm(
    func: Any,
    constant: Constant,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    """GroupNorm of input (B, C, ...)."""
    flat = input.reshape(len(input), num_groups, -1)
    out = _standardised(flat, eps).view_as(input)
    return _per_channel(out, weight, bias, constant)


def normalize(
    func: Any,
    constant: Constant,
    input: Tensor,
    p: float = 2.0,
    dim: int = 1,
    eps: float = 1e-12,
    **_: Any,
) -> Tensor:
    """Vectors divided by their length, which the rule LN holds constant like a norm's scale."""
    held = input.detach() if propagation.current_rules().layernorm else input
    return input / held.norm(p, dim, keepdim=True).clamp_min(eps)


def log_softmax(func: Any, constant: Constant, input: Tensor, dim: int, **_: Any) -> Tensor:
    """`x - logsumexp(x)` with a constant second term: relevance is that of the logits."""
    return input - constant(input.detach().logsumexp(dim, keepdim=True))


def activation(func: Any, constant: Constant, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """An elementwise function with f(0) = 0; in-place variants work in place here too."""
    if propagation.current_rules().activation is None:
        plain: Tensor = func(input, *args, **kwargs)
        return plain
    if name_of(func) == "gelu" and (args or tuple(kwargs.values()) or ("none",)) == ("none",):
        return propagation.gelu(input)
    in_place = False

    def of_a_copy(x: Tensor) -> Tensor:
        nonlocal in_place
        copy = x.clone()
        out: Tensor = func(copy, *args, **kwargs)
        in_place = out is copy
        return out

    out = propagation.by_ratio(input, of_a_copy)
    return input.copy_(out) if in_place else out


def vanishes_at_zero(func: Any, input: Tensor, *args: Any, **kwargs: Any) -> bool:
    """Whether f(0) = 0, which does not hold for every choice of `hardtanh` bounds."""
    if not name_of(func).startswith("hardtanh"):
        return True
    return not func(input.detach().new_zeros(1), *args, **kwargs).any()


def linear(
    func: Any, constant: Constant, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Affine map of input (..., D_in)."""
    out = F.linear(input, weight)
    return out if bias is None else out + constant(bias)


def convolution(
    func: Any,
    constant: Constant,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Convolution of input (B, C, ...) or (C, ...)."""
    out = func(input, weight, None, *args, **kwargs)
    if bias is not None and out.dim() < weight.dim():
        return out + constant(bias).view(-1, *(1,) * (out.dim() - 1))
    return _per_channel(out, None, bias, constant)


def linear_written_out(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` in operations that allow either factor to be a constant."""
    out = input @ weight.T
    return out if bias is None else out + bias


def is_activation(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> bool:
    """Whether a user's module is an activation: by its name, its shape and f(0) = 0."""
    kind = type(module)
    if kind.__module__.startswith("torch.nn.") or not ACTIVATION_MODULE.search(kind.__name__):
        return False
    alone = len(args) == 1 and isinstance(args[0], Tensor) and args[0].shape == output.shape
    if not alone or next(module.parameters(), None) is not None:
        return False
    if output is args[0]:  # in place: what it was before is gone
        return False
    return not module.forward(args[0].detach().new_zeros(1)).any()


NORMS: dict[str, Callable[..., Tensor]] = {
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "instance_norm": instance_norm,
    "group_norm": group_norm,
    "normalize": normalize,
}
AFFINE: dict[
    str, Callable[..., Tensor]
] = {  # PyTorch's own function does, unless shares of additive constants are asked for
    "linear": linear,
    "batch_norm": batch_norm,
    "conv1d": convolution,
    "conv2d": convolution,
    "conv3d": convolution,
    "conv_transpose1d": convolution,
    "conv_transpose2d": convolution,
    "conv_transpose3d": convolution,
}


def _standardised(x: Tensor, eps: float) -> Tensor:
    """x (..., D) minus its mean, divided by its standard deviation."""
    ones = x.new_ones(x.shape[-1])
    with propagation.unrecorded():
        return propagation.layer_norm(x, ones, torch.zeros_like(ones), eps)


def _per_channel(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, constant: Constant
) -> Tensor:
    """x (B, C, ...) times weight (C,) plus bias (C,)."""
    shape = (1, -1) + (1,) * (x.dim() - 2)
    x = x if weight is None else x * weight.view(shape)
    return x if bias is None else x + constant(bias).view(shape)


def _batch_norm_arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """By name: `F.batch_norm` and `torch.batch_norm` order them differently."""
    moments, pair = ("running_mean", "running_var"), ("weight", "bias")
    order = (*moments, *pair) if func is F.batch_norm else (*pair, *moments)
    names = ("input", *order, "training", "momentum", "eps")
    return dict(zip(names, args, strict=False)) | kwargs
