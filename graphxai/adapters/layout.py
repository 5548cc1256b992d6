"""Where nodes stand in a batch, so that attention of any layout is recorded as (B, H, T, T).

Sparse attention has one value per edge; dense attention comes as (B, H, N, N), (B, N, N) or
(B * H, N, N). Without a graph token, row and column 0 of the recorded matrix are zero.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Layout:
    """Graph and slot of every node, both (n,), in the order of the model's node rows.

    mask (B, N) is True at nodes; `graph_token`: the model's own sequence has one, first.
    """

    graph: Tensor
    slot: Tensor
    mask: Tensor
    graph_token: bool = False

    @classmethod
    def of(cls, mask: Tensor, graph_token: bool = False) -> "Layout":
        """The layout of nodes that lie in the order of mask (B, N)."""
        graph, slot = mask.nonzero(as_tuple=True)
        return cls(graph, slot, mask, graph_token)

    @property
    def tokens(self) -> int:
        """T, with the place of the graph token."""
        return self.mask.shape[1] + 1

    @property
    def key_mask(self) -> Tensor:
        """(B, S): True at tokens of the model's own sequence that exist."""
        return F.pad(self.mask, (1, 0), value=True) if self.graph_token else self.mask

    def fits(self, length: int) -> bool:
        """Whether a sequence is as long as the model's own: the longest graph, or all padding."""
        own = self.key_mask
        return length in (own.shape[1], int(own.sum(-1).max()))


def expose_dense(weights: Tensor, layout: Layout | None) -> tuple[Tensor | None, Tensor]:
    """Recorded attention (B, H, T, T), or the graph token's row of it, and the weights made of it.

    The model goes on with the second, so that gradients reach the first. (None, weights) if the
    layout is not that of self-attention over the batch.
    """
    if layout is None:
        return (weights, weights) if weights.dim() == 4 else (None, weights)
    size, length = len(layout.mask), weights.shape[-1]
    rows = weights.shape[-2] if weights.dim() > 1 else 0
    one = layout.graph_token and rows == 1  # as a last layer of which one token is read
    known = (one or rows == length) and layout.fits(length)
    if not known or weights.numel() % (size * rows * length):
        return None, weights
    first = int(not layout.graph_token)
    after = layout.tokens - first - length
    pad = (first, after, 0, 0) if one else (first, after, first, after)
    attention = F.pad(weights.reshape(size, -1, rows, length), pad)  # (B, H, 1 or T, T)
    own = slice(first, first + length)
    return attention, attention[..., first : first + rows, own].reshape(weights.shape)


def expose_sparse(
    weights: Tensor, target: Tensor, source: Tensor, layout: Layout | None
) -> tuple[Tensor | None, Tensor]:
    """As `expose_dense` for weights (E, ...) of edges from nodes `source` to `target`, both (E,).

    Values of parallel edges are added. Without a layout all nodes are one graph's.
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
