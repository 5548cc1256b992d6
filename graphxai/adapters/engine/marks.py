"""What is what in a recorded pass: attention, gates, scales of norms, activations.

Every decision follows from how data flows through the whole list, never from the name of a class,
a module or an attribute. A mark says that an operation takes some of its arguments as constants, or
that a product gives each factor half of its relevance:

* attention: a softmax, in any spelling, whose result meets values in a product;
* gate: a sigmoid that multiplies another signal, or anything computed only from such gates;
* scale: a root of sums of squares that divides what the squares are of, as in every norm;
* activation: of `x g(x)`, entry by entry, the factor `g(x)`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Literal, NamedTuple

import torch

from graphxai.rules.conservative import Rules

from .trace import Op, Ref, Trace, filled
from .vocabulary import (
    ADDITIONS,
    GATES,
    KNOWN,
    MATRIX_PRODUCTS,
    NORMS,
    PLUS_PRODUCT,
    PRODUCTS,
    RATIO,
    ROOTS,
    SAME,
    SOFTMAX,
    SUMS,
)

Rule = Literal["attention", "layernorm", "activation"]
ENTRYWISE = {
    "abs", "add", "rsub", "sub", "sigmoid", "tanh", "erf", "exp", "mul", "div", "pow", "neg",
    "reciprocal", "clamp", "clamp_min", "clamp_max", "softplus", "_to_copy", "view", "square",
    "sqrt", "log1p", "erfc", "special_ndtr", "gt", "ge", "lt", "le", "where", "relu", "expm1",
    "sign", "masked_fill", "log",
}  # fmt: skip
OF_A_SUM = SAME | SUMS | {"add", "clamp", "clamp_min", "maximum", "reciprocal"}
OF_A_SCALE = OF_A_SUM | {"sqrt", "rsqrt", "pow", "mul", "div", "square", "var", "var_mean", "std",
                         "std_mean", "linalg_vector_norm", "norm", "abs", "neg", "dot",
                         "clamp_max"}  # fmt: skip
ON_THE_WAY = SAME | SUMS | ADDITIONS | {"neg", "clamp", "clamp_min", "mul", "div"}


@dataclass(frozen=True)
class Nonlinearity:
    """A step that keeps its gradient although `rule` was requested: what it is and where."""

    rule: Rule | None
    what: str
    place: str


class Meeting(NamedTuple):
    """Weights meet values in a product: the product, the weights, where they come from.

    origin: the operation that made the weights, such as the softmax, or that divides the result by
    their sums; divisor: in that case these sums, or their reciprocals, by value.
    """

    product: Op
    weights: int
    origin: Op
    divisor: int | None = None


class Sizes(NamedTuple):
    """Two values whose sizes were compared, and the answer."""

    test: Callable[[torch.Size, torch.Size], bool]
    first: int
    second: int
    answer: bool


@dataclass(eq=False)
class Marks:
    """Values held constant by the operations that read them, and products that are halved.

    held: by number of the operation, each value with its rule. attention: where weights that sum
    to one meet values. products: numbers of products of two signals. The marks of another pass with
    the same operations are the same, if the answers about `sizes` are, and if in each of `alike`,
    groups of operations on the same values, equal numbers are given to the same ones.
    """

    held: dict[int, dict[int, Rule]] = field(default_factory=dict)
    attention: list[Meeting] = field(default_factory=list)
    products: set[int] = field(default_factory=set)
    sizes: set[Sizes] = field(default_factory=set)
    alike: list[list[int]] = field(default_factory=list)

    def hold(self, op: Op, value: int, rule: Rule) -> None:
        """Mark a value as constant where `op` reads it."""
        self.held.setdefault(op.number, {}).setdefault(value, rule)


def marked(trace: Trace) -> Marks:
    """All marks of a pass, whatever the rules in force."""
    return _Marking(trace).marks


class _Marking:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.live = [live & 1 for live in trace.live]  # of the nodes
        self.marks = Marks()
        self._roots: dict[int, int] = {}
        self._first, self.marks.alike = _first_of_equals(trace)
        signals = [op for op in trace.ops if any(self.live[r.value] for r in op.reads)]
        for op in signals:
            for origin in self._weights_made_by(op):
                self._mark_attention(op, origin)
        for op in signals:
            if op.name in GATES:
                self._mark_gate(op)
        for op in signals:
            if op.name in ("mul", "div") and len(self.factors(op)) == 2:
                self._mark_own(op) or self._mark_scale(op) or self._mark_linear_attention(op)
        products = (op for op in signals if op.name in PRODUCTS - {"div"})
        self.marks.products = {op.number for op in products if len(self.factors(op)) == 2}

    # -- queries -------------------------------------------------------------------------------

    def sizes(
        self, test: Callable[[torch.Size, torch.Size], bool], first: int, second: int
    ) -> bool:
        """A question about the shapes of two values."""
        answer = test(self.trace.shape(first), self.trace.shape(second))
        self.marks.sizes.add(Sizes(test, first, second, answer))
        return answer

    def factors(self, op: Op) -> list[int]:
        """The live factors of a product; a value twice if it is squared."""
        return [value for value in factors_of(op) if self.live[value]]

    def live_reads(self, op: Op) -> list[int]:
        """The live values that an operation reads."""
        return [ref.value for ref in op.reads if self.live[ref.value]]

    def root(self, value: int) -> int:
        """What a value is a constant multiple of, up to its shape."""
        known = self._roots.get(value)
        if known is None:
            known = self._roots[value] = self._root(value)
        return known

    def _root(self, value: int) -> int:
        op = self.trace.made(value)
        while op is not None and op.name in ("mul", "div", "neg", "clone", "view", "_to_copy"):
            reads = self.live_reads(op)
            if len(reads) != 1 or (op.name == "div" and op.reads[0].value != reads[0]):
                break
            value, op = reads[0], self.trace.made(reads[0])
        return self._first[value]

    def behind(self, value: int, through: set[str]) -> set[int]:
        """All live values that one is made of by way of the operations in `through`.

        The first of equals stands for all of them.
        """
        value = self._first[value]
        seen, todo = {value}, [value]
        while todo:
            op = self.trace.made(todo.pop())
            if op is None or op.name not in through:
                continue
            for read in map(self._first.__getitem__, self.live_reads(op)):
                if read not in seen:
                    seen.add(read)
                    todo.append(read)
        return seen

    def meetings(self, start: Iterable[int], through: set[str]) -> Iterator[tuple[Op, int]]:
        """Products in which a value made from `start` meets another signal, in order."""
        mine = set(start)
        todo: list[int] = []
        queued: set[int] = set()

        def follow(value: int) -> None:
            for number in self.trace.uses[value]:
                if number not in queued:
                    queued.add(number)
                    heappush(todo, number)

        for value in tuple(mine):
            follow(value)
        while todo:
            op = self.trace.ops[heappop(todo)]
            if op.name in PRODUCTS and not self._is_factor(op, mine):
                factors = self.factors(op)
                own = [value for value in factors if value in mine]
                if own and len(own) < len(factors):
                    yield op, own[0]
                    continue
                passes = bool(own)
            else:
                passes = op.name in through
                if op.name in ADDITIONS and not self._is_sum_of(op, mine):
                    passes = False
            if passes:
                for ref in op.makes:
                    if ref.value not in mine and self.live[ref.value]:
                        mine.add(ref.value)
                        follow(ref.value)

    def _is_sum_of(self, op: Op, mine: set[int]) -> bool:
        """Whether all signals in an addition belong to `mine`, or are other attention."""
        others = [value for value in self.live_reads(op) if value not in mine]
        return all(self._is_probability(value) for value in others)

    def _is_probability(self, value: int) -> bool:
        """Whether a value is a softmax, or a multiple of one."""
        makers = (self.trace.made(v) for v in self.behind(value, SAME | {"mul", "div"}))
        return any(op is not None and op.name in SOFTMAX for op in makers)

    def _is_factor(self, op: Op, mine: set[int]) -> bool:
        """Whether a product with weights makes other weights, as with a gate of every pair."""
        if op.name != "mul" or op.in_place:
            return False
        factors = self.factors(op)
        own = [value for value in factors if value in mine]
        others = [value for value in factors if value not in mine]
        if len(own) != 1 or len(others) != 1:
            return False
        if self.sizes(_is_smaller, own[0], others[0]):
            return False
        if not self._is_of_gates(others[0]) and not self._products_behind(others[0]):
            return False
        return any(True for _ in self._next_products(op.out))

    def _next_products(self, value: int) -> Iterator[Op]:
        """Products with another signal that a value enters as it is."""
        seen, todo = {value}, [value]
        while todo:
            for number in self.trace.uses[todo.pop()]:
                op = self.trace.ops[number]
                if op.name in PRODUCTS:
                    factors = self.factors(op)
                    if len(factors) == 2 and not all(f in seen for f in factors):
                        yield op
                elif op.name in SAME:
                    new = {ref.value for ref in op.makes} - seen
                    seen |= new
                    todo.extend(new)

    # -- attention and gates -------------------------------------------------------------------

    def _weights_made_by(self, op: Op) -> list[list[int]]:
        """Values that are weights which sum to one, if this operation makes such."""
        if op.name in SOFTMAX and self.live_reads(op):
            return [[op.out]]
        if op.name in ("div", "mul") and self._is_normalised(op):
            return [[op.out]]
        if op.name == "exp" and self._is_of_logarithms(op):
            return [[op.out]]
        return []

    def _is_normalised(self, op: Op) -> bool:
        """Whether a quotient is `w / sum(w)`, as in a softmax over edges."""
        factors = self.factors(op)
        if len(factors) != 2:
            return False
        above, below = factors
        if op.name == "mul":
            makers = [self.trace.made(value) for value in factors]
            inverse = [m is not None and m.name == "reciprocal" for m in makers]
            if inverse.count(True) != 1:
                return False
            above, below = (below, above) if inverse[0] else (above, below)
        own = self.behind(above, SAME)
        sums = (self.trace.made(value) for value in self.behind(below, OF_A_SUM))
        return any(
            m is not None
            and m.name in SUMS
            and any(self.behind(read, SAME) & own for read in self.live_reads(m))
            for m in sums
        )

    def _is_of_logarithms(self, op: Op) -> bool:
        """Whether `exp` undoes `log_softmax`, or has `s - logsumexp(s)` as its argument."""
        before = self.behind(self.live_reads(op)[0], SAME | {"sub", "add", "neg"})
        makers = {m.name for value in before if (m := self.trace.made(value)) is not None}
        return bool(makers & {"_log_softmax", "logsumexp"})

    def _mark_attention(self, op: Op, weights: list[int]) -> None:
        for product, value in self.meetings(weights, ON_THE_WAY):
            self.marks.hold(product, value, "attention")
            self.marks.attention.append(Meeting(product, value, op))

    def _mark_gate(self, op: Op) -> None:
        argument = self.root(self.live_reads(op)[0])
        for product, value in self.meetings([op.out], ON_THE_WAY):
            others = [v for v in self.factors(product) if v != value]
            if any(self._is_of_gates(other) for other in others):
                continue
            own = any(self.root(other) == argument for other in others)
            self.marks.hold(product, value, "activation" if own else "attention")
        for product in self._constant_rows(op.out):
            self.marks.hold(product, self.factors(product)[0], "attention")

    def _constant_rows(self, value: int) -> Iterator[Op]:
        """Products of a gate with a constant that the pass made, entry by entry."""
        seen, todo = {value}, [value]
        while todo:
            for number in self.trace.uses[todo.pop()]:
                op = self.trace.ops[number]
                if op.name == "mul" and len(self.factors(op)) == 1 and len(op.reads) == 2:
                    (other,) = (r.value for r in op.reads if r.value not in seen)
                    if self.trace.maker[other] >= 0 and self.sizes(torch.Size.__eq__, other, value):
                        yield op
                elif op.name in SAME | {"rsub"}:
                    new = {ref.value for ref in op.makes} - seen
                    seen |= new
                    todo.extend(new)

    def _is_of_gates(self, value: int) -> bool:
        """Whether a value is made of gates alone."""
        todo, seen = [value], {value}
        while todo:
            op = self.trace.made(todo.pop())
            if op is None or op.name not in ON_THE_WAY | GATES:
                return False
            for read in self.live_reads(op) if op.name not in GATES else ():
                if read not in seen:
                    seen.add(read)
                    todo.append(read)
        return True

    def _mark_linear_attention(self, op: Op) -> bool:
        """Mark attention that is divided by its sums after it has met the values.

        That is `(w v) / sum(w)`, and `q (k^T v) / (q sum(k))`, whose matrix is never computed.
        """
        pairs = _both_ways(self.factors(op))
        for above, below in pairs[:1] if op.name == "div" else pairs:
            found = self._divided_at_the_end(above, below)
            for product in [] if found else self._products_behind(below):
                found = found or self._linear_attention(above, product)
            for product, weights in found or ():
                self.marks.hold(product, weights, "attention")
            if found:
                self.marks.hold(op, below, "attention")
                if len(found) == 1:  # with a matrix
                    self.marks.attention.append(Meeting(*found[0], op, below))
                return True
        return False

    def _divided_at_the_end(self, above: int, below: int) -> list[tuple[Op, int]] | None:
        """The product `w v` and its weights, if `below` is the sum of these weights."""
        makers = (self.trace.made(value) for value in self.behind(below, OF_A_SUM))
        sums = [m for m in makers if m is not None and m.name in SUMS]
        summed = [self.behind(read, SAME) for m in sums for read in self.live_reads(m)]
        for product in self._products_behind(above):
            for weights, _ in _both_ways(self.factors(product)):
                if any(self.behind(weights, SAME) & values for values in summed):
                    return [(product, weights)]
        return None

    def _products_behind(self, value: int) -> list[Op]:
        """Products of two signals that a value is, but for constants and sums."""
        makers = (
            self.trace.made(v) for v in self.behind(value, OF_A_SUM | ADDITIONS | {"mul", "div"})
        )
        return [
            m for m in makers if m is not None and m.name in PRODUCTS and len(self.factors(m)) == 2
        ]

    def _linear_attention(self, above: int, below: Op) -> list[tuple[Op, int]] | None:
        """The products `q (k^T v)` and `k^T v`, with q and k, if `below` is `q sum(k)`.

        If the list has the matrix: the product `(q k^T) v` with the matrix.
        """
        of_sum = SAME | SUMS | MATRIX_PRODUCTS | {"mul", "div", "add"}
        sums = [self.behind(value, of_sum) for value in self.factors(below)]
        own = [self.behind(value, SAME) for value in self.factors(below)]
        for outer in self._products_behind(above):
            if outer is below:
                continue
            for query, rest in _both_ways(self.factors(outer)):
                for inner in self._products_behind(rest):
                    if inner is outer or inner is below:
                        continue
                    for key, other in _both_ways(self.factors(inner)):
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

    def _mark_own(self, op: Op) -> bool:
        """Mark `g(x)` in `x g(x)`."""
        first, second = self.factors(op)
        pairs = [(first, second)] if op.name == "div" else [(first, second), (second, first)]
        for x, g in pairs:
            if self._is_entrywise(g, self.root(x)):
                self.marks.hold(op, g, "activation")
                return True
        return False

    def _is_entrywise(self, g: int, x: int) -> bool:
        """Whether g is made of x and constants alone, entry by entry, and is no multiple of x."""
        if self.root(g) == x:
            return False
        todo, seen, found = [g], {g}, False
        while todo:
            value = todo.pop()
            if self.root(value) == x:
                found = True
                continue
            op = self.trace.made(value)
            if op is None or op.name not in ENTRYWISE:
                return False
            if not self.sizes(torch.Size.__eq__, value, g):
                return False
            for read in self.live_reads(op):
                if read not in seen:
                    seen.add(read)
                    todo.append(read)
        return found

    def _mark_scale(self, op: Op) -> bool:
        """Mark the scale in a quotient or product of a signal and its own length."""
        first, second = self.factors(op)
        pairs = [(first, second)] if op.name == "div" else [(first, second), (second, first)]
        for x, scale in pairs:
            if self._is_scale_of(scale, x):
                self.marks.hold(op, scale, "layernorm")
                return True
        return False

    def _is_scale_of(self, scale: int, x: int) -> bool:
        """Whether a value is a root of sums of squares of x, or of what x was centred from."""
        values = self.behind(scale, OF_A_SCALE)
        makers = [m for value in values if (m := self.trace.made(value)) is not None]
        if not any(is_root(m) for m in makers):
            return False
        if not any(m.name in SUMS | {"std", "std_mean", "var", "var_mean", "linalg_vector_norm",
                                     "norm", "dot"} for m in makers):  # fmt: skip
            return False
        mine = self.behind(x, SAME | SUMS | ADDITIONS | {"mul", "div", "neg"})
        return bool(mine & values - {scale}) and self._only_of(scale, mine)

    def _only_of(self, value: int, mine: set[int]) -> bool:
        """Whether a scale is made of values in `mine` and constants alone."""
        todo, seen = [value], {value}
        while todo:
            value = self._first[todo.pop()]
            if value in mine:
                continue
            op = self.trace.made(value)
            if op is None or op.name not in OF_A_SCALE | {"sub"}:
                return False
            for read in self.live_reads(op):
                if read not in seen:
                    seen.add(read)
                    todo.append(read)
        return True


def _first_of_equals(trace: Trace) -> tuple[list[int], list[list[int]]]:
    """For every value the first that the same operation made of the same arguments.

    Also groups of operations that are the same but for their numbers.
    """
    first = list(range(len(trace.maker)))
    known: dict[object, tuple[Ref, ...]] = {}
    alike: dict[object, list[int]] = {}
    for op in trace.ops:
        if (
            op.in_place
            or op.number in trace.drawn
            or not any(trace.live[r.value] for r in op.reads)
        ):
            continue
        key = (op.func, tuple(first[ref.value] for ref in op.reads))
        alike.setdefault(key, []).append(op.number)
        equal = known.setdefault((key, numbers_among(op, op.args, op.kwargs)), op.makes)
        for ref, other in zip(op.makes, equal, strict=True):
            first[ref.value] = first[other.value]
    return first, [group for group in alike.values() if len(group) > 1]


def numbers_among(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """All that is no tensor among an operation's arguments."""
    return repr(filled((op.args, op.kwargs), (args, kwargs), lambda ref: "tensor"))


