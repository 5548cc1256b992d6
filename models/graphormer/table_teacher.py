"""A forest that teaches beside the network: its labels, and its share in the teacher.

The forest (Breiman 2001) learns from ECFP4 bits and descriptors of the training molecules alone.
Needs scikit-learn (extra `train`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from rdkit.Chem import rdMolDescriptors

from .config import Task
from .teacher import ecfp4

__all__ = ["Teacher", "forest_inputs", "mixed_labels", "soft_labels", "stacking_share"]

FloatArray = NDArray[np.float64]
TREES = 500
MIN_LABELS = 20  # fewer teach nothing
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

    `out_of_bag` (n,) is NaN where the label was missing, and holds else the prediction of those
    trees that did not see the molecule; of a task of several classes it is all NaN.
    """

    task: Task
    forest: Any
    out_of_bag: FloatArray

    @classmethod
    def fit(
        cls, task: Task, inputs: NDArray[np.float32], y: FloatArray, seed: int = 0
    ) -> Teacher | None:
        """Learn labels y (n,), NaN where missing; None with fewer than 20, or all of them equal."""
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        known = ~np.isnan(y)
        if known.sum() < MIN_LABELS or len(np.unique(y[known])) < 2:
            return None
        options: dict[str, Any] = {"oob_score": True, "random_state": seed, "n_jobs": 1}
        out_of_bag = np.full(len(y), np.nan)
        if task.kind == "regression":
            forest = RandomForestRegressor(TREES, max_features=0.2, **options)
            out_of_bag[known] = forest.fit(inputs[known], y[known]).oob_prediction_
            return cls(task, forest, out_of_bag)
        forest = RandomForestClassifier(TREES, **options).fit(inputs[known], y[known])
        if task.kind == "binary":
            out_of_bag[known] = forest.oob_decision_function_[:, 1]
        return cls(task, forest, out_of_bag)

    def readings(self, inputs: NDArray[np.float32]) -> FloatArray:
        """Probabilities or values for molecules, in the form of `table_scores.readings`."""
        if self.task.kind == "regression":
            return self.forest.predict(inputs)
        found = np.zeros((len(inputs), len(self.task.classes)))
        found[:, self.forest.classes_.astype(int)] = self.forest.predict_proba(inputs)
        return found[:, 1] if self.task.kind == "binary" else found


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
