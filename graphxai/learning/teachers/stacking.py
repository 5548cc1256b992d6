"""A teacher for every target of a table: the weighted mean of forests and a Gaussian process.

What it and networks predict is joined into labels, from which another network learns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphxai.contract.prediction_metrics import FloatArray
from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import ecfp4, parsed, similarity, structure_counts
from graphxai.learning.conformal import Unseen, comparable
from graphxai.learning.scores import METRICS
from graphxai.learning.teachers.forests import Forest, descriptors
from graphxai.learning.teachers.gaussian_process import Process, process_readings
from graphxai.runtime.progress import in_chunks

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


class FoldPredictions(NamedTuple):
    """What processes predict of a task for the molecules of the fold that each of them lacks.

    Attributes:
        error: the mean squared error.
        noise: the noise of the processes, which suits them best.
        readings: the predictions (n,) or (n, classes).
        columns: the same before it is read (n, columns of the task).
        processes: the processes, one without each fold.
    """

    error: float
    noise: float
    readings: FloatArray
    columns: FloatArray
    processes: Sequence[Process]


@dataclass(frozen=True, eq=False)
class ProcessSource:
    """A Gaussian process on counts of structures, for several tasks.

    Attributes:
        tasks: by position, in the order of the process's columns.
        carriers: counts (m, F) of the molecules that carry it.
        of_folds: by position of the task, what processes without a fold predict for it.
    """

    tasks: Mapping[int, Task]
    process: Process
    carriers: tuple[NDArray[Any], ...]
    of_folds: Mapping[int, FoldPredictions]

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


class Stack(NamedTuple):
    """The weighted mean of the sources of one task, judged on scaffolds that were left out.

    Attributes:
        weights: the weights of the sources that are used, which sum to 1.
        scores: the leading score of every source, and of their mean ("stack").
        unseen: the mean's predictions for the training molecules without their scaffolds, and how
            near each molecule is to those that were not left out.
    """

    weights: dict[str, float]
    scores: dict[str, float]
    unseen: Unseen


@dataclass(frozen=True, eq=False)
class Teacher:
    """The weighted mean of several sources, for every task of a table.

    Attributes:
        sources: forests and processes fitted to all training molecules, by name.
        stacks: for each task its mean; None for a task with too few labels.
    """

    tasks: tuple[Task, ...]
    sources: Mapping[str, ForestSource | ProcessSource]
    stacks: tuple[Stack | None, ...]

    def predict(self, features: MoleculeFeatures) -> list[FloatArray | None]:
        """Predict molecules for each task. The result is None for a task without weights."""
        used: dict[str, set[int]] = {}
        for k, stack in enumerate(self.stacks):
            for name in stack.weights if stack else ():
                used.setdefault(name, set()).add(k)
        each = {name: self.sources[name].predict(features, tasks) for name, tasks in used.items()}
        return [
            stack and sum(w * each[name][k] for name, w in stack.weights.items())  # type: ignore[misc]
            for k, stack in enumerate(self.stacks)
        ]

    def predict_in_chunks(
        self, smiles: Sequence[str], show: bool | None
    ) -> list[FloatArray | None]:
        """Predict many molecules, some hundreds at a time, with a bar (`show` as for that)."""
        parts = in_chunks(smiles, "labelling", size=CHUNK, show=show)
        chunks = [self.predict(MoleculeFeatures(tuple(part))) for part in parts]
        return [
            None if stack is None else np.concatenate(of_task)
            for stack, *of_task in zip(self.stacks, *chunks, strict=True)
        ]

    def left_out(self, task: int) -> FloatArray | None:
        """Predict each training molecule of a task without its label, (n,).

        It is NaN where a source has no such prediction, and None for a task without weights.
        """
        if (stack := self.stacks[task]) is None:
            return None
        return sum(w * self.sources[name].left_out[task] for name, w in stack.weights.items())  # type: ignore[return-value]

    def to_dict(self) -> dict[str, Any]:
        """Return weights and scores by task, as plain values for JSON."""
        return {
            task.name: {
                "metric": leading_metric(task),
                "weights": stack and stack.weights,
                "scores": {
                    n: None if np.isnan(score) else score
                    for n, score in (stack.scores if stack else {}).items()
                },
            }
            for task, stack in zip(self.tasks, self.stacks, strict=True)
        }

    def describe(self) -> list[str]:
        """Say in one line per task what its teacher is made of, and what each source scored."""
        lines = []
        for task, stack in zip(self.tasks, self.stacks, strict=True):
            if stack is None:
                lines.append(f"teacher of {task.name}: none (too few labels)")
                continue
            weights, scores, _ = stack
            taken = " + ".join(f"{weight:.2f} {SOURCES[name]}" for name, weight in weights.items())
            each = ", ".join(
                f"{SOURCES[name]} {score:.3f}" for name, score in scores.items() if name in SOURCES
            )
            lines.append(
                f"teacher of {task.name}: {taken}; {leading_metric(task)} on folds left out"
                f" {scores['stack']:.3f} ({each})"
            )
        return lines


def leading_metric(task: Task) -> str:
    """Return the name of the score that judges sources of a task."""
    return next(iter(METRICS[task.kind]))


MOVED = 0.3  # how far a label moves towards a teacher that has the whole share


def stacking_share(teacher: FloatArray | None, network: FloatArray, y: FloatArray) -> float | None:
    """Find the teacher's share s in s teacher + (1 - s) network with the least squared error.

    This is stacking with non-negative weights that sum to 1 (Breiman 1996). Predictions are
    readings (n,) or (n, C) of molecules that neither has seen, for labels y (n,) of one task, NaN
    where one is missing. With fewer than 20 labels of molecules that the teacher predicts, s is
    one half. Without a teacher it is None.
    """
    if teacher is None:
        return None
    labelled = comparable(teacher, y)
    if labelled.sum() < MIN_LABELS:
        return 0.5
    teacher, network, truth = teacher[labelled], network[labelled], y[labelled]
    if teacher.ndim == 2:
        truth = np.eye(teacher.shape[1])[truth.astype(int)]
    difference = teacher - network
    total = float((difference**2).sum())
    return float(np.clip(((truth - network) * difference).sum() / total, 0, 1)) if total else 0.5


def joint_readings(
    teacher: FloatArray | None, network: FloatArray, share: float | None
) -> FloatArray:
    """Return s teacher + (1 - s) network for a task, or the network's where the teacher has none.

    The share s is None for a task without a teacher.
    """
    if teacher is None or share is None:
        return network
    mixed = share * teacher + (1 - share) * network
    return np.where(np.isnan(mixed), network, mixed)


def shares_text(shares: Mapping[str, float | None]) -> str:
    """List the teacher's share for every task, even if it is 0."""
    return ", ".join(
        f"{name} " + ("none (too few labels)" if share is None else f"{share:.2f}")
        for name, share in shares.items()
    )


def mixed_labels(y: FloatArray, left_out: FloatArray | None, share: float | None) -> FloatArray:
    """Mix training labels y (n,) with the teacher's predictions without them.

    The result is (1 - 0.3 s) y + 0.3 s t for the teacher's share s and its prediction t. It is y
    where t is missing, and for a task without a teacher.
    """
    if left_out is None or share is None:
        return y
    weight = MOVED * share
    mixed = (1 - weight) * y + weight * left_out
    return np.where(np.isnan(mixed), y, mixed)


def soft_labels(readings: FloatArray, seed: int = 0) -> FloatArray:
    """Turn predictions into labels (n,) to learn from.

    Values and probabilities of two classes (n,) are labels already. From several classes (n, C),
    one is drawn for each molecule. Its cross-entropy is, in expectation, that of the probabilities.
    """
    if readings.ndim == 1:
        return readings
    chance = np.random.default_rng(seed).random((len(readings), 1))
    below = (readings.cumsum(1) < chance).sum(1)
    return np.minimum(below, readings.shape[1] - 1).astype(np.float64)  # the sum may round below 1
