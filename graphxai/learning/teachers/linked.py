"""The teacher of the BACE model, in which a class is also derived from a value.

It can be stored as arrays, so that an interrupted run does not fit it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import (
    BITS,
    COUNTS,
    atom_pair_counts,
    ecfp4,
    ecfp6_counts,
)
from graphxai.learning.teachers.forests import Forest, StoredTrees
from graphxai.learning.teachers.gaussian_process import Counts, Process, carriers_of, similarity
from graphxai.runtime.progress import Progress, no_progress, progress_bar

__all__ = ["FingerprintForests", "Link", "LinkedTeacher", "TanimotoProcess"]

FloatArray = NDArray[np.float64]
CHUNK = 1_000  # molecules whose fingerprints are computed at a time
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


def _fitted_tasks(tasks: Sequence[Task], links: Sequence[Link]) -> list[Task]:
    """Return the tasks, and for each link the value from which its class is derived."""
    return [*tasks, *(Task(f"{link.binary} read", "regression") for link in links)]


class FingerprintForests:
    """Forests for every task of a table, averaged over two kinds of fingerprint.

    Args:
        tasks: binary and regression tasks.
        smiles: the training molecules (n,).
        y: their labels (n, tasks), NaN where one is missing.
        progress: called with 1 for every forest, two per task.

    Attributes:
        out_of_bag: predictions (n, tasks) by the trees that did not see the molecule; NaN where its
            label is missing.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        smiles: Sequence[str],
        y: NDArray[np.floating],
        progress: Progress = no_progress,
    ) -> None:
        if any(task.kind == "multiclass" for task in tasks):
            raise ValueError("forests can teach binary and regression tasks, not multi-class ones.")
        inputs = [ecfp4(smiles), ecfp6_counts(smiles)]
        self._fitted: list[list[Forest]] = []
        self.out_of_bag = np.full(y.shape, np.nan)
        for k, task in enumerate(tasks):
            labelled = ~np.isnan(y[:, k])
            fitted: list[Forest] = []
            for x in inputs:
                fitted.append(Forest.fit(task, x[labelled], y[labelled, k], out_of_bag=True))
                progress(1)
            self._fitted.append(fitted)
            self.out_of_bag[labelled, k] = np.mean([f.out_of_bag for f in fitted], axis=0)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the forests as arrays by name."""
        arrays: dict[str, NDArray[Any]] = {"out_of_bag": self.out_of_bag}
        for k, forests in enumerate(self._fitted):
            for kind, forest in enumerate(forests):
                arrays |= StoredTrees.of(forest.trees).arrays(f"{k}/{kind}")
        return arrays

    @classmethod
    def from_arrays(
        cls, tasks: Sequence[Task], arrays: Mapping[str, NDArray[Any]]
    ) -> FingerprintForests:
        """Make forests from what `arrays` returned for forests of these tasks.

        Raises:
            KeyError, ValueError: the arrays are not those of such forests.
        """
        stored = cls.__new__(cls)
        stored.out_of_bag = arrays["out_of_bag"]
        stored._fitted = [
            [
                Forest.from_arrays(task, arrays, f"{k}/{kind}", width)
                for kind, width in enumerate((BITS, COUNTS))
            ]
            for k, task in enumerate(tasks)
        ]
        return stored

    def predict(self, smiles: Sequence[str]) -> NDArray[np.float32]:
        """Predict probabilities (binary) and values (regression), (n, tasks)."""
        inputs = [ecfp4(smiles), ecfp6_counts(smiles)]
        columns = [
            np.mean([f.predict(x) for f, x in zip(forests, inputs, strict=True)], axis=0)
            for forests in self._fitted
        ]
        return np.stack(columns, axis=1).astype(np.float32)


def counts_of(smiles: Sequence[str]) -> Counts:
    """Return counts (n, 4096) of ECFP6 and of atom pairs (Carhart 1985), both without stereo."""
    parts = [smiles[first : first + CHUNK] for first in range(0, len(smiles), CHUNK)]
    environments = [ecfp6_counts(part, stereo=False).astype(np.uint16) for part in parts]
    pairs = [atom_pair_counts(part).astype(np.uint16) for part in parts]
    return np.concatenate(environments), np.concatenate(pairs)


class TanimotoProcess:
    """A `Process` on the mean similarity of ECFP6 counts and atom-pair counts.

    Args:
        smiles: the training molecules (n,).
        y: their labels (n, tasks), NaN where one is missing.

    Attributes:
        left_out: see `Process`.
    """

    def __init__(self, smiles: Sequence[str], y: NDArray[np.floating]) -> None:
        counts, carriers = counts_of(smiles), carriers_of(len(smiles))
        self._counts = tuple(kind[carriers] for kind in counts)
        self._process = Process.fit(similarity(counts, self._counts), carriers, y)
        self.left_out = self._process.left_out

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the process as arrays by name."""
        return vars(self._process) | {f"counts/{k}": kind for k, kind in enumerate(self._counts)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> TanimotoProcess:
        """Make a process from what `arrays` returned.

        Raises:
            KeyError, ValueError: the arrays are not those of a process.
        """
        stored = cls.__new__(cls)
        stored._process = Process(arrays["weights"], arrays["means"], arrays["left_out"])
        stored._counts = arrays["counts/0"], arrays["counts/1"]
        stored.left_out = stored._process.left_out
        shapes = (len(arrays["weights"]), len(arrays["means"]))
        if {len(kind) for kind in stored._counts} != {shapes[0]}:
            raise ValueError("a stored process has other molecules than its counts")
        if arrays["weights"].shape != shapes or stored.left_out.shape[1:] != shapes[1:]:
            raise ValueError(f"a stored process does not have {shapes[1]} columns")
        return stored

    def predict(self, smiles: Sequence[str]) -> FloatArray:
        """Predict molecules, (n, tasks)."""
        return self._process.predict(similarity(counts_of(smiles), self._counts))


class LinkedTeacher:
    """The weighted mean of a Gaussian process and forests, fitted only to training molecules.

    The process, which predicts new scaffolds better, has the weight `PROCESS_SHARE`. A linked class
    is half predicted as such and half derived from the predicted value (`Link.agreeing`).

    Args:
        tasks: binary and regression tasks.
        smiles: the training molecules (n,).
        y: their labels (n, tasks), NaN where one is missing.
        links: classes that are also derived from a value.
        show: as for `progress_bar`.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        smiles: Sequence[str],
        y: NDArray[np.floating],
        links: Sequence[Link] = (),
        show: bool | None = False,
    ) -> None:
        self._tasks, self._links = tuple(tasks), tuple(links)
        names = [task.name for task in tasks]
        self._linked_columns = [names.index(link.binary) for link in links]
        # The columns of y, then one per link: the values from which its class is derived.
        linked_values = [
            link.agreeing(y[:, k], y[:, names.index(link.regression)])
            for link, k in zip(links, self._linked_columns, strict=True)
        ]
        labels = np.column_stack([y, *linked_values])
        fitted = _fitted_tasks(tasks, links)
        with progress_bar("fitting", 2 * len(fitted) + 1, show=show) as advance:
            self._forests = FingerprintForests(fitted, smiles, labels.astype(np.float32), advance)
            self._process = TanimotoProcess(smiles, labels)

    def to_bytes(self) -> bytes:
        """Return the fitted teacher as arrays, in the format of safetensors."""
        parts = {"forests": self._forests.arrays(), "process": self._process.arrays()}
        arrays = {f"{part}/{n}": array for part, of in parts.items() for n, array in of.items()}
        return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})

    @classmethod
    def from_bytes(
        cls, content: bytes, tasks: Sequence[Task], links: Sequence[Link] = ()
    ) -> LinkedTeacher:
        """Read a teacher that `to_bytes` wrote.

        Args:
            content: the arrays.
            tasks: the tasks that it was fitted to.
            links: its links.

        Raises:
            ValueError: the content is damaged, or belongs to other tasks.
        """
        teacher = cls.__new__(cls)
        teacher._tasks, teacher._links = tuple(tasks), tuple(links)
        names = [task.name for task in tasks]
        teacher._linked_columns = [names.index(link.binary) for link in links]
        try:
            by_part: dict[str, dict[str, NDArray[Any]]] = {"forests": {}, "process": {}}
            for name, array in load(content).items():
                part, _, inside = name.partition("/")
                by_part[part][inside] = array
            fitted = _fitted_tasks(tasks, links)
            teacher._forests = FingerprintForests.from_arrays(fitted, by_part["forests"])
            teacher._process = TanimotoProcess.from_arrays(by_part["process"])
        except (KeyError, SafetensorError, TypeError) as error:
            raise ValueError(f"the stored teacher is damaged: {error!r}") from error
        return teacher

    def predict(self, smiles: Sequence[str]) -> FloatArray:
        """Predict probabilities (binary) and values (regression), (n, tasks)."""
        forests = self._forests.predict(smiles).astype(np.float64)
        return self._weighted(self._process.predict(smiles), forests)

    def left_out(self) -> FloatArray:
        """Predict each training molecule without having seen it, (n, tasks), NaN without a label.

        The prediction comes from the trees grown without the molecule, and from the process fitted
        to all others.
        """
        return self._weighted(self._process.left_out, self._forests.out_of_bag)

    def _weighted(self, process: FloatArray, forests: FloatArray) -> FloatArray:
        """Return the weighted mean of predictions (n, tasks + links) as tasks, (n, tasks)."""
        return PROCESS_SHARE * self._linked(process) + (1 - PROCESS_SHARE) * self._linked(forests)

    def _linked(self, values: FloatArray) -> FloatArray:
        """Return the tasks' columns from values (n, tasks + links), with classes from 0 to 1."""
        count = len(self._tasks)
        is_binary = np.array([task.kind == "binary" for task in self._tasks])
        predictions = np.where(is_binary, values[:, :count].clip(0, 1), values[:, :count])
        for link, k, value in zip(
            self._links, self._linked_columns, values[:, count:].T, strict=True
        ):
            derived = 1 / (1 + np.exp(-link.slope * (value - link.threshold)))
            predictions[:, k] = (predictions[:, k] + derived) / 2
        return predictions
