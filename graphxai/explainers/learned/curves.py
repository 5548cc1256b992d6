"""The soft activation curve, from which an explainer learns the order of the nodes.

An activation curve (Ali 2022, section 5) adds the nodes in the order of their scores and follows
the probability of the explained class. Here it is made soft, so that gradients reach the scores s.
The presence of a node at threshold theta is `pi = sigmoid((s - theta) / tau)`.

In a Graphormer, log pi is added to the logits of the node's key in every attention. As tau goes to
0, this becomes the removal operator `mask`.

In a wrapped model a node can only be there or not. So a coalition is drawn in which each node is
present with probability pi, and the curve follows the mean over coalitions, the multilinear
extension (Owen 1972). Its derivative with respect to the pi of a node is the mean of that node's
marginals, which one backward pass estimates for all nodes (see `wrapping.presence`). At every
second threshold the present nodes are removed instead, and the probability is to fall, so that the
end of the order counts as much as its beginning.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import ResolvedTarget
from graphxai.models.graphormer import Graphormer
from graphxai.rules.conservative import Rules

from ..orders import measure_of, prefixes, ranks
from ..passes import Embedded, outputs_of_choices, run_pass

MARGIN = 0.5  # how far the highest threshold may lie above the scores


def standardised(scores: Tensor, mask: Tensor) -> Tensor:
    """Standardise scores (B, N) over each graph's nodes, to mean zero and deviation one."""
    count = mask.sum(-1, keepdim=True)
    centred = scores - scores.masked_fill(~mask, 0.0).sum(-1, keepdim=True) / count
    variance = centred.square().masked_fill(~mask, 0.0).sum(-1, keepdim=True) / count
    return (centred / (variance + 1e-12).sqrt().clamp(min=1e-6)).masked_fill(~mask, 0.0)


def soft_presence(scores: Tensor, mask: Tensor, shares: Tensor, tau: float) -> Tensor:
    """Compute the log presence (K, B, N) of the nodes at K thresholds. It is zero at padding.

    Args:
        scores: the scores (B, N).
        mask: True at nodes (B, N).
        shares: which share of a graph's nodes lies above each threshold (K, B), below one.
        tau: the softness of the thresholds.
    """
    count = mask.sum(-1)  # (B,)
    ranked = scores.masked_fill(~mask, -torch.inf).sort(dim=-1, descending=True).values
    last = ranked.gather(-1, count[:, None] - 1)
    levels = torch.cat([ranked[:, :1] + MARGIN, ranked.maximum(last)], dim=-1)  # (B, N + 1)
    place = shares * count
    below = place.floor().long().clamp(max=levels.shape[1] - 2)
    part = place - below
    above, under = (levels.gather(-1, (below + k).T).T for k in (0, 1))  # (K, B)
    threshold = above * (1 - part) + under * part
    return F.logsigmoid((scores - threshold[..., None]) / tau).masked_fill(~mask, 0.0)


def gradients_of_probability(
    model: ExplainableModel, batch: Any, target: ResolvedTarget, presence: Tensor
) -> Tensor:
    """Compute the gradient (K, B, N) of the class's probability at K log presences (K, B, N).

    For wrapped models it is estimated at coalitions that PyTorch's generator draws. At every second
    threshold it is that of minus the probability without the present nodes.
    """
    if isinstance(model, Graphormer):
        return _by_fading(model, batch, target, presence)

    def probability(outputs: Tensor) -> Tensor:
        return torch.sigmoid(target.log_odds(outputs))

    measure, chance = measure_of(model, batch, probability), presence.exp()
    marginals = [
        measure(batch.mask & (~present if k % 2 else present))
        for k, present in enumerate(torch.bernoulli(chance).bool())
    ]
    return torch.stack(marginals) * chance  # with respect to log pi


def _by_fading(
    model: Graphormer, batch: GraphBatch, target: ResolvedTarget, presence: Tensor
) -> Tensor:
    """Compute the gradients (K, B, N) for a Graphormer, whose keys fade."""
    start, gradients = Embedded.of(model, batch), []
    for log_presence in presence:
        seen = start.adding(F.pad(log_presence, (1, 0))[:, None, None, :])
        run = run_pass(seen, Rules(), structure=True)
        outputs = run.outputs.detach().requires_grad_()
        probability = torch.sigmoid(target.log_odds(outputs)).sum()
        shares = run.back(torch.autograd.grad(probability, outputs)[0])
        assert shares.structure is not None
        gradients.append(shares.structure.sum(dim=(1, 2))[:, 1:])
    return torch.stack(gradients)


@torch.no_grad()
def areas(model: ExplainableModel, batch: Any, target: ResolvedTarget, scores: Tensor) -> Tensor:
    """Compute the AUAC (B,) of scores (B, N), where the highest score is added first."""
    keep = prefixes(ranks(F.pad(scores, (1, 0)), batch.mask))  # (N + 1, B, N)
    p = torch.sigmoid(target.log_odds(outputs_of_choices(model, batch, keep)))  # (N + 1, B)
    count = batch.mask.sum(-1)
    inside = torch.arange(1, len(p), device=p.device)[:, None] <= count
    return ((p[1:] + p[:-1]) / 2 * inside).sum(0) / count
