"""Attention of a recorded pass as (B, H, T, T), in the way of the gradient."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .marks import Meeting
from .nodes import NONE, Nodes, Numbers, agree
from .trace import Trace

SMALL = 1e-6  # of attention to what is padding


@dataclass(frozen=True, eq=False)
class Placed:
    """Where entries of weights stand: heads behind the other axes, and positions of the rest.

    order: axes with heads last. positions: graph, query, key of each entry that is between two
    nodes; valid (R,): which entries these are.
    """

    split: tuple[int, tuple[int, int]] | None
    order: tuple[int, ...]
    heads: int
    valid: Tensor
    positions: tuple[Tensor, Tensor, Tensor]


def placed(trace: Trace, met: Meeting, nodes: Nodes, size: int) -> Placed | None:
    """The places of weights in a batch of `size` graphs; None: they are not between nodes.

    The key is the node whose values the weights meet.
    """
    weights, numbers = trace.tensor(met.weights), nodes.by_value.get(met.weights)
    if numbers is None or numbers.key is None:
        return None
    others = (ref.value for ref in met.product.reads if ref.value != met.weights)
    values = [nodes.by_value[value] for value in others if value in nodes.by_value]
    if values and values[0].query.dim() > 1:
        mixed = values[0].query if met.product.name == "mul" else values[0].query.mT
        if not agree(numbers.key, mixed) and agree(numbers.query, mixed):
            numbers = Numbers(numbers.key, numbers.query)
    assert numbers.key is not None
    query, key = (_padded(t, weights.dim()) for t in (numbers.query, numbers.key))
    for axis in range(weights.dim()):
        if all(_same_along(t, axis) for t in (query, key)):
            query, key = (t.narrow(axis, 0, 1) for t in (query, key))
    split = _heads_beside_graphs(weights, query, key, size)
    shape = list(weights.shape)
    if split is not None:
        axis, parts = split
        shape[axis : axis + 1] = parts
        query, key = (_split(t, axis, parts) for t in (query, key))
    real = [a for a in range(len(shape)) if query.shape[a] != 1 or key.shape[a] != 1]
    rest = [a for a in range(len(shape)) if a not in real]
    wide = [shape[a] for a in real] + [1] * len(rest)
    q, k = (t.permute(*real, *rest).expand(wide).reshape(-1) for t in (query, key))
    heads = math.prod(shape[a] for a in rest)
    if split is not None:
        weights = weights.unflatten(*split)
    flat = weights.detach().permute(*real, *rest).reshape(-1, heads)
    if bool(((q > NONE) & (k == NONE) & (flat.abs().amax(1) > SMALL)).any()):
        return None  # keys that are no nodes, such as a token of the model's own
    valid = (q > NONE) & (k > NONE) & (nodes.graph(q) == nodes.graph(k))
    q, k = q[valid], k[valid]
    positions = (nodes.graph(q), q % nodes.tokens, k % nodes.tokens)
    return Placed(split, (*real, *rest), heads, valid, positions)


def exposed(
    weights: Tensor, place: Placed, size: int, tokens: int, leaf: bool
) -> tuple[Tensor, Tensor]:
    """Attention (B, H, T, T), and the weights computed from it. Parallel edges are added.

    It is (B, H, 1, T) if only the graph token attends. leaf: attention is a leaf that requires a
    gradient, with nothing behind it.
    """
    split = weights if place.split is None else weights.unflatten(*place.split)
    moved = split.permute(place.order)
    flat = moved.reshape(-1, place.heads)  # (R, H)
    inside = flat[place.valid]
    where = place.positions
    rows = 1 if len(inside) and not where[1].any() else tokens
    empty = flat.new_zeros(size, rows, tokens, place.heads)
    attention = empty.index_put(where, inside, accumulate=True).permute(0, 3, 1, 2)
    if leaf:
        attention = attention.detach().requires_grad_()
    summed = attention.permute(0, 2, 3, 1)[where]
    count = empty[..., 0].detach().index_put(where, inside.new_ones(len(inside)), accumulate=True)
    if len(inside) and float(count.max()) > 1:
        total = summed.detach()
        even = 1 / count[where][:, None]
        summed = summed * torch.where(total == 0, even, inside.detach() / total)
    back = flat.index_put((place.valid.nonzero()[:, 0],), summed)
    return attention, _put_back(back.view(moved.shape), place, weights.shape)


def entries(weights: Tensor, place: Placed) -> tuple[Tensor, Tensor, Tensor]:
    """For every entry of weights its graph, its head, and one if it is between nodes, else zero."""
    split = weights if place.split is None else weights.unflatten(*place.split)
    moved = split.permute(place.order)
    inside = place.valid[:, None].expand(-1, place.heads).long()
    graph = inside.clone()
    graph[place.valid] = place.positions[0][:, None].expand(-1, place.heads)
    head = torch.arange(place.heads, device=weights.device) * inside
    parts = (part.reshape(moved.shape) for part in (graph, head, inside))
    graph, head, inside = (_put_back(part, place, weights.shape) for part in parts)
    return graph, head, inside


def _put_back(moved: Tensor, place: Placed, shape: torch.Size) -> Tensor:
    """Entries with heads last in the order of the weights' own axes."""
    order = sorted(range(len(place.order)), key=place.order.__getitem__)
    return moved.permute(order).reshape(shape)


def _padded(numbers: Tensor, dims: int) -> Tensor:
    return numbers.reshape((*(1,) * (dims - numbers.dim()), *numbers.shape))


def _heads_beside_graphs(
    weights: Tensor, query: Tensor, key: Tensor, size: int
) -> tuple[int, tuple[int, int]] | None:
    """An axis that holds graphs and heads, and how it splits into both."""
    for axis, length in enumerate(weights.shape):
        if length <= size or length % size or (query.shape[axis] == 1 and key.shape[axis] == 1):
            continue
        count = length // size
        for parts, heads in (((size, count), axis + 1), ((count, size), axis)):
            if all(_same_along(_split(t, axis, parts), heads) for t in (query, key)):
                return axis, parts
    return None


def _split(numbers: Tensor, axis: int, parts: tuple[int, int]) -> Tensor:
    if numbers.shape[axis] == 1:
        return numbers.unsqueeze(axis)
    found = numbers.unflatten(axis, parts)
    for place in (axis, axis + 1):
        if found.shape[place] > 1 and _same_along(found, place):
            found = found.narrow(place, 0, 1)
    return found


def _same_along(numbers: Tensor, axis: int) -> bool:
    return numbers.shape[axis] > 0 and bool((numbers == numbers.narrow(axis, 0, 1)).all())
