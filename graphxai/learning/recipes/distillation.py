"""Distil a teacher of several tasks, some of them linked, into one Graphormer (Hinton 2015).

The teacher labels new molecules part by part, so that an interruption loses one part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphxai.learning.fit import FINETUNING, PRETRAINED, finetune
from graphxai.learning.predicting import encoded_molecules
from graphxai.learning.settings import TrainingSettings
from graphxai.learning.source import Source, labelled
from graphxai.learning.teachers.linked import Link, LinkedTeacher
from graphxai.learning.training import recombined_smiles
from graphxai.models.graphormer import Graphormer
from graphxai.runtime.progress import in_chunks
from graphxai.runtime.writing import atomic_write, folder_at, json_text, write_whole

FloatArray = NDArray[np.float64]
ABOUT, LEFT_OUT = "molecules.json", "left_out.npy"
PART = 500  # molecules that are labelled at a time
DISTILLING = replace(
    FINETUNING,
    epochs=8,
    batch_size=64,
    learning_rate=4e-4,
    head_learning_rate=None,
    ema_decay=0.995,
    label_smoothing=0.0,
)


def distil(
    source: Source,
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
        source: molecules with labels of binary and regression tasks.
        molecules: number of recombined molecules; 0 means plain fine-tuning.
        links: classes that the teacher also derives from a value.
        init_weights: checkpoint to start from, by name or folder; None trains from scratch.
        first_settings: settings of the fine-tuning.
        settings: settings of the second stage.
        log: called with a line of text at each stage.
    """
    out, tasks, train = Path(out), source.tasks, source.train
    first = finetune(
        source,
        out / "fine-tuned",
        init_weights=init_weights,
        settings=first_settings,
        resume=resume,
    ).model
    if not molecules:
        return first
    smiles = list(train.smiles)

    def recombine() -> list[str]:
        log(f"recombining {molecules:,} molecules for a teacher to label")
        held_out = [*source.valid.smiles, *source.test.smiles]
        return recombined_smiles(smiles, molecules, held_out, settings)

    def fit_teacher() -> LinkedTeacher:
        log("fitting forests and a Gaussian process to the training part")
        return LinkedTeacher.fit(tasks, smiles, train.y, links, settings.show)

    new = label_molecules(
        out / "labels",
        {"train": smiles, "y": np.nan_to_num(train.y, nan=-1e9).tolist(), "molecules": molecules},
        recombine,
        fit_teacher,
        resume=resume,
        show=settings.show,
    )
    halfway = (train.y + new.left_out) / 2
    y = source.y.copy()
    y[list(train.positions)] = np.where(np.isnan(halfway), train.y, halfway)
    return finetune(
        source.with_labels(y),
        out / "distilled",
        init_weights=first,
        settings=settings,
        resume=resume,
        extra=labelled(encoded_molecules(new.smiles, first.config, settings), new.labels),
    ).model


@dataclass(frozen=True, eq=False)
class LabelledMolecules:
    """New molecules with a teacher's labels.

    Attributes:
        smiles: the molecules (m,).
        labels: their labels (m, tasks).
        left_out: the teacher's prediction for each of its training molecules, made without that
            molecule (n, tasks).
    """

    smiles: list[str]
    labels: FloatArray
    left_out: FloatArray


def label_molecules(
    folder: Path,
    identity: dict[str, Any],
    make_molecules: Callable[[], list[str]],
    fit_teacher: Callable[[], LinkedTeacher],
    *,
    resume: bool,
    show: bool | None = None,
) -> LabelledMolecules:
    """Make molecules and let a teacher label them, 500 at a time. Each part is stored.

    The teacher is fitted only if something is left for it to do.

    Args:
        folder: where the molecules and labels are stored. Files of another identity are deleted.
        identity: what must be the same for stored labels to be used, as JSON values.
        resume: whether to use what is stored.
        show: as for `progress_bar`.
    """
    teacher = cache(fit_teacher)
    folder_at(folder)
    about, stored = folder / ABOUT, None
    if resume and about.is_file():
        content = json.loads(about.read_text(encoding="utf-8"))
        stored = content["smiles"] if content["identity"] == identity else None
    if stored is None:
        for path in folder.glob("*.npy"):
            path.unlink()
        stored = make_molecules()
        write_whole(about, json_text({"identity": identity, "smiles": stored}))
    left_out = stored_array(folder / LEFT_OUT, lambda: teacher().left_out())
    labels = []
    for number, part in enumerate(in_chunks(stored, "labelling", size=PART, show=show)):
        path = folder / f"labels-{number:05d}.npy"
        labels.append(stored_array(path, lambda part=part: teacher().predict(part)))  # type: ignore[misc]
    return LabelledMolecules(stored, np.concatenate(labels) if labels else left_out[:0], left_out)


def stored_array(path: Path, compute: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Return the array in a file, or compute it and keep it there."""
    if path.is_file():
        return np.load(path, allow_pickle=False)
    values = compute()
    folder_at(path.parent)
    with atomic_write(path, "wb") as file:
        np.save(file, values, allow_pickle=False)
    return values
