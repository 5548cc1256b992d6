"""Put graphs through a model: encode them, predict, and read probabilities and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphxai.contract.tasks import Task
from graphxai.learning.loading import SizeBuckets
from graphxai.models.graphormer import (
    GraphormerConfig,
    LoadedModel,
    StructureEncoding,
    collate,
)

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = ["encode_all", "predict", "readings", "task_outputs", "task_readings"]

FloatArray = NDArray[np.float64]
BATCH = 64  # graphs


def encode_all(graphs: Sequence[Data], config: GraphormerConfig) -> list[Data]:
    """Return copies of the graphs with their structure encoded (see `StructureEncoding`)."""
    encode = StructureEncoding.from_config(config)
    return [encode(graph.clone()) for graph in graphs]


@torch.no_grad()
def predict(model: LoadedModel, graphs: Sequence[Data]) -> torch.Tensor:
    """Return the model's outputs (G, num_outputs) for graphs, on the CPU, in the given order."""
    encoded = encode_all(graphs, model.config)
    sizes = [int(graph.num_nodes or 0) for graph in encoded]
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    outputs = torch.empty(len(encoded), model.config.num_outputs)
    for batch in SizeBuckets(sizes, BATCH, shuffle=False):
        graphs_of_batch = collate([encoded[k] for k in batch]).to(device)
        outputs[batch] = model(graphs_of_batch).float().cpu()
    model.train(training)
    return outputs


def readings(task: Task, outputs: Tensor) -> FloatArray:
    """Turn a task's outputs (n, columns) into probabilities or values, as `measure` takes them."""
    if task.kind == "multiclass":
        return outputs.double().softmax(1).numpy()
    if task.kind == "binary":
        return outputs[:, 0].double().sigmoid().numpy()
    return (task.offset + task.scale * outputs[:, 0].double()).numpy()


def task_outputs(model: LoadedModel, graphs: Sequence[Data]) -> list[Tensor]:
    """Return a model's outputs for graphs, (n, columns) per task."""
    outputs = predict(model, graphs)
    return [outputs[:, model.config.task_columns(task.name)[1]] for task in model.config.tasks]


def task_readings(model: LoadedModel, graphs: Sequence[Data]) -> list[FloatArray]:
    """Return a model's probabilities and values for graphs, by task."""
    each = zip(model.config.tasks, task_outputs(model, graphs), strict=True)
    return [readings(task, outputs) for task, outputs in each]
