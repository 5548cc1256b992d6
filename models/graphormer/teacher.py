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

from .config import Task

__all__ = ["Forests", "ecfp4", "reference_forest"]

FloatArray = NDArray[np.float32]


def ecfp4(smiles: Sequence[str], bits: int = 2048) -> FloatArray:
    """ECFP4 (Rogers 2010) as bits, (n, bits)."""
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=bits)
    return _rows(generator.GetFingerprintAsNumPy, smiles)


def ecfp6_counts(smiles: Sequence[str], bits: int = 4096) -> FloatArray:
    """ECFP6 with chirality, counted, (n, bits)."""
    generator = rdFingerprintGenerator.GetMorganGenerator(
        radius=3, fpSize=bits, includeChirality=True
    )
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
    """

    def __init__(self, tasks: Sequence[Task], smiles: Sequence[str], y: FloatArray) -> None:
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        self.tasks = tuple(tasks)
        if any(task.kind == "multiclass" for task in self.tasks):
            raise ValueError("forests teach binary and regression tasks, not multi-class ones.")
        inputs = [ecfp4(smiles), ecfp6_counts(smiles)]
        self._fitted: list[list[Any]] = []
        for k, task in enumerate(self.tasks):
            present = ~np.isnan(y[:, k])
            forests = []
            for features in inputs:
                if task.kind == "binary":
                    forest: Any = RandomForestClassifier(500, random_state=0, n_jobs=1)
                else:
                    forest = RandomForestRegressor(200, max_features=0.2, random_state=0, n_jobs=1)
                forests.append(forest.fit(features[present], y[present, k]))
            self._fitted.append(forests)

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
    column = list(forest.classes_).index(1.0) if 1.0 in forest.classes_ else None
    if column is None:
        return np.zeros(len(features))
    return forest.predict_proba(features)[:, column]


def _rows(fingerprint: Any, smiles: Sequence[str]) -> FloatArray:
    with rdBase.BlockLogs():
        return np.stack([fingerprint(Chem.MolFromSmiles(s)) for s in smiles]).astype(np.float32)
