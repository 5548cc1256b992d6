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
from graphxai.engine.attention.node_ids import NodeIds, aligned
from graphxai.engine.attention.node_tracker import by_entry, reduced_axes
from graphxai.engine.flow_queries import index_of, users
from graphxai.engine.plan import ReplayPlan, Roles
from graphxai.engine.presence import functions as functions
from graphxai.engine.presence.gates import KEEPS_ZERO, OVER_AXES, Gate, GateFinder, Groups
from graphxai.engine.replay import Replay
from graphxai.engine.trace import Op, Trace
from graphxai.rules.conservative import Rules

AVERAGES = kinds.that("averages")
SUMMED = kinds.GATHERED | kinds.SUMS - AVERAGES | kinds.MATRIX_PRODUCTS


@dataclass(eq=False)
class PresencePlan:
    """Where presence acts in a recorded pass.

    Args:
        gates: by the numbers of the operations.
        rerun: the operations that run again, because a gate is before them.
        without: the modules and operations where nodes cannot be left out, if it turns out that
            they cannot.
    """

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
    where = sorted(set(finder.without or finder.suspects()))
    return PresencePlan(plan, gates, dtype, where)


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
        self._terms: dict[int, tuple[Tensor | tuple[int, ...], int, Tensor, Tensor]] = {}

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
        groups = Groups.of(op)
        if op.name in OVER_AXES - SUMMED:
            return self._over_axes(op, args, kwargs, presence)
        if groups is not None and groups.way != "sum":
            return self._into_groups(gate, groups, args, presence)
        entries = args[gate.place].to_dense()
        if not entries.is_floating_point():  # a mask, whose sum is a count
            entries = entries.to(presence)
        args[gate.place] = self._terms_of(gate, entries, presence, args)
        return op.func(*args, **kwargs)

    def _over_axes(self, op: Op, args: list[Any], kwargs: dict[str, Any], presence: Tensor) -> Any:
        x = args[0]
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

    def _into_groups(self, gate: Gate, groups: Groups, args: list[Any], presence: Tensor) -> Any:
        op, source, index = gate.op, args[groups.place], index_of(gate.op, args)
        index = index if isinstance(index, Tensor) else index[groups.dim]
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

    def _terms_of(self, gate: Gate, terms: Tensor, presence: Tensor, args: list[Any]) -> Tensor:
        """Return the terms of a sum without those of absent nodes."""
        axes, number = gate.axes(terms.dim()), gate.divisor
        dim = args[1] % terms.dim() if gate.op.name in kinds.GATHERED else 0  # of their index
        if number is None or gate.quotient is not None:  # it is the sum that divides
            number = gate.op.number
        if gate.quotient is not None:
            along = axes or by_entry(args[2], dim)
            entries = terms.detach().movedim(dim, 0), presence.detach().movedim(dim, 0)
            self._terms[number] = (along, dim, *entries)

        def factor() -> Tensor | None:
            if (of_both := self._factors(number)) is None:
                return None
            of_terms, along = of_both[gate.quotient is not None], self._terms[number][0]
            if isinstance(along, tuple):  # to where these terms have the axes of the divisor
                of_terms = of_terms[(..., *[None] * (terms.dim() - of_terms.dim()))]
                of_terms = of_terms.movedim(along, axes)
            shaped = _for_terms(of_terms, terms.movedim(dim, 0))
            return None if shaped is None else shaped.movedim(0, dim)

        return functions.weighted(terms, presence, factor)

    @torch.no_grad()
    def _factors(self, number: int) -> tuple[Tensor, Tensor] | None:
        """Return the factors of the marginals above and below the line of a quotient.

        Returns None if nothing divides, or what divides does not have the shape of the sum.
        """
        if number not in self._divisors:
            return None
        along, dim, weights, presence = self._terms[number]
        shown, divisor = functions.weighted(weights, presence), self._divisors[number]
        if isinstance(along, tuple):
            total = shown.sum(along, keepdim=True)
            if divisor.numel() != total.numel():
                return None
            divisor = divisor.reshape(total.shape)
            return functions.quotient_factors(weights, total, divisor, presence)
        total = weights.new_zeros(int(along.max()) + 1 if len(along) else 0, *weights.shape[1:])
        total = total.index_add(0, along, shown)[along]
        while divisor.dim() > weights.dim():  # a count is alike for all channels
            divisor = divisor[..., 0]
        divisor = divisor.movedim(dim, 0) if divisor.dim() == weights.dim() else divisor
        if len(divisor) != len(along):
            divisor = divisor[along]
        while divisor.dim() < weights.dim():
            divisor = divisor[..., None]
        return functions.quotient_factors(weights, total, divisor, presence)


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
    sums = {gate.op.out: gate for gate in gates.values() if gate.op.name in SUMMED}
    for op in trace.ops:
        if op.name not in kinds.SCALINGS or len(op.reads) != 2:
            continue
        above, below = (ref.value for ref in op.reads)
        inverts = op.name in kinds.TIMES
        pairs = [(above, below, 1), (below, above, 0)][: 1 + inverts]
        for dividend, divisor, place in pairs:
            needs = kinds.INVERSES if inverts else frozenset[str]()
            lower = _gated_sum(trace, sums, divisor, needs)
            if lower is None or lower.op.name in kinds.MATRIX_PRODUCTS:
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
        gate = sums.get(op.out)
        if gate is not None and op.args[gate.place].value in terms:
            yield gate


def _nodes_along_axes(trace: Trace, gate: Gate) -> list[Tensor]:
    """Return the nodes of the entries of a sum over axes, in an order that sums share."""
    count = len(trace.shape(gate.op.args[gate.place].value))
    axes = gate.axes(count)
    ends = range(-len(axes), 0)
    return [aligned(t, count).movedim(axes, (*ends,)).squeeze() for t in gate.nodes] if axes else []


def _same_groups(trace: Trace, first: Gate, second: Gate) -> bool:
    """Whether two sums, along an axis by an index or over axes, are of the same entries."""
    if not {first.op.name, second.op.name} <= kinds.GATHERED:
        nodes, others = (_nodes_along_axes(trace, gate) for gate in (first, second))
        return 0 < len(nodes) == len(others) and all(map(torch.equal, nodes, others))
    indices = []
    for _, dim, index, source, *others in (first.op.args, second.op.args):
        if "amax" in others:
            return False
        axis = dim % max(len(trace.shape(source.value)), 1)
        indices.append(by_entry(trace.memory.tensors[index.slot], axis))
    return torch.equal(*indices)
