"""Compare Shapley values from coalitions and orders with those of many more orders.

    python benchmarks/shapley_gates.py --graphs 20 --orders 512

The error of an estimate is |estimate - reference| / |reference| for each graph, and its coverage is
the share of nodes whose reference lies within 1.96 standard errors. Prints tables for the bundled
models of BACE-1 (test molecules of the bundled assay table) and of digits.
"""

import argparse
import csv
import random
from pathlib import Path

import torch

import graphxai as gx
from graphxai.contract.batching import collated
from graphxai.datasets.samples import digit_paths
from graphxai.explainers import get_explainer

ASSAY = Path(__file__).resolve().parents[1] / "datasets" / "examples" / "assay.csv"
ESTIMATES = {
    "4 orders": {"permutations": 4},
    "8 orders": {"permutations": 8},
    "16 orders": {"permutations": 16},
    "32 orders": {"permutations": 32},
    "8 coalitions": {"permutations": 0, "gates": 8},
    "16 coalitions": {"permutations": 0, "gates": 16},
    "32 coalitions": {"permutations": 0, "gates": 32},
    "16 coalitions, 4 orders": {"permutations": 4, "gates": 16},
    "16 coalitions, 8 orders": {"permutations": 8, "gates": 16},
    "16 coalitions, 16 orders": {"permutations": 16, "gates": 16},
}


def main() -> None:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=20)
    parser.add_argument("--orders", type=int, default=512, help="orders of the reference")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=["bace", "mnist-superpixels"])
    options = parser.parse_args()
    with ASSAY.open(newline="") as file:
        molecules = [row["smiles"] for row in csv.DictReader(file)]
    random.Random(0).shuffle(molecules)
    inputs = {"bace": molecules, "mnist-superpixels": digit_paths()}
    for name in options.models:
        model = gx.load(name)
        measured = [
            measured_on(model, value, options.orders, options.seeds)
            for value in inputs[name][: options.graphs]
        ]
        print_table(name, measured)


def measured_on(
    model: torch.nn.Module, value: object, orders: int, seeds: int
) -> tuple[int, dict[str, list[tuple[float, float]]]]:
    """Return the number of nodes, and error and coverage of each estimate for each seed."""
    batch = collated(model, [(None, model.prepare(value))])
    reference = get_explainer("shapley_sampling", permutations=orders, seed=1000)
    exact = reference.attribute(model, batch).relevance[0]
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in ESTIMATES}
    for name, settings in ESTIMATES.items():
        for seed in range(seeds):
            estimate = get_explainer("shapley_sampling", seed=seed, **settings).attribute(
                model, batch
            )
            off = estimate.relevance[0] - exact
            within = float("nan")
            if estimate.spread is not None:
                within = float((off.abs() <= 1.96 * estimate.spread[0]).float().mean())
            results[name].append((float(off.norm() / exact.norm()), within))
    return len(exact), results


def print_table(
    model: str, measured: list[tuple[int, dict[str, list[tuple[float, float]]]]]
) -> None:
    """Print mean errors, coverage, and passes, as Markdown."""
    nodes = sum(n for n, _ in measured) / len(measured)
    print(f"\n{model}: {len(measured)} graphs, {nodes:.1f} nodes on average\n")
    print("| estimate | passes | error | coverage of 95 % |\n|---|---|---|---|")
    for name, settings in ESTIMATES.items():
        pairs = [pair for _, results in measured for pair in results[name]]
        error = sum(e for e, _ in pairs) / len(pairs)
        covered = sum(c for _, c in pairs) / len(pairs)
        passes = settings["permutations"] * nodes + 2 * settings.get("gates", 0)
        shown = "" if covered != covered else f"{100 * covered:.0f} %"
        print(f"| {name} | {passes:.0f} | {error:.3f} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
