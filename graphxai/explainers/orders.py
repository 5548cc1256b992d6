"""Orders of the nodes by their scores, in which equivalent nodes stay together.

Nodes whose scores differ by rounding alone enter an order as one, so that results do not depend on
how the nodes are numbered.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

TIED = 1e-4  # of the largest score


def rounding(scores: Tensor) -> Tensor:
    """The largest difference (B, 1) that is rounding, for scores (B, T) from `averages.relative`.

    Such scores may be sums of terms around one that cancel.
    """
    return TIED * scores.abs().amax(dim=-1, keepdim=True).clamp(min=1.0)


def first_nodes(scores: Tensor, mask: Tensor, share: float) -> Tensor:
    """The highest scores of each graph, True in (B, N): a share of its nodes, and at least one.

    Nodes that tie with the last of them are included. scores (B, T), graph token first; mask
    (B, N).
    """
    nodes = scores[:, 1:]
    ranked = nodes.masked_fill(~mask, -torch.inf).sort(dim=-1, descending=True).values
    wanted = (share * mask.sum(-1, keepdim=True).double()).ceil().long().clamp(min=1)
    last = ranked.gather(-1, wanted - 1)
    return mask & (nodes >= last - rounding(scores))


def ranks(scores: Tensor, mask: Tensor) -> Tensor:
    """Position (B, N) of every node by descending score (B, T); N at padding, which never joins."""
    order = (
        scores[:, 1:].masked_fill(~mask, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    )
    return order.argsort(dim=-1).masked_fill(~mask, mask.shape[1])


def gains(values: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
    """What each node adds (B, N) when it joins those of higher score; tied nodes share equally.

    values (N + 1, B): of the first 0..N nodes of the order by `ranks`; scores (B, T).
    """
    nodes, tied = scores[:, 1:], rounding(scores)[..., None]
    higher = nodes[:, None, :] - nodes[:, :, None]  # (B, N, N): by how much the second is higher
    before = ((higher > tied) & mask[:, None, :]).sum(-1)
    after = ((higher >= -tied) & mask[:, None, :]).sum(-1)
    by_size = values.T
    found = by_size.gather(1, after) - by_size.gather(1, before)
    return (found / (after - before).clamp(min=1)).masked_fill(~mask, 0.0)


def in_order(values: Tensor, order: Tensor, mask: Tensor) -> Tensor:
    """The values (B, N) of a graph's nodes, reassigned by rank in `order` (B, N), highest first."""
    ranked = values.masked_fill(~mask, -torch.inf).sort(dim=-1, descending=True).values
    sums = F.pad(ranked.masked_fill(ranked == -torch.inf, 0.0).cumsum(-1), (1, 0))  # (B, N + 1)
    return gains(sums.T, F.pad(order, (1, 0)), mask)
