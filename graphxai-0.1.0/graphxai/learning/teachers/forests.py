"""Random forests (Breiman 2001) on molecules: the baseline of a model, and its possible teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from rdkit.Chem import rdMolDescriptors

from graphxai.contract.tasks import Task, TaskKind
from graphxai.datasets.fingerprints import BITS, COUNTS, ecfp4, ecfp6_counts
from graphxai.learning.teachers.stored_trees import StoredTrees
from graphxai.runtime.progress import Progress, no_progress

__all__ = [
    "FingerprintForests",
    "Forest",
    "forest_inputs",
    "forest_predictions",
    "reference_forest",
    "trees_for",
]

FloatArray = NDArray[np.float64]
TREES = 500
TREES_OF_VALUES = 200  # of a regression, whose trees take five times as long
TREES_OF_TABLE = 2400  # of all targets of a table together, but at least 100 for each
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


@dataclass(frozen=True, eq=False)
class Forest:
    """A forest fitted to the labels of one task.

    Attributes:
        task: the task.
        trees: the forest, as scikit-learn or `StoredTrees` has it.
        out_of_bag: for each training molecule (n,), the prediction by the trees that did not see
            it: a value, or the probability of the second class. It is NaN for a task with more
            classes, and if it was not requested.
    """

    task: Task
    trees: Any
    out_of_bag: FloatArray

    @classmethod
    def fit(
        cls,
        task: Task,
        inputs: NDArray[Any],
        y: NDArray[Any],
        *,
        trees: int | None = None,
        max_features: float = 0.2,
        out_of_bag: bool = False,
        seed: int = 0,
    ) -> Forest:
        """Learn class numbers or values y (n,) from inputs (n, F).

        Args:
            task: the task.
            inputs: features of the training molecules.
            y: their labels.
            trees: number of trees, by default 500, or 200 for a regression.
            max_features: share of the features that a split of a regression considers; for
                classes it considers the square root of their number.
            out_of_bag: whether to predict each molecule by the trees that did not see it.
            seed: seed of the trees.
        """
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        trees = trees or trees_for(task.kind)
        options: dict[str, Any] = {"oob_score": out_of_bag, "random_state": seed, "n_jobs": 1}
        by_other_trees = np.full(len(y), np.nan)
        if task.kind == "regression":
            values = RandomForestRegressor(trees, max_features=max_features, **options)
            values.fit(inputs, y)
            return cls(task, values, values.oob_prediction_ if out_of_bag else by_other_trees)
        classes = RandomForestClassifier(trees, **options).fit(inputs, y)
        if out_of_bag and task.kind == "binary":
            by_other_trees = _second_class(classes, classes.oob_decision_function_)
        return cls(task, classes, by_other_trees)

    def predict(self, inputs: NDArray[Any]) -> FloatArray:
        """Predict probabilities of the second class (m,) or all classes (m, C), or values (m,)."""
        if self.task.kind == "regression":
            return self.trees.predict(inputs)
        probabilities = self.trees.predict_proba(inputs)
        if self.task.kind == "binary":
            return _second_class(self.trees, probabilities)
        of_all_classes = np.zeros((len(inputs), len(self.task.classes)))
        of_all_classes[:, self.trees.classes_.astype(int)] = probabilities
        return of_all_classes


def trees_for(kind: TaskKind, targets: int = 1) -> int:
    """Return the number of trees of a forest for one of a table's targets."""
    most = TREES_OF_VALUES if kind == "regression" else TREES
    return min(TREES, most, max(100, TREES_OF_TABLE // targets))


def _second_class(trees: Any, probabilities: NDArray[Any]) -> NDArray[Any]:
    """Return the probability of class 1, even if the training molecules had only one class."""
    return probabilities[:, np.flatnonzero(trees.classes_ == 1.0)].sum(1)


def reference_forest(
    smiles: Sequence[str], active: NDArray[Any], test: Sequence[str]
) -> NDArray[np.float32]:
    """Predict the class probability of `test` with 500 trees on ECFP4, trained on `smiles`."""
    task = Task("class", "binary", ("no", "yes"))
    probabilities = forest_predictions(task, ecfp4(smiles), active, ecfp4(test))
    return probabilities.astype(np.float32)


def forest_predictions(
    task: Task, features: NDArray[Any], y: NDArray[Any], test: NDArray[Any]
) -> FloatArray:
    """Predict `test` with a forest trained on `features` and labels y (n,).

    The shapes are those of `Forest.predict`. A regression considers a third of the features per
    split, as Breiman recommends.
    """
    return Forest.fit(task, features, y, max_features=1 / 3).predict(test)


class FingerprintForests:
    """Forests for every task of a table, averaged over two kinds of fingerprint.

    Args:
        tasks: binary and regression tasks.
        smiles: the training molecules (n,).
        y: their labels (n, tasks), NaN where one is missing.
        progress: called with 1 for every forest, two per task.

    Attributes:
        out_of_bag: predictions (n, tasks) by the trees that did not see the molecule; NaN where its
            label is missing.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        smiles: Sequence[str],
        y: NDArray[np.floating],
        progress: Progress = no_progress,
    ) -> None:
        if any(task.kind == "multiclass" for task in tasks):
            raise ValueError("forests can teach binary and regression tasks, not multi-class ones.")
        inputs = [ecfp4(smiles), ecfp6_counts(smiles)]
        self._fitted: list[list[Forest]] = []
        self.out_of_bag = np.full(y.shape, np.nan)
        for k, task in enumerate(tasks):
            labelled = ~np.isnan(y[:, k])
            trees = None if task.kind == "binary" else 200
            forests = []
            for features in inputs:
                forests.append(
                    Forest.fit(
                        task, features[labelled], y[labelled, k], trees=trees, out_of_bag=True
                    )
                )
                progress(1)
            self._fitted.append(forests)
            self.out_of_bag[labelled, k] = np.mean([f.out_of_bag for f in forests], axis=0)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the forests as arrays by name."""
        arrays: dict[str, NDArray[Any]] = {"out_of_bag": self.out_of_bag}
        for k, forests in enumerate(self._fitted):
            for kind, forest in enumerate(forests):
                trees = StoredTrees.of(forest.trees)
                arrays |= {f"{k}/{kind}/{name}": array for name, array in vars(trees).items()}
        return arrays

    @classmethod
    def from_arrays(
        cls, tasks: Sequence[Task], arrays: Mapping[str, NDArray[Any]]
    ) -> FingerprintForests:
        """Make forests from what `arrays` returned for forests of these tasks.

        Raises:
            KeyError, ValueError: the arrays are not those of such forests.
        """
        stored = cls.__new__(cls)
        stored._fitted, stored.out_of_bag = [], arrays["out_of_bag"]
        for k, task in enumerate(tasks):
            forests = []
            for kind, width in enumerate((BITS, COUNTS)):
                names = [each.name for each in fields(StoredTrees)]
                trees = StoredTrees(**{name: arrays[f"{k}/{kind}/{name}"] for name in names})
                trees.check(width, len(task.classes))
                forests.append(Forest(task, trees, np.empty(0)))
            stored._fitted.append(forests)
        return stored

    def predict(self, smiles: Sequence[str]) -> NDArray[np.float32]:
        """Predict probabilities (binary) and values (regression), (n, tasks)."""
        inputs = [ecfp4(smiles), ecfp6_counts(smiles)]
        columns = [
            np.mean([f.predict(x) for f, x in zip(forests, inputs, strict=True)], axis=0)
            for forests in self._fitted
        ]
        return np.stack(columns, axis=1).astype(np.float32)
