"""A model's output as a cooperative game of nodes, for libraries that explain games."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from graphxai.contract.model import evaluating
from graphxai.contract.target import Target, ValueOfOutputs
from graphxai.wrapping.removal import Operator, outputs_of_parts

from .models import Model

__all__ = ["Game", "game_of"]


@dataclass(frozen=True, eq=False)
class Game:
    """The value of an output for each coalition of M players, which are groups of nodes.

    It is called with coalitions (K, M), True where a player takes part, and returns their values
    (K,). Nodes of no player are always absent.

    Args:
        model: the model.
        data: the encoded graph of N nodes.
        members: True at the nodes of each player (M, N).
        names: the names of the players.
        value: computes values from outputs of the model.
        operator: how the nodes of absent players are removed.
    """

    model: Model
    data: Any
    members: NDArray[np.bool_]
    names: tuple[str, ...]
    value: ValueOfOutputs
    operator: Operator = "mask"

    @property
    def n_players(self) -> int:
        """The number M of players, under the name that shapiq uses."""
        return len(self.members)

    def __call__(self, coalitions: ArrayLike) -> NDArray[np.float64]:
        """Return the values (K,) of coalitions (K, M), or of a single one (M,), as an array."""
        chosen = np.atleast_2d(np.asarray(coalitions)).astype(bool)
        if chosen.shape[1] != self.n_players:
            raise ValueError(
                f"coalitions have shape {chosen.shape}, but the game has {self.n_players} players."
            )
        keep = torch.from_numpy(chosen.astype(np.float32) @ self.members.astype(np.float32) > 0)
        with evaluating(self.model):
            outputs = outputs_of_parts(self.model, self.data, keep, self.operator).double().cpu()
        values: NDArray[np.float64] = self.value(outputs).numpy()
        return values

    def __repr__(self) -> str:
        return f"Game({self.n_players} players, nodes removed by {self.operator})"


def game_of(
    model: Model,
    data: Any,
    parts: Mapping[str, Sequence[int]],
    target: Target,
    operator: Operator,
) -> Game:
    """Return the game of an encoded graph, see `graphxai.game`."""
    n = int(data.num_nodes or 0)
    with evaluating(model):
        outputs = outputs_of_parts(model, data, torch.ones(1, n, dtype=torch.bool), operator)
    value = target.resolve(model.config, outputs.double().cpu())
    return Game(model, data, _members(parts, n), tuple(parts), value, operator)


def _members(parts: Mapping[str, Sequence[int]], n: int) -> NDArray[np.bool_]:
    """Return True at the nodes of each player (M, N)."""
    if not parts:
        raise ValueError("a game needs at least one player.")
    members = np.zeros((len(parts), n), dtype=bool)
    for row, (name, nodes) in zip(members, parts.items(), strict=True):
        numbers = np.asarray(list(nodes), dtype=int)
        if not len(numbers) or numbers.min() < 0 or numbers.max() >= n:
            raise ValueError(
                f"player {name!r} has the nodes {numbers.tolist()}, but the graph has nodes 0 to"
                f" {n - 1}."
            )
        row[numbers] = True
    if (members.sum(0) > 1).any():
        node = int(members.sum(0).argmax())
        raise ValueError(f"node {node} belongs to two players.")
    return members