def _is_smaller(first: torch.Size, second: torch.Size) -> bool:
    return first.numel() < second.numel()


def _both_ways(pair: list[int]) -> list[tuple[int, int]]:
    return [(pair[0], pair[1]), (pair[1], pair[0])]


def is_root(op: Op) -> bool:
    """Whether an operation is a square root, or a length."""
    if op.name == "pow":
        return any(isinstance(arg, float) and abs(arg) == 0.5 for arg in op.args[1:])
    return op.name in ROOTS


def signals(trace: Trace, marks: Marks, rules: Rules, bits: int = -1) -> bytearray:
    """For every value whether a gradient flows to it from these inputs under these rules."""
    found = bytearray(len(trace.maker))
    for value, number in enumerate(trace.maker):
        if not trace.live[value] & bits:
            continue
        if value in trace.joined:
            found[value] = any(found[part] for part in trace.joined[value])
        elif number < 0:
            found[value] = 1
        else:
            found[value] = bool(unheld(trace.ops[number], found, trace.live, marks, rules))
    return found


def unheld(op: Op, signal: bytearray, live: list[int], marks: Marks, rules: Rules) -> list[int]:
    """The signals that an operation reads and does not hold constant.

    live: of the trace. Where the nodes meet another input in a product, that input is constant: it
    scales what the nodes pass on.
    """
    read = [ref.value for ref in op.reads if signal[ref.value]]
    if op.number in marks.held:
        held = marks.held[op.number]
        read = [v for v in read if not (v in held and getattr(rules, held[v]))]
    if len(read) > 1 and op.name in PRODUCTS:
        factors = [v for v in factors_of(op) if v in read]
        of_nodes = [v for v in factors if live[v] & 1]
        if len(factors) > 1 and len(of_nodes) < len(factors):
            kept = of_nodes or factors[:1]
            read = [v for v in read if v in kept or v not in factors]
    return read


