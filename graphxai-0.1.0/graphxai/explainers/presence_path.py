"""Compute marginals of a wrapped model's nodes at both ends of the order that they give.

Each coalition takes one forward and one backward pass. They give every node a marginal, whether it
is present or absent (see `adapters.presence`). The coalitions are

1. the whole graph. Its marginals give a first order.
2. every second node of that order, and the nodes in between. Their marginals give a better order,
   with which the same is done again.
3. in round k, the first `u_k N` nodes of the current order, and all but its first `(1 - u_k) N`
   nodes, with `u_k = frac(1/2 + 0.618 k)`. So both ends of the order count alike.

Scores are `z(mean over the halves) + z(mean over prefixes) + z(mean over complements)`, with
`z(x) = x / mean |x|`. Each round sorts the nodes again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from graphxai.contract.target import ResolvedTarget

from .averages import mean_and_error, mean_size, relative
from .orders import alternate_nodes, first_nodes

if TYPE_CHECKING:
    from graphxai.adapters.presence import PresencePass

GOLDEN = 0.618  # its multiples spread the sizes of coalitions evenly between 0 and 1


class PathScores(NamedTuple):
    """Scores (B, T), graph token first, and by how much those of nodes may be off (B, N)."""

    scores: Tensor
    spread: Tensor


def two_sided(run: PresencePass, target: ResolvedTarget, rounds: int) -> PathScores:
    """Score the nodes of a batch by their marginals at coalitions of their own order.

    Args:
        rounds: the number of prefixes to measure, and also that of complements.
    """
    mask = run.mask
    measured: dict[bytes, Tensor] = {}  # by coalition, as small graphs meet the same one again

    def marginals(present: Tensor) -> Tensor:
        empty = ~present.any(-1, keepdim=True)
        present = torch.where(empty, mask, present)
        key = present.numpy(force=True).tobytes()
        if key not in measured:
            measured[key] = run.marginals(present, target)
        return measured[key]

    token = torch.zeros_like(run.whole[:, 0])
    order, halves = relative(token, marginals(mask), mask), list[Tensor]()
    for _ in range(2):
        half = alternate_nodes(order, mask)
        halves += [marginals(half), marginals(mask & ~half)]
        order = relative(token, torch.stack(halves).mean(0), mask)
    start = scores = order
    prefixes, complements = [], []
    for k in range(rounds):
        share = (0.5 + GOLDEN * k) % 1
        prefixes.append(marginals(first_nodes(scores, mask, share)))
        complements.append(marginals(mask & ~first_nodes(scores, mask, 1 - share)))
        sides = [torch.stack(side) for side in (prefixes, complements)]
        scores = start + sum(relative(token, side.mean(0), mask) for side in sides)
    errors = []
    for side in sides:
        mean, error = mean_and_error(side, mask.expand_as(side))
        errors.append(error / mean_size(mean, mask))
    return PathScores(scores, torch.stack(errors).square().sum(0).sqrt())
