"""Find attention between nodes that has no softmax, and so no probabilities to read.

It is recognised by two products: a product of two signals makes weights of pairs of nodes, or sums
over nodes, and these multiply values. Gates on edges are not meant, nor are weights that a network
computes from both ends of an edge.
"""

from collections.abc import Callable, Iterator

from .flow_queries import both_ways, factors_of
from .node_ids import NONE, EntryIds, NodeIds
from .replay_plan import ReplayPlan
from .trace import Op
from .vocabulary import MATRIX_PRODUCTS, PRODUCTS, SOFTMAX

MIXING = PRODUCTS - {"div"}


def products_without_softmax(plan: ReplayPlan, nodes: NodeIds) -> Iterator[Op]:
    """Yield the products in which weights that no softmax made mix the values of nodes."""
    with_softmax = {product.op.number for product in plan.roles.attention}
    for op in plan.passing:
        if op.name not in MIXING or op.number in with_softmax:
            continue
        factors = _signals(plan, op)
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
            if _widens(plan, op, narrow) and _is_made_by(plan, nodes, weights, kind):
                yield op


def _signals(plan: ReplayPlan, op: Op) -> list[int]:
    """Return the factors of a product that depend on the nodes."""
    return [value for value in factors_of(op) if plan.trace.flow.live[value] & 1]


def _widens(plan: ReplayPlan, op: Op, factor: int) -> bool:
    """Whether a product is of matrices, or has more entries than this factor."""
    size = plan.trace.shape(op.out).numel()
    return op.name in MATRIX_PRODUCTS or size > plan.trace.shape(factor).numel()


def _is_made_by(
    plan: ReplayPlan, nodes: NodeIds, value: int, kind: Callable[[ReplayPlan, NodeIds, Op], bool]
) -> bool:
    """Whether an operation of this kind makes a value, with no softmax in between."""

    def further(value: int, op: Op) -> Iterator[int]:
        of_pairs = None if op.name in SOFTMAX else nodes.are_pairs(value)
        for ref in op.reads if of_pairs is not None else ():
            if plan.trace.flow.live[ref.value] & 1 and nodes.are_pairs(ref.value) is of_pairs:
                yield ref.value

    ops = map(plan.trace.op_of, plan.trace.ancestors(value, further))
    return any(op and op.name not in SOFTMAX and kind(plan, nodes, op) for op in ops)


def _makes_pairs(plan: ReplayPlan, nodes: NodeIds, op: Op) -> bool:
    """Whether an operation makes a value for each pair of nodes, by a product or a distance."""
    if not nodes.are_pairs(op.out):
        return False
    if op.name == "_cdist_forward":
        return True
    of_pairs = [nodes.are_pairs(value) for value in set(_signals(plan, op))]
    return op.name in MIXING and of_pairs == [False, False]


def _makes_moments(plan: ReplayPlan, nodes: NodeIds, op: Op) -> bool:
    """Whether an operation sums products of two channels of the nodes, as in `k^T v`."""
    factors = set(_signals(plan, op))
    if op.name not in MIXING or len(factors) != 2:
        return False
    shape, shapes = plan.trace.shape(op.out), [plan.trace.shape(value) for value in factors]
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
