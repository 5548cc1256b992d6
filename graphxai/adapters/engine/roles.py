"""Find the roles of values in a recorded pass: attention, gates, scales of norms, activations.

Every decision follows from how data flows through the whole trace, never from the name of a class,
a module or an attribute. A role says that an operation takes some of its arguments as constants, or
that a product gives each factor half of its relevance:

* attention: a softmax, however it is written, whose result multiplies values;
* gate: a sigmoid that multiplies another signal, or anything that is computed from gates alone;
* scale: a root of sums of squares that divides the squared values themselves, as in every norm;
* activation: the factor `g(x)` of `x g(x)`, entry by entry.
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
_WHOLE = {"expand", "detach", "alias", "clone", "view", "unsqueeze"}  # they keep all entries
# they broadcast the maximum of a group to its members
_BROADCASTS = {"index_select", "index", "expand", "detach", "alias", "clone"}
_KEEPDIM = -1  # in place of the index of the groups
ON_THE_WAY = SAME | SUMS | ADDITIONS | {"neg", "clamp", "clamp_min", "mul", "div"}
_WITHOUT_CLAMPS = ON_THE_WAY - {"clamp", "clamp_min"}
_OF_MULTIPLES = SAME | {"mul", "div"}
_OF_DIFFERENCES = SAME | {"sub", "add", "neg"}
_OF_COMBINATIONS = OF_A_SUM | ADDITIONS | {"mul", "div"}
_OF_PROJECTIONS = SAME | SUMS | MATRIX_PRODUCTS | {"mul", "div", "add"}


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


class SizeComparison(NamedTuple):
    """Two values whose shapes were compared by a test, and its answer."""

    test: Callable[[torch.Size, torch.Size], bool]
    first: int
    second: int
    answer: bool


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

    def hold(self, op: Op, value: int, rule: Rule) -> None:
        """Note that `op` may hold a value constant, under a rule. The first rule stays."""
        self.held.setdefault(op.number, {}).setdefault(value, rule)

    def notes(self) -> dict[int, str]:
        """Say the role of operations in words, by number, for `Trace.listing`."""
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


def find_roles(trace: Trace) -> Roles:
    """Find all roles in a pass, whatever rules are in force.

    Values that only other inputs go into, such as an encoding of positions, get their roles by
    themselves: attention among them is held constant, but it is no attention between nodes.
    """
    first_equal, alike = _first_of_equals(trace)
    roles = Roles(alike=alike, first_equal=first_equal)
    _RoleFinder(trace, [bool(live & 1) for live in trace.flow.live], roles)
    others = [bool(live & ~WEIGHTS) and not live & 1 for live in trace.flow.live]
    if any(others):
        _RoleFinder(trace, others, replace(roles, attention=[]))  # adds to the other roles
    return roles


class _RoleFinder:
    """Finds the roles of live values.

    Args:
        live: for each value whether it is.
    """

    def __init__(self, trace: Trace, live: Sequence[bool], roles: Roles) -> None:
        self.trace, self.live, self.roles = trace, live, roles
        self._first_equal = roles.first_equal
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
        self.roles.products |= {op.number for op in products if len(self.factors(op)) == 2}

    # -- queries -------------------------------------------------------------------------------

    def compare_sizes(
        self, test: Callable[[torch.Size, torch.Size], bool], first: int, second: int
    ) -> bool:
        """Compare the shapes of two values by a test, and keep the answer with the roles."""
        answer = test(self.trace.shape(first), self.trace.shape(second))
        self.roles.size_comparisons.add(SizeComparison(test, first, second, answer))
        return answer

    def factors(self, op: Op) -> list[int]:
        """Return the live factors of a product, a value twice if it is squared."""
        return [value for value in factors_of(op) if self.live[value]]

    def pairs(self, op: Op) -> list[tuple[int, int]]:
        """Return the two live factors of a product in both orders, or of a quotient in its own."""
        factors = self.factors(op)
        return both_ways(factors)[: 1 if op.name == "div" else 2] if len(factors) == 2 else []

    def live_reads(self, op: Op) -> list[int]:
        """Return the live values that an operation reads."""
        return [ref.value for ref in op.reads if self.live[ref.value]]

    def root(self, value: int) -> int:
        """Return the value that this one is a constant multiple of, up to its shape."""
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
        return self._first_equal[value]

    def behind(self, value: int, through: set[str]) -> set[int]:
        """Return all live values that this one is made of by operations in `through`.

        `through` is one of this file's constants, because results are kept by its `id`.
        """
        key = (self._first_equal[value], id(through))
        if key not in self._behind:
            self._behind[key] = set(self._back(value, through, lambda _: False))
        return self._behind[key]

    def makers(self, value: int, through: set[str]) -> list[Op]:
        """Return the operations that made the values behind this one."""
        ops = map(self.trace.op_of, self.behind(value, through))
        return [op for op in ops if op is not None]

    def is_made_of(self, value: int, ends: Callable[[int], bool], through: set[str]) -> bool:
        """Whether all paths back from a value, by operations in `through`, reach an end."""
        back = self._back(value, through, ends)
        return all(ends(value) or self.trace.op_name(value) in through for value in back)

    def _back(self, value: int, through: set[str], ends: Callable[[int], bool]) -> Iterator[int]:
        """Yield the values behind this one, up to the ends. The first of equals stands for all."""

        def further(value: int, op: Op) -> Iterator[int]:
            goes_on = op.name in through and not ends(value)
            return map(self._first_equal.__getitem__, self.live_reads(op) if goes_on else ())

        return self.trace.ancestors(self._first_equal[value], further)

    def _users(self, value: int, through: set[str]) -> Iterator[tuple[Op, set[int]]]:
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

    def products_with_others(
        self, start: Iterable[int], through: set[str], argument: int | None = None
    ) -> Iterator[tuple[Op, int]]:
        """Yield the products, in order, in which a value made from `start` meets another signal.

        With each comes the value.

        Args:
            argument: if `start` is a gate, the root of what it is computed from.
        """
        derived = set(start)
        todo: list[int] = []
        queued: set[int] = set()

        def follow(value: int) -> None:
            for number in self.trace.flow.uses[value]:
                if number not in queued:
                    queued.add(number)
                    heappush(todo, number)

        for value in tuple(derived):
            follow(value)
        while todo:
            op = self.trace.ops[heappop(todo)]
            if op.name in PRODUCTS and not self._makes_other_weights(op, derived, argument):
                factors = self.factors(op)
                from_start = [value for value in factors if value in derived]
                if from_start and len(from_start) < len(factors):
                    yield op, from_start[0]
                    continue
                passes = bool(from_start)
            else:
                adds_others = op.name in ADDITIONS and not self._is_sum_of(op, derived)
                passes = op.name in through and not adds_others
            if passes:
                for ref in op.makes:
                    if ref.value not in derived and self.live[ref.value]:
                        derived.add(ref.value)
                        follow(ref.value)

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
        if op.name != "mul" or op.in_place:
            return False
        factors = self.factors(op)
        if len(factors) != 2 or sum(value in derived for value in factors) != 1:
            return False
        weights, other = sorted(factors, key=lambda value: value not in derived)
        if self.compare_sizes(_is_smaller, weights, other) or self.root(other) == argument:
            return False
        gates = self._is_of_gates(other)
        if not gates and not self._products_behind(other):
            return False
        # values are mixed by scores of pairs, or have more channels
        return any(
            (
                gates
                or user.name in MATRIX_PRODUCTS
                or self.compare_sizes(_is_smaller, op.out, user.out)
            )
            and self._multiplies_values(user, new_weights)
            for user, new_weights in self._users(op.out, SAME)
        )

    def _multiplies_values(self, op: Op, weights: set[int]) -> bool:
        """Whether a product is of weights and values that are no weights, nor made of them."""
        factors = self.factors(op) if op.name in PRODUCTS else []
        if len(factors) != 2 or sum(value in weights for value in factors) != 1:
            return False
        (values,) = (value for value in factors if value not in weights)
        behind = self.trace.ancestors(values, lambda _, op: self.live_reads(op))
        return values not in self.roles.held.get(op.number, ()) and weights.isdisjoint(behind)

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
        """Return the first candidate whose entries are summed in a divisor, or None."""
        sums = [op for op in self.makers(below, OF_A_SUM) if op.name in SUMS]
        summed = {
            root for op in sums for read in self.live_reads(op) for root in self._roots_of(read)
        }
        return next((v for v in candidates if self._roots_of(v) & summed), None)

    def _roots_of(self, value: int) -> set[int]:
        """Return what a value, also before it was moved, is a constant multiple of."""
        return {self.root(before) for before in self.behind(value, SAME)}

    def _is_of_logarithms(self, op: Op) -> bool:
        """Whether an `exp` has a `log_softmax` or `s - logsumexp(s)` as its argument."""
        before = self.makers(self.live_reads(op)[0], _OF_DIFFERENCES)
        return any(maker.name in ("_log_softmax", "logsumexp") for maker in before)

    def _mark_attention(self, op: Op) -> None:
        """Mark the products in which attention weights, which `op` made, multiply values."""
        for product, value in self.products_with_others([op.out], ON_THE_WAY):
            self.roles.hold(product, value, "attention")
            self.roles.attention.append(AttentionProduct(product, value, op))

    def _mark_softmax(self, weights: int) -> None:
        """Mark the exponentials in weights, and the logarithms and inverses of their sums."""
        for op in self.makers(weights, OF_A_SUM | _OF_MULTIPLES):
            if op.name in ("exp", "reciprocal"):
                self.roles.softmax.add(op.number)
            if op.name == "exp":
                before = self.makers(op.reads[0].value, _OF_DIFFERENCES)
                self.roles.softmax |= {by.number for by in before if by.name == "logsumexp"}

    def _mark_shifts(self, op: Op) -> None:
        """Mark `s - m` in `exp(s - m) / sum(exp(s - m))`, where m is the maximum of the group."""
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
                        self.roles.shifts.add(sub.number)

    def _maximum_of(self, value: int) -> tuple[object, int] | None:
        """Return the groups whose maximum this value holds, broadcast to their members."""
        op, index = self.trace.op_of(value), _KEEPDIM
        while op is not None and op.name in _BROADCASTS:
            if op.name in ("index_select", "index"):
                by = op.args[2] if op.name == "index_select" else op.args[1]
                by = by[0] if isinstance(by, list | tuple) and len(by) == 1 else by
                if type(by) is not Ref:
                    return None
                index = self.trace.origin(by.value, _WHOLE)
            op = self.trace.op_of(op.reads[0].value)
        groups = None if op is None else self._group(op, {"amax", "max", "scatter_reduce"})
        return groups if groups is not None and groups[1] == index else None

    def _group(self, op: Op, names: set[str]) -> tuple[object, int] | None:
        """Return the axes of a reduction and the index of its groups; `_KEEPDIM` if axes stay."""
        if op.name not in names or len(op.args) < 3:
            return None
        dims, by = op.args[1:3]
        dims = dims if isinstance(dims, list | tuple) else [dims]
        axes = tuple(dim % len(self.trace.shape(op.out)) for dim in dims)
        if type(by) is Ref:
            return axes, self.trace.origin(by.value, _WHOLE)
        return (axes, _KEEPDIM) if by is True else None

    def _mark_gate(self, op: Op) -> None:
        """Mark the products of a gate as those of an activation or of attention."""
        argument = self.root(self.live_reads(op)[0])
        for product, value in self.products_with_others([op.out], ON_THE_WAY, argument):
            others = [v for v in self.factors(product) if v != value]
            if any(self._is_of_gates(other) for other in others):
                continue
            gates_itself = any(self.root(other) == argument for other in others)
            self.roles.hold(product, value, "activation" if gates_itself else "attention")
        for product, gates in self._users(op.out, SAME | {"rsub"}):
            if self._is_of_constant_rows(product, gates, op.out):
                self.roles.hold(product, self.factors(product)[0], "attention")

    def _is_of_constant_rows(self, op: Op, gates: set[int], gate: int) -> bool:
        """Whether a product is of a gate and a constant that the pass made, entry by entry.

        Args:
            gates: the values that are made of the gate.
        """
        if op.name != "mul" or len(self.factors(op)) != 1 or len(op.reads) != 2:
            return False
        (other,) = (ref.value for ref in op.reads if ref.value not in gates)
        return self.trace.flow.maker[other] >= 0 and self.compare_sizes(
            torch.Size.__eq__, other, gate
        )

    def _is_of_gates(self, value: int) -> bool:
        """Whether a value is made of gates alone."""
        return self.is_made_of(value, lambda v: self.trace.op_name(v) in GATES, ON_THE_WAY)

    def _mark_linear_attention(self, op: Op) -> bool:
        """Mark attention whose product with the values is divided by the sums of its weights.

        That is `(w v) / sum(w)`, and `q (k^T v) / (q sum(k))`, whose matrix is never computed.
        Returns whether `op` is such a quotient.
        """
        for above, below in self.pairs(op):
            products = self._divided_at_the_end(above, below)
            for product in [] if products else self._products_behind(below):
                products = products or self._linear_attention(above, product)
            for product, weights in products or ():
                self.roles.hold(product, weights, "attention")
            if products:
                self.roles.hold(op, below, "attention")
                self.roles.shares[op.number] = {above: 1, below: 1 / 2}
                self._mark_softmax(below)
                if len(products) == 1:  # the trace has the matrix
                    self.roles.attention.append(AttentionProduct(*products[0], op, below))
                else:
                    self._share_as_with_matrix(*products)
                return True
        return False

    def _share_as_with_matrix(self, outer: tuple[Op, int], inner: tuple[Op, int]) -> None:
        """Let the values in `q (k^T v)` get half, and q and k a quarter each, as in `(q k^T) v`."""
        for (product, query_or_key), share in ((outer, 1 / 4), (inner, 1 / 3)):
            shares = dict.fromkeys(self.factors(product), 1 - share)
            self.roles.shares[product.number] = shares | {query_or_key: share}

    def _divided_at_the_end(self, above: int, below: int) -> list[tuple[Op, int]] | None:
        """Return the product `w v` and its weights, if `below` is the sum of these weights."""
        for product in self._products_behind(above):
            weights = self._are_summed_in(below, self.factors(product))
            if weights is not None:
                return [(product, weights)]
        return None

    def _products_behind(self, value: int) -> list[Op]:
        """Return the products of two signals that a value combines, by sums and by constants."""
        if value not in self._products:
            makers = self.makers(value, _OF_COMBINATIONS)
            products = [op for op in makers if op.name in PRODUCTS and len(self.factors(op)) == 2]
            self._products[value] = products
        return self._products[value]

    def _linear_attention(self, above: int, below: Op) -> list[tuple[Op, int]] | None:
        """Return the products `q (k^T v)` and `k^T v`, with q and k, if `below` is `q sum(k)`.

        If the trace has the matrix, return the product `(q k^T) v` with the matrix.
        """
        sums = [self.behind(value, _OF_PROJECTIONS) for value in self.factors(below)]
        factors = [self.behind(value, SAME) for value in self.factors(below)]
        keys: dict[int, list[tuple[int, int]]] = {}  # of each product, with its other factor

        def is_of(value: int, groups: list[set[int]]) -> list[bool]:
            return [bool(self.behind(value, SAME) & group) for group in groups]

        def are_query_and_key(query: int, key: int) -> bool:
            """Whether q is one factor of the divisor, and k is summed in the other factor."""
            is_query = is_of(query, factors)
            return any(is_query) and is_of(key, sums)[1 - is_query.index(True)]

        for outer in self._products_behind(above):
            if outer is below:
                continue
            for query, rest in both_ways(self.factors(outer)):
                for inner in self._products_behind(rest):
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
        return None

    # -- factors of the signal itself ----------------------------------------------------------

    def _mark_factor(self, op: Op) -> bool:
        """Mark `g(x)` in `x g(x)`, or the length of x where x is divided by it.

        Returns whether the product has such a factor.
        """
        kinds: tuple[tuple[Rule, Callable[[int, int], bool]], ...] = (
            ("activation", self._is_entrywise), ("layernorm", self._is_scale_of)
        )  # fmt: skip
        for rule, fits in kinds:
            for x, factor in self.pairs(op):
                if fits(factor, x):
                    self.roles.hold(op, factor, rule)
                    return True
        return False

    def _is_entrywise(self, g: int, x: int) -> bool:
        """Whether g is made of x and constants, entry by entry, and is no multiple of x."""
        root = self.root(x)
        back = self._back(g, ENTRYWISE, lambda value: self.root(value) == root)
        return self.root(g) != root and all(
            self.root(value) == root
            or (
                self.trace.op_name(value) in ENTRYWISE
                and self.compare_sizes(torch.Size.__eq__, value, g)
            )
            for value in back
        )

    def _is_scale_of(self, scale: int, x: int) -> bool:
        """Whether a value is a root of sums of squares of x, or of x before it was centred."""
        makers = self.makers(scale, OF_A_SCALE)
        if not any(map(is_root, makers)) or not any(op.name in SUMMING for op in makers):
            return False
        behind_x = self.behind(x, _WITHOUT_CLAMPS)
        behind_scale = self.behind(scale, OF_A_SCALE) - {scale}
        return bool(behind_x & behind_scale) and self.is_made_of(
            scale, behind_x.__contains__, OF_A_SCALE | {"sub"}
        )


def _first_of_equals(trace: Trace) -> tuple[list[int], list[list[int]]]:
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
        equal = next((earlier for earlier in group if _same_numbers(earlier, op)), op)
        group.append(op)
        for ref, other in zip(op.makes, equal.makes, strict=True):
            first[ref.value] = first[other.value]
    groups = ([op.number for op in group] for group in alike.values())
    return first, [group for group in groups if len(group) > 1]


def _same_numbers(a: Op, b: Op) -> bool:
    return numbers_among(a, a.args, a.kwargs) == numbers_among(b, b.args, b.kwargs)


def numbers_among(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Write out everything among an operation's arguments that is no tensor."""
    return repr(fill_refs((op.args, op.kwargs), (args, kwargs), lambda ref: "tensor"))


def _is_smaller(first: torch.Size, second: torch.Size) -> bool:
    return first.numel() < second.numel()


def both_ways(pair: list[int]) -> list[tuple[int, int]]:
    """Return two factors in both orders."""
    return [(pair[0], pair[1]), (pair[1], pair[0])]


def is_root(op: Op) -> bool:
    """Whether an operation is a square root, or a length."""
    if op.name == "pow":
        return any(isinstance(arg, float) and abs(arg) == 0.5 for arg in op.args[1:])
    return op.name in ROOTS


def factors_of(op: Op) -> list[int]:
    """Return the values that a product multiplies, a value twice if it is squared."""
    args = op.args[1:] if op.name in PLUS_PRODUCT else op.args
    return [arg.value for arg in args[:2] if type(arg) is Ref]
