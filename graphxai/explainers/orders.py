"""Order the nodes by their scores, so that equivalent nodes stay together, and average marginals.

Nodes enter an order together if their scores differ by rounding alone. So results do not depend on
how the nodes are numbered.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

TIED = 1e-4  # up to this part of the largest score, a difference counts as rounding


def rounding(scores: Tensor) -> Tensor:
    """Return the largest difference (B, 1) by which equal scores (B, T) may differ.

    Scores are those of `relative`. They may be sums of terms of size one that cancel, so
    the result is no less than `TIED`.
    """
    return TIED * scores.abs().amax(dim=-1, keepdim=True).clamp(min=1.0)


def first_nodes(scores: Tensor, mask: Tensor, share: float) -> Tensor:
    """Select a share of each graph's nodes, those with the highest scores, as True in (B, N).

    At least one node is selected, and so are all nodes that tie with the last.

    Args:
        scores: the scores (B, T), graph token first.
        mask: True at nodes, (B, N).
        share: which share of the nodes to select.
    """
    nodes = scores[:, 1:]
    ranked = nodes.masked_fill(~mask, -torch.inf).sort(dim=-1, descending=True).values
    wanted = (share * mask.sum(-1, keepdim=True).double()).ceil().long().clamp(min=1)
    last = ranked.gather(-1, wanted - 1)
    return mask & (nodes >= last - rounding(scores))


def ranks(scores: Tensor, mask: Tensor) -> Tensor:
    """Rank the nodes (B, N) by descending score (B, T).

    Padding has rank N.
    """
    order = (
        scores[:, 1:].masked_fill(~mask, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    )
    return order.argsort(dim=-1).masked_fill(~mask, mask.shape[1])


def gains(values: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
    """Compute how much each node adds (B, N) when it joins the nodes with higher scores.

    Tied nodes share equally.

    Args:
        values: the values (N + 1, B) of the first 0..N nodes of the order by `ranks`.
        scores: the scores (B, T).
        mask: True at nodes, (B, N).
    """
    nodes, tied = scores[:, 1:], rounding(scores)[..., None]
    higher = nodes[:, None, :] - nodes[:, :, None]  # (B, N, N), by how much the second is higher
    before = ((higher > tied) & mask[:, None, :]).sum(-1)
    after = ((higher >= -tied) & mask[:, None, :]).sum(-1)
    by_size = values.T
    together = by_size.gather(1, after) - by_size.gather(1, before)
    return (together / (after - before).clamp(min=1)).masked_fill(~mask, 0.0)


def in_order(values: Tensor, order: Tensor, mask: Tensor) -> Tensor:
    """Permute the values (B, N) of each graph's nodes so that they follow `order` (B, N).

    The node with the highest entry in `order` gets the highest value.
    """
    ranked = values.masked_fill(~mask, -torch.inf).sort(dim=-1, descending=True).values
    sums = F.pad(ranked.masked_fill(ranked == -torch.inf, 0.0).cumsum(-1), (1, 0))  # (B, N + 1)
    return gains(sums.T, F.pad(order, (1, 0)), mask)


def alternate_nodes(scores: Tensor, mask: Tensor) -> Tensor:
    """Select every second node of each graph's order, from the first on, as True in (B, N).

    Tied nodes stay together, so that a tie counts as one place of the order.

    Args:
        scores: the scores (B, T), graph token first.
        mask: True at nodes, (B, N).
    """
    nodes = scores[:, 1:].masked_fill(~mask, -torch.inf)
    ranked, order = nodes.sort(dim=-1, descending=True)
    gaps = ranked[:, :-1] - ranked[:, 1:] > rounding(scores)
    place = F.pad(gaps.long().cumsum(-1), (1, 0))  # (B, N)
    return mask & (place % 2 == 0).gather(-1, order.argsort(-1))


# -- averages over coalitions or orders ------------------------------------------------------------


def relative(graph_token: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
    """Divide scores by their mean size over the nodes of each graph, `x / mean |x|`.

    Scores of different methods can be added once each is in units of its mean size.

    Args:
        graph_token: the score of the graph token, (B,).
        scores: the scores of the nodes, (B, N).
        mask: True at nodes, (B, N).

    Returns:
        The scores (B, T), graph token first.
    """
    return torch.cat([graph_token[:, None], scores], dim=1) / mean_size(scores, mask)


def mean_size(scores: Tensor, mask: Tensor) -> Tensor:
    """Compute `mean |x|` (B, 1) over the nodes of each graph, for scores and mask (B, N)."""
    sizes = scores.abs().masked_fill(~mask, 0.0).sum(-1, keepdim=True)
    return (sizes / mask.sum(-1, keepdim=True).clamp(min=1)).clamp(min=1e-30)


def mean_and_error(samples: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Compute mean and standard error (B, N) of samples (K, B, N), leaving out invalid ones.

    A node with a single sample gets the typical standard deviation of its graph's other nodes, as a
    root mean square. A node without samples gets a mean of zero.
    """
    count = valid.sum(0).clamp(min=1)
    mean = samples.masked_fill(~valid, 0.0).sum(0) / count
    squares = (samples - mean).square().masked_fill(~valid, 0.0).sum(0)
    several = count > 1
    variance = torch.where(several, squares / (count - 1).clamp(min=1), 0.0)
    typical = variance.sum(-1, keepdim=True) / several.sum(-1, keepdim=True).clamp(min=1)
    variance = torch.where(several, variance, typical)
    return mean, (variance / count).sqrt()
