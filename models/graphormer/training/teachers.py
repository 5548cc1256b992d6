"""Models that teach a Graphormer: a forest for a table's task, and an ensemble for BACE.

All learn from the training molecules alone. Needs scikit-learn (extra `train`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from rdkit.Chem import rdMolDescriptors

from graphxai.datasets.fingerprints import ecfp4
from graphxai.datasets.progress import progress_bar
from graphxai.models.graphormer.config import Task

from .forests import Forest, Forests
from .gaussian_process import TanimotoProcess

__all__ = [
    "Ensemble",
    "Link",
    "Teacher",
    "forest_inputs",
    "mixed_labels",
    "soft_labels",
    "stacking_share",
]

FloatArray = NDArray[np.float64]
MIN_LABELS = 20  # fewer teach nothing
PROCESS_SHARE = 2 / 3  # chosen on five groups of scaffolds within BACE's training molecules
_PROPERTIES = rdMolDescriptors.Properties()
_DESCRIPTORS = (
    lambda mol: list(_PROPERTIES.ComputeProperties(mol)),
    rdMolDescriptors.SlogP_VSA_,
    rdMolDescriptors.SMR_VSA_,
    rdMolDescriptors.PEOE_VSA_,
    rdMolDescriptors.MQNs_,
    rdMolDescriptors.CalcAUTOCORR2D,
)


def forest_inputs(smiles: Sequence[str]) -> NDArray[np.float32]:
    """ECFP4 bits beside 313 RDKit descriptors: properties, surface areas, counts, correlations.

    (n, 2361); what is undefined is 0.
    """
    with rdBase.BlockLogs():
        rows = [
            [value for function in _DESCRIPTORS for value in function(mol)]
            for mol in map(Chem.MolFromSmiles, smiles)
        ]
    limit = float(np.finfo(np.float32).max)
    values = np.clip(np.nan_to_num(np.array(rows, dtype=np.float64)), -limit, limit)
    return np.concatenate([ecfp4(smiles), values.astype(np.float32)], axis=1)


@dataclass(frozen=True, eq=False)
class Teacher:
    """A forest fitted to one task, and what it says of the molecules it was fitted to.

    `out_of_bag` (n,) is NaN where the label was missing, and elsewhere the prediction of those
    trees that did not see the molecule; for a task of several classes it is all NaN.
    """

    forest: Forest
    out_of_bag: FloatArray

    @classmethod
    def fit(
        cls, task: Task, inputs: NDArray[np.float32], y: FloatArray, seed: int = 0
    ) -> Teacher | None:
        """Learn labels y (n,), NaN where missing; None with fewer than 20, or all of them equal."""
        known = ~np.isnan(y)
        if known.sum() < MIN_LABELS or len(np.unique(y[known])) < 2:
            return None
        forest = Forest.fit(task, inputs[known], y[known], out_of_bag=True, seed=seed)
        out_of_bag = np.full(len(y), np.nan)
        out_of_bag[known] = forest.out_of_bag
        return cls(forest, out_of_bag)

    def readings(self, inputs: NDArray[np.float32]) -> FloatArray:
        """Probabilities or values for molecules, in the form of `scores.readings`."""
        return self.forest.predict(inputs)


def stacking_share(forest: FloatArray, network: FloatArray, y: FloatArray) -> float:
    """The share s of the forest in s forest + (1 - s) network with the least squared error.

    Stacking with weights that are not negative and sum to 1 (Breiman 1996). Predictions are
    readings (n,) or (n, C) for labels y (n,), NaN where missing; with fewer than 20 labels it is
    one half.
    """
    known = ~np.isnan(y)
    if known.sum() < MIN_LABELS:
        return 0.5
    forest, network, truth = forest[known], network[known], y[known]
    if forest.ndim == 2:
        truth = np.eye(forest.shape[1])[truth.astype(int)]
    apart = forest - network
    total = float((apart**2).sum())
    return float(np.clip(((truth - network) * apart).sum() / total, 0, 1)) if total else 0.5


def mixed_labels(y: FloatArray, out_of_bag: FloatArray, share: float) -> FloatArray:
    """Labels (n,) of the training molecules: half the forest's share is its own prediction.

    (1 - s / 2) y + s / 2 t for the share s and the prediction t out of bag; y where t is missing.
    """
    mixed = (1 - share / 2) * y + share / 2 * out_of_bag
    return np.where(np.isnan(mixed), y, mixed)


def soft_labels(readings: FloatArray, seed: int = 0) -> FloatArray:
    """Labels (n,) that teach `readings`: themselves, or of several classes one drawn from them.

    A class drawn from the probabilities has, in expectation, the cross-entropy with them.
    """
    if readings.ndim == 1:
        return readings
    chance = np.random.default_rng(seed).random((len(readings), 1))
    below = (readings.cumsum(1) < chance).sum(1)
    return np.minimum(below, readings.shape[1] - 1).astype(np.float64)  # the sum may round below 1


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
