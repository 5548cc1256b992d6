"""The first stage of training on graphs: read labels and features, split, and encode.

What is split are the graphs, or their nodes if these have the labels. Nodes are counted over all
graphs, in order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphxai.contract.tasks import Task
from graphxai.datasets.graph import is_data
from graphxai.datasets.splits import Split
from graphxai.learning.graphs.features import input_fields, plain
from graphxai.learning.graphs.labels import (
    TaskLike,
    labels_of,
    level_of,
    standardised,
    tasks_of,
)
from graphxai.learning.graphs.parts import (
    FEWEST,
    graph_parts,
    graphs_of,
    node_parts,
    starts_of,
    with_labels_of_nodes,
)
from graphxai.learning.settings import GraphSettings
from graphxai.models.graphormer import GraphormerConfig, prepare
from graphxai.runtime.progress import progress_bar

__all__ = ["GraphPart", "SplitGraphs", "digest_of", "split_graphs"]

FloatArray = NDArray[np.float64]
HEADS = 8


@dataclass(frozen=True, eq=False)
class GraphPart:
    """The training, validation or test part.

    Attributes:
        graphs: the encoded graphs; if nodes have the labels, each with only those of this part.
        y: the labels (m, tasks) of the part's graphs or nodes, NaN where one is missing.
    """

    graphs: list[Data]
    y: FloatArray


@dataclass(frozen=True, eq=False)
class SplitGraphs:
    """Graphs that are ready to train on.

    Attributes:
        name: name of the data set.
        graphs: the encoded graphs.
        y: the labels (n, tasks) of all graphs or all nodes, NaN where one is missing.
        parts: positions of the training, validation and test graphs or nodes.
        config: configuration of the network that reads them.
        sha256: hash of features and edges, see `digest_of`.
    """

    name: str
    graphs: list[Data]
    y: FloatArray
    parts: Split
    config: GraphormerConfig
    sha256: str

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks, with values standardised on the training labels."""
        return self.config.tasks

    @property
    def labelled(self) -> Literal["graphs", "nodes"]:
        """What has the labels."""
        return "nodes" if self.config.level == "node" else "graphs"

    @cached_property
    def starts(self) -> NDArray[np.int_]:
        """The number of each graph's first node, counted over all graphs, and of all nodes."""
        return starts_of(self.graphs)

    @cached_property
    def train(self) -> GraphPart:
        """The part to learn from."""
        return self._part(self.parts.train)

    @cached_property
    def valid(self) -> GraphPart:
        """The part that decides about the best epoch, and calibrates."""
        return self._part(self.parts.valid)

    @cached_property
    def test(self) -> GraphPart:
        """The part held out for the scores."""
        return self._part(self.parts.test)

    def node_of(self, position: int) -> tuple[int, int]:
        """Return the graph of a node that is counted over all graphs, and its number there."""
        graph = int(np.searchsorted(self.starts, position, side="right")) - 1
        return graph, position - int(self.starts[graph])

    def _part(self, positions: Sequence[int]) -> GraphPart:
        y = self.y[list(positions)]
        if self.labelled == "graphs":
            return GraphPart([self.graphs[k] for k in positions], y)
        labels = np.full_like(self.y, np.nan)
        labels[list(positions)] = y
        return GraphPart(with_labels_of_nodes(self.graphs, labels, self.starts), y)

    def __str__(self) -> str:
        sizes = [len(part) for part in (self.parts.train, self.parts.valid, self.parts.test)]
        train, valid, test = (f"{size:,}" for size in sizes)
        what = "" if self.labelled == "graphs" else " of nodes"
        return f"{self.parts.kind} split{what}: train {train}, validate {valid}, test {test}"


def split_graphs(
    dataset: Iterable[Data] | Data, task: TaskLike, settings: GraphSettings, name: str = ""
) -> SplitGraphs:
    """Read a data set's labels and features, split its graphs or nodes, and encode the graphs.

    Args:
        dataset: PyG graphs with labels `y`, or a single graph whose nodes have them.
        task: what they are learned for, see `tasks_of`.
        settings: settings of the run.
        name: name of the data set, by default its own.

    Raises:
        ValueError: there are too few graphs, a graph cannot be used, or labels and split do not
            fit; the message names the graph.
    """
    given = [dataset] if is_data(dataset) else list(dataset)
    for k, graph in enumerate(given):
        if not is_data(graph):
            raise ValueError(f"graph {k} is a {type(graph).__name__}, not PyG's Data.")
    level = level_of(given)
    count = len(given) if level == "graph" else int(starts_of(given)[-1])
    if count < FEWEST:
        raise ValueError(f"{count} {level}s are too few to train on: give at least {FEWEST}.")
    y = labels_of(given, level)
    whole = all(torch.as_tensor(graph.y).is_floating_point() is False for graph in given)
    tasks = tasks_of(task, y, whole=whole)
    parts = graph_parts(settings, len(y)) if level == "graph" else node_parts(given, y, settings)
    graphs = [plain(graph) for graph in given]
    learned = parts.train if level == "graph" else graphs_of(parts.train, starts_of(given))
    config = GraphormerConfig(
        standardised(tasks, y[list(parts.train)]),
        level=level,
        num_layers=settings.layers,
        hidden_dim=settings.width,
        ffn_dim=2 * settings.width,
        num_heads=HEADS,
        dropout=settings.dropout,
        attention_dropout=settings.dropout,
        **input_fields(graphs, learned),
    )
    for k, graph in enumerate(graphs):
        graph.y = torch.from_numpy(y[k]).float()[None] if level == "graph" else None
    encoded = _encoded(graphs, config, settings)
    name = name or str(getattr(dataset, "name", "") or type(dataset).__name__)
    return SplitGraphs(name, encoded, y, parts, config, digest_of(graphs))


def digest_of(graphs: Sequence[Data]) -> str:
    """Return the SHA-256 of the features and edges of graphs as from `plain`."""
    digest = hashlib.sha256()
    for graph in graphs:
        for name in ("x", "edge_index", "edge_attr"):
            value = graph.get(name)
            if isinstance(value, torch.Tensor):
                digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
                digest.update(value.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _encoded(
    graphs: Sequence[Data], config: GraphormerConfig, settings: GraphSettings
) -> list[Data]:
    """Encode graphs, or raise a ValueError that names one that cannot be used."""
    encoded = []
    show = None if settings.progress else False
    with progress_bar("encoding", len(graphs), show=show) as advance:
        for k, graph in enumerate(graphs):
            try:
                encoded.append(prepare(config, graph).data)
            except ValueError as error:
                raise ValueError(f"graph {k}: {error}") from error
            advance(1)
    return encoded
