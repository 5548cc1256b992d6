"""The teacher of the BACE model, in which a class is also derived from a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import (
    Molecules,
    atom_pair_counts,
    ecfp4,
    ecfp6_counts,
    parsed,
)
from graphxai.learning.teachers.forests import TREES, Forest
from graphxai.learning.teachers.gaussian_process import Counts, Process, carriers_of, similarity
from graphxai.runtime.progress import progress_bar

FloatArray = NDArray[np.float64]
TREES_OF_VALUES = 200  # with which the bundled model was trained
PROCESS_SHARE = 2 / 3  # chosen on five groups of scaffolds among BACE's training molecules


@dataclass(frozen=True)
class Link:
    """A binary task that says whether a regression task's value reaches a threshold.

    A teacher then also derives the class from the value: sigmoid(slope * (value - threshold)).
    """

    binary: str
    regression: str
    threshold: float
    slope: float = 1.5

    def agreeing(self, classes: NDArray[np.floating], values: NDArray[np.floating]) -> FloatArray:
        """Return the values (n,) from which the class is derived, contradictory ones replaced.

        A value on the wrong side of the threshold does not explain its class: an example is a weak
        binder listed as active because its crystal structure is known. It is replaced by the mean
        of its class, or NaN if the class has no other value.
        """
        reached = values >= self.threshold
        agreed = np.isnan(classes) | np.isnan(values) | (reached == (classes > 0.5))
        consistent = np.where(agreed, values, np.nan)
        for label in (0.0, 1.0):
            class_values = consistent[(classes == label) & ~np.isnan(consistent)]
            mean = class_values.mean() if len(class_values) else np.nan
            consistent[~agreed & (classes == label)] = mean
        return consistent


def counts_of(molecules: Molecules) -> Counts:
    """Return counts (n, 4096) of ECFP6 and of atom pairs (Carhart 1985), both without stereo."""
    return ecfp6_counts(molecules, stereo=False), atom_pair_counts(molecules)


@dataclass(frozen=True, eq=False)
class LinkedTeacher:
    """The weighted mean of a Gaussian process and forests, fitted only to training molecules.

    The process, which predicts new scaffolds better, has the weight `PROCESS_SHARE`. It compares
    ECFP6 counts and atom-pair counts. The forests are averaged over two kinds of fingerprint. A
    linked class is half predicted as such and half derived from the predicted value
    (`Link.agreeing`).

    Attributes:
        tasks: binary and regression tasks.
        links: classes that are also derived from a value.
        forests: those of each task, and of each link, one for each kind of fingerprint.
        out_of_bag: predictions (n, tasks + links) by the trees that did not see the molecule; NaN
            where its label is missing.
        process: the process, with a column for each task and link.
        counts: the counts of the molecules that carry the process.
    """

    tasks: Sequence[Task]
    links: Sequence[Link]
    forests: Sequence[Sequence[Forest]]
    out_of_bag: FloatArray
    process: Process
    counts: Counts

    @classmethod
    def fit(
        cls,
        tasks: Sequence[Task],
        smiles: Sequence[str],
        y: NDArray[np.floating],
        links: Sequence[Link] = (),
        show: bool | None = False,
    ) -> LinkedTeacher:
        """Learn labels y (n, tasks) of molecules (n,), NaN where one is missing.

        `show` is as for `progress_bar`.

        Raises:
            ValueError: a task has more than two classes.
        """
        if any(task.kind == "multiclass" for task in tasks):
            raise ValueError("forests can teach binary and regression tasks, not multi-class ones.")
        column = {task.name: values for task, values in zip(tasks, y.T, strict=True)}
        linked = [link.agreeing(column[link.binary], column[link.regression]) for link in links]
        labels = np.column_stack([y, *linked])
        fitted_tasks = [*tasks, *(Task(f"{link.binary} read", "regression") for link in links)]
        forests: list[list[Forest]] = []
        out_of_bag = np.full(labels.shape, np.nan)
        with progress_bar("fitting", 2 * len(fitted_tasks) + 1, show=show) as advance:
            molecules = parsed(smiles)
            inputs: list[NDArray[Any]] = [ecfp4(molecules), ecfp6_counts(molecules)]
            for k, task in enumerate(fitted_tasks):
                rows, values = ~np.isnan(labels[:, k]), labels[:, k].astype(np.float32)
                forests.append([])
                for x in inputs:
                    trees = TREES_OF_VALUES if task.kind == "regression" else TREES
                    each = Forest.fit(task, x[rows], values[rows], trees=trees, out_of_bag=True)
                    forests[-1].append(each)
                    advance(1)
                out_of_bag[rows, k] = np.mean([each.out_of_bag for each in forests[-1]], axis=0)
            counts, carriers = counts_of(molecules), carriers_of(len(smiles))
            carried = tuple(kind[carriers] for kind in counts)
            process = Process.fit(similarity(counts, carried), carriers, labels)
        return cls(tasks, links, forests, out_of_bag, process, carried)

    def predict(self, smiles: Sequence[str]) -> FloatArray:
        """Predict probabilities (binary) and values (regression), (n, tasks)."""
        molecules = parsed(smiles)
        return self._weighted(self.by_process(molecules), self.by_forests(molecules))

    def by_forests(self, molecules: Molecules) -> FloatArray:
        """Return the mean predictions of the forests, (n, tasks + links)."""
        inputs: list[NDArray[Any]] = [ecfp4(molecules), ecfp6_counts(molecules)]
        columns = [
            np.mean([f.predict(x) for f, x in zip(forests, inputs, strict=True)], axis=0)
            for forests in self.forests
        ]
        return np.stack(columns, axis=1).astype(np.float32).astype(np.float64)

    def by_process(self, molecules: Molecules) -> FloatArray:
        """Return the predictions of the process, (n, tasks + links)."""
        return self.process.predict(similarity(counts_of(molecules), self.counts))

    def left_out(self) -> FloatArray:
        """Predict each training molecule without having seen it, (n, tasks), NaN without a label.

        The prediction comes from the trees grown without the molecule, and from the process fitted
        to all others.
        """
        return self._weighted(self.process.left_out, self.out_of_bag)

    def _weighted(self, process: FloatArray, forests: FloatArray) -> FloatArray:
        """Return the weighted mean of predictions (n, tasks + links) as tasks, (n, tasks)."""
        return PROCESS_SHARE * self._linked(process) + (1 - PROCESS_SHARE) * self._linked(forests)

    def _linked(self, values: FloatArray) -> FloatArray:
        """Return the tasks' columns from values (n, tasks + links), with classes from 0 to 1."""
        count, names = len(self.tasks), [task.name for task in self.tasks]
        is_binary = np.array([task.kind == "binary" for task in self.tasks])
        predictions = np.where(is_binary, values[:, :count].clip(0, 1), values[:, :count])
        for link, value in zip(self.links, values[:, count:].T, strict=True):
            derived = 1 / (1 + np.exp(-link.slope * (value - link.threshold)))
            k = names.index(link.binary)
            predictions[:, k] = (predictions[:, k] + derived) / 2
        return predictions
