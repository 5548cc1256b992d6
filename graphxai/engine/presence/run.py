"""Let nodes be absent from a recorded pass, and measure what each of them contributes.

Every node has a presence, 1 or 0. Wherever an operation combines the entries of several nodes, the
entries of absent nodes are left out: of sums (messages, pooling, products of matrices), of means,
of maxima, and of softmaxes. What a node gives to its own row is never left out, so that the rows of
absent nodes stay defined; nobody reads them. The node ids of values say whose entries they are, and
ids of counts say which of their terms to leave out. So at a coalition of nodes the pass gives what
the model gives for the graph of these nodes alone, and one backward pass from there gives the
marginal of every node, present or absent (see `presence_functions`).
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from graphxai.engine import operations as kinds
from graphxai.engine.attention.node_ids import NodeIds
from graphxai.engine.attention.node_tracker import reduced_axes
from graphxai.engine.flow_queries import index_of, users
from graphxai.engine.plan import ReplayPlan, Roles
from graphxai.engine.presence import functions as functions
from graphxai.engine.presence.gates import KEEPS_ZERO, OVER_AXES, Gate, GateFinder, Groups, by_entry
from graphxai.engine.replay import Replay
from graphxai.engine.trace import Op, Trace
from graphxai.rules.conservative import Rules

AVERAGES = kinds.that("averages")


@dataclass(eq=False)
class PresencePlan:
    """Where presence acts in a recorded pass.

    Args:
        gates: by the numbers of the operations.
        rerun: the operations that run again, because a gate is before them.
        without: the modules and operations where nodes cannot be left out.
    """

    trace: Trace
    plan: ReplayPlan
    gates: dict[int, Gate]
    dtype: torch.dtype
    without: list[str] = field(default_factory=list)

    def outputs(self, presence: Tensor) -> Tensor:
        """Run the pass again with these presences (P,), a one for the graph token among them."""
        run = _GatedRun(self, torch.cat([presence.flatten(), presence.new_ones(1)]))
        outputs: Tensor = Replay(self.plan, {}, run_op=run).output()
        return outputs


def plan_presence(trace: Trace, nodes: NodeIds, places: int, dtype: torch.dtype) -> PresencePlan:
    """Find all gates of a recorded pass.

    Args:
        nodes: the ids of its values, from `StructureTracker`.
        places: the number of presences, one for each token of each graph.
    """
    finder = GateFinder(trace, nodes, places)
    gates = finder.gates
    link_quotients(trace, gates)
    signal = bytearray(bool(live & 1) for live in trace.flow.live)
    ops = tuple(trace.ops[k] for k in sorted(_behind_gates(trace, gates)))
    taken = {op.number: frozenset(ref.value for ref in op.reads) for op in ops}
    plan = ReplayPlan(trace, Roles(), Rules(), signal, ops, ops, taken)
    return PresencePlan(trace, plan, gates, dtype, sorted(set(finder.without)))


def _behind_gates(trace: Trace, gates: dict[int, Gate]) -> set[int]:
    """Return the operations that gates change, and those that fill memory for them."""
    changed: set[int] = set()
    numbers: set[int] = set()
    for op in trace.ops:
        if op.number in gates or any(_is_changed(trace, ref.value, changed) for ref in op.reads):
            numbers.add(op.number)
            changed.update(ref.value for ref in op.makes)
    todo = list(numbers)
    while todo:
        op = trace.ops[todo.pop()]
        for ref in (*op.reads, *op.makes):
            if ref.slot in trace.memory.unstable:
                new = set(trace.touching(ref.slot)) - numbers
                numbers |= new
                todo += new
    return numbers


def _is_changed(trace: Trace, value: int, changed: set[int]) -> bool:
    if value in changed:
        return True
    parts = trace.flow.merged.get(value, ())
    return any(_is_changed(trace, part, changed) for part in parts)


class _GatedRun:
    """Runs the operations of a pass with some nodes absent."""

    def __init__(self, plan: PresencePlan, presence: Tensor) -> None:
        self.gates, self.presence = plan.gates, presence
        gates = plan.gates.values()
        self._quotients = {gate.quotient[0]: gate for gate in gates if gate.quotient}
        self._divisors: dict[int, Tensor] = {}
        self._terms: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def __call__(self, op: Op, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if (of_divisor := self._quotients.get(op.number)) is not None:
            assert of_divisor.quotient is not None
            _, place, inverts = of_divisor.quotient
            divisor = args[place].detach()
            self._divisors[of_divisor.op.number] = 1 / divisor if inverts else divisor
        gate = self.gates.get(op.number)
        if gate is None:
            return op.func(*args, **kwargs)
        presence = gate.of_entries(self.presence)
        if op.name in kinds.SOFTMAX:
            return functions.softmax(args[0], presence, args[1])
        if op.name in kinds.LOG_SOFTMAX:
            return functions.softmax(args[0], presence, args[1]).clamp(min=1e-30).log()
        if op.name in OVER_AXES:
            return self._over_axes(op, args, kwargs, presence)
        if (groups := Groups.of(op)) is not None:
            return self._into_groups(gate, groups, args, kwargs, presence)
        return self._product(gate, args, kwargs, presence)

    def _over_axes(self, op: Op, args: list[Any], kwargs: dict[str, Any], presence: Tensor) -> Any:
        x = args[0]
        if op.name in kinds.SUMS - AVERAGES:
            return op.func(functions.weighted(x, presence), *args[1:], **kwargs)
        dims = reduced_axes(op, x.dim())
        keepdim = any(arg is True for arg in args[1:]) or bool(kwargs.get("keepdim"))
        moved, present = (
            t.expand(x.shape).movedim(dims, (*range(len(dims)),)).flatten(0, len(dims) - 1)
            for t in (x, presence)
        )
        start = moved.new_zeros(1, *moved.shape[1:])
        groups = torch.zeros(len(moved), dtype=torch.long, device=x.device)
        way = "mean" if op.name in AVERAGES else "amax"
        out = functions.of_groups(way, moved, present, groups, start, False).squeeze(0)
        for dim in dims if keepdim else ():
            out = out.unsqueeze(dim)
        return (out, None) if isinstance(op.result, list) else out

    def _into_groups(
        self, gate: Gate, groups: Groups, args: list[Any], kwargs: dict[str, Any], presence: Tensor
    ) -> Any:
        op, place, index = gate.op, groups.place, index_of(gate.op, args)
        source, index = args[place], index if isinstance(index, Tensor) else index[groups.dim]
        if groups.way != "sum":
            dim = groups.dim % source.dim()
            out = functions.of_groups(
                groups.way,
                source.movedim(dim, 0),
                presence.expand(source.shape).movedim(dim, 0),
                by_entry(index, dim),
                args[0].movedim(dim, 0),
                groups.with_base,
            ).movedim(0, dim)
            return args[0].copy_(out) if op.in_place else out
        if gate.quotient is not None:
            self._terms[op.number] = (args[2], source.detach(), presence.detach())
        number = gate.divisor if gate.quotient is None else op.number
        below = int(gate.quotient is not None)

        def factor() -> Tensor | None:
            if number is None or number not in self._divisors:
                return None
            return _for_terms(self._factors(number)[below], source)

        terms = functions.weighted(source, presence, factor)
        return op.func(*args[:place], terms, *args[place + 1 :], **kwargs)

    @torch.no_grad()
    def _factors(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the factors of the marginals above and below the line of a quotient."""
        index, weights, presence = self._terms[number]
        index = by_entry(index, 0)
        shown = functions.weighted(weights, presence)
        total = weights.new_zeros(int(index.max()) + 1 if len(index) else 0, *weights.shape[1:])
        total = total.index_add(0, index, shown)[index]
        divisor = self._divisors[number]
        if len(divisor) != len(index):
            divisor = divisor[index]
        while divisor.dim() > weights.dim():  # a count is alike for all channels
            divisor = divisor[..., 0]
        while divisor.dim() < weights.dim():
            divisor = divisor[..., None]
        return functions.quotient_factors(weights, total, divisor, presence)

    def _product(
        self, gate: Gate, args: list[Any], kwargs: dict[str, Any], presence: Tensor
    ) -> Any:
        place = int(gate.op.name in kinds.PLUS_PRODUCT) + gate.factor
        args[place] = functions.weighted(args[place].to_dense(), presence)
        return gate.op.func(*args, **kwargs)


