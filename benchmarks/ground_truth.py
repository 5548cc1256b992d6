"""Score explanations where the truth is known: rules about molecules, planted shapes, digits.

    python benchmarks/ground_truth.py --out runs/ground-truth [--data FOLDER]
        [--groups shapes rules digits] [--methods lrp learned ...]

One Graphormer learns all rules on 20,000 molecules, another learns planted shapes, and the bundled
model reads the digits. Every group gets a folder with `rows.csv` and `scores.json` for every task.
These give the files that `ground_truth.md` links (`shapes.csv`, `rules.csv`, `digits.csv` and
`tasks.csv`) and its table, which is printed. Results that exist are not computed again. FOLDER
contains `molecules/*.csv` and `mnist/`.

If the method `learned` is named, it is fitted to each rule separately. The bundled one explains the
digits, and none explains the shapes.
"""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

from graphxai import fit_explainer, load, methods
from graphxai.datasets.mnist import load_mnist
from graphxai.datasets.rule_molecules import RuleTable, local_smiles, read_rule_table, rule_table
from graphxai.datasets.rules import RULES
from graphxai.datasets.shapes import SHAPES
from graphxai.datasets.superpixels import image_to_data
from graphxai.evaluation.ground_truth import evaluate_truth, model_score
from graphxai.evaluation.ground_truth_report import SCORES, mean_share, store
from graphxai.explainers import Explainer, get_explainer
from graphxai.models.graphormer import load_checkpoint
from ground_truth_tables import main_table, write_group
from ground_truth_tasks import (
    benchmark_rules,
    benchmark_shapes,
    stroke_pixels,
    stroke_segments,
)

FITTED_TO = 150  # training molecules with each answer that `learned` is fitted to
TASKS = {"shapes": list(SHAPES), "rules": list(RULES), "digits": ["digits"]}


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


def molecules(path: Path, given: argparse.Namespace) -> RuleTable:
    """Read the molecules with their labels. The first call makes them, which takes minutes."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        rule_table(local_smiles(given.data), size=given.size, seed=given.seed).save(path)
    return read_rule_table(path)


def measure_rules(folder: Path, table: RuleTable, given: argparse.Namespace) -> None:
    """Score the rules, and `learned` after it was fitted to each of them."""
    common = {"limit": given.limit, "limit_nothing": given.nothing, "seed": given.seed}
    plain = without_learned(given.methods)
    if plain == given.methods:
        benchmark_rules(folder, table, plain, given.rules, **common)
        return
    benchmark_rules(folder, table, plain, [], **common)  # trains the model
    for name in given.rules:
        if not (folder / name / SCORES).exists():
            chosen = given.methods if RULES[name].kind == "presence" else plain
            fitted = [fitted_to(folder, table, name) if m == "learned" else m for m in chosen]
            benchmark_rules(folder, table, fitted, [name], **common)


def without_learned(names: Sequence[str]) -> list[str]:
    """Return the methods that need no fitting to a rule."""
    return [name for name in names if name != "learned"]


def fitted_to(folder: Path, table: RuleTable, name: str) -> Explainer:
    """Return `learned`, fitted to training molecules of a rule."""
    rng, labels, chosen = random.Random(name), table.of(name), list[str]()
    for side in (0, 1):
        among = [table.smiles[k] for k in table.split.train if labels[k] == side]
        chosen += rng.sample(among, min(FITTED_TO, len(among)))
    fitted = fit_explainer(load_checkpoint(folder / "run" / "model"), chosen, task=name)
    return get_explainer("learned", fitted=fitted)


def main() -> None:
    unfitted = [name for name, cls in methods().items() if cls.traits.explains_any_model]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--groups", nargs="*", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--rules", nargs="*", choices=list(RULES), default=list(RULES))
    parser.add_argument("--methods", nargs="*", default=unfitted)
    parser.add_argument("--size", type=int, default=20_000, help="number of molecules")
    parser.add_argument("--limit", type=int, default=100, help="graphs explained per task")
    parser.add_argument("--nothing", type=int, default=50, help="graphs where nothing is true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    common = {"limit": given.limit, "limit_nothing": given.nothing, "seed": given.seed}
    tasks = []
    for group in given.groups:
        folder, names = given.out / group, TASKS[group]
        if group == "shapes":
            benchmark_shapes(folder, without_learned(given.methods), **common)
        elif group == "rules":
            names = given.rules
            measure_rules(folder, molecules(folder / "molecules.csv", given), given)
        else:
            measure_digits(folder / "digits", given)
        tasks += write_group(folder, names, given.out / f"{group}.csv")
    pd.DataFrame(tasks).to_csv(given.out / "tasks.csv", index=False)
    print(main_table(given.out))


if __name__ == "__main__":
    main()
