"""Explanations against known atoms: small Graphormers trained on rules, and strokes of digits.

    python benchmarks/ground_truth.py --out runs/ground-truth [--data FOLDER] [--rules indole rings]

Writes a run folder, `rows.csv` and `scores.json` for every rule and for the digits, then
`tables.md`. Existing results are not computed again. FOLDER contains `molecules/*.csv` and
`mnist/`.
"""

import argparse
from pathlib import Path

import pandas as pd
import torch

from graphxai import load, methods
from graphxai.datasets.mnist import load_mnist
from graphxai.datasets.superpixels import image_to_data, stroke_pixels, stroke_segments
from graphxai.evaluation.ground_truth import evaluate_truth, model_score
from graphxai.evaluation.ground_truth_report import (
    SCORES,
    benchmark_rule,
    mean_share,
    store,
    tables,
)

DIGITS = "digits"
# Boron is left out: only about 0.2 % of the molecules contain it, too few for training and test.
CHOSEN = ("indole", "halogen", "phosphorus", "large-ring", "rings", "pains", "logp")


def measure_digits(folder: Path, given: argparse.Namespace) -> None:
    """Score the bundled digit model on the first test images: superpixels, then stroke pixels."""
    if (folder / SCORES).exists():
        return
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
        "share true": mean_share(nodes),
    }
    store(folder, pd.concat(rows, ignore_index=True), scores)


def main() -> None:
    unfitted = [name for name, cls in methods().items() if not cls.needs_fit]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rules", nargs="*", default=[*CHOSEN, DIGITS])
    parser.add_argument("--methods", nargs="*", default=unfitted)
    parser.add_argument("--size", type=int, help="total number of molecules per rule")
    parser.add_argument("--limit", type=int, default=100, help="graphs explained per task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for name in given.rules:
        folder = given.out / name
        if name == DIGITS:
            measure_digits(folder, given)
        else:
            options = {"data": given.data, "limit": given.limit, "seed": given.seed}
            benchmark_rule(name, folder, given.methods, size=given.size, **options)
        print(name, (folder / "scores.json").read_text(), flush=True)
    text = tables(given.out, given.rules)
    (given.out / "tables.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
