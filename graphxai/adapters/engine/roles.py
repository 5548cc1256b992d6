"""What is what in a recorded pass: attention, gates, scales of norms, activations.

Every decision follows from how data flows through the whole list, never from the name of a class,
a module or an attribute. A mark says that an operation takes some of its arguments as constants, or
that a product gives each factor half of its relevance:

* attention: a softmax, in any spelling, whose result meets values in a product;
* gate: a sigmoid that multiplies another signal, or anything computed only from such gates;
* scale: a root of sums of squares that divides what the squares are of, as in every norm;
* activation: of `x g(x)`, entry by entry, the factor `g(x)`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any, Literal, NamedTuple

import torch

from .trace import WEIGHTS, Op, Ref, Trace, fill_refs
from .vocabulary import (
    ADDITIONS,
    GATES,
    MATRIX_PRODUCTS,
    PLUS_PRODUCT,
    PRODUCTS,
    ROOTS,
    SAME,
    SOFTMAX,
    SUMS,
)

Rule = Literal["attention", "layernorm", "activation"]
ENTRYWISE = {
    "abs", "acos", "add", "asin", "asinh", "atan", "celu", "clamp", "clamp_max", "clamp_min", "cos",
    "cosh", "div", "elu", "eq", "erf", "erfc", "exp", "exp2", "expm1", "ge", "gelu", "gt",
    "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "le", "leaky_relu", "log", "log10",
    "log1p", "log2", "log_sigmoid_forward", "logit", "lt", "masked_fill", "maximum", "minimum",
    "mish", "mul", "ne", "neg", "pow", "reciprocal", "relu", "rsqrt", "rsub", "selu", "sgn",
    "sigmoid", "sign", "silu", "sin", "sinh", "softplus", "softshrink", "special_ndtr", "sqrt",
    "square", "sub", "tan", "tanh", "threshold", "_to_copy", "view", "where",
}  # fmt: skip
OF_A_SUM = SAME | SUMS | {"add", "clamp", "clamp_min", "maximum", "reciprocal"}
OF_A_SCALE = OF_A_SUM | {"sqrt", "rsqrt", "pow", "mul", "div", "square", "var", "var_mean", "std",
                         "std_mean", "linalg_vector_norm", "norm", "abs", "neg", "dot",
                         "clamp_max"}  # fmt: skip
SUMMING = SUMS | {"std", "std_mean", "var", "var_mean", "linalg_vector_norm", "norm", "dot"}
_WHOLE = {"expand", "detach", "alias", "clone", "view", "unsqueeze"}  # a view of all entries
_BESIDE = {"index_select", "index", "expand", "detach", "alias", "clone"}  # a maximum and its group
_KEPT = -1
ON_THE_WAY = SAME | SUMS | ADDITIONS | {"neg", "clamp", "clamp_min", "mul", "div"}
_WITHOUT_CLAMPS = ON_THE_WAY - {"clamp", "clamp_min"}
_OF_MULTIPLES = SAME | {"mul", "div"}
_OF_DIFFERENCES = SAME | {"sub", "add", "neg"}
_OF_COMBINATIONS = OF_A_SUM | ADDITIONS | {"mul", "div"}
_OF_PROJECTIONS = SAME | SUMS | MATRIX_PRODUCTS | {"mul", "div", "add"}


class AttentionProduct(NamedTuple):
    """Weights meet values in a product: the product, the weights, where they come from.

    origin: the operation that made the weights, such as the softmax, or that divides the result by
    their sums; divisor: in that case these sums, or their reciprocals, by value.
    """

    product: Op
    weights: int
    origin: Op
    divisor: int | None = None


class SizeComparison(NamedTuple):
    """Two values whose sizes were compared, and the answer."""

    test: Callable[[torch.Size, torch.Size], bool]
    first: int
    second: int
    answer: bool


@dataclass(eq=False)
class Roles:
    """Values held constant by the operations that read them, and products that are halved.

    held: by number of the operation, each value with its rule. attention: where weights that sum
    to one meet values. products: numbers of products of two signals. shares: by number of a product
    or quotient whose factors do not get half each, what each gets. softmax: numbers of the
    operations that a softmax is written out with. shifts: numbers of operations that subtract a
    constant from what a softmax is of, where it cancels. first: for every value the first that the
    same operation made of the same arguments.

    The marks of another pass with the same operations are the same, if the answers about `sizes`
    are, and if in each of `alike`, groups of operations on the same values, equal numbers are given
    to the same ones.
    """

    held: dict[int, dict[int, Rule]] = field(default_factory=dict)
    attention: list[AttentionProduct] = field(default_factory=list)
    products: set[int] = field(default_factory=set)
    shares: dict[int, dict[int, float]] = field(default_factory=dict)
    softmax: set[int] = field(default_factory=set)
    shifts: set[int] = field(default_factory=set)
    sizes: set[SizeComparison] = field(default_factory=set)
    alike: list[list[int]] = field(default_factory=list)
    first: list[int] = field(default_factory=list)

    def hold(self, op: Op, value: int, rule: Rule) -> None:
        """Mark a value as constant where `op` reads it."""
        self.held.setdefault(op.number, {}).setdefault(value, rule)


def find_roles(trace: Trace) -> Roles:
    """All marks of a pass, whatever the rules in force.

    What other inputs alone go into, such as an encoder of positions, is marked by itself: its
    attention is held constant, but is none between nodes.
    """
    first, alike = _first_of_equals(trace)
    marks = Roles(alike=alike, first=first)
    _RoleFinder(trace, [bool(live & 1) for live in trace.flow.live], marks)
    others = [bool(live & ~WEIGHTS) and not live & 1 for live in trace.flow.live]
    if any(others):
        _RoleFinder(trace, others, replace(marks, attention=[]))  # all else is added to the same
    return marks


class _RoleFinder:
    """Finds the marks of operations on some values; live: which."""

    def __init__(self, trace: Trace, live: Sequence[bool], marks: Roles) -> None:
        self.trace, self.live, self.marks = trace, live, marks
        self._first = marks.first
        self._behind: dict[tuple[int, int], set[int]] = {}
        self._roots: dict[int, int] = {}
        self._products: dict[int, list[Op]] = {}
        signals = [op for op in trace.ops if any(self.live[r.value] for r in op.reads)]
        weights = [op for op in signals if self._makes_weights(op)]
        self._weights = {op.number for op in weights}
        for op in weights:
            self._mark_attention(op)
            self._mark_softmax(op.out)
            self._mark_shifts(op)
        for op in signals:
            if op.name in GATES:
                self._mark_gate(op)
        for op in signals:
            if op.name in ("mul", "div") and len(self.factors(op)) == 2:
                self._mark_factor(op) or self._mark_linear_attention(op)
        products = (op for op in signals if op.name in PRODUCTS - {"div"})
        self.marks.products |= {op.number for op in products if len(self.factors(op)) == 2}

    # -- queries -------------------------------------------------------------------------------

    def sizes(
        self, test: Callable[[torch.Size, torch.Size], bool], first: int, second: int
    ) -> bool:
        """A question about the shapes of two values."""
        answer = test(self.trace.shape(first), self.trace.shape(second))
        self.marks.sizes.add(SizeComparison(test, first, second, answer))
        return answer

    def factors(self, op: Op) -> list[int]:
        """The live factors of a product; a value twice if it is squared."""
        return [value for value in factors_of(op) if self.live[value]]

    def pairs(self, op: Op) -> list[tuple[int, int]]:
        """The two live factors of a product in either order; those of a quotient in its own."""
        factors = self.factors(op)
        return both_ways(factors)[: 1 if op.name == "div" else 2] if len(factors) == 2 else []

    def live_reads(self, op: Op) -> list[int]:
        """The live values that an operation reads."""
        return [ref.value for ref in op.reads if self.live[ref.value]]

    def root(self, value: int) -> int:
        """What a value is a constant multiple of, up to its shape."""
        if value not in self._roots:
            self._roots[value] = self._find_root(value)
        return self._roots[value]

    def _find_root(self, value: int) -> int:
        op = self.trace.op_of(value)
        while op is not None and op.name in ("mul", "div", "neg", "clone", "view", "_to_copy"):
            reads = self.live_reads(op)
            if len(reads) != 1 or (op.name == "div" and op.reads[0].value != reads[0]):
                break
            value, op = reads[0], self.trace.op_of(reads[0])
        return self._first[value]

    def behind(self, value: int, through: set[str]) -> set[int]:
        """All live values that one is made of by way of the operations in `through`, a constant."""
        key = (self._first[value], id(through))
        if key not in self._behind:
            self._behind[key] = set(self._back(value, through, lambda _: False))
        return self._behind[key]

    def makers(self, value: int, through: set[str]) -> list[Op]:
        """The operations that made the values behind one."""
        found = map(self.trace.op_of, self.behind(value, through))
        return [op for op in found if op is not None]

    def is_made_of(self, value: int, ends: Callable[[int], bool], through: set[str]) -> bool:
        """Whether all ways back from a value lead to such an end by operations in `through`."""
        back = self._back(value, through, ends)
        return all(ends(value) or self.trace.op_name(value) in through for value in back)

    def _back(self, value: int, through: set[str], ends: Callable[[int], bool]) -> Iterator[int]:
        """The values behind one as far as the ends; the first of equals stands for all of them."""

        def further(value: int, op: Op) -> Iterator[int]:
            goes_on = op.name in through and not ends(value)
            return map(self._first.__getitem__, self.live_reads(op) if goes_on else ())

        return self.trace.ancestors(self._first[value], further)

    def _users(self, value: int, through: set[str]) -> Iterator[tuple[Op, set[int]]]:
        """Operations that read a value, or what those in `through` make of it, and these values."""
        seen, todo = {value}, [value]
        while todo:
            for number in self.trace.flow.uses[todo.pop()]:
                op = self.trace.ops[number]
                if op.name in through:
                    new = {ref.value for ref in op.makes} - seen
                    seen |= new
                    todo.extend(new)
                else:
                    yield op, seen

    def meetings(
        self, start: Iterable[int], through: set[str], argument: int | None = None
    ) -> Iterator[tuple[Op, int]]:
        """Products in which a value made from `start` meets another signal, in order.

        argument: the root of what a gate is computed from.
        """
        mine = set(start)
        todo: list[int] = []
        queued: set[int] = set()

        def follow(value: int) -> None:
            for number in self.trace.flow.uses[value]:
                if number not in queued:
                    queued.add(number)
                    heappush(todo, number)

        for value in tuple(mine):
            follow(value)
        while todo:
            op = self.trace.ops[heappop(todo)]
            if op.name in PRODUCTS and not self._is_factor(op, mine, argument):
                factors = self.factors(op)
                own = [value for value in factors if value in mine]
                if own and len(own) < len(factors):
                    yield op, own[0]
                    continue
                passes = bool(own)
            else:
                added = op.name in ADDITIONS and not self._is_sum_of(op, mine)
                passes = op.name in through and not added
            if passes:
                for ref in op.makes:
                    if ref.value not in mine and self.live[ref.value]:
                        mine.add(ref.value)
                        follow(ref.value)

    def _is_sum_of(self, op: Op, mine: set[int]) -> bool:
        """Whether all signals in an addition belong to `mine`, or are other attention."""
        others = (value for value in self.live_reads(op) if value not in mine)
        multiples = (self.makers(value, _OF_MULTIPLES) for value in others)
        return all(any(op.number in self._weights for op in makers) for makers in multiples)

    def _is_factor(self, op: Op, mine: set[int], argument: int | None) -> bool:
        """Whether a product with weights makes other weights, as with a gate of every pair.

        `x g(x)`, of a gate, makes none.
        """
        if op.name != "mul" or op.in_place:
            return False
        factors = self.factors(op)
        if len(factors) != 2 or sum(value in mine for value in factors) != 1:
            return False
        weights, other = sorted(factors, key=lambda value: value not in mine)
        if self.sizes(_is_smaller, weights, other) or self.root(other) == argument:
            return False
        gates = self._is_of_gates(other)
        if not gates and not self._products_behind(other):
            return False
        # values are mixed by scores of pairs, or have more channels
        return any(
            (gates or user.name in MATRIX_PRODUCTS or self.sizes(_is_smaller, op.out, user.out))
            and self._meets_values(user, own)
            for user, own in self._users(op.out, SAME)
        )

    def _meets_values(self, op: Op, weights: set[int]) -> bool:
        """Whether weights meet values, which are neither made of them nor weights themselves."""
        factors = self.factors(op) if op.name in PRODUCTS else []
        if len(factors) != 2 or sum(value in weights for value in factors) != 1:
            return False
        (values,) = (value for value in factors if value not in weights)
        behind = self.trace.ancestors(values, lambda _, op: self.live_reads(op))
        return values not in self.marks.held.get(op.number, ()) and weights.isdisjoint(behind)

    # -- attention and gates -------------------------------------------------------------------

    def _makes_weights(self, op: Op) -> bool:
        """Whether an operation makes weights that sum to one."""
        if op.name in SOFTMAX:
            return True
        if op.name in ("div", "mul"):
            return self._is_normalised(op)
        return op.name == "exp" and self._is_of_logarithms(op)

    def _is_normalised(self, op: Op) -> bool:
        """Whether a quotient is `w / sum(w)`, as in a softmax over edges."""
        pairs = self.pairs(op)
        if op.name == "mul":
            pairs = [(a, b) for a, b in pairs if self._is_inverse(b) and not self._is_inverse(a)]
        return any(self._are_summed_in(below, [above]) is not None for above, below in pairs)

    def _is_inverse(self, value: int) -> bool:
        return self.trace.op_name(value) == "reciprocal"

    def _are_summed_in(self, below: int, candidates: Iterable[int]) -> int | None:
        """The first of the candidates whose own entries are summed in a divisor."""
        sums = [op for op in self.makers(below, OF_A_SUM) if op.name in SUMS]
        summed = {
            root for op in sums for read in self.live_reads(op) for root in self._roots_of(read)
        }
        return next((v for v in candidates if self._roots_of(v) & summed), None)

    def _roots_of(self, value: int) -> set[int]:
        """What a value, or what it was before it was moved, is a constant multiple of."""
        return {self.root(own) for own in self.behind(value, SAME)}

    def _is_of_logarithms(self, op: Op) -> bool:
        """Whether `exp` undoes `log_softmax`, or has `s - logsumexp(s)` as its argument."""
        before = self.makers(self.live_reads(op)[0], _OF_DIFFERENCES)
        return any(maker.name in ("_log_softmax", "logsumexp") for maker in before)

    def _mark_attention(self, op: Op) -> None:
        for product, value in self.meetings([op.out], ON_THE_WAY):
            self.marks.hold(product, value, "attention")
            self.marks.attention.append(AttentionProduct(product, value, op))

    def _mark_softmax(self, weights: int) -> None:
        """Mark the exponentials that weights are made of, their sums' logarithms and inverses."""
        for op in self.makers(weights, OF_A_SUM | _OF_MULTIPLES):
            if op.name in ("exp", "reciprocal"):
                self.marks.softmax.add(op.number)
            if op.name == "exp":
                before = self.makers(op.reads[0].value, _OF_DIFFERENCES)
                self.marks.softmax |= {by.number for by in before if by.name == "logsumexp"}

    def _mark_shifts(self, op: Op) -> None:
        """Mark `s - m` in `exp(s - m) / sum(exp(s - m))` with a maximum m of the same group."""
        if op.name not in ("div", "mul"):
            return
        for above, below in both_ways(self.factors(op)):
            sums = [self._group(by, SUMS) for by in self.makers(below, OF_A_SUM)]
            exps = (by for by in self.makers(above, SAME) if by.name == "exp")
            for sub in (by for exp in exps for by in self.makers(exp.reads[0].value, SAME)):
                shift = sub.args[1] if sub.name == "sub" else None
                if type(shift) is Ref:
                    group = self._maximum_of(shift.value)
                    if group is not None and group in sums:
                        self.marks.shifts.add(sub.number)

    def _maximum_of(self, value: int) -> tuple[object, int] | None:
        """The groups of which a value, put beside their members, is the maximum."""
        op, index = self.trace.op_of(value), _KEPT
        while op is not None and op.name in _BESIDE:
            if op.name in ("index_select", "index"):
                by = op.args[2] if op.name == "index_select" else op.args[1]
                by = by[0] if isinstance(by, list | tuple) and len(by) == 1 else by
                if type(by) is not Ref:
                    return None
                index = self.trace.origin(by.value, _WHOLE)
            op = self.trace.op_of(op.reads[0].value)
        found = None if op is None else self._group(op, {"amax", "max", "scatter_reduce"})
        return found if found is not None and found[1] == index else None

    def _group(self, op: Op, names: set[str]) -> tuple[object, int] | None:
        """The axes of a reduction, which stay, or its axis and the index of its groups."""
        if op.name not in names or len(op.args) < 3:
            return None
        dims, by = op.args[1:3]
        dims = dims if isinstance(dims, list | tuple) else [dims]
        axes = tuple(dim % len(self.trace.shape(op.out)) for dim in dims)
        if type(by) is Ref:
            return axes, self.trace.origin(by.value, _WHOLE)
        return (axes, _KEPT) if by is True else None

    def _mark_gate(self, op: Op) -> None:
        argument = self.root(self.live_reads(op)[0])
        for product, value in self.meetings([op.out], ON_THE_WAY, argument):
            others = [v for v in self.factors(product) if v != value]
            if any(self._is_of_gates(other) for other in others):
                continue
            own = any(self.root(other) == argument for other in others)
            self.marks.hold(product, value, "activation" if own else "attention")
        for product, gates in self._users(op.out, SAME | {"rsub"}):
            if self._is_of_constant_rows(product, gates, op.out):
                self.marks.hold(product, self.factors(product)[0], "attention")

    def _is_of_constant_rows(self, op: Op, own: set[int], gate: int) -> bool:
        """Whether a product is of a gate and a constant that the pass made, entry by entry."""
        if op.name != "mul" or len(self.factors(op)) != 1 or len(op.reads) != 2:
            return False
        (other,) = (ref.value for ref in op.reads if ref.value not in own)
        return self.trace.flow.maker[other] >= 0 and self.sizes(torch.Size.__eq__, other, gate)

    def _is_of_gates(self, value: int) -> bool:
        """Whether a value is made of gates alone."""
        return self.is_made_of(value, lambda v: self.trace.op_name(v) in GATES, ON_THE_WAY)

    def _mark_linear_attention(self, op: Op) -> bool:
        """Mark attention that is divided by its sums after it has met the values.

        That is `(w v) / sum(w)`, and `q (k^T v) / (q sum(k))`, whose matrix is never computed.
        """
        for above, below in self.pairs(op):
            found = self._divided_at_the_end(above, below)
            for product in [] if found else self._products_behind(below):
                found = found or self._linear_attention(above, product)
            for product, weights in found or ():
                self.marks.hold(product, weights, "attention")
            if found:
                self.marks.hold(op, below, "attention")
                self.marks.shares[op.number] = {above: 1, below: 1 / 2}
                self._mark_softmax(below)
                if len(found) == 1:  # with a matrix
                    self.marks.attention.append(AttentionProduct(*found[0], op, below))
                else:
                    self._share_as_with_matrix(*found)
                return True
        return False

    def _share_as_with_matrix(self, outer: tuple[Op, int], inner: tuple[Op, int]) -> None:
        """Let the values in `q (k^T v)` get half, and q and k a quarter each, as in `(q k^T) v`."""
        for (product, own), share in ((outer, 1 / 4), (inner, 1 / 3)):
            shares = dict.fromkeys(self.factors(product), 1 - share)
            self.marks.shares[product.number] = shares | {own: share}

    def _divided_at_the_end(self, above: int, below: int) -> list[tuple[Op, int]] | None:
        """The product `w v` and its weights, if `below` is the sum of these weights."""
        for product in self._products_behind(above):
            weights = self._are_summed_in(below, self.factors(product))
            if weights is not None:
                return [(product, weights)]
        return None

    def _products_behind(self, value: int) -> list[Op]:
        """Products of two signals that a value is, but for constants and sums."""
        if value not in self._products:
            makers = self.makers(value, _OF_COMBINATIONS)
            found = [op for op in makers if op.name in PRODUCTS and len(self.factors(op)) == 2]
            self._products[value] = found
        return self._products[value]

    def _linear_attention(self, above: int, below: Op) -> list[tuple[Op, int]] | None:
        """The products `q (k^T v)` and `k^T v`, with q and k, if `below` is `q sum(k)`.

        If the list has the matrix: the product `(q k^T) v` with the matrix.
        """
        sums = [self.behind(value, _OF_PROJECTIONS) for value in self.factors(below)]
        own = [self.behind(value, SAME) for value in self.factors(below)]
        for outer in self._products_behind(above):
            if outer is below:
                continue
            for query, rest in both_ways(self.factors(outer)):
                for inner in self._products_behind(rest):
                    if inner is outer or inner is below:
                        continue
                    for key, other in both_ways(self.factors(inner)):
                        if self._are_query_and_key(query, key, own, sums):
                            return [(outer, query), (inner, key)]
                        if self._are_query_and_key(other, key, own, sums):
                            return [(outer, rest)]
        return None

    def _are_query_and_key(
        self, query: int, key: int, own: list[set[int]], sums: list[set[int]]
    ) -> bool:
        """Whether q is a factor of the divisor, and k is summed in the other one."""
        alike = [bool(self.behind(query, SAME) & values) for values in own]
        return any(alike) and bool(self.behind(key, SAME) & sums[1 - alike.index(True)])

    # -- factors of the signal itself ----------------------------------------------------------

    def _mark_factor(self, op: Op) -> bool:
        """Mark `g(x)` in `x g(x)`, or the scale where x is multiplied or divided by its length."""
        kinds: tuple[tuple[Rule, Callable[[int, int], bool]], ...] = (
            ("activation", self._is_entrywise), ("layernorm", self._is_scale_of)
        )  # fmt: skip
        for rule, fits in kinds:
            for x, factor in self.pairs(op):
                if fits(factor, x):
                    self.marks.hold(op, factor, rule)
                    return True
        return False

    def _is_entrywise(self, g: int, x: int) -> bool:
        """Whether g is made of x and constants alone, entry by entry, and is no multiple of x."""
        root = self.root(x)
        back = self._back(g, ENTRYWISE, lambda value: self.root(value) == root)
        return self.root(g) != root and all(
            self.root(value) == root
            or (self.trace.op_name(value) in ENTRYWISE and self.sizes(torch.Size.__eq__, value, g))
            for value in back
        )

    def _is_scale_of(self, scale: int, x: int) -> bool:
        """Whether a value is a root of sums of squares of x, or of what x was centred from."""
        makers = self.makers(scale, OF_A_SCALE)
        if not any(map(is_root, makers)) or not any(op.name in SUMMING for op in makers):
            return False
        mine = self.behind(x, _WITHOUT_CLAMPS)
        apart = self.behind(scale, OF_A_SCALE) - {scale}
        return bool(mine & apart) and self.is_made_of(
            scale, mine.__contains__, OF_A_SCALE | {"sub"}
        )


