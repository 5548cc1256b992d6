"""Write linear attention, `q (k^T v)`, into a trace with its matrix, as `(q k^T) v`.

Models sum over the keys first and never compute the matrix. So before attention is read, or
relevance is passed back by positive rules, the trace is changed: the second product becomes `w v`,
after a new operation `w = q k^T`. If the model adds a multiple of the values to the product, as in
`w v + c v`, the new matrix has c on its diagonal. The common divisor is found with the roles.

The entries of attention weights that are between two nodes are found by the numbers of nodes, and
put together as a tensor (B, H, T, T).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from graphxai.engine import operations as kinds
from graphxai.engine.attention.node_ids import NONE, EntryIds, NodeIds, agree, aligned, compressed
from graphxai.engine.plan import AttentionProduct
from graphxai.engine.recording import operation_kind
from graphxai.engine.trace import Op, Ref, Trace

PRODUCTS = kinds.OF_ROWS - kinds.PLUS_PRODUCT
MOVES = (kinds.WHOLE | kinds.TURNS) - kinds.CUTS


@dataclass(eq=False)
class _LinearAttention:
    """`k^T v` (inner), `q (k^T v)` (outer) and, after moves, the addition of `c v` (c: factor)."""

    inner: Op
    outer: Op
    added: Op | None = None
    moves: list[Op] = field(default_factory=list)
    factor: float = 0.0


def insert_attention_matrices(trace: Trace, nodes: NodeIds) -> bool:
    """Write the matrices of linear attention into a trace, and return whether there are any."""
    layers = list(_find_linear_attention(trace, nodes))
    for layer in layers:
        _find_added(trace, layer)
    _make_room(trace, {layer.outer.number: 1 + (layer.added is not None) for layer in layers})
    for layer in layers:
        _write(trace, layer)
    trace.ops.sort(key=lambda op: op.number)
    return bool(layers)


def _find_linear_attention(trace: Trace, nodes: NodeIds) -> Iterator[_LinearAttention]:
    """Find products `q (k^T v)` that sum over the keys first."""
    for outer in trace.ops:
        if outer.name not in PRODUCTS or not trace.flow.live[outer.reads[0].value] & 1:
            continue
        query, moments = outer.reads
        value = trace.origin(moments.value, MOVES)
        inner = trace.op_of(value)
        if inner is None or inner.name not in PRODUCTS:
            continue
        keys = inner.reads[0]
        key_ids = nodes.by_value.get(keys.value)
        if (
            key_ids is not None
            and key_ids.key is None
            and key_ids.query.shape[-2] == 1  # channels by nodes
            and trace.shape(keys.value)[-1] == trace.shape(query.value)[-2]
            and all(_stays(trace, ref, inner) for ref in (*inner.reads, query))
            and trace.shape(value) == trace.shape(moments.value)
            and torch.equal(trace.tensor(value), trace.tensor(moments.value))
        ):
            yield _LinearAttention(inner, outer)


def _stays(trace: Trace, ref: Ref, op: Op) -> bool:
    """Whether nothing writes to a tensor after an operation."""
    written = trace.memory.written.get(trace.memory.storage[ref.slot])
    return (
        ref.slot not in trace.memory.unstable
        or written is None
        or trace.flow.maker[written] < op.number
    )


def _find_added(trace: Trace, layer: _LinearAttention) -> None:
    """Find an addition of a multiple of the values to the product, or to a view of it."""
    value, moved = layer.outer.out, trace.tensor(layer.inner.reads[1].value)
    moves: list[Op] = []
    while len(trace.flow.uses[value]) == 1:
        (op,) = (trace.ops[number] for number in trace.flow.uses[value])
        if op.name in kinds.ADDS and op.reads[0].value == value and len(op.reads) == 2:
            factor, multiplied = _multiple(trace, op.reads[1].value)
            if not op.kwargs and torch.equal(moved, trace.tensor(multiplied)):
                layer.added, layer.moves, layer.factor = op, moves, factor
            return
        if op.name not in MOVES:
            return
        moves.append(op)
        moved, value = op.func(moved, *op.args[1:], **op.kwargs), op.out


def _multiple(trace: Trace, value: int) -> tuple[float, int]:
    """Split a value into a number and the value that it multiplies."""
    op = trace.op_of(value)
    if op is None or op.name not in kinds.TIMES:
        return 1.0, value
    other = op.args[1]
    if type(other) is Ref:
        tensor = trace.tensor(other.value)
        is_number = not tensor.dim() and not trace.flow.depends[other.value] & 1
        other = tensor.item() if is_number else None
    return (1.0, value) if other is None else (float(other), op.reads[0].value)


def _make_room(trace: Trace, before: dict[int, int]) -> None:
    """Renumber the operations, with gaps for new ones before some of them."""
    new, count = [], 0
    for number in range(len(trace.ops) + 1):
        count += before.get(number, 0)
        new.append(number + count)
    for op in trace.ops:
        op.number = new[op.number]
    trace.flow.maker[:] = [number if number < 0 else new[number] for number in trace.flow.maker]
    trace.flow.uses[:] = [[new[number] for number in uses] for uses in trace.flow.uses]
    trace.random_results = {new[number]: tensor for number, tensor in trace.random_results.items()}
    trace.first_exit = None if trace.first_exit is None else new[trace.first_exit]


def _write(trace: Trace, layer: _LinearAttention) -> None:
    """Write the matrix of one layer into the trace."""
    inner, outer = layer.inner, layer.outer
    (query, _), (keys, values) = outer.reads, inner.reads
    q, k, v = (trace.tensor(ref.value) for ref in (query, keys, values))
    with torch.no_grad():
        weights = outer.func(q, k)
        number = outer.number - 1 - (layer.added is not None)
        ref = _add(trace, outer, number, outer.func, (query, keys), weights)
        if layer.added is not None:
            diagonal = layer.factor * torch.eye(weights.shape[-1]).to(weights)
            weights = weights + diagonal
            terms = (ref, _constant(trace, diagonal))
            ref = _add(trace, outer, number + 1, kinds.ADDITION, terms, weights)
            _cancel_addition(trace, layer, outer.func(weights, v))
    _replace_arguments(trace, outer, (ref, values))


def _cancel_addition(trace: Trace, layer: _LinearAttention, out: Tensor) -> None:
    """Let the addition add zero to the product, which contains the sum already."""
    assert layer.added is not None
    if not layer.added.in_place:
        for op in (layer.outer, *layer.moves):
            out = out if op is layer.outer else op.func(out, *op.args[1:], **op.kwargs)
            trace.memory.tensors[op.makes[0].slot] = out
    _replace_arguments(
        trace, layer.added, (layer.added.reads[0], _constant(trace, out.new_zeros(())))
    )


def _constant(trace: Trace, tensor: Tensor) -> Ref:
    """Add a tensor that depends on nothing."""
    slot = trace.memory.add(tensor)
    return Ref(slot, trace.new_value(slot))


def _add(
    trace: Trace, like: Op, number: int, func: object, args: tuple[Ref, Ref], out: Tensor
) -> Ref:
    """Add an operation in the module in which another one, `like`, ran."""
    ref, name = _constant(trace, out), operation_kind(func).name
    trace.flow.maker[ref.value] = number
    for read in args:
        trace.flow.depends[ref.value] |= trace.flow.depends[read.value]
        trace.flow.live[ref.value] |= trace.flow.live[read.value]
        trace.flow.uses[read.value].append(number)
    trace.ops.append(
        Op(number, func, name, args, {}, args, (ref,), ref, like.running, False,
           like.grad_enabled, like.decomposed)
    )  # fmt: skip
    return ref


def _replace_arguments(trace: Trace, op: Op, args: tuple[Ref, Ref]) -> None:
    """Replace the arguments of an operation."""
    for ref in op.reads:
        trace.flow.uses[ref.value].remove(op.number)
    op.args = op.reads = args
    for ref in args:
        trace.flow.uses[ref.value].append(op.number)


TensorFunction = Callable[[Tensor], Tensor]
SMALL = 1e-6  # attention to padding is not larger


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
        taken = weights.flatten()[self.index]
        return taken if self.divisor is None else taken / self.divisor

    def put_into(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return weights with other values in place of the entries (E, H)."""
        return weights.flatten().index_put((self.index,), values).view_as(weights)

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
        mixed = values[0].query if product.op.name in kinds.TIMES else values[0].query.mT
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
    divisor = divisor if product.origin.name in kinds.QUOTIENTS else 1 / divisor
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
    query, key = (aligned(t, weights.dim()) for t in (ids.query, ids.key))
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
    return attention, entries.put_into(weights, used)


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
    parts = (graph, head, torch.ones_like(head))
    graph, head, inside = (entries.put_into(outside, part) for part in parts)
    return graph, head, inside


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
