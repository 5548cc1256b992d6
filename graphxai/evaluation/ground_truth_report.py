"""Score explanations against the atoms that a rule names, and write tables."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rdkit import Chem

from graphxai.datasets.rules import get_rule
from graphxai.explainers import REGISTRY
from graphxai.explainers.registry import Method
from graphxai.explanation.files import write_csv
from graphxai.models.graphormer import Graphormer
from graphxai.runtime.writing import folder_at, markdown_table, write_whole

from .ground_truth import evaluate_bonds, evaluate_nothing, evaluate_truth
from .output import milliseconds
from .statistics import bootstrap, compare_pairs

ROWS, SCORES = "rows.csv", "scores.json"
COSTS = ("ms", "passes")  # of an explanation
FURTHER = {
    "Mean ROC-AUC of the bonds": "bond_roc_auc",
    "False positives among the nodes where nothing is true": "false_positives",
    "False positives among the bonds where nothing is true": "bond_false_positives",
}
FEWER_IS_BETTER = ("false_positives", "bond_false_positives")


def measure(
    model: Graphormer,
    inputs: Sequence[Any],
    truths: Sequence[np.ndarray],
    methods: Sequence[Method],
    bonds: Sequence[tuple[np.ndarray, np.ndarray]] | None,
    nothing: Sequence[Any],
    ends: Sequence[np.ndarray] | None = None,
    *,
    target: Any = None,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Return the rows of a task, for inputs with a truth and inputs in which nothing is true.

    Args:
        truths: the truths of these inputs, see `evaluate_truth`.
        bonds: for each of `inputs`, the ends (M, 2) of its bonds and which bonds are true (M,).
        ends: for each of `nothing`, the ends (M, 2) of its bonds. If they are given, methods that
            only explain bonds are measured too.
    """
    options = {"target": target, "bonds": bonds, "progress": progress}
    rows = [evaluate_truth(model, inputs, truths, methods, **options)]
    if nothing:
        rows.append(evaluate_nothing(model, nothing, methods, target=target, ends=ends))
    if bonds is not None and ends is not None:
        rows.append(evaluate_bonds(model, inputs, bonds, target=target))
        no_true_bond = [(pairs, np.zeros(len(pairs), dtype=bool)) for pairs in ends]
        rows.append(evaluate_bonds(model, nothing, no_true_bond, target=target))
    joined = pd.concat(rows, ignore_index=True)
    joined.attrs["seconds"] = rows[0].attrs["seconds"]
    return joined


def rule_bonds(rule: str, smiles: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends (M, 2) of a molecule's bonds, and which of them are true (M,)."""
    mol = Chem.MolFromSmiles(smiles)
    ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in mol.GetBonds()]
    return np.array(ends, dtype=int).reshape(-1, 2), get_rule(rule).true_bonds(mol)


def mean_share(truths: Sequence[np.ndarray]) -> float | None:
    """Return the mean share of true nodes, or None if the truth consists of signed shares."""
    return None if truths[0].dtype != np.bool_ else float(np.mean([t.mean() for t in truths]))


def store(folder: Path, rows: pd.DataFrame, scores: dict[str, Any]) -> None:
    """Write the rows and scores of a task. The scores come last, as a sign that it is done."""
    write_csv(rows, folder_at(folder) / ROWS, index=False)
    write_whole(folder / SCORES, json.dumps(scores, indent=1) + "\n")


def wide(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a row per graph and a column per method, in the order in which the methods ran."""
    chosen = rows[rows.metric == metric]
    return chosen.pivot(index="graph", columns="method", values="value")[chosen.method.unique()]


def not_above_random(values: pd.DataFrame) -> set[str]:
    """Return the methods that are not better than random (paired Wilcoxon test, Holm, 5 %)."""
    complete = values.fillna(0.0)  # constant relevance has no correlation, which counts as zero
    arrays = {name: complete[name].to_numpy() for name in complete}
    tests = compare_pairs(arrays, [(name, "random") for name in arrays if name != "random"])
    return {t.first for t in tests if not (t.significant and t.difference.mean > 0)} | {"random"}


def detail(rows: pd.DataFrame, seconds: Mapping[str, float] | None = None) -> str:
    """Return a Markdown table of means with 95 % intervals, with a row per method.

    Given the seconds of an explanation by method, it has columns of milliseconds and passes.
    """
    names = list(rows.metric.unique())
    lines = []
    for method in rows.method.unique():
        cells = []
        for name in names:
            every = rows[(rows.method == method) & (rows.metric == name)].value
            values = every.dropna()
            lost = len(every) - len(values)
            shown = str(bootstrap(values.to_numpy())) if len(values) else "not defined"
            cells.append(shown + (f" ({lost} not defined)" if lost and len(values) else ""))
        if seconds:
            registered = REGISTRY.get(method.partition(" (")[0])
            time = milliseconds(seconds.get(method, float("nan")))
            cells += [time, registered.traits.cost if registered else ""]
        lines.append([f"`{method}`", *cells])
    head = ["method", *names, *COSTS[: 2 * bool(seconds)]]
    return markdown_table([head, *lines]) + "\n"


def overview(tasks: dict[str, pd.DataFrame], metric: str = "roc_auc") -> str:
    """Return a Markdown table of a metric's means by method and task.

    A * marks a mean that is not better than random. False positives have no marks, because fewer
    are better. The task `logp` has Spearman's correlation in place of "roc_auc".
    """
    columns = {}
    for name, rows in tasks.items():
        shown = "rank_correlation" if name == "logp" and metric == "roc_auc" else metric
        if shown not in set(rows.metric):
            continue
        values = wide(rows, shown)
        weak = set() if metric in FEWER_IS_BETTER else not_above_random(values)
        columns[name] = {m: f"{values[m].mean():.3f}{'*' * (m in weak)}" for m in values}
    if not columns:
        return ""
    table = pd.DataFrame(columns).fillna("")
    lines = [[f"`{m}`", *map(str, row)] for m, row in table.iterrows()]
    return markdown_table([["method", *table.columns], *lines]) + "\n"


def describe(scores: dict[str, dict[str, Any]]) -> str:
    """Return a Markdown table of tasks, with the model's score and the share of true nodes."""
    head = ("task", "question", "training graphs", "model on n test graphs", "explained")
    lines = []
    for name, s in scores.items():
        share = "signed shares" if s["share true"] is None else f"{s['share true']:.0%}"
        score = f"{s['model'][0]} {s['model'][1]:.3f} (n = {s['test']:,})"
        lines.append((name, s["question"], f"{s['train']:,}", score, str(s["explained"]), share))
    return markdown_table([(*head, "true nodes"), *lines]) + "\n"


def tables(out: Path, names: Sequence[str]) -> str:
    """Return Markdown for the tasks stored in `out`, with models, an overview, and every metric."""
    rows = {name: pd.read_csv(out / name / ROWS) for name in names}
    scores = {name: json.loads((out / name / SCORES).read_text()) for name in names}
    parts = [describe(scores), overview(rows)]
    for title, metric in FURTHER.items():
        if shown := overview(rows, metric):
            parts.append(f"## {title}\n\n{shown}")
    for name in names:
        of = scores[name]
        text = detail(rows[name], of.get("seconds"))
        parts.append(f"### {name}, n = {of['explained']}\n\n{text}")
    return "\n".join(parts)
