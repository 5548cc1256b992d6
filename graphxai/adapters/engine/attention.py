"""Read attention between nodes from a recorded pass.

Attention is put together as (B, H, T, T), and the gradient passes through it. Attention without a
softmax is left out, because `relu(q k^T) v`, sparsemax and `phi(q) (phi(k)^T v)` have no
probabilities to read. It is recognised by two products: a product of two signals makes weights of
pairs of nodes, or sums over nodes, and these multiply values. Gates on edges are not meant, nor are
weights that a network computes from both ends of an edge.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from graphxai.rules.conservative import Rules, current_tape
from graphxai.runtime.scope import Blocks

from ..layout import NodeLayout
from .node_ids import NONE, EntryIds, NodeIds, agree, compressed
from .replay import Replay, ReplayPlan, ValueReplacement
from .roles import AttentionProduct, both_ways, factors_of
from .trace import Op, Trace
from .vocabulary import MATRIX_PRODUCTS, PRODUCTS, SOFTMAX

TensorFunction = Callable[[Tensor], Tensor]
SMALL = 1e-6  # attention to padding is not larger
MIXING = PRODUCTS - {"div"}
JOINING = {"cat", "stack", "copy", "index_put", "index_copy", "slice_scatter"}  # they join rows


@dataclass(frozen=True, eq=False)
class NodePairEntries:
    """The entries of attention weights that are between two nodes.

    Args:
        index (E, H): the places of the entries in the flattened weights, for each head.
        positions: the graph, the query and the key (E,) of each entry.
        divisor (E, H): what each entry is divided by later, if attention is.
    """

    index: Tensor
    positions: tuple[Tensor, Tensor, Tensor]
    divisor: Tensor | None = None

    def inside(self, weights: Tensor) -> Tensor:
        """Take the entries (E, H) from weights, and divide them if that happens later."""
        taken = weights.take(self.index)
        return taken if self.divisor is None else taken / self.divisor

    def summed(self, inside: Tensor, *shape: int) -> Tensor:
        """Put entries (E, H) into (B, H, Q, T), and add parallel edges.

        Args:
            shape: (B, Q, T).
        """
        empty = inside.new_zeros(*shape, inside.shape[1])
        return empty.index_put(self.positions, inside, accumulate=True).permute(0, 3, 1, 2)


def node_pair_entries(
    trace: Trace, product: AttentionProduct, nodes: NodeIds, size: int
) -> NodePairEntries | None:
    """Find the entries of weights in a batch of `size` graphs.

    The key of an entry is the node whose values the weight multiplies. Returns None if the weights
    are not between nodes.
    """
    ids = nodes.by_value.get(product.weights)
    if ids is None or ids.key is None:
        return None
    others = (ref.value for ref in product.op.reads if ref.value != product.weights)
    values = [nodes.by_value[value] for value in others if value in nodes.by_value]
    if values and values[0].query.dim() > 1:
        mixed = values[0].query if product.op.name == "mul" else values[0].query.mT
        if not agree(ids.key, mixed) and agree(ids.query, mixed):
            ids = EntryIds(ids.key, ids.query)
    entries = _entries_with_ids(trace.tensor(product.weights), ids, nodes, size)
    if entries is None or product.divisor is None:
        return entries
    divisor = _divisor_by_query(trace, product, nodes, size)
    graph, query, _ = entries.positions
    return None if divisor is None else replace(entries, divisor=divisor[graph, query])


def _divisor_by_query(
    trace: Trace, product: AttentionProduct, nodes: NodeIds, size: int
) -> Tensor | None:
    """Return what the weights of every query are divided by, (B, T, H), or None if unclear."""
    assert product.divisor is not None
    divisor, ids = trace.tensor(product.divisor).detach(), nodes.by_value.get(product.divisor)
    divisor = divisor if product.origin.name == "div" else 1 / divisor
    if ids is None or ids.key is not None:
        return None
    entries = _entries_with_ids(divisor, EntryIds(ids.query, ids.query), nodes, size)
    if entries is None:
        return None
    empty = divisor.new_ones(size, nodes.tokens, entries.index.shape[1])
    return empty.index_put(entries.positions[:2], entries.inside(divisor))


def _entries_with_ids(
    weights: Tensor, ids: EntryIds, nodes: NodeIds, size: int
) -> NodePairEntries | None:
    """Find the entries of weights whose ids are of two nodes of the same graph.

    Returns None if there is attention to keys that are no nodes, such as a token of the model.
    """
    assert ids.key is not None
    query, key = (_with_axes(t, weights.dim()) for t in (ids.query, ids.key))
    index = torch.arange(weights.numel(), device=weights.device).view(weights.shape)
    if (split := _heads_beside_graphs(weights, query, key, size)) is not None:
        index, query, key = index.unflatten(*split), *(_split(t, *split) for t in (query, key))
    pair_axes = [a for a in range(index.dim()) if query.shape[a] != 1 or key.shape[a] != 1]
    head_axes = [a for a in range(index.dim()) if a not in pair_axes]
    wide = [index.shape[a] for a in pair_axes] + [1] * len(head_axes)
    q, k = (t.permute(*pair_axes, *head_axes).expand(wide).reshape(-1) for t in (query, key))
    heads = math.prod(index.shape[a] for a in head_axes)
    index = index.permute(*pair_axes, *head_axes).reshape(-1, heads)
    foreign = (q > NONE) & (k == NONE) & (weights.detach().take(index).abs().amax(1) > SMALL)
    if bool(foreign.any()):
        return None
    valid = (q > NONE) & (k > NONE) & (nodes.graph(q) == nodes.graph(k))
    positions = (nodes.graph(q)[valid], q[valid] % nodes.tokens, k[valid] % nodes.tokens)
    return NodePairEntries(index[valid], positions)


def exposed_attention(
    weights: Tensor, entries: NodePairEntries, size: int, tokens: int, leaf: bool
) -> tuple[Tensor, Tensor]:
    """Return attention (B, H, T, T), and the weights computed from it.

    Attention is (B, H, 1, T) if only the graph token attends.

    Args:
        leaf: whether attention is to be a leaf that requires a gradient, with nothing behind
            it.
    """
    inside, positions = entries.inside(weights), entries.positions
    rows = 1 if len(inside) and not positions[1].any() else tokens
    attention = entries.summed(inside, size, rows, tokens)
    if leaf:
        attention = attention.detach().requires_grad_()
    used = attention.permute(0, 2, 3, 1)[positions]
    if (share := shares_of_parallel(inside, attention, entries)) is not None:
        used = used * share
    if entries.divisor is not None:
        used = used * entries.divisor
    return attention, weights.put(entries.index, used)


def shares_of_parallel(
    inside: Tensor, attention: Tensor, entries: NodePairEntries
) -> Tensor | None:
    """Return the share that each weight (E, H) has of its sum over parallel edges.

    Returns None if no edges are parallel.
    """
    positions = entries.positions
    count = inside.new_zeros(attention.permute(0, 2, 3, 1).shape[:3])
    count.index_put_(positions, inside.new_ones(len(inside)), accumulate=True)
    if not len(inside) or float(count.max()) <= 1:
        return None
    total = attention.detach().permute(0, 2, 3, 1)[positions]
    return torch.where(total == 0, 1 / count[positions][:, None], inside.detach() / total)


def graphs_and_heads(weights: Tensor, entries: NodePairEntries) -> tuple[Tensor, Tensor, Tensor]:
    """Return the graph and the head of every weight, and one for each between nodes, else zero."""
    outside, (count, heads) = torch.zeros_like(weights, dtype=torch.long), entries.index.shape
    graph = entries.positions[0][:, None].expand(-1, heads)
    head = torch.arange(heads, device=weights.device).expand(count, -1)
    graph, head, inside = (
        outside.put(entries.index, part) for part in (graph, head, torch.ones_like(head))
    )
    return graph, head, inside


def _with_axes(ids: Tensor, dims: int) -> Tensor:
    """Add leading axes up to this number."""
    return ids.reshape((*(1,) * (dims - ids.dim()), *ids.shape))


def _heads_beside_graphs(
    weights: Tensor, query: Tensor, key: Tensor, size: int
) -> tuple[int, tuple[int, int]] | None:
    """Find an axis that holds both graphs and heads, and the lengths into which it splits."""
    for axis, length in enumerate(weights.shape):
        if length <= size or length % size or (query.shape[axis] == 1 and key.shape[axis] == 1):
            continue
        count = length // size
        for parts, heads in (((size, count), axis + 1), ((count, size), axis)):
            if all(_split(t, axis, parts).shape[heads] == 1 for t in (query, key)):
                return axis, parts
    return None


def _split(ids: Tensor, axis: int, parts: tuple[int, int]) -> Tensor:
    """Split an axis of ids in two."""
    if ids.shape[axis] == 1:
        return ids.unsqueeze(axis)
    return compressed(ids.unflatten(axis, parts))


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
    """

    product: AttentionProduct
    entries: NodePairEntries
    weights: dict[int, int]
    chunk_of: int


