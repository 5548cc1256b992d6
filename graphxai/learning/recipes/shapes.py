"""Train a small Graphormer to see planted shapes, so that explanations can be checked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from graphxai.contract.tasks import Task
from graphxai.datasets.shapes import SHAPES, ShapeDataset, shape_dataset
from graphxai.learning.fit import evaluate, fit, require_hardware
from graphxai.learning.predicting import encode_all
from graphxai.learning.settings import RunSettings, TrainingSettings
from graphxai.models.graphormer import (
    Graphormer,
    GraphormerConfig,
    measure_mean_node,
    save_checkpoint,
)
from graphxai.runtime.options import with_options

__all__ = ["shape_config", "train_shapes"]

RECIPE = TrainingSettings(epochs=25, batch_size=32, learning_rate=2e-3, ema_decay=0.99)


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
    settings: RunSettings | None = None,
    **options: Any,
) -> Path:
    """Train a Graphormer on graphs with planted shapes, all shapes together.

    Args:
        out: folder of the run; the checkpoint is its sub-folder `model`.
        dataset: the graphs; None makes those of `shape_dataset` from the same seed.
        settings: settings of the run, by default `RunSettings()`.
        options: fields of `RunSettings` to change, such as `seed=1` or `resume=True`.

    Returns:
        The checkpoint folder.

    Raises:
        ImportError: the extra `train` is not installed.
        TypeError: there is no such option.
        ValueError: `out` already contains a run and `resume` is False.
    """
    settings = with_options(settings or RunSettings(), options, "train_shapes")
    require_hardware(settings)
    out, dataset = Path(out), dataset or shape_dataset(seed=settings.seed)
    torch.manual_seed(settings.seed)
    model = Graphormer(shape_config())
    graphs = encode_all([graph.to_data() for graph in dataset.graphs], model.config)
    train, valid, test = dataset.split.parts_of(graphs)
    fit(model, train, valid, RECIPE.for_run(settings), out, resume=settings.resume)
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
        metadata={"size": len(graphs), "seed": settings.seed, "summary": f"ROC-AUC: {summary}"},
    )
