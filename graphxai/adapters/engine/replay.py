"""Run a recorded pass again under autograd, with rules in place of some operations.

`CONSERVATIVE` says what an operation does in its place. Everything else runs as it was recorded.
Only what the output's gradient passes through runs again; the rest is taken from the recording.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from graphxai.rules import conservative as rules_of
from graphxai.rules.conservative import Rules

from .marks import Marks, halves, signals, unheld, vanishes_at_zero
from .trace import WEIGHTS, Op, Ref, Trace, filled, is_real
from .vocabulary import ADDITIVE, FILLS, PLUS_PRODUCT, PRODUCTS, RATIO

aten = torch.ops.aten
_forward_mode = threading.Lock()  # PyTorch has one level of forward differentiation for all threads
Run = Callable[..., Any]
Value = Callable[[Ref], Tensor]


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


def ruled(plan: "Plan", op: Op, along: bool = False) -> bool:
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
class Plan:
    """What runs again of a trace: the operations, and under which rules."""

    trace: Trace
    marks: Marks
    rules: Rules
    signal: bytearray  # by value: whether a gradient flows to it
    ops: tuple[Op, ...]
    passing: tuple[Op, ...]  # those among them that a gradient passes through
    taken: dict[int, frozenset[int]]  # by number: the signals that an operation does not hold
    halved: frozenset[int]  # numbers of products that halve relevance


def plan(trace: Trace, marks: Marks, rules: Rules, bits: int = -1) -> Plan:
    """The operations that the gradient of the output by these inputs passes through, in order."""
    signal = signals(trace, marks, rules, bits)
    needed = _Needed(trace, marks, rules, signal)
    ops, passing = (
        tuple(trace.ops[k] for k in sorted(found)) for found in (needed.ops, needed.passing)
    )
    halved = {op.number for op in ops if halves(op, signal, trace.live, marks, rules)}
    return Plan(trace, marks, rules, signal, ops, passing, needed.taken, frozenset(halved))


class _Needed:
    """Collects operations backwards from the output.

    passing: those that a gradient passes through. Tensors that are written to during the pass are
    not kept as they were at the time, so that all that touches them has to run, too.
    """

    def __init__(self, trace: Trace, marks: Marks, rules: Rules, signal: bytearray) -> None:
        self.trace, self.marks, self.rules, self.signal = trace, marks, rules, signal
        self.ops: set[int] = set()
        self.passing: set[int] = set()
        self.taken: dict[int, frozenset[int]] = {}
        self._touching: dict[int, list[int]] | None = None
        self._todo: list[tuple[int, bool]] = []
        for ref in refs_in(trace.output):
            self._want(ref.slot, ref.value, True)
        while self._todo:
            number, passing = self._todo.pop()
            self._take(trace.ops[number], passing)

    def _want(self, slot: int, value: int, passing: bool) -> None:
        passing = passing and bool(self.signal[value])
        if slot in self.trace.unstable:
            for number in self._all_that_touch(slot):
                self._add(number, False)
        if passing:
            for part in self.trace.joined.get(value, ()):
                self._want(slot, part, True)
            if (number := self.trace.maker[value]) >= 0:
                self._add(number, True)

    def _add(self, number: int, passing: bool) -> None:
        known = self.passing if passing else self.ops
        if number not in known:
            self.ops.add(number)
            known.add(number)
            self._todo.append((number, passing))

    def _take(self, op: Op, passing: bool) -> None:
        if (signals := self.taken.get(op.number)) is None:
            found = unheld(op, self.signal, self.trace.live, self.marks, self.rules)
            signals = self.taken[op.number] = frozenset(found)
        for ref in op.reads:
            self._want(ref.slot, ref.value, passing and ref.value in signals)

    def _all_that_touch(self, slot: int) -> list[int]:
        """Operations that make or write to any view of the storage of a slot."""
        if self._touching is None:
            self._touching = {}
            for op in self.trace.ops:
                for storage in {self.trace.storage[ref.slot] for ref in op.makes}:
                    self._touching.setdefault(storage, []).append(op.number)
        return self._touching.get(self.trace.storage[slot], [])


def replay(
    plan: Plan,
    inputs: Mapping[int, Tensor],
    along: "Along | None" = None,
    reading: Mapping[int, "Reading"] | None = None,
    apply: Run | None = None,
) -> "Replayed":
    """The pass, computed again from `inputs` by slot, under the rules of the plan.

    along: which constants get themselves as tangents (forward mode). reading: by number
    of an operation, which value to replace there, and by what. apply: runs an operation with these
    arguments, in place of the conservative rules.
    """
    again = Replayed(plan, plan.trace.tensors, along, reading, apply)
    for slot, tensor in inputs.items():
        again.begin(slot, tensor)
    for op in plan.ops:
        again.run(op, op.args, op.kwargs)
    return again


class Reading(NamedTuple):
    """A value that is read where it is used: `read` gets the tensor and returns another."""

    value: int
    read: Callable[[Tensor], Tensor]


class Replayed:
    """A pass that runs again; `now` has the tensors by slot, None where those of the pass will do.

    tensors: those of the pass, by slot.
    """

    def __init__(
        self,
        plan: Plan,
        tensors: Sequence[Tensor | None],
        along: "Along | None" = None,
        reading: Mapping[int, Reading] | None = None,
        apply: Run | None = None,
    ) -> None:
        self.apply = apply
        self.trace, self.marks, self.rules = plan.trace, plan.marks, plan.rules
        self.reading = reading or {}
        self.plan, self.signal, self.tensors = plan, plan.signal, tensors
        self.follows = tensors is not plan.trace.tensors  # runs beside the pass itself
        self.passing = {op.number for op in plan.passing}
        self.with_signal: set[int] = set()  # storages that were filled with constants first
        self.along = along
        self.now: list[Tensor | None] = [None] * len(self.trace.tensors)

    def begin(self, slot: int, tensor: Tensor) -> None:
        """Put an input into its slot."""
        self.now[slot] = tensor.clone() if slot in self.trace.unstable else tensor

    def output(self) -> Any:
        """What the model returned, with the new values."""
        return filled(self.trace.output, self.trace.output, self.value)

    def value(self, ref: Ref) -> Tensor:
        """The present value of a tensor: computed again, or as recorded."""
        tensor = self.now[ref.slot]
        if tensor is None:
            tensor = self.tensors[ref.slot]
            assert tensor is not None
            if self.follows:
                signal = self.signal[ref.value] or not tensor.requires_grad
                tensor = tensor if signal else tensor.detach()
            elif ref.slot in self.trace.unstable and ref.slot in self.trace.before:
                tensor = self.now[ref.slot] = self.trace.before[ref.slot].clone()
            elif tensor.requires_grad and self.trace.depends[ref.value] & ~WEIGHTS:
                tensor = tensor.detach()
        return tensor

    def run(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation again, with the numbers among these arguments."""
        trace = self.trace
        if op.number in trace.drawn:
            drawn = trace.drawn[op.number]
            if op.in_place:
                drawn = self.value(op.reads[0]).copy_(drawn)
            self._put(op.result, drawn)
            return drawn
        return self.applied(op, *self.arguments(op, args, kwargs))

    def arguments(self, op: Op, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of an operation that runs again."""
        value: Value = self.value
        if op.number in self.marks.held or op.name in PRODUCTS:
            value = self._holding(op)
        if (reading := self.reading.get(op.number)) is not None:
            value = _reading(reading, value)
        return op.with_tensors(value, args, kwargs)

    def applied(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result of an operation under the rules, which is put into its slot."""
        if op.number in self.plan.halved:
            args = self._halved(op, args)
        if self.along is not None and (op.number in self.passing or self._writes_to_signal(op)):
            if self._fills(op):
                out = self._filled(op, args, kwargs)
                self._put(op.result, out)
                return out
            args = self._with_constants(op, args)
        out = (self.apply or self._by_rule)(op, args, kwargs)
        self._put(op.result, out)
        return out

    def _by_rule(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        apart = self.follows and op.in_place  # the model writes to its own tensor
        if not ruled(self.plan, op, self.along is not None):
            func = out_of_place(op.func) if apart else op.func
            return func(*args, **kwargs)
        func = out_of_place(op.func) if op.in_place else op.func
        out = CONSERVATIVE[op.name][1](func, *args, **kwargs)
        if op.name == "_log_softmax" and self.along is not None:
            return self._normalised(args[0], out)
        return args[0].copy_(out) if op.in_place and not apart else out

    def _normalised(self, x: Tensor, out: Tensor) -> Tensor:
        """Log-probabilities `x - c`, the constant c with a tangent if that is asked for."""
        assert self.along is not None
        if self.along.line != self.along.lines.of_numbers():
            return out
        return out + _along_itself(out - x) - (out - x).detach()

    def _holding(self, op: Op) -> Value:
        signals = self.plan.taken[op.number]

        def value(ref: Ref) -> Tensor:
            tensor = self.value(ref)
            held = self.trace.live[ref.value] and ref.value not in signals
            return tensor.detach() if held else tensor

        return value

    def _halved(self, op: Op, args: Sequence[Any]) -> tuple[Any, ...]:
        first = int(op.name in PLUS_PRODUCT)
        factors = (first, first + 1)
        return tuple(
            rules_of.halved(arg) if k in factors and isinstance(arg, Tensor) else arg
            for k, arg in enumerate(args)
        )

    def _fills(self, op: Op) -> bool:
        """Whether an operation puts numbers among the entries of a signal, or adds one to it."""
        if not op.args or type(op.args[0]) is not Ref or not self.signal[op.args[0].value]:
            return False
        if op.name in ("add", "sub", "rsub"):
            return type(op.args[1]) is not Ref
        return op.name in FILLS or (op.name == "scatter" and type(op.args[3]) is not Ref)

    def _filled(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
        """An operation that puts numbers among the signal's entries, which are constants too.

        It is affine: `y = J x + c` with a known slope, so that the constant is `y - J x`.
        """
        x, known = forward_ad.unpack_dual(args[0])
        rest = x if known is None else x - known
        func = out_of_place(op.func) if op.in_place else op.func
        plain = [forward_ad.unpack_dual(a).primal if isinstance(a, Tensor) else a for a in args]
        out, slope = forward_ad.unpack_dual(
            func(forward_ad.make_dual(x, rest), *plain[1:], **kwargs)
        )
        share = out if slope is None else out - slope
        assert self.along is not None
        if self.along.line != self.along.lines.of_numbers():
            share = torch.zeros_like(out) if slope is None else _tangent(op, args, kwargs, func)
        found = forward_ad.make_dual(out, share)
        return args[0].copy_(found) if op.in_place else found

    def _with_constants(self, op: Op, args: Sequence[Any]) -> tuple[Any, ...]:
        places = added(op, self.marks)
        if op.name in PLUS_PRODUCT and len(args) > 2 and self._adds_a_product(op):
            places = (1,)  # its constant is the product
        found = list(args)
        for k in places:
            if k >= len(args):
                break
            found[k] = self._constants(op.args[k], args[k])
            if k == 0 and op.in_place and found[0] is not args[0]:
                found[0] = args[0]
                self._fill_with_constants(op.args[0], args[0])
        return tuple(found)

    def _adds_a_product(self, op: Op) -> bool:
        """Whether a product of constants is added to a signal."""
        term, *factors = (self.signal[arg.value] for arg in op.args[:3])
        return bool(term) and not any(factors)

    def _fill_with_constants(self, ref: Ref, target: Tensor) -> None:
        """`constant` of all that is in a storage to which a signal is written first now."""
        storage = self.trace.storage[ref.slot]
        if storage not in self.with_signal:
            self.with_signal.add(storage)
            assert self.along is not None
            whole = target if target._base is None else target._base
            whole.copy_(self.along.constant(whole.clone(), ref.value))

    def _writes_to_signal(self, op: Op) -> bool:
        """Whether an operation writes constants to a tensor that holds a signal already."""
        return op.in_place and self.trace.storage[op.args[0].slot] in self.with_signal

    def _constants(self, given: Any, value: Any) -> Any:
        """`constant` of every float tensor among the arguments that is no signal."""
        assert self.along is not None
        if isinstance(value, tuple | list):
            pairs = zip(given, value, strict=True)
            return type(value)(self._constants(g, v) for g, v in pairs)
        if not isinstance(value, Tensor) or not is_real(value) or self.signal[given.value]:
            return value
        return self.along.constant(value, given.value)

    def _put(self, result: Any, out: Any) -> None:
        if type(result) is Ref:
            self.now[result.slot] = out
        elif isinstance(result, list):
            # a pass that is followed may split into more parts than the recorded one did
            for ref, part in zip(result, out, strict=False):
                if part is not None:
                    self._put(ref, part)


def _reading(reading: Reading, value: Value) -> Value:
    return lambda ref: reading.read(value(ref)) if ref.value == reading.value else value(ref)


def refs_in(given: Any) -> list[Ref]:
    """All references in nested arguments."""
    if type(given) is Ref:
        return [given]
    if isinstance(given, dict):
        given = tuple(given.values())
    if isinstance(given, tuple | list):
        return [ref for part in given for ref in refs_in(part)]
    return []


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


BIASES, CONSTANTS, CUT_OFF = "biases", "constants", "cut off"
STRUCTURE = {"edge_index", "batch", "ptr"}  # which choose among parameters


@dataclass(frozen=True, eq=False)
class Lines:
    """To which line of the ledger each constant belongs; names: of the inputs by bit."""

    trace: Trace
    names: Mapping[int, str]
    _known: dict[int, str] = field(default_factory=dict)

    def of(self, value: int) -> str:
        """The line of a value that is added to a signal."""
        if value not in self._known:
            self._known[value] = self._of(value)
        return self._known[value]

    def _of(self, value: int) -> str:
        depends, live = self.trace.depends[value], self.trace.live[value]
        if depends & 1:
            return BIASES if live & 1 else CUT_OFF
        found = [name for bit, name in self.names.items() if depends & bit]
        named = [name for name in found if name not in STRUCTURE]
        if named or depends & WEIGHTS:
            return " and ".join(named) or BIASES
        return " and ".join(found) or CONSTANTS

    def of_numbers(self) -> str:
        """The line of numbers in the model's code."""
        return CONSTANTS if self.trace.left is None else CUT_OFF


@dataclass(frozen=True, eq=False)
class Along:
    """Constants of one line get themselves as tangents."""

    line: str
    lines: Lines

    def constant(self, tensor: Tensor, value: int) -> Tensor:
        """A constant that is added to a signal."""
        return _along_itself(tensor) if self.lines.of(value) == self.line else tensor


def added(op: Op, marks: Marks) -> tuple[int, ...]:
    """The places of arguments that are added; what shifts a softmax's argument cancels."""
    return () if op.number in marks.shifts else ADDITIVE.get(op.name, ())


def lines_in(plan: Plan, lines: Lines) -> dict[str, set[str]]:
    """The lines that a pass has constants of, each with the modules where they are added."""
    found: dict[str, set[str]] = {}
    trace = plan.trace
    for op in plan.ops:
        for place in added(op, plan.marks):
            for ref in refs_in(op.args[place : place + 1]):
                if not plan.signal[ref.value] and is_real(trace.tensors[ref.slot]):
                    found.setdefault(lines.of(ref.value), set()).add(op.place)
        if op.name in FILLS | {"add", "sub", "rsub", "scatter"} and any(
            isinstance(arg, int | float) and not isinstance(arg, bool) and arg
            for arg in op.args[1:]
        ):
            found.setdefault(lines.of_numbers(), set()).add(op.place)
        if op.name == "_log_softmax" and plan.rules.attention:
            found.setdefault(lines.of_numbers(), set()).add(op.place)
    return found


def share_along(plan: Plan, inputs: Mapping[int, Tensor], along: Along) -> Any:
    """The directional derivative of the output along the constants of one line."""
    bits = plan.trace.inputs
    with torch.no_grad(), _forward_mode, forward_ad.dual_level():
        signals = {}
        for slot, bit in bits.items():
            tensor = inputs.get(slot, plan.trace.tensors[slot]).detach()
            if not is_real(tensor):
                continue
            own = bit != 1 and along.lines.names.get(bit) == along.line
            signals[slot] = forward_ad.make_dual(
                tensor, tensor if own else torch.zeros_like(tensor)
            )
        return tangents(replay(plan, signals, along).output())


def _along_itself(value: Tensor) -> Tensor:
    """A constant with itself as tangent; masks of minus infinity have none."""
    value = value.detach().contiguous()
    return forward_ad.make_dual(value, torch.where(value.isinf(), 0.0, value))


def _tangent(op: Op, args: Sequence[Any], kwargs: dict[str, Any], func: Run) -> Tensor:
    """The tangent of an operation's result, its numbers having none."""
    out, found = forward_ad.unpack_dual(func(*args, **kwargs))
    return torch.zeros_like(out) if found is None else found


def tangents(value: Any) -> Any:
    """Tangents of nested tensors, zero where there is none."""
    if isinstance(value, Tensor):
        found = forward_ad.unpack_dual(value).tangent
        return torch.zeros_like(value) if found is None else found.clone()
    if isinstance(value, tuple | list):
        return type(value)(tangents(part) for part in value)
    return value
