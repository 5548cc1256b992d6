"""What a run on your own table writes next to the weights: card, scores, molecules."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphxai.datasets.hygiene import CleanTable, Target
from graphxai.datasets.labels import with_unit
from graphxai.datasets.splits import Split
from graphxai.datasets.writing import replacing, write_whole
from graphxai.models.graphormer.config import Task
from graphxai.models.graphormer.training.conformal import coverage_text

__all__ = [
    "begin_run",
    "score_rows",
    "shares_text",
    "split_rows",
    "summary",
    "table_card",
    "write_scores",
    "write_test",
    "write_training",
]

FloatArray = NDArray[np.float64]
PREDICTORS = {
    "graphormer": "this model",
    "forest": "forest, ECFP4",
    "descriptor_forest": "forest, + descriptors",
    "dummy": "dummy",
}


def begin_run(out: Path, run: dict[str, Any], resume: bool) -> None:
    """Make a run's folder and write `run.json`, or check that it contains the same run."""
    stored = out / "run.json"
    text = json.dumps(run, indent=1) + "\n"
    if stored.exists() and (out / "state").exists():
        if not resume:
            raise ValueError(
                f"{out} already contains a run: continue it with --resume, or choose another"
                " folder."
            )
        before = json.loads(stored.read_text(encoding="utf-8"))
        differing = [name for name, value in json.loads(text).items() if before.get(name) != value]
        if differing:
            raise ValueError(
                f"{out} contains a run with different settings ({', '.join(differing)}): choose"
                " another folder."
            )
    out.mkdir(parents=True, exist_ok=True)
    write_whole(stored, text)


def split_rows(parts: Split, rows: Sequence[int]) -> dict[str, Any]:
    """Return the split as row numbers of the file (the first after the header is 1).

    The keys are `train_rows` and so on, to tell row numbers from positions.
    """
    named = {
        f"{name}_rows": [rows[k] for k in getattr(parts, name)]
        for name in ("train", "valid", "test")
    }
    return {"kind": parts.kind, "seed": parts.seed, **named}


def summary(scores: dict[str, Any]) -> str:
    """Return the leading score of the first target, for a list of models."""
    name, found = next(iter(scores.items()))
    metric, value = next(iter(found["scores"].get("graphormer", {}).items()), ("", [None]))
    return "" if value[0] is None else f"{name}: {metric} {value[0]:.3f}"


def write_scores(path: Path, metadata: dict[str, Any]) -> None:
    """Write a run's scores, and what they refer to, as JSON."""
    names = ["file", "sha256", "seed", "split", "forest_share", "temperature", "scores", "coverage"]
    names += ["learning_curve", "notes"]
    content = {name: metadata[name] for name in names}
    write_whole(path, json.dumps(content, indent=1) + "\n")


def write_training(path: Path, table: CleanTable, chosen: Sequence[int]) -> None:
    """Write row, canonical SMILES and labels of the training molecules, for finding neighbours."""
    y = table.y
    header = ["row", "smiles", *(target.heading for target in table.targets)]
    rows = ([table.rows[k], table.canonical[k], *_cells(table.targets, y[k])] for k in chosen)
    _write(path, header, rows)


def write_test(
    path: Path,
    table: CleanTable,
    chosen: Sequence[int],
    tasks: Sequence[Task],
    readings: Sequence[FloatArray],
) -> None:
    """Write the test molecules as in the file, with their labels and predictions.

    readings: one array per task, for the molecules `chosen`; see `training.scores.readings`.
    """
    y = table.y
    predicted = [column for pair in zip(tasks, readings, strict=True) for column in _columns(*pair)]
    header = ["row", "smiles", *(target.heading for target in table.targets)]
    rows = (
        [table.rows[k], table.graphs[k].smiles, *_cells(table.targets, y[k])]
        + [f"{values[position]:.6g}" for _, values in predicted]
        for position, k in enumerate(chosen)
    )
    _write(path, [*header, *(name for name, _ in predicted)], rows)


def table_card(table: CleanTable, parts: Split, metadata: dict[str, Any], command: str) -> str:
    """Return the model card, in Markdown."""
    names = ", ".join(target.heading for target in table.targets)
    kind = (
        "by Murcko scaffold: test molecules have scaffolds that were never trained on"
        if parts.kind == "scaffold"
        else f"at random with seed {parts.seed}: test molecules may resemble training molecules"
    )
    sizes = f"{len(parts.train):,} / {len(parts.valid):,} / {len(parts.test):,}"
    checks = [
        f"* {f.check}{f' ({f.target})' if f.target else ''}: {f.count:,} ({f.done})"
        for f in table.findings
    ]
    start = metadata["start"]
    text = [
        f"# {names}",
        "A Graphormer (4 layers, width 128, 8 heads) trained with graphxai on a table.",
        f"**Data.** `{table.path.name}`, SHA-256 `{table.sha256}`, {table.read:,} rows,"
        f" {len(table.graphs):,} different molecules with labels.",
        "\n".join(f"* {target}" for target in table.targets),
        "Found before training:\n\n" + ("\n".join(checks) or "* nothing to report"),
        f"**Split.** {sizes} molecules to train, calibrate and test, {kind}. The row numbers are"
        " in `config.json`.",
        f"**Training.** {metadata['epochs']} epochs "
        + (f"from the weights `{start}`" if start else "from scratch")
        + f", seed {metadata['seed']}. {_lessons(metadata)}The weights of the last epoch were kept."
        " The test molecules were not used for any choice."
        f" {_temperatures(metadata['temperature'])}",
        f"    {command}" if command else "",
        *(f"**Note.** {note[0].upper()}{note[1:]}." for note in metadata["notes"]),
        "**Test scores.** In brackets: 95 % bootstrap intervals over molecules. Forest: 500 trees"
        " on 2,048-bit ECFP4, and on these with 313 RDKit descriptors. Dummy: predicts the training"
        " mean, or the class frequencies. Minus: this model minus that forest; if the interval"
        " includes 0, this test part shows no clear difference.",
        *(_markdown(score_rows(name, found)) for name, found in metadata["scores"].items()),
        _coverage(metadata["coverage"], table.targets),
        _curve(metadata["learning_curve"]),
        "**Limits.** The scores apply to molecules like those tested. `training.csv` contains the"
        " training structures, and `held_out.csv` the others: if they are confidential, delete"
        " both before you share the model (how near a molecule is to them is then unknown).",
    ]
    return "\n\n".join(part for part in text if part) + "\n"


