"""Anybody's graphs, or their nodes, as the source of a run: read, learned and described."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from graphxai.contract.prediction_metrics import FloatArray
from graphxai.datasets.graph import is_data
from graphxai.datasets.graph_folders import digest_of, plain, starts_of
from graphxai.learning.card import counted, summary
from graphxai.learning.graphs.baselines import forest_readings, gin_readings
from graphxai.learning.graphs.reading import TaskLike, input_fields, labels_of, level_of, tasks_of
from graphxai.learning.reliability import verdicts
from graphxai.learning.settings import GraphSettings, TrainingSettings
from graphxai.learning.splitting import FEWEST, graph_parts, node_parts, standardised
from graphxai.learning.training import (
    LearnedModel,
    Log,
    RunSource,
    fit_networks,
    joined_networks,
)
from graphxai.models.graphormer import GraphormerConfig, members_of, prepare
from graphxai.runtime.progress import progress_bar

HEADS = 8
HARDWARE = ("accelerator", "devices", "strategy", "precision", "num_workers", "progress")
FORESTS = {
    "feature_forest": "the means of all features and the numbers of nodes and edges",
    "neighbour_forest": "a node's features, its degree and the mean features of its neighbours",
}


@dataclass(frozen=True, eq=False)
class GraphSource(RunSource):
    """Graphs, or their nodes, in their parts.

    Attributes:
        sha256: hash of features and edges, see `digest_of`.
    """

    settings: GraphSettings
    name: str
    sha256: str
    stored = ("data", "sha256", "split", "temperature", "scores", "coverage", "notes", "removal")

    def __str__(self) -> str:
        return f"{self.name}: {super().__str__()}"

    def training(self, network: int = 0) -> TrainingSettings:
        """Return the settings for fitting one of the networks, which have consecutive seeds."""
        count, of_nodes = len(self.train.graphs), self.config.level == "node"
        training = self.settings.training(count, max(self._sizes), of_nodes=of_nodes)
        return replace(training, seed=training.seed + network)

    @property
    def _sizes(self) -> list[int]:
        return [int(graph.num_nodes or 0) for graph in self.graphs]

    def identity(self) -> dict[str, Any]:
        """Return the graphs, their split and the settings that decide about the model."""
        training = asdict(self.training())
        return {
            "data": self.name,
            "sha256": self.sha256,
            "graphs": len(self.graphs),
            "split": asdict(self.parts),
            "training": {name: v for name, v in training.items() if name not in HARDWARE},
            "ensemble": self.settings.ensemble,
        }

    def learn(self, out: Path, log: Log) -> LearnedModel:
        """Fit networks, and join them to a model."""
        fits = fit_networks(self, out, log)
        return LearnedModel(
            joined_networks([fit.model for fit in fits]), tuple(fit.epoch for fit in fits)
        )

    def rivals(self, learned: LearnedModel, log: Log) -> dict[str, Mapping[int, FloatArray]]:
        """Return what a GIN and a forest predict, by name and position of the task."""
        if not self.settings.baselines:
            return {}
        log("training a GIN with as many parameters, and a forest, for comparison")
        if not self.parts.test:
            return {}
        forest = "feature_forest" if self.labelled == "graphs" else "neighbour_forest"
        readings = {
            "gin": gin_readings(members_of(learned.model)[0], self, self.training()),
            forest: forest_readings(self, self.settings.seed),
        }
        return {name: dict(enumerate(by_task)) for name, by_task in readings.items()}

    def facts(self, learned: LearnedModel, results: dict[str, Any]) -> dict[str, Any]:
        """Return all that is stored with the model, as JSON values."""
        return self.identity() | {
            **{name: results[name] for name in ("temperature", "coverage", "scores")},
            "best_epochs": list(learned.best_epochs),
            "notes": verdicts(results["scores"]),
            "summary": summary(results["scores"]),
        }

    def rows(self, positions: Sequence[int]) -> list[list[Any]]:
        """Return a header, and the place of each graph or node in the data set, with its labels."""
        of_graphs = self.labelled == "graphs"
        header = ["graph", *([] if of_graphs else ["node"]), *(task.name for task in self.tasks)]
        places = [[k] if of_graphs else self.node_of(k) for k in positions]
        labels = map(self.label_cells, positions)
        return [header, *([*place, *each] for place, each in zip(places, labels, strict=True))]

    def words(self, learned: LearnedModel, facts: dict[str, Any]) -> dict[str, str]:
        """Return what the card says of graphs alone."""
        training, sizes = self.training(), self._sizes
        compared = {name for each in facts["scores"].values() for name in each["scores"]}
        rivals = (
            " GIN: a graph isomorphism network (Xu 2019) with as many parameters, trained for as"
            " many epochs."
            if "gin" in compared
            else ""
        )
        rivals += "".join(
            f" Forest: 500 trees on {read}." for name, read in FORESTS.items() if name in compared
        )
        kind = {
            "random": f"at random with seed {self.parts.seed}",
            "masks": "by the masks of the graphs",
        }
        best = facts["best_epochs"]
        size = sum(parameter.numel() for parameter in learned.model.parameters())
        return {
            "title": ", ".join(task.name for task in self.tasks),
            "parameters": f", {size:,} parameters",
            "kind": self.labelled,
            "data": f"{self.name}, {len(sizes):,} graphs of {min(sizes):,} to {max(sizes):,} nodes,"
            f" SHA-256 of features and edges `{self.sha256}`. {_inputs_text(self.config)}",
            "split": kind.get(self.parts.kind, "as given"),
            "where": "Their positions are in `config.json`"
            f"{'' if self.labelled == 'graphs' else ', counted over all graphs'}.",
            "training": _training_text(training, best, bool(self.parts.valid)),
            "fitted_on": f"the validation {self.labelled}",
            "rivals": rivals,
            "made_from": f", made from the validation {self.labelled}, which also decided about the"
            " epoch",
        }


def split_graphs(
    dataset: Iterable[Data] | Data, task: TaskLike, settings: GraphSettings, name: str = ""
) -> GraphSource:
    """Read a data set's labels and features, split its graphs or nodes, and encode the graphs.

    Args:
        dataset: PyG graphs with labels `y`, or a single graph whose nodes have them.
        task: what they are learned for, see `tasks_of`.
        name: name of the data set, by default its own.

    Raises:
        ValueError: there are too few graphs, a graph cannot be used, or labels and split do not
            fit; the message names the graph.
    """
    if not isinstance(dataset, Iterable):
        kind = type(dataset).__name__
        raise TypeError(f"train takes a data set, a list of graphs or a folder, not {kind}.")
    given = [dataset] if is_data(dataset) else list(dataset)
    for k, graph in enumerate(given):
        if not is_data(graph):
            raise ValueError(f"graph {k} is a {type(graph).__name__}, not PyG's Data.")
    level, starts = level_of(given), starts_of(given)
    count = len(given) if level == "graph" else int(starts[-1])
    if count < FEWEST:
        raise ValueError(f"{count} {level}s are too few to train on: give at least {FEWEST}.")
    y = labels_of(given, level)
    whole = all(torch.as_tensor(graph.y).is_floating_point() is False for graph in given)
    tasks = tasks_of(task, y, whole=whole)
    parts = graph_parts(settings, len(y)) if level == "graph" else node_parts(given, y, settings)
    learned, train = y[list(parts.train)], parts.train
    for each, column in zip(tasks, learned.T, strict=True):
        if len(np.unique(column[~np.isnan(column)])) < 2:
            raise ValueError(
                f"task {each.name!r}: the training part has fewer than two different labels."
            )
    if level == "node":
        train = tuple(np.unique(np.searchsorted(starts, train, side="right") - 1).tolist())
    graphs = [plain(graph) for graph in given]
    config = GraphormerConfig(
        standardised(tasks, learned),
        level=level,
        num_layers=settings.layers,
        hidden_dim=settings.width,
        ffn_dim=2 * settings.width,
        num_heads=HEADS,
        dropout=settings.dropout,
        attention_dropout=settings.dropout,
        **input_fields(graphs, train),
    )
    for k, graph in enumerate(graphs):
        graph.y = torch.from_numpy(y[k]).float()[None] if level == "graph" else None
    encoded = []
    show = None if settings.progress else False
    with progress_bar("encoding", len(graphs), show=show) as advance:
        for k, graph in enumerate(graphs):
            try:
                encoded.append(prepare(config, graph).data)
            except ValueError as error:
                raise ValueError(f"graph {k}: {error}") from error
            advance(1)
    name = name or str(getattr(dataset, "name", "") or type(dataset).__name__)
    return GraphSource(encoded, y, parts, config, settings, name, digest_of(graphs))


def _training_text(training: TrainingSettings, best_epochs: Sequence[int], validated: bool) -> str:
    """Say how long networks were trained, given the epochs whose weights they have."""
    epochs, patience = training.epochs, training.patience or training.epochs
    stopped = validated and any(best + patience < epochs - 1 for best in best_epochs)
    return (
        f"{'At most ' if stopped else ''}{counted(epochs, 'epoch')} from scratch, batches of"
        f" {training.batch_size}, learning rate {training.learning_rate:g}, seed {training.seed}"
        + (
            f"; stopped after {counted(patience, 'epoch')} without a lower validation loss"
            if stopped
            else ""
        )
        + f". The averaged weights of epoch {', '.join(str(k + 1) for k in best_epochs)} were kept."
    )


def _inputs_text(config: GraphormerConfig) -> str:
    """Say what the network reads of nodes and edges."""
    parts = []
    for word, sizes, numbers in (
        ("Nodes", config.node_cardinalities, config.num_node_features),
        ("Edges", config.edge_cardinalities, config.num_edge_features),
    ):
        said = "have no features"
        if sizes == (1,):
            said = "all look alike"
        elif sizes:
            said = f"have {counted(len(sizes), 'categorical feature')}"
        elif numbers:
            said = f"have {counted(numbers, 'number')}, standardised on the training graphs"
        parts.append(f"{word} {said}.")
    return " ".join(parts)
