"""Run a recorded pass again under autograd, with rules in place of some operations.

`CONSERVATIVE` says what an operation does in its place. Everything else runs as it was recorded.
Only what the output's gradient passes through runs again; the rest is taken from the recording.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphxai.rules import conservative as rules_of
from graphxai.rules.conservative import Rules

from .roles import Roles, Rule, factors_of, is_root
from .trace import WEIGHTS, Op, Ref, Trace, fill_refs, pair_refs, refs_in
from .vocabulary import KNOWN, NORMS, PLUS_PRODUCT, PRODUCTS, RATIO, SOFTMAX

aten = torch.ops.aten
Run = Callable[..., Any]
Value = Callable[[Ref], Tensor]
Apply = Callable[[Op, list[Any], dict[str, Any]], Any]


# -- the rules -------------------------------------------------------------------------------------


def layer_norm(
    func: Run, x: Tensor, shape: Sequence[int], weight: Any = None, bias: Any = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """LayerNorm over the last axes of x (..., *shape), with a constant scale."""
    axes = tuple(range(-len(shape), 0))
    mean, centred = _centred(x, axes)
    scale = _scale(centred, axes, eps)
    return _affine(centred * scale, weight, bias), mean, scale


def group_norm(
    func: Run, x: Tensor, weight: Any, bias: Any, n: int, c: int, hw: int, groups: int, eps: float
) -> tuple[Tensor, None, None]:
    """GroupNorm of x (B, C, ...), with constant scales."""
    y = _standardised(x.reshape(n, groups, -1), (-1,), eps).view_as(x)
    return _per_channel(y, weight, bias), None, None


def batch_norm(
    func: Run, x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any
) -> tuple[Tensor, None, None]:
    """BatchNorm of x (n, C, ...): with running statistics an affine map, else constant scales."""
    training, _, eps = rest
    if training or mean is None:  # also InstanceNorm
        y = _standardised(x, (0, *range(2, x.dim())), eps)
    else:
        shape = (1, -1) + (1,) * (x.dim() - 2)
        y = (x - mean.view(shape)) * (var + eps).rsqrt().view(shape)
    return _per_channel(y, weight, bias), None, None


def batch_norm_running(
    func: Run, x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[Tensor, None, None]:
    """BatchNorm by running statistics."""
    return batch_norm(func, x, weight, bias, mean, var, False, momentum, eps)


def rms_norm(
    func: Run, x: Tensor, shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> tuple[Tensor, None]:
    """RMSNorm over the last axes of x (..., *shape), with a constant scale."""
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return rules_of.rms_norm(x, weight, eps, tuple(range(-len(shape), 0))), None


def ratio(func: Run, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """An elementwise function with f(0) = 0 as x times the constant f(x) / x."""
    if func is aten.gelu.default and kwargs.get("approximate", "none") == "none":
        return rules_of.gelu(x)
    return rules_of.by_ratio(x, lambda z: func(z, *args, **kwargs))


def log_softmax(func: Run, x: Tensor, dim: int, half: bool = False) -> Tensor:
    """`x - logsumexp(x)` with a constant second term: relevance is that of the logits."""
    return x - x.detach().logsumexp(dim, keepdim=True)


# operation: the rule that asks for it, and what it does in its place
CONSERVATIVE: dict[str, tuple[str, Run]] = {
    "native_layer_norm": ("layernorm", layer_norm),
    "native_group_norm": ("layernorm", group_norm),
    "native_batch_norm": ("layernorm", batch_norm),
    "_native_batch_norm_legit_no_training": ("layernorm", batch_norm_running),
    "cudnn_batch_norm": ("layernorm", batch_norm),
    "_fused_rms_norm": ("layernorm", rms_norm),
    "_log_softmax": ("attention", log_softmax),
    **dict.fromkeys(RATIO, ("activation", ratio)),
}


def has_rule(plan: "ReplayPlan", op: Op, along: bool = False) -> bool:
    """Whether a rule stands in for an operation.

    A norm by running statistics is affine as it is. along: these count as constants that are added.
    """
    known = CONSERVATIVE.get(op.name)
    if known is None or not vanishes_at_zero(op):
        return False
    if not any(plan.signal[ref.value] for ref in op.reads):
        return False
    without_rule = "batch_norm" in op.name and op.args[3] is not None
    if without_rule and op.name != "_native_batch_norm_legit_no_training":
        without_rule = op.args[5] is False
    return along if without_rule else bool(getattr(plan.rules, known[0]))


def vanishes_at_zero(op: Op) -> bool:
    """Whether f(0) = 0, which does not hold for all bounds of `hardtanh`."""
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
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _per_channel(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x (B, C, ...) times weight (C,) plus bias (C,)."""
    shape = (1, -1) + (1,) * (x.dim() - 2)
    weight, bias = (None if t is None else t.view(shape) for t in (weight, bias))
    return _affine(x, weight, bias)


