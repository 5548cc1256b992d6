"""Join what a teacher and networks predict into labels, from which another network learns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from graphxai.learning.teachers.stacking import MIN_LABELS

FloatArray = NDArray[np.float64]
MOVED = 0.3  # how far a label moves towards a teacher that has the whole share


def teacher_shares(
    teacher: Sequence[FloatArray | None], network: Sequence[FloatArray], y: FloatArray
) -> list[float | None]:
    """Choose the teacher's share for each task, see `stacking_share`.

    Args:
        teacher: its predictions for molecules that it has not seen, by task; None where it has
            none.
        network: the network's predictions for these molecules, by task.
        y: the labels (n, tasks), NaN where one is missing.
    """
    return [
        None if by_teacher is None else stacking_share(by_teacher, by_network, labels)
        for by_teacher, by_network, labels in zip(teacher, network, y.T, strict=True)
    ]


def joint_readings(
    teacher: Sequence[FloatArray | None],
    network: Sequence[FloatArray],
    shares: Sequence[float | None],
) -> list[FloatArray]:
    """Return s teacher + (1 - s) network by task, and the network's where the teacher has none.

    Args:
        teacher: its predictions for some molecules, by task; None where it has none.
        network: the network's predictions, by task.
        shares: the teacher's share s, by task; None for a task without a teacher.
    """
    joint = []
    for by_teacher, by_network, share in zip(teacher, network, shares, strict=True):
        if by_teacher is None or share is None:
            joint.append(by_network)
        else:
            mixed = share * by_teacher + (1 - share) * by_network
            joint.append(np.where(np.isnan(mixed), by_network, mixed))
    return joint


def shares_text(shares: Mapping[str, float | None]) -> str:
    """List the teacher's share for every task, even if it is 0."""
    return ", ".join(
        f"{name} " + ("none (too few labels)" if share is None else f"{share:.2f}")
        for name, share in shares.items()
    )


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

    This is stacking with non-negative weights that sum to 1 (Breiman 1996). Predictions are
    readings (n,) or (n, C) for labels y (n,), NaN where one is missing. With fewer than 20 labels
    of molecules that the teacher predicts, s is one half.
    """
    predicted = ~np.isnan(teacher.reshape(len(y), -1)).any(1)
    labelled = ~np.isnan(y) & predicted
    if labelled.sum() < MIN_LABELS:
        return 0.5
    teacher, network, truth = teacher[labelled], network[labelled], y[labelled]
    if teacher.ndim == 2:
        truth = np.eye(teacher.shape[1])[truth.astype(int)]
    difference = teacher - network
    total = float((difference**2).sum())
    return float(np.clip(((truth - network) * difference).sum() / total, 0, 1)) if total else 0.5


def mixed_labels(y: FloatArray, left_out: FloatArray, share: float) -> FloatArray:
    """Mix training labels y (n,) with the teacher's predictions without them.

    The result is (1 - 0.3 s) y + 0.3 s t for the teacher's share s and its prediction t. It is y
    where t is missing.
    """
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
