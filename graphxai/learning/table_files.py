"""What a run on your own table writes next to the weights: card, scores, molecules."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphxai.contract.tasks import Task
from graphxai.datasets.labels import with_unit
from graphxai.datasets.splits import Split
from graphxai.datasets.standardise import STEPS
from graphxai.learning.cleaning import CleanTable, Target
from graphxai.learning.conformal import coverage_text
from graphxai.learning.teachers.forests import trees_for
from graphxai.learning.teachers.stacking import FOLDS, SOURCES
from graphxai.runtime.writing import atomic_write, json_text, write_whole

__all__ = [
    "begin_run",
    "mean_scores",
    "overview_rows",
    "score_rows",
    "score_tables",
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
    "teacher": "its teacher",
    "forest": "forest, ECFP4",
    "descriptor_forest": "forest, + descriptors",
    "dummy": "dummy",
}
MANY = 3  # targets; more are listed in one table


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
    """Return the leading score, for a list of models; of several targets, the mean of a kind."""
    (name, *others) = scores
    return ", ".join(
        f"{_mean_of(count) if others else name}: {metric} {values['graphormer']:.3f}"
        for metric, count, values in mean_scores(scores)
    )


def _mean_of(count: int) -> str:
    return f"mean of {count} target{'s' if count > 1 else ''}"


def mean_scores(scores: dict[str, Any]) -> list[tuple[str, int, dict[str, float]]]:
    """Return the mean leading score of each predictor over the targets of a kind.

    Metric, number of targets, means by predictor; only targets that all predictors have a score
    for.
    """
    kinds: dict[str, list[dict[str, float]]] = {}
    for found in scores.values():
        leading = {name: next(iter(each.items())) for name, each in found["scores"].items()}
        values = {name: value[0] for name, (_, value) in leading.items()}
        if values and None not in values.values():
            kinds.setdefault(next(iter(leading.values()))[0], []).append(values)
    return [
        (metric, len(each), {n: sum(v[n] for v in each) / len(each) for n in common})
        for metric, each in kinds.items()
        if (common := [name for name in PREDICTORS if all(name in v for v in each)])
    ]


def overview_rows(scores: dict[str, Any]) -> list[list[str]]:
    """Format many targets: the means first, then a row per target with its leading score."""
    shown = [name for name in PREDICTORS if any(name in s["scores"] for s in scores.values())]
    rows = [["target", "n", "score", *(PREDICTORS[name] for name in shown)]]
    for metric, count, values in mean_scores(scores):
        cells = [f"{values[name]:.3f}" if name in values else "–" for name in shown]
        rows.append([_mean_of(count), "", metric, *cells])
    for name, found in scores.items():
        metric = next(iter(found["scores"].get("graphormer", {"": None})))
        cells = [_cell(found["scores"][p][metric]) if p in found["scores"] else "–" for p in shown]
        rows.append([with_unit(name, found.get("unit", "")), f"{found['n']:,}", metric, *cells])
    return rows


def write_scores(path: Path, metadata: dict[str, Any]) -> None:
    """Write a run's scores, and what they refer to, as JSON."""
    names = ["file", "sha256", "seed", "split", "teacher_share", "teacher", "temperature", "scores"]
    names += ["coverage", "learning_curve", "notes"]
    content = {name: metadata[name] for name in names}
    write_whole(path, json_text(content))


def write_training(path: Path, table: CleanTable, chosen: Sequence[int]) -> None:
    """Write row, canonical SMILES and labels of the training molecules, for finding neighbours."""
    y, numbers = table.y, table.rows  # both are collected afresh at every access
    header = ["row", "smiles", *(target.heading for target in table.targets)]
    rows = ([numbers[k], table.canonical[k], *_cells(table.targets, y[k])] for k in chosen)
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
    y, numbers = table.y, table.rows
    predicted = [column for pair in zip(tasks, readings, strict=True) for column in _columns(*pair)]
    header = ["row", "smiles", *(target.heading for target in table.targets)]
    rows = (
        [numbers[k], table.graphs[k].smiles, *_cells(table.targets, y[k])]
        + [f"{values[position]:.6g}" for _, values in predicted]
        for position, k in enumerate(chosen)
    )
    _write(path, [*header, *(name for name, _ in predicted)], rows)


