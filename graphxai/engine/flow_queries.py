"""Queries about how data flows through a pass: what a value is made of, and what becomes of it."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any, NamedTuple

import torch

from graphxai.engine import operations as kinds
from graphxai.engine.trace import Op, Ref, Trace, fill_refs

_BROADCASTS = kinds.INDEXES | kinds.WHOLE  # they broadcast the maximum of a group to its members
_MULTIPLES = kinds.that("multiple")  # of a constant and one signal
_POWERS, _VECTOR_NORMS = kinds.that("power"), kinds.that("norms")
_KEEPDIM = -1  # in place of the index of the groups
_OF_COMBINATIONS = kinds.OF_A_SUM | kinds.ADDITIONS | kinds.SCALINGS


class SizeComparison(NamedTuple):
    """Two values whose shapes were compared by a test, and its answer."""

    test: Callable[[torch.Size, torch.Size], bool]
    first: int
    second: int
    answer: bool


class FlowQueries:
    """Answers questions about the live values of a pass.

    Args:
        live: for each value whether it is.
        first_equal: for each value the first one that the same operation made of the same
            arguments.
        size_comparisons: where the comparisons of shapes are noted on which the answers depend.
    """

    def __init__(
        self,
        trace: Trace,
        live: Sequence[bool],
        first_equal: Sequence[int],
        size_comparisons: set[SizeComparison],
    ) -> None:
        self.trace, self.live = trace, live
        self._first_equal, self._size_comparisons = first_equal, size_comparisons
        self._behind: dict[tuple[int, int], set[int]] = {}
        self._roots: dict[int, int] = {}
        self._products: dict[int, list[Op]] = {}

    def compare_sizes(
        self, test: Callable[[torch.Size, torch.Size], bool], first: int, second: int
    ) -> bool:
        """Compare the shapes of two values by a test, and keep the answer with the roles."""
        answer = test(self.trace.shape(first), self.trace.shape(second))
        self._size_comparisons.add(SizeComparison(test, first, second, answer))
        return answer

    def factors(self, op: Op) -> list[int]:
        """Return the live factors of a product, a value twice if it is squared."""
        return [value for value in factors_of(op) if self.live[value]]

    def pairs(self, op: Op) -> list[tuple[int, int]]:
        """Return the two live factors of a product in both orders, or of a quotient in its own."""
        factors = self.factors(op)
        orders = 1 if op.name in kinds.QUOTIENTS else 2
        return both_ways(factors)[:orders] if len(factors) == 2 else []

    def live_reads(self, op: Op) -> list[int]:
        """Return the live values that an operation reads."""
        return [ref.value for ref in op.reads if self.live[ref.value]]

    def root(self, value: int) -> int:
        """Return the value that this one is a constant multiple of, up to its shape."""
        if value not in self._roots:
            root, op = value, self.trace.op_of(value)
            while op is not None and op.name in _MULTIPLES:
                reads = self.live_reads(op)
                divides = op.name in kinds.QUOTIENTS
                if len(reads) != 1 or (divides and op.reads[0].value != reads[0]):
                    break
                root, op = reads[0], self.trace.op_of(reads[0])
            self._roots[value] = self._first_equal[root]
        return self._roots[value]

    def behind(self, value: int, through: Set[str]) -> set[int]:
        """Return all live values that this one is made of by operations in `through`.

        `through` is one of this file's constants, because results are kept by its `id`.
        """
        key = (self._first_equal[value], id(through))
        if key not in self._behind:
            self._behind[key] = set(self.back(value, through, lambda _: False))
        return self._behind[key]

    def makers(self, value: int, through: Set[str]) -> list[Op]:
        """Return the operations that made the values from which this one was made."""
        ops = map(self.trace.op_of, self.behind(value, through))
        return [op for op in ops if op is not None]

    def is_made_of(self, value: int, ends: Callable[[int], bool], through: Set[str]) -> bool:
        """Whether all paths back from a value, by operations in `through`, reach an end."""
        back = self.back(value, through, ends)
        return all(ends(value) or self.trace.op_name(value) in through for value in back)

    def back(self, value: int, through: Set[str], ends: Callable[[int], bool]) -> Iterator[int]:
        """Yield the values that this one was made from, up to the ends, and equal ones once."""

        def further(value: int, op: Op) -> Iterator[int]:
            goes_on = op.name in through and not ends(value)
            return map(self._first_equal.__getitem__, self.live_reads(op) if goes_on else ())

        return self.trace.ancestors(self._first_equal[value], further)

    def users(self, value: int, through: Set[str]) -> Iterator[tuple[Op, set[int]]]:
        """Yield operations that read a value, or what operations in `through` make of it.

        With each comes the set of the values that were made of it.
        """
        derived, todo = {value}, [value]
        while todo:
            for number in self.trace.flow.uses[todo.pop()]:
                op = self.trace.ops[number]
                if op.name in through:
                    new = {ref.value for ref in op.makes} - derived
                    derived |= new
                    todo.extend(new)
                else:
                    yield op, derived

    def are_summed_in(self, below: int, candidates: Iterable[int]) -> int | None:
        """Return the first candidate whose entries are summed in a divisor, or None."""
        candidates = list(candidates)
        for op in self.makers(below, kinds.OF_A_SUM):
            sums_sizes = op.name in _VECTOR_NORMS and op.args[1:2] in ((1,), (1.0,))  # `p=1`
            if op.name in kinds.SUMS | kinds.MATRIX_PRODUCTS or sums_sizes:
                reads = self.live_reads(op)
                summed = {root for read in reads for root in self.roots_of(read)}
                value = next((v for v in candidates if self.roots_of(v) & summed), None)
                if value is None:
                    continue
                others = [v for v in factors_of(op) if not self.live[v]]
                of_matrices = op.name in kinds.MATRIX_PRODUCTS  # with equal factors it sums
                if not of_matrices or (len(others) == 1 and self.trace.is_uniform(others[0])):
                    return value
        return None

    def is_joined_with_ones(self, value: int) -> bool:
        """Whether rows have a further channel of ones, or of another number."""
        for op in self.makers(value, kinds.SAME):
            if op.name in kinds.PADS and self.trace.pads_with(op):
                return True
            if op.name in kinds.CONCATENATES and any(
                not self.live[ref.value] and self.trace.is_uniform(ref.value) for ref in op.reads
            ):
                return True
        return False

    def roots_of(self, value: int) -> set[int]:
        """Return what a value, also before it was moved, is a constant multiple of."""
        return {self.root(before) for before in self.behind(value, kinds.SAME)}

    def group_of_maximum(self, value: int) -> tuple[object, int] | None:
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
        groups = None if op is None else self.group(op, kinds.LARGEST)
        return groups if groups is not None and groups[1] == index else None

    def group(self, op: Op, names: Set[str]) -> tuple[object, int] | None:
        """Return the axes of a reduction and the index of its groups; `_KEEPDIM` if axes stay."""
        if op.name not in names or len(op.args) < 3:
            return None
        dims, by = op.args[1:3]
        dims = dims if isinstance(dims, list | tuple) else [dims]
        axes = tuple(dim % len(self.trace.shape(op.out)) for dim in dims)
        if type(by) is Ref:
            return axes, self.trace.origin(by.value, kinds.WHOLE)
        return (axes, _KEEPDIM) if by is True else None

    def is_of_gates(self, value: int) -> bool:
        """Whether a value is made of gates alone."""
        return self.is_made_of(
            value, lambda v: self.trace.op_name(v) in kinds.GATES, kinds.ON_THE_WAY
        )

    def products_behind(self, value: int) -> list[Op]:
        """Return the products of two signals that a value combines, by sums and by constants."""
        if value not in self._products:
            makers = self.makers(value, _OF_COMBINATIONS)
            products = (op for op in makers if op.name in kinds.PRODUCTS)
            self._products[value] = [op for op in products if len(self.factors(op)) == 2]
        return self._products[value]


def first_of_equals(trace: Trace) -> tuple[list[int], list[list[int]]]:
    """Find, for each value, the first one that the same operation made of the same arguments.

    Returns these values, and the groups of operations that only differ by numbers among their
    arguments.
    """
    first = list(range(len(trace.flow.maker)))
    alike: dict[object, list[Op]] = {}
    for op in trace.ops:
        if (
            op.in_place
            or op.number in trace.random_results
            or not any(trace.flow.live[r.value] for r in op.reads)
        ):
            continue
        key = (op.func, tuple(first[ref.value] for ref in op.reads))
        group = alike.setdefault(key, [])
        numbers = _numbers_among(op)
        equal = next((earlier for earlier in group if _numbers_among(earlier) == numbers), op)
        group.append(op)
        for ref, other in zip(op.makes, equal.makes, strict=True):
            first[ref.value] = first[other.value]
    groups = ([op.number for op in group] for group in alike.values())
    return first, [group for group in groups if len(group) > 1]


def _numbers_among(op: Op) -> str:
    """Write out everything among an operation's arguments that is no tensor."""
    return repr(fill_refs((op.args, op.kwargs), lambda ref: "tensor"))


