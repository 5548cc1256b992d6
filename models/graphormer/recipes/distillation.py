"""Distil a fine-tuned network and a random forest into one network (Hinton 2015)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphxai.datasets.progress import in_chunks
from graphxai.datasets.splits import Split
from graphxai.models.graphormer.model import Graphormer
from graphxai.models.graphormer.training.scores import task_readings
from graphxai.models.graphormer.training.settings import TrainingSettings
from graphxai.models.graphormer.training.teachers import (
    Teacher,
    forest_inputs,
    mixed_labels,
    soft_labels,
    stacking_share,
)

from .molecules import FINETUNING, finetune, labelled, recombined

__all__ = ["STUDENT", "Distilled", "distil_table"]

FloatArray = NDArray[np.float64]
STUDENT = replace(FINETUNING, epochs=6, learning_rate=4e-4, label_smoothing=0.0)


@dataclass(frozen=True, eq=False)
class Distilled:
    """A network, the number of new molecules it learned from, and the forest's share by task.

    The share is the forest's weight in the teacher. It is None for a task with too few labels for
    a forest. teachers: one per task, None likewise; none at all if nothing was distilled.
    """

    model: Graphormer
    molecules: int
    shares: dict[str, float | None]
    teachers: tuple[Teacher | None, ...] = ()


def distil_table(
    model: Graphormer,
    graphs: Sequence[Data],
    y: FloatArray,
    split: Split,
    out: str | Path,
    *,
    molecules: int = 8000,
    settings: TrainingSettings = STUDENT,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Distilled:
    """Train a fine-tuned network on a teacher that combines it with a forest (Hinton 2015).

    The teacher is s forest + (1 - s) network; each task's s is the best one for the validation
    part (`stacking_share`). It labels molecules recombined from the training part and fills gaps
    in the training labels. The measured labels are moved towards the forest's out-of-bag
    predictions (`mixed_labels`), which keeps the network from memorising them. Validation and test
    molecules are neither recombined nor learned from, and products identical to one of them are
    dropped. If no forest has a share, the network is returned unchanged.

    Args:
        model: network fine-tuned on the training part.
        graphs: encoded molecules of the table.
        y: their labels (n, tasks), NaN where there is none.
        split: split of the table.
        out: folder of the run.
        molecules: number of new molecules wanted; fewer if no more combinations exist.
        settings: settings of this training; its seed also seeds the forests.
        resume: continue an interrupted run in `out`.
        say: called with a line of text at each stage.
    """
    seed, tasks = settings.seed, model.config.tasks
    train = [graphs[k] for k in split.train]
    smiles, labels = _smiles(train), y[list(split.train)]
    inputs = forest_inputs(smiles)
    teachers = [
        Teacher.fit(tasks[k], inputs, labels[:, k], seed)
        for (k,) in in_chunks(range(len(tasks)), "fitting forests", size=1, show=settings.show)
    ]
    held_out = [graphs[k] for k in split.valid]
    shares = _shares(model, teachers, held_out, y[list(split.valid)])
    text = {task.name: share for task, share in zip(tasks, shares, strict=True)}
    if not any(shares):
        return Distilled(model, 0, text, tuple(teachers))
    tested = [graphs[k] for k in split.test]
    new, extra = recombined(
        smiles, molecules, _smiles([*held_out, *tested]), model.config, settings
    )
    say(f"learning from the network and a forest on {len(new):,} recombined molecules")
    described = [forest_inputs(part) for part in in_chunks(new, "descriptors", show=settings.show)]
    inputs = np.concatenate([inputs, *described])
    each = zip(teachers, shares, task_readings(model, [*train, *extra]), strict=True)
    taught = np.stack([_labels(*teaching, inputs, seed) for teaching in each], axis=1)
    for column, teacher, share in zip(labels.T, teachers, shares, strict=True):
        if teacher is not None and share is not None:
            column[:] = mixed_labels(column, teacher.out_of_bag, share)
    learned = y.copy()
    learned[list(split.train)] = np.where(np.isnan(labels), taught[: len(train)], labels)
    student = finetune(
        labelled(graphs, learned),
        tasks,
        split,
        out,
        start=model,
        settings=settings,
        resume=resume,
        extra=labelled(extra, taught[len(train) :]),
    )
    return Distilled(student, len(new), text, tuple(teachers))


def _shares(
    model: Graphormer, teachers: Sequence[Teacher | None], graphs: Sequence[Data], y: FloatArray
) -> list[float | None]:
    """Choose the forest's share in each task's teacher on validation graphs with labels y."""
    if not graphs:
        return [None if teacher is None else 0.5 for teacher in teachers]
    inputs = forest_inputs(_smiles(graphs))
    each = zip(teachers, task_readings(model, graphs), y.T, strict=True)
    return [
        None if teacher is None else stacking_share(teacher.readings(inputs), network, column)
        for teacher, network, column in each
    ]


def _labels(
    teacher: Teacher | None,
    share: float | None,
    network: FloatArray,
    inputs: NDArray[np.float32],
    seed: int,
) -> FloatArray:
    """Label molecules for a task by forest and network, (m,); NaN without a forest."""
    if teacher is None or share is None:
        return np.full(len(inputs), np.nan)
    return soft_labels(share * teacher.readings(inputs) + (1 - share) * network, seed)


def _smiles(graphs: Sequence[Data]) -> list[str]:
    return [graph.smiles for graph in graphs]
