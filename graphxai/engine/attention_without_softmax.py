"""Find attention between nodes that has no softmax.

It is recognised by two products: a product of two signals makes weights of pairs of nodes, or sums
over nodes, and these multiply values. Gates on edges are not meant, nor are weights that a network
computes from both ends of an edge. If a kernel such as a sigmoid makes the weights positive, they
can be read like probabilities.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from .flow_queries import both_ways, factors_of
from .node_ids import NONE, EntryIds, NodeIds
from .roles import AttentionProduct, Roles
from .trace import Op, Trace
from .vocabulary import GATES, MATRIX_PRODUCTS, PRODUCTS, SAME, SOFTMAX

MIXING = PRODUCTS - {"div"}
KERNELS = GATES | {"relu", "softplus", "exp"}  # they make positive weights


class WeightedProduct(NamedTuple):
    """A product in which weights, a value, mix the values of nodes."""

    op: Op
    weights: int


def attention_with_kernels(trace: Trace, roles: Roles, nodes: NodeIds) -> list[AttentionProduct]:
    """Return the products whose weights between nodes a kernel other than softmax made positive."""
    weighted = products_without_softmax(trace, trace.ops, roles, nodes)
    kernels = ((product, _kernel(trace, product.weights)) for product in weighted)
    return [AttentionProduct(*product, kernel) for product, kernel in kernels if kernel is not None]


def _kernel(trace: Trace, weights: int) -> Op | None:
    """Return the operation that made weights positive, or None if there is none."""
    value = weights
    while (op := trace.op_of(value)) is not None and op.name not in KERNELS:
        signals = [ref.value for ref in op.reads if trace.flow.live[ref.value] & 1]
        if op.name not in SAME | {"mul", "div"} or len(signals) != 1:
            return None
        (value,) = signals
    return op


def products_without_softmax(
    trace: Trace, ops: Iterable[Op], roles: Roles, nodes: NodeIds
) -> Iterator[WeightedProduct]:
    """Yield those of the operations in which weights without a role mix the values of nodes."""
    with_role = {product.op.number for product in roles.attention}
    for op in ops:
        if op.name not in MIXING or op.number in with_role:
            continue
        factors = _signals(trace, op)
        for weights, values in both_ways(factors) if len(set(factors)) == 2 else ():
            weight_ids, value_ids = (nodes.by_value.get(value) for value in (weights, values))
            if weight_ids is None or value_ids is None or value_ids.key is not None:
                continue
            if weight_ids.key is not None:
                kind, narrow = _makes_pairs, weights
            elif _is_of_graphs(weight_ids) and _is_of_nodes(value_ids):
                kind, narrow = _makes_moments, values
            else:
                continue
            if _widens(trace, op, narrow) and _is_made_by(trace, nodes, weights, kind):
                yield WeightedProduct(op, weights)


def _signals(trace: Trace, op: Op) -> list[int]:
    """Return the factors of a product that depend on the nodes."""
    return [value for value in factors_of(op) if trace.flow.live[value] & 1]


def _widens(trace: Trace, op: Op, factor: int) -> bool:
    """Whether a product is of matrices, or has more entries than this factor."""
    size = trace.shape(op.out).numel()
    return op.name in MATRIX_PRODUCTS or size > trace.shape(factor).numel()


def _is_made_by(
    trace: Trace, nodes: NodeIds, value: int, kind: Callable[[Trace, NodeIds, Op], bool]
) -> bool:
    """Whether an operation of this kind makes a value, with no softmax in between."""

    def further(value: int, op: Op) -> Iterator[int]:
        of_pairs = None if op.name in SOFTMAX else nodes.are_pairs(value)
        for ref in op.reads if of_pairs is not None else ():
            if trace.flow.live[ref.value] & 1 and nodes.are_pairs(ref.value) is of_pairs:
                yield ref.value

    ops = map(trace.op_of, trace.ancestors(value, further))
    return any(op and op.name not in SOFTMAX and kind(trace, nodes, op) for op in ops)


def _makes_pairs(trace: Trace, nodes: NodeIds, op: Op) -> bool:
    """Whether an operation makes a value for each pair of nodes, by a product or a distance."""
    if not nodes.are_pairs(op.out):
        return False
    if op.name == "_cdist_forward":
        return True
    of_pairs = [nodes.are_pairs(value) for value in set(_signals(trace, op))]
    return op.name in MIXING and of_pairs == [False, False]


def _makes_moments(trace: Trace, nodes: NodeIds, op: Op) -> bool:
    """Whether an operation sums products of two channels of the nodes, as in `k^T v`."""
    factors = set(_signals(trace, op))
    if op.name not in MIXING or len(factors) != 2:
        return False
    shape, shapes = trace.shape(op.out), [trace.shape(value) for value in factors]
    if op.name == "mul":
        return shape.numel() > max(factor.numel() for factor in shapes)
    ids = [nodes.by_value.get(value) for value in factors]
    return all(n is not None and _is_of_nodes(n) for n in ids) and min(shape[-2:]) > 1


def _is_of_graphs(ids: EntryIds) -> bool:
    """Whether every entry is of several nodes, or of none."""
    return bool((ids.query <= NONE).all())


def _is_of_nodes(ids: EntryIds) -> bool:
    """Whether entries are of single nodes."""
    return ids.key is None and bool((ids.query >= 0).any())