# -- running the list again ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ReplayPlan:
    """What runs again of a trace: the operations, and under which rules."""

    trace: Trace
    marks: Roles
    rules: Rules
    signal: bytearray  # by value: whether a gradient flows to it
    ops: tuple[Op, ...]
    passing: tuple[Op, ...]  # those among them that a gradient passes through
    taken: dict[int, frozenset[int]]  # by number: the signals that an operation does not hold
    shares: dict[int, dict[int, float]]  # by number: what a product gives each of its factors


def make_plan(trace: Trace, marks: Roles, rules: Rules, bits: int = -1) -> ReplayPlan:
    """The operations that the gradient of the output by these inputs passes through, in order."""
    needed = _Planner(trace, marks, rules, bits)
    ops, passing = (
        tuple(trace.ops[k] for k in sorted(found)) for found in (needed.ops, needed.passing)
    )
    shares = {op.number: found for op in ops if (found := needed.shares(op)) is not None}
    return ReplayPlan(trace, marks, rules, needed.signal, ops, passing, needed.taken, shares)


class _Planner:
    """Finds the signals forwards from the inputs, and the operations backwards from the output.

    passing: those that a gradient passes through. Tensors that are written to during the pass are
    not kept as they were at the time, so that all that touches them has to run, too.
    """

    def __init__(self, trace: Trace, marks: Roles, rules: Rules, bits: int) -> None:
        self.trace, self.marks, self.rules = trace, marks, rules
        self.signal = bytearray(len(trace.flow.maker))
        self.taken: dict[int, frozenset[int]] = {}
        self.ops: set[int] = set()
        self.passing: set[int] = set()
        self._touching: dict[int, list[int]] | None = None
        self._todo: list[tuple[int, bool]] = []
        # in the order of the operations, which a matrix that was written in later has a place in
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
        """Whether a gradient flows to a value, if one flows to those before it as is known."""
        if value in self.trace.flow.merged:
            return any(self.signal[part] for part in self.trace.flow.merged[value])
        op = self.trace.op_of(value)
        return op is None or bool(self._taken_by(op))

    def _taken_by(self, op: Op) -> frozenset[int]:
        """The signals that an operation reads and does not hold constant.

        Where the nodes meet another input in a product, that input is constant: it scales what the
        nodes pass on.
        """
        if (known := self.taken.get(op.number)) is not None:
            return known
        held = self.marks.held.get(op.number, {})
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
        """How much of its relevance a product gives each of its factors; None: all of it to each.

        Under the rule `products` all products of two signals give half, but for a norm's scale and
        attention that is divided after it has met the values, where shares are those of a softmax.
        Under AH those do that are neither attention nor a gate, such as the two branches of a
        SwiGLU or of Polynormer (uniform rule, Achtibat 2024, section 3.2).
        """
        factors = [value for value in factors_of(op) if value in self._taken_by(op)]
        if len(factors) < 2:
            return None
        if self.rules.products and op.number in self.marks.shares:
            return self.marks.shares[op.number]
        held = self.marks.held.get(op.number, {}).values()
        if self.rules.products:
            halves = "layernorm" not in held
        else:
            halves = self.rules.attention and not held
        halves = halves and op.number in self.marks.products
        return dict.fromkeys(factors, 1 / 2) if halves else None

    def _want(self, slot: int, value: int, passing: bool) -> None:
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
        known = self.passing if passing else self.ops
        if number not in known:
            self.ops.add(number)
            known.add(number)
            self._todo.append((number, passing))

    def _all_that_touch(self, slot: int) -> list[int]:
        """Operations that make or write to any view of the storage of a slot."""
        if self._touching is None:
            self._touching = {}
            for op in self.trace.ops:
                for storage in {self.trace.memory.storage[ref.slot] for ref in op.makes}:
                    self._touching.setdefault(storage, []).append(op.number)
        return self._touching.get(self.trace.memory.storage[slot], [])


