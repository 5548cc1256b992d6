"""Compare Shapley values from coalitions and orders with those of many more orders.

    python benchmarks/shapley_gates.py --graphs 20 --orders 512

The error of an estimate is |estimate - reference| / |reference| for each graph, and its coverage is
the share of nodes whose reference lies within 1.96 standard errors. Prints a table for each model:
the bundled models of BACE-1 (molecules of the example table) and of digits, and with `--gps FOLDER`
the GPS models that `benchmarks/hybrids.py train` put there (validation graphs of each).
"""

import argparse
import csv
import random
from pathlib import Path
from typing import Any

import torch

import graphxai as gx
from gps import load_gps
from graphxai.contract.batching import collated
from graphxai.datasets.mnist import load_mnist
from graphxai.datasets.molecules import load_bace
from graphxai.datasets.samples import digit_paths
from graphxai.explainers import get_explainer

ASSAY = Path(__file__).resolve().parents[1] / "datasets" / "examples" / "assay.csv"
MODELS = ["bace", "mnist-superpixels", "gps-bace", "gps-mnist"]
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
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS[:2])
    parser.add_argument("--gps", type=Path, default=Path("runs/hybrids/models"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.models:
        model, inputs = model_and_inputs(name, options.gps)
        measured = [
            measured_on(model, value, options.orders, options.seeds)
            for value in inputs[: options.graphs]
        ]
        print_table(name, measured)


def model_and_inputs(name: str, gps: Path) -> tuple[Any, list[Any]]:
    """Return a model and inputs for it, in random order."""
    if name == "mnist-superpixels":
        return gx.load(name), list(digit_paths())
    if name == "bace":
        model: Any = gx.load(name)
        with ASSAY.open(newline="") as file:
            inputs: list[Any] = [row["smiles"] for row in csv.DictReader(file)]
    else:
        data = name.removeprefix("gps-")
        model, card = load_gps(gps / f"gine-{data}-0", data)
        compounds = load_bace() if data == "bace" else []
        images = list(load_mnist(None, "train")[0]) if data == "mnist" else []
        inputs = [compounds[k].smiles if compounds else images[k] for k in card["split"]["valid"]]
    random.Random(0).shuffle(inputs)
    return model, inputs


def measured_on(
    model: Any, value: object, orders: int, seeds: int
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