def _for_terms(factor: Tensor, terms: Tensor) -> Tensor | None:
    """Shape the factors of weights like the terms that they multiply, or return None.

    If terms join heads and channels, as in PyG's `HGTConv`, a head's channels have its factor.
    """
    while factor.dim() < terms.dim():
        factor = factor.unsqueeze(-1)
    while factor.dim() > terms.dim() and factor.shape[-1] == 1:
        factor = factor.squeeze(-1)
    if factor.dim() != terms.dim():
        return None
    channels, rest = divmod(terms.shape[-1], factor.shape[-1])
    if terms.dim() == 2 and not rest:
        factor = factor.repeat_interleave(channels, -1)
    sizes = zip(factor.shape, terms.shape, strict=True)
    return factor if all(size in (1, wanted) for size, wanted in sizes) else None


# -- sums that divide others: in means, and in softmaxes written out -------------------------------


def link_quotients(trace: Trace, gates: dict[int, Gate]) -> None:
    """Find the gated sums that are divided by others over the same entries.

    These are means, whose divisor counts, and softmaxes that are written out, whose divisor sums
    exponentials.
    """
    sums = {gate.op.out: gate for gate in gates.values() if gate.op.name in kinds.GATHERED}
    for op in trace.ops:
        if op.name not in kinds.SCALINGS or len(op.reads) != 2:
            continue
        above, below = (ref.value for ref in op.reads)
        inverts = op.name in kinds.TIMES
        pairs = [(above, below, 1), (below, above, 0)][: 1 + inverts]
        for dividend, divisor, place in pairs:
            needs = kinds.INVERSES if inverts else frozenset[str]()
            lower = _gated_sum(trace, sums, divisor, needs)
            if lower is None:
                continue
            upper = _gated_sum(trace, sums, dividend)
            for gate in [upper] if upper else _sums_of_terms(trace, sums, op.out):
                if gate is not lower and _same_groups(trace, gate, lower):
                    gate.divisor = lower.op.number
                    lower.quotient = lower.quotient or (op.number, place, inverts)


