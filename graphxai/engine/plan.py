"""Plan what relevance passes through: where gradients flow, which roles values have.

Every decision follows from how data flows through the whole trace, never from the name of a class,
a module or an attribute. A role says that an operation takes some of its arguments as constants, or
that a product gives each factor half of its relevance:

* attention: a softmax, however it is written, or a positive kernel of the products of queries and
  keys, whose result multiplies values;
* gate: a sigmoid that multiplies another signal, or anything that is computed from gates alone;
* scale: a root of sums of squares that divides the squared values themselves, as in every norm;
* activation: the factor `g(x)` of `x g(x)`, entry by entry.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from graphxai.engine import operations as kinds
from graphxai.engine.flow_queries import SizeComparison, factors_of
from graphxai.engine.rules import BuiltInRule, Rule
from graphxai.engine.trace import NODES, WEIGHTS, Op, Ref, Trace, is_real, refs_in
from graphxai.rules.conservative import Rules
from graphxai.rules.operation_rule import OperationRule

_COPIES = kinds.that("copies")


class AttentionProduct(NamedTuple):
    """A product, `op`, in which attention weights multiply values.

    Args:
        weights: the value that holds the weights.
        origin: the operation that made the weights, such as a softmax, or one that divides the
            product by their sums.
        divisor: in that case the value that holds the sums or their reciprocals.
    """

    op: Op
    weights: int
    origin: Op
    divisor: int | None = None


@dataclass(eq=False)
class Roles:
    """The roles of the values in a pass. Operations are given by their numbers.

    Another pass with the same operations has the same roles on two conditions. All
    `size_comparisons` must have the same answers. And in each group of `alike`, which holds
    operations on the same values, the same operations must have equal numbers as arguments.

    Args:
        held: for each operation the values that it may hold constant, with the rule that asks
            for it.
        attention: the products in which weights that sum to one multiply values.
        products: the products of two signals.
        shares: what each factor gets of a product or quotient whose factors do not get half
            each.
        softmax: the operations that a softmax is written out with.
        shifts: the operations that subtract a constant from the argument of a softmax, where it
            cancels.
        first_equal: for each value the first one that the same operation made of the same
            arguments.
    """

    held: dict[int, dict[int, Rule]] = field(default_factory=dict)
    attention: list[AttentionProduct] = field(default_factory=list)
    products: set[int] = field(default_factory=set)
    shares: dict[int, dict[int, float]] = field(default_factory=dict)
    softmax: set[int] = field(default_factory=set)
    shifts: set[int] = field(default_factory=set)
    size_comparisons: set[SizeComparison] = field(default_factory=set)
    alike: list[list[int]] = field(default_factory=list)
    first_equal: list[int] = field(default_factory=list)

    def notes(self) -> dict[int, str]:
        """Say the role of operations as text, by number, for `Trace.listing`."""
        notes: dict[int, list[str]] = {}
        for numbers, text in (
            (self.softmax, "part of a softmax"),
            (self.shifts, "shift of a softmax"),
            (self.products - self.held.keys(), "product of two signals"),
        ):
            for number in sorted(numbers):
                notes.setdefault(number, []).append(text)
        weights = {(product.op.number, product.weights) for product in self.attention}
        for number, rules in self.held.items():
            for value, rule in rules.items():
                name = "attention weights" if (number, value) in weights else "value"
                text = f"{name} %{value} constant under the rule {rule}"
                notes.setdefault(number, []).append(text)
        return {number: "; ".join(words) for number, words in notes.items()}


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
        custom: for the number of an operation the rule of `Rules.custom` that is in force for it.
        built_in: for the number of an operation the rule of the package that is in force for it,
            unless a custom one precedes it.
        adding: the numbers of the operations whose rule adds a constant.
    """

    trace: Trace
    roles: Roles
    rules: Rules
    signal: bytearray
    ops: tuple[Op, ...]
    passing: tuple[Op, ...]
    taken: dict[int, frozenset[int]]
    shares: dict[int, dict[int, float]] = field(default_factory=dict)
    custom: dict[int, OperationRule] = field(default_factory=dict)
    built_in: dict[int, BuiltInRule] = field(default_factory=dict)
    adding: set[int] = field(default_factory=set)


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

    Raises ValueError if a custom rule would act on another argument than the first.
    """
    planner = _Planner(trace, roles, rules, bits)
    ops, passing = (
        tuple(trace.ops[k] for k in sorted(numbers)) for numbers in (planner.ops, planner.passing)
    )
    plan = ReplayPlan(trace, roles, rules, planner.signal, ops, passing, planner.taken)
    for op in ops:
        if (shares := planner.shares(op)) is not None:
            plan.shares[op.number] = shares
        if not any(plan.signal[ref.value] for ref in op.reads):
            continue
        if (custom := _custom_rule(plan, op)) is not None:
            plan.custom[op.number] = custom
        elif (rule := _built_in_rule(plan, op)) is not None:
            plan.built_in[op.number] = rule
            if rule.adds:
                plan.adding.add(op.number)
    return plan


def make_plans(trace: Trace, roles: Roles, rules: Rules) -> tuple[ReplayPlan, ReplayPlan]:
    """Return the plan for relevance of the nodes, and that for relevance of all inputs."""
    of_nodes, flow = make_plan(trace, roles, rules, NODES), trace.flow
    made = (live for maker, live in zip(flow.maker, flow.live, strict=True) if maker >= 0)
    if any(live & ~NODES & ~WEIGHTS for live in made):
        return of_nodes, make_plan(trace, roles, rules)
    return of_nodes, of_nodes


def _custom_rule(plan: ReplayPlan, op: Op) -> OperationRule | None:
    """Return the custom rule for an operation on signals, if any; it is of the first argument."""
    rule = plan.rules.custom_rule(kinds.OPERATIONS[op.name].called) if plan.rules.custom else None
    signals = {ref.value for ref in op.reads if plan.signal[ref.value]}
    if rule is None or (type(op.args[0]) is Ref and signals == {op.args[0].value}):
        return rule
    raise ValueError(
        f"a custom rule acts on {rule.operation!r} of one signal, its first argument; in"
        f" {op.path or 'the model'} other arguments depend on the input."
    )


def _built_in_rule(plan: ReplayPlan, op: Op) -> BuiltInRule | None:
    """Return the rule of the package that is in force for an operation on signals, if any."""
    rule = kinds.OPERATIONS[op.name].rule
    while rule is not None and not rule.fits(op.args):
        rule = rule.otherwise
    if rule is None or not getattr(plan.rules, rule.asked_by) or op.number in plan.roles.softmax:
        return None
    return None if rule.is_affine(op.args) else rule


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

        In a product of the nodes and another input, the other only scales what the nodes pass on.
        """
        if (taken := self.taken.get(op.number)) is not None:
            return taken
        held = self.roles.held.get(op.number, {})
        read = {ref.value for ref in op.reads if self.signal[ref.value]}
        read -= {value for value, rule in held.items() if getattr(self.rules, rule)}
        if len(read) > 1 and op.name in kinds.PRODUCTS:
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
        """Add the operations that a value needs, as `passing` if a gradient passes through it."""
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


