"""Warnings about what a pass does: steps without a rule, random numbers, cut signals."""

import warnings
from collections.abc import Iterator
from typing import NamedTuple

from .flow_queries import factors_of, is_root
from .ledger_lines import CUT_OFF, LedgerLines, modules_by_line
from .replay_plan import ReplayPlan
from .roles import Rule
from .rule_table import custom_rule, has_rule, vanishes_at_zero
from .trace import Op, Trace, refs_in
from .vocabulary import (
    ABOVE_ZERO,
    HOMOGENEOUS,
    KNOWN,
    NORMS,
    PRODUCTS,
    RATIO,
    SOFTMAX,
    THROUGH_ZERO,
)


def warn_of_nonlinearities(name: str, plan: ReplayPlan, warned: set[str] | None = None) -> None:
    """Warn of steps that no rule covers, unless they are among those warned of, and add them."""
    warned = set() if warned is None else warned
    lines = {f"{step.path or name}: {step.what}" for step in nonlinearities(plan)} - warned
    warned |= lines
    if lines:
        warnings.warn(
            f"{name} has parts that no rule covers; they use the ordinary gradient, so"
            f" relevance may not sum to the output: {'; '.join(sorted(lines))}.",
            stacklevel=8,
        )


def warn_of_random_numbers(name: str, trace: Trace) -> None:
    """Warn of random numbers that affect the output."""
    if trace.random_calls:
        drawn = sorted(f"{path or name}: {what}" for path, what in trace.random_calls)
        warnings.warn(
            f"{name} draws random numbers: {'; '.join(drawn)}. The explanation is of one random"
            " draw, and every call explains a different one. Call model.eval(), and pass"
            " training=self.training to F.dropout and the like.",
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
    warnings.warn(
        f"{name} uses values of the nodes without their gradient (detach, no_grad, NumPy, rounding,"
        f" another thread or the like) in {where}. No method follows them back to the nodes"
        + ("; the ledger lists their share as 'cut off'." if in_ledger else "."),
        stacklevel=8,
    )


# -- steps that no rule covers, so that relevance may not sum to the output ------------------------


class Nonlinearity(NamedTuple):
    """A step that keeps its gradient although a rule was requested.

    Args:
        what: the step in words.
        op: the operation.
    """

    rule: Rule | None
    what: str
    op: Op

    @property
    def path(self) -> str:
        """The path of the module that runs it."""
        return self.op.path


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
        return Nonlinearity("attention", "a softmax whose result enters no product", op)
    if op.number in plan.roles.softmax and not plan.rules.attention:
        return None
    if op.name in PRODUCTS:
        factors = [value for value in factors_of(op) if value in taken]
        if op.name == "div" and factors and factors[0] != getattr(op.args[0], "value", None):
            what = "a quotient (div) with the input in the denominator"
            return Nonlinearity("activation", what, op)
        if len(factors) < 2:
            return None
        kind = "quotient" if op.name == "div" else "product"
        what = f"a {kind} ({op.name}) of two quantities that depend on the input"
        held = plan.roles.held.get(op.number, {})
        rules = (held[value] for value in factors if value in held)
        return Nonlinearity(next(rules, "attention"), what, op)
    if op.name in ("std_mean", "var_mean") and not _passes_first(plan, op):
        return None
    if op.name in THROUGH_ZERO | ABOVE_ZERO | {"var", "var_mean"} and has_rule(plan, op):
        return None
    if op.name in HOMOGENEOUS and plan.rules.activation:
        return None
    if is_root(op):
        return Nonlinearity("layernorm", f"{op.name} that scales nothing", op)
    if "prod" in op.args:  # a scatter that multiplies
        return Nonlinearity("activation", "prod", op)
    has_ratio = op.name in RATIO and vanishes_at_zero(op)
    if has_ratio or op.name in KNOWN | NORMS | {"_log_softmax"}:
        return None
    return Nonlinearity("activation", op.name, op)


def _passes_first(plan: ReplayPlan, op: Op) -> bool:
    """Whether a gradient passes through the first of several results, and not only the mean."""
    passing = {user.number for user in plan.passing}.intersection(plan.trace.flow.uses[op.out])
    taken = any(op.out in plan.taken[number] for number in passing)
    return taken or op.out in {ref.value for ref in refs_in(plan.trace.output)}
