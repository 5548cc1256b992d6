"""Measure a model's errors on molecules it did not learn from, to make intervals that hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from torch_geometric.data import Data

from graphxai.contract.intervals import LEVEL, VALUES, Conformal
from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import ecfp4_bits, packed, tanimoto
from graphxai.datasets.splits import Split
from graphxai.datasets.training_set import FAR
from graphxai.learning.scores import task_readings
from graphxai.models.graphormer import LoadedModel

__all__ = [
    "Unseen",
    "calibrate",
    "conformal_scores",
    "coverage",
    "coverage_text",
    "nearest_similarities",
    "pooled",
]

FloatArray = NDArray[np.float64]
SLOPE = 1.0  # see benchmarks/results/uncertainty.md
LARGEST = 1000  # molecules per task, or class, whose scores are stored
FEW = 20  # far molecules, below which their coverage says nothing


@dataclass(frozen=True, eq=False)
class Unseen:
    """Predictions for molecules that were not learned from.

    readings: as from `scores.readings`, NaN where nothing was predicted; y (n,): labels or NaN;
    similarity (n,): to the nearest molecule learned from, None for other graphs.
    """

    readings: FloatArray
    y: FloatArray
    similarity: FloatArray | None


def calibrate(
    model: LoadedModel,
    graphs: Sequence[Data],
    y: FloatArray,
    parts: Split,
    more: Mapping[str, Unseen] | None = None,
) -> dict[str, Any]:
    """Set `model.conformal` from the validation part, and measure its coverage on the test part.

    graphs: encoded graphs, molecules with their `smiles`; without it, how near a graph is to the
    training part is unknown. y (n, tasks): labels, NaN where one is missing. more: by task, further
    predictions whose errors count like those on the validation part.
    A temperature fitted on the validation part does no harm: it keeps the order of all margins.

    Returns:
        For each task with scores and test labels what `coverage` returns, and `made_from`, the
        number of scores from the validation part and from `more`.
    """
    found: dict[str, Any] = {}
    if not parts.valid:
        return found
    valid, test = list(parts.valid), list(parts.test)
    near, tested = (_nearest(graphs, part, parts.train) for part in (valid, test))
    read, judged = (task_readings(model, [graphs[k] for k in part]) for part in (valid, test))
    for k, task in enumerate(model.config.tasks):
        unseen = [Unseen(read[k], y[valid, k], near)]
        if more and task.name in more:
            unseen.append(more[task.name])
        each = [conformal_scores(task, one.readings, one.y, one.similarity) for one in unseen]
        made = pooled(each)
        if made is None:
            continue
        model.conformal[task.name] = made
        if not np.isnan(y[test, k]).all():
            found[task.name] = coverage(task, made, judged[k], y[test, k], tested)
            found[task.name]["made_from"] = [0 if one is None else one.n for one in each]
    return found


def _nearest(
    graphs: Sequence[Data], chosen: Sequence[int], train: Sequence[int]
) -> FloatArray | None:
    """Return the similarity of chosen molecules to the nearest training one; None for others."""
    if not train or getattr(graphs[train[0]], "smiles", None) is None:
        return None
    own, others = ([graphs[k].smiles for k in part] for part in (chosen, train))
    return nearest_similarities(own, others)


def nearest_similarities(smiles: Sequence[str], training: Sequence[str]) -> FloatArray:
    """Return the ECFP4 Tanimoto similarity of each molecule to the nearest training one, (n,)."""
    if not smiles:
        return np.empty(0)
    with rdBase.BlockLogs():
        own, others = (
            packed([ecfp4_bits(Chem.MolFromSmiles(s)) for s in each]) for each in (smiles, training)
        )
    return np.array([tanimoto(one, others).max() for one in own])


def conformal_scores(
    task: Task, read: FloatArray, y: FloatArray, similarity: FloatArray | None, seed: int = 0
) -> Conformal | None:
    """Return a task's scores on molecules it did not learn from; None without any label.

    read: values (n,) or probabilities (n,), (n, classes), as from `scores.readings`; y (n,):
    labels or NaN; similarity (n,) to the nearest training compound, None for other graphs. Of more
    than 1,000 labels, 1,000 are drawn, of every class if there are classes: a rare one has too few
    otherwise. Molecules without a reading do not count.
    """
    known = np.flatnonzero(~np.isnan(y) & ~np.isnan(read.reshape(len(y), -1)).any(1))
    if not len(known):
        return None
    by_class = [known[y[known] == code] for code in range(len(task.classes))]
    groups = by_class if task.classes else [known]
    rng = np.random.default_rng(seed)
    known = np.concatenate(
        [k if len(k) <= LARGEST else rng.choice(k, LARGEST, replace=False) for k in groups]
    )
    slope = 0.0 if similarity is None else SLOPE
    one = Conformal({}, slope)
    difficulty = np.array(
        [one.difficulty(None if similarity is None else similarity[k]) for k in known]
    )
    if task.kind == "regression":
        scores = {VALUES: np.abs(y[known] - read[known]) / difficulty}
    else:
        labels = y[known].astype(int)
        margins = _margins(_by_class(task, read[known]), labels) / difficulty
        scores = {name: margins[labels == code] for code, name in enumerate(task.classes)}
    return Conformal({key: np.sort(values).tolist() for key, values in scores.items()}, slope)


def pooled(found: Sequence[Conformal | None]) -> Conformal | None:
    """All scores of a task together; None if there are none."""
    known = [one for one in found if one is not None]
    if not known:
        return None
    keys = known[0].scores
    scores = {key: sorted(score for one in known for score in one.scores[key]) for key in keys}
    return Conformal(scores, known[0].slope)


def coverage(
    task: Task,
    conformal: Conformal,
    read: FloatArray,
    y: FloatArray,
    similarity: FloatArray | None,
    level: float = LEVEL,
) -> dict[str, Any]:
    """Return how often a task's intervals or sets of classes hold the measured labels.

    Arguments as for `conformal_scores`.

    Returns:
        JSON values: `level`, `n` and `held`, the share of molecules; for a regression `width`, the
        median width, None if infinite; for classes `single`, the share of sets with one class, and
        `held_by_class`; `far`: [share held, n] of molecules far from the training set, if there
        are 20 or more.
    """
    known = np.flatnonzero(~np.isnan(y))
    near = [None if similarity is None else float(similarity[k]) for k in known]
    found: dict[str, Any] = {"level": level, "n": len(known)}
    if task.kind == "regression":
        pairs = zip(read[known].tolist(), near, strict=True)
        ends = np.array([conformal.interval(value, s, level) for value, s in pairs])
        held = (ends[:, 0] <= y[known]) & (y[known] <= ends[:, 1])
        width = float(np.median(ends[:, 1] - ends[:, 0]))
        found["width"] = width if np.isfinite(width) else None
    else:
        rows = zip(_by_class(task, read[known]).tolist(), near, strict=True)
        sets = [
            conformal.classes(dict(zip(task.classes, p, strict=True)), s, level) for p, s in rows
        ]
        measured = [task.classes[int(label)] for label in y[known]]
        held = np.array([one in chosen for one, chosen in zip(measured, sets, strict=True)])
        found["single"] = float(np.mean([len(chosen) == 1 for chosen in sets]))
        found["held_by_class"] = {
            name: [float(held[of].mean()), int(of.sum())]
            for name in task.classes
            if (of := np.array([one == name for one in measured])).any()
        }
    found["held"] = float(held.mean())
    far = np.array([s is not None and s < FAR for s in near])
    if far.sum() >= FEW:
        found["far"] = [float(held[far].mean()), int(far.sum())]
    return found


def coverage_text(found: Mapping[str, Mapping[str, Any]], units: Mapping[str, str]) -> str:
    """Return what `coverage` found by task, in sentences for a model card; units by task."""
    lines = []
    for name, one in found.items():
        what = "intervals" if "width" in one else "sets of classes"
        parts = [
            f"{name}: {_percent(one['level'])} {what} held {_percent(one['held'])} of {one['n']:,}"
        ]
        if "width" in one:
            unit = f" {units[name]}" if units.get(name) else ""
            width = one["width"]
            parts.append("most have no end" if width is None else f"median width {width:.2f}{unit}")
        else:
            by_class = one["held_by_class"].items()
            parts += [f"{c} {_percent(share)} of {n:,}" for c, (share, n) in by_class]
            parts.append(f"{_percent(one['single'])} have a single class")
        if "far" in one:
            share, n = one["far"]
            parts.append(f"far from the training set {_percent(share)} of {n:,}")
        lines.append("* " + "; ".join(parts))
    return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _by_class(task: Task, read: FloatArray) -> FloatArray:
    """Return probabilities (n, classes)."""
    return np.stack([1 - read, read], axis=1) if task.kind == "binary" else read


def _margins(probabilities: FloatArray, labels: NDArray[np.int_]) -> FloatArray:
    """Return the logit of the best other class minus that of the class measured, (n,)."""
    logits = np.log(np.maximum(probabilities, 1e-300))
    rows = np.arange(len(labels))
    own = logits[rows, labels]
    logits[rows, labels] = -np.inf
    return logits.max(1) - own
