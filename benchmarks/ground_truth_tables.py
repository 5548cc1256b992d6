"""Make the tables of `ground_truth.md`: files of all measures, and the means on the page."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from graphxai.evaluation.ground_truth_report import ROWS, SCORES, not_above_random, wide
from graphxai.evaluation.statistics import bootstrap

FOLDER = Path(__file__).with_name("ground_truth")  # of the published files
# Measures that are compared with random scores
COMPARED = ("roc_auc", "rank_correlation", "bond_roc_auc")
SHAPES = ("house", "hexagon", "wheel", "clique")
SINGLE_ATOMS = ("halogen", "phosphorus", "boron")
YES_OR_NO = (*SHAPES, *SINGLE_ATOMS, "indole", "pains", "large-ring", "rings")
VARIANTS = ("lrp_ah", "gae_rollout", "transformer_attribution", "masked_lrp", "partial_lrp")
FILES_ONLY = {*VARIANTS, "attention_last", "cam", "att_cat"}  # which the page leaves to the files
COLUMNS: Mapping[str, tuple[str, tuple[str, ...]]] = {  # of the page: a measure and its tasks
    "shapes": ("roc_auc", SHAPES),
    "single atoms": ("roc_auc", SINGLE_ATOMS),
    "indole": ("roc_auc", ("indole",)),
    "PAINS": ("roc_auc", ("pains",)),
    "large ring": ("roc_auc", ("large-ring",)),
    "rings": ("roc_auc", ("rings",)),
    "logP": ("rank_correlation", ("logp",)),
    "digits": ("roc_auc", ("digits",)),
    "false positives": ("false_positives", YES_OR_NO),
}


def task_measures(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of every measure by method, with the ends of its 95 % interval, as text.

    `above_random` is "yes" or "no" for the measures that are compared with random scores on the
    same graphs, and empty for the others.

    Args:
        rows: as from `evaluate_truth`.
    """
    weak = {
        metric: not_above_random(wide(rows, metric))
        for metric in COMPARED
        if metric in set(rows.metric)
    }
    lines = []
    for (method, metric), values in rows.groupby(["method", "metric"], sort=False).value:
        defined = values.dropna()
        if len(defined):
            mean = bootstrap(defined.to_numpy())
            ends = (f"{end:.3f}" for end in (mean.mean, mean.low, mean.high))
            above = ("no" if method in weak[metric] else "yes") if metric in weak else ""
            lines.append((method, metric, *ends, above))
    return pd.DataFrame(lines, columns=["method", "metric", "mean", "low", "high", "above_random"])


def task_row(name: str, scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's row of `tasks.csv`: its graphs, and how well the model answers it."""
    metric, value = scores["model"]
    share = scores["share true"]
    row = {
        "task": name,
        "question": scores["question"],
        "train": scores["train"],
        "test": scores["test"],
        "explained": scores["explained"],
        "nothing": scores.get("nothing", 0),
        "share_true": "" if share is None else f"{share:.2f}",
        "score": metric,
        "value": f"{value:.3f}",
    }
    further = {"accuracy": "accuracy", "balanced accuracy": "balanced_accuracy", "yes": "share_yes"}
    return row | {to: f"{scores[key]:.3f}" for key, to in further.items() if key in scores}


def write_group(results: Path, names: Sequence[str], path: Path) -> list[dict[str, Any]]:
    """Write the measures of a group's tasks to a CSV file, and return their rows of `tasks.csv`."""
    parts = []
    for name in names:
        measures = task_measures(pd.read_csv(results / name / ROWS))
        measures.insert(0, "task", name)
        parts.append(measures)
    pd.concat(parts).to_csv(path, index=False)
    return [task_row(name, json.loads((results / name / SCORES).read_text())) for name in names]


def main_table(folder: Path = FOLDER) -> str:
    """Return the page's Markdown table: the mean of a measure over tasks, a row per method.

    A mean over tasks is left out where a task has no value.

    Args:
        folder: folder with the CSV files of the groups.
    """
    parts = [pd.read_csv(path) for path in sorted(folder.glob("*.csv")) if path.stem != "tasks"]
    measures = pd.concat(parts).set_index(["metric", "task", "method"])["mean"]
    methods = list(dict.fromkeys(method for part in parts for method in part.method))
    methods = [method for method in methods if method not in FILES_ONLY]
    lines = [f"| method | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for method in methods:
        cells = []
        for metric, tasks in COLUMNS.values():
            values = [measures.get((metric, task, method)) for task in tasks]
            whole = all(value is not None for value in values)
            cells.append(f"{sum(values) / len(values):.3f}" if whole else "")
        if any(cells):
            lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
