"""Distil a teacher of several tasks, some of them linked, into one Graphormer (Hinton 2015)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data

from graphxai.contract.tasks import Task
from graphxai.datasets.splits import Split
from graphxai.learning.finetuning import FINETUNING, PRETRAINED, finetune, labelled
from graphxai.learning.predicting import encoded_molecules
from graphxai.learning.recipes.labelling import label_molecules
from graphxai.learning.settings import TrainingSettings
from graphxai.learning.teachers.linked import Link, LinkedTeacher
from graphxai.learning.training import recombined_smiles
from graphxai.models.graphormer import Graphormer
from graphxai.runtime.writing import write_whole

__all__ = ["DISTILLING", "distil"]

TEACHER = "teacher.safetensors"  # beside the labels, so that a resumed run does not fit it again
DISTILLING = replace(
    FINETUNING,
    epochs=8,
    batch_size=64,
    learning_rate=4e-4,
    head_learning_rate=None,
    ema_decay=0.995,
    label_smoothing=0.0,
)


def _fitted_once(
    path: Path,
    fit_teacher: Callable[[], LinkedTeacher],
    tasks: Sequence[Task],
    links: Sequence[Link],
) -> LinkedTeacher:
    """Return the teacher that is stored at a path, or fit and store it.

    Raises:
        ValueError: the file is damaged.
    """
    if path.is_file():
        try:
            return LinkedTeacher.from_bytes(path.read_bytes(), tasks, links)
        except ValueError as error:
            raise ValueError(f"{path}: {error}; delete the file to fit it again.") from error
    teacher = fit_teacher()
    write_whole(path, teacher.to_bytes())
    return teacher


def distil(
    graphs: Sequence[Data],
    tasks: Sequence[Task],
    split: Split,
    out: str | Path,
    *,
    molecules: int = 40_000,
    links: Sequence[Link] = (),
    init_weights: str | Path | None = PRETRAINED,
    first_settings: TrainingSettings = FINETUNING,
    settings: TrainingSettings = DISTILLING,
    resume: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> Graphormer:
    """Train one Graphormer on the labels and on a teacher's predictions (Hinton 2015).

    It is first fine-tuned on the training part. Then new molecules are recombined from the training
    molecules and labelled by a `LinkedTeacher` fitted only to the training part, and the Graphormer
    continues on both. Each measured label is averaged with the teacher's prediction made without
    that molecule, which keeps the network from memorising the labels. Validation and test molecules
    are neither recombined nor labelled, and products identical to one of them are dropped.

    Args:
        graphs: graphs with labels `y` (1, tasks), NaN where one is missing.
        tasks: binary and regression tasks.
        split: split of the graphs.
        out: folder of the run.
        molecules: number of recombined molecules; 0 means plain fine-tuning.
        links: classes that the teacher also derives from a value.
        init_weights: checkpoint to start from, by name or folder; None trains from scratch.
        first_settings: settings of the fine-tuning.
        settings: settings of the second stage.
        resume: continue an interrupted run in `out`.
        log: called with a line of text at each stage.
    """
    out = Path(out)
    first = finetune(
        graphs,
        tasks,
        split,
        out / "fine-tuned",
        init_weights=init_weights,
        settings=first_settings,
        resume=resume,
    )
    if not molecules:
        return first
    train = [graphs[k].smiles for k in split.train]
    held_out = [graphs[k].smiles for k in (*split.valid, *split.test)]
    y = torch.cat([graph.y for graph in graphs]).double().numpy()
    y_train = y[list(split.train)]

    def recombine() -> list[str]:
        log(f"recombining {molecules:,} molecules for a teacher to label")
        return recombined_smiles(train, molecules, held_out, settings)

    def fit_teacher() -> LinkedTeacher:
        log("fitting forests and a Gaussian process to the training part")
        return LinkedTeacher(tasks, train, y_train, links, settings.show)

    folder = out / "labels"
    labelled_molecules = label_molecules(
        folder,
        {"train": train, "y": np.nan_to_num(y_train, nan=-1e9).tolist(), "molecules": molecules},
        recombine,
        lambda: _fitted_once(folder / TEACHER, fit_teacher, tasks, links),
        resume=resume,
        show=settings.show,
    )
    extra = encoded_molecules(labelled_molecules.smiles, first.config, settings)
    halfway = (y_train + labelled_molecules.left_out) / 2
    y[list(split.train)] = np.where(np.isnan(halfway), y[list(split.train)], halfway)
    return finetune(
        labelled(graphs, y),
        tasks,
        split,
        out / "distilled",
        init_weights=first,
        settings=settings,
        resume=resume,
        extra=labelled(extra, labelled_molecules.labels),
    )
