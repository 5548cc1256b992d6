"""Measure what shares with a curve of size say of groups of nodes: `python benchmarks/shares.py`.

The value of a coalition is the output with only its atoms. Its error is that of 256 random
coalitions of each compound, which no method saw, relative to the variance of their values.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

import graphxai as gx
from gps import load_gps
from graphxai.datasets.molecules import load_bace
from graphxai.evaluation.statistics import bootstrap, compare_pairs
from graphxai.explainers import Shares
from graphxai.explanation.compute.models import Model

COMPOUNDS, COALITIONS, SEED = 60, 256, 71
ORDERS = "Shapley, 8 orders, the same curve"
FITTED, TAUGHT = "shares with fitted weights", 24  # training compounds


class OrdersAndCurve(Shares):
    """Shapley values from 8 orders, with the curve of `shares`."""

    name = "orders"
    _attribute = Shares._by_orders


def models(folder: Path) -> Iterator[tuple[str, Model, dict[str, list[int]]]]:
    """Yield the title of each model, the model, and the positions of its compounds by part."""
    bundled = gx.load("bace")
    yield "bundled Graphormer", bundled, bundled.origin.metadata["split"]
    for title, kind in (("GPS (GINE)", "gine"), ("GIN", "gin")):
        model, card = load_gps(folder / f"{kind}-bace-0", "bace", kind)
        yield title, model, card["split"]


def errors(model: Model, fitted: Shares, smiles: str, place: int) -> dict[str, float]:
    """Return the error of each account of one compound, and the ratio of stated to true error."""
    drawn = np.random.default_rng((SEED, place))
    players = gx.game(model, smiles, target="active")
    sizes = drawn.integers(0, players.n_players + 1, COALITIONS)
    groups = drawn.random((COALITIONS, players.n_players)).argsort(1) < sizes[:, None]
    values = players(groups)
    measured = {}
    for name, method in (("shares", Shares()), (FITTED, fitted), (ORDERS, OrdersAndCurve())):
        e = gx.explain(model, smiles, method, target="active")
        said = np.array([e.value_of(group.nonzero()[0]) for group in groups])
        measured[name] = float(((values - said) ** 2).mean() / values.var())
        if name == "shares":
            measured["stated"] = e.ledger.group_error / float(
                np.sqrt(((values - said) ** 2).mean())
            )
        without_curve = e.ledger.biases + groups @ e.relevance
        measured[f"{name}, no curve"] = float(((values - without_curve) ** 2).mean() / values.var())
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path("runs/hybrids/models"))
    folder = parser.parse_args().models
    torch.set_num_threads(1)
    graphs = load_bace()
    for title, model, split in models(folder):
        drawn = np.random.default_rng(SEED)
        chosen = sorted(drawn.choice(split["test"], COMPOUNDS, replace=False).tolist())
        taught = drawn.choice(split["train"], TAUGHT, replace=False).tolist()
        fitted = gx.fit_shares(model, [graphs[k].smiles for k in taught], target="active")
        rows = [errors(model, fitted, graphs[k].smiles, k) for k in chosen]
        values = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        for name, of_compounds in values.items():
            print(f"| {title} | {name} | {bootstrap(of_compounds)} |", flush=True)
        for tested in compare_pairs(
            values, [("shares", ORDERS), (FITTED, "shares"), (FITTED, ORDERS)]
        ):
            print(f"| {title} | {tested} |", flush=True)


if __name__ == "__main__":
    main()
