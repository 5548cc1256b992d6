"""Find the roles of values in a recorded pass: attention, gates, scales of norms, activations.

Every decision follows from how data flows through the whole trace, never from the name of a class,
a module or an attribute. A role says that an operation takes some of its arguments as constants, or
that a product gives each factor half of its relevance:

* attention: a softmax, however it is written, whose result multiplies values;
* gate: a sigmoid that multiplies another signal, or anything that is computed from gates alone;
* scale: a root of sums of squares that divides the squared values themselves, as in every norm;
* activation: the factor `g(x)` of `x g(x)`, entry by entry.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .flow_queries import SizeComparison
from .trace import Op

Rule = Literal["attention", "layernorm", "activation"]


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
