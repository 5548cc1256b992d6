"""The lines of the ledger to which the constants that a pass adds to signals belong."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .replay_plan import ReplayPlan
from .trace import WEIGHTS, Op, Ref, Trace, is_real, refs_in
from .vocabulary import ABOVE_ZERO, ADDITIONS, ADDITIVE, FILLS

BIASES, CONSTANTS, CUT_OFF = "biases", "constants", "cut off"  # lines of the ledger
STRUCTURE = {"edge_index", "batch", "ptr"}  # indices, which choose among parameters


@dataclass(frozen=True, eq=False)
class LedgerLines:
    """Says to which line of the ledger each constant belongs.

    Args:
        names: those of inputs by bit.
    """

    trace: Trace
    names: Mapping[int, str]
    _line_of: dict[int, str] = field(default_factory=dict)

    def of(self, value: int) -> str:
        """Return the line of a value that is added to a signal."""
        if value not in self._line_of:
            self._line_of[value] = self._find_line(value)
        return self._line_of[value]

    def _find_line(self, value: int) -> str:
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
        adds_number = op.name in FILLS | ADDITIONS | {"scatter"} and any(numbers)
        of_log = op.name == "_log_softmax" and bool(plan.rules.attention)
        if adds_number or of_log or (op.name in ABOVE_ZERO and plan.rules.activation):
            yield self.of_numbers(), None


def places_added(plan: ReplayPlan, op: Op) -> tuple[int, ...]:
    """Return the places of arguments that are added. A shift of a softmax's argument cancels."""
    return () if op.number in plan.roles.shifts else ADDITIVE.get(op.name, ())


def modules_by_line(plan: ReplayPlan, lines: LedgerLines) -> dict[str, set[str]]:
    """Return the lines whose constants a pass adds, each with the modules that add them."""
    modules: dict[str, set[str]] = {}
    for op in plan.ops:
        for line, _ in lines.added_by(plan, op):
            modules.setdefault(line, set()).add(op.path)
    return modules
