"""Offer a model's output to libraries that explain cooperative games."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphxai.api import KnownTarget
from graphxai.contract.inputs import prepare_for
from graphxai.contract.target import Target
from graphxai.explanation.compute.game import Game, game_of
from graphxai.explanation.compute.models import Model, loaded
from graphxai.wrapping.removal import Operator

__all__ = ["game"]


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
    data = prepare_for(model, graph).data
    if parts is None:
        parts = [[k] for k in range(int(data.num_nodes or 0))]
    named = parts if isinstance(parts, Mapping) else {str(k): part for k, part in enumerate(parts)}
    return game_of(model, data, named, Target.of(target), operator)
