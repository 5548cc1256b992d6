"""The share of constants as the directional derivative of the output along them.

This works for every network, and takes a pass in forward mode for each line of the ledger.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from .ledger_lines import LedgerLines, places_added
from .operation_kind import out_of_place
from .replay import by_rule, replay
from .replay_plan import ReplayPlan
from .rule_table import custom_rule, rule_for
from .trace import Op, Ref, fill_refs, is_real, pair_refs
from .vocabulary import ABOVE_ZERO, ADDITIONS, FILLS, LINEAR_IN, PLUS_PRODUCT, SUMMED

_forward_mode = threading.Lock()  # all threads share one level of forward differentiation


def share_by_derivative(
    plan: ReplayPlan, inputs: Mapping[int, Tensor], line: str, lines: LedgerLines
) -> Tensor:
    """Return the directional derivative of the output along the constants of one line."""
    with torch.no_grad(), _forward_mode, forward_ad.dual_level():
        signals = {}
        for slot, bit in plan.trace.inputs.items():
            tensor = inputs.get(slot, plan.trace.memory.tensors[slot]).detach()
            if is_real(tensor):
                in_line = bit != 1 and lines.names.get(bit) == line
                tangent = tensor if in_line else torch.zeros_like(tensor)
                signals[slot] = forward_ad.make_dual(tensor, tangent)
        return _tangent(
            replay(plan, signals, run_op=_ConstantDerivative(plan, line, lines)).output()
        ).clone()


class _ConstantDerivative:
    """Runs operations with a tangent for each constant of one line: the constant itself."""

    def __init__(self, plan: ReplayPlan, line: str, lines: LedgerLines) -> None:
        self.plan, self.line, self.lines = plan, line, lines
        self.counts_numbers = lines.of_numbers() == line
        self.passing = {op.number for op in plan.passing}
        self.with_signal: set[int] = set()  # storages of constants to which signals are written

    def __call__(self, op: Op, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Run an operation."""
        if op.number in self.passing or self._writes_to_signal(op):
            if self._fills(op):
                return self._filled(op, args, kwargs)
            self._put_constants(op, args)
        if op.name in SUMMED:
            _fill_tangents(args, SUMMED[op.name], op.in_place)
        rule = rule_for(self.plan, op, along=True)
        if op.name in LINEAR_IN and not (rule or op.in_place or kwargs):
            return _linear(op, args)
        out = by_rule(op, args, kwargs, rule)
        of_constant = op.name in ABOVE_ZERO | {"_log_softmax"} and rule and self.counts_numbers
        if of_constant and custom_rule(self.plan, op) is None:  # a custom rule passes all on
            plain = args[0].detach()
            if op.name == "_log_softmax":
                constant = (out - args[0]).detach()  # log-probabilities are x and a constant
            else:
                constant = op.func(torch.zeros_like(plain), *args[1:], **kwargs)
            out = out + _along_itself(constant) - constant
        return out

    def _fills(self, op: Op) -> bool:
        """Whether an operation puts numbers among a signal's entries, or adds a number to it."""
        if not op.args or type(op.args[0]) is not Ref or not self.plan.signal[op.args[0].value]:
            return False
        if op.name in ADDITIONS:
            return type(op.args[1]) is not Ref
        return op.name in FILLS or (op.name == "scatter" and type(op.args[3]) is not Ref)

    def _filled(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
        """Run an operation that puts numbers, which are constants, among the signal's entries.

        It is affine, `y = J x + c`, and its slope J is known, so that the constant is `y - J x`.
        """
        x, tangent = forward_ad.unpack_dual(args[0])
        rest = x if tangent is None else x - tangent
        func = out_of_place(op.func) if op.in_place else op.func
        plain = [forward_ad.unpack_dual(a).primal if isinstance(a, Tensor) else a for a in args]
        out, slope = forward_ad.unpack_dual(
            func(forward_ad.make_dual(x, rest), *plain[1:], **kwargs)
        )
        share = out if slope is None else out - slope
        if not self.counts_numbers:
            share = torch.zeros_like(out) if slope is None else _tangent(func(*args, **kwargs))
        dual = forward_ad.make_dual(out, _of_finite(out, share))
        return args[0].copy_(dual) if op.in_place else dual

    def _put_constants(self, op: Op, args: list[Any]) -> None:
        """Give the constants among the arguments of an operation their tangents."""
        places = places_added(self.plan, op)
        if op.name in PLUS_PRODUCT and self._adds_a_product(op):
            places = (1,)  # the product is the constant
        for k in places:
            if k < len(args):
                target = args[k]
                duals = {
                    ref: self._constant(ref, tensor)
                    for ref, tensor in pair_refs(op.args[k], target)
                }
                args[k] = fill_refs(op.args[k], duals.__getitem__)
                if k == 0 and op.in_place and args[0] is not target:
                    args[0] = target
                    self._fill_with_constants(op.args[0], target)

    def _adds_a_product(self, op: Op) -> bool:
        """Whether a product of constants is added to a signal."""
        term, *factors = (self.plan.signal[arg.value] for arg in op.args[:3])
        return bool(term) and not any(factors)

    def _constant(self, ref: Ref, tensor: Tensor) -> Tensor:
        """Return what is added to a signal. A constant of the line is its own tangent."""
        if not is_real(tensor) or self.plan.signal[ref.value]:
            return tensor
        return _along_itself(tensor) if self.lines.of(ref.value) == self.line else tensor

    def _fill_with_constants(self, ref: Ref, target: Tensor) -> None:
        """Add tangents for every view of a storage when a signal is first written to it."""
        storage = self.plan.trace.memory.storage[ref.slot]
        if storage not in self.with_signal:
            self.with_signal.add(storage)
            whole = target if target._base is None else target._base
            whole.copy_(_along_itself(whole.clone()))

    def _writes_to_signal(self, op: Op) -> bool:
        """Whether an operation writes to a tensor that holds a signal already."""
        return op.in_place and self.plan.trace.memory.storage[op.args[0].slot] in self.with_signal


def _fill_tangents(args: list[Any], count: int, in_place: bool) -> None:
    """Give zeros as tangents to the first arguments, if any argument has a tangent.

    Without them PyTorch computes the shape of a sum in Python, which takes ten times as long.
    """
    with_tangent = _with_tangent(args)
    for k in range(count) if with_tangent else ():
        if k not in with_tangent and not (in_place and k == 0) and _is_real_tensor(args[k]):
            value = args[k].contiguous()  # an expanded tensor can have no tangent
            args[k] = forward_ad.make_dual(value, torch.zeros_like(value))


def _linear(op: Op, args: list[Any]) -> Tensor:
    """Run a product or quotient, in two calls if it is linear in its only argument with a tangent.

    That avoids the zeros that PyTorch would make for the other arguments.
    """
    with_tangent = _with_tangent(args)
    if len(with_tangent) != 1 or not with_tangent <= LINEAR_IN[op.name]:
        return op.func(*args)
    (k,) = with_tangent
    value, tangent = forward_ad.unpack_dual(args[k])
    return forward_ad.make_dual(
        *(op.func(*args[:k], part, *args[k + 1 :]) for part in (value, tangent))
    )


def _with_tangent(args: Sequence[Any]) -> set[int]:
    """Return the places of the arguments that have a tangent."""
    return {
        k
        for k, arg in enumerate(args)
        if _is_real_tensor(arg) and forward_ad.unpack_dual(arg).tangent is not None
    }


def _is_real_tensor(arg: Any) -> bool:
    return isinstance(arg, Tensor) and is_real(arg)


def _along_itself(value: Tensor) -> Tensor:
    """Make a constant its own tangent."""
    value = value.detach().contiguous()
    return forward_ad.make_dual(value, _of_finite(value, value))


def _of_finite(value: Tensor, tangent: Tensor) -> Tensor:
    """Set a tangent to zero where a mask is minus infinity."""
    return torch.where(value.isinf(), 0.0, tangent)


def _tangent(value: Tensor) -> Tensor:
    """Return the tangent of a tensor, or zeros if it has none."""
    tangent = forward_ad.unpack_dual(value).tangent
    return torch.zeros_like(value) if tangent is None else tangent
