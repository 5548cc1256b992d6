"""Find the roles of values by how data flows through the whole list of operations.

`find_roles` is the entry; `roles` says what roles there are.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush

import torch

from graphxai.engine import operations as kinds
from graphxai.engine.flow_queries import (
    FlowQueries,
    both_ways,
    first_of_equals,
    is_narrower,
    is_root,
    is_smaller,
    is_sparse_softmax,
)
from graphxai.engine.plan import AttentionProduct, Roles, Rule
from graphxai.engine.trace import WEIGHTS, Op, Ref, Trace

_OF_SUMS = kinds.LOGARITHMS - kinds.LOG_SOFTMAX
_WITHOUT_CLAMPS = kinds.ON_THE_WAY - kinds.CLAMPS
_OF_MULTIPLES = kinds.SAME | kinds.SCALINGS
_OF_DIFFERENCES = kinds.SAME | kinds.ADDITIONS | kinds.that("negates")
_OF_PROJECTIONS = kinds.SAME | kinds.SUMS | kinds.PRODUCTS | kinds.ADDS
_OF_COMPLEMENTS = kinds.SAME | kinds.that("complement")


def find_roles(trace: Trace) -> Roles:
    """Find all roles in a pass, whatever rules are in force.

    Values that only other inputs go into, such as an encoding of positions, get their roles by
    themselves: attention among them is held constant, but it is no attention between nodes.
    """
    first_equal, alike = first_of_equals(trace)
    roles = Roles(alike=alike, first_equal=first_equal)
    _RoleFinder(trace, [bool(live & 1) for live in trace.flow.live], roles)
    others = [bool(live & ~WEIGHTS) and not live & 1 for live in trace.flow.live]
    if any(others):
        _RoleFinder(trace, others, replace(roles, attention=[]))  # adds to the other roles
    return roles


class _RoleFinder(FlowQueries):
    """Finds the roles of live values.

    Args:
        live: for each value whether it is.
    """

    def __init__(self, trace: Trace, live: Sequence[bool], roles: Roles) -> None:
        super().__init__(trace, live, roles.first_equal, roles.size_comparisons)
        self.roles = roles
        signals = [op for op in trace.ops if any(self.live[r.value] for r in op.reads)]
        weights = [op for op in signals if self._makes_weights(op)]
        self._weights = {op.number for op in weights}
        for op in weights:
            for product, value in self.products_with_others(op.out):
                self.roles.hold(product, value, "attention")
                self.roles.attention.append(AttentionProduct(product, value, op))
            self._mark_softmax(op.out)
            self._mark_shifts(op)
        for op in signals:
            if op.name in kinds.GATES:
                self._mark_gate(op)
        for op in signals:
            if op.name in kinds.SCALINGS and len(self.factors(op)) == 2:
                self._mark_factor(op) or self._mark_linear_attention(op)
        products = (op for op in signals if op.name in kinds.PRODUCTS - kinds.QUOTIENTS)
        self.roles.products |= {op.number for op in products if len(self.factors(op)) == 2}

    def products_with_others(
        self, start: int, argument: int | None = None
    ) -> Iterator[tuple[Op, int]]:
        """Yield the products, in order, in which a value made from `start` meets another signal.

        With each comes the value.

        Args:
            argument: if `start` is a gate, the root of what it is computed from.
        """
        uses, derived = self.trace.flow.uses, {start}
        queued = set(uses[start])
        todo = sorted(queued)  # a heap
        while todo:
            op = self.trace.ops[heappop(todo)]
            if op.name in kinds.PRODUCTS and not self._makes_other_weights(op, derived, argument):
                factors = self.factors(op)
                from_start = [value for value in factors if value in derived]
                if from_start and len(from_start) < len(factors):
                    yield op, from_start[0]
                    continue
                passes = bool(from_start)
            else:
                adds_others = op.name in kinds.ADDITIONS and not self._is_sum_of(op, derived)
                passes = op.name in kinds.ON_THE_WAY and not adds_others
            for value in {r.value for r in op.makes if self.live[r.value]} if passes else ():
                derived.add(value)
                for number in set(uses[value]) - queued:
                    queued.add(number)
                    heappush(todo, number)

    def _is_sum_of(self, op: Op, values: set[int]) -> bool:
        """Whether all signals in an addition are among these values, or are other attention."""
        others = (value for value in self.live_reads(op) if value not in values)
        multiples = (self.makers(value, _OF_MULTIPLES) for value in others)
        return all(any(op.number in self._weights for op in makers) for makers in multiples)

    def _makes_other_weights(self, op: Op, derived: set[int], argument: int | None) -> bool:
        """Whether a product with weights makes other weights, as with a gate for every pair.

        The product `x g(x)` of a gate makes no weights.

        Args:
            argument: the root of the gate's x.
        """
        if op.name not in kinds.TIMES or op.in_place:
            return False
        factors = self.factors(op)
        if len(factors) != 2 or sum(value in derived for value in factors) != 1:
            return False
        weights, other = sorted(factors, key=lambda value: value not in derived)
        if self.compare_sizes(is_smaller, weights, other) or self.root(other) == argument:
            return False
        gates = self.is_of_gates(other)
        if not gates and not self.products_behind(other):
            return False
        # values are mixed by scores of pairs, or have more channels
        return any(
            (
                gates
                or user.name in kinds.MATRIX_PRODUCTS
                or self.compare_sizes(is_smaller, op.out, user.out)
            )
            and self._multiplies_values(user, new_weights)
            for user, new_weights in self.users(op.out, kinds.SAME)
        )

    def _multiplies_values(self, op: Op, weights: set[int]) -> bool:
        """Whether a product is of weights and values that are no weights, nor made of them."""
        factors = self.factors(op) if op.name in kinds.PRODUCTS else []
        if len(factors) != 2 or sum(value in weights for value in factors) != 1:
            return False
        (values,) = (value for value in factors if value not in weights)
        behind = self.trace.ancestors(values, lambda _, op: self.live_reads(op))
        return values not in self.roles.held.get(op.number, ()) and weights.isdisjoint(behind)

    # -- attention and gates -------------------------------------------------------------------

    def _makes_weights(self, op: Op) -> bool:
        """Whether an operation makes weights that sum to one."""
        if op.name in kinds.SOFTMAX:
            return True
        if op.name in kinds.SCALINGS and self._is_normalised(op):
            return True
        exponential = op.name in kinds.EXPONENTIALS  # of a `log_softmax`, or `s - logsumexp(s)`
        before = self.makers(self.live_reads(op)[0], _OF_DIFFERENCES) if exponential else ()
        return is_sparse_softmax(self, op) or any(by.name in kinds.LOGARITHMS for by in before)

    def _is_normalised(self, op: Op) -> bool:
        """Whether a quotient is `w / sum(w)`, as in a softmax over edges."""
        pairs = self.pairs(op)
        if op.name in kinds.TIMES:
            inverse = {
                value for value in sum(pairs, ()) if self.trace.op_name(value) in kinds.INVERSES
            }
            pairs = [(a, b) for a, b in pairs if b in inverse and a not in inverse]
        return any(self.are_summed_in(below, [above]) is not None for above, below in pairs)

    def _mark_softmax(self, weights: int) -> None:
        """Mark the exponentials in weights, and the logarithms and inverses of their sums."""
        for op in self.makers(weights, kinds.OF_A_SUM | _OF_MULTIPLES):
            if op.name in kinds.EXPONENTIALS | kinds.INVERSES:
                self.roles.softmax.add(op.number)
            if op.name in kinds.EXPONENTIALS:
                before = self.makers(op.reads[0].value, _OF_DIFFERENCES)
                self.roles.softmax |= {by.number for by in before if by.name in _OF_SUMS}

    def _mark_shifts(self, op: Op) -> None:
        """Mark `s - m` in `exp(s - m) / sum(exp(s - m))`, where m is the maximum of the group."""
        if op.name not in kinds.SCALINGS:
            return
        for above, below in both_ways(self.factors(op)):
            sums = [self.group(by, kinds.SUMS) for by in self.makers(below, kinds.OF_A_SUM)]
            exps = (by for by in self.makers(above, kinds.SAME) if by.name in kinds.EXPONENTIALS)
            for sub in (by for exp in exps for by in self.makers(exp.reads[0].value, kinds.SAME)):
                shift = sub.args[1] if sub.name in kinds.SUBTRACTS else None
                if type(shift) is Ref:
                    group = self.group_of_maximum(shift.value)
                    if group is not None and group in sums:
                        self.roles.shifts.add(sub.number)

    def _mark_gate(self, op: Op) -> None:
        """Mark the products of a gate as those of an activation or of attention."""
        argument = self.root(self.live_reads(op)[0])
        for product, value in self.products_with_others(op.out, argument):
            others = [v for v in self.factors(product) if v != value]
            if any(self.is_of_gates(other) for other in others):
                continue
            gates_itself = any(self.root(other) == argument for other in others)
            self.roles.hold(product, value, "activation" if gates_itself else "attention")
        for product, gates in self.users(op.out, _OF_COMPLEMENTS):
            if self._is_of_constant_rows(product, gates, op.out):
                self.roles.hold(product, self.factors(product)[0], "attention")

    def _is_of_constant_rows(self, op: Op, gates: set[int], gate: int) -> bool:
        """Whether a product is of a gate and a constant that the pass made, entry by entry.

        Args:
            gates: the values that are made of the gate.
        """
        if op.name not in kinds.TIMES or len(self.factors(op)) != 1 or len(op.reads) != 2:
            return False
        (other,) = (ref.value for ref in op.reads if ref.value not in gates)
        return self.trace.flow.maker[other] >= 0 and self.compare_sizes(
            torch.Size.__eq__, other, gate
        )

    def _mark_linear_attention(self, op: Op) -> bool:
        """Mark attention whose product with the values is divided by the sums of its weights.

        That is `(w v) / sum(w)`, and `q (k^T v) / (q sum(k))`, whose matrix is never computed.
        Returns whether `op` is such a quotient.
        """
        for above, below in self.pairs(op):
            products, share = self._divided_by_a_channel(above, below), 1.0  # w has half already
            if not products:
                products, share = self._divided_at_the_end(above, below), 1 / 2
            for product in [] if products else self.products_behind(below):
                products = products or self._linear_attention(above, product)
            if not products:
                continue
            self.roles.hold(op, below, "attention")
            self.roles.shares[op.number] = {above: 1, below: share}
            self._mark_softmax(below)
            for product, weights in products:
                self.roles.hold(product, weights, "attention")
            if len(products) == 1:  # the trace has the matrix
                self._mark_softmax(products[0][1])
                self.roles.attention.append(AttentionProduct(*products[0], op, below))
            else:  # the values in q (k^T v) get half, and q and k a quarter each, as in (q k^T) v
                for (product, query_or_key), part in zip(products, (1 / 4, 1 / 3), strict=True):
                    shares = dict.fromkeys(self.factors(product), 1 - part)
                    self.roles.shares[product.number] = shares | {query_or_key: part}
            return True
        return False

    def _divided_at_the_end(self, above: int, below: int) -> list[tuple[Op, int]]:
        """Return the product `w v` and its weights, if `below` is the sum of these weights."""
        for product in self.products_behind(above):
            weights = self.are_summed_in(below, self.factors(product))
            if weights is not None:
                return [(product, weights)]
        return []

    def _divided_by_a_channel(self, above: int, below: int) -> list[tuple[Op, int]]:
        """Return `w [v, 1]` and its weights, if its channel of ones is what v is divided by.

        Of `q (k^T [v, 1])`, return both products, with q and k.
        """
        if not self.compare_sizes(is_narrower, below, above):
            return []
        of_both = [op for op in self.products_behind(above) if op in self.products_behind(below)]
        for product in of_both:
            for weights, values in both_ways(self.factors(product)):
                if self.is_joined_with_ones(values):
                    return [(product, weights)]
                for inner in self.products_behind(values):
                    for key, joined in both_ways(self.factors(inner)) if inner != product else ():
                        if self.is_joined_with_ones(joined):
                            return [(product, weights), (inner, key)]
        return []

    def _linear_attention(self, above: int, below: Op) -> list[tuple[Op, int]]:
        """Return the products `q (k^T v)` and `k^T v`, with q and k, if `below` is `q sum(k)`.

        If the trace has the matrix, return the product `(q k^T) v` with the matrix.
        """
        sums = [self.behind(value, _OF_PROJECTIONS) for value in self.factors(below)]
        factors = [self.behind(value, kinds.SAME) for value in self.factors(below)]
        keys: dict[int, list[tuple[int, int]]] = {}  # of each product, with its other factor

        def is_of(value: int, groups: list[set[int]]) -> list[bool]:
            return [bool(self.behind(value, kinds.SAME) & group) for group in groups]

        def are_query_and_key(query: int, key: int) -> bool:
            """Whether q is one factor of the divisor, and k is summed in the other factor."""
            is_query = is_of(query, factors)
            return any(is_query) and is_of(key, sums)[1 - is_query.index(True)]

        for outer in self.products_behind(above):
            if outer is below:
                continue
            for query, rest in both_ways(self.factors(outer)):
                for inner in self.products_behind(rest):
                    if inner is outer or inner is below:
                        continue
                    if inner.number not in keys:  # most products have no key
                        pairs = both_ways(self.factors(inner))
                        keys[inner.number] = [pair for pair in pairs if any(is_of(pair[0], sums))]
                    for key, other in keys[inner.number]:
                        if are_query_and_key(query, key):
                            return [(outer, query), (inner, key)]
                        if are_query_and_key(other, key):
                            return [(outer, rest)]
        return []

    # -- factors of the signal itself ----------------------------------------------------------

    def _mark_factor(self, op: Op) -> bool:
        """Mark `g(x)` in `x g(x)`, or the length of x where x is divided by it.

        Returns whether the product has such a factor.
        """
        factors: list[tuple[Rule, Callable[[int, int], bool]]] = [
            ("activation", self._is_entrywise), ("layernorm", self._is_scale_of)
        ]  # fmt: skip
        if op.name in kinds.QUOTIENTS:
            factors.append(("activation", self._are_of_one_signal))
        for rule, fits in factors:
            for x, factor in self.pairs(op):
                if fits(factor, x):
                    self.roles.hold(op, factor, rule)
                    return True
        return False

    def _are_of_one_signal(self, below: int, above: int) -> bool:
        """Whether both parts of a quotient are made of one signal, entry by entry, as in tanh."""
        signals = set()
        for part in (above, below):
            for value in self.back(part, kinds.ENTRYWISE, lambda _: False):
                if not self.compare_sizes(torch.Size.__eq__, value, part):
                    return False
                if self.trace.op_name(value) not in kinds.ENTRYWISE:
                    signals.add(value)
        return len(signals) == 1

    def _is_entrywise(self, g: int, x: int) -> bool:
        """Whether g is made of x and constants, entry by entry, and is no multiple of x."""
        root = self.root(x)
        back = self.back(g, kinds.ENTRYWISE, lambda value: self.root(value) == root)
        return self.root(g) != root and all(
            self.root(value) == root
            or (
                self.trace.op_name(value) in kinds.ENTRYWISE
                and self.compare_sizes(torch.Size.__eq__, value, g)
            )
            for value in back
        )

    def _is_scale_of(self, scale: int, x: int) -> bool:
        """Whether a value is a root of sums of squares of x, or of x before it was centred."""
        makers = self.makers(scale, kinds.OF_A_SCALE)
        if not any(map(is_root, makers)) or not any(op.name in kinds.SUMMING for op in makers):
            return False
        behind_x = self.behind(x, _WITHOUT_CLAMPS)
        behind_scale = self.behind(scale, kinds.OF_A_SCALE) - {scale}
        return bool(behind_x & behind_scale) and self.is_made_of(
            scale, behind_x.__contains__, kinds.OF_A_SCALE | kinds.SUBTRACTS
        )
