"""Run a recorded pass again under autograd, with rules in place of some operations.

`CONSERVATIVE` has the rules, by operation. A rule in `Rules.custom` precedes it. An operation
without a rule runs as it was recorded.
Only the operations that the gradient of the output passes through run again. Other values are taken
from the recording.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphxai.rules import conservative as rules_of
from graphxai.rules.conservative import Rules
from graphxai.rules.operation_rule import BoundOperation, OperationRule

from .roles import Roles, Rule, factors_of, is_root
from .trace import WEIGHTS, Op, Ref, Trace, fill_refs, pair_refs, refs_in
from .vocabulary import KNOWN, NORMS, PLUS_PRODUCT, PRODUCTS, RATIO, SOFTMAX

aten = torch.ops.aten
Function = Callable[..., Any]
TensorOf = Callable[[Ref], Tensor]
RunOp = Callable[[Op, list[Any], dict[str, Any]], Any]


# -- the rules -------------------------------------------------------------------------------------


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


# -- running the list again ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ReplayPlan:
    """Which operations of a trace run again, and under which rules.

    Args:
        signal: for each value whether a gradient flows to it.
        ops: the operations that run again.
        passing: those of them that a gradient passes through.
        taken: for the number of each operation the signals that it does not hold constant.
        shares: for the number of a product how much of its relevance it gives each factor, if
            not all.
    """

    trace: Trace
    roles: Roles
    rules: Rules
    signal: bytearray
    ops: tuple[Op, ...]
    passing: tuple[Op, ...]
    taken: dict[int, frozenset[int]]
    shares: dict[int, dict[int, float]]


def make_plan(trace: Trace, roles: Roles, rules: Rules, bits: int = -1) -> ReplayPlan:
    """Plan which operations run again for the gradient of the output by some inputs.

    Args:
        bits: the bits of these inputs, by default of all.
    """
    planner = _Planner(trace, roles, rules, bits)
    ops, passing = (
        tuple(trace.ops[k] for k in sorted(numbers)) for numbers in (planner.ops, planner.passing)
    )
    shares = {op.number: share for op in ops if (share := planner.shares(op)) is not None}
    return ReplayPlan(trace, roles, rules, planner.signal, ops, passing, planner.taken, shares)


class _Planner:
    """Finds signals forwards from the inputs, and operations backwards from the output.

    A tensor that is written to during the pass is not kept as it was at each time. So every
    operation that touches it has to run again, even if no gradient passes through it.
    """

    def __init__(self, trace: Trace, roles: Roles, rules: Rules, bits: int) -> None:
        self.trace, self.roles, self.rules = trace, roles, rules
        self.signal = bytearray(len(trace.flow.maker))
        self.taken: dict[int, frozenset[int]] = {}
        self.ops: set[int] = set()
        self.passing: set[int] = set()
        self._touching: dict[int, list[int]] | None = None
        self._todo: list[tuple[int, bool]] = []
        # by the order of operations: an attention matrix that was written in has the last value
        for value in sorted(range(len(trace.flow.maker)), key=trace.flow.maker.__getitem__):
            self.signal[value] = bool(trace.flow.live[value] & bits) and self._is_signal(value)
        for ref in refs_in(trace.output):
            self._want(ref.slot, ref.value, True)
        while self._todo:
            number, passing = self._todo.pop()
            taken = self._taken_by(trace.ops[number])
            for ref in trace.ops[number].reads:
                self._want(ref.slot, ref.value, passing and ref.value in taken)

    def _is_signal(self, value: int) -> bool:
        """Whether a gradient flows to a value. Those before it must have been decided."""
        if value in self.trace.flow.merged:
            return any(self.signal[part] for part in self.trace.flow.merged[value])
        op = self.trace.op_of(value)
        return op is None or bool(self._taken_by(op))

    def _taken_by(self, op: Op) -> frozenset[int]:
        """Return the signals that an operation reads and does not hold constant.

        In a product of the nodes and another input, the other input is constant: it scales what
        the nodes pass on.
        """
        if (taken := self.taken.get(op.number)) is not None:
            return taken
        held = self.roles.held.get(op.number, {})
        read = {ref.value for ref in op.reads if self.signal[ref.value]}
        read -= {value for value, rule in held.items() if getattr(self.rules, rule)}
        if len(read) > 1 and op.name in PRODUCTS:
            factors = [value for value in factors_of(op) if value in read]
            of_nodes = [value for value in factors if self.trace.flow.live[value] & 1]
            if 0 < len(of_nodes) < len(factors):
                read -= {*factors} - {*of_nodes}
        self.taken[op.number] = frozenset(read)
        return self.taken[op.number]

    def shares(self, op: Op) -> dict[int, float] | None:
        """Return how much of its relevance a product gives each factor, or None if all to each.

        Under the rule `products`, every product of two signals gives each of them half (uniform
        rule, Achtibat 2024, section 3.2). There are two exceptions: the scale of a norm, and
        attention that is divided by its sums at the end, whose shares are those of a softmax.
        Under the rule `attention` a product gives halves if it is neither attention nor a gate,
        such as the two branches of a SwiGLU or of Polynormer.
        """
        factors = [value for value in factors_of(op) if value in self._taken_by(op)]
        if len(factors) < 2:
            return None
        if self.rules.products and op.number in self.roles.shares:
            return self.roles.shares[op.number]
        held = self.roles.held.get(op.number, {}).values()
        if self.rules.products:
            halves = "layernorm" not in held
        else:
            halves = self.rules.attention and not held
        halves = halves and op.number in self.roles.products
        return dict.fromkeys(factors, 1 / 2) if halves else None

    def _want(self, slot: int, value: int, passing: bool) -> None:
        """Add the operations that a value needs.

        Args:
            passing: whether a gradient passes through it.
        """
        passing = passing and bool(self.signal[value])
        if slot in self.trace.memory.unstable:
            for number in self._all_that_touch(slot):
                self._add(number, False)
        if passing:
            for part in self.trace.flow.merged.get(value, ()):
                self._want(slot, part, True)
            if (number := self.trace.flow.maker[value]) >= 0:
                self._add(number, True)

    def _add(self, number: int, passing: bool) -> None:
        planned = self.passing if passing else self.ops
        if number not in planned:
            self.ops.add(number)
            planned.add(number)
            self._todo.append((number, passing))

    def _all_that_touch(self, slot: int) -> list[int]:
        """Return the operations that make or write to any view of a slot's storage."""
        if self._touching is None:
            self._touching = {}
            for op in self.trace.ops:
                for storage in {self.trace.memory.storage[ref.slot] for ref in op.makes}:
                    self._touching.setdefault(storage, []).append(op.number)
        return self._touching.get(self.trace.memory.storage[slot], [])


