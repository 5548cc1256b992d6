"""Find out which node every entry of every tensor in a recorded pass belongs to.

Each entry has a node id, and the ids follow the values through the pass. An operation that only
moves entries moves their ids. A map of channels keeps them. A product of entries of two nodes
belongs to the pair of them, and a sum over nodes to their graph. So the ids of an attention matrix
say which node is the query and which the key of each entry, and no axis has to be guessed.

An id is `graph * T + token` for a node (token 0 is the graph token), `-2 - graph` for several nodes
of one graph, `NONE` for padding and constants, and `MIXED` for nodes of several graphs. A tensor of
ids has length one along each axis on which all entries have the same id.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

import torch
from torch import Tensor

from graphxai.engine.trace import Trace, refs_in

NONE = -1
MIXED = -(2**60)
LARGE = 2**61  # larger than any id


@dataclass(frozen=True, eq=False)
class EntryIds:
    """The node ids of a tensor's entries.

    Args:
        key: if the entries belong to pairs of nodes, the id of the second node of each pair,
            and `query` has that of the first.
    """

    query: Tensor
    key: Tensor | None = None

    def map(self, f: Callable[[Tensor], Tensor]) -> "EntryIds":
        """Apply a function to the ids of both nodes."""
        return EntryIds(f(self.query), None if self.key is None else f(self.key))


@dataclass(eq=False)
class NodeIds:
    """The ids of the values of a pass.

    Args:
        tokens: the number T of tokens of a graph.
        largest: the number of nodes of the largest graph.
    """

    tokens: int
    largest: int = 0
    by_value: dict[int, EntryIds] = field(default_factory=dict)

    def are_pairs(self, value: int) -> bool | None:
        """Whether a value's entries belong to pairs of nodes, or None if it has no ids."""
        ids = self.by_value.get(value)
        return None if ids is None else ids.key is not None

    def graph(self, ids: Tensor) -> Tensor:
        """Return the graph of each id, but `NONE` and `MIXED` as they are."""
        of_node = ids.div(self.tokens, rounding_mode="floor")
        graph = torch.where(ids >= 0, of_node, -2 - ids)
        return torch.where((ids == NONE) | (ids == MIXED), ids, graph)


def agree(a: Tensor, b: Tensor) -> bool:
    """Whether ids are the same wherever neither is `NONE`."""
    try:
        a, b = torch.broadcast_tensors(a, b)
    except RuntimeError:
        return False
    return bool(((a == b) | (a == NONE) | (b == NONE)).all())


def aligned(ids: Tensor, count: int) -> Tensor:
    """Add leading axes, as broadcasting does, up to this number of axes."""
    return ids[(None,) * (count - ids.dim())]


def compressed(ids: Tensor) -> Tensor:
    """Shorten to length one the axes on which all entries have the same id."""
    for axis in reversed(range(ids.dim())):
        if ids.shape[axis] > 1 and ids.numel() and _are_alike(ids, axis):
            ids = ids.narrow(axis, 0, 1)
    return ids


def _are_alike(ids: Tensor, axis: int) -> bool:
    """Whether all entries along an axis have the same id."""
    if ids.stride(axis) == 0:
        return True
    if ids.device.type == "cpu":  # to compare two entries first is much quicker than all
        array = ids.numpy()
        last = [0] * array.ndim
        last[axis] = -1
        if array.item(0) != array[tuple(last)]:
            return False
    return bool((ids == ids.narrow(axis, 0, 1)).all())


# -- a class token, which models such as GraphTrans add to the nodes -------------------------------


def with_class_token(ids: EntryIds, values: Tensor, nodes: NodeIds) -> EntryIds:
    """Give the id of the graph token to a row that stands beside the nodes of each graph.

    Such a row is the only one that is of no node in all graphs, and it is not zero, as padding is.
    All nodes stand beside it: without one of them, the row may be that node's, which has no edge.
    It takes part in attention, so that methods that read attention start from it. A graph that has
    its graph token already has no second one: the row is padding that all graphs share.

    Args:
        ids: the ids of the values.
    """
    query = ids.query
    absent = query == NONE
    if ids.key is not None or not absent.any() or query.dim() != values.dim():
        return ids
    if ((query >= 0) & (query % nodes.tokens == 0)).any():
        return ids
    for axis in range(query.dim() - 1):  # the last axis has the channels of a row
        if query.shape[axis] <= nodes.largest:
            continue
        others = [a for a in range(absent.dim()) if a != axis]
        slots = (absent.all(dim=others) if others else absent).nonzero()[:, 0].tolist()
        graphs = _graphs_along(query, axis, nodes) if len(slots) == 1 else None
        if graphs is None or not values.select(axis, slots[0]).any():
            continue
        here = torch.arange(query.shape[axis], device=query.device) == slots[0]
        here = here.view([-1 if a == axis else 1 for a in range(query.dim())])
        return EntryIds(torch.where(here & absent, graphs * nodes.tokens, query))
    return ids