def table_card(table: CleanTable, parts: Split, metadata: dict[str, Any], command: str) -> str:
    """Return the model card, in Markdown."""
    names = ", ".join(target.heading for target in table.targets)
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
        f"**Split.** {sizes} molecules to train, calibrate and test, {_split_text(parts)}. The row"
        " numbers are in `config.json`.",
        "**Standardised.** Salts, charges and tautomers were standardised with RDKit's"
        f" MolStandardize ({', '.join(STEPS)}), and every molecule to predict is."
        if table.standardise
        else "",
        f"**Training.** {metadata['epochs']} epochs "
        + (f"from the weights `{start}`" if start else "from scratch")
        + f", seed {metadata['seed']}. {_lessons(metadata)}The weights of the last epoch were kept."
        " The test molecules were not used for any choice."
        f" {_temperatures(metadata['temperature'])}",
        f"    {command}" if command else "",
        _teacher(metadata["teacher"]),
        *(f"**Note.** {note[0].upper()}{note[1:]}." for note in metadata["notes"]),
        "**Test scores.** In brackets: 95 % bootstrap intervals over molecules. Forest:"
        f" {_trees(table)} trees on 2,048-bit ECFP4, and"
        " on these with 313 RDKit descriptors. Dummy: predicts the training"
        " mean, or the class frequencies. Minus: this model minus the other; if the interval"
        " includes 0, this test part shows no clear difference. `scores.json` has all of them.",
        *(_markdown(rows) for rows in score_tables(metadata["scores"])),
        _coverage(metadata["coverage"], table.targets),
        _curve(metadata["learning_curve"]),
        "**Limits.** The scores apply to molecules like those tested. `training.csv` contains the"
        " training structures, and `held_out.csv` the others: if they are confidential, delete"
        " both before you share the model (how near a molecule is to them is then unknown).",
    ]
    return "\n\n".join(part for part in text if part) + "\n"


def _trees(table: CleanTable) -> str:
    count = len(table.targets)
    kinds = dict.fromkeys(target.kind for target in table.targets)
    each = [
        (trees_for("regression" if kind == "regression" else "binary", count), kind)
        for kind in kinds
    ]
    return " or ".join(f"{n}" + (f" ({kind})" if len(each) > 1 else "") for n, kind in each)


def _split_text(parts: Split) -> str:
    return {
        "scaffold": "by Murcko scaffold: test molecules have scaffolds that were never trained on",
        "clusters": "by clusters of similar molecules: those of test molecules were never trained"
        " on",
        "time": "by time: test molecules are the newest",
        "column": "as the table says",
    }.get(
        parts.kind,
        f"at random with seed {parts.seed}: test molecules may resemble training molecules",
    )


def _lessons(metadata: dict[str, Any]) -> str:
    """Describe what was learned from a teacher; empty if there was none."""
    shares = metadata["teacher_share"]
    if not shares:
        return ""
    text = shares_text(shares)
    if not any(shares.values()):
        return (
            "A teacher was fitted to the training molecules, but its share, chosen on the"
            f" calibration molecules, is {text}. So the network was kept as it was. "
        )
    return (
        "The network then learned from the weighted mean of a teacher and itself. Its labels were"
        " the measured ones, moved towards the teacher's predictions, and that mean for"
        f" {metadata['recombined']:,} molecules recombined from the training molecules. The"
        f" teacher's share was chosen on the calibration molecules: {text}. The teacher and the new"
        " molecules are based only on the training molecules. "
    )


def _teacher(found: dict[str, Any] | None) -> str:
    """Return what the teacher took and what its sources scored, in Markdown; empty without one."""
    if found is None:
        return ""
    rows = [["target", "score", *SOURCES.values(), "stack"]]
    for name, each in found.items():
        cells = [
            "–" if score is None else f"{score:.3f}" + (f" (weight {weight:.2f})" if weight else "")
            for score, weight in (
                (each["scores"].get(source), (each["weights"] or {}).get(source))
                for source in (*SOURCES, "stack")
            )
        ]
        rows.append([name, each["metric"], *cells])
    minimol = any("minimol" in (each["weights"] or {}) for each in found.values())
    return (
        "**Teacher.** A weighted mean of the sources below. Weights and scores come from"
        f" {FOLDS} scaffold folds of the training molecules: each molecule was predicted without"
        f" the molecules of its fold (forests with a quarter of their trees).\n\n"
        + _markdown(rows)
        + (
            "\n\nMiniMol was pre-trained by its authors on public measurements (LargeMix), which"
            " may include this table's."
            if minimol
            else ""
        )
    )


def shares_text(shares: dict[str, float | None]) -> str:
    """Return the teacher's share for every task, 0 too."""
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
    taught = any(len(one["made_from"]) > 1 for one in found.values())
    more = " and from training molecules as the teacher predicted them from other scaffolds"
    return (
        "**Uncertainty.** Conformal intervals and sets of classes, wider far from the training set,"
        f" made from the calibration molecules{more if taught else ''}. On the test molecules:\n\n"
        + coverage_text(found, {target.name: target.unit for target in targets})
    )


def score_tables(scores: dict[str, Any]) -> list[list[list[str]]]:
    """Return the tables of scores: one for each target, or one of all if there are more than 3."""
    if len(scores) > MANY:
        return [overview_rows(scores)]
    return [score_rows(name, found) for name, found in scores.items()]


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
    with atomic_write(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
