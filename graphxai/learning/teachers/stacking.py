"""A teacher for every target of a table: the weighted mean of forests and a Gaussian process."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import ecfp4, parsed, structure_counts
from graphxai.learning.conformal import Unseen
from graphxai.learning.teachers.forests import Forest, descriptors
from graphxai.learning.teachers.gaussian_process import Process, process_readings, similarity
from graphxai.runtime.progress import Progress

FloatArray = NDArray[np.float64]
SOURCES = {
    "forest": "forest on ECFP4",
    "descriptor_forest": "forest on ECFP4 + descriptors",
    "process": "Tanimoto process",
}
FOLDS = 4  # of scaffolds, for choosing the weights
MIN_LABELS = 20  # of a task that has a teacher
CHUNK = 500  # molecules whose features are computed at a time


@dataclass(frozen=True, eq=False)
class MoleculeFeatures:
    """The features of molecules that the sources read, each computed when it is first needed."""

    smiles: tuple[str, ...]

    @cached_property
    def molecules(self) -> list[Any]:
        """The parsed molecules."""
        return parsed(self.smiles)

    @cached_property
    def forest(self) -> NDArray[np.float32]:
        """ECFP4 fingerprints, (n, 2048)."""
        return ecfp4(self.molecules)

    @cached_property
    def descriptor_forest(self) -> NDArray[np.float32]:
        """ECFP4 fingerprints beside descriptors, (n, 2361)."""
        return np.concatenate([self.forest, descriptors(self.molecules)], axis=1)

    @cached_property
    def process(self) -> tuple[NDArray[np.uint16], ...]:
        """Five kinds of counts, (n, 4096) each, see `structure_counts`."""
        return structure_counts(self.molecules)


@dataclass(frozen=True, eq=False)
class ForestSource:
    """Forests on one kind of features, for several tasks.

    Attributes:
        source: the features, a key of `SOURCES`.
        forests: by position of their task.
        left_out: by position of the task, for each training molecule the prediction (n,) of the
            trees that did not see it.
    """

    source: str
    forests: Mapping[int, Forest]
    left_out: Mapping[int, FloatArray]

    def predict(
        self, features: MoleculeFeatures, tasks: Collection[int] | None = None
    ) -> dict[int, FloatArray]:
        """Predict molecules for all tasks or some of them, by position of the task."""
        chosen = [k for k in self.forests if tasks is None or k in tasks]
        return {k: self.forests[k].predict(getattr(features, self.source)) for k in chosen}


@dataclass(frozen=True, eq=False)
class ProcessSource:
    """A Gaussian process on one kind of fingerprints, for several tasks.

    Attributes:
        source: the fingerprints, a key of `SOURCES`.
        tasks: by position, in the order of the process's columns.
        carriers: fingerprints (m, F) of the molecules that carry it.
        unseen: by position of the task, what a process without its fold predicts for each training
            molecule (n,) or (n, classes).
    """

    source: str
    tasks: Mapping[int, Task]
    process: Process
    carriers: tuple[NDArray[Any], ...]
    unseen: Mapping[int, FloatArray]

    def predict(
        self, features: MoleculeFeatures, tasks: Collection[int] | None = None
    ) -> dict[int, FloatArray]:
        """Predict molecules for all tasks of the process, by position of the task."""
        kernel = similarity(features.process, self.carriers)
        return process_readings(self.tasks, self.process.predict(kernel))

    @property
    def left_out(self) -> dict[int, FloatArray]:
        """Leave-one-out predictions for the training molecules, NaN for a multi-class task."""
        readings = process_readings(self.tasks, self.process.left_out)
        return {k: v if v.ndim == 1 else np.full(len(v), np.nan) for k, v in readings.items()}


@dataclass(frozen=True, eq=False)
class Teacher:
    """The weighted mean of several sources, for every task of a table.

    Attributes:
        sources: forests and processes fitted to all training molecules, by name.
        weights: for each task, the weights of its sources, which sum to 1; None for a task with too
            few labels.
        out_of_fold: for each task, the leading score of every source, and of their mean ("stack"),
            for molecules whose scaffolds were left out.
        metrics: for each task, the name of that score.
        unseen: by task, the mean's predictions for the training molecules without their scaffolds,
            and how near each molecule is to those that were not left out.
    """

    tasks: tuple[Task, ...]
    sources: Mapping[str, ForestSource | ProcessSource]
    weights: tuple[dict[str, float] | None, ...]
    out_of_fold: tuple[dict[str, float], ...]
    metrics: tuple[str, ...]
    unseen: Mapping[str, Unseen] = field(default_factory=dict)

    def predict(self, features: MoleculeFeatures) -> list[FloatArray | None]:
        """Predict molecules for each task. The result is None for a task without weights."""
        used: dict[str, set[int]] = {}
        for k, weights in enumerate(self.weights):
            for name in weights or ():
                used.setdefault(name, set()).add(k)
        each = {name: self.sources[name].predict(features, tasks) for name, tasks in used.items()}
        return [
            None if weights is None else sum(w * each[name][k] for name, w in weights.items())  # type: ignore[misc]
            for k, weights in enumerate(self.weights)
        ]

    def predict_in_chunks(
        self, smiles: Sequence[str], progress: Progress
    ) -> list[FloatArray | None]:
        """Predict many molecules, some hundreds at a time, and report the number of each chunk."""
        chunks = []
        for start in range(0, len(smiles), CHUNK):
            chunk = tuple(smiles[start : start + CHUNK])
            chunks.append(self.predict(MoleculeFeatures(chunk)))
            progress(len(chunk))
        by_task = [
            [readings for readings in task if readings is not None]
            for task in zip(*chunks, strict=True)
        ]
        return [np.concatenate(readings) if readings else None for readings in by_task]

    def left_out(self, task: int) -> FloatArray | None:
        """Predict each training molecule of a task without its label, (n,).

        It is NaN where a source has no such prediction, and None for a task without weights.
        """
        weights = self.weights[task]
        if weights is None:
            return None
        return sum(w * self.sources[name].left_out[task] for name, w in weights.items())  # type: ignore[return-value]

    def to_dict(self) -> dict[str, Any]:
        """Return weights and scores by task, as plain values for JSON."""
        each = zip(self.tasks, self.weights, self.out_of_fold, self.metrics, strict=True)
        return {
            task.name: {
                "metric": metric,
                "weights": weights,
                "scores": {n: None if np.isnan(score) else score for n, score in scores.items()},
            }
            for task, weights, scores, metric in each
        }

    def describe(self) -> list[str]:
        """Say in one line per task what its teacher is made of, and what each source scored."""
        lines = []
        for task, weights, scores, metric in zip(
            self.tasks, self.weights, self.out_of_fold, self.metrics, strict=True
        ):
            if weights is None:
                lines.append(f"teacher of {task.name}: none (too few labels)")
                continue
            taken = " + ".join(f"{weight:.2f} {SOURCES[name]}" for name, weight in weights.items())
            each = ", ".join(
                f"{SOURCES[name]} {score:.3f}" for name, score in scores.items() if name in SOURCES
            )
            lines.append(
                f"teacher of {task.name}: {taken}; {metric} on unseen scaffolds"
                f" {scores['stack']:.3f} ({each})"
            )
        return lines
