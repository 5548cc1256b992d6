"""Read somebody's graphs: what their labels are, and their features as categories or numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphxai.contract.prediction_metrics import FloatArray
from graphxai.contract.tasks import Task, TaskKind
from graphxai.datasets.features import ATOM_CARDINALITIES, ATOM_FEATURE_NAMES, BOND_CARDINALITIES
from graphxai.datasets.molecules import MoleculeError, molecule_graph
from graphxai.learning.splitting import MASKS

Level = Literal["graph", "node"]
TaskLike = str | Task | Sequence[Task] | None
KINDS = (*get_args(TaskKind), "classification")
MOST_CATEGORIES = 10_000  # of all node features together
MOST_EDGE_CATEGORIES = 1_000  # combinations of all edge features


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
    rows: list[Tensor] = []
    for k, graph in enumerate(graphs):
        y = graph.get("y")
        if level == "node":
            if not isinstance(y, Tensor) or not y.dim() or len(y) != graph.num_nodes:
                shape = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
                raise ValueError(
                    f"graph {k}: y needs a row for each of {graph.num_nodes} nodes, not {shape}."
                )
        elif not isinstance(y, Tensor | int | float):
            raise ValueError(f"graph {k} has no label y.")
        values = torch.as_tensor(y).double()
        rows.append(values.reshape(len(values), -1) if level == "node" else values.reshape(1, -1))
        if rows[-1].shape[1] != rows[0].shape[1]:
            raise ValueError(
                f"graph {k} has {rows[-1].shape[1]} labels, the first graph {rows[0].shape[1]}: y"
                " needs one row for each graph, or in all graphs one row for each node."
            )
    return torch.cat(rows).numpy()


def tasks_of(task: TaskLike, y: FloatArray, *, whole: bool) -> tuple[Task, ...]:
    """Return the tasks for labels y (n, tasks).

    Args:
        task: tasks; a kind, "binary", "multiclass", "classification" or "regression"; or None,
            which takes the kind from the labels.
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
    if kind == "binary" and count > 2:
        raise ValueError(f"{name}: the labels are 0 to {count - 1}, so the task is 'multiclass'.")
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


def input_fields(graphs: Sequence[Data], train: Sequence[int]) -> dict[str, Any]:
    """Return the fields of a `GraphormerConfig` for the features of graphs.

    Integer features are categories, which are counted over all graphs. Other features are numbers,
    which are standardised on the training graphs. Without `x`, all nodes look alike. If nine
    columns of `x` and three of `edge_attr` fit OGB's codes, the graphs are taken for molecules.

    Raises:
        ValueError: graphs differ in the columns or the type of their features.
    """
    fields: dict[str, Any] = {}
    if (rows := _joined(graphs, "x")) is None:
        fields["node_cardinalities"] = (1,)
    elif (sizes := _categories(rows)) is not None and sum(sizes) <= MOST_CATEGORIES:
        fields["node_cardinalities"] = sizes
    else:
        fields |= _numbers("node", graphs, train, "x")
    if (rows := _joined(graphs, "edge_attr")) is None:
        return fields
    sizes = _categories(rows)
    if sizes is not None and math.prod(sizes) <= MOST_EDGE_CATEGORIES:
        fields["edge_cardinalities"] = sizes
        if _are_ogb_codes(graphs, fields):
            fields["node_cardinalities"] = ATOM_CARDINALITIES
            fields["edge_cardinalities"] = BOND_CARDINALITIES
            fields["node_feature_names"] = ATOM_FEATURE_NAMES
    else:
        fields |= _numbers("edge", graphs, train, "edge_attr")
    return fields


def mean_features(graphs: Sequence[Data], fields: dict[str, Any]) -> Tensor:
    """Return the mean features of graphs, and their numbers of nodes and edges, (n, features).

    A category has the share of each of its values in place of a mean.
    """
    rows = []
    for graph in graphs:
        nodes, edges = int(graph.num_nodes or 0), int(graph.edge_index.shape[1])
        parts = [torch.tensor([nodes, edges, edges / max(nodes, 1)], dtype=torch.float64)]
        parts += _means(graph.x, fields.get("node_cardinalities", ()))
        if fields.get("edge_cardinalities") or fields.get("num_edge_features"):
            parts += _means(graph.edge_attr, fields.get("edge_cardinalities", ()))
        rows.append(torch.cat(parts))
    return torch.stack(rows)


