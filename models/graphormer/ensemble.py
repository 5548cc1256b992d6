"""The teacher of `recipes.distil`: random forests and a Gaussian process, which know the labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


class Ensemble:
    """The weighted mean of a Gaussian process and forests, fitted to training molecules alone.

    The process, which foretells new scaffolds better, has `PROCESS_SHARE` of the say. `smiles` (n,)
    and `y` (n, tasks), NaN where a label is missing; no multi-class tasks.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        smiles: Sequence[str],
        y: NDArray[np.floating],
        links: Sequence[Link] = (),
    ) -> None:
        self._tasks, self._links = tuple(tasks), tuple(links)
        self._forests = Forests(tasks, smiles, y.astype(np.float32))
        self._process = TanimotoProcess(smiles, y)

    def predict(self, smiles: Sequence[str]) -> FloatArray:
        """Probabilities (binary) and values (regression), (n, tasks)."""
        forests = self._linked(self._forests.predict(smiles).astype(np.float64))
        return _weighted(self._linked(self._process.predict(smiles)), forests)

    def left_out(self) -> FloatArray:
        """What it says of each training molecule without having seen it; NaN without a label.

        (n, tasks): of the trees that were grown without the molecule, and of the process that was
        fitted to all others.
        """
        forests, process = self._forests.out_of_bag, self._process.left_out
        return self._linked(_weighted(self._probabilities(process), forests))

    def _linked(self, values: FloatArray) -> FloatArray:
        """Values (n, tasks) whose classes, within 0 to 1, are half those of the linked value."""
        values = self._probabilities(values)
        names = [task.name for task in self._tasks]
        for link in self._links:
            k, r = names.index(link.binary), names.index(link.regression)
            read = 1 / (1 + np.exp(-link.slope * (values[:, r] - link.threshold)))
            values[:, k] = (values[:, k] + read) / 2
        return values

    def _probabilities(self, values: FloatArray) -> FloatArray:
        """A copy whose binary tasks lie within 0 to 1."""
        is_binary = np.array([task.kind == "binary" for task in self._tasks])
        return np.where(is_binary, values.clip(0, 1), values)


def _weighted(process: FloatArray, forests: FloatArray) -> FloatArray:
    return PROCESS_SHARE * process + (1 - PROCESS_SHARE) * forests
