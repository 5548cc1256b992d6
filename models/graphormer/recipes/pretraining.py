"""Pre-train on molecules that lack the measurement of interest: the weights `molecules`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from graphxai.datasets.molecules import require_graphs
from graphxai.datasets.pretraining import DESCRIPTORS, collect, descriptors, environments
from graphxai.models.graphormer.checkpoint import TO_START, save_checkpoint
from graphxai.models.graphormer.config import Task
from graphxai.models.graphormer.model import Graphormer
from graphxai.models.graphormer.training.fit import fit, initialise, require_lightning
from graphxai.models.graphormer.training.loading import encode_all
from graphxai.models.graphormer.training.settings import TrainingSettings

from .molecules import molecule_config

__all__ = ["pretrain"]

PRETRAINING = TrainingSettings(
    epochs=24,
    batch_size=128,
    learning_rate=1e-3,
    ema_decay=None,
    keep_best=False,
    monitor="loss",
    precision="bf16-mixed",
)


def pretrain(
    out: str | Path,
    tables: Sequence[str | Path],
    *,
    exclude: Sequence[str] = (),
    count: int = 2048,
    settings: TrainingSettings = PRETRAINING,
    resume: bool = False,
) -> Path:
    """Pre-train on the molecules of CSV tables (column `smiles`, the other columns are labels).

    Targets: the `count` most frequent atom environments (total weight 30), descriptors (total
    weight 1) and every label (weight 1 each). The checkpoint in `out` keeps the outputs for
    descriptors and labels, but not those for environments.
    """
    require_lightning()
    molecules = collect(tables, exclude=exclude)
    labels, label_tasks = _label_tasks(molecules.names, molecules.labels)
    described, descriptor_tasks = learned_descriptors(descriptors(molecules.smiles))
    tasks = [
        *descriptor_tasks,
        *label_tasks,
        *(Task(f"environment {k}", "binary", ("absent", "present")) for k in range(count)),
    ]
    kept = len(DESCRIPTORS) + len(label_tasks)
    targets = torch.from_numpy(
        np.concatenate(
            [
                described,
                labels,
                environments(molecules.smiles, count),
            ],
            axis=1,
            dtype=np.float32,
        )
    )
    config = molecule_config(tasks, dropout=0.0, attention_dropout=0.0)
    graphs = encode_all(require_graphs(molecules.smiles), config)
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
        metadata={
            "molecules": len(graphs),
            "validation_loss": result.loss,
            "summary": TO_START,
        },
    )


def learned_descriptors(
    values: NDArray[np.float64], limit: float = 4
) -> tuple[NDArray[np.float64], list[Task]]:
    """Clip values (n, 21) at `limit` deviations from their means; return them and their tasks."""
    mean, deviation = values.mean(0), values.std(0) + 1e-6
    tasks = [
        Task(name, "regression", offset=float(middle), scale=float(scale))
        for name, middle, scale in zip(DESCRIPTORS, mean, deviation, strict=True)
    ]
    return np.clip(values, mean - limit * deviation, mean + limit * deviation), tasks


def _label_tasks(
    names: Sequence[str], labels: NDArray[np.float32]
) -> tuple[NDArray[np.float32], list[Task]]:
    """Return tasks for a table's labels: columns of only 0 and 1 are binary, others regression."""
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

A starting point for training on your own table (`finetune`, `distil` in `recipes/`), not a model
to predict or explain with. It has 4 layers, width 128, 8 heads and 560,000 parameters.

* {molecules:,} molecules of at most 60 atoms from MoleculeNet's tables BBBP, ESOL, Lipophilicity,
  Tox21 and HIV (Wu 2018). Every molecule that shares its connectivity (first block of the
  InChIKey) with a compound of BACE was left out.
* Targets: the {count:,} most frequent chiral Morgan environments up to radius 3 (outputs not
  kept), {len(DESCRIPTORS)} RDKit descriptors, and the measured labels
  {", ".join(names)}.
* {PRETRAINING.epochs} epochs with {PRETRAINING.batch_size} molecules per step, AdamW, learning rate
  {PRETRAINING.learning_rate:g}, cosine, no dropout, bfloat16 arithmetic.

    from graphxai.models.graphormer.recipes.pretraining import pretrain
    pretrain("runs/molecules", ["bbbp.csv", "esol.csv", "lipo.csv", "tox21.csv", "hiv.csv"],
             exclude=bace_smiles)
"""
