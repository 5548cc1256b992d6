"""Run a recorded pass again under autograd, with rules in place of some operations.

Only the operations that the gradient of the output passes through run again. Other values are taken
from the recording. An operation without a rule runs as it was recorded. A rule of `Rules.custom`
precedes those built in.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from graphxai.engine.operations import PLUS_PRODUCT, PRODUCTS, operation
from graphxai.engine.plan import ReplayPlan, ValueReplacement
from graphxai.engine.rules import BuiltInRule, Function, affine, per_channel
from graphxai.engine.trace import WEIGHTS, Op, Ref, fill_refs, not_followed, pair_refs
from graphxai.rules import conservative as rules_of
from graphxai.rules.operation_rule import BoundOperation, OperationRule

TensorOf = Callable[[Ref], Tensor]
RunOp = Callable[[Op, list[Any], dict[str, Any]], Any]


def replay(
    plan: ReplayPlan,
    inputs: Mapping[int, Tensor],
    replacements: Mapping[int, ValueReplacement] | None = None,
    run_op: RunOp | None = None,
) -> "Replay":
    """Run a pass again from `inputs` by slot, under the rules of the plan.

    Args:
        replacements: for the number of an operation, a value to replace where the operation
            reads it.
        run_op: runs an operation, in place of the conservative rules.
    """
    replay = Replay(plan, replacements, run_op)
    for slot, tensor in inputs.items():
        replay.begin(slot, tensor)
    for op in plan.ops:
        replay.run(op)
    return replay


class Replay:
    """A pass that runs again.

    Args:
        now: for each slot the tensor that was computed again, or None where that of the pass
            will do.
    """

    def __init__(
        self,
        plan: ReplayPlan,
        replacements: Mapping[int, ValueReplacement] | None = None,
        run_op: RunOp | None = None,
    ) -> None:
        self.plan, self.trace = plan, plan.trace
        self.replacements = replacements or {}
        self.run_op = run_op  # not `_by_rule`: a circle would keep the tensors of the pass alive
        self.now: list[Tensor | None] = [None] * len(self.trace.memory.tensors)

    def begin(self, slot: int, tensor: Tensor) -> None:
        """Put an input into its slot."""
        self.now[slot] = tensor.clone() if slot in self.trace.memory.unstable else tensor

    def output(self) -> Any:
        """Return what the model returned, with the new values."""
        return fill_refs(self.trace.output, self.value)

    def value(self, ref: Ref) -> Tensor:
        """Return the present value of a tensor, computed again or recorded."""
        tensor, memory = self.now[ref.slot], self.trace.memory
        if tensor is None:
            tensor = memory.tensors[ref.slot]
            if ref.slot in memory.unstable and ref.slot in memory.initial:
                tensor = self.now[ref.slot] = memory.initial[ref.slot].clone()
            elif tensor.requires_grad and self.trace.flow.depends[ref.value] & ~WEIGHTS:
                tensor = tensor.detach()
        return tensor

    def run(self, op: Op) -> Any:
        """Run an operation again under the rules, and put its result into its slot."""
        result = self.trace.random_results.get(op.number)
        if result is None:
            result = self._result(op)
            replacement = self.replacements.get(op.number)
            if replacement is not None and replacement.spared is not None:
                without = (self.run_op or self._by_rule)(op, *self._arguments(op, replaced=False))
                result = torch.where(replacement.spared, without, result)
        elif op.in_place:
            result = self.value(op.reads[0]).copy_(result)
        for ref, part in pair_refs(op.result, result):
            if part is not None:
                self.now[ref.slot] = part
        return result

    def _result(self, op: Op) -> Any:
        """Return what an operation results in under the rules."""
        args, kwargs = self._arguments(op)
        if (shares := self.plan.shares.get(op.number)) is not None:
            first = int(op.name in PLUS_PRODUCT)
            for place in (first, first + 1):
                args[place] = rules_of.scale_gradient(args[place], shares[op.args[place].value])
        out = (self.run_op or self._by_rule)(op, args, kwargs)
        if self._loses_gradient(op, args, out):
            raise not_followed(f"{op.name}, which passes no gradient on,", op.path)
        return out

    def _arguments(self, op: Op, replaced: bool = True) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of an operation, without those that it holds constant.

        Args:
            replaced: whether with the replacement of a value, if there is one.
        """
        tensor_of: TensorOf = self.value
        if op.number in self.plan.roles.held or op.name in PRODUCTS:
            tensor_of = self._holding(op)
        if replaced and (replacement := self.replacements.get(op.number)) is not None:
            tensor_of = _with_replacement(replacement, tensor_of)
        return op.with_tensors(tensor_of)

    def _by_rule(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return by_rule(op, args, kwargs, rule_for(self.plan, op))

    def _loses_gradient(self, op: Op, args: Sequence[Any], out: Any) -> bool:
        """Return whether an operation cuts a gradient that autograd had in the recorded pass."""
        if not torch.is_grad_enabled() or _requires_grad(out) or not _requires_grad(args):
            return False
        passes = any(self.plan.signal[ref.value] for ref in op.makes)
        return passes and custom_rule(self.plan, op) is None

    def _holding(self, op: Op) -> TensorOf:
        """Return a function like `value` that detaches what an operation holds constant."""
        signals = self.plan.taken[op.number]

        def tensor_of(ref: Ref) -> Tensor:
            tensor = self.value(ref)
            held = self.trace.flow.live[ref.value] and ref.value not in signals
            return tensor.detach() if held else tensor

        return tensor_of


def out_of_place(func: Any) -> Any:
    """Return the variant of an in-place operation that returns a new tensor."""
    packet = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::").rstrip("_"))
    if func._overloadname in packet.overloads():
        return getattr(packet, func._overloadname)
    wanted = [str(argument.type) for argument in func._schema.arguments]
    for name in packet.overloads():  # `transpose_` has the variant `transpose.int`
        overload = getattr(packet, name)
        if [str(argument.type) for argument in overload._schema.arguments] == wanted:
            return overload
    raise NotImplementedError(f"{func} has no variant that returns a new tensor.")


def by_rule(op: Op, args: Sequence[Any], kwargs: dict[str, Any], rule: Function | None) -> Any:
    """Run an operation, by its rule if it has one."""
    func = out_of_place(op.func) if op.in_place and rule else op.func
    if rule is None:
        return func(*args, **kwargs)
    out = rule(func, *args, **kwargs)
    if isinstance(op.result, list) and isinstance(out, Tensor):  # a custom rule makes the first
        out = (out, *[None] * (len(op.result) - 1))
    return args[0].copy_(out) if op.in_place else out


def _requires_grad(values: Any) -> bool:
    """Return whether a gradient flows to any of the tensors."""
    return any(isinstance(v, Tensor) and v.requires_grad for v in tree_leaves(values))


def _with_replacement(replacement: ValueReplacement, tensor_of: TensorOf) -> TensorOf:
    """Return `tensor_of`, but with a value replaced."""

    def replaced(ref: Ref) -> Tensor:
        tensor = tensor_of(ref)
        return replacement.replaced(tensor) if ref.value == replacement.value else tensor

    return replaced


# -- where a rule is in force: one of `Rules.custom` precedes those built in -----------------------


def rule_for(plan: ReplayPlan, op: Op, along: bool = False) -> Function | None:
    """Return the function that takes an operation's place, or None if no rule is in force for it.

    A norm with running statistics is affine and needs no rule.

    Args:
        along: whether it gets one all the same, so that its statistics count as constants that
            are added.
    """
    custom = custom_rule(plan, op)
    if custom is not None:
        return partial(apply_custom_rule, custom)
    rule = built_in_rule(plan, op, along)
    return None if rule is None else rule.forward


def custom_rule(plan: ReplayPlan, op: Op) -> OperationRule | None:
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


def acting_rules(plan: ReplayPlan) -> set[OperationRule]:
    """Return the custom rules for operations that act on signals in a pass."""
    rules = (custom_rule(plan, op) for op in plan.passing if plan.rules.custom)
    return {rule for rule in rules if rule is not None}


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
    return affine(y, None, bias) if rule.operation == "layer_norm" else per_channel(y, None, bias)


def has_rule(plan: ReplayPlan, op: Op) -> bool:
    """Whether one of the rules that come with the package is in force for an operation."""
    return built_in_rule(plan, op) is not None


def built_in_rule(plan: ReplayPlan, op: Op, along: bool = False) -> BuiltInRule | None:
    """Return the rule of the package that is in force for an operation, if there is one.

    Args:
        along: as for `rule_for`.
    """
    rule = operation(op.name).rule
    if rule is None or not vanishes_at_zero(op) or op.number in plan.roles.softmax:
        return None
    if not any(plan.signal[ref.value] for ref in op.reads):
        return None
    without_rule = "batch_norm" in op.name and op.args[3] is not None
    if without_rule and "running" not in operation(op.name).does:
        without_rule = op.args[5] is False
    in_force = along if without_rule else bool(getattr(plan.rules, rule.asked_by))
    return rule if in_force else None


def vanishes_at_zero(op: Op) -> bool:
    """Whether f(0) = 0, which depends on the bounds of `hardtanh` and on an exponent."""
    if op.name == "pow":
        exponent = op.args[1]
        return type(op.args[0]) is Ref and isinstance(exponent, int | float) and exponent > 0
    if op.name != "hardtanh":
        return True
    low, high = (*op.args[1:], -1, 1)[:2] if len(op.args) < 3 else op.args[1:3]
    return bool(low <= 0 <= high)
