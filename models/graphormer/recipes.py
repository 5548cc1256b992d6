"""Recipes for molecules: pre-training, fine-tuning with a teacher, and the bundled BACE model."""

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
from graphxai.datasets.pretraining import DESCRIPTORS, collect, descriptors, environments
from graphxai.datasets.recombine import recombine
from graphxai.datasets.splits import Split

from .checkpoint import load_checkpoint, locate, save_checkpoint
from .config import GraphormerConfig, Task
from .loading import encode_all
from .model import Graphormer
from .teacher import Forests
from .training import TrainingSettings, fit, initialise, predict, require_lightning

__all__ = ["Link", "distil", "finetune", "molecule_config", "pretrain"]

PRETRAINED = "molecules"
PRETRAINING = TrainingSettings(
    epochs=24,
    batch_size=128,
    learning_rate=1e-3,
    ema_decay=None,
    keep_best=False,
    monitor="loss",
    precision="bf16-mixed",
)
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


def pretrain(
    out: str | Path,
    tables: Sequence[str | Path],
    *,
    exclude: Sequence[str] = (),
    count: int = 2048,
    settings: TrainingSettings = PRETRAINING,
    resume: bool = False,
) -> Path:
    """Pre-train on the molecules of CSV tables (column `smiles`, the others are labels).

    Targets: the `count` most frequent atom environments (together weighing 30), descriptors
    (together 1) and every label (1 each). The checkpoint in `out` keeps the outputs of
    descriptors and labels; those of the environments served their purpose.
    """
    require_lightning()
    molecules = collect(tables, exclude=exclude)
    labels, label_tasks = _label_tasks(molecules.names, molecules.labels)
    tasks = [
        *(Task(name, "regression") for name in DESCRIPTORS),
        *label_tasks,
        *(Task(f"environment {k}", "binary", ("absent", "present")) for k in range(count)),
    ]
    kept = len(DESCRIPTORS) + len(label_tasks)
    targets = torch.from_numpy(
        np.concatenate(
            [
                descriptors(molecules.smiles),
                labels,
                environments(molecules.smiles, count).astype(np.float32),
            ],
            axis=1,
        )
    )
    config = molecule_config(tasks, dropout=0.0, attention_dropout=0.0)
    graphs = encode_all([molecule_to_data(text) for text in molecules.smiles], config)
    for graph, y in zip(graphs, targets, strict=True):
        graph.y = y[None]
    order = np.random.default_rng(settings.seed).permutation(len(graphs))
    held_out = min(1000, len(graphs) // 10)
    weights = [
        *([1 / len(DESCRIPTORS)] * len(DESCRIPTORS)),
        *([1.0] * len(label_tasks)),
        *([30 / count] * count),
    ]
    torch.manual_seed(settings.seed)
    result = fit(
        Graphormer(config),
        [graphs[k] for k in order[held_out:]],
        [graphs[k] for k in order[:held_out]],
        replace(settings, task_weights=tuple(weights)),
        Path(out) / "run",
        resume=resume,
    )
    small = Graphormer(molecule_config(tasks[:kept]))
    initialise(small, result.model)
    with torch.no_grad():
        for own, whole in zip(small.head.parameters(), result.model.head.parameters(), strict=True):
            own.copy_(whole[:kept])
    return save_checkpoint(
        small,
        out,
        card=_pretraining_card(len(graphs), count, molecules.names),
        metadata={"molecules": len(graphs), "validation_loss": result.loss},
    )


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
    teachers: int = 1,
    molecules: int = 3000,
    links: Sequence[Link] = (),
    start: str | Path | None = PRETRAINED,
    teacher_settings: TrainingSettings = FINETUNING,
    settings: TrainingSettings = DISTILLING,
    resume: bool = False,
) -> Graphormer:
    """One Graphormer that learns from the labels and from an ensemble's predictions.

    The ensemble is random forests and `teachers` fine-tuned Graphormers, all fitted on the
    training part alone. It labels new molecules recombined from the training molecules; the first
    Graphormer of the ensemble goes on to learn from both. Validation and test molecules are
    neither recombined nor labelled, and a product equal to one of them is dropped.
    """
    out = Path(out)
    train = [graphs[k].smiles for k in split.train]
    held_out = [graphs[k].smiles for k in (*split.valid, *split.test)]
    y = torch.cat([graphs[k].y for k in split.train]).numpy()
    models = [
        finetune(
            graphs,
            tasks,
            split,
            out / f"teacher-{k}",
            start=start,
            settings=replace(teacher_settings, seed=teacher_settings.seed + k),
            resume=resume,
        )
        for k in range(teachers)
    ]
    products = recombine(train, molecules, seed=settings.seed, exclude=held_out, max_atoms=60)
    extra = encode_all([molecule_to_data(text) for text in products], models[0].config)
    labels = ensemble_predictions(Forests(tasks, train, y), models, extra, links)
    for graph, label in zip(extra, labels, strict=True):
        graph.y = torch.from_numpy(label)[None]
    return finetune(
        graphs,
        tasks,
        split,
        out / "student",
        start=models[0],
        settings=settings,
        resume=resume,
        extra=extra,
    )


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


def _label_tasks(
    names: Sequence[str], labels: NDArray[np.float32]
) -> tuple[NDArray[np.float32], list[Task]]:
    """Tasks for the labels of a table: 0 and 1 only is binary, the rest regression."""
    tasks = []
    for name, column in zip(names, labels.T, strict=True):
        present = column[~np.isnan(column)]
        if set(np.unique(present)) <= {0.0, 1.0}:
            tasks.append(Task(name, "binary", ("0", "1")))
        else:
            scale = float(present.std()) or 1.0
            tasks.append(Task(name, "regression", offset=float(present.mean()), scale=scale))
    return labels, tasks


def _pretraining_card(molecules: int, count: int, names: Sequence[str]) -> str:
    return f"""# Pre-trained Graphormer for molecules

A starting point for a table of one's own (`finetune`, `distil` in `recipes.py`), not a model to
predict or explain with. 4 layers, width 128, 8 heads, 560,000 parameters.

* {molecules:,} molecules of at most 60 atoms from MoleculeNet's tables BBBP, ESOL, Lipophilicity,
  Tox21 and HIV (Wu 2018). Every molecule that shares its connectivity (first block of the
  InChIKey) with a compound of BACE was left out.
* Targets: the {count:,} most frequent chiral Morgan environments up to radius 3 (outputs not
  kept), {len(DESCRIPTORS)} RDKit descriptors, and the measured labels
  {", ".join(names)}.
* {PRETRAINING.epochs} epochs of {PRETRAINING.batch_size} molecules a step, AdamW, learning rate
  {PRETRAINING.learning_rate:g}, cosine, no dropout, bfloat16 arithmetic.

    from graphxai.models.graphormer.recipes import pretrain
    pretrain("runs/molecules", ["bbbp.csv", "esol.csv", "lipo.csv", "tox21.csv", "hiv.csv"],
             exclude=bace_smiles)
"""
