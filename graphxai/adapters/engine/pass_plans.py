"""What follows from the list of a pass alone: its roles, its plans, and where it adds constants."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from graphxai.rules.conservative import Rules

from .ledger_lines import LedgerLines, modules_by_line
from .pass_request import NODES
from .replay_plan import ReplayPlan, make_plan
from .role_finder import find_roles
from .trace import Ref, Trace


@dataclass(frozen=True, eq=False)
class PassPlans:
    """The plans of a recorded pass, and where it adds constants.

    Args:
        of_nodes: what relevance of the nodes passes through.
        of_all: what relevance of all inputs passes through.
        names: those of the inputs by bit.
        modules: the lines of the ledger that have constants, each with the modules that add
            them.
    """

    of_nodes: ReplayPlan
    of_all: ReplayPlan
    names: Mapping[int, str]
    modules: dict[str, set[str]] = field(default_factory=dict)

    @property
    def trace(self) -> Trace:
        """The list of operations."""
        return self.of_nodes.trace

    @property
    def slot(self) -> int:
        """The slot of the nodes' rows."""
        return self.trace.slot_of(NODES)

    @cached_property
    def lines(self) -> LedgerLines:
        """The lines of the ledger to which constants belong."""
        return LedgerLines(self.trace, self.names)

    @cached_property
    def line_of_output(self) -> str | None:
        """The line that the whole output belongs to, if the output is no signal."""
        last = self.trace.output
        value = last.value if type(last) is Ref else -1
        return None if value < 0 or self.of_all.signal[value] else self.lines.of(value)


def make_plans(trace: Trace, rules: Rules, names: Mapping[int, str], biases: bool) -> PassPlans:
    """Make the plans of a recorded pass.

    Args:
        names: those of the inputs by bit.
        biases: whether the shares of constants are wanted.
    """
    roles = find_roles(trace)
    of_nodes = make_plan(trace, roles, rules, NODES)
    if not biases:
        return PassPlans(of_nodes, of_nodes, names)
    of_all = make_plan(trace, roles, rules) if trace.live_inputs & ~NODES else of_nodes
    plans = PassPlans(of_nodes, of_all, names)
    plans.modules.update(modules_by_line(of_all, plans.lines))
    read = {ref.value for op in of_all.ops for ref in op.reads}
    for bit, name in names.items():
        if any(trace.flow.live[value] & bit for value in read):
            plans.modules.setdefault(name, set())
    return plans
