"""Order the nodes by their scores, so that equivalent nodes stay together, and average marginals.

Nodes enter an order together if their scores differ by rounding alone. So results do not depend on
how the nodes are numbered.

The marginals of a wrapped model's nodes are measured at both ends of the order that they give. Each
coalition takes one forward and one backward pass. They give every node a marginal, whether it is
present or absent (see `wrapping.presence`). The coalitions are

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
from dataclasses import dataclass
from functools import partial
from math import comb
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import ValueOfOutputs

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
    given, samples = samples.dtype, samples.double()  # sums whose order depends on the batch
    count = valid.sum(0).clamp(min=1)
    mean = samples.masked_fill(~valid, 0.0).sum(0) / count
    squares = (samples - mean).square().masked_fill(~valid, 0.0).sum(0)
    several = count > 1
    variance = torch.where(several, squares / (count - 1).clamp(min=1), 0.0)
    typical = variance.sum(-1, keepdim=True) / several.sum(-1, keepdim=True).clamp(min=1)
    variance = torch.where(several, variance, typical)
    return mean.to(given), (variance / count).sqrt().to(given)


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


PathScores: TypeAlias = tuple[Tensor, Tensor]  # (B, T), and by how much nodes may be off (B, N)


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
    return scores, torch.stack(errors).square().sum(0).sqrt()


def require_coalitions(model: ExplainableModel) -> None:
    """Raise ValueError unless coalitions of a wrapped model's nodes can be measured."""
    if not hasattr(model, "rows_to_outputs"):
        raise ValueError("coalitions are measured in Graphormers and in wrapped models (gx.wrap).")


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

    run = presence_pass(model, batch, tokens)
    return each_once(partial(run.marginals, value=value), run.mask)


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


# -- which nodes stay ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class EachLeftOut:
    """All nodes, and then all but those of each group (M, k) of numbers: (1 + M, B, N)."""

    groups: Tensor
    mask: Tensor

    def __len__(self) -> int:
        return 1 + len(self.groups)

    def __getitem__(self, part: slice) -> Tensor:
        first, *_ = places = range(len(self))[part]
        left_out = self.groups[max(first - 1, 0) : places[-1]]
        keep = self.mask.new_ones(len(places), *self.mask.shape)
        rows = torch.arange(len(places) - len(left_out), len(places))
        keep[rows[:, None], :, left_out] = False
        return keep


Choices: TypeAlias = Tensor | EachLeftOut  # of the nodes that stay (K, B, N)


def random_orders(n: int, number: int, generator: torch.Generator, antithetic: bool) -> Tensor:
    """Draw orders (number, n) of n players, each followed by its reverse if `antithetic`."""
    drawn = [
        torch.randperm(n, generator=generator)
        for _ in range(-(-number // 2) if antithetic else number)
    ]
    orders = torch.stack(drawn)
    if antithetic:
        orders = torch.stack([orders, orders.flip(-1)], dim=1).flatten(0, 1)
    return orders[:number]


def prefixes(places: Tensor, most: int | None = None) -> Tensor:
    """Mark the first 0, 1, ..., M nodes of each order as True in (M + 1, ..., N).

    `places` (..., N) holds the place of each node in the order. M is `most`, by default N.
    """
    sizes = torch.arange((places.shape[-1] if most is None else most) + 1, device=places.device)
    return places < sizes.view(-1, *[1] * places.dim())


def all_coalitions(players: int) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return all coalitions of M players, and the weights of their values (Shapley 1953).

    `phi_i = sum over S without i of |S|! (M - |S| - 1)! / M! (v(S and i) - v(S))`

    Returns:
        True at the players of each coalition (2^M, M), from none to all, and the weights w
        (2^M, M), so that the Shapley values (M,) are `v @ w` for the values v (2^M,).
    """
    chosen = (np.arange(2**players)[:, None] >> np.arange(players) & 1).astype(bool)
    weight = np.array([1 / (players * comb(players - 1, size)) for size in range(players)])
    others = chosen.sum(1, keepdims=True) - chosen  # how many players other than i there are
    return chosen, np.where(chosen, 1, -1) * weight[others]
