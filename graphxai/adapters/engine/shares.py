"""Shares of constants in a pass whose network is affine under its rules.

With attention, scales and ratios held at what was recorded, the output is `J x + c`. Each line of
the ledger is the output for no nodes and that line's constants alone: one more pass through the
list, without gradients. Passes that are not affine, or that write to views of tensors, have no such
short way: `None` says so, and `replay.share_along` differentiates instead.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .marks import halves, unheld
from .replay import ADDITIVE, Along, Plan, out_of_place
from .trace import VALUELESS, Op, Ref, is_real
from .vocabulary import MATRIX_PRODUCTS, PLUS_PRODUCT, RATIO, SAME

BY_ENTRY = RATIO | {"relu", "leaky_relu"}  # x times a factor
LINEAR = (SAME | MATRIX_PRODUCTS | {
    "add", "sub", "rsub", "mul", "div", "neg", "sum", "mean", "scatter_add", "index_add",
}) - {"masked_scatter", "_addmm_activation", "constant_pad_nd", "scatter", "sort"}  # fmt: skip
FLAG = {"native_layer_norm": "layernorm"} | dict.fromkeys(RATIO, "activation")


class _NotAffine(Exception):
    """The pass has an operation that is not affine, or not known to be."""


def affine_share(plan: Plan, along: Along) -> Tensor | None:
    """The output that the constants of one line make by themselves; None: not known this way."""
    try:
        with torch.no_grad():
            return _Constants(plan, along).output()
    except _NotAffine:
        return None


class _Constants:
    """What the constants of one line contribute to every value that a gradient passes through."""

    def __init__(self, plan: Plan, along: Along) -> None:
        self.plan, self.trace, self.along = plan, plan.trace, along
        self.found: dict[int, Tensor] = {}
        for slot, bit in self.trace.inputs.items():
            tensor = self.trace.tensors[slot].detach()
            if is_real(tensor):
                own = bit != 1 and along.lines.names.get(bit) == along.line
                value = self.trace.slot_of_value.index(slot)
                self.found[value] = tensor if own else torch.zeros_like(tensor)
        self.now = -1
        for op in plan.passing:
            self.now = op.number
            self._add(op)

    def output(self) -> Tensor:
        ref = self.trace.output
        if type(ref) is not Ref:
            raise _NotAffine
        return self._signal(ref)

    def _add(self, op: Op) -> None:
        plan = self.plan
        flag = FLAG.get(op.name)
        if halves(op, plan.signal, self.trace.live, plan.marks, plan.rules):
            raise _NotAffine
        if flag is not None and not getattr(plan.rules, flag):
            raise _NotAffine
        if op.name in BY_ENTRY:
            made: Any = self._signal(op.reads[0]) * self._factor(op)
        elif op.name == "native_layer_norm":
            made = self._layer_norm(op)
        elif op.name == "native_batch_norm" and op.args[5] is False:
            made = self._batch_norm(op)
        elif op.name in LINEAR:
            made = self._linear(op)
        else:
            raise _NotAffine
        for ref, tensor in zip(
            op.makes, made if isinstance(made, tuple | list) else [made], strict=False
        ):
            self.found[ref.value] = tensor

    # -- values --------------------------------------------------------------------------------

    def _signal(self, ref: Ref) -> Tensor:
        """The share of a signal that this line's constants make."""
        if ref.value in self.trace.joined or ref.value not in self.found:
            raise _NotAffine
        return self.found[ref.value]

    def _recorded(self, ref: Ref) -> Tensor:
        """A value as it was."""
        if ref.slot in self.trace.unstable and not self._stays(ref):
            return self._made_again(ref)
        return self.trace.tensors[ref.slot].detach()

    def _stays(self, ref: Ref) -> bool:
        """Whether a constant that was written to stays as it is from here on."""
        last = self.trace.last_write.get(self.trace.storage[ref.slot], -1)
        return last < self.now and not self.plan.signal[ref.value]

    def _made_again(self, ref: Ref) -> Tensor:
        """A constant that is written to later, as it was before."""
        maker = self.trace.made(ref.value)
        if maker is None or maker.in_place:
            raise _NotAffine
        shape_only = maker.name in VALUELESS
        if not shape_only and any(self.plan.signal[r.value] for r in maker.reads):
            raise _NotAffine

        def recorded(given: Any) -> Any:
            if isinstance(given, list | tuple) and type(given) is not Ref:
                return [recorded(part) for part in given]
            if type(given) is Ref and shape_only:
                return self.trace.tensors[given.slot].detach()
            return self._recorded(given) if type(given) is Ref else given

        args = [recorded(arg) for arg in maker.args]
        made = maker.func(*args, **{k: recorded(v) for k, v in maker.kwargs.items()})
        if not isinstance(made, Tensor):
            raise _NotAffine
        return made

    def _added(self, ref: Ref | None) -> Tensor | None:
        """A constant that is added: itself in its own line, otherwise zeros."""
        if ref is None:
            return None
        tensor = self._recorded(ref)
        own = is_real(tensor) and self.along.lines.of(ref.value) == self.along.line
        return tensor.masked_fill(tensor.isinf(), 0.0) if own else torch.zeros_like(tensor)

    # -- operations ----------------------------------------------------------------------------

    def _linear(self, op: Op) -> Any:
        signals = unheld(op, self.plan.signal, self.trace.live, self.plan.marks, self.plan.rules)
        places: tuple[int, ...] = ADDITIVE.get(op.name, ())
        if op.name in PLUS_PRODUCT and not any(ref.value in signals for ref in op.reads[1:]):
            raise _NotAffine  # a product of constants is added

        def stream(given: Any, added: bool) -> Any:
            if type(given) is Ref:
                if given.value in signals:
                    return self._signal(given)
                real = is_real(self.trace.tensors[given.slot])
                return self._added(given) if added and real else self._recorded(given)
            if isinstance(given, list | tuple):
                return type(given)(stream(part, added) for part in given)
            return given

        args = [stream(arg, k in places) for k, arg in enumerate(op.args)]
        if op.name in ("add", "sub", "rsub") and not isinstance(args[1], Tensor):
            args[1] = args[1] if self.along.line == self.along.lines.of_numbers() else 0
        if (
            op.name == "masked_fill"
            and isinstance(args[2], int | float)
            and args[2] not in (0, -torch.inf)
        ):
            raise _NotAffine
        func: Callable[..., Any] = out_of_place(op.func) if op.in_place else op.func
        return func(*args, **{k: stream(v, False) for k, v in op.kwargs.items()})

    def _factor(self, op: Op) -> Tensor:
        """`f(x) / x`, the slope near zero at zero."""
        if op.in_place or op.reads[0].slot in self.trace.unstable:
            raise _NotAffine
        x, y = self._recorded(op.reads[0]), self._recorded(op.makes[0])
        at_zero = op.func(x.new_full((1,), 1e-4), *op.args[1:], **op.kwargs) / 1e-4
        return torch.where(x == 0, at_zero, y / x)

    def _layer_norm(self, op: Op) -> Tensor:
        x, axes = self._signal(op.args[0]), tuple(range(-len(op.args[1]), 0))
        y = (x - x.mean(axes, keepdim=True)) * self._recorded(op.makes[2])
        return self._affine(y, op.args[2], op.args[3], None)

    def _batch_norm(self, op: Op) -> Tensor:
        x = self._signal(op.args[0])
        shape = (1, -1) + (1,) * (x.dim() - 2)
        mean, scale = self._added(op.args[3]), (self._recorded(op.args[4]) + op.args[7]).rsqrt()
        assert mean is not None
        y = (x - mean.view(shape)) * scale.view(shape)
        return self._affine(y, op.args[1], op.args[2], shape)

    def _affine(
        self, y: Tensor, weight: Ref | None, bias: Ref | None, shape: tuple[int, ...] | None
    ) -> Tensor:
        w = None if weight is None else self._recorded(weight)
        b = self._added(bias)
        if shape is not None:
            w, b = (None if t is None else t.view(shape) for t in (w, b))
        y = y if w is None else y * w
        return y if b is None else y + b
