"""The rules as hooks on PyTorch's autograd graph: what a node passes back instead of its gradient.

A hook gets the gradients that a node passes back, and those that arrived at its results. It must
hold neither the node nor a tensor with a gradient: Python would never see that circle, and the pass
would stay in memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from graphxai.rules.conservative import Rules, conservative
from graphxai.rules.operation_rule import OperationRule

from .autograd_graph import Node, Opaque, bound_operation, saved
from .built_in_rules import BuiltInRule, ToInput
from .node_kinds import KINDS
from .replay_plan import ReplayPlan
from .rule_table import built_in_rule, custom_rule
from .trace import Op, Ref, refs_in

ROUNDING = 1e3  # machine epsilons
Gradients: TypeAlias = tuple[Tensor | None, ...]
Hook: TypeAlias = Callable[[Gradients, Gradients], Gradients | None]


class HookAt(NamedTuple):
    """A hook on the node of one operation, and the function that makes it from the node."""

    operation: int
    hook_of: Callable[[Node], Hook]


def hooks_of(plan: ReplayPlan) -> Iterator[HookAt]:
    """Yield the hooks by which the nodes of a pass pass back relevance by the rules of a plan."""
    for op in plan.passing:
        if (custom := custom_rule(plan, op)) is not None:
            yield HookAt(op.number, partial(_by_custom_rule, custom))
        elif (rule := built_in_rule(plan, op)) is not None:
            yield HookAt(op.number, partial(_by_built_in_rule, rule, plan.rules))
        elif (scales := _scales(plan, op)) is not None:
            yield HookAt(op.number, partial(_scaling, scales))


def can_be_hooked(plan: ReplayPlan, op: Op, node: Node) -> bool:
    """Whether a hook can follow the rule that is in force for an operation, if there is one."""
    if custom_rule(plan, op) is not None:
        return hasattr(node, "_saved_self")
    rule = built_in_rule(plan, op)
    return rule is None or rule.backward is not None or _keeps_its_input(node)


def install_hooks(hooks: Iterable[HookAt], nodes: Sequence[Node]) -> None:
    """Register hooks on the nodes of a pass, one node for each operation."""
    for number, hook_of in hooks:
        nodes[number].register_hook(hook_of(nodes[number]))


def _by_rule(to_input: ToInput) -> Hook:
    """Return a hook that passes back what a rule makes of the gradient at the result."""

    def hook(gradients: Gradients, arriving: Gradients) -> Gradients | None:
        if arriving[0] is None or gradients[0] is None:
            return None
        return (to_input(arriving[0]), *gradients[1:])

    return hook


def _by_built_in_rule(rule: BuiltInRule, rules: Rules, node: Node) -> Hook:
    """Return a hook that follows a rule: by its way back, or by differentiating its way forward.

    Args:
        rules: those in force, on which the way forward may depend.
    """
    if rule.backward is not None:
        return _by_rule(rule.backward(node))
    operation = bound_operation(node)

    def forward(x: Tensor) -> Tensor:
        with conservative(**vars(rules)):
            result = rule.forward(operation.function, x, *operation.settings, **operation.options)
        first: Tensor = result[0] if isinstance(result, tuple) else result
        return first

    return _by_rule(_derivative(forward, saved(node, "self")))


def _keeps_its_input(node: Node) -> bool:
    """Whether a node has saved its first argument, and has no other results or arguments."""
    return hasattr(node, "_saved_self") and len(node._input_metadata) == 1 == len(
        node.next_functions
    )


def _by_custom_rule(rule: OperationRule, node: Node) -> Hook:
    """Return a hook that passes back the gradient of what a custom rule computes.

    Raises Opaque if the rule computes other values than the operation, which hooks cannot replace.
    """
    x, operation = saved(node, "self"), bound_operation(node)
    with torch.no_grad():
        allowed = ROUNDING * torch.finfo(x.dtype).eps
        if not torch.allclose(rule.compute(x, operation), operation(x), allowed, allowed):
            raise Opaque(f"a rule for {rule.operation} that computes something else")
    return _by_rule(_derivative(lambda leaf: rule.compute(leaf, operation), x))


def _derivative(f: Callable[[Tensor], Tensor], x: Tensor) -> ToInput:
    """Return the way back through a function of x, whose gradient autograd computes."""

    def to_input(gradient: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            y = f(leaf)
        (passed,) = torch.autograd.grad(y, leaf, gradient, create_graph=gradient.requires_grad)
        return passed

    return to_input


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
    kind = KINDS[op.func]
    args = op.args[:1] if type(op.args[0]) is list else [op.args[place] for place in kind.places]
    return [ref for arg in args for ref in refs_in(arg)]


def _scaling(scales: tuple[float, ...], node: Node) -> Hook:
    """Return a hook that multiplies each gradient by a number."""

    def hook(gradients: Gradients, arriving: Gradients) -> Gradients:
        return tuple(
            None if gradient is None or scale == 0 else gradient if scale == 1 else gradient * scale
            for gradient, scale in zip(gradients, scales, strict=True)
        )

    return hook
