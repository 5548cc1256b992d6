"""Shares of constants in a pass whose network is affine under its rules.

With attention, scales and ratios held at what they were, the output is `J x + c`. Each line of the
ledger is the output for no nodes and that line's constants alone, which is carried along while the
pass runs, without gradients. Networks that are not affine, or that write to views of tensors, have
no such short way: `replay.share_along` differentiates instead.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .replay import ADDITIVE, BIASES, Lines, Plan, Value, out_of_place, refs_in
from .trace import Op, Ref, filled, is_real
from .vocabulary import MATRIX_PRODUCTS, PLUS_PRODUCT, RATIO, SAME

BY_ENTRY = RATIO | {"relu", "leaky_relu"}  # x times a factor
LINEAR = (SAME | MATRIX_PRODUCTS | {
    "add", "sub", "rsub", "mul", "div", "neg", "sum", "mean", "scatter_add", "index_add",
}) - {"masked_scatter", "_addmm_activation", "constant_pad_nd", "scatter", "sort"}  # fmt: skip
FLAG = {"native_layer_norm": "layernorm"} | dict.fromkeys(RATIO, "activation")


@dataclass(frozen=True, eq=False)
class Affine:
    """A plan whose output is an affine function of the nodes, by operations known here.

    own: by the number of an operation and line, the constants that are added there. done: by
    number, the signals that no later operation reads.
    """

    plan: Plan
    lines: Lines
    names: tuple[str, ...]
    own: dict[tuple[int, str], list[Ref]]
    done: dict[int, list[int]]


def affine(plan: Plan, lines: Lines, names: Iterable[str]) -> Affine | None:
    """What is known of the plan, if it is affine; names: of all lines."""
    last = plan.trace.output
    if type(last) is not Ref or last.value in plan.trace.joined or plan.halved:
        return None
    if not all(_is_affine(plan, op) for op in plan.passing):
        return None
    own: dict[tuple[int, str], list[Ref]] = {}
    for op in plan.passing:
        for place in ADDITIVE.get(op.name, ()):
            for ref in refs_in(op.args[place : place + 1]):
                constant = ref.value not in plan.taken[op.number]
                if constant and is_real(plan.trace.tensors[ref.slot]):
                    own.setdefault((op.number, lines.of(ref.value)), []).append(ref)
        if op.name in ("add", "sub", "rsub") and type(op.args[1]) is not Ref and op.args[1]:
            own.setdefault((op.number, lines.of_numbers()), [])
    latest = {value: op.number for op in plan.passing for value in plan.taken[op.number]}
    done: dict[int, list[int]] = {}
    for value, number in latest.items():
        done.setdefault(number, []).append(value)
    return Affine(plan, lines, tuple(names), own, done)


def _is_affine(plan: Plan, op: Op) -> bool:
    taken, flag = plan.taken[op.number], FLAG.get(op.name)
    if not plan.trace.joined.keys().isdisjoint(taken):
        return False
    if op.name in PLUS_PRODUCT and not any(ref.value in taken for ref in op.reads[1:]):
        return False  # a product of constants is added
    if op.name == "masked_fill" and op.args[2] not in (0, -torch.inf):
        return False
    if op.name == "native_batch_norm":
        return op.args[5] is False
    if flag is not None and not getattr(plan.rules, flag):
        return False
    return op.name in LINEAR | BY_ENTRY | {"native_layer_norm"}


class Shares:
    """What the constants of each line contribute to every value that a gradient passes through.

    It hears of each operation as it runs (see `replay.Heard`). found: by line and value; a signal
    that is not in there has no share.
    """

    def __init__(self, known: Affine) -> None:
        self.known = known
        self.found: dict[str, dict[int, Tensor]] = {name: {} for name in known.names}

    def begin(self, slot: int, tensor: Tensor) -> None:
        """An input beside the nodes is its own share."""
        trace = self.known.plan.trace
        name = self.known.lines.names.get(trace.inputs[slot])
        if name in self.found and is_real(tensor):
            self.found[name][trace.slot_of_value.index(slot)] = tensor.detach()

    def of_output(self, outputs: Tensor) -> dict[str, Tensor]:
        """The share of each line in the outputs (B, C)."""
        last, zeros = self.known.plan.trace.output.value, torch.zeros_like(outputs)
        return {name: found.get(last, zeros) for name, found in self.found.items()}

    def hear(self, op: Op, value: Value, given: tuple[Any, Any], out: Any) -> None:
        """Carry the shares through one operation of the plan that relevance passes through."""
        taken = self.known.plan.taken[op.number]
        for name, found in self.found.items():
            own = self.known.own.get((op.number, name))
            if own and name != BIASES:
                own = [ref for ref in own if bool(value(ref).any())] or None
            if own is None and found.keys().isdisjoint(taken):
                continue
            step = _Step(op, taken, found, own, value)
            made = step.through(given, out)
            parts = made if isinstance(made, tuple | list) else [made]
            found.update({r.value: t for r, t in zip(op.makes, parts, strict=False)})
            for value_ in self.known.done.get(op.number, ()):
                found.pop(value_, None)


@dataclass(frozen=True, eq=False)
class _Step:
    """One operation and one line.

    taken: its signals; found: the share of values; own: the constants of this line that are added,
    None if there are none, not even numbers.
    """

    op: Op
    taken: frozenset[int]
    found: dict[int, Tensor]
    own: list[Ref] | None
    value: Value

    def through(self, given: tuple[Any, Any], out: Any) -> Any:
        """The share in the results."""
        op = self.op
        if op.name == "relu":
            x = self.value(op.reads[0])
            return torch.ops.aten.threshold_backward(self._signal(op.reads[0]), x, 0)
        if op.name in BY_ENTRY:
            return self._signal(op.reads[0]) * self._factor(given, out)
        if op.name == "native_layer_norm":
            x, axes = self._signal(op.args[0]), tuple(range(-len(op.args[1]), 0))
            y = (x - x.mean(axes, keepdim=True)) * out[2]
            y = y if op.args[2] is None else y * self.value(op.args[2])
            return y + self._added(op.args[3]) if op.args[3] in (self.own or ()) else y
        return self._linear(given)

    def _signal(self, ref: Ref) -> Tensor:
        """The share of a signal."""
        known = self.found.get(ref.value)
        return torch.zeros_like(self.value(ref)) if known is None else known

    def _added(self, ref: Ref) -> Tensor:
        """A constant that is added: itself in its own line, otherwise zeros."""
        tensor = self.value(ref)
        if ref not in (self.own or ()):
            return torch.zeros_like(tensor)
        return tensor.nan_to_num(torch.nan, 0.0, 0.0)  # masks of minus infinity add nothing

    def _linear(self, given: tuple[Any, Any]) -> Any:
        op, places = self.op, ADDITIVE.get(self.op.name, ())

        def put(ref: Ref) -> Tensor:
            return self._signal(ref) if ref.value in self.taken else self.value(ref)

        def add(ref: Ref) -> Tensor:
            real = ref.value not in self.taken and is_real(self.value(ref))
            return self._added(ref) if real else put(ref)

        args, kwargs = op.with_tensors(put, *given)
        for k in places:
            args[k : k + 1] = [filled(part, args[k], add) for part in op.args[k : k + 1]]
        if op.name in ("add", "sub", "rsub") and not isinstance(args[1], Tensor):
            args[1] = 0 if self.own is None else args[1]
        # to write to is safe what `add` has made
        made = 0 in places and op.in_place and op.args[0].value not in self.found
        func: Callable[..., Any] = op.func if made or not op.in_place else out_of_place(op.func)
        return func(*args, **kwargs)

    def _factor(self, given: tuple[Any, Any], y: Tensor | None) -> Tensor:
        """`f(x) / x`, the slope near zero at zero; y: what has become of x, if that is known."""
        x, (args, kwargs) = self.value(self.op.reads[0]), given
        func = out_of_place(self.op.func) if self.op.in_place else self.op.func
        y = func(x, *args[1:], **kwargs) if y is None else y
        at_zero = func(x.new_full((1,), 1e-4), *args[1:], **kwargs) / 1e-4
        return torch.where(x == 0, at_zero, y / x)
