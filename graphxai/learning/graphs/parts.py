"""Which graphs, or which nodes, are for training, validation and testing.

Nodes are counted over all graphs, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphxai.datasets.splits import Split, random_split
from graphxai.learning.graphs.labels import MASKS
from graphxai.learning.settings import GraphSettings
from graphxai.models.graphormer import NODE_LABELS

__all__ = ["FEWEST", "graph_parts", "graphs_of", "node_parts", "starts_of", "with_labels_of_nodes"]

FloatArray = NDArray[np.float64]
FEWEST = 10  # graphs to learn from, or to split as a whole


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
        graphs: the graphs.
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
    if at_random and len(graphs) < FEWEST:
        nodes = np.flatnonzero(labelled)
        return _sorted(random_split(len(nodes), settings.seed), lambda k: [int(nodes[k])])
    if len(graphs) == 1:
        return _sorted(graph_parts(settings, len(y)), lambda k: [k] if labelled[k] else [])
    starts = starts_of(graphs)

    def nodes_of(graph: int) -> list[int]:
        first = int(starts[graph])
        return [first + k for k in np.flatnonzero(labelled[first : starts[graph + 1]]).tolist()]

    return _sorted(graph_parts(settings, len(graphs)), nodes_of)


def _sorted(split: Split, nodes_of: Callable[[int], list[int]]) -> Split:
    """Return a split with each position replaced by nodes, in ascending order."""
    train, valid, test = (
        tuple(sorted(node for position in part for node in nodes_of(position)))
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


def starts_of(graphs: Sequence[Data]) -> NDArray[np.int_]:
    """Return the number of each graph's first node, counted over all graphs, and of all nodes."""
    return np.cumsum([0, *(int(graph.num_nodes or 0) for graph in graphs)])


def graphs_of(nodes: Sequence[int], starts: NDArray[np.int_]) -> list[int]:
    """Return the graphs in which nodes are."""
    owners = np.searchsorted(starts, np.asarray(nodes, dtype=int), side="right") - 1
    return list(np.unique(owners).tolist())


def with_labels_of_nodes(
    graphs: Sequence[Data], labels: FloatArray, starts: NDArray[np.int_]
) -> list[Data]:
    """Return copies of the graphs that have any label (n, tasks), with those of their nodes."""
    copies = []
    for graph, first, last in zip(graphs, starts[:-1], starts[1:], strict=True):
        if not np.isnan(labels[first:last]).all():
            graph = copy(graph)
            graph[NODE_LABELS] = torch.from_numpy(labels[first:last]).float()
            copies.append(graph)
    return copies
