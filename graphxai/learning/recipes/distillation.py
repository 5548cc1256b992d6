"""Distil a fine-tuned network and the teacher of a table into one network (Hinton 2015)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphxai.datasets.splits import Split
from graphxai.learning.recipes.molecules import FINETUNING, finetune, labelled, recombined
from graphxai.learning.scores import task_readings
from graphxai.learning.settings import TrainingSettings
from graphxai.learning.teachers.labels import (
    mixed_labels,
    soft_labels,
    stacking_share,
)
from graphxai.learning.teachers.stacking import Features, Stack
from graphxai.models.graphormer import Graphormer, LoadedModel
from graphxai.runtime.progress import in_chunks

__all__ = ["STUDENT", "Distilled", "distil_table"]

FloatArray = NDArray[np.float64]
STUDENT = replace(FINETUNING, epochs=6, learning_rate=4e-4, label_smoothing=0.0)


@dataclass(frozen=True, eq=False)
class Distilled:
    """A network or several, the number of new molecules, and the teacher's share by task.

    The share is the teacher's weight in what was taught; the rest is the fine-tuned network's. It
    is None for a task with too few labels for a teacher. teacher: None if nothing was distilled.
    """

    model: LoadedModel
    molecules: int
    shares: dict[str, float | None]
    teacher: Stack | None = None


def distil_table(
    model: Graphormer,
    graphs: Sequence[Data],
    y: FloatArray,
    split: Split,
    out: str | Path,
    *,
    molecules: int = 8000,
    teacher: Stack | None = None,
    settings: TrainingSettings = STUDENT,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Distilled:
    """Train a fine-tuned network on what it and a teacher predict together (Hinton 2015).

    The teacher is a `Stack` of forests and Gaussian processes, chosen on scaffold folds of the
    training part. What is taught is s teacher + (1 - s) network; each task's s is the best one for
    the validation part (`stacking_share`). It labels molecules recombined from the training part
    and fills gaps in the training labels. The measured labels are moved towards the teacher's
    predictions without them (`mixed_labels`), which keeps the network from memorising them.
    Validation and test molecules are neither recombined nor learned from, and products identical to
    one of them are dropped. If no teacher has a share, the network is returned unchanged.

    Args:
        model: network fine-tuned on the training part.
        graphs: encoded molecules of the table.
        y: their labels (n, tasks), NaN where there is none.
        split: split of the table.
        out: folder of the run.
        molecules: number of new molecules wanted; fewer if no more combinations exist.
        teacher: the teacher; None chooses one.
        settings: settings of this training; its seed also seeds the forests.
        resume: continue an interrupted run in `out`.
        say: called with a line of text at each stage.
    """
    seed, tasks = settings.seed, model.config.tasks
    train = [graphs[k] for k in split.train]
    smiles, labels = _smiles(train), y[list(split.train)]
    if teacher is None:
        say("choosing a teacher by scaffold folds of the training part")
        teacher = Stack.fit(tasks, smiles, labels, seed=seed, show=settings.show)
        for line in teacher.lines():
            say(line)
    held_out = [graphs[k] for k in split.valid]
    shares = _shares(model, teacher, held_out, y[list(split.valid)])
    text = {task.name: share for task, share in zip(tasks, shares, strict=True)}
    if not any(shares):
        return Distilled(model, 0, text, teacher)
    tested = [graphs[k] for k in split.test]
    new, extra = recombined(
        smiles, molecules, _smiles([*held_out, *tested]), model.config, settings
    )
    say(f"learning from the network and its teacher on {len(new):,} recombined molecules")
    parts = [
        teacher.predict(Features(tuple(part)))
        for part in in_chunks([*smiles, *new], "labelling", show=settings.show)
    ]
    taught = np.stack(
        [
            _labels([part[k] for part in parts], share, network, seed)
            for k, (share, network) in enumerate(
                zip(shares, task_readings(model, [*train, *extra]), strict=True)
            )
        ],
        axis=1,
    )
    for k, (column, share) in enumerate(zip(labels.T, shares, strict=True)):
        left_out = teacher.left_out(k)
        if left_out is not None and share is not None:
            column[:] = mixed_labels(column, left_out, share)
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
    return Distilled(student, len(new), text, teacher)


def _shares(
    model: Graphormer, teacher: Stack, graphs: Sequence[Data], y: FloatArray
) -> list[float | None]:
    """Choose the teacher's share for each task on validation graphs with labels y."""
    if not graphs:
        return [None if weights is None else 0.5 for weights in teacher.weights]
    taught = teacher.predict(Features(tuple(_smiles(graphs))))
    each = zip(taught, task_readings(model, graphs), y.T, strict=True)
    return [
        None if readings is None else stacking_share(readings, network, column)
        for readings, network, column in each
    ]


def _labels(
    parts: Sequence[FloatArray | None], share: float | None, network: FloatArray, seed: int
) -> FloatArray:
    """Label molecules for a task by teacher and network, (m,); NaN without a teacher."""
    found = [part for part in parts if part is not None]
    if share is None or not found:
        return np.full(len(network), np.nan)
    return soft_labels(share * np.concatenate(found) + (1 - share) * network, seed)


def _smiles(graphs: Sequence[Data]) -> list[str]:
    return [graph.smiles for graph in graphs]
