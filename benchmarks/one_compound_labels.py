"""Labels that contradict each other in one canonical form, and what the form and isomers score.

`python benchmarks/one_compound_labels.py` writes `results/one_compound_labels.md`.
"""

import csv
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from sklearn.metrics import roc_auc_score

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

import graphxai as gx  # noqa: E402
from graphxai.chemistry.measurements import compounds_of  # noqa: E402
from graphxai.datasets.isomers import has_undrawn_centres  # noqa: E402
from one_compound import test_part  # noqa: E402

TARGET = ROOT / "benchmarks" / "results" / "one_compound_labels.md"
TABLES = {  # of each model: the file, the column of structures, and its task in the first column
    "bace": ("bace/raw/bace.csv", "mol", {"BACE-1 inhibition": "Class", "pIC50": "pIC50"}),
    "blood-brain-barrier": (
        "adme/b3db.csv",
        "smiles",
        {"blood-brain barrier": "bbb", "log BB": "logBB"},
    ),
    "lipophilicity": ("molecules/lipo.csv", "smiles", {"log D at pH 7.4": "lipo"}),
    "solubility": ("adme/aqsoldb.csv", "smiles", {"solubility": "logS"}),
    "tox21": ("molecules/tox21.csv", "smiles", {}),
    "hiv": ("molecules/hiv.csv", "smiles", {"HIV inhibition": "HIV_active"}),
}
CLASSES = {"BBB-": 0.0, "BBB+": 1.0}
MOST_SPREAD = 0.5  # log units between values of one compound
NAMED = 3  # contradictory compounds that are written out for each table
DRAWS = 2000

Labels = dict[str, dict[str, list[float]]]  # by task and compound


def labels_of(name: str) -> tuple[Labels, dict[str, set[str]]]:
    """Return the labels of the compounds of a model's table, and how each was drawn."""
    path, structures, columns = TABLES[name]
    with (Path(os.environ["GRAPHXAI_DATA"]) / path).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = columns or {task.name: task.name for task in gx.load(name).config.tasks}
    texts = [row[structures] for row in rows]
    labels: Labels = {task: defaultdict(list) for task in columns}
    drawn: dict[str, set[str]] = defaultdict(set)
    for text, row, compound in zip(texts, rows, compounds_of(texts, "parent"), strict=True):
        mol = Chem.MolFromSmiles(text)
        if not compound or mol is None:
            continue
        drawn[compound].add(Chem.MolToSmiles(mol))
        for task, column in columns.items():
            if cell := row[column].strip():
                value = CLASSES[cell] if cell in CLASSES else float(cell)
                labels[task][compound].append(value)
    return labels, drawn


def contradictory(labels: dict[str, list[float]], *, is_value: bool) -> list[str]:
    """Return the compounds with several classes, or with values far from each other."""
    most = MOST_SPREAD if is_value else 0.0
    return [compound for compound, values in labels.items() if max(values) - min(values) > most]


def outputs(rows: Sequence[Any], task: str) -> NDArray[np.float64]:
    """Return values, or probabilities of the last class."""
    of_task = [row[task] for row in rows]
    last = [[*p.probabilities.values()][-1] if p.value is None else p.value for p in of_task]
    return np.array(last, dtype=float)


def root_mean_square_error(y: NDArray[np.float64], shown: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean((y - shown) ** 2)))


def interval(of_draw: Callable[[NDArray[np.intp]], float], n: int) -> str:
    """Return the 95 % interval of what is computed of test molecules drawn with replacement."""
    rng, values = np.random.default_rng(0), []
    while len(values) < DRAWS:
        try:
            values.append(of_draw(rng.integers(n, size=n)))
        except ValueError:  # a draw without one of the classes
            continue
    low, high = np.percentile(values, [2.5, 97.5])
    return f"{low:.3f} to {high:.3f}"


def published(name: str, task: str, *, is_value: bool) -> float:
    """Return the score that the model's card gives."""
    scores = gx.load(name).origin.metadata["scores"]
    return float(scores[task]["scores"]["graphormer"]["RMSE" if is_value else "ROC-AUC"][0])