def _first_of_equals(trace: Trace) -> tuple[list[int], list[list[int]]]:
    """For every value the first that the same operation made of the same arguments.

    Also groups of operations that are the same but for their numbers.
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
        equal = next((one for one in group if _same_numbers(one, op)), op)
        group.append(op)
        for ref, other in zip(op.makes, equal.makes, strict=True):
            first[ref.value] = first[other.value]
    groups = ([op.number for op in group] for group in alike.values())
    return first, [group for group in groups if len(group) > 1]


def _same_numbers(one: Op, other: Op) -> bool:
    return numbers_among(one, one.args, one.kwargs) == numbers_among(
        other, other.args, other.kwargs
    )


def numbers_among(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """All that is no tensor among an operation's arguments."""
    return repr(fill_refs((op.args, op.kwargs), (args, kwargs), lambda ref: "tensor"))


def _is_smaller(first: torch.Size, second: torch.Size) -> bool:
    return first.numel() < second.numel()


def both_ways(pair: list[int]) -> list[tuple[int, int]]:
    """Two factors, in either order."""
    return [(pair[0], pair[1]), (pair[1], pair[0])]


def is_root(op: Op) -> bool:
    """Whether an operation is a square root, or a length."""
    if op.name == "pow":
        return any(isinstance(arg, float) and abs(arg) == 0.5 for arg in op.args[1:])
    return op.name in ROOTS


def factors_of(op: Op) -> list[int]:
    """The tensors that a product multiplies; a value twice if it is squared."""
    args = op.args[1:] if op.name in PLUS_PRODUCT else op.args
    return [arg.value for arg in args[:2] if type(arg) is Ref]
