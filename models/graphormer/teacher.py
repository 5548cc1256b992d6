"""Random forests on fingerprints: the bar a model must reach, and a teacher it can learn from.

Needs scikit-learn (extra `train`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from rdkit.Chem import rdFingerprintGenerator

from graphxai.progress import Tick, unseen

from .config import Task

__all__ = ["Forests", "ecfp4", "reference_forest"]

FloatArray = NDArray[np.float32]


def ecfp4(smiles: Sequence[str], bits: int = 2048) -> FloatArray:
    """ECFP4 (Rogers 2010) as bits, (n, bits)."""
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=bits)
    return _rows(generator.GetFingerprintAsNumPy, smiles)


def ecfp6_counts(smiles: Sequence[str], bits: int = 4096, *, stereo: bool = True) -> FloatArray:
    """ECFP6, counted, (n, bits); stereo: whether the hand of a centre counts."""
    generator = rdFingerprintGenerator.GetMorganGenerator(
        radius=3, fpSize=bits, includeChirality=stereo
    )
    return _rows(generator.GetCountFingerprintAsNumPy, smiles)


def atom_pair_counts(smiles: Sequence[str], bits: int = 4096) -> FloatArray:
    """Pairs of atoms with the bonds between them (Carhart 1985), counted, (n, bits)."""
    generator = rdFingerprintGenerator.GetAtomPairGenerator(fpSize=bits)
    return _rows(generator.GetCountFingerprintAsNumPy, smiles)


def reference_forest(
    smiles: Sequence[str], active: NDArray[Any], test: Sequence[str], seed: int = 0
) -> FloatArray:
    """Probability of the class for `test` from 500 trees on ECFP4, trained on `smiles`."""
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(500, random_state=seed, n_jobs=1)
    forest.fit(ecfp4(smiles), active)
    return forest.predict_proba(ecfp4(test))[:, 1].astype(np.float32)


class Forests:
    """Forests for every task of a table, two kinds of fingerprint averaged.

    `smiles` (n,) and `y` (n, tasks), NaN where a label is missing, are the training molecules
    alone. Multi-class tasks are not supported.

    `tick` is called with 1 for every forest, two a task. `out_of_bag` (n, tasks) is what the trees
    that did not see a molecule say of it; NaN where its label is missing.
    """

    def __init__(
        self, tasks: Sequence[Task], smiles: Sequence[str], y: FloatArray, tick: Tick = unseen
    ) -> None:
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        self.tasks = tuple(tasks)
        if any(task.kind == "multiclass" for task in self.tasks):
            raise ValueError("forests teach binary and regression tasks, not multi-class ones.")
        inputs = [ecfp4(smiles), ecfp6_counts(smiles)]
        self._fitted: list[list[Any]] = []
        self.out_of_bag = np.full(y.shape, np.nan)
        options: dict[str, Any] = {"oob_score": True, "random_state": 0, "n_jobs": 1}
        for k, task in enumerate(self.tasks):
            present = ~np.isnan(y[:, k])
            forests = []
            for features in inputs:
                if task.kind == "binary":
                    forest: Any = RandomForestClassifier(500, **options)
                else:
                    forest = RandomForestRegressor(200, max_features=0.2, **options)
                forests.append(forest.fit(features[present], y[present, k]))
                tick(1)
            self._fitted.append(forests)
            self.out_of_bag[present, k] = np.mean([_out_of_bag(f) for f in forests], axis=0)

    def predict(self, smiles: Sequence[str]) -> FloatArray:
        """Probabilities (binary) and values (regression), (n, tasks)."""
        inputs = [ecfp4(smiles), ecfp6_counts(smiles)]
        columns = []
        for task, forests in zip(self.tasks, self._fitted, strict=True):
            each = [
                _probability(forest, x) if task.kind == "binary" else forest.predict(x)
                for forest, x in zip(forests, inputs, strict=True)
            ]
            columns.append(np.mean(each, axis=0))
        return np.stack(columns, axis=1).astype(np.float32)


def _probability(forest: Any, features: FloatArray) -> NDArray[Any]:
    """Probability of class 1, also where the training molecules held one class only."""
    return _column_of_one(forest, forest.predict_proba(features))


def _out_of_bag(forest: Any) -> NDArray[Any]:
    """What the trees say of the molecules that they did not see."""
    if hasattr(forest, "classes_"):
        return _column_of_one(forest, forest.oob_decision_function_)
    return forest.oob_prediction_


def _column_of_one(forest: Any, probabilities: NDArray[Any]) -> NDArray[Any]:
    column = np.flatnonzero(forest.classes_ == 1.0)
    return probabilities[:, column].sum(1)


def _rows(fingerprint: Any, smiles: Sequence[str]) -> FloatArray:
    with rdBase.BlockLogs():
        return np.stack([fingerprint(Chem.MolFromSmiles(s)) for s in smiles]).astype(np.float32)
