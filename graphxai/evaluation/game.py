"""Offer a model's output to libraries that explain cooperative games."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from graphxai.contract.inputs import prepare_for
from graphxai.contract.model import evaluating
from graphxai.contract.target import Target, ValueOfOutputs
from graphxai.explainers.shares import COMBINED, Shares
from graphxai.explanation.api import KnownTarget, explain
from graphxai.explanation.compute.models import Model, loaded
from graphxai.wrapping.removal import Operator, outputs_of_parts

PAIRS = 128  # coalitions of one size that are compared, for each graph to which shares are fitted
RIDGE = 1e-3  # of the standardised scores, which are alike


def game(
    model: Model | str | Path,
    graph: Any,
    parts: Mapping[str, Sequence[int]] | Sequence[Sequence[int]] | None = None,
    *,
    target: KnownTarget = None,
    operator: Operator = "mask",
) -> Game:
    """Return the output of a model for a graph as a cooperative game (Shapley 1953).

    Libraries that explain games take the result as it is. For example,
    ``shapiq.ExactComputer(game, game.n_players)("k-SII", order=2)`` gives the interactions of two
    players, exactly.

    Args:
        model: from `load` or `wrap`, or a bundled model's name.
        graph: one input, as for `explain`.
        parts: the players, as numbers of nodes, with names or without. None makes each node a
            player. `[part.atoms for part in gx.fragments(e)]` are the fragments of a molecule.
        target: as for `explain`. None takes the class that is predicted for the whole graph.
        operator: how absent nodes are removed: "mask", "zero", "delete" or "resample".

    Raises:
        ValueError: the input cannot be used, a player has no node or one that the graph does not
            have, two players share a node, or the model does not take the operator.
    """
    model = loaded(model)
    item = prepare_for(model, graph)
    if parts is None:
        parts = [[k] for k in range(item.num_nodes)]
    named = parts if isinstance(parts, Mapping) else {str(k): part for k, part in enumerate(parts)}
    n = item.num_nodes
    with evaluating(model):
        outputs = outputs_of_parts(model, item, torch.ones(1, n, dtype=torch.bool), operator)
    value = Target.of(target).resolve(model.config, outputs.double().cpu())
    return Game(model, item, _members(named, n), tuple(named), value, operator)


@dataclass(frozen=True, eq=False)
class Game:
    """The value of an output for each coalition of M players, which are groups of nodes.

    It is called with coalitions (K, M), True where a player takes part, and returns their values
    (K,). Nodes of no player are always absent.

    Args:
        model: the model.
        data: the encoded input of N nodes, or its graph.
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
        return self.value(outputs).numpy()

    def __repr__(self) -> str:
        return f"Game({self.n_players} players, nodes removed by {self.operator})"


def fit_shares(
    model: Model | str | Path,
    graphs: Sequence[Any],
    *,
    target: KnownTarget = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Shares:
    """Fit the weights with which `method="shares"` combines cheap scores, to one model.

    The weights are those with which exchanging nodes for as many others changes the output most
    nearly as the weighted scores say (ridge regression in closed form). Take graphs that you do not
    explain afterwards, such as training graphs: 24 suffice for the four weights.

    Args:
        model: from `load` or `wrap`, or a bundled model's name.
        graphs: inputs, as for `explain`. Those of fewer than two nodes are left out.
        target: as for `explain`.
        seed: draws the coalitions.
        progress: as for `explain`.

    Returns:
        The method, for `explain(..., method)`.

    Raises:
        ValueError: an input cannot be used, or no exchange of nodes changes an output.
    """
    if isinstance(graphs, str):
        raise ValueError("graphs is a single text: give a list of graphs.")
    model, drawn = loaded(model), np.random.default_rng(seed)
    names: tuple[Any, ...] = (Shares(seed=seed), *COMBINED)
    options: dict[str, Any] = {"target": target, "progress": progress, "on_error": "raise"}
    by_method = [explain(model, list(graphs), name, **options) for name in names]
    said, seen = [np.empty((0, len(names)))], [np.empty(0)]
    for graph, explanations in zip(graphs, zip(*by_method, strict=True), strict=True):
        players = game(model, graph, target=target)
        if (n := players.n_players) < 2:
            continue
        sizes = drawn.integers(1, n, PAIRS).repeat(2)[:, None]
        coalitions = drawn.random((2 * PAIRS, n)).argsort(1).argsort(1) < sizes
        changes = np.subtract(*players(coalitions).reshape(PAIRS, 2).T)
        exchanged = coalitions[::2].astype(float) - coalitions[1::2]
        if size := float(np.sqrt(np.square(changes).mean())):
            scores = np.stack([each.relevance for each in explanations], axis=1)  # (n, methods)
            said.append(exchanged @ scores / size)
            seen.append(changes / size)
    x, y = np.concatenate(said), np.concatenate(seen)
    if not len(y):
        raise ValueError("no exchange of nodes changes an output: there is nothing to fit.")
    scale = x.std(0).clip(1e-12)
    squares = (x / scale).T @ (x / scale) / len(x) + RIDGE * np.eye(len(names))
    weights = np.linalg.solve(squares, (x / scale).T @ y / len(x)) / scale
    return Shares(seed=seed, weights=weights.tolist())


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
