"""Benchmarks with a known truth: train on a rule, explain, score, and write tables."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rdkit import Chem

from graphxai.contract.inputs import prepare_all
from graphxai.datasets.rule_molecules import local_smiles, rule_dataset
from graphxai.datasets.rule_tables import RuleTable
from graphxai.datasets.rules import RULES
from graphxai.datasets.shapes import SHAPES, shape_dataset
from graphxai.explainers.registry import Method
from graphxai.explanation.files import write_csv
from graphxai.learning.fit import predict
from graphxai.learning.objectives import score_task
from graphxai.models.graphormer import CONFIG, Graphormer, load_checkpoint
from graphxai.runtime.writing import write_whole

from .ground_truth import evaluate_bonds, evaluate_nothing, evaluate_truth, model_score
from .statistics import bootstrap, compare_pairs

# Hundreds of alerts and odd rings need more molecules, and weights pretrained on molecules.
FROM_WEIGHTS: dict[str, Any] = {"size": 6000, "start": "molecules"}
TRAINING: dict[str, dict[str, Any]] = {"pains": FROM_WEIGHTS, "large-ring": FROM_WEIGHTS}
ROWS, SCORES = "rows.csv", "scores.json"
FURTHER = {
    "Mean ROC-AUC of the bonds": "bond_roc_auc",
    "False positives among the nodes where nothing is true": "false_positives",
    "False positives among the bonds where nothing is true": "bond_false_positives",
}
FEWER = ("false_positives", "bond_false_positives")  # fewer are better


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
    from graphxai.learning.recipes.rules import train_rule

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
    nothing = [dataset.smiles[k] for k in test if dataset.truths[k].dtype == bool
               and not dataset.truths[k].any()][:limit]  # fmt: skip
    rows = measure(model, explained, truths, methods, some, nothing, progress=progress)
    scores = {
        "question": RULES[name].question,
        "model": own,
        "train": len(dataset.split.train),
        "test": len(test),
        "explained": len(scored),
        "share true": mean_share(truths),
    }
    store(folder, rows, scores)


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
    """All rows of a task: inputs with a truth, and inputs in which nothing is true.

    ends: of the bonds of the latter; where given, methods for bonds alone are measured too.
    """
    options = {"target": target, "bonds": bonds, "progress": progress}
    rows = [evaluate_truth(model, inputs, truths, methods, **options)]
    if nothing:
        rows.append(evaluate_nothing(model, nothing, methods, target=target, ends=ends))
    if bonds is not None and ends is not None:
        rows.append(evaluate_bonds(model, inputs, bonds, target=target))
        none = [(own, np.zeros(len(own), dtype=bool)) for own in ends]
        rows.append(evaluate_bonds(model, nothing, none, target=target))
    return pd.concat(rows, ignore_index=True)


def benchmark_rules(
    folder: Path,
    table: RuleTable,
    methods: Sequence[Method],
    *,
    names: Sequence[str] | None = None,
    limit: int = 100,
    limit_nothing: int = 50,
    seed: int = 0,
    progress: bool | None = None,
) -> None:
    """Train one model on all rules of a table; explain test molecules that it answers correctly.

    folder: a model that is already in its sub-folder `run/model` is used as it is. names: the
    rules to explain; None takes all of the table. limit: molecules in which something is true;
    limit_nothing: molecules in which nothing is. Results that are already in `folder` are not
    computed again.
    """
    checkpoint = folder / "run" / "model"
    if not (checkpoint / CONFIG).exists():
        from graphxai.learning.recipes.rules import train_rules

        train_rules(
            checkpoint.parent, table, seed=seed, resume=True, accelerator="cpu",
            progress=bool(progress),
        )  # fmt: skip
    model = load_checkpoint(checkpoint)
    test = list(table.split.test)
    texts = [table.smiles[k] for k in test]
    outputs = answers_of(model, texts)
    for name in [rule.name for rule in table.rules] if names is None else names:
        if (folder / name / SCORES).exists():
            continue
        labels = table.of(name)[test]
        right, scores = judged(model, outputs, labels, name)
        correct = {text for text, good in zip(texts, right, strict=True) if good}
        known = [pair for pair in table.with_truth(name) if pair[0] in correct][:limit]
        if not known:
            raise ValueError(f"no test molecule with true atoms is answered correctly: {name!r}.")
        explained, truths = [text for text, _ in known], [truth for _, truth in known]
        nothing = [t for t in table.without_truth(name) if t in correct][:limit_nothing]
        bonds = [_bonds(name, text) for text in explained] if RULES[name].groups else []
        some = bonds if any(true.any() for _, true in bonds) else None
        ends = [_bonds(name, text)[0] for text in nothing] if some else None
        rows = measure(
            model, explained, truths, methods, some, nothing, ends, target=name, progress=progress
        )
        scores |= {
            "question": RULES[name].question,
            "train": len(table.split.train),
            "test": len(test),
            "explained": len(explained),
            "nothing": len(nothing),
            "share true": mean_share(truths),
        }
        store(folder / name, rows, scores)


def benchmark_shapes(
    folder: Path,
    methods: Sequence[Method],
    *,
    limit: int = 100,
    limit_nothing: int = 50,
    seed: int = 0,
    progress: bool | None = None,
) -> None:
    """Train on graphs with planted shapes; explain test graphs that the model answers correctly.

    The null set: plain trees, in which no shape is planted. limit, limit_nothing: as for
    `benchmark_rules`. Results that are already in `folder` are not computed again.
    """
    from graphxai.learning.recipes.shapes import train_shapes

    dataset = shape_dataset(seed=seed)
    run = train_shapes(
        folder / "run", dataset, seed=seed, resume=True, accelerator="cpu", progress=bool(progress)
    )
    model = load_checkpoint(run)
    graphs = [dataset.graphs[k] for k in dataset.split.test]
    inputs = [graph.to_data() for graph in graphs]
    outputs = answers_of(model, inputs)
    for name in SHAPES:
        if (folder / name / SCORES).exists():
            continue
        labels = np.array([name in graph.shapes for graph in graphs], dtype=np.float32)
        right, scores = judged(model, outputs, labels, name)
        there = [k for k, graph in enumerate(graphs) if right[k] and name in graph.shapes][:limit]
        null = [k for k, graph in enumerate(graphs) if right[k] and not graph.shapes]
        null = null[:limit_nothing]
        if not there:
            raise ValueError(f"no test graph with a {name} is answered correctly.")
        truths = [graphs[k].true_nodes(name) for k in there]
        rows = measure(
            model,
            [inputs[k] for k in there],
            truths,
            methods,
            [(graphs[k].edges, graphs[k].true_edges(name)) for k in there],
            [inputs[k] for k in null],
            [graphs[k].edges for k in null],
            target=name,
            progress=progress,
        )
        scores |= {
            "question": f"Is there a {name}?",
            "train": len(dataset.split.train),
            "test": len(graphs),
            "explained": len(there),
            "nothing": len(null),
            "share true": mean_share(truths),
        }
        store(folder / name, rows, scores)


def answers_of(model: Graphormer, inputs: Sequence[Any]) -> torch.Tensor:
    """Outputs (n, num_outputs) of a model."""
    return predict(model, [item.data for item in prepare_all(model, inputs)])


def judged(
    model: Graphormer, outputs: torch.Tensor, labels: np.ndarray, task: str
) -> tuple[np.ndarray, dict[str, Any]]:
    """Which of the answers (n,) are right, and the model's scores; all count as right for a value.

    labels (n,); the scores of a yes or no: accuracy, balanced accuracy and ROC-AUC.
    """
    own, columns = model.config.task_columns(task)
    value = score_task(own, outputs[:, columns], torch.from_numpy(labels))
    if own.kind != "binary":
        return np.ones(len(labels), dtype=bool), {"model": ("R2", value)}
    right = (outputs[:, columns].squeeze(1) > 0).numpy() == labels.astype(bool)
    sides = [right[labels.astype(bool) == side].mean() for side in (False, True)]
    return right, {
        "model": ("ROC-AUC", value),
        "accuracy": float(right.mean()),
        "balanced accuracy": float(np.mean(sides)),
        "yes": float(labels.mean()),
    }


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


def overview(found: dict[str, pd.DataFrame], metric: str = "roc_auc") -> str:
    """Markdown: mean of a metric by method and task; * if not better than random.

    For `logp` the metric is Spearman's correlation instead of "roc_auc". Of false positives fewer
    are better, and nothing is marked.
    """
    columns = {}
    for name, rows in found.items():
        wanted = "rank_correlation" if name == "logp" and metric == "roc_auc" else metric
        if wanted not in set(rows.metric):
            continue
        values = wide(rows, wanted)
        weak = set() if metric in FEWER else not_above_random(values)
        columns[name] = {m: f"{values[m].mean():.3f}{'*' * (m in weak)}" for m in values}
    if not columns:
        return ""
    table = pd.DataFrame(columns).fillna("")
    lines = [f"| method | {' | '.join(table.columns)} |", "|---" * (len(table.columns) + 1) + "|"]
    lines += [f"| `{m}` | {' | '.join(map(str, row))} |" for m, row in table.iterrows()]
    return "\n".join(lines) + "\n"


def describe(scores: dict[str, dict[str, Any]]) -> str:
    """Markdown: one row per task, with the model's own scores and the share of true nodes."""
    lines = [
        "| task | question | training graphs | model on n test graphs | explained | true nodes |",
        "|---|---|---|---|---|---|",
    ]
    for name, s in scores.items():
        share = "signed shares" if s["share true"] is None else f"{s['share true']:.0%}"
        own = f"{s['model'][0]} {s['model'][1]:.3f}"
        if "accuracy" in s:
            own = (
                f"accuracy {s['accuracy']:.3f}, balanced {s['balanced accuracy']:.3f}, {own};"
                f" {s['yes']:.1%} yes"
            )
        explained = f"{s['explained']}" + (f" and {s['nothing']} null" if s.get("nothing") else "")
        lines.append(
            f"| {name} | {s['question']} | {s['train']:,} | {own}"
            f" (n = {s['test']:,}) | {explained} | {share} |"
        )
    return "\n".join(lines) + "\n"


def tables(out: Path, names: Sequence[str]) -> str:
    """Markdown for the tasks stored in `out`: models, overview, every metric."""
    rows = {name: pd.read_csv(out / name / ROWS) for name in names}
    scores = {name: json.loads((out / name / SCORES).read_text()) for name in names}
    parts = [describe(scores), overview(rows)]
    for title, metric in FURTHER.items():
        if shown := overview(rows, metric):
            parts.append(f"## {title}\n\n{shown}")
    for name in names:
        parts.append(f"### {name}, n = {scores[name]['explained']}\n\n{detail(rows[name])}")
    return "\n".join(parts)
