"""Tell how near a molecule is to the training set.

This takes a while, so it is only computed when it is first read.
"""

import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from graphxai.contract.inputs import Input
from graphxai.datasets.training_set import UNKNOWN, Nearness, TrainingSet
from graphxai.explanation.explanation import Explanation

if TYPE_CHECKING:
    from rdkit.Chem import Mol


class _Once:
    """A nearness that is computed in the first call, for all tasks.

    Every molecule of a table gets one, and `functools.cache` takes several times as long to make.
    """

    __slots__ = ("_compute", "_nearness")

    def __init__(self, compute: Callable[[], Nearness]) -> None:
        self._compute = compute
        self._nearness: Nearness | None = None

    def __call__(self) -> Nearness:
        if self._nearness is None:
            self._nearness = self._compute()
        return self._nearness


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
    # A result may outlive its input by far, and must not keep the molecule that was read.
    read = None if item.read is None else weakref.ref(item.read)
    return _Once(partial(_nearness, training, item.molecule or item.smiles, read))


def nearness_of(item: Input, training: TrainingSet | None) -> Nearness | None:
    """Return how near a molecule is to the training set, or None for other graphs."""
    nearness = nearness_when_read(item, training)
    return nearness() if callable(nearness) else nearness


def set_nearness(explanation: Explanation, training: TrainingSet | None) -> None:
    """Add the nearness to the predictions of an explanation that was made without it."""
    molecule = explanation.mol if explanation.mol is not None else explanation.smiles
    if training is not None and molecule is not None:
        nearness = _Once(partial(_nearness, training, molecule))
        for prediction in explanation.predictions:
            prediction.set_nearness(nearness)


def read_nearness(explanation: Explanation) -> None:
    """Compute the nearness of an explanation now, instead of when it is first read."""
    for prediction in explanation.predictions:
        _ = prediction.nearness


def _nearness(
    training: TrainingSet, molecule: Any, read: "weakref.ref[Mol] | None" = None
) -> Nearness:
    """Compute the nearness of a molecule, which is an RDKit molecule or a SMILES.

    If the form in which it was read still exists, it is not read again.
    """
    from rdkit import Chem, rdBase

    at_hand = None if read is None else read()
    with rdBase.BlockLogs():
        if at_hand is not None:
            molecule = at_hand
        elif isinstance(molecule, str):
            molecule = Chem.MolFromSmiles(molecule)
        return training.nearness(molecule)
