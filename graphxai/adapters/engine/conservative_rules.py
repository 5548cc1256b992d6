"""The conservative rules as functions that take the place of operations.

`CONSERVATIVE` has them by operation. A rule in `Rules.custom` precedes it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from graphxai.rules import conservative as rules_of
from graphxai.rules.operation_rule import BoundOperation, OperationRule

from .replay_plan import ReplayPlan
from .trace import Op, Ref
from .vocabulary import RATIO

aten = torch.ops.aten
Function = Callable[..., Any]


def layer_norm(
    func: Function, x: Tensor, shape: Sequence[int], weight: Any = None, bias: Any = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Apply LayerNorm over the last axes of x (..., *shape), with a constant scale."""
    axes = tuple(range(-len(shape), 0))
    mean, centred = _centred(x, axes)
    scale = _scale(centred, axes, eps)
    return _affine(centred * scale, weight, bias), mean, scale


def group_norm(
    func: Function,
    x: Tensor,
    weight: Any,
    bias: Any,
    n: int,
    c: int,
    hw: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, None, None]:
    """Apply GroupNorm to x (B, C, ...), with constant scales."""
    y = _standardised(x.reshape(n, groups, -1), (-1,), eps).view_as(x)
    return _per_channel(y, weight, bias), None, None


def batch_norm(
    func: Function, x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any
) -> tuple[Tensor, None, None]:
    """Apply BatchNorm to x (n, C, ...), with running statistics or with constant scales."""
    training, _, eps = rest
    if training or mean is None:  # InstanceNorm has no running statistics, either
        y = _standardised(x, (0, *range(2, x.dim())), eps)
    else:
        shape = (1, -1) + (1,) * (x.dim() - 2)
        y = (x - mean.view(shape)) * (var + eps).rsqrt().view(shape)
    return _per_channel(y, weight, bias), None, None


def batch_norm_running(
    func: Function,
    x: Tensor,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    momentum: float,
    eps: float,
) -> tuple[Tensor, None, None]:
    """Apply BatchNorm with running statistics."""
    return batch_norm(func, x, weight, bias, mean, var, False, momentum, eps)


def rms_norm(
    func: Function, x: Tensor, shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> tuple[Tensor, None]:
    """Apply RMSNorm over the last axes of x (..., *shape), with a constant scale."""
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return rules_of.rms_norm(x, weight, eps, tuple(range(-len(shape), 0))), None


def ratio(func: Function, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Compute an elementwise function with f(0) = 0 as x times the constant f(x) / x."""
    if func is aten.gelu.default and kwargs.get("approximate", "none") == "none":
        return rules_of.gelu(x)
    return rules_of.by_ratio(x, lambda z: func(z, *args, **kwargs))


def log_softmax(func: Function, x: Tensor, dim: int, half: bool = False) -> Tensor:
    """Compute `x - logsumexp(x)` with a constant second term, so that relevance is the logits'."""
    return x - x.detach().logsumexp(dim, keepdim=True)


# for each operation the rule that replaces it, and the function that takes its place
CONSERVATIVE: dict[str, tuple[str, Function]] = {
    "native_layer_norm": ("layernorm", layer_norm),
    "native_group_norm": ("layernorm", group_norm),
    "native_batch_norm": ("layernorm", batch_norm),
    "_native_batch_norm_legit_no_training": ("layernorm", batch_norm_running),
    "cudnn_batch_norm": ("layernorm", batch_norm),
    "_fused_rms_norm": ("layernorm", rms_norm),
    "_log_softmax": ("attention", log_softmax),
    **dict.fromkeys(RATIO, ("activation", ratio)),
}


def rule_for(plan: "ReplayPlan", op: Op, along: bool = False) -> Function | None:
    """Return the function that takes an operation's place, or None if no rule is in force for it.

    A norm with running statistics is affine and needs no rule.

    Args:
        along: whether it gets one all the same, so that its statistics count as constants that
            are added.
    """
    custom = custom_rule(plan, op)
    if custom is not None:
        return partial(apply_custom_rule, custom)
    return CONSERVATIVE[op.name][1] if has_rule(plan, op, along) else None


def custom_rule(plan: "ReplayPlan", op: Op) -> OperationRule | None:
    """Return the custom rule that is in force for an operation, if there is one.

    Raises ValueError unless the only signal is the first argument, for which rules are written.
    """
    rule = plan.rules.custom_rule(op.name) if plan.rules.custom else None
    signals = {ref.value for ref in op.reads if plan.signal[ref.value]} if rule else set()
    if rule is None or not signals:
        return None
    if not isinstance(op.args[0], Ref) or signals != {op.args[0].value}:
        raise ValueError(
            f"a custom rule acts on {rule.operation!r} of one signal, its first argument; in"
            f" {op.path or 'the model'} other arguments depend on the input."
        )
    return rule


def apply_custom_rule(
    rule: OperationRule, func: Function, x: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """Compute an operation by a custom rule, and add the bias of a norm behind it."""
    settings, bias = list(args), None
    place = {"layer_norm": 2, "group_norm": 1}.get(rule.operation)
    if place is not None and len(settings) > place:
        bias, settings[place] = settings[place], None
    y = rule.compute(x, BoundOperation(func, tuple(settings), kwargs))
    if bias is None:
        return y
    return _affine(y, None, bias) if rule.operation == "layer_norm" else _per_channel(y, None, bias)


def has_rule(plan: "ReplayPlan", op: Op, along: bool = False) -> bool:
    """Whether one of the rules that come with the package is in force for an operation."""
    rule = CONSERVATIVE.get(op.name)
    if rule is None or not vanishes_at_zero(op):
        return False
    if not any(plan.signal[ref.value] for ref in op.reads):
        return False
    without_rule = "batch_norm" in op.name and op.args[3] is not None
    if without_rule and op.name != "_native_batch_norm_legit_no_training":
        without_rule = op.args[5] is False
    return along if without_rule else bool(getattr(plan.rules, rule[0]))


def vanishes_at_zero(op: Op) -> bool:
    """Whether f(0) = 0, which only depends on the bounds of `hardtanh`."""
    if op.name != "hardtanh":
        return True
    low, high = (*op.args[1:], -1, 1)[:2] if len(op.args) < 3 else op.args[1:3]
    return bool(low <= 0 <= high)


def _centred(x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    mean = x.mean(axes, keepdim=True)
    return mean, x - mean


def _scale(centred: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    return (centred.detach().square().mean(axes, keepdim=True) + eps).rsqrt()


def _standardised(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    _, centred = _centred(x, axes)
    return centred * _scale(centred, axes, eps)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = x if weight is None else x * weight
    y = y if bias is None else y + bias
    return y.to(x.dtype)  # under autocast the weights may be wider than x


def _per_channel(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Multiply x (B, C, ...) by weight (C,) and add bias (C,)."""
    shape = (1, -1) + (1,) * (x.dim() - 2)
    weight, bias = (None if t is None else t.view(shape) for t in (weight, bias))
    return _affine(x, weight, bias)