def factors_of(op: Op) -> list[int]:
    """The tensors that a product multiplies; a value twice if it is squared."""
    args = op.args[1:] if op.name in PLUS_PRODUCT else op.args
    return [arg.value for arg in args[:2] if type(arg) is Ref]


def halves(op: Op, signal: bytearray, live: list[int], marks: Marks, rules: Rules) -> bool:
    """Whether a product gives each of its factors half of its relevance.

    Under the rule `products` all products of two signals do, but for a norm's scale. Under AH those
    do that are neither attention nor a gate, such as the two branches of a SwiGLU or of Polynormer
    (uniform rule, Achtibat 2024, section 3.2).
    """
    if op.number not in marks.products or not (rules.products or rules.attention):
        return False
    if len([v for v in factors_of(op) if v in unheld(op, signal, live, marks, rules)]) < 2:
        return False
    known = marks.held.get(op.number, {}).values()
    return "layernorm" not in known if rules.products else not known


def curves(
    trace: Trace, marks: Marks, ops: Iterable[Op], signal: bytearray, rules: Rules
) -> Iterator[Nonlinearity]:
    """What keeps its ordinary gradient among these operations, although a rule asks otherwise."""
    for op in ops:
        live = unheld(op, signal, trace.live, marks, rules)
        if not live or halves(op, signal, trace.live, marks, rules):
            continue
        found = _curve(trace, op, live, marks)
        if found is not None and (found.rule is None or getattr(rules, found.rule)):
            yield found


