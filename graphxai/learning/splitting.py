"""What a run learns from: molecules of a table, graphs or nodes, split into parts, and its tasks.

The molecules of a table are split by their structure, by a column or at random. Graphs are split at
random or as the user says, and so are their nodes, which are counted over all graphs, in order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from graphxai.contract.prediction_metrics import FloatArray
from graphxai.contract.tasks import Task, TaskKind
from graphxai.datasets.canonical_form import canonical_smiles
from graphxai.datasets.graph_folders import starts_of
from graphxai.datasets.splits import (
    Split,
    cluster_split,
    given_split,
    random_split,
    scaffold_split,
    time_split,
)
from graphxai.learning.cleaned_table import CleanTable, TargetColumn, unbounded
from graphxai.learning.settings import GraphSettings
from graphxai.models.graphormer import NODE_LABELS, GraphormerConfig

if TYPE_CHECKING:
    from torch_geometric.data import Data

SPLITS = ("scaffold", "random", "clusters", "time", "column")
MASKS = ("train_mask", "val_mask", "test_mask")  # of nodes, by PyG's convention
FEWEST = 10  # graphs to learn from, or to split as a whole


@dataclass(frozen=True, eq=False)
class Part:
    """The training, validation or test part of what is learned from.

    Attributes:
        positions: positions of its molecules, graphs or nodes among all (m,).
        graphs: the encoded graphs. If nodes have the labels, each graph has only those of this
            part.
        smiles: the SMILES of molecules (m,); empty for other graphs.
        y: labels (m, tasks), NaN where one is missing.
        bounds: the lowest and highest possible values (m, tasks, 2), see `learning.merging`.
    """

    positions: tuple[int, ...]
    graphs: list[Data]
    smiles: tuple[str, ...]
    y: FloatArray
    bounds: FloatArray


@dataclass(frozen=True, eq=False)
class Source:
    """Graphs that are split and encoded, ready to train on.

    Attributes:
        graphs: the encoded graphs (n,). Where these have labels, each has its row of `y`.
        y: the labels (n, tasks) of all graphs or all nodes, NaN where one is missing. Nodes are
            counted over all graphs, in order.
        parts: positions of the training, validation and test graphs or nodes.
        config: configuration of the network that reads them. The values of its tasks are
            standardised on the training labels.
    """

    graphs: list[Data]
    y: FloatArray
    parts: Split
    config: GraphormerConfig
    valid_is_to: ClassVar[str] = "validate"  # as a verb, what the validation part is for

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What is learned."""
        return self.config.tasks

    @property
    def labelled(self) -> str:
        """What has the labels, as a noun: "graphs" or "nodes"."""
        return "nodes" if self.config.level == "node" else "graphs"

    @cached_property
    def bounds(self) -> FloatArray:
        """The bounds of labels that were not measured (n, tasks, 2)."""
        return unbounded(*self.y.shape)

    @cached_property
    def starts(self) -> NDArray[np.int_]:
        """The number of each graph's first node, counted over all graphs, and of all nodes."""
        return starts_of(self.graphs)

    @cached_property
    def train(self) -> Part:
        """The part to learn from."""
        return self._part(self.parts.train)

    @cached_property
    def valid(self) -> Part:
        """The part that is held out for calibration, and for the choice of an epoch."""
        return self._part(self.parts.valid)

    @cached_property
    def test(self) -> Part:
        """The part that is held out for the scores."""
        return self._part(self.parts.test)

    def node_of(self, position: int) -> tuple[int, int]:
        """Return the graph of a node that is counted over all graphs, and its number there."""
        graph = int(np.searchsorted(self.starts, position, side="right")) - 1
        return graph, position - int(self.starts[graph])

    def label_cells(self, position: int) -> list[str]:
        """Return the labels of a molecule, a graph or a node as cells of a table."""
        return list(map(label_text, self.tasks, self.y[position], self.bounds[position]))

    def with_labels(self, y: FloatArray) -> Self:
        """Return the same graphs with other labels y (n, tasks)."""
        return replace(self, graphs=labelled(self.graphs, y), y=y)

    def _part(self, positions: Sequence[int]) -> Part:
        places = list(positions)
        y, bounds = self.y[places], self.bounds[places]
        if self.config.level == "node":
            labels = np.full_like(self.y, np.nan)
            labels[places] = self.y[places]
            copies = []
            for graph, first, last in zip(
                self.graphs, self.starts[:-1], self.starts[1:], strict=True
            ):
                if not np.isnan(labels[first:last]).all():
                    graph = copy(graph)
                    graph[NODE_LABELS] = torch.from_numpy(labels[first:last]).float()
                    copies.append(graph)
            return Part(tuple(places), copies, (), y, bounds)
        graphs = [self.graphs[k] for k in places]
        are_molecules = self.graphs[0].get("smiles") is not None
        texts = (graph.smiles for graph in graphs if are_molecules)
        # structures are counted without the configuration that groups & and o leave open
        smiles = tuple(canonical_smiles(text) if "|" in text else text for text in texts)
        return Part(tuple(places), graphs, smiles, y, bounds)

    def __str__(self) -> str:
        parts = self.parts
        what = " of nodes" if self.labelled == "nodes" else ""
        valid = f", {self.valid_is_to} {len(parts.valid):,}" if parts.valid else ""
        train, test = f"train {len(parts.train):,}", f"test {len(parts.test):,}"
        return f"{parts.kind} split{what}: {train}{valid}, {test}"


