"""Compare `path_marginals` at one end and at both ends of the order on validation graphs.

    python benchmarks/both_ends.py bace mnist-superpixels bace-0 --models runs/faithfulness/models

`bace-0` and the like are those of `faithfulness.py train`. The variant was chosen on validation
graphs of four models, which are left out. The result is in `faithfulness.md`.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from faithfulness import named, shapley

import graphxai as gx
from graphxai.datasets.mnist import load_mnist
from graphxai.evaluation.sources import BenchmarkSource, bace_part
from graphxai.evaluation.statistics import bootstrap, compare_pairs
from graphxai.evaluation.store import Key
from graphxai.explainers import get_explainer
from graphxai.explanation.compute.models import Model

CHOSEN_ON = {
    "bace": 70,
    "bace-0": 40,
    "bace-1": 40,
    "mnist-superpixels": 10,
}  # graphs, drawn with the seed
SEED = 46
METRICS = ("auac", "srg")
FIRST, BOTH, SHAPLEY = "path_marginals", "path_marginals, both ends", "shapley 32/0"


def source_of(name: str, model: Model, graphs: int) -> BenchmarkSource:
    """Return validation graphs of a model, without those on which the variant was chosen."""
    if "mnist" in name:
        images, digits = load_mnist(None, "train", limit=10_000)
        keys = range(9_000, 10_000)
        labels: dict[Key, Any] = {k: int(digits[k]) for k in keys}
        source = BenchmarkSource("MNIST, validation", {k: images[k] for k in keys}, labels)
    else:
        source = bace_part(model, "valid")
    seen = source.sample(CHOSEN_ON[name], seed=SEED).inputs if name in CHOSEN_ON else {}
    unseen = {key: graph for key, graph in source.inputs.items() if key not in seen}
    return BenchmarkSource(source.title, unseen, source.labels).sample(graphs, seed=SEED)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="+", metavar="MODEL")
    parser.add_argument("--models", type=Path, default=Path("runs/faithfulness/models"))
    parser.add_argument("--graphs", type=int, default=80, help="of each model")
    given = parser.parse_args()
    torch.set_num_threads(1)
    methods = [get_explainer(FIRST), named(BOTH, FIRST, ends="both"), shapley(32, 0)]
    print("| model | graphs | method | AUAC | SRG |\n|---|---|---|---|---|")
    for name in given.names:
        folder = given.models / name / "model"
        model = gx.load(folder if folder.exists() else name)
        source = source_of(name, model, given.graphs)
        report = gx.evaluate(
            model, source.inputs, methods, labels=source.labels, target="true", metrics=METRICS,
            progress=False,
        )  # fmt: skip
        values = {metric: report.values(metric) for metric in METRICS}
        for method in (FIRST, BOTH, SHAPLEY):
            means = " | ".join(str(bootstrap(values[metric][method])) for metric in METRICS)
            print(f"| {name} | {len(source.inputs)} | {method} | {means} |")
        for other in (FIRST, SHAPLEY):
            compared = [compare_pairs(values[metric], [(BOTH, other)])[0] for metric in METRICS]
            cells = " | ".join(f"{c.difference}, p {c.p:.2g}" for c in compared)
            print(f"| {name} | | both ends minus {other} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
