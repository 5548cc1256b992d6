"""Positions of nodes in a batch, so that attention of any layout is recorded as (B, H, T, T).

Sparse attention has one value per edge; the axes of dense attention are read by `placing`. Without
a graph token, row and column 0 of the recorded matrix are zero.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .reading import Reading


@dataclass(frozen=True, eq=False)
class Layout:
    """Graph and slot of every node, both (n,), in the order of the model's node rows.

    mask (B, N) is True at nodes; `graph_token`: the model's sequence starts with one. readings: how
    to read the model's attention, as found in earlier passes (a `placing.Readings`). rank (n,):
    the position of every row in the model's sequence of its graph, if the model has sorted its
    rows.
    """

    graph: Tensor
    slot: Tensor
    mask: Tensor
    graph_token: bool = False
    readings: Any = None
    rank: Tensor | None = None

    @classmethod
    def of(cls, mask: Tensor, graph_token: bool = False) -> "Layout":
        """The layout of nodes that lie in the order of mask (B, N)."""
        graph, slot = mask.nonzero(as_tuple=True)
        return cls(graph, slot, mask, graph_token)

    def resorted(self, order: Tensor | None) -> "Layout":
        """The layout of rows that a model has sorted: `order` (n,) is the node in each."""
        if order is None:
            return self
        graph = self.graph[order]
        rank = (graph[:, None] == graph).tril(-1).sum(-1)
        return replace(self, graph=graph, slot=self.slot[order], rank=rank)

    @property
    def tokens(self) -> int:
        """T, including the graph token."""
        return self.mask.shape[1] + 1

    @property
    def key_mask(self) -> Tensor:
        """(B, S): True at existing tokens of the model's sequence."""
        return F.pad(self.mask, (1, 0), value=True) if self.graph_token else self.mask

    def fits(self, length: int) -> bool:
        """Whether a sequence is as long as the model's: the longest graph, or all padding."""
        own = self.key_mask
        return length in (own.shape[1], int(own.sum(-1).max()))

    @property
    def lengths(self) -> frozenset[int]:
        """Possible lengths of a node axis: of all graphs, or of one sequence per graph."""
        own = self.key_mask
        return frozenset((len(self.graph), own.shape[1], int(own.sum(-1).max())))


def expose_dense(
    weights: Tensor, layout: Layout | None, reading: Reading | None = None
) -> tuple[Tensor | None, Tensor]:
    """Recorded attention (B, H, T, T), or its graph token's row, and weights computed from it.

    The model continues with the second, so that gradients reach the first. (None, weights) if the
    layout is not that of self-attention over the batch. reading: the meaning of each axis.
    """
    if layout is None:
        return (weights, weights) if weights.dim() == 4 else (None, weights)
    if reading is None:
        return None, weights
    parts = reading.apart(weights, len(layout.mask))  # (B, H, 1 or L, L)
    if reading.graphs is None:
        attention, parts = _expose_blocks(parts, layout)
        return attention, reading.together(parts, weights.shape)
    rows, length = parts.shape[-2:]
    if layout.rank is not None:
        back, there = _slots(layout, length)
        parts = _moved(parts, there)
    one = rows == 1 != length
    first = int(not layout.graph_token)
    after = layout.tokens - first - length
    pad = (first, after, 0, 0) if one else (first, after, first, after)
    attention = F.pad(parts, pad)  # (B, H, 1 or T, T)
    exposed = attention[..., first : first + rows, first : first + length]
    if layout.rank is not None:
        exposed = _moved(exposed, back)
    return attention, reading.together(exposed, weights.shape)


def _expose_blocks(weights: Tensor, layout: Layout) -> tuple[Tensor | None, Tensor]:
    """Weights (H, n, n) between all nodes of a batch; those within each graph are recorded."""
    target, source = (layout.graph[:, None] == layout.graph).nonzero(as_tuple=True)
    by_pair = weights[:, target, source].T  # (P, H)
    attention, exposed = expose_sparse(by_pair, target, source, layout)
    every = torch.arange(len(weights), device=weights.device)[:, None]
    return attention, weights.index_put((every, target, source), exposed.T)


def _slots(layout: Layout, length: int) -> tuple[Tensor, Tensor]:
    """Input slot of each slot of a model that sorted its rows, and the inverse, both (B, L)."""
    assert layout.rank is not None
    size, device = len(layout.mask), layout.slot.device
    back = torch.arange(length, device=device).repeat(size, 1)
    there = back.clone()
    back[layout.graph, layout.rank] = layout.slot
    there[layout.graph, layout.slot] = layout.rank
    return back, there


def _moved(parts: Tensor, slots: Tensor) -> Tensor:
    """Rows and columns of parts (B, H, L, L) in the order of slots (B, L)."""
    rows = parts.gather(2, slots[:, None, :, None].expand(parts.shape))
    return rows.gather(3, slots[:, None, None, :].expand(parts.shape))


def expose_sparse(
    weights: Tensor, target: Tensor, source: Tensor, layout: Layout | None
) -> tuple[Tensor | None, Tensor]:
    """As `expose_dense` for weights (E, ...) of edges from nodes `source` to `target`, both (E,).

    Values of parallel edges are added. Without a layout all nodes belong to one graph.
    """
    if layout is None:
        nodes = 1 + max((int(index.max()) for index in (target, source) if len(index)), default=0)
        layout = Layout.of(torch.ones(1, nodes, dtype=torch.bool, device=weights.device))
    n = len(layout.graph)
    if len(target) and max(int(target.max()), int(source.max())) >= n:
        return None, weights
    where = (layout.graph[target], layout.slot[target] + 1, layout.slot[source] + 1)
    per_head = weights.reshape(len(weights), math.prod(weights.shape[1:]))  # (E, H)
    empty = weights.new_zeros(len(layout.mask), layout.tokens, layout.tokens, per_head.shape[1])
    attention = empty.index_put(where, per_head, accumulate=True).permute(0, 3, 1, 2)
    parallel = empty[..., 0].index_put(where, weights.new_ones(len(weights)), accumulate=True)
    summed = attention.permute(0, 2, 3, 1)[where]  # (E, H)
    if len(weights) and parallel.max() > 1:
        total = summed.detach()
        share = torch.where(total == 0, 1 / parallel[where][:, None], per_head.detach() / total)
        summed = summed * share
    return attention, summed.reshape(weights.shape)