def labelled(graphs: Sequence[Data], y: FloatArray) -> list[Data]:
    """Return copies of the graphs with labels y (n, tasks)."""
    copies = [copy(graph) for graph in graphs]
    for graph, labels in zip(copies, y, strict=True):
        graph.y = torch.from_numpy(labels).float()[None]
    return copies


def label_text(task: Task, label: float, bounds: Sequence[float]) -> str:
    """Return a label as a cell: the name of a class, a value, a bound such as ">10", or nothing."""
    if np.isnan(label):
        return bound_text(bounds)
    return task.classes[int(label)] if task.classes else f"{label:.7g}"


def bound_text(bounds: Sequence[float]) -> str:
    """Return the bounds of a value (2,) as a cell, such as ">10", or "" without any."""
    low, high = bounds
    parts = [f">{low:.7g}"] if np.isfinite(low) else []
    return " ".join([*parts, f"<{high:.7g}"] if np.isfinite(high) else parts)


def table_split(
    table: CleanTable,
    kind: str = "scaffold",
    seed: int = 0,
    column: str | None = None,
    *,
    set_aside: bool = True,
) -> Split:
    """Split the molecules into a training, a validation and a test part.

    Args:
        table: the molecules.
        kind: 80/10/10 by "scaffold" (deterministic), "random" (with `seed`), "clusters" of similar
            molecules, "time" (oldest to newest by `column`); or "column", the parts that it names.
        seed: seed of a random split, and of a validation part that a column lacks.
        column: column of the file for "time" and "column". If a molecule has several rows, the
            first one counts.
        set_aside: whether to set molecules aside for validation. If not, they are trained on, and
            only those that a column marks as "valid" are held out.

    Raises:
        ValueError: an unknown kind; a column that is missing, not needed or not understood; one
            scaffold has most of the molecules; or the training part lacks a class, or has only one
            value.
    """
    if kind not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {kind!r}.")
    if (column is not None) != (kind in ("column", "time")):
        raise ValueError("a column is needed to split by column or time, and for nothing else.")
    if column is not None:
        cells = table.cells(column)
        if kind == "time":
            split = time_split(cells, rows=table.rows)
        else:
            split = given_split(cells, seed, table.rows, draw_valid=set_aside)
    elif kind == "random":
        split = random_split(len(table.molecules), seed)
    else:
        smiles = [graph.smiles for graph in table.molecules]
        split = (scaffold_split if kind == "scaffold" else cluster_split)(smiles)
        if len(split.train) < len(smiles) / 2 or not split.test:
            group = "scaffold" if kind == "scaffold" else "cluster"
            raise ValueError(
                f"splitting by {group} leaves {len(split.train)} of {len(smiles)} molecules for"
                f" training and {len(split.test)} for testing: most share one {group}, as in a"
                " congeneric series. Try --split random."
            )
    if kind != "column" and not set_aside:
        split = replace(split, train=tuple(sorted(split.train + split.valid)), valid=())
    y = table.y[list(split.train)]
    for target, labels in zip(table.targets, y.T, strict=True):
        distinct = np.unique(labels[~np.isnan(labels)])
        if len(distinct) < max(2, len(target.classes)):
            other = "another --seed" if kind == "random" else "--split random"
            content = "classes" if target.classes else "values"
            rare = ", or merge rare classes" if target.classes else ""
            raise ValueError(
                f"target {target.name!r}: the training part of the {kind} split has"
                f" {len(distinct)} of the {max(2, len(target.classes))} {content} needed: try"
                f" {other}{rare}."
            )
    return split


