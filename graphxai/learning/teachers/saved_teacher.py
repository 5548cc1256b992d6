"""Store a table's teacher beside its network, and read it back: arrays and JSON, no pickles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from graphxai.contract.tasks import Task
from graphxai.learning.teachers.forests import Forest
from graphxai.learning.teachers.gaussian_process import Process
from graphxai.learning.teachers.stacking import ForestSource, ProcessSource, Teacher

__all__ = ["TEACHER", "saved_teacher", "teacher_file"]

TEACHER = "teacher.safetensors"  # the file beside a checkpoint
Arrays = dict[str, NDArray[Any]]
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


def teacher_file(teacher: Teacher) -> bytes:
    """Return the content of the file `TEACHER` beside a checkpoint.

    It has the sources with a weight: the trees, and the training fingerprints of processes.
    """
    arrays: Arrays = {}
    tasks: dict[str, list[int]] = {}
    for name in sorted({name for weights in teacher.weights for name in weights or ()}):
        source = teacher.sources[name]
        wanted = [k for k, weights in enumerate(teacher.weights) if name in (weights or {})]
        if isinstance(source, ForestSource):
            for k in wanted:
                trees = StoredTrees.of(source.forests[k].trees)
                arrays |= {f"{name}/{k}/{field}": v for field, v in vars(trees).items()}
        else:
            wanted = list(source.tasks)
            arrays[f"{name}/weights"] = source.process.weights
            arrays[f"{name}/means"] = source.process.means
            arrays[f"{name}/width"] = np.array([source.width])
            for i, part in enumerate(source.carriers):
                arrays[f"{name}/carriers/{i}"] = part
        tasks[name] = wanted
    about: dict[str, Any] = {"tasks": [asdict(task) for task in teacher.tasks], "sources": tasks}
    about |= {"weights": teacher.weights, "metrics": teacher.metrics}
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return save(contiguous, metadata={"teacher": json.dumps(about)})


def saved_teacher(folder: Path | None) -> Teacher | None:
    """Read the teacher beside a checkpoint, or return None if there is none.

    Raises:
        ValueError: the file is damaged.
    """
    path = None if folder is None else folder / TEACHER
    if path is None or not path.is_file():
        return None
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=2)
def _read(path: Path, modified: int) -> Teacher:
    """Read a file, again only if it was modified since."""
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads(file.metadata()["teacher"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        tasks = tuple(Task(**task) for task in about["tasks"])
        sources = {
            name: _processes(name, {k: tasks[k] for k in wanted}, arrays)
            if f"{name}/weights" in arrays
            else _forests(name, {k: tasks[k] for k in wanted}, arrays)
            for name, wanted in about["sources"].items()
        }
    except (SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}): delete it, or train again.") from error
    return Teacher(tasks, sources, tuple(about["weights"]), (), tuple(about["metrics"]))


def _forests(name: str, tasks: Mapping[int, Task], arrays: Arrays) -> ForestSource:
    """Make a source of forests from stored arrays."""
    fields = StoredTrees.__dataclass_fields__
    forests = {
        k: Forest(task, StoredTrees(**{f: arrays[f"{name}/{k}/{f}"] for f in fields}), np.empty(0))
        for k, task in tasks.items()
    }
    return ForestSource(name, forests, {})


def _processes(name: str, tasks: Mapping[int, Task], arrays: Arrays) -> ProcessSource:
    """Make a source of processes from stored arrays."""
    weights = arrays[f"{name}/weights"]
    process = Process(weights, arrays[f"{name}/means"], np.empty((0, weights.shape[1])))
    count = sum(key.startswith(f"{name}/carriers/") for key in arrays)
    carriers = tuple(arrays[f"{name}/carriers/{i}"] for i in range(count))
    return ProcessSource(name, tasks, process, carriers, float(arrays[f"{name}/width"][0]))