def _lessons(metadata: dict[str, Any]) -> str:
    """Describe what was learned from a forest; empty if none was asked."""
    shares = metadata["forest_share"]
    if not shares:
        return ""
    text = shares_text(shares)
    if not any(shares.values()):
        return (
            "A random forest on ECFP4 and descriptors was to teach the network, but its share in"
            f" the teacher, chosen on the calibration molecules, is {text}. So the network was kept"
            " as it was. "
        )
    return (
        "The network then learned from a teacher, the weighted mean of itself and a random forest"
        " on ECFP4 and descriptors. Its labels were the measured ones, moved towards the forest's"
        f" predictions, and the teacher's predictions for {metadata['recombined']:,} molecules"
        " recombined from the training molecules. The forest's share was chosen on the calibration"
        f" molecules: {text}. The forest and the new molecules are based only on the training"
        " molecules. "
    )


def shares_text(shares: dict[str, float | None]) -> str:
    """Return the forest's share in the teacher of every task, 0 too."""
    return ", ".join(
        f"{name} " + ("none (too few labels)" if share is None else f"{share:.2f}")
        for name, share in shares.items()
    )


def _temperatures(found: dict[str, float | None]) -> str:
    fitted = [f"{name} {value:.2f}" for name, value in found.items() if value is not None]
    if not fitted:
        return "Nothing was calibrated."
    return (
        "Class logits are divided by a temperature fitted on the calibration molecules:"
        f" {', '.join(fitted)}."
    )


def _coverage(found: dict[str, Any], targets: Sequence[Target]) -> str:
    """Say how often intervals and sets of classes held; empty if there are none."""
    if not found:
        return ""
    return (
        "**Uncertainty.** Conformal intervals and sets of classes, wider far from the training set,"
        " made from the calibration molecules. On the test molecules:\n\n"
        + coverage_text(found, {target.name: target.unit for target in targets})
    )


def score_rows(name: str, found: dict[str, Any]) -> list[list[str]]:
    """Format one target's scores: a header, a row per predictor, differences from the forests."""
    if not found["n"]:
        return [[name], ["no labels among the test molecules, or none to train on"]]
    metrics = list(found["scores"]["graphormer"])
    of = f", {found['positives']} positive" if "positives" in found else ""
    rows = [[f"{with_unit(name, found.get('unit', ''))}, n = {found['n']}{of}", *metrics]]
    rows += [
        [PREDICTORS[key], *(_cell(values[metric]) for metric in metrics)]
        for key, values in found["scores"].items()
    ]
    return rows + [
        [f"minus {PREDICTORS[key]}", *(_cell(difference[metric], "+") for metric in metrics)]
        for key, difference in found["differences"].items()
        if key != "dummy"
    ]


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    """Format a table; the first row is its header."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def _cell(value: Sequence[float | None], sign: str = "") -> str:
    """Format a score with its interval, or a dash if it is undefined."""
    middle, low, high = value
    if middle is None:
        return "–"
    if low is None or high is None:
        return f"{middle:{sign}.3f}"
    return f"{middle:{sign}.3f} ({low:{sign}.3f} to {high:{sign}.3f})"


def _curve(points: Sequence[dict[str, Any]]) -> str:
    """Return the learning curve of every target in Markdown; empty if there is none."""
    if not points:
        return ""
    shown = ("graphormer", "forest", "descriptor_forest")
    rows = [["target", "training molecules", "score", *(PREDICTORS[key] for key in shown)]]
    for name in points[0]["targets"]:
        for point in points:
            found = point["targets"][name]
            if found["n"]:
                metric = next(iter(found["scores"]["graphormer"]))
                cells = [_cell(found["scores"][key][metric]) for key in shown]
                rows.append([name, f"{point['n']:,}", metric, *cells])
    return "**Learning curve.** All points use the same test molecules.\n\n" + _markdown(rows)


def _columns(task: Task, values: FloatArray) -> list[tuple[str, FloatArray]]:
    """Return the named columns of a task's readings."""
    if task.kind == "regression":
        return [(with_unit(f"{task.name}: predicted", task.unit), values)]
    if task.kind == "binary":
        return [(f"{task.name}: probability of {task.classes[1]}", values)]
    return [
        (f"{task.name}: probability of {name}", values[:, c]) for c, name in enumerate(task.classes)
    ]


def _cells(targets: Sequence[Target], y: FloatArray) -> list[str]:
    """Format labels as in a table: class names, values, empty if missing."""
    return [
        "" if np.isnan(v) else target.classes[int(v)] if target.classes else f"{v:.7g}"
        for target, v in zip(targets, y, strict=True)
    ]


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with replacing(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
