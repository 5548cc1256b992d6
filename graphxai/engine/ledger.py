"""The shares of constants that passes add to signals, and warnings of what a pass does.

A constant belongs to a line of the ledger. Its share is the directional derivative of the output
along it. This works for every network, and takes a pass in forward mode for each line.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from graphxai.engine import operations as kinds
from graphxai.engine.flow_queries import factors_of, is_root
from graphxai.engine.plan import ReplayPlan
from graphxai.engine.replay import Replay, by_rule, out_of_place, rule_for
from graphxai.engine.request import STRUCTURE
from graphxai.engine.rules import Rule
from graphxai.engine.trace import WEIGHTS, Op, Ref, Trace, fill_refs, is_real, pair_refs, refs_in
from graphxai.runtime.notices import warn

_KNOWN = kinds.SAME | kinds.PRODUCTS | kinds.SUMS | kinds.ADDITIONS | kinds.that("linear")
_LENGTHS = kinds.that("length")  # x df/dx sums to f(x)
_FILLS = kinds.that("fills")  # they put numbers among the entries of their first argument
BIASES, CONSTANTS, CUT_OFF = "biases", "constants", "cut off"  # lines of the ledger


class Addition(NamedTuple):
    """A constant that a hooked pass adds to a signal.

    Args:
        kind: "parameter"; "batch_norm", if its shift by the mean is added, too; "lookup" of a
            parameter by codes; what is "computed" from parameters; what a "log_softmax" subtracts,
            which is constant under the rule for attention; f(0) of a function, "at_zero"; or what
            may be a "number".
        parameter: the place of the parameter's node, or None if there is none.
        node: the place of the node that the constant is the result of, or belongs to.
        lookups: the places of the nodes that look up parameters by codes, for this constant.
        converted: the places of the nodes that saved codes as numbers, for this constant, each with
            the attribute's name.
        by_row: whether each row was computed from one row of codes, or of a "log_softmax" whether
            its rows are the outputs; the outputs may also be chosen among the nodes' rows.
    """

    kind: str
    parameter: int | None = None
    node: int | None = None
    lookups: tuple[int, ...] = ()
    converted: tuple[tuple[int, str], ...] = ()
    by_row: bool = True


@dataclass(frozen=True, eq=False)
class LedgerLines:
    """Says to which line of the ledger each constant belongs.

    Args:
        names: those of inputs by bit.
    """

    trace: Trace
    names: Mapping[int, str]

    def of(self, value: int) -> str:
        """Return the line of a value that is added to a signal."""
        depends, live = self.trace.flow.depends[value], self.trace.flow.live[value]
        if depends & 1:
            return BIASES if live & 1 else CUT_OFF
        inputs = [name for bit, name in self.names.items() if depends & bit]
        features = [name for name in inputs if name not in STRUCTURE]
        if features or depends & WEIGHTS:
            return " and ".join(features) or BIASES
        return " and ".join(inputs) or CONSTANTS

    def of_numbers(self) -> str:
        """Return the line of numbers in the model's code."""
        return CONSTANTS if self.trace.first_exit is None else CUT_OFF

    def added_by(self, plan: ReplayPlan, op: Op) -> Iterator[tuple[str, Ref | None]]:
        """Yield the line and the `Ref` of each constant that an operation adds to signals.

        A number among the arguments is a constant, too, and has None in place of a `Ref`.
        """
        for place in places_added(plan, op):
            for ref in refs_in(op.args[place : place + 1]):
                if not plan.signal[ref.value] and is_real(self.trace.memory.tensors[ref.slot]):
                    yield self.of(ref.value), ref
        numbers = (a for a in op.args[1:] if isinstance(a, int | float) and not isinstance(a, bool))
        adds_number = op.name in _FILLS | kinds.ADDITIONS and any(numbers)
        if adds_number or op.number in plan.adding:
            yield self.of_numbers(), None


def places_added(plan: ReplayPlan, op: Op) -> tuple[int, ...]:
    """Return the places of arguments that are added. A shift of a softmax's argument cancels."""
    return () if op.number in plan.roles.shifts else kinds.OPERATIONS[op.name].adds