def node_features(graph: Data, fields: dict[str, Any]) -> Tensor:
    """Return each node's features, its degree, and the mean features of its neighbours, (N, F).

    Of a category, the mean is the share of each of its values.
    """
    nodes = int(graph.num_nodes or 0)
    sizes = fields.get("node_cardinalities", ())
    x = graph.x.double()
    if sizes:
        columns = zip(graph.x.T.long(), sizes, strict=True)
        x = torch.cat([torch.nn.functional.one_hot(c, size) for c, size in columns], 1).double()
    source, target = graph.edge_index
    degree = torch.bincount(target, minlength=nodes).double()[:, None]
    summed = torch.zeros_like(x).index_add_(0, target, x[source])
    return torch.cat([x, degree, summed / degree.clamp(min=1)], dim=1)


def _means(values: Tensor | None, sizes: Sequence[int]) -> list[Tensor]:
    """Return the mean of numbers (rows, F), or the shares of the categories in each column."""
    if values is None:
        return []
    count = max(len(values), 1)
    if not sizes:
        return [values.double().sum(0) / count]
    return [
        torch.bincount(column.long(), minlength=size).double() / count
        for column, size in zip(values.T, sizes, strict=True)
    ]


def _joined(graphs: Sequence[Data], name: str) -> Tensor | None:
    """Return a feature of all graphs, (rows, F), or None if no graph has it."""
    parts = [graph.get(name) for graph in graphs]
    if all(part is None for part in parts):
        return None
    for k, part in enumerate(parts):
        if not isinstance(part, Tensor) or part.dim() != 2 or part.is_complex():
            shape = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
            raise ValueError(f"graph {k}: {name} must be numbers in rows and columns, not {shape}.")
        first = parts[0]
        if part.shape[1] != first.shape[1] or part.dtype != first.dtype:
            raise ValueError(
                f"graph {k}: {name} has {part.shape[1]} columns of {part.dtype}, the first graph"
                f" {first.shape[1]} of {first.dtype}."
            )
    return torch.cat(parts)


def _categories(rows: Tensor) -> tuple[int, ...] | None:
    """Return the number of values of each column, or None if the columns hold no categories."""
    not_whole = rows.is_floating_point() or rows.dtype == torch.bool
    if not_whole or not len(rows) or int(rows.min()) < 0:
        return None
    return tuple((rows.amax(0) + 1).tolist())


def _numbers(kind: str, graphs: Sequence[Data], train: Sequence[int], name: str) -> dict[str, Any]:
    """Return the fields for continuous features; a feature that does not vary is left as it is."""
    rows = torch.cat([graphs[k][name] for k in train]).double()  # (rows, F)
    mean, deviation = rows.mean(0), rows.std(0, correction=0)
    varies = deviation > 1e-12 * rows.abs().amax(0)
    return {
        f"num_{kind}_features": rows.shape[1],
        f"{kind}_offsets": tuple(mean.where(varies, torch.zeros_like(mean)).tolist()),
        f"{kind}_scales": tuple(deviation.where(varies, torch.ones_like(mean)).tolist()),
    }


def _are_ogb_codes(graphs: Sequence[Data], fields: dict[str, Any]) -> bool:
    """Return whether the features are OGB's codes of molecules.

    If the first graph has a SMILES, its features must be the codes of that molecule.
    """
    for name, sizes in (
        ("node_cardinalities", ATOM_CARDINALITIES),
        ("edge_cardinalities", BOND_CARDINALITIES),
    ):
        values = fields.get(name, ())
        if len(values) != len(sizes) or any(a > b for a, b in zip(values, sizes, strict=True)):
            return False
    smiles = graphs[0].get("smiles")
    if not isinstance(smiles, str):
        return True
    try:
        expected = molecule_graph(smiles).x
    except MoleculeError:
        return False
    return expected.shape == graphs[0].x.shape and bool((expected == graphs[0].x).all())