def contradictions(name: str, tasks: list[str], by_task: list[tuple[int, int, list[str]]]) -> str:
    """Return the row of a model's table, given those of each task."""
    merged = dict.fromkeys(compound for *_, of_task in by_task for compound in of_task)
    named = ", ".join(f"`{each}`" for each in sorted(merged, key=len)[:NAMED])
    what = tasks[0] if len(tasks) < 3 else f"{len(tasks)} assays, together"
    of = by_task[:1] if len(tasks) < 3 else by_task
    counts = [sum(row[k] for row in of) for k in (0, 1)] + [sum(len(row[2]) for row in of)]
    return f"| {name} | {what} | {' | '.join(map(str, counts))} | {named} |"


def page() -> str:
    """Return the page: contradictions, scores on the form, and scores of the mean over isomers."""
    listed, scored, of_isomers = [], [], []
    for name in TABLES:
        labels, drawn = labels_of(name)
        model, texts = gx.load(name), test_part(name)
        compounds = compounds_of(texts, "parent")
        rows = gx.predict(model, texts, progress=False)
        pairs, measures, by_task = [], [], list[tuple[int, int, list[str]]]()
        for task, of_task in labels.items():
            is_value = next(iter(rows))[task].value is not None
            clashes = contradictory(of_task, is_value=is_value)
            merged = [each for each in clashes if len(drawn[each]) > 1]
            several = sum(len(values) > 1 for values in of_task.values())
            by_task.append((several, len(clashes), merged))
            known = np.array([each in of_task and each not in clashes for each in compounds])
            kept = np.flatnonzero(known)
            y = np.array([np.mean(of_task[compounds[k]]) for k in kept])
            score = root_mean_square_error if is_value else roc_auc_score
            shown = outputs(rows, task)[kept]
            pairs.append((published(name, task, is_value=is_value), score(y, shown)))
            measures.append("RMSE" if is_value else "ROC-AUC")
            if name in ("bace", "lipophilicity"):
                mean = gx.predict(gx.load(name, isomers="mean"), texts, progress=False)
                of_mean = outputs(mean, task)[kept]
                is_open = np.array([has_undrawn_centres(texts[k]) for k in kept])
                for what, part in (("all", is_open | True), ("undefined centre", is_open)):
                    a, b, c = y[part], shown[part], of_mean[part]
                    change = interval(lambda d: score(a[d], c[d]) - score(a[d], b[d]), len(a))  # noqa: B023
                    of_isomers.append(
                        f"| {name} | {task} | {what} | {len(a)} | {score(a, b):.3f}"
                        f" | {score(a, c):.3f} | {change} |"
                    )
        listed.append(contradictions(name, [*labels], by_task))
        for k, (task, _) in enumerate(labels.items() if name != "tox21" else [("mean of 12", 0)]):
            before, after = pairs[k] if name != "tox21" else np.mean(pairs, 0)
            scored.append(f"| {name} | {task} | {measures[k]} | {before:.3f} | {after:.3f} |")
        print(name, *listed[-12:], *scored[-2:], *of_isomers[-4:], sep="\n", flush=True)
    return "\n".join(
        [
            "# Labels and scores in one form",
            "",
            "Made by `python benchmarks/one_compound_labels.py`.",
            "",
            "## Labels that contradict each other",
            "",
            "Compounds with several rows, of those with two classes or values more than"
            f" {MOST_SPREAD} apart, and of those the ones that were drawn in several ways"
            f" (the {NAMED} shortest are named). Training leaves them out, or learns the median.",
            "",
            "| model | task | several rows | contradictory | drawn in several ways | such as |",
            "|---|---|---|---|---|---|",
            *listed,
            "",
            "## Scores of the bundled models",
            "",
            "As published on the cards, and of the canonical form today, on the test compounds"
            " whose labels do not contradict each other.",
            "",
            "| model | task | score | published | canonical form |",
            "|---|---|---|---|---|",
            *scored,
            "",
            "## The mean over isomers",
            "",
            'Undefined centres read as undefined, and with `isomers="mean"`: ROC-AUC of the class,'
            " RMSE of values, with the 95 % interval of the difference.",
            "",
            "| model | task | test compounds | n | undefined | mean | difference |",
            "|---|---|---|---|---|---|---|",
            *of_isomers,
            "",
        ]
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with rdBase.BlockLogs():
        TARGET.write_text(page(), encoding="utf-8")
