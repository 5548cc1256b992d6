"""The teacher of `recipes.distil`: random forests and a Gaussian process, which know the labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphxai.progress import progress_bar

from .config import Task
from .gaussian_process import TanimotoProcess
from .teacher import Forests

__all__ = ["Ensemble", "Link"]

FloatArray = NDArray[np.float64]
PROCESS_SHARE = 2 / 3  # chosen on five groups of scaffolds within BACE's training molecules


@dataclass(frozen=True)
class Link:
    """A binary task that says whether a regression task's value reaches a threshold.

    A teacher then reads the class from the value too: sigmoid(slope * (value - threshold)).
    """

    binary: str
    regression: str
    threshold: float
    slope: float = 1.5

    def agreeing(self, classes: NDArray[np.floating], values: NDArray[np.floating]) -> FloatArray:
        """The values (n,) of which the class is read: those that contradict theirs give way.

        A value on the wrong side of the threshold, such as that of a weak binder listed as active
        because its crystal structure is known, says nothing of why it was given its class. The mean
        of the class stands in its place; NaN where the class has no other value.
        """
        reached = values >= self.threshold
        agreed = np.isnan(classes) | np.isnan(values) | (reached == (classes > 0.5))
        found = np.where(agreed, values, np.nan)
        for given in (0.0, 1.0):
            rest = found[(classes == given) & ~np.isnan(found)]
            found[~agreed & (classes == given)] = rest.mean() if len(rest) else np.nan
        return found


class Ensemble:
    """The weighted mean of a Gaussian process and forests, fitted to training molecules alone.

    The process, which foretells new scaffolds better, has `PROCESS_SHARE` of the say. A linked
    class is half what is said of it and half what is read of its value (`Link.agreeing`). `smiles`
    (n,) and `y` (n, tasks), NaN where a label is missing; no multi-class tasks. `show`: as
    for `progress_bar`.
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
        # Columns of y, then one a link: the values that its class is read of.
        read = [
            link.agreeing(y[:, k], y[:, names.index(link.regression)])
            for link, k in zip(links, self._linked_columns, strict=True)
        ]
        labels = np.column_stack([y, *read])
        fitted = [*tasks, *(Task(f"{link.binary} read", "regression") for link in links)]
        with progress_bar("fitting", 2 * len(fitted) + 1, show=show) as tick:
            self._forests = Forests(fitted, smiles, labels.astype(np.float32), tick)
            self._process = TanimotoProcess(smiles, labels)

    def predict(self, smiles: Sequence[str]) -> FloatArray:
        """Probabilities (binary) and values (regression), (n, tasks)."""
        forests = self._forests.predict(smiles).astype(np.float64)
        return self._weighted(self._process.predict(smiles), forests)

    def left_out(self) -> FloatArray:
        """What it says of each training molecule without having seen it; NaN without a label.

        (n, tasks): of the trees that were grown without the molecule, and of the process that was
        fitted to all others.
        """
        return self._weighted(self._process.left_out, self._forests.out_of_bag)

    def _weighted(self, process: FloatArray, forests: FloatArray) -> FloatArray:
        own = self._linked(process), self._linked(forests)
        return PROCESS_SHARE * own[0] + (1 - PROCESS_SHARE) * own[1]

    def _linked(self, values: FloatArray) -> FloatArray:
        """Columns of the tasks, of values (n, tasks + links); classes within 0 to 1."""
        count = len(self._tasks)
        is_binary = np.array([task.kind == "binary" for task in self._tasks])
        found = np.where(is_binary, values[:, :count].clip(0, 1), values[:, :count])
        for link, k, value in zip(
            self._links, self._linked_columns, values[:, count:].T, strict=True
        ):
            read = 1 / (1 + np.exp(-link.slope * (value - link.threshold)))
            found[:, k] = (found[:, k] + read) / 2
        return found
