"""Read attention between nodes from a recorded pass.

Attention is put together as (B, H, T, T), and the gradient passes through it. `role_finder` says
what attention is. Other weights between nodes, such as `gelu(q k^T) v`, are left out and named.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import permutations
from typing import NamedTuple

import torch
from torch import Tensor

from graphxai.contract.batch import NodeLayout
from graphxai.engine import operations as kinds
from graphxai.engine.attention.matrices import (
    NodePairEntries,
    TensorFunction,
    exposed_attention,
    node_pair_entries,
)
from graphxai.engine.attention.node_ids import NONE, EntryIds, NodeIds
from graphxai.engine.flow_queries import ancestors, factors_of
from graphxai.engine.plan import AttentionProduct, ReplayPlan, Roles, ValueReplacement
from graphxai.engine.trace import Op, Trace
from graphxai.rules.conservative import Rules, current_tape
from graphxai.runtime.notices import warn


def exposing(entries: NodePairEntries, layout: NodeLayout, rules: Rules) -> TensorFunction:
    """Return a function that puts attention on the tape, and computes the weights from it."""

    def expose(weights: Tensor) -> Tensor:
        tape = current_tape()
        assert tape is not None
        leaf = tape.attention_gradients and rules.attention
        attention, used = exposed_attention(weights, entries, len(layout.mask), layout.tokens, leaf)
        tape.attention.append(attention)
        return used

    return expose


# -- which attention -------------------------------------------------------------------------------
class NodeAttention(NamedTuple):
    """Attention between nodes.

    Args:
        product: the product in which it multiplies values.
        entries: its entries between two nodes.
        weights: for the number of every product in which the same weights multiply values, the
            weights there.
        chunk_of: a model may compute the rows of one matrix in chunks. Then this is the place,
            among all attention, of the first chunk; otherwise it is the place of the attention
            itself.
        ones: the channels (D,) of the product that are ones before, and so hold the sums that
            divide it; None if it has no such channels.
    """

    product: AttentionProduct
    entries: NodePairEntries
    weights: dict[int, int]
    chunk_of: int
    ones: Tensor | None


def attention_replacements(
    attention: Sequence[NodeAttention], exposing: Callable[[NodePairEntries], TensorFunction]
) -> dict[int, ValueReplacement]:
    """Return what replaces the weights in each product. Weights of several are exposed once."""
    functions = ((layer, _called_once(exposing(layer.entries))) for layer in attention)
    return {
        number: ValueReplacement(weights, function, layer.ones)
        for layer, function in functions
        for number, weights in layer.weights.items()
    }


def _called_once(function: TensorFunction) -> TensorFunction:
    """Return a function that returns its first result again in later calls."""
    results: list[Tensor] = []

    def first_result(weights: Tensor) -> Tensor:
        if not results:
            results.append(function(weights))
        return results[0]

    return first_result


def attention_between_nodes(
    plan: ReplayPlan, nodes: NodeIds, size: int, name: str, together: bool = False
) -> list[NodeAttention]:
    """Return the attention that the output depends on, in order, and warn of what is left out.

    Raises GraphsNeedOwnPass if attention can only be read with a pass for each graph.

    Args:
        together: whether the graphs of the batch cannot have a pass each.
    """
    attention: list[NodeAttention] = []
    left_out: set[str] = set()
    unread: set[str] = set()
    visited: set[int] = set()
    first_equal, passing = plan.roles.first_equal, {op.number for op in plan.passing}
    for product in sorted(plan.roles.attention, key=lambda p: p.op.number):
        if product.op.number not in passing:
            continue
        if product.origin.number in visited:
            layer = next((a for a in attention if a.product.origin is product.origin), None)
            if layer and first_equal[layer.product.weights] == first_equal[product.weights]:
                layer.weights[product.op.number] = product.weights
            elif layer and nodes.are_pairs(product.weights):
                unread.add(product.op.path or "the model")
            continue
        visited.add(product.origin.number)
        if any(product.op.number in layer.weights for layer in attention):
            continue  # a difference or sum of softmaxes is read as a whole
        entries = node_pair_entries(plan.trace, product, nodes, size)
        if entries is not None:
            chunk_of = _chunk_of(plan.trace, nodes, attention, product, entries)
            weights = {product.op.number: product.weights}
            ones = _channels_of_ones(plan.trace, product)
            attention.append(NodeAttention(product, entries, weights, chunk_of, ones))
        elif product.divisor is not None and size > 1 and not together:
            raise GraphsNeedOwnPass  # the divisor may contain padding
        elif not _pools(plan.trace, nodes, product):
            left_out.add(product.op.path or "the model")
    without_kernel = products_without_softmax(plan.trace, plan.passing, plan.roles, nodes)
    left_out |= {op.path or "the model" for op in without_kernel}
    _warn_of_unread(name, left_out, unread)
    if size > 1 and not together and _lacks_a_graph(attention, size):
        raise GraphsNeedOwnPass
    return attention


def _warn_of_unread(name: str, left_out: set[str], unread: set[str]) -> None:
    """Warn of modules that weight values, but whose weights are not read."""
    if left_out:
        warn(
            f"{name} weights values in a way that is not, or may not be, attention between the"
            " nodes of the graphs (it involves latents, clusters, experts or several extra tokens,"
            " or it has no softmax and no other kernel that makes weights positive); methods that"
            " read attention leave it out:"
            f" {'; '.join(sorted(left_out))}.",
            stacklevel=9,
        )
    if unread:
        warn(
            f"{name} multiplies parts or multiples of the same softmax with values in several"
            " products; methods that read attention read the first product and leave out those in"
            f" {'; '.join(sorted(unread))}.",
            stacklevel=9,
        )


def _lacks_a_graph(attention: Sequence[NodeAttention], size: int) -> bool:
    """Return whether the matrix of a layer, with all its chunks, lacks one of `size` graphs."""
    graphs: dict[int, set[int]] = {}
    for layer in attention:
        of_chunk = layer.entries.positions[0].unique().tolist()
        graphs.setdefault(layer.chunk_of, set()).update(of_chunk)
    return any(len(of_layer) < size for of_layer in graphs.values())


def _chunk_of(
    trace: Trace,
    nodes: NodeIds,
    before: Sequence[NodeAttention],
    product: AttentionProduct,
    entries: NodePairEntries,
) -> int:
    """Return the place of the first chunk of the matrix that attention belongs to.

    Chunks of one matrix have different rows, which the model joins. The heads of a layer have the
    same rows.
    """
    heads, rows = entries.index.shape[1], _rows(entries, nodes)
    for k, layer in enumerate(before):
        if layer.chunk_of != k or layer.entries.index.shape[1] != heads:
            continue
        chunks = (_rows(other.entries, nodes) for other in before if other.chunk_of == k)
        if any(bool(torch.isin(chunk, rows).any()) for chunk in chunks):
            continue
        results = (product.op.out, layer.product.op.out)
        if set.intersection(*(_joins(trace, nodes, value) for value in results)):
            return k
    return len(before)


def _channels_of_ones(trace: Trace, product: AttentionProduct) -> Tensor | None:
    """Return the channels (D,) of values that are ones, if a product is divided by one of them."""
    others = [value for value in factors_of(product.op) if value != product.weights]
    if product.divisor is None or len(others) != 1:
        return None
    ones = (trace.tensor(others[0]) == 1).flatten(0, -2).all(0)
    return ones if ones.any() and not ones.all() else None


def _rows(entries: NodePairEntries, nodes: NodeIds) -> Tensor:
    """Return the ids of the nodes that attend."""
    graph, query, _ = entries.positions
    return graph * nodes.tokens + query


def _joins(trace: Trace, nodes: NodeIds, value: int) -> set[tuple[str, int]]:
    """Find where rows of nodes, or what is made of them row by row, are joined with others."""
    joins, visited, todo = set[tuple[str, int]](), {value}, [value]
    ids_of_rows = nodes.by_value.get(value)
    while todo and ids_of_rows is not None:
        for number in trace.flow.uses[todo.pop()]:
            op = trace.ops[number]
            if op.name in kinds.JOINS:
                memory = trace.memory.storage[op.makes[0].slot]
                joins.add(("memory", memory) if op.in_place else ("operation", number))
                continue
            for ref in op.makes:
                ids = nodes.by_value.get(ref.value)
                if ref.value not in visited and ids is not None and ids.key is None:
                    visited.add(ref.value)
                    if torch.equal(ids.query.unique(), ids_of_rows.query.unique()):
                        todo.append(ref.value)
    return joins


class GraphsNeedOwnPass(Exception):
    """Attention of a batch cannot be read, but may be if each graph has a pass of its own.

    The model attends in one graph after the other, or it counts padding.
    """


def _pools(trace: Trace, nodes: NodeIds, product: AttentionProduct) -> bool:
    """Whether weights are of single nodes and make one row of them, as in a readout."""
    if nodes.are_pairs(product.weights) is not False:
        return False
    if product.op.name not in kinds.MATRIX_PRODUCTS:
        return True
    weights_first = product.op.reads[0].value == product.weights
    return trace.shape(product.weights)[-2 if weights_first else -1] == 1


def products_without_softmax(
    trace: Trace, ops: Iterable[Op], roles: Roles, nodes: NodeIds
) -> Iterator[Op]:
    """Yield those of the operations in which weights without a role mix the values of nodes."""
    with_role = {product.op.number for product in roles.attention}
    for op in ops:
        if op.name not in kinds.MIXING or op.number in with_role:
            continue
        factors = _signals(trace, op)
        for weights, values in permutations(factors, 2) if len(set(factors)) == 2 else ():
            weight_ids, value_ids = (nodes.by_value.get(value) for value in (weights, values))
            if weight_ids is None or value_ids is None or value_ids.key is not None:
                continue
            if weight_ids.key is not None:
                kind, narrow = _makes_pairs, weights
            elif bool((weight_ids.query <= NONE).all()) and _is_of_nodes(value_ids):
                kind, narrow = _makes_moments, values
            else:
                continue
            size = trace.shape(op.out).numel()
            widens = op.name in kinds.MATRIX_PRODUCTS or size > trace.shape(narrow).numel()
            if widens and _is_made_by(trace, nodes, weights, kind):
                yield op


def _signals(trace: Trace, op: Op) -> list[int]:
    """Return the factors of a product that depend on the nodes."""
    return [value for value in factors_of(op) if trace.flow.live[value] & 1]


def _is_made_by(
    trace: Trace, nodes: NodeIds, value: int, kind: Callable[[Trace, NodeIds, Op], bool]
) -> bool:
    """Whether an operation of this kind makes a value, with no softmax in between."""

    def further(value: int, op: Op) -> Iterator[int]:
        of_pairs = None if op.name in kinds.SOFTMAX else nodes.are_pairs(value)
        for ref in op.reads if of_pairs is not None else ():
            if trace.flow.live[ref.value] & 1 and nodes.are_pairs(ref.value) is of_pairs:
                yield ref.value

    ops = map(trace.op_of, ancestors(trace, value, further))
    return any(op and op.name not in kinds.SOFTMAX and kind(trace, nodes, op) for op in ops)


def _makes_pairs(trace: Trace, nodes: NodeIds, op: Op) -> bool:
    """Whether an operation makes a value for each pair of nodes, by a product or a distance."""
    if not nodes.are_pairs(op.out):
        return False
    if kinds.OPERATIONS[op.name].nodes == "cdist":
        return True
    of_pairs = [nodes.are_pairs(value) for value in set(_signals(trace, op))]
    return op.name in kinds.MIXING and of_pairs == [False, False]


def _makes_moments(trace: Trace, nodes: NodeIds, op: Op) -> bool:
    """Whether an operation sums products of two channels of the nodes, as in `k^T v`."""
    factors = set(_signals(trace, op))
    if op.name not in kinds.MIXING or len(factors) != 2:
        return False
    shape, shapes = trace.shape(op.out), [trace.shape(value) for value in factors]
    if op.name in kinds.TIMES:
        return shape.numel() > max(factor.numel() for factor in shapes)
    ids = [nodes.by_value.get(value) for value in factors]
    return all(n is not None and _is_of_nodes(n) for n in ids) and min(shape[-2:]) > 1


def _is_of_nodes(ids: EntryIds) -> bool:
    """Whether entries are of single nodes."""
    return ids.key is None and bool((ids.query >= 0).any())