def attention_replacements(
    attention: Sequence[NodeAttention], exposing: Callable[[NodePairEntries], TensorFunction]
) -> dict[int, ValueReplacement]:
    """Return what replaces the weights in each product. Weights of several are exposed once."""
    functions = ((layer, _called_once(exposing(layer.entries))) for layer in attention)
    return {
        number: ValueReplacement(weights, function)
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
            attention.append(NodeAttention(product, entries, weights, chunk_of))
        elif product.divisor is not None and size > 1 and not together:
            raise GraphsNeedOwnPass  # the divisor may contain padding
        elif not _pools(plan.trace, nodes, product):
            left_out.add(product.op.path or "the model")
    left_out |= {op.path or "the model" for op in products_without_softmax(plan, nodes)}
    if left_out:
        warnings.warn(
            f"{name} weights values in a way that is not, or may not be, attention between the"
            " nodes of the graphs (it involves latents, clusters, experts or an extra token, or it"
            " has no softmax); methods that read attention leave it out:"
            f" {'; '.join(sorted(left_out))}.",
            stacklevel=8,
        )
    if unread:
        warnings.warn(
            f"{name} multiplies parts or multiples of the same softmax with values in several"
            " products; methods that read attention read the first product and leave out those in"
            f" {'; '.join(sorted(unread))}.",
            stacklevel=8,
        )
    graphs: dict[int, set[int]] = {}
    for layer in attention:
        of_chunk = layer.entries.positions[0].unique().tolist()
        graphs.setdefault(layer.chunk_of, set()).update(of_chunk)
    if size > 1 and not together and any(len(of_layer) < size for of_layer in graphs.values()):
        raise GraphsNeedOwnPass
    return attention


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
            if op.name in JOINING:
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
    if product.op.name not in MATRIX_PRODUCTS:
        return True
    weights_first = product.op.reads[0].value == product.weights
    return trace.shape(product.weights)[-2 if weights_first else -1] == 1


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


# -- the layer around attention --------------------------------------------------------------------


class LayerInput:
    """The rows that enter a module with attention: the same tensor, with its history."""

    def __init__(self, rows: Tensor, ids: Tensor, layout: NodeLayout) -> None:
        self.rows = rows
        self._ids, self._layout = ids.squeeze(-1), layout

    def per_token(self, values: Tensor) -> Tensor:
        """Arrange one value per row as (B, T), with zeros where there is no token."""
        ids = self._ids.expand(values.shape)
        real = ids > NONE
        by_token = values.new_zeros(len(self._layout.mask) * self._layout.tokens)
        by_token[ids[real]] = values[real]
        return by_token.view(len(self._layout.mask), self._layout.tokens)


_layer_inputs: Blocks[list[LayerInput | None] | None] = Blocks("graphxai_layer_inputs", None)


def current_layer_inputs() -> list[LayerInput | None] | None:
    """Return the list of the innermost `layer_inputs` block in this thread, or None."""
    return _layer_inputs.get()


@contextmanager
def layer_inputs() -> Iterator[list[LayerInput | None]]:
    """List what enters the modules with attention in recorded passes within the block.

    Attention must be recorded as well (`rules.conservative.record`), and the two lists correspond.
    The rows are the first tensor that is passed to the innermost running module with one row per
    node: the query of `nn.MultiheadAttention`, or x of a convolution. An entry of the list is None
    if there is no such module.
    """
    with _layer_inputs.block([]) as inputs:
        assert inputs is not None
        yield inputs


def layer_input_of(
    trace: Trace, nodes: NodeIds, product: AttentionProduct, replayed: Replay, layout: NodeLayout
) -> LayerInput | None:
    """Return the first tensor given to the innermost running module that gets one row per node."""
    count = int(layout.mask.sum())
    for running in product.op.running.outward():
        slot = None if running.rows is None else trace.memory.slots.get(id(running.rows))
        rows = None if slot is None else replayed.now[slot]
        if slot is None or rows is None or not rows.requires_grad or rows.dim() not in (2, 3):
            continue
        ids = nodes.by_value.get(trace.memory.latest[slot])
        if ids is None or ids.key is not None or ids.query.shape[-1] != 1:
            continue
        single = ids.query.expand((*rows.shape[:-1], 1))
        of_nodes = single[single >= 0]
        of_nodes = of_nodes[of_nodes % layout.tokens > 0]
        if len(of_nodes) == count == len(of_nodes.unique()):
            return LayerInput(rows, single, layout)
    return None
