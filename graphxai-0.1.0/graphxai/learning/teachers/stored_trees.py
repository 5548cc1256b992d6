"""The trees of a forest as plain arrays, which predict as scikit-learn does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["StoredTrees"]

NODES = ("feature", "threshold", "left", "right", "value")


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
