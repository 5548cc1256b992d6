"""Make the tasks that graphs are learned for: from their labels, or as the user says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphxai.contract.tasks import Task, TaskKind

__all__ = ["MASKS", "Level", "TaskLike", "labels_of", "level_of", "standardised", "tasks_of"]

FloatArray = NDArray[np.float64]
Level = Literal["graph", "node"]
TaskLike = str | Task | Sequence[Task] | None
MASKS = ("train_mask", "val_mask", "test_mask")  # of nodes, by PyG's convention
KINDS = (*get_args(TaskKind), "classification")


def level_of(graphs: Sequence[Data]) -> Level:
    """Return whether graphs have labels of nodes, with a row for each, or of graphs.

    Graphs with a `train_mask` have labels of nodes.
    """
    if any(graph.get(MASKS[0]) is not None for graph in graphs):
        return "node"
    labels = [(graph.get("y"), int(graph.num_nodes or 0)) for graph in graphs]
    have_rows = all(isinstance(y, torch.Tensor) and y.dim() and len(y) == n for y, n in labels)
    return "node" if have_rows and any(n > 1 for _, n in labels) else "graph"


def labels_of(graphs: Sequence[Data], level: Level = "graph") -> FloatArray:
    """Return the labels `y` of graphs (n, tasks), NaN where one is missing.

    Those of nodes follow each other, graph by graph.

    Raises:
        ValueError: a graph has no label, or another number of labels than the first.
    """
    if level == "node":
        return np.concatenate([_labels_of_nodes(k, graph) for k, graph in enumerate(graphs)])
    rows: list[FloatArray] = []
    for k, graph in enumerate(graphs):
        y = graph.get("y")
        if not isinstance(y, torch.Tensor | int | float):
            raise ValueError(f"graph {k} has no label y.")
        row = torch.as_tensor(y).double().reshape(-1).numpy()
        if rows and len(row) != len(rows[0]):
            raise ValueError(
                f"graph {k} has {len(row)} labels, the first graph {len(rows[0])}: y needs one row"
                " for each graph, or in all graphs one row for each node."
            )
        rows.append(row)
    return np.stack(rows)


def _labels_of_nodes(k: int, graph: Data) -> FloatArray:
    """Return the labels of the nodes of the k-th graph, (N, tasks)."""
    y = graph.get("y")
    if not isinstance(y, torch.Tensor) or not y.dim() or len(y) != graph.num_nodes:
        shape = tuple(y.shape) if isinstance(y, torch.Tensor) else type(y).__name__
        raise ValueError(
            f"graph {k}: y needs a row for each of {graph.num_nodes} nodes, not {shape}."
        )
    return y.double().reshape(len(y), -1).numpy()


def tasks_of(task: TaskLike, y: FloatArray, *, whole: bool) -> tuple[Task, ...]:
    """Return the tasks for labels y (n, tasks).

    Args:
        task: tasks; a kind, "binary", "multiclass", "classification" or "regression"; or None,
            which takes the kind from the labels.
        y: the labels.
        whole: whether they were integers, which are classes unless the user says otherwise.

    Raises:
        ValueError: the labels do not fit the task.
    """
    columns = y.T
    if task is None or isinstance(task, str):
        if task not in (None, *KINDS):
            raise ValueError(f"task must be a Task, or one of {', '.join(KINDS)}, not {task!r}.")
        names = ["label"] if len(columns) == 1 else [f"label {k}" for k in range(len(columns))]
        tasks = [
            _task(name, task, column, whole) for name, column in zip(names, columns, strict=True)
        ]
    else:
        tasks = [task] if isinstance(task, Task) else list(task)
    if len(tasks) != len(columns):
        raise ValueError(f"{len(tasks)} tasks, but {len(columns)} labels for each graph.")
    for each, column in zip(tasks, columns, strict=True):
        _check(each, column)
    return tuple(tasks)


def _task(name: str, kind: str | None, column: FloatArray, whole: bool) -> Task:
    """Make a task for labels (n,), of the given kind or of the one that fits them."""
    values = np.unique(column[~np.isnan(column)])
    are_classes = bool(len(values)) and bool((values == np.floor(values)).all())
    are_classes = are_classes and values[0] >= 0
    if kind is None:
        kind = "classification" if are_classes and (whole or values[-1] == 1) else "regression"
    if kind == "regression":
        return Task(name, "regression")
    if not are_classes:
        raise ValueError(f"{name}: classes must be whole numbers from 0, such as 0 and 1.")
    count = max(2, int(values[-1]) + 1)
    classes = tuple(str(k) for k in range(count))
    if kind == "classification":
        kind = "binary" if count == 2 else "multiclass"
    return Task(name, kind, classes)  # type: ignore[arg-type]


def _check(task: Task, column: FloatArray) -> None:
    present = column[~np.isnan(column)]
    if not len(present) or not np.isfinite(present).all():
        raise ValueError(f"task {task.name!r}: the labels are missing or not finite.")
    if task.kind == "regression":
        return
    if not set(present.tolist()) <= set(range(len(task.classes))):
        raise ValueError(
            f"task {task.name!r} has the classes 0 to {len(task.classes) - 1}; the labels range"
            f" from {present.min():g} to {present.max():g}."
        )


def standardised(tasks: Sequence[Task], y: FloatArray) -> tuple[Task, ...]:
    """Return the tasks, with values standardised on training labels y (n, tasks).

    Raises:
        ValueError: a task has fewer than two classes or values to learn from.
    """
    fitted = []
    for task, column in zip(tasks, y.T, strict=True):
        present = column[~np.isnan(column)]
        if len(np.unique(present)) < 2:
            raise ValueError(
                f"task {task.name!r}: the training part has fewer than two different labels."
            )
        if task.kind == "regression":
            task = replace(task, offset=float(present.mean()), scale=float(present.std()))
        fitted.append(task)
    return tuple(fitted)