def vanishes_at_zero(op: Op) -> bool:
    """Whether f(0) = 0, which does not hold for all bounds of `hardtanh`."""
    if op.name != "hardtanh":
        return True
    low, high = (*op.args[1:], -1, 1)[:2] if len(op.args) < 3 else op.args[1:3]
    return bool(low <= 0 <= high)


def _is_held_everywhere(trace: Trace, op: Op, marks: Marks) -> bool:
    """Whether a root with another result, such as a mean, passes no gradient on by itself."""
    return len(op.makes) > 1 and all(
        trace.ops[number].name in OF_A_SCALE or op.out in marks.held.get(number, {})
        for number in trace.uses[op.out]
    )


def _curve(trace: Trace, op: Op, live: list[int], marks: Marks) -> Nonlinearity | None:
    if op.name in SOFTMAX:
        return Nonlinearity("attention", "a softmax whose result enters no product", op.place)
    if op.name in PRODUCTS:
        factors = [value for value in factors_of(op) if value in live]
        if op.name == "div" and factors and factors[0] != getattr(op.args[0], "value", None):
            what = "a quotient (div) with the input in the denominator"
            return Nonlinearity("activation", what, op.place)
        if len(factors) < 2:
            return None
        what = f"a product ({op.name}) of two quantities that depend on the input"
        off = [rule for v in factors if (rule := marks.held.get(op.number, {}).get(v)) is not None]
        return Nonlinearity(off[0] if off else "attention", what, op.place)
    if is_root(op) and not _is_held_everywhere(trace, op, marks):
        return Nonlinearity("layernorm", f"{op.name} that scales nothing", op.place)
    if op.name in NORMS:
        return None
    if op.name in RATIO and vanishes_at_zero(op):
        return None
    if "prod" in op.args:
        return Nonlinearity("activation", "prod", op.place)
    if is_root(op) or op.name == "_log_softmax":
        return None
    return None if op.name in KNOWN else Nonlinearity("activation", op.name, op.place)
