"""Warnings about what a pass does: steps without a rule, random numbers, cut signals."""

import warnings

from .ledger_lines import CUT_OFF, LedgerLines, modules_by_line
from .nonlinearities import nonlinearities
from .replay_plan import ReplayPlan
from .trace import Trace, refs_in


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
