"""Explanations against known atoms: small Graphormers trained on rules, and strokes of digits.

    python benchmarks/ground_truth.py --out runs/ground-truth [--data FOLDER] [--rules indole rings]

Writes a run folder, `rows.csv` and `scores.json` for every rule and for the digits (what is there
already is not made again), then `tables.md`. FOLDER holds `molecules/*.csv` and `mnist/`.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from graphxai import load, methods
from graphxai.datasets.mnist import load_mnist
from graphxai.datasets.rule_molecules import local_smiles, rule_dataset
from graphxai.datasets.rules import RULES
from graphxai.datasets.strokes import stroke_pixels, stroke_segments
from graphxai.datasets.superpixels import image_to_data
from graphxai.evaluation.statistics import bootstrap, compare_pairs
from graphxai.evaluation.truth import evaluate_truth, model_score
from graphxai.models.graphormer import load_checkpoint
from graphxai.models.graphormer.recipes_rules import train_rule

DIGITS = "digits"
# Boron is left out: about 0.2 % of the molecules hold it, too few for training and test.
CHOSEN = ("indole", "halogen", "phosphorus", "large-ring", "rings", "pains", "logp")
# Hundreds of alerts, and odd rings, take more molecules and weights that know molecules already.
FROM_WEIGHTS = {"size": 6000, "start": "molecules"}
TRAINING: dict[str, dict[str, Any]] = {"pains": FROM_WEIGHTS, "large-ring": FROM_WEIGHTS}


def measure_rule(name: str, folder: Path, given: argparse.Namespace) -> None:
    """Train, explain the test molecules that have a truth, and store rows and the model's score."""
    smiles = local_smiles(given.data)
    options = {"size": given.size} | TRAINING.get(name, {})
    model = load_checkpoint(
        train_rule(
            folder / "run",
            name,
            molecules=smiles,
            seed=given.seed,
            resume=True,
            accelerator="cpu",
            progress=False,
            **options,
        )
    )
    dataset = rule_dataset(smiles, name, size=options["size"], seed=given.seed)
    test = list(dataset.split.test)
    own = model_score(model, [dataset.smiles[k] for k in test], dataset.labels[test])
    scored = dataset.scored(limit=given.limit)
    rows = evaluate_truth(
        model,
        [dataset.smiles[k] for k in scored],
        [dataset.truths[k] for k in scored],
        given.methods,
        progress=False,
    )
    scores = {
        "question": RULES[name].question,
        "model": own,
        "train": len(dataset.split.train),
        "test": len(test),
        "explained": len(scored),
        "share true": _mean_share([dataset.truths[k] for k in scored]),
    }
    store(folder, rows, scores)


def measure_digits(folder: Path, given: argparse.Namespace) -> None:
    """The bundled digit model on the first test images: superpixels, then pixels of the stroke."""
    model = load("mnist-superpixels")
    images, labels = load_mnist(given.data, "test", given.limit)
    graphs = [image_to_data(image) for image in images]
    nodes = [stroke_segments(i, g.segments[0].numpy()) for i, g in zip(images, graphs, strict=True)]
    rows = [
        evaluate_truth(model, graphs, truths, given.methods, progress=False)
        for truths in (nodes, [stroke_pixels(image) for image in images])
    ]
    scores = {
        "question": "Which digit is it?",
        "model": model_score(model, graphs, labels),
        "train": 9000,
        "test": len(labels),
        "explained": len(labels),
        "share true": _mean_share(nodes),
    }
    store(folder, pd.concat(rows, ignore_index=True), scores)


def _mean_share(truths: Sequence[np.ndarray]) -> float | None:
    """Mean share of true nodes; None for signed shares."""
    return None if truths[0].dtype != np.bool_ else float(np.mean([t.mean() for t in truths]))


def store(folder: Path, rows: pd.DataFrame, scores: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows.to_csv(folder / "rows.csv", index=False)
    (folder / "scores.json").write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")


def wide(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Graphs in rows, methods in columns, in the order in which the methods ran."""
    chosen = rows[rows.metric == metric]
    return chosen.pivot(index="graph", columns="method", values="value")[chosen.method.unique()]


def not_above_random(values: pd.DataFrame) -> set[str]:
    """Methods that are not better than random: Wilcoxon, paired, Holm over methods, 5 %."""
    complete = values.fillna(0.0)  # constant relevance has no correlation with anything
    arrays = {name: complete[name].to_numpy() for name in complete}
    tests = compare_pairs(arrays, [(name, "random") for name in arrays if name != "random"])
    return {t.first for t in tests if not (t.significant and t.difference.mean > 0)} | {"random"}


def detail(rows: pd.DataFrame) -> str:
    """Markdown: a row a method, a column a metric, mean and 95 % interval."""
    names = list(rows.metric.unique())
    lines = [f"| method | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for method in rows.method.unique():
        cells = []
        for name in names:
            values = rows[(rows.method == method) & (rows.metric == name)].value.dropna()
            lost = int((rows.method == method).sum() / len(names)) - len(values)
            shown = str(bootstrap(values.to_numpy())) if len(values) else "not defined"
            cells.append(shown + (f" ({lost} not defined)" if lost and len(values) else ""))
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def overview(found: dict[str, pd.DataFrame]) -> str:
    """Markdown: mean of the main metric by method and task; * where not better than random."""
    columns = {}
    for name, rows in found.items():
        values = wide(rows, "rank_correlation" if name == "logp" else "roc_auc")
        weak = not_above_random(values)
        columns[name] = {m: f"{values[m].mean():.3f}{'*' * (m in weak)}" for m in values}
    table = pd.DataFrame(columns)
    lines = [f"| method | {' | '.join(table.columns)} |", "|---" * (len(table.columns) + 1) + "|"]
    lines += [f"| `{m}` | {' | '.join(map(str, row))} |" for m, row in table.iterrows()]
    return "\n".join(lines) + "\n"


def describe(scores: dict[str, dict[str, Any]]) -> str:
    """Markdown: a row a task, with the model's own score and how much is true."""
    lines = [
        "| task | question | training graphs | model on n test graphs | explained | true nodes |",
        "|---|---|---|---|---|---|",
    ]
    for name, s in scores.items():
        share = "signed shares" if s["share true"] is None else f"{s['share true']:.0%}"
        lines.append(
            f"| {name} | {s['question']} | {s['train']:,} | {s['model'][0]} {s['model'][1]:.3f}"
            f" (n = {s['test']}) | {s['explained']} | {share} |"
        )
    return "\n".join(lines) + "\n"


def report(out: Path, names: Sequence[str]) -> str:
    rows = {name: pd.read_csv(out / name / "rows.csv") for name in names}
    scores = {name: json.loads((out / name / "scores.json").read_text()) for name in names}
    parts = [describe(scores), overview(rows)]
    for name in names:
        parts.append(f"### {name}, n = {scores[name]['explained']}\n\n{detail(rows[name])}")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rules", nargs="*", default=[*CHOSEN, DIGITS])
    parser.add_argument("--methods", nargs="*", default=list(methods()))
    parser.add_argument("--size", type=int, default=4000, help="molecules of a rule in all")
    parser.add_argument("--limit", type=int, default=100, help="graphs explained a task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for name in given.rules:
        folder = given.out / name
        if not (folder / "scores.json").exists():
            measure = measure_digits if name == DIGITS else measure_rule
            measure(*([folder, given] if name == DIGITS else [name, folder, given]))
        print(name, (folder / "scores.json").read_text(), flush=True)
    text = report(given.out, given.rules)
    (given.out / "tables.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