def reads_class_token(trace: Trace, nodes: NodeIds) -> bool:
    """Whether a pass reads its outputs at the class tokens of the graphs alone."""
    outputs = [nodes.by_value.get(ref.value) for ref in refs_in(trace.output)]
    return bool(outputs) and all(
        ids is not None
        and ids.key is None
        and bool(((ids.query >= 0) & (ids.query % nodes.tokens == 0)).all())
        for ids in outputs
    )


def _graphs_along(query: Tensor, axis: int, nodes: NodeIds) -> Tensor | None:
    """Return the graph whose different nodes stand along an axis, or None if there is no such."""
    ordered = query.movedim(axis, 0).sort(0).values
    repeated = (ordered[1:] == ordered[:-1]) & (ordered[1:] != NONE)
    if bool((ordered < NONE).any()) or bool(repeated.any()):
        return None
    last = ordered[-1]
    graphs = nodes.graph(ordered)
    alike = (graphs == graphs[-1]) | (ordered == NONE)
    return nodes.graph(last).unsqueeze(axis) if bool((alike & (last >= 0)).all()) else None


class IdArithmetic:
    """Computes with ids.

    Args:
        nodes: the ids of the pass.
        rows: the ids of the rows of the nodes, in order.
    """

    def __init__(self, nodes: NodeIds, rows: Tensor) -> None:
        self._nodes, self._rows = nodes, rows.flatten()

    def after_sum(self, ids: EntryIds, reduced: Callable[[Tensor], Tensor]) -> EntryIds:
        """Return the ids after a sum. Of pairs that share a node, the sum belongs to that node."""
        query = reduced(ids.query)
        if ids.key is None:
            return EntryIds(self.settled(query))
        key = reduced(ids.key)
        if query.numel() and bool((query == NONE).all()) and bool((key == NONE).all()):
            return EntryIds(query)  # the graphs have no edges
        stays = [bool((ids >= NONE).all()) for ids in (query, key)]
        if all(stays):
            return EntryIds(query, key)
        return EntryIds(self.settled(key if stays[1] else query))

    def summed(self, values: Tensor, axes: list[int]) -> Tensor:
        """Return the ids of sums over axes."""
        axes = [a for a in axes if values.shape[a] > 1]
        if not axes:
            return values
        return self.of_groups(values, lambda part, way: getattr(part, way)(axes, keepdim=True))

    def of_groups(self, values: Tensor, reduced: Callable[[Tensor, str], Tensor]) -> Tensor:
        """Return the ids of groups of entries: their only node, else their graph, else `MIXED`.

        Args:
            reduced: returns the least or largest id of each group, for "amin" or "amax".
        """
        absent = values == NONE

        def extremes(ids: Tensor) -> tuple[Tensor, Tensor]:
            low = reduced(torch.where(absent, LARGE, ids), "amin")
            return low, reduced(torch.where(absent, -LARGE, ids), "amax")

        low, high = extremes(values)
        least, most = extremes(self._nodes.graph(values))
        of_group = torch.where(low == high, low, torch.where(least == most, -2 - least, MIXED))
        return torch.where(high < low, NONE, of_group)  # a group without entries has none

    def settled(self, ids: Tensor) -> Tensor:
        """Let the ids of sums be all of nodes, or all of graphs.

        If there are as many rows as nodes, and each is a sum within the graph of its node, the rows
        belong to the nodes.
        """
        wide = ids < NONE
        if not bool(wide.any()):
            return ids
        if ids.dim() and ids.shape[0] == len(self._rows):
            of_rows = self._rows.view(-1, *(1,) * (ids.dim() - 1)).expand(ids.shape)
            alike = (self._nodes.graph(of_rows) == self._nodes.graph(ids)) | (ids == NONE)
            if bool(alike.all()):
                return of_rows
        return torch.where(ids >= 0, -2 - self._nodes.graph(ids), ids)

    def of_matrices(
        self, a: EntryIds | None, b: EntryIds | None, left: Tensor, right: Tensor
    ) -> EntryIds | None:
        """Return the ids of a product of matrices, of which one may be a constant."""
        if a is None:
            return None if b is None else self._mixed_by_constants(b, left)
        if b is None:
            if a.query.shape[-1] == 1 and (a.key is None or a.key.shape[-1] == 1):
                return a
            if a.key is not None and bool((right == right.flatten()[0]).all()):  # a sum over keys
                return self.after_sum(a, lambda ids: self.summed(ids, [ids.dim() - 1]))
            return self._of_channels(a, right)
        if a.key is None and b.key is None:
            return self._of_two(a.query, b.query)
        if a.key is None or b.key is not None:
            return None
        for query, key in ((a.query, a.key), (a.key, a.query)):
            if query.shape[-1] == 1 and agree(key, b.query.mT):
                return EntryIds(query)
        return None

    def _of_two(self, a: Tensor, b: Tensor) -> EntryIds | None:
        """Return the ids of a product of single nodes' values: of pairs, or of a sum over nodes."""
        if a.shape[-1] == 1 and b.shape[-2] == 1:
            of_graphs = [bool((ids <= NONE).all()) for ids in (a, b)]
            return EntryIds(a, b) if not any(of_graphs) else EntryIds(b if of_graphs[0] else a)
        if a.shape[-1] > 1 and b.shape[-2] > 1 and not agree(a, b.mT):
            return None
        summed = self.summed(a, [a.dim() - 1]) if a.shape[-1] > 1 else self.summed(b, [b.dim() - 2])
        return EntryIds(self.settled(summed[..., :1, :1]))

    def _mixed_by_constants(self, nodes: EntryIds, matrix: Tensor) -> EntryIds | None:
        """Return the ids of rows (..., K, D) that a constant matrix (..., Q, K) mixes, alike for D.

        A row of the result is a sum over the nonzero entries of the matrix, such as a Laplacian.
        """
        if nodes.query.shape[-2] == 1 and (nodes.key is None or nodes.key.shape[-2] == 1):
            return nodes
        if nodes.key is not None or nodes.query.shape[-1] != 1:
            return None
        mixed = torch.where(matrix != 0, nodes.query.mT, NONE)  # (..., Q, K)
        return EntryIds(self.settled(self.summed(mixed, [mixed.dim() - 1])))

    def _of_channels(self, rows: EntryIds, matrix: Tensor) -> EntryIds | None:
        """Return the ids of channels (..., Q, K) that a constant matrix (..., K, D) mixes.

        A sum of channels of a node, its graph and constants belongs to the node. A single row may
        have a column for each node.
        """
        if rows.key is not None:
            return None
        if rows.query.shape[-2] == 1:
            turned = self._mixed_by_constants(rows.map(attrgetter("mT")), matrix.mT)
            return None if turned is None else turned.map(attrgetter("mT"))
        last = [rows.query.dim() - 1]
        whole = self.summed(rows.query, last)
        single = self.summed(torch.where(rows.query >= 0, rows.query, NONE), last)
        of_node = (single >= 0) & (self._nodes.graph(single) == self._nodes.graph(whole))
        return EntryIds(torch.where(of_node, single, whole))

    def combined(self, a: EntryIds, b: EntryIds) -> EntryIds | None:
        """Return the ids of an entrywise operation on values of single nodes, or of pairs."""
        if a.key is None and b.key is None:
            equal = a.query.shape == b.query.shape and torch.equal(a.query, b.query)
            return a if equal else self._combined_singles(a.query, b.query)
        pair, other = (a, b) if a.key is not None else (b, a)
        assert pair.key is not None
        if other.key is not None:
            alike = agree(pair.query, other.query) and agree(pair.key, other.key)
            swapped = agree(pair.query, other.key) and agree(pair.key, other.query)
            if alike or swapped:
                return pair
            # one entry for each node of one side, such as a threshold of a query
            if agree(pair.query, other.query) or agree(pair.key, other.key):
                orders = ((other, pair), (pair, other))
                return next((wide for narrow, wide in orders if _is_wider(wide, narrow)), None)
            return None
        if agree(pair.key, other.query) or self._is_graph_of(other.query, pair.query):
            return pair
        if agree(pair.query, other.query):  # the second node of the pair is the query
            return EntryIds(pair.key, pair.query)
        return None

    def _is_graph_of(self, several: Tensor, nodes: Tensor) -> bool:
        """Whether ids are of whole graphs, which are the graphs of these nodes."""
        several, nodes = torch.broadcast_tensors(several, nodes)
        graph = self._nodes.graph(several)
        fits = (several < NONE) & (graph == self._nodes.graph(nodes))
        return bool((fits | (several == NONE) | (nodes == NONE)).all())

    def _combined_singles(self, a: Tensor, b: Tensor) -> EntryIds | None:
        """Return the ids of an entrywise operation on values of single nodes."""
        wide_a, wide_b = torch.broadcast_tensors(a, b)
        if torch.equal(wide_a, wide_b):
            return EntryIds(wide_a)
        absent = (wide_a == NONE) | (wide_b == NONE)
        either = torch.maximum(wide_a, wide_b)  # a node and its graph make the node
        same_graph = self._nodes.graph(wide_a) == self._nodes.graph(wide_b)
        graph_wide = (wide_a < NONE) | (wide_b < NONE)
        fits = (wide_a == wide_b) | absent | (graph_wide & same_graph)
        if bool(fits.all()):
            return EntryIds(either)
        if bool((graph_wide & ~same_graph & ~absent).any()):
            return EntryIds(torch.where(wide_a >= 0, wide_a, either))
        return EntryIds(a, b)


def _is_wider(wide: EntryIds, narrow: EntryIds) -> bool:
    """Whether one has axes with several entries where the other has one, and not vice versa."""
    shapes = [
        torch.broadcast_shapes(n.query.shape, n.key.shape)
        for n in (wide, narrow)
        if n.key is not None
    ]
    pairs = list(zip(*shapes, strict=False))
    return any(a > 1 == b for a, b in pairs) and not any(b > 1 == a for a, b in pairs)
