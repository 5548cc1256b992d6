"""Count where attention heads look, which is the key with the largest attention in every row.

A row is one node of one graph as the query. Its key is the token with the largest attention. Tied
keys share the row, so that the counts do not depend on the order of the nodes.

In a Graphormer distances are its distance codes. The largest code stands for that distance and all
farther ones. In wrapped models distances are the lengths of shortest paths along the graph's edges,
or |i - j| in a sequence of tokens. Keys farther than `FARTHEST` count as unreachable, because they
are not all at one distance.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.structure import UNREACHABLE
from graphxai.rules.conservative import record

from .layers import joined

POSITIONAL = 0.8  # xi_pos of Song 2024
RELATIONAL = 0.1  # xi_synt of Song 2024
ROUNDING = 1e-6  # shares are sums of floats, and the statistics file keeps six digits
TIE = 1e-5  # attention ties below this relative difference, in single precision
FARTHEST = 100  # the largest distance in edges that is counted in models without a largest distance

Shares = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HeadCounts:
    """How many rows of each graph have their key at a distance or in a relation.

    Args:
        distances: how many rows have their key at each distance (B, L, H, C).
        related: how many rows have a key in each relation to the query (B, L, H, K).
        chance: how many rows would have a key in each relation if a head always looked at one
            distance and drew its key at random among the nodes there (B, K, C).
        rows: the number of all rows (B,).
    """

    distances: Shares
    related: Shares
    chance: Shares
    rows: Shares

    def __add__(self, other: "HeadCounts") -> "HeadCounts":
        return HeadCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def summed(self) -> "HeadCounts":
        """Sum over the graphs. The first axis remains, with length one."""
        return HeadCounts(*(value.sum(0, keepdims=True) for value in astuple(self)))

    def shares(self) -> tuple[Shares, Shares, Shares]:
        """Return `distances`, `related` and base rates (B, K) as shares of the rows.

        The base rate is the largest share that a head reaches by always looking at one distance. It
        is max(lambda_k) in Song 2024, eq. 7, with distances in place of relative positions.
        """
        per_head = self.rows[:, None, None, None]
        base_rates = (self.chance / self.rows[:, None, None]).max(-1)
        return self.distances / per_head, self.related / per_head, base_rates

    def important(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the positional and the relational heads (B, L, H) of each graph."""
        distances, related, base_rates = self.shares()
        chance = base_rates[:, None, None]
        return positional_heads(distances), relational_heads(related, chance)


@torch.no_grad()
def count(
    model: ExplainableModel, batch: Any, relations: Sequence[Any] | None = None
) -> HeadCounts:
    """Count where the rows of each graph have their key.

    Args:
        relations: the relations (K, n, n) of each graph. If None, the only relation is an edge.
    """
    with record(all_queries=True) as tape:
        model.encode(model.embed(batch), batch)
    distance, categories = _distances(model, batch)  # (B, N, N)
    both = batch.mask[:, :, None] & batch.mask[:, None, :]
    if relations is None:
        pairs = (both & (distance == 1))[:, None]
    else:
        pairs = both.new_zeros(len(batch), len(relations[0]), *both.shape[1:])
        for b, related_here in enumerate(relations):
            n = related_here.shape[-1]
            pairs[b, :, :n, :n] = torch.from_numpy(related_here)
    pairs = pairs.double()  # (B, K, N, N)
    layers = joined(tape.chunks or range(len(tape.attention)), tape.attention)
    heads = max(attention.shape[1] for attention in layers)
    distances, related = [], []
    for attention in layers:
        missing = heads - attention.shape[1]
        token, nodes = _largest(F.pad(attention, (0, 0, 0, 0, 0, missing)), batch)
        by_distance = token.new_zeros(*token.shape[:2], categories)
        at = distance.flatten(1)[:, None].expand(-1, heads, -1)
        by_distance.scatter_add_(2, at, nodes.flatten(2))
        of_tokens = token.sum(-1)
        no_key = batch.num_nodes[:, None] - by_distance.sum(-1) - of_tokens
        by_distance[..., -1] += no_key.clamp(min=0)
        distances.append(torch.cat([by_distance, of_tokens[..., None]], dim=-1))
        related.append(torch.einsum("bhij,bkij->bhk", nodes, pairs))
    # rows with a related key if a key is drawn at each distance
    nodes_at = both.to(pairs).new_zeros(*both.shape[:2], categories)
    nodes_at.scatter_add_(2, distance, both.to(pairs))  # (B, N, C)
    related_at = pairs.new_zeros(*pairs.shape[:3], categories)  # (B, K, N, C)
    related_at.scatter_add_(3, distance[:, None].expand_as(pairs), pairs * both[:, None])
    chance = (related_at / nodes_at.clamp(min=1)[:, None]).sum(2)  # (B, K, C)
    counted = torch.stack(distances, 1), torch.stack(related, 1), chance, batch.num_nodes.double()
    return HeadCounts(*(value.cpu().numpy() for value in counted))


def _largest(attention: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
    """Mark the key with the largest attention in every node's row.

    Returns:
        The marks at the graph token (B, H, N) and at the nodes (B, H, N, N). The key is marked with
        one, and tied keys share it equally. All other entries are zero, and so are padding and rows
        without attention.
    """
    of_nodes = attention[:, :, 1:].double()  # (B, H, N, T)
    top = (of_nodes >= of_nodes.amax(-1, keepdim=True) * (1 - TIE)) & (of_nodes > 0)
    shared = top.double() / top.sum(-1, keepdim=True).clamp(min=1)
    shared = shared * batch.mask[:, None, :, None]
    return shared[..., 0], shared[..., 1:]


def _distances(model: ExplainableModel, batch: Any) -> tuple[Tensor, int]:
    """Return distance codes (B, N, N), arbitrary at padding, and how many codes there are.

    The last code is for unreachable nodes.
    """
    b, n = batch.mask.shape
    if isinstance(batch, GraphBatch):
        categories = int(getattr(model.config, "max_distance", FARTHEST)) + 2
        return batch.distance_codes.long().clamp(0, categories - 1), categories
    if not hasattr(batch, "distances"):
        raise TypeError(f"{type(model).__name__} provides no distances: use graphxai.wrap.")
    padded = np.full((b, n, n), UNREACHABLE)
    for rows, distances in zip(padded, batch.distances(), strict=True):
        rows[: len(distances), : len(distances)] = distances
    padded[(padded == UNREACHABLE) | (padded > FARTHEST)] = FARTHEST + 1
    return torch.from_numpy(padded).to(batch.mask.device), FARTHEST + 2


def positional_heads(distances: Shares) -> NDArray[np.bool_]:
    """Find positional heads by Eq. 8, from shares (..., C) as in `HeadStatistics`.

    Unreachable nodes and the graph token, the last two columns, do not count.
    """
    return np.any(distances[..., :-2] > POSITIONAL + ROUNDING, axis=-1)


def relational_heads(related: Shares, base_rates: Shares) -> NDArray[np.bool_]:
    """Find relational heads by Eq. 7, from shares (..., K) and base rates of this shape.

    Base rates may also broadcast to the shares. If one distance fully determines a relation, as
    distance 1 determines bonds, its base rate is near 1. Heads that follow it can then only be
    found by `positional_heads`. A head that fits several relations counts once, because relations
    overlap.
    """
    return np.any(related > base_rates + RELATIONAL + ROUNDING, axis=-1)
