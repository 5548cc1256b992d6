"""Shapley values of a molecule's fragments, each of which joins and leaves as a whole.

A molecule of N atoms has 2^N coalitions of atoms, but only 2^M of its M fragments. For up to
`EXACT` fragments all of them are evaluated, and the values are exact. For more, the gain of a
fragment is averaged over random orders of the fragments, each paired with its reverse.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphxai.evaluation.game import Game, game
from graphxai.explainers import get_explainer
from graphxai.explainers.orders import all_coalitions
from graphxai.explanation.api import pretrained_models
from graphxai.explanation.compute.explaining import explain_prepared
from graphxai.explanation.compute.models import Model, loaded
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.ledger import Ledger
from graphxai.visualization.text import minus_signs
from graphxai.wrapping.removal import Operator

NAME = "fragment_shapley"  # the method's name in explanations by such values
EXACT = 10  # fragments: 1,024 coalitions
ORDERS = 64  # orders sampled for more fragments; every second one reverses the one before
SAME = 1e-3  # relative difference between the model's output and the explained one

Values = NDArray[np.float64]


class WithoutPart(NamedTuple):
    """The output without a part: what `shares` say (`Explanation.value_of`), and what was measured.

    `str` writes both.
    """

    said: float
    measured: float

    def __str__(self) -> str:
        return minus_signs(f"without it {self.said:+z.2f}, measured {self.measured:+z.2f}")


@dataclass(frozen=True, eq=False)
class FragmentValues:
    """Shapley values of M fragments, which sum to `whole - empty`.

    Args:
        values: the Shapley values (M,).
        whole: the output with all fragments.
        empty: the output without any fragment.
        evaluated: how many coalitions were evaluated.
        operator: how the atoms of absent fragments are removed.
        errors: standard errors (M,) over pairs of orders; None if the values are exact.
        orders: how many orders were sampled; None if the values are exact.
        seed: seed of the sampled orders; None if the values are exact.
    """

    values: Values
    whole: float
    empty: float
    evaluated: int
    operator: str = "mask"
    errors: Values | None = None
    orders: int | None = None
    seed: int | None = None

    def __str__(self) -> str:
        if self.errors is None:
            return f"exact from {self.evaluated:,} coalitions, removal by {self.operator}"
        return f"sampled, {self.orders} orders with seed {self.seed}, removal by {self.operator}"


def game_of_parts(
    explanation: Explanation,
    parts: Sequence[Sequence[int]],
    model: "Model | str | None",
    graph: Any,
    operator: Operator,
) -> Game:
    """Return the explained output as a game of parts (atom indices), see `graphxai.game`.

    Raises:
        ValueError: the model has to be passed, or it is not the one that was explained.
    """
    name = explanation.provenance.get("model")
    if model is None and name not in pretrained_models():
        raise ValueError(
            f"{name!r}, whose output is explained, is not a bundled model: pass it, as in"
            ' fragments(explanation, method="shapley", model=model).'
        )
    asked = loaded(str(name) if model is None else model)
    if graph is None:
        graph = explanation.smiles if explanation.mol is None else explanation.mol
    players = {str(k): part for k, part in enumerate(parts)}
    of_parts = game(asked, graph, players, target=explanation.wanted, operator=operator)
    whole, explained = float(of_parts(np.ones((1, len(parts)), bool))[0]), explanation.output
    if not math.isclose(whole, explained, rel_tol=SAME, abs_tol=SAME):
        raise ValueError(
            f"the model's output for this molecule is {whole:.4g}, but the explanation is of"
            f" {explained:.4g}: pass the model= and the graph= that were explained."
        )
    return of_parts


def shared_out(
    explanation: Explanation, parts: Sequence[Sequence[int]], game: Game
) -> tuple[Explanation, list[WithoutPart]]:
    """Return the explanation by `shares`, and the output without each of the parts of a game.

    An explanation by `shares` is returned as it is.
    """
    if explanation.ledger is None or explanation.ledger.group_error is None:
        target = explanation.wanted
        made = explain_prepared(
            game.model, [(0, game.data)], get_explainer("shares"), target=target
        )
        ((_, explanation),) = made
    measured = game(~np.eye(len(parts), dtype=bool))
    rest = [set(range(len(explanation))) - set(part) for part in parts]
    said = [explanation.value_of(nodes) for nodes in rest]
    return explanation, [WithoutPart(*pair) for pair in zip(said, measured.tolist(), strict=True)]


def valued(
    explanation: Explanation, parts: Sequence[Sequence[int]], fragment_values: FragmentValues
) -> Explanation:
    """Replace the relevance of each part's atoms by equal shares of the part's Shapley value."""
    relevance = np.zeros(len(explanation))
    spread = None if fragment_values.errors is None else np.zeros(len(explanation))
    for k, atoms in enumerate(parts):
        relevance[list(atoms)] = fragment_values.values[k] / len(atoms)
        if spread is not None and fragment_values.errors is not None:
            spread[list(atoms)] = fragment_values.errors[k] / len(atoms)
    ledger = Ledger(
        nodes=math.fsum(fragment_values.values),
        graph_token=0.0,
        biases=fragment_values.empty,
        output=fragment_values.whole,
        without_nodes=explanation.without_nodes,
    )
    options = {
        "operator": fragment_values.operator,
        "orders": fragment_values.orders,
        "seed": fragment_values.seed,
    }
    return replace(
        explanation,
        relevance=relevance,
        spread=spread,
        members=None,  # whose signs of single atoms say nothing of fragments
        ledger=ledger,
        method=NAME,
        title="Shapley values",
        caveat="",
        unsigned="",
        features=None,
        feature_names=(),
        relevance_of={},
        features_of={},
        provenance=explanation.provenance | {"method": NAME, "options": options},
    )


def fragment_values(game: Game, seed: int) -> FragmentValues:
    """Compute the Shapley values of the parts of a game from `game_of_parts`.

    They sum to `whole - empty` exactly. For more than `EXACT` parts, their gains are averaged over
    `ORDERS` random orders, antithetic (Castro 2009).
    """
    m = game.n_players
    if m <= EXACT:
        chosen, weights = all_coalitions(m)
        v = game(chosen)
        return FragmentValues(v @ weights, float(v[-1]), float(v[0]), len(v), game.operator)
    drawn = np.random.default_rng(seed).permuted(np.tile(np.arange(m), (ORDERS // 2, 1)), axis=1)
    orders = np.stack([drawn, drawn[:, ::-1]], axis=1).reshape(-1, m)  # (P, m)
    places = orders.argsort(axis=1)
    prefixes = places[:, None, :] < np.arange(m + 1)[:, None]  # (P, m + 1, m)
    chosen, where = np.unique(prefixes.reshape(-1, m), axis=0, return_inverse=True)
    v = game(chosen)[where].reshape(len(orders), m + 1)
    gains = np.take_along_axis(np.diff(v, axis=1), places, axis=1)  # (P, m), by player
    pairs = gains.reshape(-1, 2, m).mean(1)
    errors = pairs.std(axis=0, ddof=1) / math.sqrt(len(pairs))
    ends = float(v[0, -1]), float(v[0, 0])
    return FragmentValues(
        pairs.mean(0), *ends, len(chosen), game.operator, errors, len(orders), seed
    )
