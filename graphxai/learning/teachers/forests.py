"""Random forests (Breiman 2001) on molecules: the baseline of a model, and its possible teacher.

Their trees can be stored as plain arrays. A forest also fills in labels of which only a bound is
known, so that a teacher can learn from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from rdkit.Chem import rdMolDescriptors
from scipy.stats import norm

from graphxai.contract.tasks import Task, TaskKind
from graphxai.datasets.fingerprints import ecfp4

FloatArray = NDArray[np.float64]
TREES = 500
TREES_OF_VALUES = 200  # of a regression, whose trees take five times as long
TREES_OF_TABLE = 2400  # of all targets of a table together, but at least 100 for each
FEW_TREES, ROUNDS = 100, 3  # of a forest that fills in labels, and how often it is fitted
NODES = ("feature", "threshold", "left", "right", "value")
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

    @classmethod
    def from_arrays(
        cls, task: Task, arrays: Mapping[str, NDArray[Any]], place: str, num_features: int
    ) -> Forest:
        """Make a forest from what `StoredTrees.arrays` returned, which is checked.

        Raises:
            KeyError, ValueError: the arrays are not those of such a forest.
        """
        names = [each.name for each in fields(StoredTrees)]
        trees = StoredTrees(**{name: arrays[f"{place}/{name}"] for name in names})
        trees.check(num_features, len(task.classes))
        return cls(task, trees, np.empty(0))

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


def filled_labels(
    tasks: Sequence[Task], inputs: NDArray[Any], y: FloatArray, bounds: FloatArray, seed: int
) -> FloatArray:
    """Fill in the labels of regressions that are bounded, see `filled_column`.

    Args:
        tasks: the tasks.
        inputs: the features of the molecules (n, F).
        y: their labels (n, tasks), NaN where none was measured.
        bounds: the lowest and highest possible values (n, tasks, 2), infinite where nothing is
            known.
        seed: the seed of the forests.
    """
    columns = [
        filled_column(task, inputs, y[:, k], bounds[:, k], seed)
        if task.kind == "regression"
        else y[:, k]
        for k, task in enumerate(tasks)
    ]
    return np.stack(columns, axis=1)


def filled_column(
    task: Task, inputs: NDArray[Any], y: FloatArray, bounds: FloatArray, seed: int
) -> FloatArray:
    """Fill in labels that are bounded by what a forest expects within their bounds.

    A forest is fitted to the measured labels and to the expected ones, anew for every round, as
    regressions are fitted to censored values (Schmee and Hahn 1979). Its error on labels that a
    tree has not seen is the spread around its predictions.

    Args:
        task: the task.
        inputs: the features of the molecules (n, F).
        y: their labels (n,), NaN where none was measured.
        bounds: the lowest and highest possible values (n, 2), infinite where nothing is known.
        seed: the seed of the forests.

    Returns:
        The labels (n,), still NaN where there is neither a label nor a bound.
    """
    measured = ~np.isnan(y)
    censored = ~measured & np.isfinite(bounds).any(axis=1)
    if not censored.any() or measured.sum() < 2:
        return y
    filled = y.copy()
    for _ in range(ROUNDS):
        labelled = ~np.isnan(filled)
        forest = Forest.fit(
            task,
            inputs[labelled],
            filled[labelled],
            trees=FEW_TREES,
            out_of_bag=True,
            seed=seed,
        )
        errors = forest.out_of_bag[measured[labelled]] - y[measured]
        spread = float(np.sqrt(np.nanmean(errors**2)))
        predicted = forest.predict(inputs[censored])
        if labelled[censored].all():  # the trees have seen these labels from the second round on
            predicted = forest.out_of_bag[censored[labelled]]
        filled[censored] = expected_within(predicted, spread, bounds[censored])
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


@dataclass(frozen=True, eq=False)
class StoredTrees:
    """The trees of a forest as arrays over all their nodes. A leaf is its own child.

    Attributes:
        roots: positions of the roots (T,).
        feature: position of the feature that a node compares (nodes,).
        threshold: what it is compared with (nodes,).
        left: the next node if the feature is not larger (nodes,).
        right: the next node if it is larger (nodes,).
        value: what a node holds: a value, or the shares of classes (nodes, columns).
        classes_: numbers of the classes (C,); empty for a regression.
    """

    roots: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    value: NDArray[np.float64]
    classes_: NDArray[np.float64]

    @classmethod
    def of(cls, forest: Any) -> StoredTrees:
        """Take the arrays from a forest of scikit-learn."""
        trees = [each.tree_ for each in forest.estimators_]
        starts = np.cumsum([0, *(tree.node_count for tree in trees)])
        parts: dict[str, list[NDArray[Any]]] = {name: [] for name in NODES}
        for start, tree in zip(starts, trees, strict=False):
            itself = np.arange(tree.node_count)
            leaf = tree.children_left < 0
            parts["feature"].append(np.where(leaf, 0, tree.feature))
            parts["threshold"].append(tree.threshold)
            parts["left"].append(start + np.where(leaf, itself, tree.children_left))
            parts["right"].append(start + np.where(leaf, itself, tree.children_right))
            value = tree.value[:, 0]  # (nodes, classes), or (nodes, 1)
            shares = hasattr(forest, "classes_")
            parts["value"].append(value / value.sum(1, keepdims=True) if shares else value)
        joined = {name: np.concatenate(part) for name, part in parts.items()}
        classes = np.asarray(getattr(forest, "classes_", []), dtype=np.float64)
        return cls(starts[:-1], classes_=classes, **joined)

    def predict_proba(self, inputs: NDArray[Any]) -> NDArray[np.float64]:
        """Return the mean over trees of what the leaves of inputs (n, F) hold, (n, columns)."""
        inputs = np.asarray(inputs, dtype=np.float32)  # as scikit-learn compares them
        total = np.zeros((len(inputs), self.value.shape[1]))
        rows = np.arange(len(inputs))
        for root in self.roots:
            node = np.full(len(inputs), root)
            while (self.left[node] != node).any():
                lower = inputs[rows, self.feature[node]] <= self.threshold[node]
                node = np.where(lower, self.left[node], self.right[node])
            total += self.value[node]
        return total / len(self.roots)

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.float64]:
        """Return the values of a regression, (n,)."""
        return self.predict_proba(inputs)[:, 0]

    def arrays(self, place: str) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, each name below a place such as "forest/0"."""
        return {f"{place}/{name}": array for name, array in vars(self).items()}

    def check(self, num_features: int, num_classes: int) -> None:
        """Check arrays that were read from a file.

        In scikit-learn's trees every child has a higher number than its parent. A tree in which
        this holds ends for any input, so it is required here.

        Args:
            num_features: number of features of the inputs.
            num_classes: number of classes of the task; 0 for a regression.

        Raises:
            ValueError: the arrays do not form trees, or hold values that no forest has.
        """
        size = len(self.feature)
        for name in ("roots", "feature", "left", "right"):
            array = getattr(self, name)
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise ValueError(f"{name} is not a list of whole numbers")
        if any(array.shape != (size,) for array in (self.threshold, self.left, self.right)):
            raise ValueError("the arrays of the nodes differ in length")
        nodes = np.arange(size)
        leaf = self.left == nodes
        if not (leaf == (self.right == nodes)).all():
            raise ValueError("a node has one child")
        for child in (self.left, self.right):
            if not (leaf | ((nodes < child) & (child < size))).all():
                raise ValueError("a node's child is no later node of the forest")
        if not len(self.roots) or not ((self.roots >= 0) & (self.roots < size)).all():
            raise ValueError("a tree's root is no node of the forest")
        if not ((self.feature >= 0) & (self.feature < num_features)).all():
            raise ValueError(f"a node compares a feature beyond the {num_features} of the inputs")
        if self.threshold.dtype.kind != "f" or np.isnan(self.threshold).any():
            raise ValueError("a threshold is not a number")
        self._check_values(num_classes)

    def _check_values(self, num_classes: int) -> None:
        """Check what the nodes hold, see `check`."""
        numbers = self.classes_.tolist()
        possible = {float(number) for number in range(num_classes)}
        if len(set(numbers)) < len(numbers) or not possible.issuperset(numbers):
            raise ValueError("the classes of a forest are not those of its task")
        if num_classes and not numbers:
            raise ValueError("a forest for classes has no classes")
        if self.value.shape != (len(self.feature), max(len(numbers), 1)):
            raise ValueError(f"the values of the nodes have shape {self.value.shape}")
        if self.value.dtype.kind != "f" or not np.isfinite(self.value).all():
            raise ValueError("a node's value is not a finite number")
        shares = bool(numbers)
        if shares and ((self.value < 0).any() or not np.allclose(self.value.sum(1), 1, atol=1e-6)):
            raise ValueError("the shares of the classes in a node do not add up to 1")
