"""Plan which operations of a recorded pass run again, and what relevance passes through in each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from graphxai.rules.conservative import Rules

from .flow_queries import factors_of
from .roles import Roles
from .trace import Op, Trace, refs_in
from .vocabulary import PRODUCTS


@dataclass(frozen=True, eq=False)
class ReplayPlan:
    """Which operations of a trace run again, and under which rules.

    Args:
        signal: for each value whether a gradient flows to it.
        ops: the operations that run again.
        passing: those of them that a gradient passes through.
        taken: for the number of each operation the signals that it does not hold constant.
        shares: for the number of a product how much of its relevance it gives each factor, if
            not all.
    """

    trace: Trace
    roles: Roles
    rules: Rules
    signal: bytearray
    ops: tuple[Op, ...]
    passing: tuple[Op, ...]
    taken: dict[int, frozenset[int]]
    shares: dict[int, dict[int, float]]


class ValueReplacement(NamedTuple):
    """A value that is replaced where it is read, by what a function makes of its tensor.

    Args:
        spared: the channels of the result (D,) that are computed without the replacement.
    """

    value: int
    replaced: Callable[[Tensor], Tensor]
    spared: Tensor | None = None


def make_plan(trace: Trace, roles: Roles, rules: Rules, bits: int = -1) -> ReplayPlan:
    """Plan which operations run again for the gradient of the output by some inputs.

    Args:
        bits: the bits of these inputs, by default of all.
    """
    planner = _Planner(trace, roles, rules, bits)
    ops, passing = (
        tuple(trace.ops[k] for k in sorted(numbers)) for numbers in (planner.ops, planner.passing)
    )
    shares = {op.number: share for op in ops if (share := planner.shares(op)) is not None}
    return ReplayPlan(trace, roles, rules, planner.signal, ops, passing, planner.taken, shares)


class _Planner:
    """Finds signals forwards from the inputs, and operations backwards from the output.

    A tensor that is written to during the pass is not kept as it was at each time. So every
    operation that touches it has to run again, even if no gradient passes through it.
    """

    def __init__(self, trace: Trace, roles: Roles, rules: Rules, bits: int) -> None:
        self.trace, self.roles, self.rules = trace, roles, rules
        self.signal = bytearray(len(trace.flow.maker))
        self.taken: dict[int, frozenset[int]] = {}
        self.ops: set[int] = set()
        self.passing: set[int] = set()
        self._todo: list[tuple[int, bool]] = []
        # by the order of operations: an attention matrix that was written in has the last value
        for value in sorted(range(len(trace.flow.maker)), key=trace.flow.maker.__getitem__):
            self.signal[value] = bool(trace.flow.live[value] & bits) and self._is_signal(value)
        for ref in refs_in(trace.output):
            self._want(ref.slot, ref.value, True)
        while self._todo:
            number, passing = self._todo.pop()
            taken = self._taken_by(trace.ops[number])
            for ref in trace.ops[number].reads:
                self._want(ref.slot, ref.value, passing and ref.value in taken)

    def _is_signal(self, value: int) -> bool:
        """Whether a gradient flows to a value. Those before it must have been decided."""
        if value in self.trace.flow.merged:
            return any(self.signal[part] for part in self.trace.flow.merged[value])
        op = self.trace.op_of(value)
        return op is None or bool(self._taken_by(op))

    def _taken_by(self, op: Op) -> frozenset[int]:
        """Return the signals that an operation reads and does not hold constant.

        In a product of the nodes and another input, the other input is constant: it scales what
        the nodes pass on.
        """
        if (taken := self.taken.get(op.number)) is not None:
            return taken
        held = self.roles.held.get(op.number, {})
        read = {ref.value for ref in op.reads if self.signal[ref.value]}
        read -= {value for value, rule in held.items() if getattr(self.rules, rule)}
        if len(read) > 1 and op.name in PRODUCTS:
            factors = [value for value in factors_of(op) if value in read]
            of_nodes = [value for value in factors if self.trace.flow.live[value] & 1]
            if 0 < len(of_nodes) < len(factors):
                read -= {*factors} - {*of_nodes}
        self.taken[op.number] = frozenset(read)
        return self.taken[op.number]

    def shares(self, op: Op) -> dict[int, float] | None:
        """Return how much of its relevance a product gives each factor, or None if all to each.

        Under the rule `products`, every product of two signals gives each of them half (uniform
        rule, Achtibat 2024, section 3.2). There are two exceptions: the scale of a norm, and
        attention that is divided by its sums at the end, whose shares are those of a softmax.
        Under the rule `attention` a product gives halves if it is neither attention nor a gate,
        such as the two branches of a SwiGLU or of Polynormer.
        """
        factors = [value for value in factors_of(op) if value in self._taken_by(op)]
        if len(factors) < 2:
            return None
        if self.rules.products and op.number in self.roles.shares:
            return self.roles.shares[op.number]
        held = self.roles.held.get(op.number, {}).values()
        if self.rules.products:
            halves = "layernorm" not in held
        else:
            halves = self.rules.attention and not held
        halves = halves and op.number in self.roles.products
        return dict.fromkeys(factors, 1 / 2) if halves else None

    def _want(self, slot: int, value: int, passing: bool) -> None:
        """Add the operations that a value needs.

        Args:
            passing: whether a gradient passes through it.
        """
        passing = passing and bool(self.signal[value])
        if slot in self.trace.memory.unstable:
            for number in self.trace.touching(slot):
                self._add(number, False)
        if passing:
            for part in self.trace.flow.merged.get(value, ()):
                self._want(slot, part, True)
            if (number := self.trace.flow.maker[value]) >= 0:
                self._add(number, True)

    def _add(self, number: int, passing: bool) -> None:
        planned = self.passing if passing else self.ops
        if number not in planned:
            self.ops.add(number)
            planned.add(number)
            self._todo.append((number, passing))
