"""The ids of sums, products and entrywise operations, from the ids of what they are made of."""

from collections.abc import Callable

import torch
from torch import Tensor

from .node_ids import LARGE, MIXED, NONE, EntryIds, NodeIds, agree


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
        """Return the ids of rows that a constant matrix (..., Q, K), such as a Laplacian, mixes.

        Args:
            nodes: the ids of the rows (..., K, D), which must be the same for all D. A row of
                the result is a sum over the nonzero entries of the matrix.
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
            turned = self._mixed_by_constants(rows.map(_transposed), matrix.mT)
            return None if turned is None else turned.map(_transposed)
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


def _transposed(ids: Tensor) -> Tensor:
    return ids.mT


def _is_wider(wide: EntryIds, narrow: EntryIds) -> bool:
    """Whether one has axes with several entries where the other has one, and not vice versa."""
    shapes = [
        torch.broadcast_shapes(n.query.shape, n.key.shape)
        for n in (wide, narrow)
        if n.key is not None
    ]
    pairs = list(zip(*shapes, strict=False))
    return any(a > 1 == b for a, b in pairs) and not any(b > 1 == a for a, b in pairs)
