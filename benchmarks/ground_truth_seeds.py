"""Compare methods where the true atoms are known, over several models of the same rules.

    python benchmarks/ground_truth_seeds.py --out runs/ground-truth-seeds [--data FOLDER]

Each seed draws and splits its own molecules, and trains a small Graphormer from scratch on the
rules together. With `--balanced` each rare rule has models of its own. Test molecules that a model
answers correctly are explained. Intervals are bootstrapped over models, and over molecules within
each of them. Tests are paired over molecules, with Holm's correction over all methods of a rule.
FOLDER contains `molecules/*.csv`. Results that exist are not
computed again.
"""

import argparse
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from balanced_rules import balanced_table, labelled
from graphxai.datasets.rule_molecules import local_smiles
from graphxai.datasets.rule_tables import RuleTable, rule_table
from graphxai.datasets.rules import RULES
from graphxai.evaluation.ground_truth_report import ROWS, SCORES
from graphxai.evaluation.statistics import compare_pairs
from graphxai.learning.recipes.rules import train_rules
from ground_truth_tasks import benchmark_rules

METHODS = ("lrp", "lrp_path", "path_marginals", "attn_lrp", "gradient_input", "random")
REFERENCE = "lrp"  # the default method, with which the others are compared
DRAWS = 2000
RARE = ("boron", "pains", "large-ring")
BATCH = 32


def measured(name: str, seed: int, given: argparse.Namespace) -> pd.DataFrame:
    """Return the rows of a rule for the model of one seed."""
    folder = folder_of(name, seed, given)
    if not (folder / name / SCORES).exists():
        table, epochs = molecules(name, seed, given)
        if not (folder / "run" / "model").exists():
            settings: dict[str, Any] = {"seed": seed, "epochs": epochs, "accelerator": "cpu"}
            train_rules(folder / "run", table, init_weights=given.init, resume=True, **settings)
        limits = {"limit": given.limit, "limit_nothing": 0, "seed": seed}
        names = [rule.name for rule in table.rules]
        benchmark_rules(folder, table, given.methods, names, **limits)
    return pd.read_csv(folder / name / ROWS).assign(task=name, seed=seed)


def folder_of(name: str, seed: int, given: argparse.Namespace) -> Path:
    """Return the folder of a model: that of one rule, or of all rules together."""
    return given.out / name / str(seed) if given.balanced else given.out / str(seed)


def molecules(name: str, seed: int, given: argparse.Namespace) -> tuple[RuleTable, int]:
    """Return the molecules of a model with their labels, and for how many epochs it learns them."""
    if given.balanced:
        labels = labelled(given.data, RARE, given.out / "labels.csv")
        table = balanced_table(labels, name, given.size, seed)
        return table, math.ceil(given.steps * BATCH / len(table.split.train))
    # labelling all molecules would take longer than training
    drawn = random.Random(seed).sample(local_smiles(given.data), 6 * given.size)
    return rule_table(drawn, given.rules, size=given.size, seed=seed), given.epochs


def by_method(rows: pd.DataFrame, name: str) -> dict[str, list[NDArray[np.float64]]]:
    """Return the values of each method on a rule's molecules, an array for each model."""
    metric = "rank_correlation" if RULES[name].kind == "additive" else "roc_auc"
    chosen = rows[(rows.task == name) & (rows.metric == metric)]
    values: dict[str, list[NDArray[np.float64]]] = {}
    for _, of_model in chosen.groupby("seed"):
        wide = of_model.pivot(index="graph", columns="method", values="value").dropna()
        for method in wide.columns:
            values.setdefault(method, []).append(wide[method].to_numpy())
    return values


def interval(of_models: list[NDArray[np.float64]]) -> str:
    """Return the mean over models, with its 95 % interval over models and their molecules."""
    rng = np.random.default_rng(0)
    means = []
    for _ in range(DRAWS):
        drawn = rng.integers(len(of_models), size=len(of_models))
        means.append(np.mean([rng.choice(of_models[k], len(of_models[k])).mean() for k in drawn]))
    low, high = np.percentile(means, [2.5, 97.5])
    return f"{np.mean([v.mean() for v in of_models]):.3f} [{low:.3f}, {high:.3f}]"


def column(rows: pd.DataFrame, name: str, given: argparse.Namespace) -> list[str]:
    """Return the cells of a rule: molecules, scores of the models, and those of each method."""
    values = by_method(rows, name)
    count = sum(len(of_model) for of_model in values[REFERENCE])
    files = [folder_of(name, seed, given) / name / SCORES for seed in given.seeds]
    scores = [json.loads(path.read_text())["model"] for path in files]
    shown = f"{scores[0][0]} {', '.join(f'{score:.3f}' for _, score in scores)}"
    joined = {method: np.concatenate(of_models) for method, of_models in values.items()}
    pairs = [(method, REFERENCE) for method in given.methods if method != REFERENCE]
    signs = {
        c.first: " +" if c.difference.mean > 0 else " -"
        for c in compare_pairs(joined, pairs)
        if c.significant
    }
    return [
        str(count),
        shown,
        *(interval(values[method]) + signs.get(method, "") for method in given.methods),
    ]


def table(rows: pd.DataFrame, given: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the page's table."""
    columns = [column(rows, name, given) for name in given.rules]
    yield f"| | {' | '.join(given.rules)} |"
    yield "|---" * (len(columns) + 1) + "|"
    heads = ["molecules", "models' score", *(f"`{method}`" for method in given.methods)]
    for head, *cells in zip(heads, *columns, strict=True):
        yield f"| {head} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument(
        "--rules", nargs="+", choices=list(RULES), default=["halogen", "indole", "rings"]
    )
    parser.add_argument(
        "--balanced",
        action="store_true",
        help="a model for each rule, and as many positives as there are",
    )
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--size", type=int, default=2500, help="molecules of each model")
    parser.add_argument("--epochs", type=int, default=12, help="unless --balanced decides")
    parser.add_argument("--steps", type=int, default=2500, help="of training, with --balanced")
    parser.add_argument("--init", help="weights to start from, such as molecules")
    parser.add_argument("--limit", type=int, default=50, help="molecules of a rule and model")
    given = parser.parse_args()
    if given.balanced and not set(given.rules) <= set(RARE):
        parser.error(f"--balanced is for {', '.join(RARE)}.")
    torch.set_num_threads(1)
    rows = pd.concat([measured(name, seed, given) for name in given.rules for seed in given.seeds])
    print("\n".join(table(rows, given)))


if __name__ == "__main__":
    main()
