"""Is the learned explainer more faithful than what it starts from? Fit it, measure on other graphs.

    python benchmarks/learned_explainer.py fit --teacher path_marginals  # or shapley_sampling
    python benchmarks/learned_explainer.py measure

`fit` learns from training graphs of each bundled model and writes to `runs/learned/TEACHER/MODEL`
(`--out`). `measure` compares all explainers that it finds there with methods that need no fitting,
on validation graphs, and prints tables.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import graphxai as gx
from graphxai.datasets.mnist import load_mnist
from graphxai.datasets.molecules import load_bace
from graphxai.evaluation.sources import Source
from graphxai.evaluation.statistics import bootstrap, compare_pairs
from graphxai.explainers import Explainer, fit_explainer, get_explainer

MEASURES = ("auac", "au_mse", "srg")
MODELS = {"bace": 60, "mnist-superpixels": 24}  # validation graphs measured
FITTED_ON = 1100  # graphs, of which a hundred are held out
ORDERS = 32
SEED = 2027  # of the graphs drawn


def part_of(name: str, part: str) -> Source:
    """Return the graphs of the bundled model's own training ("train") or validation ("valid")."""
    if name == "bace":
        graphs = load_bace()
        keys = gx.load(name).origin.metadata["split"][part]
        labels = {k: int(graphs[k].y[0, 0]) for k in keys}
        return Source(f"BACE, {part}", {k: graphs[k].smiles for k in keys}, labels)
    images, digits = load_mnist(None, "train", limit=10_000)
    keys = range(9_000) if part == "train" else range(9_000, 10_000)
    return Source(f"MNIST, {part}", {k: images[k] for k in keys}, {k: int(digits[k]) for k in keys})


def fit(name: str, teacher: str, out: Path, limit: int, epochs: int) -> None:
    source = part_of(name, "train").sample(limit, seed=SEED)
    fitted = fit_explainer(
        gx.load(name),
        source.inputs.values(),
        shapley_orders=ORDERS if teacher == "shapley_sampling" else None,
        epochs=epochs,
        data=f"{source.title} part of the model's data, {len(source.inputs)} drawn, seed {SEED}",
    )
    fitted.save(out / teacher / name)
    print(name, json.dumps(fitted.card, indent=1), flush=True)


def named(name: str, method: str, **options: Any) -> Explainer:
    explainer = get_explainer(method, **options)
    explainer.name = name  # type: ignore[misc]
    return explainer


def measure(name: str, out: Path) -> None:
    model, source = gx.load(name), part_of(name, "valid").sample(MODELS[name], seed=SEED)
    fitted = {path.parent.name: path for path in sorted(out.glob(f"*/{name}"))}
    methods = [named(f"learned, taught by {k}", "learned", fitted=v) for k, v in fitted.items()]
    methods += [get_explainer("lrp"), get_explainer("lrp_path")]
    methods.append(named("path_marginals 16", "path_marginals"))
    methods.append(named("shapley 8", "shapley_sampling"))
    report = gx.evaluate(
        model,
        source.inputs,
        methods,
        labels=source.labels,
        target="true",
        metrics=MEASURES,
    )
    values = {metric: report.values(metric, "mask") for metric in MEASURES}
    print(f"\n## {source.title}, {len(source.inputs)} graphs\n")
    print(f"| method | {' | '.join(MEASURES)} |{chr(10)}{'|---' * (len(MEASURES) + 1)}|")
    for method in sorted(values["auac"], key=lambda one: -np.mean(values["auac"][one])):
        cells = [str(bootstrap(values[metric][method])) for metric in MEASURES]
        print(f"| {method} | {' | '.join(cells)} |")
    print("\n| learned | minus | measure | difference [95 %] | p |\n|---|---|---|---|---|")
    for one in methods[: len(fitted)]:
        for other in ("lrp", "lrp_path", "path_marginals 16", "shapley 8"):
            for metric in MEASURES:
                (c,) = compare_pairs(values[metric], [(one.name, other)])
                print(f"| {one.name} | {other} | {metric} | {c.difference} | {c.p:.2g} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=("fit", "measure"))
    parser.add_argument("--teacher", default="path_marginals")
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=Path("runs/learned"))
    parser.add_argument("--limit", type=int, default=FITTED_ON)
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()
    for one in [args.only] if args.only else MODELS:
        if args.stage == "fit":
            fit(one, args.teacher, args.out, args.limit, args.epochs)
        else:
            measure(one, args.out)
