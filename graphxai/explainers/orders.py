"""Order the nodes by their scores, so that equivalent nodes stay together.

Nodes whose scores differ by rounding alone enter an order together, so that results do not depend
on how the nodes are numbered.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

TIED = 1e-4  # of the largest score


def rounding(scores: Tensor) -> Tensor:
    """Bound the difference (B, 1) that is rounding, for scores (B, T) from `averages.relative`.

    Such scores may be sums of terms around one that cancel.
    """
    return TIED * scores.abs().amax(dim=-1, keepdim=True).clamp(min=1.0)


def first_nodes(scores: Tensor, mask: Tensor, share: float) -> Tensor:
    """Select the highest scores of each graph, True in (B, N).

    These are a share of its nodes, at least one, and all nodes that tie with the last of them.

    Args:
        scores: the scores (B, T), graph token first.
        mask: True at nodes, (B, N).
        share: the share of the nodes.
    """
    nodes = scores[:, 1:]
    ranked = nodes.masked_fill(~mask, -torch.inf).sort(dim=-1, descending=True).values
    wanted = (share * mask.sum(-1, keepdim=True).double()).ceil().long().clamp(min=1)
    last = ranked.gather(-1, wanted - 1)
    return mask & (nodes >= last - rounding(scores))


def ranks(scores: Tensor, mask: Tensor) -> Tensor:
    """Rank every node (B, N) by descending score (B, T).

    Padding, which never joins, has rank N.
    """
    order = (
        scores[:, 1:].masked_fill(~mask, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    )
    return order.argsort(dim=-1).masked_fill(~mask, mask.shape[1])


def gains(values: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
    """Compute what each node adds (B, N) when it joins those of higher score.

    Tied nodes share equally.

    Args:
        values: the values (N + 1, B) of the first 0..N nodes of the order by `ranks`.
        scores: the scores (B, T).
        mask: True at nodes, (B, N).
    """
    nodes, tied = scores[:, 1:], rounding(scores)[..., None]
    higher = nodes[:, None, :] - nodes[:, :, None]  # (B, N, N): by how much the second is higher
    before = ((higher > tied) & mask[:, None, :]).sum(-1)
    after = ((higher >= -tied) & mask[:, None, :]).sum(-1)
    by_size = values.T
    together = by_size.gather(1, after) - by_size.gather(1, before)
    return (together / (after - before).clamp(min=1)).masked_fill(~mask, 0.0)


def in_order(values: Tensor, order: Tensor, mask: Tensor) -> Tensor:
    """Reassign the values (B, N) of a graph's nodes by rank in `order` (B, N).

    The highest rank gets the highest value.
    """
    ranked = values.masked_fill(~mask, -torch.inf).sort(dim=-1, descending=True).values
    sums = F.pad(ranked.masked_fill(ranked == -torch.inf, 0.0).cumsum(-1), (1, 0))  # (B, N + 1)
    return gains(sums.T, F.pad(order, (1, 0)), mask)
