"""Attention without a softmax, which methods that read attention leave out.

`relu(q k^T) v`, sparsemax and `phi(q) (phi(k)^T v)` have no probabilities to read. They are found
by their products: weights of pairs of nodes, or sums over nodes, made of a product of two signals,
meet values in another product. A gate on an edge is not meant, nor are weights that a network
computes from both ends of an edge.
"""

from collections.abc import Callable, Iterator

from .marks import factors_of
from .nodes import NONE, Nodes, Numbers
from .replay import Plan
from .trace import Op
from .vocabulary import MATRIX_PRODUCTS, PRODUCTS, SOFTMAX

MIXING = PRODUCTS - {"div"}


def softless(made: Plan, nodes: Nodes) -> Iterator[Op]:
    """Products in which weights that are no softmax mix the values of nodes."""
    known = {met.product.number for met in made.marks.attention}
    for op in made.passing:
        if op.name not in MIXING or op.number in known:
            continue
        for weights, values in _both_ways(_signals(made, op)):
            of_weights, of_values = (nodes.by_value.get(value) for value in (weights, values))
            if of_weights is None or of_values is None or of_values.key is not None:
                continue
            if of_weights.key is not None:
                kind, narrow = _is_of_pairs, weights
            elif _is_of_graphs(of_weights) and _is_of_nodes(of_values):
                kind, narrow = _is_moments, values
            else:
                continue
            if _widens(made, op, narrow) and _reaches(made, nodes, weights, kind):
                yield op


def _signals(made: Plan, op: Op) -> list[int]:
    """The factors of a product that depend on the nodes."""
    return [value for value in factors_of(op) if made.trace.live[value] & 1]


def _both_ways(factors: list[int]) -> list[tuple[int, int]]:
    return [(factors[0], factors[1]), (factors[1], factors[0])] if len(set(factors)) == 2 else []


def _widens(made: Plan, op: Op, factor: int) -> bool:
    """Whether a product is of matrices, or has more entries than this factor."""
    size = made.trace.shape(op.out).numel()
    return op.name in MATRIX_PRODUCTS or size > made.trace.shape(factor).numel()


def _reaches(made: Plan, nodes: Nodes, value: int, kind: Callable[[Plan, Nodes, Op], bool]) -> bool:
    """Whether a value is made of a product of this kind, other than by way of a softmax."""
    todo, seen = [value], {value}
    while todo:
        op = made.trace.made(todo.pop())
        if op is None or op.name in SOFTMAX:
            continue
        if kind(made, nodes, op):
            return True
        own = nodes.by_value.get(op.out)
        for ref in op.reads:
            of_read = nodes.by_value.get(ref.value)
            alike = (
                own is not None
                and of_read is not None
                and (own.key is None) == (of_read.key is None)
            )
            if alike and made.trace.live[ref.value] & 1 and ref.value not in seen:
                seen.add(ref.value)
                todo.append(ref.value)
    return False


def _is_of_pairs(made: Plan, nodes: Nodes, op: Op) -> bool:
    """Whether an operation makes numbers of pairs from a product, or distances, of two signals."""
    numbers = nodes.by_value.get(op.out)
    if numbers is None or numbers.key is None:
        return False
    if op.name == "_cdist_forward":
        return True
    found = (nodes.by_value.get(value) for value in set(_signals(made, op)))
    return op.name in MIXING and [n is not None and n.key is None for n in found] == [True] * 2


def _is_moments(made: Plan, nodes: Nodes, op: Op) -> bool:
    """Whether an operation sums products of two channels of the nodes, as in `k^T v`."""
    factors = set(_signals(made, op))
    if op.name not in MIXING or len(factors) != 2:
        return False
    shape, sizes = made.trace.shape(op.out), [made.trace.shape(value) for value in factors]
    if op.name == "mul":
        return shape.numel() > max(size.numel() for size in sizes)
    found = [nodes.by_value.get(value) for value in factors]
    return all(n is not None and _is_of_nodes(n) for n in found) and min(shape[-2:]) > 1


def _is_of_graphs(numbers: Numbers) -> bool:
    """Whether all entries are of several nodes."""
    return bool((numbers.query <= NONE).all())


def _is_of_nodes(numbers: Numbers) -> bool:
    """Whether entries are of single nodes."""
    return numbers.key is None and bool((numbers.query >= 0).any())