class Nonlinearity(NamedTuple):
    """A step that keeps its gradient although a rule was requested.

    Args:
        what: the step in words.
        path: the module that runs it.
    """

    rule: Rule | None
    what: str
    path: str


def nonlinearities(plan: ReplayPlan) -> Iterator[Nonlinearity]:
    """Yield the steps that keep their ordinary gradient although a rule asks otherwise."""
    for op in plan.passing:
        taken = plan.taken[op.number]
        if not taken or op.number in plan.shares or custom_rule(plan, op) is not None:
            continue
        step = _nonlinearity(plan, op, taken)
        if step is not None and (step.rule is None or getattr(plan.rules, step.rule)):
            yield step


def _nonlinearity(plan: ReplayPlan, op: Op, taken: frozenset[int]) -> Nonlinearity | None:
    """Describe an operation that is not linear in the signals it takes, or return None."""
    if op.name in SOFTMAX:
        return Nonlinearity("attention", "a softmax whose result enters no product", op.path)
    if op.number in plan.roles.softmax and not plan.rules.attention:
        return None
    if op.name in PRODUCTS:
        factors = [value for value in factors_of(op) if value in taken]
        if op.name == "div" and factors and factors[0] != getattr(op.args[0], "value", None):
            what = "a quotient (div) with the input in the denominator"
            return Nonlinearity("activation", what, op.path)
        if len(factors) < 2:
            return None
        kind = "quotient" if op.name == "div" else "product"
        what = f"a {kind} ({op.name}) of two quantities that depend on the input"
        held = plan.roles.held.get(op.number, {})
        rules = (held[value] for value in factors if value in held)
        return Nonlinearity(next(rules, "attention"), what, op.path)
    if op.name in ("std_mean", "var_mean") and not _passes_first(plan, op):
        return None
    if is_root(op):
        return Nonlinearity("layernorm", f"{op.name} that scales nothing", op.path)
    if "prod" in op.args:  # a scatter that multiplies
        return Nonlinearity("activation", "prod", op.path)
    has_ratio = op.name in RATIO and vanishes_at_zero(op)
    if has_ratio or op.name in KNOWN | NORMS | {"_log_softmax"}:
        return None
    return Nonlinearity("activation", op.name, op.path)