def is_smaller(first: torch.Size, second: torch.Size) -> bool:
    """Whether a tensor of one shape has fewer entries than one of another."""
    return first.numel() < second.numel()


def is_narrower(first: torch.Size, second: torch.Size) -> bool:
    """Whether a tensor has one channel and another one has several, or is as narrow."""
    return bool(first and second) and first[-1] == 1 <= second[-1]


def both_ways(pair: list[int]) -> list[tuple[int, int]]:
    """Return two factors in both orders."""
    return [(pair[0], pair[1]), (pair[1], pair[0])]


def is_root(op: Op) -> bool:
    """Whether an operation is a square root, or a length."""
    if op.name in kinds.POWERS:
        return any(isinstance(arg, float) and abs(arg) == 0.5 for arg in op.args[1:])
    return op.name in kinds.ROOTS


def index_of(op: Op, args: Sequence[Any] | None = None) -> Any:
    """Return the index, or the indices of all axes, by which an operation chooses entries.

    Args:
        args: the arguments of the operation, by default as they are in the list.
    """
    place = kinds.operation(op.name).index
    return None if place is None else (args or op.args)[place]


def factors_of(op: Op) -> list[int]:
    """Return the values that a product multiplies, a value twice if it is squared."""
    args = op.args[1:] if op.name in kinds.PLUS_PRODUCT else op.args
    return [arg.value for arg in args[:2] if type(arg) is Ref]


