"""Train a small Graphormer to see planted shapes, so that explanations can be checked."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from graphxai.contract.tasks import Task
from graphxai.datasets.shapes import SHAPES, ShapeDataset, shape_dataset
from graphxai.learning.fit import evaluate, fit, require_hardware
from graphxai.learning.predicting import encode_all
from graphxai.learning.settings import TrainingSettings
from graphxai.models.graphormer import (
    Graphormer,
    GraphormerConfig,
    measure_mean_node,
    save_checkpoint,
)

__all__ = ["shape_config", "train_shapes"]

SETTINGS = TrainingSettings(epochs=25, batch_size=32, learning_rate=2e-3, ema_decay=0.99)


def shape_config() -> GraphormerConfig:
    """Return the configuration of a Graphormer that answers yes or no for every shape.

    It has 3 layers of width 64 and no dropout. All nodes look alike.
    """
    return GraphormerConfig(
        tuple(Task(name, "binary", ("no", "yes")) for name in SHAPES),
        num_layers=3,
        hidden_dim=64,
        ffn_dim=128,
        num_heads=8,
        node_cardinalities=(1,),
        node_feature_names=("node",),
        dropout=0.0,
        attention_dropout=0.0,
    )


def train_shapes(
    out: str | os.PathLike[str],
    dataset: ShapeDataset | None = None,
    *,
    seed: int = 0,
    epochs: int | None = None,
    resume: bool = False,
    accelerator: str = "auto",
    devices: int | str = 1,
    precision: str | None = None,
    progress: bool = True,
) -> Path:
    """Train a Graphormer on graphs with planted shapes, all shapes together.

    Args:
        out: folder of the run; the checkpoint is its sub-folder `model`.
        dataset: the graphs; None makes those of `shape_dataset(seed=seed)`.
        seed: seed for the graphs, the weights and the order of the graphs.
        epochs: None means the recipe's.
        resume: continue an interrupted run in `out`.
        accelerator: Lightning's.
        devices: Lightning's.
        precision: Lightning's, such as "32-true" or "bf16-mixed"; None means the recipe's.
        progress: whether to show progress bars.

    Returns:
        The checkpoint folder.

    Raises:
        ImportError: the extra `train` is not installed.
        ValueError: `out` already contains a run and `resume` is False.
    """
    require_hardware(accelerator, devices, precision)
    out, dataset = Path(out), dataset or shape_dataset(seed=seed)
    settings = SETTINGS.changed(
        seed=seed,
        epochs=epochs,
        accelerator=accelerator,
        devices=devices,
        precision=precision,
        progress=progress,
    )
    torch.manual_seed(seed)
    model = Graphormer(shape_config())
    graphs = encode_all([graph.to_data() for graph in dataset.graphs], model.config)
    split = dataset.split
    train, valid, test = (
        [graphs[k] for k in part] for part in (split.train, split.valid, split.test)
    )
    fit(model, train, valid, settings, out, resume=resume)
    scores = evaluate(model, test)
    summary = ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
    measure_mean_node(model, train)
    return save_checkpoint(
        model,
        out / "model",
        card=f"""# Planted shapes

A small Graphormer that says which shapes are in a graph, to check explanations against the nodes
and edges of the shapes. Graphs: {len(train)} for training, {len(valid)} for validation,
{len(test)} for testing. Test ROC-AUC: {summary}.
""",
        metadata={"size": len(graphs), "seed": seed, "summary": f"ROC-AUC: {summary}"},
    )