class Nonlinearity(NamedTuple):
    """A step that keeps its gradient although `rule` was requested: what it is and where."""

    rule: Rule | None
    what: str
    place: str


def nonlinearities(plan: ReplayPlan) -> Iterator[Nonlinearity]:
    """What keeps its ordinary gradient in a plan, although a rule asks otherwise."""
    for op in plan.passing:
        taken = plan.taken[op.number]
        found = _curve(plan, op, taken) if taken and op.number not in plan.shares else None
        if found is not None and (found.rule is None or getattr(plan.rules, found.rule)):
            yield found


def _curve(plan: ReplayPlan, op: Op, taken: frozenset[int]) -> Nonlinearity | None:
    if op.name in SOFTMAX:
        return Nonlinearity("attention", "a softmax whose result enters no product", op.path)
    if op.number in plan.marks.softmax and not plan.rules.attention:
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
        held = plan.marks.held.get(op.number, {})
        off = (held[value] for value in factors if value in held)
        return Nonlinearity(next(off, "attention"), what, op.path)
    if op.name in ("std_mean", "var_mean") and not _passes_first(plan, op):
        return None
    if is_root(op):
        return Nonlinearity("layernorm", f"{op.name} that scales nothing", op.path)
    if "prod" in op.args:  # as a way to scatter
        return Nonlinearity("activation", "prod", op.path)
    has_ratio = op.name in RATIO and vanishes_at_zero(op)
    if has_ratio or op.name in KNOWN | NORMS | {"_log_softmax"}:
        return None
    return Nonlinearity("activation", op.name, op.path)


def _passes_first(plan: ReplayPlan, op: Op) -> bool:
    """Whether a gradient passes through the first of several results, and not only the mean."""
    passing = {one.number for one in plan.passing}.intersection(plan.trace.flow.uses[op.out])
    taken = any(op.out in plan.taken[number] for number in passing)
    return taken or op.out in {ref.value for ref in refs_in(plan.trace.output)}


def replay(
    plan: ReplayPlan,
    inputs: Mapping[int, Tensor],
    replacements: Mapping[int, "ValueReplacement"] | None = None,
    apply: Apply | None = None,
) -> "Replay":
    """The pass, computed again from `inputs` by slot, under the rules of the plan.

    reading: by number of an operation, which value to replace there, and by what. apply: runs an
    operation, in place of the conservative rules.
    """
    again = Replay(plan, plan.trace.memory.tensors, replacements, apply)
    for slot, tensor in inputs.items():
        again.begin(slot, tensor)
    for op in plan.ops:
        again.run(op, op.args, op.kwargs)
    return again


class ValueReplacement(NamedTuple):
    """A value that is read where it is used: `read` gets the tensor and returns another."""

    value: int
    read: Callable[[Tensor], Tensor]