def modules_by_line(plan: ReplayPlan, lines: LedgerLines) -> dict[str, set[str]]:
    """Return the lines whose constants a pass adds, each with the modules that add them."""
    modules: dict[str, set[str]] = {}
    for op in plan.ops:
        for line, _ in lines.added_by(plan, op):
            modules.setdefault(line, set()).add(op.path)
    return modules


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
            Replay(plan, signals, run_op=_ConstantDerivative(plan, line, lines)).output()
        ).clone()


class _ConstantDerivative:
    """Runs operations with a tangent for each constant of one line: the constant itself."""

    def __init__(self, plan: ReplayPlan, line: str, lines: LedgerLines) -> None:
        self.plan, self.line, self.lines = plan, line, lines
        self.counts_numbers = lines.of_numbers() == line
        self.passing = {op.number for op in plan.passing}
        self.with_signal: set[int] = set()  # storages of constants to which signals are written

    def __call__(self, op: Op, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Run an operation. A norm's running statistics are constants that are added, too."""
        storage = self.plan.trace.memory.storage
        writes_to_signal = op.in_place and storage[op.args[0].slot] in self.with_signal
        if op.number in self.passing or writes_to_signal:
            if self._fills(op):
                return self._filled(op, args, kwargs)
            self._put_constants(op, args)
        rule, of_table = rule_for(self.plan, op), kinds.OPERATIONS[op.name].rule
        if rule is None and of_table is not None and of_table.is_affine(op.args):
            rule = of_table.forward
        out = by_rule(op, args, kwargs, rule)
        if op.name not in kinds.ROOTS or out.shape != args[0].shape:
            return out
        at_rest = _tangent(args[0]) == 0  # where the slope may be infinite, as at zero
        return forward_ad.make_dual(out.detach(), _tangent(out).masked_fill(at_rest, 0.0))

    def _fills(self, op: Op) -> bool:
        """Whether an operation puts numbers among a signal's entries, or adds a number to it."""
        if not op.args or type(op.args[0]) is not Ref or not self.plan.signal[op.args[0].value]:
            return False
        if op.name in kinds.ADDITIONS:
            return type(op.args[1]) is not Ref
        source = kinds.OPERATIONS[op.name].source
        fills = op.name in _FILLS and (source is None or type(op.args[source]) is not Ref)
        return fills or op.number in self.plan.adding

    def _filled(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
        """Run an operation that puts numbers, which are constants, among the signal's entries.

        It is affine, `y = J x + c`, and its slope J is known, so that the constant is `y - J x`.
        """
        x, tangent = forward_ad.unpack_dual(args[0])
        rest = x if tangent is None else x - tangent
        func = out_of_place(op.func) if op.in_place else op.func
        if (rule := rule_for(self.plan, op)) is not None:
            func = partial(rule, func)
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
        if op.name in kinds.PLUS_PRODUCT:
            term, *factors = (self.plan.signal[arg.value] for arg in op.args[:3])
            places = (1,) if term and not any(factors) else places  # the product is constant
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
                    storage = self.plan.trace.memory.storage[op.args[0].slot]
                    if storage not in self.with_signal:  # tangents for every view of the storage
                        self.with_signal.add(storage)
                        whole = target if target._base is None else target._base
                        whole.copy_(_along_itself(whole.clone()))

    def _constant(self, ref: Ref, tensor: Tensor) -> Tensor:
        """Return what is added to a signal. A constant of the line is its own tangent."""
        if not is_real(tensor) or self.plan.signal[ref.value]:
            return tensor
        return _along_itself(tensor) if self.lines.of(ref.value) == self.line else tensor


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


def warn_of_nonlinearities(name: str, plan: ReplayPlan, warned: set[str] | None = None) -> None:
    """Warn of steps that no rule covers, unless they are among those warned of, and add them."""
    warned = set() if warned is None else warned
    lines = {f"{step.op.path or name}: {step.what}" for step in nonlinearities(plan)} - warned
    warned |= lines
    if lines:
        warn(
            f"{name} has parts that no rule covers; they use the ordinary gradient, so"
            f" relevance may not sum to the output: {'; '.join(sorted(lines))}.",
            stacklevel=8,
        )


ONE_DRAW = "The explanation is of one random draw, and every call explains a different one."


def warn_of_random_numbers(name: str, trace: Trace, meaning: str = ONE_DRAW) -> None:
    """Warn of random numbers that affect the output, and say what that means for the relevance."""
    if trace.random_calls:
        drawn = sorted(f"{path or name}: {what}" for path, what in trace.random_calls)
        warn(
            f"{name} draws random numbers: {'; '.join(drawn)}. {meaning} Call model.eval(), and"
            " pass training=self.training to F.dropout and the like.",
            stacklevel=8,
        )


def modules_with_cuts(plan: ReplayPlan) -> set[str]:
    """Return the modules in which a signal without its gradient is added, or becomes the output."""
    lines = LedgerLines(plan.trace, {})
    modules = modules_by_line(plan, lines).get(CUT_OFF, set())
    (output,) = refs_in(plan.trace.output)
    output_is_cut = not plan.signal[output.value] and lines.of(output.value) == CUT_OFF
    return modules | {""} if output_is_cut else modules


def warn_of_cuts(name: str, modules: set[str], in_ledger: bool = True) -> None:
    """Warn that a signal reached the output without its gradient, if it did so in any modules."""
    if not modules:
        return
    where = ", ".join(sorted(path or name for path in modules))
    warn(
        f"{name} uses values of the nodes without their gradient (detach, no_grad, NumPy, rounding,"
        f" another thread or the like) in {where}. No method follows them back to the nodes"
        + ("; the ledger lists their share as 'cut off'." if in_ledger else "."),
        stacklevel=8,
    )


# -- steps that no rule covers, so that relevance may not sum to the output ------------------------


class Nonlinearity(NamedTuple):
    """A step that keeps its gradient although a rule was requested.

    Args:
        what: the step as text.
        op: the operation.
    """

    rule: Rule | None
    what: str
    op: Op


def nonlinearities(plan: ReplayPlan) -> Iterator[Nonlinearity]:
    """Yield the steps that keep their ordinary gradient although a rule asks otherwise."""
    for op in plan.passing:
        taken = plan.taken[op.number]
        if not taken or op.number in plan.shares or op.number in plan.custom:
            continue
        step = _nonlinearity(plan, op, taken)
        if step is not None and (step.rule is None or getattr(plan.rules, step.rule)):
            yield step


def _nonlinearity(plan: ReplayPlan, op: Op, taken: frozenset[int]) -> Nonlinearity | None:
    """Describe an operation that is not linear in the signals it takes, or return None."""
    if op.name in kinds.SOFTMAX:
        return Nonlinearity("attention", "a softmax whose result enters no product", op)
    if op.number in plan.roles.softmax and not plan.rules.attention:
        return None
    if op.name in kinds.PRODUCTS:
        factors = [value for value in factors_of(op) if value in taken]
        divides = op.name in kinds.QUOTIENTS
        if divides and factors and factors[0] != getattr(op.args[0], "value", None):
            what = f"a quotient ({op.name}) with the input in the denominator"
            return Nonlinearity("activation", what, op)
        if len(factors) < 2:
            return None
        kind = "quotient" if divides else "product"
        what = f"a {kind} ({op.name}) of two quantities that depend on the input"
        held = plan.roles.held.get(op.number, {})
        rules = (held[value] for value in factors if value in held)
        return Nonlinearity(next(rules, "attention"), what, op)
    row = kinds.OPERATIONS[op.name]
    if "with_mean" in row.does and not _passes_first(plan, op):
        return None
    rule = plan.built_in.get(op.number)
    if rule is not None and rule.asked_by == "activation":
        return None
    if op.name in _LENGTHS and plan.rules.activation:
        return None
    if "prod" in op.args:  # a scatter that multiplies
        return Nonlinearity("activation", "prod", op)
    if op.name in _KNOWN | kinds.NORMS or (
        row.rule is not None and row.rule.asked_by != "activation"
    ):
        return None
    if is_root(op):
        return Nonlinearity("layernorm", f"{op.name} that scales nothing", op)
    return Nonlinearity("activation", op.name, op)


def _passes_first(plan: ReplayPlan, op: Op) -> bool:
    """Whether a gradient passes through the first of several results, and not only the mean."""
    passing = {user.number for user in plan.passing}.intersection(plan.trace.flow.uses[op.out])
    taken = any(op.out in plan.taken[number] for number in passing)
    return taken or op.out in {ref.value for ref in refs_in(plan.trace.output)}
