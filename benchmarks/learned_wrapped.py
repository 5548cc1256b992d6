"""Compare `learned`, fitted to a hybrid model, with `path_marginals` on validation graphs.

    python benchmarks/learned_wrapped.py gine-bace-0 --models runs/hybrids/models --graphs 400

The models are those of `hybrids.py train`. Graphs to fit to are drawn from a model's training part,
and graphs to measure from its validation part. The result is in `learned_explainer.md`.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hybrids import MODELS, RANKING, parts_of

import graphxai as gx
from gps import IMAGES, load_gps
from graphxai.datasets.mnist import load_mnist
from graphxai.datasets.molecules import load_bace
from graphxai.evaluation.statistics import bootstrap, compare_pairs
from graphxai.explainers import fit_explainer, get_explainer

SEED = 2027  # of the graphs drawn


def graphs_of(
    data: str, split: dict[str, list[int]], fitted: int, measured: int
) -> tuple[list[Any], dict[int, Any], dict[int, int]]:
    """Return graphs to fit to, graphs to measure, and the labels of the latter."""
    rng = np.random.default_rng(SEED)
    if data == "bace":
        graphs = load_bace()
        inputs = {k: graph.smiles for k, graph in enumerate(graphs)}
        labels = {k: int(graph.y[0, 0]) for k, graph in enumerate(graphs)}
        train = split["train"]
    else:
        images, digits = load_mnist(None, "train", limit=IMAGES)
        inputs, labels = dict(enumerate(images)), dict(enumerate(digits.tolist()))
        train = list(range(min(split["valid"])))
    chosen = rng.permutation(train)[:fitted].tolist()
    held_out = rng.permutation(split["valid"])[:measured].tolist()
    return (
        [inputs[k] for k in chosen],
        {k: inputs[k] for k in held_out},
        {k: labels[k] for k in held_out},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--models", type=Path, default=Path("runs/hybrids/models"))
    parser.add_argument("--graphs", type=int, default=1000, help="graphs to fit to")
    parser.add_argument("--measured", type=int, default=60, help="validation graphs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    kind, data, _ = parts_of(given.model)
    model, card = load_gps(given.models / given.model, data, kind)
    chosen, inputs, labels = graphs_of(data, card["split"], given.graphs, given.measured)
    begun = time.process_time()
    fitted = fit_explainer(model, chosen, progress=False)
    print(
        f"{given.model}: fitted in {time.process_time() - begun:.0f} s; {fitted.card['held_out']}"
    )
    methods = [get_explainer("learned", fitted=fitted), get_explainer("path_marginals")]
    report = gx.evaluate(
        model, inputs, methods, labels=labels, target="true", metrics=RANKING, progress=False
    )
    for metric in RANKING:
        values = report.values(metric)
        for method, of_graphs in values.items():
            print(f"{metric} {method}: {bootstrap(of_graphs)}")
        (c,) = compare_pairs(values, [("learned", "path_marginals")])
        print(f"{metric} learned minus path_marginals: {c.difference}, p {c.p:.2g}", flush=True)


if __name__ == "__main__":
    main()
