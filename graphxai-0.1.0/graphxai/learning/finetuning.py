"""Fine-tune a Graphormer on molecules with labels, measured or taught."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphxai.contract.tasks import Task
from graphxai.datasets.features import ATOM_CARDINALITIES, ATOM_FEATURE_NAMES, BOND_CARDINALITIES
from graphxai.datasets.splits import Split
from graphxai.learning.fit import fit, initialise
from graphxai.learning.settings import TrainingSettings
from graphxai.models.graphormer import Graphormer, GraphormerConfig, load_checkpoint, locate

__all__ = [
    "finetune",
    "labelled",
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
    graphs: Sequence[Data],
    tasks: Sequence[Task],
    split: Split,
    out: str | Path,
    *,
    init_weights: Graphormer | str | Path | None = PRETRAINED,
    settings: TrainingSettings = FINETUNING,
    resume: bool = False,
    extra: Sequence[Data] = (),
    at_frequencies: bool = False,
    environments: int = 0,
) -> Graphormer:
    """Train on graphs with labels, from given weights.

    Args:
        graphs: encoded graphs with labels `y` (1, tasks), NaN where one is missing.
        tasks: the tasks.
        split: split of the graphs.
        out: folder of the run.
        init_weights: weights to start from. From a model with the same tasks, the head is copied
            too; from a checkpoint, by name or folder, it is not. None trains from scratch.
        settings: settings of the training.
        resume: continue an interrupted run in `out`.
        extra: further training graphs, such as those with a teacher's labels.
        at_frequencies: let a new head start from the frequencies of the classes, so that the first
            epochs are not spent on learning that a class is rare.
        environments: number of rows of a table of atom environments that the network reads, which
            starts at zero; 0 for none.
    """
    torch.manual_seed(settings.seed)
    config = molecule_config(tasks, dropout=0.0, attention_dropout=0.0, environments=environments)
    model = Graphormer(config)
    if at_frequencies:  # weights that bring their own head replace it
        start_at_frequencies(model, torch.cat([graphs[k].y for k in split.train]))
    if isinstance(init_weights, Graphormer):
        initialise(model, init_weights, head=True)
    elif init_weights is not None:
        initialise(model, load_checkpoint(locate(init_weights)))
    train = [*(graphs[k] for k in split.train), *extra]
    valid = [graphs[k] for k in split.valid]
    return fit(model, train, valid, settings, out, resume=resume).model


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


def labelled(graphs: Sequence[Data], y: NDArray[np.float64]) -> list[Data]:
    """Return copies of the graphs with labels y (n, tasks)."""
    copies = [copy.copy(graph) for graph in graphs]
    for graph, labels in zip(copies, y, strict=True):
        graph.y = torch.from_numpy(labels).float()[None]
    return copies
