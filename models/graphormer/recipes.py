"""Recipes for molecules: fine-tuning, and learning from an ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphxai.datasets.features import (
    ATOM_CARDINALITIES,
    ATOM_FEATURE_NAMES,
    BOND_CARDINALITIES,
)
from graphxai.datasets.molecules import molecule_to_data
from graphxai.datasets.recombine import recombine
from graphxai.datasets.splits import Split

from .checkpoint import load_checkpoint, locate
from .config import GraphormerConfig, Task
from .loading import encode_all
from .model import Graphormer
from .teacher import Forests
from .training import TrainingSettings, fit, initialise, predict

__all__ = ["Link", "blend", "distil", "finetune", "molecule_config"]

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
    precision="bf16-mixed",
)
DISTILLING = replace(
    FINETUNING,
    epochs=6,
    batch_size=64,
    learning_rate=2e-4,
    head_learning_rate=None,
    ema_decay=0.995,
    label_smoothing=0.02,
)


@dataclass(frozen=True)
class Link:
    """A binary task that says whether a regression task's value reaches a threshold.

    A teacher then reads the class from the value too: sigmoid(slope * (value - threshold)).
    """

    binary: str
    regression: str
    threshold: float
    slope: float = 1.5


def molecule_config(tasks: Sequence[Task], **changes: Any) -> GraphormerConfig:
    """The Graphormer for molecules: 4 layers of width 128, 8 heads, OGB's features."""
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
    start: Graphormer | str | Path | None = PRETRAINED,
    settings: TrainingSettings = FINETUNING,
    resume: bool = False,
    extra: Sequence[Data] = (),
    dropout: float = 0.0,
) -> Graphormer:
    """Train on graphs with labels `y` (1, tasks), from the weights `start`.

    `start`: a model with the same tasks, of which the head is taken too; a checkpoint by name or
    folder, of which it is not; None means from scratch. `extra` are further training graphs, such
    as those with a teacher's labels.
    """
    torch.manual_seed(settings.seed)
    config = molecule_config(tasks, dropout=dropout, attention_dropout=dropout)
    model = Graphormer(config)
    if isinstance(start, Graphormer):
        initialise(model, start, head=True)
    elif start is not None:
        initialise(model, load_checkpoint(locate(start)))
    train = [*(graphs[k] for k in split.train), *extra]
    valid = [graphs[k] for k in split.valid]
    return fit(model, train, valid, settings, out, resume=resume).model


def distil(
    graphs: Sequence[Data],
    tasks: Sequence[Task],
    split: Split,
    out: str | Path,
    *,
    rounds: int = 1,
    molecules: int = 3000,
    links: Sequence[Link] = (),
    start: str | Path | None = PRETRAINED,
    teacher_settings: TrainingSettings = FINETUNING,
    settings: TrainingSettings = DISTILLING,
    resume: bool = False,
) -> Graphormer:
    """One Graphormer that learns from the labels and from an ensemble's predictions.

    It is fine-tuned on the training part. Then, `rounds` times, new molecules are recombined from
    the training molecules and labelled by an ensemble: random forests and every Graphormer so far,
    all fitted on the training part alone. The last Graphormer goes on to learn from both.
    Validation and test molecules are neither recombined nor labelled, and a product equal to one
    of them is dropped. With 0 rounds this is plain fine-tuning.
    """
    out = Path(out)
    train = [graphs[k].smiles for k in split.train]
    held_out = [graphs[k].smiles for k in (*split.valid, *split.test)]
    y = torch.cat([graphs[k].y for k in split.train]).numpy()
    first = finetune(
        graphs,
        tasks,
        split,
        out / "round-0",
        start=start,
        settings=teacher_settings,
        resume=resume,
    )
    models = [first]
    forests = Forests(tasks, train, y) if rounds else None
    for number in range(1, rounds + 1):
        assert forests is not None
        seed = settings.seed + number - 1
        products = recombine(train, molecules, seed=seed, exclude=held_out, max_atoms=60)
        extra = encode_all([molecule_to_data(text) for text in products], first.config)
        labels = ensemble_predictions(forests, models, extra, links)
        for graph, label in zip(extra, labels, strict=True):
            graph.y = torch.from_numpy(label)[None]
        student = finetune(
            graphs,
            tasks,
            split,
            out / f"round-{number}",
            start=models[-1],
            settings=settings,
            resume=resume,
            extra=extra,
        )
        models.append(student)
    return models[-1]


@torch.no_grad()
def blend(model: Graphormer, link: Link, share: float = 0.5) -> None:
    """Let the class logit of `link` read the regressed value too, in the weights of the head.

    The logit becomes (1 - share) * logit + share * slope * (value - threshold). Both are linear in
    the graph token, so the model stays one model.
    """
    if not isinstance(model.head, torch.nn.Linear):
        raise ValueError("the value can only be folded into a linear head.")
    _, binary = model.config.task_columns(link.binary)
    task, regression = model.config.task_columns(link.regression)
    weight, bias = model.head.weight, model.head.bias
    factor = share * link.slope
    weight[binary] = (1 - share) * weight[binary] + factor * task.scale * weight[regression]
    value = task.offset + task.scale * bias[regression]
    bias[binary] = (1 - share) * bias[binary] + factor * (value - link.threshold)


def ensemble_predictions(
    forests: Forests, models: Sequence[Graphormer], graphs: Sequence[Data], links: Sequence[Link]
) -> NDArray[np.float32]:
    """Mean predictions of forests (one half) and Graphormers (the other), (G, tasks)."""
    tasks = forests.tasks
    each = [forests.predict([graph.smiles for graph in graphs])]
    each += [_readings(tasks, predict(model, graphs)) for model in models]
    names = [task.name for task in tasks]
    for values in each:
        for link in links:
            k, r = names.index(link.binary), names.index(link.regression)
            read = 1 / (1 + np.exp(-link.slope * (values[:, r] - link.threshold)))
            values[:, k] = 0.5 * (values[:, k] + read)
    return ((each[0] + np.mean(each[1:], axis=0)) / 2).astype(np.float32)


def _readings(tasks: Sequence[Task], outputs: torch.Tensor) -> NDArray[np.float32]:
    """Probabilities and values in their units from raw outputs, (G, tasks)."""
    columns = [
        outputs[:, k].sigmoid()
        if task.kind == "binary"
        else task.offset + task.scale * outputs[:, k]
        for k, task in enumerate(tasks)
    ]
    return torch.stack(columns, dim=1).numpy()
