"""Labels that teach a Graphormer, the inputs of forests, and the teacher of the BACE model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from rdkit.Chem import rdMolDescriptors

from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import ecfp4
from graphxai.learning.teachers.forests import FingerprintForests
from graphxai.learning.teachers.gaussian_process import TanimotoProcess
from graphxai.runtime.progress import progress_bar

__all__ = [
    "Link",
    "LinkedTeacher",
    "forest_inputs",
    "joint_labels",
    "labels_with_teacher",
    "mixed_labels",
    "soft_labels",
    "stacking_share",
    "teacher_shares",
]

FloatArray = NDArray[np.float64]
MIN_LABELS = 20  # of a task that has a teacher
PROCESS_SHARE = 2 / 3  # chosen on five groups of scaffolds among BACE's training molecules
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
    """Return ECFP4 bits and 313 RDKit descriptors, (n, 2361).

    Undefined values are 0. The descriptors are properties, surface areas, counts and
    autocorrelations.
    """
    with rdBase.BlockLogs():
        rows = [
            [value for function in _DESCRIPTORS for value in function(mol)]
            for mol in map(Chem.MolFromSmiles, smiles)
        ]
    limit = float(np.finfo(np.float32).max)
    values = np.clip(np.nan_to_num(np.array(rows, dtype=np.float64)), -limit, limit)
    return np.concatenate([ecfp4(smiles), values.astype(np.float32)], axis=1)


def teacher_shares(
    teacher: Sequence[FloatArray | None], network: Sequence[FloatArray], y: FloatArray
) -> list[float | None]:
    """Choose the teacher's share for each task, see `stacking_share`.

    Args:
        teacher: its predictions for the validation part, by task; None where it has none.
        network: the network's predictions for the validation part, by task.
        y: the labels (n, tasks), NaN where one is missing.
    """
    return [
        None if by_teacher is None else stacking_share(by_teacher, by_network, labels)
        for by_teacher, by_network, labels in zip(teacher, network, y.T, strict=True)
    ]


def joint_labels(
    teacher: Sequence[FloatArray | None],
    network: Sequence[FloatArray],
    shares: Sequence[float | None],
    seed: int,
) -> FloatArray:
    """Label molecules by teacher and network together, (m, tasks), NaN without a teacher.

    Args:
        teacher: its predictions for the molecules, by task; None where it has none.
        network: the network's predictions, by task.
        shares: the teacher's share, by task.
        seed: seed of the classes that are drawn, see `soft_labels`.
    """
    columns = [
        np.full(len(by_network), np.nan)
        if by_teacher is None or share is None
        else soft_labels(share * by_teacher + (1 - share) * by_network, seed)
        for by_teacher, by_network, share in zip(teacher, network, shares, strict=True)
    ]
    return np.stack(columns, axis=1)


def labels_with_teacher(
    y: FloatArray,
    left_out: Sequence[FloatArray | None],
    shares: Sequence[float | None],
    taught: FloatArray,
) -> FloatArray:
    """Return the training labels moved towards the teacher, (m, tasks).

    Args:
        y: the measured labels (m, tasks), NaN where one is missing.
        left_out: the teacher's predictions without the label, by task; None where it has none.
        shares: the teacher's share, by task.
        taught: labels by teacher and network (m, tasks), which fill the gaps.
    """
    columns = [
        labels if by_teacher is None or share is None else mixed_labels(labels, by_teacher, share)
        for labels, by_teacher, share in zip(y.T, left_out, shares, strict=True)
    ]
    mixed = np.stack(columns, axis=1)
    return np.where(np.isnan(mixed), taught, mixed)


def stacking_share(teacher: FloatArray, network: FloatArray, y: FloatArray) -> float:
    """Find the teacher's share s in s teacher + (1 - s) network with the least squared error.

    Stacking with non-negative weights that sum to 1 (Breiman 1996). Predictions are readings (n,)
    or (n, C) for labels y (n,), NaN where missing; with fewer than 20 labels s is one half.
    """
    labelled = ~np.isnan(y)
    if labelled.sum() < MIN_LABELS:
        return 0.5
    teacher, network, truth = teacher[labelled], network[labelled], y[labelled]
    if teacher.ndim == 2:
        truth = np.eye(teacher.shape[1])[truth.astype(int)]
    difference = teacher - network
    total = float((difference**2).sum())
    return float(np.clip(((truth - network) * difference).sum() / total, 0, 1)) if total else 0.5


def mixed_labels(y: FloatArray, left_out: FloatArray, share: float) -> FloatArray:
    """Mix training labels y (n,) with the teacher's predictions without them, at half its share.

    (1 - s / 2) y + s / 2 t for the share s and the prediction t; y where t is missing.
    """
    mixed = (1 - share / 2) * y + share / 2 * left_out
    return np.where(np.isnan(mixed), y, mixed)


def soft_labels(readings: FloatArray, seed: int = 0) -> FloatArray:
    """Turn predictions into labels (n,) to learn from.

    Values and probabilities of two classes (n,) are labels already. Of several classes (n, C), one
    is drawn for each molecule. In expectation, it has the same cross-entropy as the probabilities.
    """
    if readings.ndim == 1:
        return readings
    chance = np.random.default_rng(seed).random((len(readings), 1))
    below = (readings.cumsum(1) < chance).sum(1)
    return np.minimum(below, readings.shape[1] - 1).astype(np.float64)  # the sum may round below 1


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
            of_class = consistent[(classes == label) & ~np.isnan(consistent)]
            mean = of_class.mean() if len(of_class) else np.nan
            consistent[~agreed & (classes == label)] = mean
        return consistent


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
        fitted = [*tasks, *(Task(f"{link.binary} read", "regression") for link in links)]
        with progress_bar("fitting", 2 * len(fitted) + 1, show=show) as advance:
            self._forests = FingerprintForests(fitted, smiles, labels.astype(np.float32), advance)
            self._process = TanimotoProcess(smiles, labels)

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
