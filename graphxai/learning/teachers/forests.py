"""Random forests (Breiman 2001) on molecules: the baseline of a model, and its possible teacher.

A forest also fills in labels of which only a bound is known, so that a teacher can learn from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import rdBase
from rdkit.Chem import rdMolDescriptors
from scipy.stats import norm

from graphxai.contract.prediction_metrics import FloatArray
from graphxai.contract.tasks import Task, TaskKind
from graphxai.datasets.fingerprints import Molecules, parsed

TREES = 500
TREES_OF_VALUES = 100  # of a regression, whose trees take five times as long
TREES_OF_TABLE = 2400  # of all targets of a table together, but at least 100 for each
FEW_TREES, ROUNDS = 100, 3  # of a forest that fills in labels, and how often it is fitted
_PROPERTIES = rdMolDescriptors.Properties()
_DESCRIPTORS = (
    lambda mol: list(_PROPERTIES.ComputeProperties(mol)),
    rdMolDescriptors.SlogP_VSA_,
    rdMolDescriptors.SMR_VSA_,
    rdMolDescriptors.PEOE_VSA_,
    rdMolDescriptors.MQNs_,
    rdMolDescriptors.CalcAUTOCORR2D,
)


def descriptors(molecules: Molecules) -> NDArray[np.float32]:
    """Return 313 RDKit descriptors (n, 313): properties, areas, counts and autocorrelations.

    Undefined values are 0.
    """
    with rdBase.BlockLogs():
        rows = [
            [value for function in _DESCRIPTORS for value in function(mol)]
            for mol in parsed(molecules)
        ]
    limit = float(np.finfo(np.float32).max)
    values = np.clip(np.nan_to_num(np.array(rows, dtype=np.float64)), -limit, limit)
    return values.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Forest:
    """A forest fitted to the labels of one task.

    Attributes:
        task: the task.
        trees: the forest of scikit-learn.
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
            trees: number of trees, by default 500, or 100 for a regression.
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
        # scikit-learn's sum to the last bit; its checks for every tree take as long as the trees
        rows = np.ascontiguousarray(inputs, dtype=np.float32)
        trees = self.trees.estimators_
        probabilities = np.zeros((len(rows), trees[0].tree_.max_n_classes))
        for tree in trees:
            probabilities += tree.tree_.predict(rows)
        probabilities /= len(trees)
        if self.task.kind == "regression":
            return probabilities[:, 0]
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


def filled_labels(
    tasks: Sequence[Task], inputs: NDArray[Any], y: FloatArray, bounds: FloatArray, seed: int
) -> FloatArray:
    """Fill in labels of regressions that are bounded by what a forest expects, see `filled_within`.

    Args:
        tasks: the tasks.
        inputs: the features of the molecules (n, F).
        y: their labels (n, tasks), NaN where none was measured.
        bounds: the lowest and highest possible values (n, tasks, 2), infinite where nothing is
            known.
        seed: the seed of the forests.

    Returns:
        The labels (n, tasks), still NaN where there is neither a label nor a bound.
    """

    def predicted(task: Task, labels: FloatArray) -> FloatArray:
        labelled, values = ~np.isnan(labels), np.full(len(labels), np.nan)
        options: dict[str, Any] = {"trees": FEW_TREES, "out_of_bag": True, "seed": seed}
        forest = Forest.fit(task, inputs[labelled], labels[labelled], **options)
        values[labelled] = forest.out_of_bag
        if not labelled.all():
            values[~labelled] = forest.predict(inputs[~labelled])
        return values

    filled = y.copy()
    for k, task in enumerate(tasks):
        if task.kind == "regression":
            filled[:, k] = filled_within(partial(predicted, task), y[:, k], bounds[:, k])
    return filled


def filled_within(
    predicted: Callable[[FloatArray], FloatArray], y: FloatArray, bounds: FloatArray
) -> FloatArray:
    """Fill in labels (n,) that are bounded, (n, 2), by what is expected within their bounds.

    The model is fitted `ROUNDS` times, to the measured labels and to the expected ones of the round
    before (Schmee and Hahn 1979). Its error on labels that it has not seen is the spread around its
    predictions.

    Args:
        predicted: fits a model to labels (n,), NaN where there is none, and returns what it
            predicts for each molecule that is labelled or bounded, without its own label.
        y: the labels, NaN where there is none.
        bounds: the lowest and highest possible values, infinite where nothing is known.
    """
    measured, bounded = ~np.isnan(y), np.isnan(y) & np.isfinite(bounds).any(axis=1)
    if not bounded.any() or measured.sum() < 2:
        return y
    filled = y.copy()
    for _ in range(ROUNDS):
        values = predicted(filled)
        spread = float(np.sqrt(np.nanmean((values[measured] - y[measured]) ** 2)))
        filled[bounded] = expected_within(values[bounded], spread, bounds[bounded])
    return filled


def expected_within(predicted: FloatArray, spread: float, bounds: FloatArray) -> FloatArray:
    """Return the mean of a normal distribution (n,) that is cut off at bounds (n, 2).

    It is mu + s (phi(a) - phi(b)) / (Phi(b) - Phi(a)), where a and b are the bounds, standardised
    with the mean mu and the spread s. Far outside the bounds it is the nearer one.
    """
    low, high = bounds.T
    a, b = (low - predicted) / spread, (high - predicted) / spread
    # on the side of the tail where both probabilities are small, not near 1
    mirrored = a > 0
    left, right = np.where(mirrored, -b, a), np.where(mirrored, -a, b)
    mass = norm.cdf(right) - norm.cdf(left)
    with np.errstate(invalid="ignore", divide="ignore"):
        shift = (norm.pdf(a) - norm.pdf(b)) / mass
    expected = predicted + spread * np.where(mass > 1e-12, shift, 0.0)
    return np.clip(expected, low, high)
