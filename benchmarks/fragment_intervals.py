"""How often a 95 % interval of a fragment's mean relevance covers the true mean: t and bootstrap.

    python benchmarks/fragment_intervals.py

Uses the bundled BACE model and functional groups that occur in 200 molecules or more. Prints a
Markdown table.
"""

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

import graphxai as gx
from graphxai.chemistry.fragment_table import Tally
from graphxai.datasets.molecules import load_bace
from graphxai.evaluation.statistics import bootstrap

SIZES, SAMPLES, OFTEN = (2, 3, 5, 10, 30), 100, 200


def relevance_by_group() -> list[NDArray[np.float64]]:
    """Return the mean relevance in every molecule for each common functional group."""
    found = defaultdict(list)
    for explanation in gx.explain(gx.load("bace"), [graph.smiles for graph in load_bace()]):
        inside = defaultdict(list)
        for part in gx.fragments(explanation, "groups"):
            inside[part.name].append(part.relevance)
        for name, values in inside.items():
            found[name].append(float(np.mean(values)))
    return [np.array(values) for values in found.values() if len(values) >= OFTEN]


def students(values: NDArray[np.float64]) -> tuple[float, float]:
    tally = Tally()
    for place, value in enumerate(values):
        tally.add([(float(value), 1)], place, "")
    return tally.sums.interval


def resampled(values: NDArray[np.float64]) -> tuple[float, float]:
    interval = bootstrap(values)
    return interval.low, interval.high


def main() -> None:
    populations = relevance_by_group()
    print(f"{len(populations)} groups\n\n| n | Student's t | percentile bootstrap |\n|---|---|---|")
    rng = np.random.default_rng(0)
    for n in SIZES:
        held = []
        for population in populations:
            for _ in range(SAMPLES):
                sample, mean = rng.choice(population, n), population.mean()
                intervals = students(sample), resampled(sample)
                held.append([low <= mean <= high for low, high in intervals])
        print("| {} | {:.3f} | {:.3f} |".format(n, *np.mean(held, axis=0)))


if __name__ == "__main__":
    main()
