"""The first stage of training on graphs: read labels and features, split, and encode."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphxai.contract.tasks import Task
from graphxai.datasets.graph import is_data
from graphxai.datasets.splits import Split, random_split
from graphxai.learning.graphs.features import input_fields, plain
from graphxai.learning.graphs.labels import TaskLike, labels_of, standardised, tasks_of
from graphxai.learning.graphs.settings import GraphSettings
from graphxai.models.graphormer import GraphormerConfig, prepare
from graphxai.runtime.progress import progress_bar

__all__ = ["GraphPart", "SplitGraphs", "digest_of", "split_graphs"]

FloatArray = NDArray[np.float64]
HEADS = 8
FEWEST = 10  # graphs


@dataclass(frozen=True, eq=False)
class GraphPart:
    """The training, validation or test part.

    Attributes:
        graphs: the encoded graphs (m,).
        y: their labels (m, tasks), NaN where one is missing.
    """

    graphs: list[Data]
    y: FloatArray


@dataclass(frozen=True, eq=False)
class SplitGraphs:
    """Graphs that are ready to train on.

    Attributes:
        name: name of the data set.
        graphs: the encoded graphs (n,), with labels `y` (1, tasks).
        y: their labels (n, tasks), NaN where one is missing.
        parts: positions of the training, validation and test graphs.
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

    @cached_property
    def train(self) -> GraphPart:
        """The graphs to learn from."""
        return self._part(self.parts.train)

    @cached_property
    def valid(self) -> GraphPart:
        """The graphs that decide about the best epoch, and calibrate."""
        return self._part(self.parts.valid)

    @cached_property
    def test(self) -> GraphPart:
        """The graphs held out for the scores."""
        return self._part(self.parts.test)

    def _part(self, positions: Sequence[int]) -> GraphPart:
        return GraphPart([self.graphs[k] for k in positions], self.y[list(positions)])

    def __str__(self) -> str:
        sizes = [len(part) for part in (self.parts.train, self.parts.valid, self.parts.test)]
        train, valid, test = (f"{size:,}" for size in sizes)
        return f"{self.parts.kind} split: train {train}, validate {valid}, test {test}"


def split_graphs(
    dataset: Iterable[Data], task: TaskLike, settings: GraphSettings, name: str = ""
) -> SplitGraphs:
    """Read a data set's labels and features, split its graphs, and encode them.

    Args:
        dataset: PyG graphs with labels `y`.
        task: what they are learned for, see `tasks_of`.
        settings: settings of the run.
        name: name of the data set, by default its own.

    Raises:
        ValueError: there are too few graphs, a graph cannot be used, or labels and split do not
            fit; the message names the graph.
    """
    given = list(dataset)
    for k, graph in enumerate(given):
        if not is_data(graph):
            raise ValueError(f"graph {k} is a {type(graph).__name__}, not PyG's Data.")
    if len(given) < FEWEST:
        raise ValueError(f"{len(given)} graphs are too few to train on: give at least {FEWEST}.")
    y = labels_of(given)
    whole = all(torch.as_tensor(graph.y).is_floating_point() is False for graph in given)
    tasks = tasks_of(task, y, whole=whole)
    parts = _parts(settings, len(given))
    graphs = [plain(graph) for graph in given]
    config = GraphormerConfig(
        standardised(tasks, y[list(parts.train)]),
        num_layers=settings.layers,
        hidden_dim=settings.width,
        ffn_dim=2 * settings.width,
        num_heads=HEADS,
        dropout=settings.dropout,
        attention_dropout=settings.dropout,
        **input_fields(graphs, parts.train),
    )
    encoded = _encoded(graphs, y, config, settings)
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


def _parts(settings: GraphSettings, n: int) -> Split:
    """Return the split that the settings ask for, and check its positions."""
    split: Any = settings.split
    if split is None or split == "random":
        return random_split(n, settings.seed)
    if not isinstance(split, Split):
        try:
            train, valid, test = (tuple(int(k) for k in part) for part in split)
            split = Split(train, valid, test)
        except (TypeError, ValueError) as error:
            raise ValueError(
                "split must be 'random', a Split, or three lists with the positions of the"
                f" training, validation and test graphs: {error}"
            ) from error
    positions = [*split.train, *split.valid, *split.test]
    if not split.train or not all(0 <= k < n for k in positions):
        raise ValueError(f"the split needs training graphs, and positions from 0 to {n - 1}.")
    return split


def _encoded(
    graphs: Sequence[Data], y: FloatArray, config: GraphormerConfig, settings: GraphSettings
) -> list[Data]:
    """Encode graphs with their labels, or raise a ValueError that names one that cannot be used."""
    encoded = []
    show = None if settings.progress else False
    with progress_bar("encoding", len(graphs), show=show) as advance:
        for k, (graph, labels) in enumerate(zip(graphs, y, strict=True)):
            graph.y = torch.from_numpy(labels).float()[None]
            try:
                encoded.append(prepare(config, graph).data)
            except ValueError as error:
                raise ValueError(f"graph {k}: {error}") from error
            advance(1)
    return encoded
