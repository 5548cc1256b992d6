"""Average a node's marginals over coalitions or orders, with their standard errors."""

import torch
from torch import Tensor


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
