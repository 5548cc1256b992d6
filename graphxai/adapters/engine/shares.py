"""Shares of constants in a pass whose network is affine under its rules.

With attention, scales and ratios held at what they were, the output is `J x + c`. Each line of the
ledger is the output for no nodes and that line's constants alone, which is carried along while the
pass runs, without gradients. Networks that are not affine, or that write to views of tensors, have
no such short way: `replay.share_along` differentiates instead.
"""

from collections.abc import Callable, Iterable
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


def is_affine(plan: Plan) -> bool:
    """Whether the output is an affine function of the nodes, by operations known here."""
    last = plan.trace.output
    if type(last) is not Ref or last.value in plan.trace.joined or plan.halved:
        return False
    return all(_is_affine(plan, op) for op in plan.passing)


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

    It hears of each operation of an affine plan as it runs (see `replay.Heard`). found: by line and
    value; a signal that is not in there has no share.
    """

    def __init__(self, plan: Plan, lines: Lines, names: Iterable[str]) -> None:
        self.plan, self.lines = plan, lines
        self.found: dict[str, dict[int, Tensor]] = {name: {} for name in names}
        self._passing = {op.number for op in plan.passing}

    def begin(self, slot: int, tensor: Tensor) -> None:
        """An input beside the nodes is its own share."""
        name = self.lines.names.get(self.plan.trace.inputs[slot])
        if name in self.found and is_real(tensor):
            value = self.plan.trace.slot_of_value.index(slot)
            self.found[name][value] = tensor.detach()

    def of_output(self, outputs: Tensor) -> dict[str, Tensor]:
        """The share of each line in the outputs (B, C)."""
        last, zeros = self.plan.trace.output.value, torch.zeros_like(outputs)
        return {name: found.get(last, zeros) for name, found in self.found.items()}

    def hear(self, op: Op, value: Value, given: tuple[Any, Any], out: Any) -> None:
        """Carry the shares through one operation."""
        if op.number not in self._passing:
            return
        with torch.no_grad():
            for name, found in self.found.items():
                step = _Step(self, name, op, value)
                if step.signal or step.own:
                    made = step.through(given, out)
                    parts = made if isinstance(made, tuple | list) else [made]
                    found.update({r.value: t for r, t in zip(op.makes, parts, strict=False)})


class _Step:
    """One operation and one line: which of its constants and signals have a share there."""

    def __init__(self, shares: Shares, name: str, op: Op, value: Value) -> None:
        self.op, self.found, self.value = op, shares.found[name], value
        self.taken = shares.plan.taken[op.number]
        self.signal = any(v in self.found for v in self.taken)
        self.numbers = name == shares.lines.of_numbers()
        self.own: set[int] = set()
        for k in ADDITIVE.get(op.name, ()):
            for ref in refs_in(op.args[k : k + 1]):
                if ref.value not in self.taken and shares.lines.of(ref.value) == name:
                    tensor = value(ref)
                    if is_real(tensor) and (name == BIASES or bool(tensor.any())):
                        self.own.add(ref.value)
        if op.name in ("add", "sub", "rsub") and type(op.args[1]) is not Ref and op.args[1]:
            self.own |= {-1} if self.numbers else set()

    def through(self, given: tuple[Any, Any], out: Any) -> Any:
        """The share in the results."""
        op = self.op
        if op.name in BY_ENTRY:
            return self._signal(op.reads[0]) * self._factor(given, out)
        if op.name == "native_layer_norm":
            x, axes = self._signal(op.args[0]), tuple(range(-len(op.args[1]), 0))
            return self._affine((x - x.mean(axes, keepdim=True)) * out[2], *op.args[2:4], None)
        if op.name == "native_batch_norm":
            return self._batch_norm()
        return self._linear(given)

    def _signal(self, ref: Ref) -> Tensor:
        """The share of a signal."""
        known = self.found.get(ref.value)
        return torch.zeros_like(self.value(ref)) if known is None else known

    def _added(self, ref: Ref) -> Tensor:
        """A constant that is added: itself in its own line, otherwise zeros."""
        tensor = self.value(ref)
        if ref.value not in self.own:
            return torch.zeros_like(tensor)
        return tensor.nan_to_num(torch.nan, 0.0, 0.0)  # masks of minus infinity add nothing

    def _linear(self, given: tuple[Any, Any]) -> Any:
        op, places = self.op, ADDITIVE.get(self.op.name, ())

        def put(ref: Ref) -> Tensor:
            return self._signal(ref) if ref.value in self.taken else self.value(ref)

        def add(ref: Ref) -> Tensor:
            real = ref.value not in self.taken and is_real(self.value(ref))
            return self._added(ref) if real else put(ref)

        args = [
            filled(known, now, add if k in places else put)
            for k, (known, now) in enumerate(zip(op.args, given[0], strict=True))
        ]
        if op.name in ("add", "sub", "rsub") and not isinstance(args[1], Tensor):
            args[1] = args[1] if self.numbers else 0
        func: Callable[..., Any] = out_of_place(op.func) if op.in_place else op.func
        return func(*args, **filled(op.kwargs, given[1], put))

    def _factor(self, given: tuple[Any, Any], y: Tensor | None) -> Tensor:
        """`f(x) / x`, the slope near zero at zero; y: what has become of x, if that is known."""
        x, (args, kwargs) = self.value(self.op.reads[0]), given
        func = out_of_place(self.op.func) if self.op.in_place else self.op.func
        y = func(x, *args[1:], **kwargs) if y is None else y
        at_zero = func(x.new_full((1,), 1e-4), *args[1:], **kwargs) / 1e-4
        return torch.where(x == 0, at_zero, y / x)

    def _batch_norm(self) -> Tensor:
        _, weight, bias, mean, var, *_, eps = self.op.args
        x = self._signal(self.op.args[0])
        shape = (1, -1) + (1,) * (x.dim() - 2)
        y = (x - self._added(mean).view(shape)) * (self.value(var) + eps).rsqrt().view(shape)
        return self._affine(y, weight, bias, shape)

    def _affine(
        self, y: Tensor, weight: Ref | None, bias: Ref | None, shape: tuple[int, ...] | None
    ) -> Tensor:
        w = None if weight is None else self.value(weight)
        b = None if bias is None else self._added(bias)
        if shape is not None:
            w, b = (None if t is None else t.view(shape) for t in (w, b))
        y = y if w is None else y * w
        return y if b is None else y + b
