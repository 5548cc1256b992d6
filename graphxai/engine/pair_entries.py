"""Find the entries of attention weights that are between two nodes, and read them.

Attention between nodes is a tensor (B, H, T, T).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .node_ids import NONE, EntryIds, NodeIds, agree, compressed
from .roles import AttentionProduct
from .trace import Trace

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