def _gated_sum(
    trace: Trace, sums: dict[int, Gate], value: int, needs: Set[str] = frozenset()
) -> Gate | None:
    """Return the gated sum that a value is made of, up to its shape and to constants."""
    passed = set()
    while value not in sums:
        if value in trace.flow.merged:
            value = trace.flow.merged[value][1]
            continue
        op = trace.op_of(value)
        if op is None or op.name not in kinds.DIVISORS or not op.reads:
            return None
        passed.add(op.name)
        value = op.reads[0].value
    return sums[value] if not needs or not needs.isdisjoint(passed) else None


def _sums_of_terms(trace: Trace, sums: dict[int, Gate], value: int) -> Iterator[Gate]:
    """Yield the gated sums of terms that a value multiplies."""
    for op, terms in users(trace, value, KEEPS_ZERO):
        if op.out in sums and op.args[3].value in terms:
            yield sums[op.out]


def _same_groups(trace: Trace, first: Gate, second: Gate) -> bool:
    """Whether two sums over the first axis send their entries to the same groups."""
    indices = []
    for gate in (first, second):
        index = trace.memory.tensors[gate.op.args[2].slot]
        if gate.op.args[1] not in (0, -index.dim()) or "amax" in gate.op.args:
            return False
        indices.append(by_entry(index, 0))
    return torch.equal(*indices)
