"""Benchmarks with a known truth: train on a rule, explain, score, and write tables."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rdkit import Chem

from graphxai.datasets.rule_molecules import local_smiles, rule_dataset
from graphxai.datasets.rules import RULES
from graphxai.datasets.writing import write_whole
from graphxai.explainers.registry import Method
from graphxai.explanation.files import write_csv
from graphxai.models.graphormer import load_checkpoint

from .ground_truth import evaluate_nothing, evaluate_truth, model_score
from .statistics import bootstrap, compare_pairs

# Hundreds of alerts and odd rings need more molecules, and weights pretrained on molecules.
FROM_WEIGHTS: dict[str, Any] = {"size": 6000, "start": "molecules"}
TRAINING: dict[str, dict[str, Any]] = {"pains": FROM_WEIGHTS, "large-ring": FROM_WEIGHTS}
ROWS, SCORES = "rows.csv", "scores.json"


def benchmark_rule(
    name: str,
    folder: Path,
    methods: Sequence[Method],
    *,
    molecules: Sequence[str] | None = None,
    data: str | Path | None = None,
    size: int | None = None,
    limit: int | None = 100,
    seed: int = 0,
    progress: bool | None = None,
) -> None:
    """Train on a rule, explain the test molecules that have a truth, store rows and scores.

    Bonds are scored as well as atoms, and as many test molecules in which nothing is true are
    explained, whose outstanding atoms are false positives.

    molecules: SMILES to choose from; None takes the tables in the data folder. size: total number
    of molecules; None takes the rule's default. limit: explain at most this many. Results that are
    already in `folder` are not computed again.
    """
    from graphxai.models.graphormer.recipes.rules import train_rule

    if (folder / SCORES).exists():
        return
    smiles = list(local_smiles(data) if molecules is None else molecules)
    options = {"size": 4000} | TRAINING.get(name, {})
    if size is not None:
        options["size"] = size
    run = folder / "run"
    checkpoint = train_rule(
        run,
        name,
        molecules=smiles,
        seed=seed,
        resume=True,
        accelerator="cpu",
        progress=bool(progress),
        **options,
    )
    model = load_checkpoint(checkpoint)
    dataset = rule_dataset(smiles, name, size=options["size"], seed=seed)
    test = list(dataset.split.test)
    own = model_score(model, [dataset.smiles[k] for k in test], dataset.labels[test])
    scored = dataset.scored(limit=limit)
    if not scored:
        raise ValueError(f"no test molecule has true atoms under rule {name!r}; give more.")
    truths = [dataset.truths[k] for k in scored]
    explained = [dataset.smiles[k] for k in scored]
    bonds = [_bonds(name, text) for text in explained] if RULES[name].groups is not None else []
    some = bonds if any(true.any() for _, true in bonds) else None  # none where atoms are halogens
    rows = evaluate_truth(model, explained, truths, methods, bonds=some, progress=progress)
    nothing = [dataset.smiles[k] for k in test if dataset.truths[k].dtype == bool
               and not dataset.truths[k].any()][:limit]  # fmt: skip
    if nothing:
        false = evaluate_nothing(model, nothing, methods)
        rows = pd.concat([rows, false], ignore_index=True)
    scores = {
        "question": RULES[name].question,
        "model": own,
        "train": len(dataset.split.train),
        "test": len(test),
        "explained": len(scored),
        "share true": mean_share(truths),
    }
    store(folder, rows, scores)


def _bonds(rule: str, smiles: str) -> tuple[np.ndarray, np.ndarray]:
    """The ends (M, 2) of a molecule's bonds, and which of them are true (M,)."""
    mol = Chem.MolFromSmiles(smiles)
    ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in mol.GetBonds()]
    return np.array(ends, dtype=int).reshape(-1, 2), RULES[rule].true_bonds(mol)


def mean_share(truths: Sequence[np.ndarray]) -> float | None:
    """Mean share of true nodes; None for signed shares."""
    return None if truths[0].dtype != np.bool_ else float(np.mean([t.mean() for t in truths]))


def store(folder: Path, rows: pd.DataFrame, scores: dict[str, Any]) -> None:
    """Write a task's rows and scores; the scores are last, as a mark that the task is done."""
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(rows, folder / ROWS, index=False)
    write_whole(folder / SCORES, json.dumps(scores, indent=1) + "\n")


def wide(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """One row per graph and one column per method, in the order in which the methods ran."""
    chosen = rows[rows.metric == metric]
    return chosen.pivot(index="graph", columns="method", values="value")[chosen.method.unique()]


def not_above_random(values: pd.DataFrame) -> set[str]:
    """Methods not better than random: paired Wilcoxon test at 5 %, Holm-corrected over methods."""
    complete = values.fillna(0.0)  # constant relevance correlates with nothing
    arrays = {name: complete[name].to_numpy() for name in complete}
    tests = compare_pairs(arrays, [(name, "random") for name in arrays if name != "random"])
    return {t.first for t in tests if not (t.significant and t.difference.mean > 0)} | {"random"}


def detail(rows: pd.DataFrame) -> str:
    """Markdown: one row per method, one column per metric; mean and 95 % interval."""
    names = list(rows.metric.unique())
    lines = [f"| method | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for method in rows.method.unique():
        cells = []
        for name in names:
            every = rows[(rows.method == method) & (rows.metric == name)].value
            values = every.dropna()
            lost = len(every) - len(values)
            shown = str(bootstrap(values.to_numpy())) if len(values) else "not defined"
            cells.append(shown + (f" ({lost} not defined)" if lost and len(values) else ""))
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def overview(found: dict[str, pd.DataFrame]) -> str:
    """Markdown: mean of the main metric by method and task; * if not better than random."""
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
    """Markdown: one row per task, with the model's own score and the share of true nodes."""
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


def tables(out: Path, names: Sequence[str]) -> str:
    """Markdown for the tasks stored in `out`: models, overview, every metric."""
    rows = {name: pd.read_csv(out / name / ROWS) for name in names}
    scores = {name: json.loads((out / name / SCORES).read_text()) for name in names}
    parts = [describe(scores), overview(rows)]
    for name in names:
        parts.append(f"### {name}, n = {scores[name]['explained']}\n\n{detail(rows[name])}")
    return "\n".join(parts)
