"""Run a recorded pass again under autograd, with rules in place of some operations.

Only the operations that the gradient of the output passes through run again. Other values are taken
from the recording. An operation without a rule runs as it was recorded. A rule of `Rules.custom`
precedes those built in.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from graphxai.engine import operations as kinds
from graphxai.engine.autograd_graph import in_order
from graphxai.engine.fused import laid_out_like
from graphxai.engine.plan import ReplayPlan, Roles, ValueReplacement, make_plan
from graphxai.engine.recording import operation_kind
from graphxai.engine.rules import Function
from graphxai.engine.trace import (
    WEIGHTS,
    Op,
    Ref,
    Trace,
    fill_refs,
    not_followed,
    pair_refs,
    refs_in,
)
from graphxai.rules import conservative as rules_of
from graphxai.rules.conservative import Rules
from graphxai.rules.norms import affine, per_channel
from graphxai.rules.operation_rule import BoundOperation, OperationRule
from graphxai.runtime.notices import warn

LOST = 1e-4  # of the largest gradient: what differs by more is lost
ROUNDINGS = 16  # of the least precise type that a pass computes in
RunOp = Callable[[Op, list[Any], dict[str, Any]], Any]


class Replay:
    """A pass that runs again from `inputs` by slot, under the rules of the plan.

    Args:
        replacements: for the number of an operation, a value to replace where the operation
            reads it.
        run_op: runs an operation, in place of the conservative rules.

    Attributes:
        now: for each slot the tensor that was computed again, or None where that of the pass
            will do.
    """

    def __init__(
        self,
        plan: ReplayPlan,
        inputs: Mapping[int, Tensor],
        replacements: Mapping[int, ValueReplacement] | None = None,
        run_op: RunOp | None = None,
    ) -> None:
        self.plan, self.trace = plan, plan.trace
        self.replacements = replacements or {}
        self.run_op: RunOp = run_op or (
            lambda op, args, kwargs: by_rule(op, args, kwargs, rule_for(plan, op))
        )
        self.now: list[Tensor | None] = [None] * len(self.trace.memory.tensors)
        for slot, tensor in inputs.items():
            self.now[slot] = tensor.clone() if slot in self.trace.memory.unstable else tensor
        for op in plan.ops:
            self._run(op)

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

    def _run(self, op: Op) -> None:
        """Run an operation again under the rules, and put its result into its slot."""
        result = self.trace.random_results.get(op.number)
        if result is None:
            result = self._result(op)
            replacement = self.replacements.get(op.number)
            if replacement is not None and replacement.spared is not None:
                without = self.run_op(op, *self._arguments(op, replaced=False))
                result = torch.where(replacement.spared, without, result)
        elif op.in_place:
            result = self.value(op.reads[0]).copy_(result)
        for ref, part in pair_refs(op.result, result):
            if part is not None:
                recorded = self.trace.memory.tensors[ref.slot]
                # a result may share its memory; a part of another operation has no overload
                has_schema = isinstance(op.func, torch._ops.OpOverload)
                shared = op.in_place or (has_schema and operation_kind(op.func).views)
                self.now[ref.slot] = part if shared else laid_out_like(part, recorded)

    def _result(self, op: Op) -> Any:
        """Return what an operation results in under the rules."""
        args, kwargs = self._arguments(op)
        if (shares := self.plan.shares.get(op.number)) is not None:
            first = int(op.name in kinds.PLUS_PRODUCT)
            for place in (first, first + 1):
                args[place] = rules_of.scale_gradient(args[place], shares[op.args[place].value])
        return self.run_op(op, args, kwargs)

    def _arguments(self, op: Op, replaced: bool = True) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of an operation, detached where it holds them, `replaced` or not."""
        replacement = self.replacements.get(op.number) if replaced else None
        holds = op.number in self.plan.roles.held or op.name in kinds.PRODUCTS
        if replacement is None and not holds:
            return op.with_tensors(self.value)
        live, signals = self.trace.flow.live, self.plan.taken[op.number] if holds else ()

        def tensor_of(ref: Ref) -> Tensor:
            tensor = self.value(ref)
            held = holds and live[ref.value] and ref.value not in signals
            tensor = tensor.detach() if held else tensor
            is_replaced = replacement is not None and ref.value == replacement.value
            return replacement.replaced(tensor) if replacement and is_replaced else tensor

        return op.with_tensors(tensor_of)


