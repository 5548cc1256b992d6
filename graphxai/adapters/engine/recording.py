"""Attention of a recorded pass as (B, H, T, T), in the way of the gradient."""

import math
from dataclasses import dataclass, replace

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
    nodes; valid (R,): which entries these are. divisor: what each of them is divided by later.
    """

    split: tuple[int, tuple[int, int]] | None
    order: tuple[int, ...]
    heads: int
    valid: Tensor
    positions: tuple[Tensor, Tensor, Tensor]
    divisor: Tensor | None = None

    def apart(self, weights: Tensor) -> Tensor:
        """Weights (R, H), with heads behind all other axes."""
        split = weights if self.split is None else weights.unflatten(*self.split)
        return split.permute(self.order).reshape(-1, self.heads)


def placed(trace: Trace, met: Meeting, nodes: Nodes, size: int) -> Placed | None:
    """The places of weights in a batch of `size` graphs; None: they are not between nodes.

    The key is the node whose values the weights meet.
    """
    numbers = nodes.by_value.get(met.weights)
    if numbers is None or numbers.key is None:
        return None
    others = (ref.value for ref in met.product.reads if ref.value != met.weights)
    values = [nodes.by_value[value] for value in others if value in nodes.by_value]
    if values and values[0].query.dim() > 1:
        mixed = values[0].query if met.product.name == "mul" else values[0].query.mT
        if not agree(numbers.key, mixed) and agree(numbers.query, mixed):
            numbers = Numbers(numbers.key, numbers.query)
    place = _place(trace.tensor(met.weights), numbers, nodes, size)
    if place is None or met.divisor is None:
        return place
    divisor = _by_query(trace, met, nodes, size)
    graph, query, _ = place.positions
    return None if divisor is None else replace(place, divisor=divisor[graph, query])


def _by_query(trace: Trace, met: Meeting, nodes: Nodes, size: int) -> Tensor | None:
    """What the weights of every query are divided by, (B, T, H)."""
    assert met.divisor is not None
    divisor, numbers = trace.tensor(met.divisor).detach(), nodes.by_value.get(met.divisor)
    divisor = divisor if met.origin.name == "div" else 1 / divisor
    if numbers is None or numbers.key is not None:
        return None
    place = _place(divisor, Numbers(numbers.query, numbers.query), nodes, size)
    if place is None:
        return None
    graph, query, _ = place.positions
    empty = divisor.new_ones(size, nodes.tokens, place.heads)
    return empty.index_put((graph, query), place.apart(divisor)[place.valid])


def _place(weights: Tensor, numbers: Numbers, nodes: Nodes, size: int) -> Placed | None:
    """The places of entries with numbers of two nodes each."""
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
    flat = place.apart(weights)
    inside = flat[place.valid]
    if place.divisor is not None:
        inside = inside / place.divisor
    where = place.positions
    rows = 1 if len(inside) and not where[1].any() else tokens
    empty = flat.new_zeros(size, rows, tokens, place.heads)
    attention = empty.index_put(where, inside, accumulate=True).permute(0, 3, 1, 2)
    if leaf:
        attention = attention.detach().requires_grad_()
    used = attention.permute(0, 2, 3, 1)[where]
    if (share := shares_of_parallel(inside, attention, place)) is not None:
        used = used * share
    if place.divisor is not None:
        used = used * place.divisor
    back = flat.index_put((place.valid.nonzero()[:, 0],), used)
    return attention, put_back(back, place, weights.shape)


def shares_of_parallel(inside: Tensor, attention: Tensor, place: Placed) -> Tensor | None:
    """The share that each of the weights (R, H) has of its entry; None: no edges are parallel."""
    where = place.positions
    count = inside.new_zeros(attention.permute(0, 2, 3, 1).shape[:3])
    count.index_put_(where, inside.new_ones(len(inside)), accumulate=True)
    if not len(inside) or float(count.max()) <= 1:
        return None
    total = attention.detach().permute(0, 2, 3, 1)[where]
    return torch.where(total == 0, 1 / count[where][:, None], inside.detach() / total)


def entries(weights: Tensor, place: Placed) -> tuple[Tensor, Tensor, Tensor]:
    """For every entry of weights its graph, its head, and one if it is between nodes, else zero."""
    inside = place.valid[:, None].expand(-1, place.heads).long()
    graph = inside.clone()
    graph[place.valid] = place.positions[0][:, None].expand(-1, place.heads)
    head = torch.arange(place.heads, device=weights.device) * inside
    graph, head, inside = (put_back(t, place, weights.shape) for t in (graph, head, inside))
    return graph, head, inside


def put_back(flat: Tensor, place: Placed, shape: torch.Size) -> Tensor:
    """Entries (R, H) in the order of the weights' own axes."""
    own = list(shape)
    if place.split is not None:
        axis, parts = place.split
        own[axis : axis + 1] = parts
    moved = flat.reshape([own[axis] for axis in place.order])
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