def find_live(trace: Trace, graded: bool) -> None:
    """Fill in `trace.flow.live` after a pass.

    Args:
        graded: whether gradients were on. If they were off, they are taken to flow wherever data
            does.
    """
    for op in trace.ops:
        _decide(trace, op, graded)
    for value in trace.flow.merged:
        _live(trace, value)


def _decide(trace: Trace, op: Op, graded: bool) -> None:
    """Decide which inputs the gradient of an operation's results flows to."""
    arriving = 0
    for ref in op.reads:
        arriving |= _live(trace, ref.value)
    for ref in op.makes:
        if not (depends := trace.flow.depends[ref.value]):
            continue
        tensor = trace.memory.tensors[ref.slot]
        read = trace.memory.tensors[(op.reads or op.makes)[0].slot]
        history = tensor.grad_fn.name() if tensor.grad_fn is not None else ""
        if "DifferentiableGraph" in history:  # TorchScript writes this backward pass
            passes, arriving = True, _rewrite_script(trace, op)
        elif op.name in kinds.CUTS:
            passes = False
        elif op.grad_enabled and op.name in _COPIES and (read.is_conj() or read.is_neg()):
            passes = True  # a copy below autograd carries out a conjugation, or a sign
        elif not graded:
            passes = is_real(tensor)
        elif op.decomposed:
            passes = op.grad_enabled and is_real(tensor)
        elif passes := tensor.requires_grad and not op.grad_enabled:
            # custom functions and checkpoints run without gradients, but pass them on
            _, arriving = _passing_on(trace, op, lambda _, maker: not maker.grad_enabled)
        else:
            passes = tensor.requires_grad
        if passes:
            trace.flow.live[ref.value] = arriving & depends
        elif is_real(tensor) and op.name not in kinds.CUTS:  # other inputs need no gradient
            trace.flow.live[ref.value] = arriving & depends & ~1


def _live(trace: Trace, value: int) -> int:
    """Return the inputs that the gradient of a value flows to, even if the value is merged."""
    live = trace.flow.live
    if value in trace.flow.merged and not live[value]:
        before, written = trace.flow.merged[value]
        live[value] = live[before] | live[written]
    return live[value]


def _rewrite_script(trace: Trace, op: Op) -> int:
    """Let gradients flow through a function that TorchScript ran, and return to which inputs.

    TorchScript detaches the inputs and some outputs of the function, whose backward pass it adds.
    """
    inside, arriving = _passing_on(
        trace, op, lambda current, _: current.name not in kinds.DETACHES or current is op
    )
    for current in inside:
        if current.name in kinds.DETACHES:
            current.func, current.name = kinds.PASSES_ON, kinds.PASSES_ON.overloadpacket.__name__
            if current is not op:
                trace.flow.live[current.out] = trace.flow.live[current.reads[0].value]
    return arriving


def _passing_on(trace: Trace, op: Op, goes_on: Callable[[Op, Op], bool]) -> tuple[list[Op], int]:
    """Let gradients pass through the operations before this one that cut them.

    Returns the operations that they pass, and the inputs that they flow to. `goes_on` says, for an
    operation and the maker of a value that it reads, whether they pass from one to the other.
    """
    passed, arriving = [op], 0
    for current in passed:
        for ref in current.reads:
            maker, tensor = trace.op_of(ref.value), trace.memory.tensors[ref.slot]
            is_cut = trace.flow.depends[ref.value] & ~trace.flow.live[ref.value]
            if is_cut and is_real(tensor) and maker is not None and goes_on(current, maker):
                trace.flow.live[ref.value] = trace.flow.depends[ref.value]
                passed.append(maker)
            arriving |= trace.flow.live[ref.value]
    return passed, arriving
