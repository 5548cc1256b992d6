"""Tell how near a molecule is to the training set.

This takes a while, so it is only computed when it is first read.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from graphxai.contract.inputs import Input
from graphxai.datasets.training_set import UNKNOWN, Nearness, TrainingSet
from graphxai.explanation.explanation import Explanation


def nearness_when_read(
    item: Input, training: TrainingSet | None
) -> Nearness | Callable[[], Nearness] | None:
    """Return a function that computes the nearness once, for all tasks.

    Without a training set the nearness is `UNKNOWN`. For a graph that is no molecule, return None.
    """
    if item.molecule is None and item.smiles is None:
        return None
    if training is None:
        return UNKNOWN
    return cache(partial(_nearness, training, item.molecule or item.smiles))


def nearness_of(item: Input, training: TrainingSet | None) -> Nearness | None:
    """Return how near a molecule is to the training set, or None for other graphs."""
    nearness = nearness_when_read(item, training)
    return nearness() if callable(nearness) else nearness


def set_nearness(explanation: Explanation, training: TrainingSet | None) -> None:
    """Add the nearness to the predictions of an explanation that was made without it."""
    molecule = explanation.mol if explanation.mol is not None else explanation.smiles
    if training is not None and molecule is not None:
        nearness = cache(partial(_nearness, training, molecule))
        for prediction in explanation.predictions:
            prediction.set_nearness(nearness)


def _nearness(training: TrainingSet, molecule: Any) -> Nearness:
    """Compute the nearness of a molecule, which is an RDKit molecule or a SMILES."""
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        return training.nearness(
            Chem.MolFromSmiles(molecule) if isinstance(molecule, str) else molecule
        )