class Replay:
    """A pass that runs again; `now` has the tensors by slot, None where those of the pass will do.

    tensors: those of the pass, by slot.
    """

    def __init__(
        self,
        plan: ReplayPlan,
        tensors: Sequence[Tensor | None],
        replacements: Mapping[int, ValueReplacement] | None = None,
        apply: Apply | None = None,
    ) -> None:
        self.plan, self.trace, self.tensors = plan, plan.trace, tensors
        self.replacements = replacements or {}
        self.follows = tensors is not plan.trace.memory.tensors  # runs beside the pass itself
        self.apply = apply  # not `_by_rule`: a circle would keep the tensors of the pass alive
        self.now: list[Tensor | None] = [None] * len(self.trace.memory.tensors)

    def begin(self, slot: int, tensor: Tensor) -> None:
        """Put an input into its slot."""
        self.now[slot] = tensor.clone() if slot in self.trace.memory.unstable else tensor

    def output(self) -> Any:
        """What the model returned, with the new values."""
        return fill_refs(self.trace.output, self.trace.output, self.value)

    def value(self, ref: Ref) -> Tensor:
        """The present value of a tensor: computed again, or as recorded."""
        tensor = self.now[ref.slot]
        if tensor is None:
            tensor = self.tensors[ref.slot]
            assert tensor is not None
            if self.follows:
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
        return self._put(op, drawn)

    def arguments(self, op: Op, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of an operation that runs again."""
        value: Value = self.value
        if op.number in self.plan.marks.held or op.name in PRODUCTS:
            value = self._holding(op)
        if (replacements := self.replacements.get(op.number)) is not None:
            value = _replaced(replacements, value)
        return op.with_tensors(value, args, kwargs)

    def applied(self, op: Op, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """The result of an operation under the rules, which is put into its slot."""
        if (shares := self.plan.shares.get(op.number)) is not None:
            first = int(op.name in PLUS_PRODUCT)
            for place in (first, first + 1):
                args[place] = rules_of.partly(args[place], shares[op.args[place].value])
        return self._put(op, (self.apply or self._by_rule)(op, args, kwargs))

    def _by_rule(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        # where the model runs by itself, it writes to its own tensor
        return by_rule(op, args, kwargs, has_rule(self.plan, op), apart=self.follows)

    def _holding(self, op: Op) -> Value:
        signals = self.plan.taken[op.number]

        def value(ref: Ref) -> Tensor:
            tensor = self.value(ref)
            held = self.trace.flow.live[ref.value] and ref.value not in signals
            return tensor.detach() if held else tensor

        return value

    def _put(self, op: Op, out: Any) -> Any:
        for ref, part in pair_refs(op.result, out):
            if part is not None:
                self.now[ref.slot] = part
        return out


def by_rule(
    op: Op, args: Sequence[Any], kwargs: dict[str, Any], ruled: bool, apart: bool = False
) -> Any:
    """The result of an operation, by its rule or as it is; apart: it writes to no argument."""
    func = out_of_place(op.func) if op.in_place and (ruled or apart) else op.func
    if not ruled:
        return func(*args, **kwargs)
    out = CONSERVATIVE[op.name][1](func, *args, **kwargs)
    return args[0].copy_(out) if op.in_place and not apart else out


def _replaced(replacements: ValueReplacement, value: Value) -> Value:
    return lambda ref: (
        replacements.read(value(ref)) if ref.value == replacements.value else value(ref)
    )


def out_of_place(func: Any) -> Any:
    """The variant of an in-place operation that returns a new tensor."""
    packet = getattr(aten, func._schema.name.removeprefix("aten::").rstrip("_"))
    if func._overloadname in packet.overloads():
        return getattr(packet, func._overloadname)
    wanted = [str(argument.type) for argument in func._schema.arguments]
    for name in packet.overloads():  # `transpose_` and `transpose.int`
        found = getattr(packet, name)
        if [str(argument.type) for argument in found._schema.arguments] == wanted:
            return found
    raise NotImplementedError(f"{func} has no variant that returns a new tensor.")