def out_of_place(func: Any) -> Any:
    """Return the variant of an in-place operation that returns a new tensor."""
    packet = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::").rstrip("_"))
    # some variants have other names, as `transpose.int` of `transpose_`, and PyTorch chooses them
    return getattr(packet, func._overloadname, packet)


def by_rule(op: Op, args: Sequence[Any], kwargs: dict[str, Any], rule: Function | None) -> Any:
    """Run an operation, by its rule if it has one."""
    func = out_of_place(op.func) if op.in_place and rule else op.func
    if rule is None:
        return func(*args, **kwargs)
    out = rule(func, *args, **kwargs)
    if isinstance(op.result, list) and isinstance(out, Tensor):  # a custom rule makes the first
        out = (out, *[None] * (len(op.result) - 1))
    return args[0].copy_(out) if op.in_place else out


def rule_for(plan: ReplayPlan, op: Op) -> Function | None:
    """Return the function that takes an operation's place, or None if it has no rule."""
    if (custom := plan.custom.get(op.number)) is not None:
        return partial(apply_custom_rule, custom, kinds.OPERATIONS[op.name])
    rule = plan.built_in.get(op.number)
    return None if rule is None else rule.forward


def apply_custom_rule(
    rule: OperationRule, row: kinds.Operation, func: Function, x: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """Compute an operation by a custom rule, and add the bias of a norm after it."""
    settings, bias = list(args), None
    for place in row.adds if row.name in kinds.NORMS else ():
        if len(args) >= place:
            bias, settings[place - 1] = args[place - 1], None
    y = rule.compute(x, BoundOperation(func, tuple(settings), kwargs))
    if bias is None:
        return y
    return (per_channel if "by_group" in row.does else affine)(y, None, bias)


# -- the proof that nothing is lost ----------------------------------------------------------------


def own_gradient(call: Callable[[Tensor], Any], rows: Tensor) -> Tensor | None:
    """Return autograd's own gradient of a weighted sum of the outputs by the rows of nodes.

    Returns None if there is none.
    """
    leaf = rows.detach().requires_grad_()
    with suppress(RuntimeError), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        return _gradients([call(leaf)], {0: leaf})[0]
    return None


def refuse_lost_gradients(
    trace: Trace,
    own: Callable[[Tensor], Tensor | None],
    proved: set[object],
    first: Tensor | None = None,
) -> None:
    """Compare the gradient of a recorded pass that runs again with autograd's own.

    Without rules both have to be equal, unless a backward pass in Python, or a hook, passes back
    something else than the gradient of what the model computes, which is warned of. It is done for
    a pass with operations that no earlier one had, and takes two plain gradients.

    Args:
        own: returns `own_gradient` at some rows.
        proved: the operations of earlier passes, each with its module. Those of this pass are
            added.
        first: what `own` returned for the rows of the pass, if it was called.

    Raises:
        ValueError: they differ by more than rounding; the message names operation and module.
    """
    operations, slot = {(op.func, op.path) for op in trace.ops}, trace.slot_of(1)
    rows = trace.memory.tensors[slot]  # of the nodes
    if operations <= proved or trace.random_calls or trace.random_results or not rows.numel():
        return
    wanted = first if first is not None else own(rows)
    if wanted is None:
        proved |= operations
        return
    again = {trace.flow.slot_of_value.index(slot): rows.detach().requires_grad_()}
    (value,) = again
    with torch.enable_grad():

        def run(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            out = by_rule(op, args, kwargs, None)
            again.update((ref.value, part) for ref, part in pair_refs(op.result, out))
            return out

        plan = make_plan(trace, Roles(), Rules())
        replayed = Replay(plan, {slot: again[value]}, run_op=run)
        outputs = refs_in(trace.output)
        passed = _gradients([replayed.value(ref) for ref in outputs], again)
        types = {t.dtype for t in trace.memory.tensors if t.dtype.is_floating_point}
        allowed = max(LOST, *(ROUNDINGS * torch.finfo(dtype).eps for dtype in types))

        def differ(wanted: Tensor, passed: Tensor) -> bool:
            if not wanted.numel():
                return False
            gap = (wanted - passed).abs().nan_to_num().amax()
            return bool(gap > allowed * wanted.abs().nan_to_num().amax())

        same = not differ(wanted, passed[value])
        nearby = rows * (1 + ROUNDINGS * torch.finfo(rows.dtype).eps)
        if not same and (near := own(nearby)) is not None:
            noise = (near - wanted).abs().amax()  # deep networks without norms amplify rounding
            same = bool((wanted - passed[value]).abs().amax() <= ROUNDINGS * noise)
        results = [trace.tensor(ref.value) for ref in outputs]
        hooked = {"a hook"} if any(x._backward_hooks for x in trace.memory.tensors) else set[str]()
        changing = set[str]() if same else hooked | set(ways_back_in_python(results))
        if changing:
            warn(
                f"{' and '.join(sorted(changing))} passes back something else than the gradient of"
                " what the model computes; relevance follows what it computes.",
                stacklevel=10,
            )
        # values that left PyTorch, or this thread, may have come back: a warning says that it cuts
        flow, makers = trace.flow, enumerate(trace.flow.maker)
        outside = (v for v, maker in makers if maker < 0 and flow.depends[v] & 1)
        come_back = any(flow.slot_of_value[v] not in trace.inputs for v in outside)
        trace.gradient_changes = bool(changing) and not come_back
        if same or changing or come_back:
            proved |= operations
            return
        history = _gradients(results, {v: trace.tensor(v) for v in again})  # autograd's own
    lost = {v for v in again if v in passed and differ(history[v], passed[v])}

    for op in trace.ops:
        made = [ref.value for ref in op.makes if ref.value in again]
        read = [ref.value for ref in op.reads if ref.value in again]
        goes_on = any(again[v].requires_grad for v in made) or not any(plan.signal[v] for v in made)
        if any(again[v].requires_grad for v in read) and not goes_on:
            raise not_followed(f"{op.name}, which passes no gradient on,", op.path)
    ops = (op for op in reversed(trace.ops) if lost.intersection(ref.value for ref in op.reads))
    op = next((op for op in ops if lost.isdisjoint(ref.value for ref in op.makes)), trace.ops[-1])
    raise not_followed(f"{op.name}, whose gradient is not autograd's own,", op.path)


def ways_back_in_python(outputs: Sequence[Tensor]) -> tuple[str, ...]:
    """Name the backward passes in Python, also those of hooks on modules, in autograd's graph."""
    nodes = (node for x in outputs if x.grad_fn is not None for node in in_order(x.grad_fn, {}))
    in_python: Any = torch._C._FunctionBase
    return tuple(node.name() for node in nodes if isinstance(node, in_python))


def _gradients(outputs: list[Tensor], values: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Return the gradients of the sum of outputs, in which all weights differ, by value."""
    weighted = [(x * (1 + torch.arange(x.numel()).view_as(x) / x.numel())).sum() for x in outputs]
    weighted = [total for total in weighted if total.requires_grad]
    of = {v: tensor for v, tensor in values.items() if tensor.requires_grad and weighted}
    gradients = torch.autograd.grad(weighted, list(of.values()), allow_unused=True) if of else ()
    by_value = dict(zip(of, gradients, strict=True))
    return {
        v: torch.zeros(tensor.shape).to(tensor) if (g := by_value.get(v)) is None else g.to_dense()
        for v, tensor in values.items()
        if not tensor.is_nested
    }
