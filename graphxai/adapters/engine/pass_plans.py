"""What follows from the list of a pass alone: its roles, its plans, and where it adds constants."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from graphxai.rules.conservative import Rules

from .constant_additions import ConstantAdditions, find_additions
from .ledger_lines import LedgerLines, modules_by_line
from .nonlinearities import nonlinearities
from .pass_request import NODES
from .replay_plan import ReplayPlan, make_plan
from .role_finder import find_roles
from .trace import WEIGHTS, Ref, Trace


@dataclass(frozen=True, eq=False)
class Program:
    """The plans of a recorded pass, and where it adds constants.

    Args:
        node_plan: what relevance of the nodes passes through.
        full_plan: what relevance of all inputs passes through.
        names: those of the inputs by bit.
        modules: the lines of the ledger that have constants, each with the modules that add
            them.
    """

    node_plan: ReplayPlan
    full_plan: ReplayPlan
    names: Mapping[int, str]
    modules: dict[str, set[str]] = field(default_factory=dict)

    @property
    def trace(self) -> Trace:
        """The list of operations."""
        return self.node_plan.trace

    @property
    def slot(self) -> int:
        """The slot of the nodes' rows."""
        return self.trace.slot_of(NODES)

    @cached_property
    def lines(self) -> LedgerLines:
        """The lines of the ledger to which constants belong."""
        return LedgerLines(self.trace, self.names)

    @cached_property
    def has_nonlinearities(self) -> bool:
        """Whether a step keeps its ordinary gradient although a rule asks otherwise."""
        return any(True for _ in nonlinearities(self.full_plan))

    @cached_property
    def line_of_output(self) -> str | None:
        """The line that the whole output belongs to, if the output is no signal."""
        last = self.trace.output
        value = last.value if type(last) is Ref else -1
        return None if value < 0 or self.full_plan.signal[value] else self.lines.of(value)

    @cached_property
    def additions(self) -> ConstantAdditions | None:
        """Where constants are added, if their shares can be collected from the gradient."""
        if self.line_of_output or not self.plans_agree:
            return None
        return find_additions(self.full_plan, self.lines)

    @cached_property
    def plans_agree(self) -> bool:
        """Whether relevance of the nodes passes in the same way under both plans."""
        of_nodes, full = self.node_plan, self.full_plan
        return of_nodes is full or all(
            of_nodes.taken[op.number] == {v for v in full.taken[op.number] if of_nodes.signal[v]}
            for op in of_nodes.passing
        )

    @cached_property
    def shared_storages(self) -> set[int]:
        """The storages that several tensors of the pass share."""
        storages = enumerate(self.trace.memory.storage)
        return {storage for slot, storage in storages if storage != slot}


def make_program(trace: Trace, rules: Rules, names: Mapping[int, str], biases: bool) -> Program:
    """Make the program of a recorded pass.

    Args:
        biases: whether the shares of constants are wanted.
    """
    roles = find_roles(trace)
    node_plan = make_plan(trace, roles, rules, NODES)
    if not biases:
        return Program(node_plan, node_plan, names)
    all_live = 0
    for live in trace.flow.live:
        all_live |= live
    other_inputs = all_live & ~(NODES | WEIGHTS)
    full_plan = make_plan(trace, roles, rules) if other_inputs else node_plan
    program = Program(node_plan, full_plan, names)
    program.modules.update(modules_by_line(full_plan, program.lines))
    read = {ref.value for op in full_plan.ops for ref in op.reads}
    for bit, name in names.items():
        if any(trace.flow.live[value] & bit for value in read):
            program.modules.setdefault(name, set())
    return program