# -- sparsemax and entmax written out --------------------------------------------------------------


TOLERANCE = 1e-3  # of the sums


def is_sparse_softmax(queries: FlowQueries, op: Op) -> bool:
    """Whether an operation makes weights that sum to one by a threshold of their own logits.

    Models write out `max(z - t, 0)`, or a power of it. The threshold t is computed from z itself,
    by sorting or by bisection, so that the results sum to one (Martins and Astudillo, ICML 2016;
    Peters, Niculae and Martins, ACL 2019). They weigh values as a softmax does.
    """
    if op.name not in _POWERS | kinds.CLAMPS or type(op.args[0]) is not Ref:
        return False
    base = op if op.name in kinds.CLAMPS else _maker(queries.trace, op.args[0], kinds.CLAMPS)
    if base is None or len({ref.value for ref in op.reads if queries.live[ref.value]}) != 1:
        return False
    below = base.args[0]
    above = _maker(queries.trace, below, kinds.SUBTRACTS) if type(below) is Ref else None
    if above is None or len(above.reads) != 2 or not queries.live[above.reads[0].value]:
        return False
    logits, threshold = (ref.value for ref in above.reads)
    depends = queries.trace.flow.depends
    return (
        queries.compare_sizes(is_smaller, threshold, logits)
        and bool(depends[threshold] & depends[logits])
        and _sums_to_one(queries, op)
    )


def _maker(trace: Trace, ref: Ref, names: Set[str]) -> Op | None:
    """Return the operation that made a value which was only moved since, if it has such a name."""
    op = trace.op_of(trace.origin(ref.value, kinds.SAME))
    return op if op is not None and op.name in names else None


def _sums_to_one(queries: FlowQueries, op: Op) -> bool:
    """Whether the recorded results sum to one along an axis, where they are not all zero."""
    weights = queries.trace.tensor(op.out).detach()
    if not weights.numel() or bool((weights < 0).any()):
        return False
    for axis in range(weights.dim()):
        sums = weights.double().sum(axis)
        if weights.shape[axis] > 1 and bool((((sums - 1).abs() < TOLERANCE) | (sums == 0)).all()):
            return bool(sums.any())
    return False
