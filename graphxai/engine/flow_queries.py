"""Queries about how data flows through a pass: what a value is made of, and what becomes of it."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import permutations
from typing import Any, NamedTuple

import torch

from graphxai.engine import operations as kinds
from graphxai.engine.rules import Rule
from graphxai.engine.trace import Op, Ref, Trace, fill_refs

_MULTIPLES = kinds.that("multiple")  # of a constant and one signal
_VECTOR_NORMS = kinds.that("norms")
_SUMMING, _OF_A_SCALE = kinds.SUMS | kinds.that("squares"), kinds.OF_A_SUM | kinds.that("scale")
_WITHOUT_CLAMPS = kinds.ON_THE_WAY - kinds.CLAMPS
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

    Attributes:
        reads: for each operation the live values that it reads.
        factors: for each product its live factors, one twice if it is squared.
        pairs: for each product of two live factors these in both orders, or of a quotient in its
            own. It is empty for other products.
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
        self._behind: dict[tuple[int, frozenset[str]], set[int]] = {}
        self._roots: dict[int, int] = {}
        self._products: dict[int, list[Op]] = {}
        self.reads = [[ref.value for ref in op.reads if live[ref.value]] for op in trace.ops]
        self.factors: dict[int, list[int]] = {}
        self.pairs: dict[int, list[tuple[int, int]]] = {}
        for op in trace.ops:
            if op.name in kinds.PRODUCTS:
                factors = [value for value in factors_of(op) if live[value]]
                orders = list(permutations(factors, 2))[: 1 if op.name in kinds.QUOTIENTS else 2]
                self.factors[op.number] = factors
                self.pairs[op.number] = orders if len(factors) == 2 else []

    def compare_sizes(
        self, test: Callable[[torch.Size, torch.Size], bool], first: int, second: int
    ) -> bool:
        """Compare the shapes of two values by a test, and keep the answer with the roles."""
        answer = test(self.trace.shape(first), self.trace.shape(second))
        self._size_comparisons.add(SizeComparison(test, first, second, answer))
        return answer

    def root(self, value: int) -> int:
        """Return the value that this one is a constant multiple of, up to its shape."""
        if value not in self._roots:
            root, op = value, self.trace.op_of(value)
            while op is not None and op.name in _MULTIPLES:
                reads = self.reads[op.number]
                divides = op.name in kinds.QUOTIENTS
                if len(reads) != 1 or (divides and op.reads[0].value != reads[0]):
                    break
                root, op = reads[0], self.trace.op_of(reads[0])
            self._roots[value] = self._first_equal[root]
        return self._roots[value]

    def behind(self, value: int, through: frozenset[str]) -> set[int]:
        """Return all live values that this one is made of by operations in `through`."""
        key = (self._first_equal[value], through)
        if key not in self._behind:
            self._behind[key] = set(self.back(value, through, lambda _: False))
        return self._behind[key]

    def makers(self, value: int, through: frozenset[str]) -> list[Op]:
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
            return map(self._first_equal.__getitem__, self.reads[op.number] if goes_on else ())

        return ancestors(self.trace, self._first_equal[value], further)

    def are_summed_in(self, below: int, candidates: Iterable[int]) -> int | None:
        """Return the first candidate whose entries are summed in a divisor, or None."""
        candidates = list(candidates)
        for op in self.makers(below, kinds.OF_A_SUM):
            sums_sizes = op.name in _VECTOR_NORMS and op.args[1:2] in ((1,), (1.0,))  # `p=1`
            if op.name in kinds.SUMS | kinds.MATRIX_PRODUCTS or sums_sizes:
                reads = self.reads[op.number]
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
            self._products[value] = [op for op in products if len(self.factors[op.number]) == 2]
        return self._products[value]

    # -- factors of the signal itself ----------------------------------------------------------

    def factor_of_signal(self, op: Op) -> tuple[int, Rule] | None:
        """Find `g(x)` in `x g(x)`, or the length of x where x is divided by it.

        Returns this factor of the product, and the rule that holds it constant.
        """
        tests: list[tuple[Rule, Callable[[int, int], bool]]] = [
            ("activation", self._is_entrywise), ("layernorm", self._is_scale_of)
        ]  # fmt: skip
        if op.name in kinds.QUOTIENTS:
            tests.append(("activation", self._are_of_one_signal))
        for rule, fits in tests:
            for x, factor in self.pairs[op.number]:
                if fits(factor, x):
                    return factor, rule
        return None

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
        makers = self.makers(scale, _OF_A_SCALE)
        if not any(map(is_root, makers)) or not any(op.name in _SUMMING for op in makers):
            return False
        behind_x = self.behind(x, _WITHOUT_CLAMPS)
        behind_scale = self.behind(scale, _OF_A_SCALE) - {scale}
        return bool(behind_x & behind_scale) and self.is_made_of(
            scale, behind_x.__contains__, _OF_A_SCALE | kinds.SUBTRACTS
        )


def ancestors(
    trace: Trace, value: int, further: Callable[[int, Op], Iterable[int]]
) -> Iterator[int]:
    """Yield a value and those it is made of.

    Args:
        further: says, for a value and the operation that made it, which values to go on with.
    """
    visited, todo = {value}, [value]
    while todo:
        value = todo.pop()
        yield value
        if (op := trace.op_of(value)) is not None:
            new = set(further(value, op)) - visited
            visited |= new
            todo.extend(new)


def users(trace: Trace, value: int, through: Set[str]) -> Iterator[tuple[Op, set[int]]]:
    """Yield operations that read a value, or what operations in `through` make of it.

    With each comes the set of the values that were made of it.
    """
    derived, todo = {value}, [value]
    while todo:
        for number in trace.flow.uses[todo.pop()]:
            op = trace.ops[number]
            if op.name in through:
                new = {ref.value for ref in op.makes} - derived
                derived |= new
                todo.extend(new)
            else:
                yield op, derived


def first_of_equals(trace: Trace) -> tuple[list[int], list[list[int]]]:
    """Find, for each value, the first one that the same operation made of the same arguments.

    Returns these values, and the groups of operations that only differ by numbers among their
    arguments.
    """
    first = list(range(len(trace.flow.maker)))
    alike: dict[object, list[Op]] = {}
    for op in trace.ops:
        live = any(trace.flow.live[ref.value] for ref in op.reads)
        if op.in_place or op.number in trace.random_results or not live:
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
    place = kinds.OPERATIONS[op.name].index
    return None if place is None else (args or op.args)[place]


def factors_of(op: Op) -> list[int]:
    """Return the values that a product multiplies, a value twice if it is squared."""
    args = op.args[1:] if op.name in kinds.PLUS_PRODUCT else op.args
    return [arg.value for arg in args[:2] if type(arg) is Ref]
