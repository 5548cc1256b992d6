"""Measure what shares with a curve of size say of groups of nodes: `python benchmarks/shares.py`.

The models are those of `benchmarks/hybrids.py train`, and the bundled `bace`. The table of
`results/shares.md` is printed first, then paired tests. What was measured of a compound is kept in
`--out`. The value of a coalition is the output with only its atoms. Its error is that of 256 random
coalitions of each compound, which no method saw, relative to the variance of their values.
"""

import argparse
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import graphxai as gx
from gps import load_gps
from graphxai.datasets.molecules import load_bace
from graphxai.evaluation.statistics import bootstrap, compare_pairs
from graphxai.explainers import Shares
from graphxai.explanation.compute.models import Model
from graphxai.runtime.writing import markdown_table

COMPOUNDS, COALITIONS, SEED = 60, 256, 71
ORDERS = "Shapley, 8 orders, the same curve"
FITTED, TAUGHT = "shares with fitted weights", 24  # training compounds
ROWS = {
    "shares": "`shares`, 38 passes (40 in wrapped models)",
    FITTED: "with weights of `gx.fit_shares`, 96 + N passes",
    ORDERS: "Shapley, 8 orders, the same curve",
    "shares, no curve": "`shares`, no curve",
    "stated": "stated error / error",
}
Errors = dict[str, NDArray[np.float64]]  # of each compound, by what says it


class OrdersAndCurve(Shares):
    """Shapley values from 8 orders, with the curve of `shares`."""

    name = "orders"
    _attribute = Shares._by_orders


def models(folder: Path) -> Iterator[tuple[str, Model, dict[str, list[int]]]]:
    """Yield the title of each model, the model, and the positions of its compounds by part."""
    bundled = gx.load("bace")
    yield "Graphormer `bace`", bundled, bundled.origin.metadata["split"]
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


def measured(model: Model, split: dict[str, list[int]], count: int, kept: Path) -> Errors:
    """Return the errors on so many compounds of one model, those in a file without measuring."""
    graphs, drawn = load_bace(), np.random.default_rng(SEED)
    chosen = sorted(drawn.choice(split["test"], COMPOUNDS, replace=False).tolist())[:count]
    taught = drawn.choice(split["train"], TAUGHT, replace=False).tolist()
    rows: dict[str, dict[str, float]] = json.loads(kept.read_text()) if kept.exists() else {}
    fitted = None
    for k in [k for k in chosen if str(k) not in rows]:
        if fitted is None:
            fitted = gx.fit_shares(model, [graphs[k].smiles for k in taught], target="active")
        rows[str(k)] = errors(model, fitted, graphs[k].smiles, k)
        kept.write_text(json.dumps(rows))
    of_compounds = [rows[str(k)] for k in chosen]
    return {name: np.array([row[name] for row in of_compounds]) for name in of_compounds[0]}


def table(by_model: dict[str, Errors]) -> Iterator[str]:
    """Yield the lines of the table, and of the tests below it."""
    rows = [
        [row, *(str(bootstrap(values[name])) for values in by_model.values())]
        for name, row in ROWS.items()
    ]
    yield from [markdown_table([["", *by_model], *rows]), ""]
    for title, values in by_model.items():
        pairs = [("shares", ORDERS), (FITTED, "shares"), (FITTED, ORDERS)]
        yield from (f"* {title}: {tested}" for tested in compare_pairs(values, pairs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path("runs/hybrids/models"))
    parser.add_argument("--out", type=Path, default=Path("runs/shares"))
    parser.add_argument("--compounds", type=int, default=COMPOUNDS)
    parser.add_argument("--bundled", action="store_true", help="the bundled model alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    every = models(options.models)
    by_model = {
        title: measured(model, split, options.compounds, options.out / f"{k}.json")
        for k, (title, model, split) in enumerate(islice(every, 1) if options.bundled else every)
    }
    print("\n".join(table(by_model)))


if __name__ == "__main__":
    main()
