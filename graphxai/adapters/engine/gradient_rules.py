"""The rules as hooks on PyTorch's autograd graph: what a node passes back instead of its gradient.

Each function takes a node and what it saved, and returns a hook that gets the node's gradients and
those that arrived at its results. It computes the gradient of the function with the same name in
`replay`, where the rules are written as forward passes.

A hook holds neither a node nor a tensor with a gradient: Python would never see that circle, and
the pass would stay in memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from .autograd_graph import Node
from .conservative_rules import has_rule
from .node_kinds import KINDS
from .replay_plan import ReplayPlan
from .trace import Op, Ref, refs_in

Gradients: TypeAlias = tuple[Tensor | None, ...]
Hook: TypeAlias = Callable[[Gradients, Gradients], Gradients | None]
SMALL = 1e-4  # stands for 0 where f(0) / 0 is asked for, as in `rules.conservative.by_ratio`


class HookAt(NamedTuple):
    """A hook on the node of one operation: the name of a rule, or what gradients are scaled by."""

    operation: int
    rule: str | None
    scales: tuple[float, ...] = ()


def hooks_of(plan: ReplayPlan) -> Iterator[HookAt]:
    """Yield the hooks by which the nodes of a pass pass back relevance by the rules of a plan."""
    for op in plan.passing:
        if has_rule(plan, op):
            yield HookAt(op.number, op.name)
        elif (scales := _scales(plan, op)) is not None:
            yield HookAt(op.number, None, scales)


def install_hooks(hooks: Iterable[HookAt], nodes: Sequence[Node]) -> None:
    """Register hooks on the nodes of a pass, one node for each operation."""
    for number, rule, scales in hooks:
        node = nodes[number]
        node.register_hook(_scaled(scales) if rule is None else _ruled(GRADIENTS[rule](node)))


def _ruled(to_input: "ToInput") -> Hook:
    """Return a hook that passes back what a rule makes of the gradient at the result."""

    def hook(gradients: Gradients, arriving: Gradients) -> Gradients | None:
        if arriving[0] is None or gradients[0] is None:
            return None
        return (to_input(arriving[0]), *gradients[1:])

    return hook


def _scales(plan: ReplayPlan, op: Op) -> tuple[float, ...] | None:
    """Return what each gradient of an operation is multiplied by; None if all stay as they are."""
    taken, shares = plan.taken[op.number], plan.shares.get(op.number, {})
    live = plan.trace.flow.live
    scales = tuple(
        1.0 if not live[ref.value] else shares.get(ref.value, 1.0) if ref.value in taken else 0.0
        for ref in _differentiable(op)
    )
    return None if all(scale == 1 for scale in scales) else scales


def _differentiable(op: Op) -> list[Ref]:
    """Return the arguments that the node of an operation may have gradients for, in its order."""
    kind = KINDS[op.called]
    args = op.args[:1] if type(op.args[0]) is list else [op.args[place] for place in kind.places]
    return [ref for arg in args for ref in refs_in(arg)]


def _scaled(scales: tuple[float, ...]) -> Hook:
    def hook(gradients: Gradients, arriving: Gradients) -> Gradients:
        return tuple(
            None if gradient is None or scale == 0 else gradient if scale == 1 else gradient * scale
            for gradient, scale in zip(gradients, scales, strict=True)
        )

    return hook


# -- from the gradient at a result to that at the input -------------------------------------------

ToInput: TypeAlias = Callable[[Tensor], Tensor]


def _saved(node: Node, name: str) -> Any:
    value = getattr(node, f"_saved_{name}")
    return value.detach() if isinstance(value, Tensor) else value


def layer_norm(node: Node) -> ToInput:
    """LayerNorm with a constant scale: `(g w) scale`, centred."""
    weight, scale = _saved(node, "weight"), _saved(node, "result2")
    axes = tuple(range(-len(_saved(node, "normalized_shape")), 0))

    def to_input(gradient: Tensor) -> Tensor:
        gradient = (gradient if weight is None else gradient * weight) * scale
        return gradient - gradient.mean(axes, keepdim=True)

    return to_input


def group_norm(node: Node) -> ToInput:
    """GroupNorm with constant scales: `(g w) scale`, centred within each group."""
    weight, scale, groups = (_saved(node, name) for name in ("weight", "result2", "group"))

    def to_input(gradient: Tensor) -> Tensor:
        if weight is not None:
            gradient = gradient * weight.view(1, -1, *[1] * (gradient.dim() - 2))
        grouped = gradient.reshape(len(gradient), groups, -1) * scale.view(len(gradient), groups, 1)
        return (grouped - grouped.mean(-1, keepdim=True)).view_as(gradient)

    return to_input


def rms_norm(node: Node) -> ToInput:
    """RMSNorm with a constant scale: `(g w) scale`."""
    weight, scale = _saved(node, "weight"), _saved(node, "result1")
    return _times(scale if weight is None else weight * scale)


def ratio(node: Node, f: Callable[[Tensor], Tensor]) -> ToInput:
    """Return the gradient of `x [f(x) / x]`, with the ratio in brackets constant."""
    x = _saved(node, "self")
    point = x.masked_fill(x == 0, SMALL)
    return _times(f(point) / point)


def gelu(node: Node) -> ToInput:
    """GELU with a constant ratio, the normal distribution function unless it is approximated."""
    approximate = _saved(node, "approximate")
    if approximate != "none":
        return ratio(node, lambda x: F.gelu(x, approximate=approximate))
    return _times(torch.special.ndtr(_saved(node, "self")))


def elu(node: Node) -> ToInput:
    """ELU or SELU with a constant ratio."""
    settings = [_saved(node, name) for name in ("alpha", "scale", "input_scale")]
    return ratio(node, lambda x: torch.ops.aten.elu(x, *settings))


def celu(node: Node) -> ToInput:
    """CELU with a constant ratio."""
    alpha = _saved(node, "alpha")
    return ratio(node, lambda x: F.celu(x, alpha))


def hardtanh(node: Node) -> ToInput:
    """Hardtanh or ReLU6 with a constant ratio."""
    low, high = _saved(node, "min_val"), _saved(node, "max_val")
    return ratio(node, lambda x: F.hardtanh(x, low, high))


def _times(factor: Tensor) -> ToInput:
    return lambda gradient: gradient * factor


GRADIENTS: dict[str, Callable[[Node], ToInput]] = {
    "native_layer_norm": layer_norm,
    "native_group_norm": group_norm,
    "_fused_rms_norm": rms_norm,
    "gelu": gelu,
    "silu": lambda node: ratio(node, F.silu),
    "elu": elu,
    "celu": celu,
    "mish": lambda node: ratio(node, F.mish),
    "hardswish": lambda node: ratio(node, F.hardswish),
    "hardtanh": hardtanh,
}
