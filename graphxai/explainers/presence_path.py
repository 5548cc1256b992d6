"""Compute marginals of a wrapped model's nodes at both ends of the order that they give.

Each coalition takes one forward and one backward pass. They give every node a marginal, whether it
is present or absent (see `wrapping.presence`). The coalitions are

1. the whole graph. Its marginals give a first order.
2. every second node of that order, and the nodes in between. Their marginals give a better order,
   with which the same is done again.
3. in round k, the first `u_k N` nodes of the current order, and all but its first `(1 - u_k) N`
   nodes, with `u_k = frac(1/2 + 0.618 k)`. So both ends of the order count alike.

Scores are `z(mean over the halves) + z(mean over prefixes) + z(mean over complements)`, with
`z(x) = x / mean |x|`. Each round sorts the nodes again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import ValueOfOutputs

from .orders import alternate_nodes, first_nodes, mean_and_error, mean_size, relative

if TYPE_CHECKING:
    from graphxai.wrapping.presence import PresencePass

GOLDEN = 0.618  # its multiples spread the sizes of coalitions evenly between 0 and 1


Measure = Callable[[Tensor], Tensor]  # from a coalition (B, N) to the marginals (B, N) of all nodes


class FirstOrder(NamedTuple):
    """What five coalitions say of the nodes, see steps 1 and 2.

    Args:
        scores: the order that they give (B, T), graph token first.
        whole: the marginals (B, N) at the whole graph.
        halves: those at the two halves of two orders, (4, B, N).
        present: which nodes are in each half, (4, B, N).
    """

    scores: Tensor
    whole: Tensor
    halves: Tensor
    present: Tensor


class PathScores(NamedTuple):
    """Scores (B, T), graph token first, and by how much those of nodes may be off (B, N)."""

    scores: Tensor
    spread: Tensor


def two_sided(run: PresencePass, value: ValueOfOutputs, rounds: int) -> PathScores:
    """Score the nodes of a batch by their marginals at coalitions of their own order.

    Args:
        rounds: the number of prefixes to measure, and also that of complements.
    """
    marginals = measuring(run, value)
    return from_both_ends(marginals, first_order(marginals, run.mask).scores, run.mask, rounds)


def from_both_ends(measure: Measure, start: Tensor, mask: Tensor, rounds: int) -> PathScores:
    """Add the marginals at prefixes of the order, and at their complements, to the first scores.

    Args:
        measure: measures a coalition, see step 3.
        start: the scores (B, T) that give the first order, graph token first.
        mask: True at nodes (B, N).
        rounds: the number of prefixes to measure, and also that of complements.
    """
    token, scores = torch.zeros_like(start[:, 0]), start
    prefixes, complements = [], []
    for k in range(rounds):
        share = (0.5 + GOLDEN * k) % 1
        prefixes.append(measure(first_nodes(scores, mask, share)))
        complements.append(measure(mask & ~first_nodes(scores, mask, 1 - share)))
        sides = [torch.stack(side) for side in (prefixes, complements)]
        scores = start + sum(relative(token, side.mean(0), mask) for side in sides)
    errors = []
    for side in sides:
        mean, error = mean_and_error(side, mask.expand_as(side))
        errors.append(error / mean_size(mean, mask))
    return PathScores(scores, torch.stack(errors).square().sum(0).sqrt())


def measure_of(model: ExplainableModel, batch: Any, value: ValueOfOutputs) -> Measure:
    """Return a function that measures coalitions of a wrapped model's nodes.

    Graphs of a single node have no coalitions, and marginals of zero.

    Raises:
        ValueError: the model is not wrapped, or combines nodes in a way that cannot leave some out.
    """
    require_coalitions(model)
    tokens = model.embed(batch).detach()
    if bool((batch.mask.sum(-1) <= 1).all()):
        return lambda present: tokens.new_zeros(present.shape)
    from graphxai.wrapping.presence import presence_pass  # loads PyG

    return measuring(presence_pass(model, batch, tokens), value)


def require_coalitions(model: ExplainableModel) -> None:
    """Raise ValueError unless coalitions of a wrapped model's nodes can be measured."""
    if not hasattr(model, "pass_request"):
        raise ValueError("coalitions are measured in Graphormers and in wrapped models (gx.wrap).")


def measuring(run: PresencePass, value: ValueOfOutputs) -> Measure:
    """Return a function that measures coalitions, and measures each of them once."""
    return each_once(lambda present: run.marginals(present, value), run.mask)


def each_once(measure: Measure, mask: Tensor) -> Measure:
    """Return a function that measures as `measure` does, but each coalition only once.

    An empty coalition of a graph stands for the whole graph, whose nodes are True in mask (B, N).
    """
    measured: dict[bytes, Tensor] = {}  # by coalition, as small graphs meet the same one again

    def marginals(present: Tensor) -> Tensor:
        empty = ~present.any(-1, keepdim=True)
        present = torch.where(empty, mask, present)
        key = present.numpy(force=True).tobytes()
        if key not in measured:
            measured[key] = measure(present)
        return measured[key]

    return marginals


def first_order(measure: Measure, mask: Tensor) -> FirstOrder:
    """Order the nodes (B, N) by their marginals at five coalitions, see steps 1 and 2."""
    whole = measure(mask)
    token = torch.zeros_like(whole[:, 0])
    scores, halves, present = relative(token, whole, mask), list[Tensor](), list[Tensor]()
    for _ in range(2):
        half = alternate_nodes(scores, mask)
        for side in (half, mask & ~half):
            halves.append(measure(side))
            present.append(side)
        scores = relative(token, torch.stack(halves).mean(0), mask)
    return FirstOrder(scores, whole, torch.stack(halves), torch.stack(present))
