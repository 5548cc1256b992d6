"""What a run learns from, in its parts: molecules of a table, graphs, or the nodes of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from graphxai.contract.prediction_metrics import FloatArray
from graphxai.contract.tasks import Task
from graphxai.datasets.canonical_form import canonical_smiles
from graphxai.datasets.graph_folders import starts_of
from graphxai.datasets.splits import Split
from graphxai.learning.cleaned_table import unbounded
from graphxai.models.graphormer import NODE_LABELS, GraphormerConfig

if TYPE_CHECKING:
    from torch_geometric.data import Data


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
