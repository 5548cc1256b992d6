"""Simple models to compare with: a GIN of the same budget, and a forest on simple features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, GINEConv, global_add_pool

from graphxai.contract.prediction_metrics import FloatArray, readings
from graphxai.learning.graphs.reading import mean_features, node_features
from graphxai.learning.scores import Objective
from graphxai.learning.settings import TrainingSettings
from graphxai.learning.splitting import Source
from graphxai.learning.teachers.forests import Forest
from graphxai.models.graphormer import NODE_LABELS, Graphormer, GraphormerConfig
from graphxai.runtime.progress import progress_bar

LAYERS = 4
TREES = 500


class GIN(nn.Module):
    """A graph isomorphism network (Xu 2019) that reads the sum over the nodes after every layer.

    If nodes have the labels, its head reads all layers of each node instead. It reads the same
    features as the Graphormer of a configuration. Edge features enter as in Hu 2020.
    """

    starts: Tensor

    def __init__(self, config: GraphormerConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.nodes = _Features(config, "node", width)
        has_edges = config.rows_per_hop > 0
        self.edges = _Features(config, "edge", width) if has_edges else None
        conv = GINEConv if has_edges else GINConv
        self.layers = nn.ModuleList(conv(_perceptron(width), train_eps=True) for _ in range(LAYERS))
        self.head = nn.Sequential(
            nn.Linear((LAYERS + 1) * width, width), nn.ReLU(), nn.Linear(width, config.num_outputs)
        )

    def forward(self, batch: Batch) -> Tensor:
        """Return outputs (B, num_outputs), or (nodes, num_outputs) if nodes have the labels."""
        h = self.nodes(batch.x)
        edges = () if self.edges is None else (self.edges(batch.edge_attr),)
        read = [h]
        for layer in self.layers:
            h = layer(h, batch.edge_index, *edges)
            read.append(h)
        joined = torch.cat(read, dim=1)
        if self.config.level == "graph":
            joined = global_add_pool(joined, batch.batch, batch.num_graphs)
        return self.head(joined)


class _Features(nn.Module):
    """Embed the categories or standardised numbers of a "node" or an "edge"."""

    def __init__(self, config: GraphormerConfig, kind: str, width: int) -> None:
        super().__init__()
        sizes, offsets, scales = (
            getattr(config, f"{kind}_{name}") for name in ("cardinalities", "offsets", "scales")
        )
        numbers = getattr(config, f"num_{kind}_features")
        self.starts = torch.tensor([sum(sizes[:k]) for k in range(len(sizes))])
        self.offsets = torch.tensor(offsets or [0.0] * numbers)
        self.scales = torch.tensor(scales or [1.0] * numbers)
        self.embed: nn.Module = (
            nn.EmbeddingBag(sum(sizes), width, mode="sum") if sizes else nn.Linear(numbers, width)
        )

    def forward(self, values: Tensor) -> Tensor:
        """Return embeddings (rows, D) of features (rows, F)."""
        if len(self.starts):
            return self.embed(values.long() + self.starts)
        return self.embed((values.float() - self.offsets) / self.scales)


def _perceptron(width: int) -> nn.Module:
    first, last = (nn.Linear(width, width) for _ in range(2))
    return nn.Sequential(first, nn.BatchNorm1d(width), nn.ReLU(), last, nn.ReLU())


def same_budget(model: Graphormer) -> GIN:
    """Return a GIN with about as many parameters as a Graphormer, and not more."""
    budget = sum(parameter.numel() for parameter in model.parameters())
    width = 8
    while sum(p.numel() for p in GIN(model.config, width + 8).parameters()) <= budget:
        width += 8
    return GIN(model.config, width)


def gin_readings(model: Graphormer, source: Source, settings: TrainingSettings) -> list[FloatArray]:
    """Train a GIN for as many epochs as a Graphormer, and read its predictions for the test part.

    The weights of the epoch with the lowest validation loss are kept, and training stops with the
    same patience.

    Returns:
        Probabilities or values of the test part, by task.
    """
    torch.manual_seed(settings.seed)
    gin = same_budget(model)
    objective = Objective(model.config.tasks)
    optimizer = torch.optim.Adam(gin.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(settings.seed)
    train: Any = DataLoader(
        _bare(source.train.graphs), settings.batch_size, shuffle=True, generator=generator
    )
    best, kept, stale = float("inf"), None, 0
    with progress_bar("training a GIN, epochs", settings.epochs, show=settings.show) as advance:
        for _ in range(settings.epochs):
            gin.train()
            for batch in train:
                optimizer.zero_grad()
                labels = batch.y if gin.config.level == "graph" else batch[NODE_LABELS]
                objective(gin(batch), labels).backward()
                optimizer.step()
            outputs = _outputs(gin, source.valid.graphs)
            loss = float(objective(outputs, torch.from_numpy(source.valid.y).float()))
            advance(1)
            if loss < best or not source.valid.graphs:
                best, stale = loss, 0
                kept = {name: value.clone() for name, value in gin.state_dict().items()}
            else:
                stale += 1
            if settings.patience is not None and stale >= settings.patience:
                break
    if kept is not None:
        gin.load_state_dict(kept)
    outputs = _outputs(gin, source.test.graphs)
    by_task = zip(model.config.tasks, model.config.columns, strict=True)
    return [readings(task, outputs[:, columns]) for task, columns in by_task]


@torch.no_grad()
def _outputs(gin: GIN, graphs: Sequence[Data]) -> Tensor:
    """Return a network's outputs (n, num_outputs), for the graphs or the nodes with labels."""
    gin.eval()
    batches: Any = DataLoader(_bare(graphs), 64)
    parts = [torch.empty(0, gin.config.num_outputs)]
    for batch in batches:
        outputs = gin(batch)
        if gin.config.level == "node":
            outputs = outputs[~batch[NODE_LABELS].isnan().all(1)]
        parts.append(outputs)
    return torch.cat(parts)


def _bare(graphs: Sequence[Data]) -> list[Data]:
    """Return the graphs without their encoded structure, which PyG cannot batch."""
    names = ("x", "edge_index", "edge_attr", "y", NODE_LABELS)
    return [Data(**{n: g[n] for n in names if g.get(n) is not None}) for g in graphs]


def _simple_features(graphs: Sequence[Data], config: GraphormerConfig) -> Tensor:
    """Return the features (n, F) that a forest gets, of graphs or of the nodes with labels."""
    fields = config.to_dict()
    if config.level == "graph":
        return mean_features(graphs, fields)
    labelled = [~graph[NODE_LABELS].isnan().all(1) for graph in graphs]
    return torch.cat(
        [node_features(g, fields)[rows] for g, rows in zip(graphs, labelled, strict=True)]
    )


def forest_readings(source: Source, seed: int) -> list[FloatArray]:
    """Fit a forest to simple features of the training part, and predict the test part.

    They are the mean features of graphs, or those of nodes and their neighbours.

    Returns:
        Probabilities or values of the test part, by task.
    """
    train, test = (
        _simple_features(part.graphs, source.config).numpy() for part in (source.train, source.test)
    )
    by_task = []
    for task, y in zip(source.tasks, source.train.y.T, strict=True):
        present = ~np.isnan(y)
        forest = Forest.fit(task, train[present], y[present], trees=TREES, seed=seed)
        by_task.append(forest.predict(test))
    return by_task
