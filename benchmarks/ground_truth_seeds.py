"""Compare methods where the true atoms are known, over several models of the same rules.

    python benchmarks/ground_truth_seeds.py --out runs/ground-truth-seeds [--data FOLDER]

Each seed draws and splits its own molecules, and trains a small Graphormer from scratch on the
rules. Test molecules that it answers correctly are explained. Intervals are bootstrapped over
models, and over molecules within each of them. Tests are paired over molecules, with Holm's
correction over all methods of a rule. FOLDER contains `molecules/*.csv`. Results that exist are not
computed again.
"""

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from graphxai.datasets.rule_molecules import local_smiles
from graphxai.datasets.rule_tables import rule_table
from graphxai.datasets.rules import RULES
from graphxai.evaluation.ground_truth_report import ROWS, SCORES
from graphxai.evaluation.statistics import compare_pairs
from graphxai.learning.recipes.rules import train_rules
from ground_truth_tasks import benchmark_rules

METHODS = ("lrp", "lrp_path", "path_marginals", "attn_lrp", "gradient_input", "random")
REFERENCE = "lrp"  # the default method, with which the others are compared
DRAWS = 2000


def measured(out: Path, seed: int, given: argparse.Namespace) -> pd.DataFrame:
    """Return the rows of all rules for the model of one seed."""
    folder = out / str(seed)
    names = given.rules
    if not all((folder / name / SCORES).exists() for name in names):
        # labelling all molecules would take longer than training
        drawn = random.Random(seed).sample(local_smiles(given.data), 6 * given.size)
        table = rule_table(drawn, names, size=given.size, seed=seed)
        if not (folder / "run" / "model").exists():
            settings = {"seed": seed, "epochs": given.epochs, "accelerator": "cpu"}
            train_rules(folder / "run", table, init_weights=None, resume=True, **settings)
        limits = {"limit": given.limit, "limit_nothing": 0, "seed": seed}
        benchmark_rules(folder, table, METHODS, names, **limits)
    parts = [pd.read_csv(folder / name / ROWS).assign(task=name, seed=seed) for name in names]
    return pd.concat(parts, ignore_index=True)


def by_method(rows: pd.DataFrame, name: str) -> dict[str, list[NDArray[np.float64]]]:
    """Return the values of each method on a rule's molecules, an array for each model."""
    metric = "rank_correlation" if RULES[name].kind == "additive" else "roc_auc"
    chosen = rows[(rows.task == name) & (rows.metric == metric)]
    values: dict[str, list[NDArray[np.float64]]] = {}
    for _, of_model in chosen.groupby("seed"):
        wide = of_model.pivot(index="graph", columns="method", values="value").dropna()
        for method in METHODS:
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


def table(rows: pd.DataFrame, out: Path, names: list[str], seeds: list[int]) -> Iterator[str]:
    """Yield the lines of the page's table."""
    yield f"| rule | molecules | models' score | {' | '.join(f'`{m}`' for m in METHODS)} |"
    yield "|---" * (len(METHODS) + 3) + "|"
    for name in names:
        values = by_method(rows, name)
        count = sum(len(of_model) for of_model in values[REFERENCE])
        scores = [json.loads((out / str(s) / name / SCORES).read_text())["model"] for s in seeds]
        shown = f"{scores[0][0]} {', '.join(f'{score:.3f}' for _, score in scores)}"
        joined = {method: np.concatenate(of_models) for method, of_models in values.items()}
        pairs = [(method, REFERENCE) for method in METHODS if method != REFERENCE]
        p = {c.first: c for c in compare_pairs(joined, pairs)}
        cells = []
        for method in METHODS:
            c = p.get(method)
            sign = (
                "" if c is None or not c.significant else (" +" if c.difference.mean > 0 else " -")
            )
            cells.append(interval(values[method]) + sign)
        yield f"| {name} | {count} | {shown} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument(
        "--rules", nargs="+", choices=list(RULES), default=["halogen", "indole", "rings"]
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--size", type=int, default=2500, help="molecules of each model")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--limit", type=int, default=50, help="molecules of a rule and model")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = pd.concat([measured(given.out, seed, given) for seed in given.seeds])
    print("\n".join(table(rows, given.out, given.rules, given.seeds)))


if __name__ == "__main__":
    main()