def share_of(parts: Split, share: float, seed: int) -> Split:
    """Return a split with a share of its training part; larger shares contain smaller ones."""
    order = list(parts.train)
    random.Random(seed).shuffle(order)
    return replace(parts, train=tuple(sorted(order[: max(2, round(share * len(order)))])))


def graph_parts(settings: GraphSettings, n: int) -> Split:
    """Return the split that is wanted, whose parts must be positions in the data set."""
    wanted: Any = settings.split
    if wanted is None or wanted == "random":
        return random_split(n, settings.seed)
    if not isinstance(wanted, Split):
        try:
            train, valid, test = (tuple(int(k) for k in part) for part in wanted)
            wanted = Split(train, valid, test)
        except (TypeError, ValueError) as error:
            raise ValueError(
                "split must be 'random', a Split, or three lists with the positions of the"
                f" training, validation and test graphs: {error}"
            ) from error
    positions = [*wanted.train, *wanted.valid, *wanted.test]
    if not wanted.train or not all(0 <= k < n for k in positions):
        raise ValueError(f"the split needs training graphs, and positions from 0 to {n - 1}.")
    return wanted


def node_parts(graphs: Sequence[Data], y: FloatArray, settings: GraphSettings) -> Split:
    """Return the split of the nodes that have a label, counted over all graphs.

    The masks of the graphs say it, unless the settings do. At random, the nodes of less than ten
    graphs are split, and otherwise the graphs with all their nodes.

    Args:
        y: labels (n, tasks) of all nodes.
        settings: with the split that is wanted: None, "random", or positions of nodes, if there is
            a single graph, or of graphs.

    Raises:
        ValueError: the masks or the positions do not fit.
    """
    labelled = np.logical_not(np.isnan(y).all(axis=1)).reshape(-1)
    at_random = settings.split is None or settings.split == "random"
    if settings.split is None and any(graph.get(MASKS[0]) is not None for graph in graphs):
        parts = (_masked(graphs, name) & labelled for name in MASKS)
        train, valid, test = (tuple(np.flatnonzero(part).tolist()) for part in parts)
        return Split(train, valid, test, "masks")
    # what is split, and its number for each node
    if at_random and len(graphs) < FEWEST:
        split, numbers = random_split(int(labelled.sum()), settings.seed), labelled.cumsum() - 1
    elif len(graphs) == 1:
        split, numbers = graph_parts(settings, len(y)), np.arange(len(y))
    else:
        graph_of_node = np.arange(len(graphs)).repeat(np.diff(starts_of(graphs)))
        split, numbers = graph_parts(settings, len(graphs)), graph_of_node
    train, valid, test = (
        tuple(np.flatnonzero(labelled & np.isin(numbers, part)).tolist())
        for part in (split.train, split.valid, split.test)
    )
    return replace(split, train=train, valid=valid, test=test)


def _masked(graphs: Sequence[Data], name: str) -> NDArray[np.bool_]:
    """Return which nodes (n,) of all graphs a mask has; ValueError names a graph without it."""
    parts = []
    for k, graph in enumerate(graphs):
        mask = graph.get(name)
        if not isinstance(mask, torch.Tensor) or tuple(mask.shape) != (graph.num_nodes,):
            shape = tuple(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
            raise ValueError(
                f"graph {k}: {name} must be true or false for each of {graph.num_nodes} nodes, not"
                f" {shape}. Of several masks choose one, such as {name}[:, 0]."
            )
        parts.append(mask.bool().numpy())
    return np.concatenate(parts)


def table_tasks(targets: Sequence[TargetColumn], y: FloatArray) -> tuple[Task, ...]:
    """Return the model's tasks, with values standardised on training labels y (n, targets)."""
    kinds: dict[int, TaskKind] = {0: "regression", 2: "binary"}
    tasks = [
        Task(t.name, kinds.get(len(t.classes), "multiclass"), t.classes, t.unit) for t in targets
    ]
    return standardised(tasks, y)


def standardised(tasks: Sequence[Task], y: FloatArray) -> tuple[Task, ...]:
    """Return the tasks, with values standardised on training labels y (n, tasks)."""
    fitted = []
    for task, column in zip(tasks, y.T, strict=True):
        measured = column[~np.isnan(column)]
        if task.kind == "regression" and len(measured):
            scale = float(measured.std()) or 1.0
            task = replace(task, offset=float(measured.mean()), scale=scale)
        fitted.append(task)
    return tuple(fitted)