def _passes_first(plan: ReplayPlan, op: Op) -> bool:
    """Whether a gradient passes through the first of several results, and not only the mean."""
    passing = {user.number for user in plan.passing}.intersection(plan.trace.flow.uses[op.out])
    taken = any(op.out in plan.taken[number] for number in passing)
    return taken or op.out in {ref.value for ref in refs_in(plan.trace.output)}


def replay(
    plan: ReplayPlan,
    inputs: Mapping[int, Tensor],
    replacements: Mapping[int, "ValueReplacement"] | None = None,
    run_op: RunOp | None = None,
) -> "Replay":
    """Run a pass again from `inputs` by slot, under the rules of the plan.

    Args:
        replacements: for the number of an operation, a value to replace where the operation
            reads it.
        run_op: runs an operation, in place of the conservative rules.
    """
    replay = Replay(plan, plan.trace.memory.tensors, replacements, run_op)
    for slot, tensor in inputs.items():
        replay.begin(slot, tensor)
    for op in plan.ops:
        replay.run(op, op.args, op.kwargs)
    return replay


class ValueReplacement(NamedTuple):
    """A value that is replaced where it is read, by what a function makes of its tensor."""

    value: int
    replaced: Callable[[Tensor], Tensor]


class Replay:
    """A pass that runs again.

    Args:
        tensors: for each slot the tensor of the pass.
        now: for each slot the tensor that was computed again, or None where that of the pass
            will do.
    """

    def __init__(
        self,
        plan: ReplayPlan,
        tensors: Sequence[Tensor | None],
        replacements: Mapping[int, ValueReplacement] | None = None,
        run_op: RunOp | None = None,
    ) -> None:
        self.plan, self.trace, self.tensors = plan, plan.trace, tensors
        self.replacements = replacements or {}
        self.beside_model = tensors is not plan.trace.memory.tensors  # the model runs, too
        self.run_op = run_op  # not `_by_rule`: a circle would keep the tensors of the pass alive
        self.now: list[Tensor | None] = [None] * len(self.trace.memory.tensors)

    def begin(self, slot: int, tensor: Tensor) -> None:
        """Put an input into its slot."""
        self.now[slot] = tensor.clone() if slot in self.trace.memory.unstable else tensor

    def output(self) -> Any:
        """Return what the model returned, with the new values."""
        return fill_refs(self.trace.output, self.trace.output, self.value)

    def value(self, ref: Ref) -> Tensor:
        """Return the present value of a tensor, computed again or recorded."""
        tensor = self.now[ref.slot]
        if tensor is None:
            tensor = self.tensors[ref.slot]
            assert tensor is not None
            if self.beside_model:
                signal = self.plan.signal[ref.value] or not tensor.requires_grad
                tensor = tensor if signal else tensor.detach()
            elif ref.slot in self.trace.memory.unstable and ref.slot in self.trace.memory.initial:
                tensor = self.now[ref.slot] = self.trace.memory.initial[ref.slot].clone()
            elif tensor.requires_grad and self.trace.flow.depends[ref.value] & ~WEIGHTS:
                tensor = tensor.detach()
        return tensor

    def run(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation again, with the numbers among these arguments."""
        drawn = self.trace.random_results.get(op.number)
        if drawn is None:
            return self.applied(op, *self.arguments(op, args, kwargs))
        if op.in_place:
            drawn = self.value(op.reads[0]).copy_(drawn)
        return self._store(op, drawn)

    def arguments(self, op: Op, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of an operation that runs again."""
        tensor_of: TensorOf = self.value
        if op.number in self.plan.roles.held or op.name in PRODUCTS:
            tensor_of = self._holding(op)
        if (replacement := self.replacements.get(op.number)) is not None:
            tensor_of = _with_replacement(replacement, tensor_of)
        return op.with_tensors(tensor_of, args, kwargs)

    def applied(self, op: Op, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Run an operation under the rules, and put its result into its slot."""
        if (shares := self.plan.shares.get(op.number)) is not None:
            first = int(op.name in PLUS_PRODUCT)
            for place in (first, first + 1):
                args[place] = rules_of.scale_gradient(args[place], shares[op.args[place].value])
        return self._store(op, (self.run_op or self._by_rule)(op, args, kwargs))

    def _by_rule(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        # a model that runs beside writes to its own tensor
        return by_rule(op, args, kwargs, rule_for(self.plan, op), apart=self.beside_model)

    def _holding(self, op: Op) -> TensorOf:
        """Return a function like `value` that detaches what an operation holds constant."""
        signals = self.plan.taken[op.number]

        def tensor_of(ref: Ref) -> Tensor:
            tensor = self.value(ref)
            held = self.trace.flow.live[ref.value] and ref.value not in signals
            return tensor.detach() if held else tensor

        return tensor_of

    def _store(self, op: Op, out: Any) -> Any:
        for ref, part in pair_refs(op.result, out):
            if part is not None:
                self.now[ref.slot] = part
        return out


def by_rule(
    op: Op, args: Sequence[Any], kwargs: dict[str, Any], rule: Function | None, apart: bool = False
) -> Any:
    """Run an operation, by its rule if it has one.

    Args:
        apart: whether it may write to no argument.
    """
    func = out_of_place(op.func) if op.in_place and (rule or apart) else op.func
    if rule is None:
        return func(*args, **kwargs)
    out = rule(func, *args, **kwargs)
    if isinstance(op.result, list) and isinstance(out, Tensor):  # a custom rule makes the first
        out = (out, *[None] * (len(op.result) - 1))
    return args[0].copy_(out) if op.in_place and not apart else out


def _with_replacement(replacement: ValueReplacement, tensor_of: TensorOf) -> TensorOf:
    """Return `tensor_of`, but with a value replaced."""

    def replaced(ref: Ref) -> Tensor:
        tensor = tensor_of(ref)
        return replacement.replaced(tensor) if ref.value == replacement.value else tensor

    return replaced


def out_of_place(func: Any) -> Any:
    """Return the variant of an in-place operation that returns a new tensor."""
    packet = getattr(aten, func._schema.name.removeprefix("aten::").rstrip("_"))
    if func._overloadname in packet.overloads():
        return getattr(packet, func._overloadname)
    wanted = [str(argument.type) for argument in func._schema.arguments]
    for name in packet.overloads():  # `transpose_` has the variant `transpose.int`
        overload = getattr(packet, name)
        if [str(argument.type) for argument in overload._schema.arguments] == wanted:
            return overload
    raise NotImplementedError(f"{func} has no variant that returns a new tensor.")
