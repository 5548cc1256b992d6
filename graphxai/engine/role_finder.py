"""Find the roles of values by how data flows through the whole list of operations.

`find_roles` is the entry; `plan` says what roles there are.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from heapq import heappop, heappush
from itertools import permutations

import torch

from graphxai.engine import operations as kinds
from graphxai.engine.flow_queries import (
    FlowQueries,
    ancestors,
    first_of_equals,
    index_of,
    is_narrower,
    is_smaller,
    users,
)
from graphxai.engine.plan import AttentionProduct, Roles
from graphxai.engine.rules import Rule
from graphxai.engine.trace import WEIGHTS, Op, Ref, Trace

_OF_SUMS = kinds.LOGARITHMS - kinds.LOG_SOFTMAX
_BROADCASTS = kinds.INDEXES | kinds.WHOLE  # they broadcast the maximum of a group to its members
_POWERS = kinds.that("power")
_KEEPDIM = -1  # in place of the index of the groups
_OF_MULTIPLES = kinds.SAME | kinds.SCALINGS
_OF_DIFFERENCES = kinds.SAME | kinds.ADDITIONS | kinds.LARGEST | kinds.that("negates")
_OF_PROJECTIONS = kinds.SAME | kinds.SUMS | kinds.PRODUCTS | kinds.ADDS
_OF_KERNELS = _OF_MULTIPLES | kinds.POWERS
_KERNELS = kinds.that("kernel")  # they make positive weights
_OF_SCORES = kinds.OF_A_SUM | kinds.ADDITIONS | kinds.SCALINGS | kinds.ENTRYWISE
_DISTANCES = kinds.moving_ids("cdist")
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
    """Finds the roles of live values, and adds them to those that are known."""

    def __init__(self, trace: Trace, live: Sequence[bool], roles: Roles) -> None:
        super().__init__(trace, live, roles.first_equal, roles.size_comparisons)
        self.roles = roles
        signals = [op for op in trace.ops if any(self.live[r.value] for r in op.reads)]
        weights = [op for op in signals if self._makes_weights(op)]
        self._weights = {op.number for op in weights}
        for op in weights:
            for product, value in self.products_with_others(op.out):
                self._hold(product, value, "attention")
                self.roles.attention.append(AttentionProduct(product, value, op))
            self._mark_softmax(op.out)
            self._mark_shifts(op)
        for op in signals:
            if op.name in kinds.GATES:
                self._mark_gate(op)
        for op in signals:
            if op.name in kinds.SCALINGS and len(self.factors[op.number]) == 2:
                if (factor := self.factor_of_signal(op)) is not None:
                    self._hold(op, *factor)
                else:
                    self._mark_linear_attention(op)
        with_weights = {product.op.number for product in self.roles.attention}
        for op in signals:
            if op.name in kinds.MIXING and op.number not in with_weights:
                self._mark_kernel(op)
        products = (op for op in signals if op.name in kinds.MIXING)
        self.roles.products |= {op.number for op in products if len(self.factors[op.number]) == 2}

    def _hold(self, op: Op, value: int, rule: Rule) -> None:
        """Note that an operation may hold a value constant, under a rule. The first rule stays."""
        self.roles.held.setdefault(op.number, {}).setdefault(value, rule)

    def products_with_others(
        self, start: int, argument: int | None = None
    ) -> Iterator[tuple[Op, int]]:
        """Yield the products, in order, in which a value made from `start` meets another signal.

        With each comes the value. If `start` is a gate, `argument` is the root of the gate's x.
        """
        uses, derived = self.trace.flow.uses, {start}
        queued = set(uses[start])
        todo = sorted(queued)  # a heap
        while todo:
            op = self.trace.ops[heappop(todo)]
            if op.name in kinds.PRODUCTS and not self._makes_other_weights(op, derived, argument):
                factors = self.factors[op.number]
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
        others = (value for value in self.reads[op.number] if value not in values)
        multiples = (self.makers(value, _OF_MULTIPLES) for value in others)
        return all(any(op.number in self._weights for op in makers) for makers in multiples)

    def _makes_other_weights(self, op: Op, derived: set[int], argument: int | None) -> bool:
        """Whether a product with weights makes other weights, as with a gate for every pair.

        The product `x g(x)` of a gate makes no weights. `argument` is the root of the gate's x.
        """
        if op.name not in kinds.TIMES or op.in_place:
            return False
        factors = self.factors[op.number]
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
            for user, new_weights in users(self.trace, op.out, kinds.SAME)
        )

    def _multiplies_values(self, op: Op, weights: set[int]) -> bool:
        """Whether a product is of weights and values that are no weights, nor made of them."""
        factors = self.factors[op.number] if op.name in kinds.PRODUCTS else []
        if len(factors) != 2 or sum(value in weights for value in factors) != 1:
            return False
        (values,) = (value for value in factors if value not in weights)
        behind = ancestors(self.trace, values, lambda _, op: self.reads[op.number])
        return values not in self.roles.held.get(op.number, ()) and weights.isdisjoint(behind)

    # -- attention and gates -------------------------------------------------------------------

    def _makes_weights(self, op: Op) -> bool:
        """Whether an operation makes weights that sum to one."""
        if op.name in kinds.SOFTMAX:
            return True
        if op.name in kinds.SCALINGS and self._is_normalised(op):
            return True
        exponential = op.name in kinds.EXPONENTIALS  # of a `log_softmax`, or `s - logsumexp(s)`
        before = self.makers(self.reads[op.number][0], _OF_DIFFERENCES) if exponential else ()
        return self._is_sparse_softmax(op) or any(by.name in kinds.LOGARITHMS for by in before)

    def _is_normalised(self, op: Op) -> bool:
        """Whether a quotient is `w / sum(w)`, as in a softmax over edges."""
        pairs = self.pairs[op.number]
        if op.name in kinds.TIMES:
            inverse = {v for v in sum(pairs, ()) if self.trace.op_name(v) in kinds.INVERSES}
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
        for above, below in permutations(self.factors[op.number], 2):
            sums = [self._group(by, kinds.SUMS) for by in self.makers(below, kinds.OF_A_SUM)]
            exps = (by for by in self.makers(above, kinds.SAME) if by.name in kinds.EXPONENTIALS)
            for sub in (by for exp in exps for by in self.makers(exp.reads[0].value, kinds.SAME)):
                shift = sub.args[1] if sub.name in kinds.SUBTRACTS else None
                if type(shift) is Ref:
                    group = self._group_of_maximum(shift.value)
                    if group is not None and group in sums:
                        self.roles.shifts.add(sub.number)

    def _group_of_maximum(self, value: int) -> tuple[object, int] | None:
        """Return the groups whose maximum this value holds, broadcast to their members."""
        op, index = self.trace.op_of(value), _KEEPDIM
        while op is not None and op.name in _BROADCASTS:
            if op.name in kinds.INDEXES:
                by = index_of(op)
                by = by[0] if isinstance(by, list | tuple) and len(by) == 1 else by
                if type(by) is not Ref:
                    return None
                index = self.trace.origin(by.value, kinds.WHOLE)
            op = self.trace.op_of(op.reads[0].value)
        groups = None if op is None else self._group(op, kinds.LARGEST)
        return groups if groups is not None and groups[1] == index else None

    def _group(self, op: Op, names: Set[str]) -> tuple[object, int] | None:
        """Return the axes of a reduction and the index of its groups; `_KEEPDIM` if axes stay."""
        if op.name not in names or len(op.args) < 3:
            return None
        dims, by = op.args[1:3]
        dims = dims if isinstance(dims, list | tuple) else [dims]
        axes = tuple(dim % len(self.trace.shape(op.out)) for dim in dims)
        if type(by) is Ref:
            return axes, self.trace.origin(by.value, kinds.WHOLE)
        return (axes, _KEEPDIM) if by is True else None

    def _mark_gate(self, op: Op) -> None:
        """Mark the products of a gate as those of an activation or of attention."""
        argument = self.root(self.reads[op.number][0])
        for product, value in self.products_with_others(op.out, argument):
            others = [v for v in self.factors[product.number] if v != value]
            if any(self.is_of_gates(other) for other in others):
                continue
            gates_itself = any(self.root(other) == argument for other in others)
            self._hold(product, value, "activation" if gates_itself else "attention")
        for product, gates in users(self.trace, op.out, _OF_COMPLEMENTS):
            if self._is_of_constant_rows(product, gates, op.out):
                self._hold(product, self.factors[product.number][0], "attention")

    def _is_of_constant_rows(self, op: Op, gates: set[int], gate: int) -> bool:
        """Whether a product is of a gate and a constant that the pass made, entry by entry."""
        if op.name not in kinds.TIMES or len(self.factors[op.number]) != 1 or len(op.reads) != 2:
            return False
        (other,) = (ref.value for ref in op.reads if ref.value not in gates)
        return self.trace.flow.maker[other] >= 0 and self.compare_sizes(
            torch.Size.__eq__, other, gate
        )

    def _mark_kernel(self, op: Op) -> None:
        """Mark attention without a softmax, if a kernel makes the weights of all pairs positive."""
        for weights, values in permutations(self.factors[op.number], 2):
            kernel = self._kernel_of_pairs(weights) if weights != values else None
            if kernel is not None and self._has_more(op, weights):
                self._hold(op, weights, "attention")
                self.roles.attention.append(AttentionProduct(op, weights, kernel))
                return

    def _kernel_of_pairs(self, weights: int) -> Op | None:
        """Return the operation that makes weights positive, of a product or distance of pairs."""
        kernel = self.trace.op_of(weights)
        while kernel and kernel.name in _OF_KERNELS and len({*self.reads[kernel.number]}) == 1:
            kernel = self.trace.op_of(self.reads[kernel.number][0])
        from_zero = kernel and kernel.name in kinds.CLAMPS and kernel.args[1:2] == (0,)
        if kernel is None or not (kernel.name in _KERNELS or from_zero):
            return None
        for op in self.makers(self.reads[kernel.number][0], _OF_SCORES):
            of_two = op.name in kinds.MIXING and len({*self.factors[op.number]}) == 2
            of_two = of_two and op.number not in self.roles.held
            if op.name in _DISTANCES or (of_two and self._has_more(op, kernel.out)):
                return kernel
        return None

    def _has_more(self, op: Op, value: int) -> bool:
        """Whether a product is of matrices, or has more entries than a value."""
        return op.name in kinds.MATRIX_PRODUCTS or self.compare_sizes(is_smaller, value, op.out)

    def _mark_linear_attention(self, op: Op) -> None:
        """Mark attention whose product with the values is divided by the sums of its weights.

        That is `(w v) / sum(w)`, and `q (k^T v) / (q sum(k))`, whose matrix is never computed.
        """
        for above, below in self.pairs[op.number]:
            products, share = self._divided_by_a_channel(above, below), 1.0  # w has half already
            if not products:
                products, share = self._divided_at_the_end(above, below), 1 / 2
            for product in [] if products else self.products_behind(below):
                products = products or self._linear_attention(above, product)
            if not products:
                continue
            self._hold(op, below, "attention")
            self.roles.shares[op.number] = {above: 1, below: share}
            self._mark_softmax(below)
            for product, weights in products:
                self._hold(product, weights, "attention")
            if len(products) == 1:  # the trace has the matrix
                self._mark_softmax(products[0][1])
                self.roles.attention.append(AttentionProduct(*products[0], op, below))
            else:  # the values in q (k^T v) get half, and q and k a quarter each, as in (q k^T) v
                for (product, query_or_key), part in zip(products, (1 / 4, 1 / 3), strict=True):
                    shares = dict.fromkeys(self.factors[product.number], 1 - part)
                    self.roles.shares[product.number] = shares | {query_or_key: part}
            return

    def _divided_at_the_end(self, above: int, below: int) -> list[tuple[Op, int]]:
        """Return the product `w v` and its weights, if `below` is the sum of these weights."""
        for product in self.products_behind(above):
            weights = self.are_summed_in(below, self.factors[product.number])
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
            for weights, values in permutations(self.factors[product.number], 2):
                if self.is_joined_with_ones(values):
                    return [(product, weights)]
                for inner in self.products_behind(values):
                    pairs = permutations(self.factors[inner.number], 2)
                    for key, joined in pairs if inner != product else ():
                        if self.is_joined_with_ones(joined):
                            return [(product, weights), (inner, key)]
        return []

    def _linear_attention(self, above: int, below: Op) -> list[tuple[Op, int]]:
        """Return the products `q (k^T v)` and `k^T v`, with q and k, if `below` is `q sum(k)`.

        If the trace has the matrix, return the product `(q k^T) v` with the matrix.
        """
        sums = [self.behind(value, _OF_PROJECTIONS) for value in self.factors[below.number]]
        factors = [self.behind(value, kinds.SAME) for value in self.factors[below.number]]
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
            for query, rest in permutations(self.factors[outer.number], 2):
                for inner in self.products_behind(rest):
                    if inner is outer or inner is below:
                        continue
                    if inner.number not in keys:  # most products have no key
                        pairs = permutations(self.factors[inner.number], 2)
                        keys[inner.number] = [pair for pair in pairs if any(is_of(pair[0], sums))]
                    for key, other in keys[inner.number]:
                        if are_query_and_key(query, key):
                            return [(outer, query), (inner, key)]
                        if are_query_and_key(other, key):
                            return [(outer, rest)]
        return []

    # -- sparsemax and entmax written out ------------------------------------------------------

    def _is_sparse_softmax(self, op: Op) -> bool:
        """Whether an operation makes weights that sum to one by a threshold of their own logits.

        Models write out `max(z - t, 0)`, or a power of it. The threshold t is computed from z
        itself, by sorting or by bisection, so that the results sum to one (Martins and Astudillo,
        ICML 2016; Peters, Niculae and Martins, ACL 2019). They weigh values as a softmax does.
        """
        if op.name not in _POWERS | kinds.CLAMPS or type(op.args[0]) is not Ref:
            return False
        base = op if op.name in kinds.CLAMPS else self._maker(op.args[0], kinds.CLAMPS)
        if base is None or len({ref.value for ref in op.reads if self.live[ref.value]}) != 1:
            return False
        below = base.args[0]
        above = self._maker(below, kinds.SUBTRACTS) if type(below) is Ref else None
        if above is None or len(above.reads) != 2 or not self.live[above.reads[0].value]:
            return False
        logits, threshold = (ref.value for ref in above.reads)
        depends = self.trace.flow.depends
        return (
            self.compare_sizes(is_smaller, threshold, logits)
            and bool(depends[threshold] & depends[logits])
            and self.trace.sums_to_one(op.out)
        )

    def _maker(self, ref: Ref, names: Set[str]) -> Op | None:
        """Return the operation of such a name that made a value, if it was only moved since."""
        op = self.trace.op_of(self.trace.origin(ref.value, kinds.SAME))
        return op if op is not None and op.name in names else None
