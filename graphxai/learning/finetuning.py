"""Train a Graphormer on a source: on molecules or graphs with labels, measured or taught."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from graphxai.contract.tasks import Task
from graphxai.datasets.features import ATOM_CARDINALITIES, ATOM_FEATURE_NAMES, BOND_CARDINALITIES
from graphxai.learning.fit import FitResult, fit, initialise
from graphxai.learning.settings import TrainingSettings
from graphxai.learning.source import Source
from graphxai.models.graphormer import (
    Graphormer,
    GraphormerConfig,
    graphormer,
    load_checkpoint,
    locate,
)

__all__ = [
    "finetune",
    "molecule_config",
    "start_at_frequencies",
]

PRETRAINED = "molecules"
FINETUNING = TrainingSettings(
    epochs=20,
    batch_size=32,
    learning_rate=3e-4,
    head_learning_rate=1e-3,
    weight_decay=0.05,
    ema_decay=0.99,
    label_smoothing=0.05,
    keep_best=False,
)


def molecule_config(tasks: Sequence[Task], **changes: Any) -> GraphormerConfig:
    """Configure the Graphormer for molecules: 4 layers of width 128, 8 heads, OGB's features."""
    values: dict[str, Any] = {
        "num_layers": 4,
        "hidden_dim": 128,
        "ffn_dim": 256,
        "num_heads": 8,
        "node_cardinalities": ATOM_CARDINALITIES,
        "node_feature_names": ATOM_FEATURE_NAMES,
        "edge_cardinalities": BOND_CARDINALITIES,
    }
    return GraphormerConfig(tuple(tasks), **(values | changes))


def finetune(
    source: Source,
    out: str | Path,
    *,
    init_weights: Graphormer | str | Path | None = PRETRAINED,
    settings: TrainingSettings = FINETUNING,
    resume: bool = False,
    extra: Sequence[Data] = (),
    at_frequencies: bool = False,
) -> FitResult:
    """Train on the training part of a source, from given weights.

    Args:
        source: encoded graphs with labels, and the configuration of the network.
        out: folder of the run.
        init_weights: weights to start from. From a model with the same tasks, the head is copied
            too; from a checkpoint, by name or folder, it is not. None trains from scratch.
        settings: settings of the training.
        resume: continue an interrupted run in `out`.
        extra: further training graphs, such as those with a teacher's labels.
        at_frequencies: let a new head start from the frequencies of the classes, so that the first
            epochs are not spent on learning that a class is rare.
    """
    torch.manual_seed(settings.seed)
    model = graphormer(source.config)
    if at_frequencies:  # weights that bring their own head replace it
        start_at_frequencies(model, torch.from_numpy(source.train.y))
    if isinstance(init_weights, Graphormer):
        initialise(model, init_weights, head=True)
    elif init_weights is not None:
        initialise(model, load_checkpoint(locate(init_weights)))
    train = [*source.train.graphs, *extra]
    return fit(model, train, source.valid.graphs, settings, out, resume=resume)


@torch.no_grad()
def start_at_frequencies(model: Graphormer, y: torch.Tensor) -> None:
    """Set the head's bias to the log-odds of classes among labels y (n, tasks), NaN where missing.

    For several classes it is set to their log-frequencies. Every class counts as if it had one more
    molecule, so that none has a frequency of 0.
    """
    if not isinstance(model.head, torch.nn.Linear):
        raise ValueError("only a linear head has a bias for every class.")
    by_task = zip(model.config.tasks, model.config.columns, y.T, strict=True)
    for task, columns, column in by_task:
        if task.kind == "regression":
            continue
        labels = column[~column.isnan()].long()
        counts = torch.bincount(labels, minlength=len(task.classes)) + 1.0
        bias = (counts / counts.sum()).log()
        model.head.bias[columns] = bias[1:] - bias[:1] if task.kind == "binary" else bias
