"""Distil a teacher of several tasks, some of them linked, into one Graphormer (Hinton 2015).

The teacher labels new molecules part by part, so that an interruption loses one part.
The teacher of the BACE model also derives a class from a value.
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

from graphxai.contract.prediction_metrics import FloatArray
from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import (
    Counts,
    Molecules,
    atom_pair_counts,
    ecfp4,
    ecfp6_counts,
    parsed,
    similarity,
)
from graphxai.learning.fit import FINETUNING, PRETRAINED, finetune
from graphxai.learning.predicting import encoded_molecules
from graphxai.learning.settings import TrainingSettings
from graphxai.learning.splitting import Source, labelled
from graphxai.learning.teachers.forests import TREES, Forest
from graphxai.learning.teachers.gaussian_process import Process, carriers_of
from graphxai.learning.training import recombined_smiles
from graphxai.models.graphormer import Graphormer
from graphxai.runtime.progress import in_chunks, progress_bar
from graphxai.runtime.writing import atomic_write, folder_at, json_text, write_whole

TREES_OF_VALUES = 200  # with which the bundled model was trained
PROCESS_SHARE = 2 / 3  # chosen on five groups of scaffolds among BACE's training molecules


@dataclass(frozen=True)
class Link:
    """A binary task that says whether a regression task's value reaches a threshold.

    A teacher then also derives the class from the value: sigmoid(slope * (value - threshold)).
    """

    binary: str
    regression: str
    threshold: float
    slope: float = 1.5

    def agreeing(self, classes: NDArray[np.floating], values: NDArray[np.floating]) -> FloatArray:
        """Return the values (n,) from which the class is derived, contradictory ones replaced.

        A value on the wrong side of the threshold does not explain its class: an example is a weak
        binder listed as active because its crystal structure is known. It is replaced by the mean
        of its class, or NaN if the class has no other value.
        """
        reached = values >= self.threshold
        agreed = np.isnan(classes) | np.isnan(values) | (reached == (classes > 0.5))
        consistent = np.where(agreed, values, np.nan)
        for label in (0.0, 1.0):
            class_values = consistent[(classes == label) & ~np.isnan(consistent)]
            mean = class_values.mean() if len(class_values) else np.nan
            consistent[~agreed & (classes == label)] = mean
        return consistent


def counts_of(molecules: Molecules) -> Counts:
    """Return counts (n, 4096) of ECFP6 and of atom pairs (Carhart 1985), both without stereo."""
    return ecfp6_counts(molecules, stereo=False), atom_pair_counts(molecules)


@dataclass(frozen=True, eq=False)
class LinkedTeacher:
    """The weighted mean of a Gaussian process and forests, fitted only to training molecules.

    The process, which predicts new scaffolds better, has the weight `PROCESS_SHARE`. It compares
    ECFP6 counts and atom-pair counts. The forests are averaged over two kinds of fingerprint. A
    linked class is half predicted as such and half derived from the predicted value
    (`Link.agreeing`).

    Attributes:
        tasks: binary and regression tasks.
        links: classes that are also derived from a value.
        forests: those of each task, and of each link, one for each kind of fingerprint.
        out_of_bag: predictions (n, tasks + links) by the trees that did not see the molecule; NaN
            where its label is missing.
        process: the process, with a column for each task and link.
        counts: the counts of the molecules that carry the process.
    """

    tasks: Sequence[Task]
    links: Sequence[Link]
    forests: Sequence[Sequence[Forest]]
    out_of_bag: FloatArray
    process: Process
    counts: Counts

    @classmethod
    def fit(
        cls,
        tasks: Sequence[Task],
        smiles: Sequence[str],
        y: NDArray[np.floating],
        links: Sequence[Link] = (),
        show: bool | None = False,
    ) -> LinkedTeacher:
        """Learn labels y (n, tasks) of molecules (n,), NaN where one is missing.

        `show` is as for `progress_bar`.

        Raises:
            ValueError: a task has more than two classes.
        """
        if any(task.kind == "multiclass" for task in tasks):
            raise ValueError("forests can teach binary and regression tasks, not multi-class ones.")
        column = {task.name: values for task, values in zip(tasks, y.T, strict=True)}
        linked = [link.agreeing(column[link.binary], column[link.regression]) for link in links]
        labels = np.column_stack([y, *linked])
        fitted_tasks = [*tasks, *(Task(f"{link.binary} read", "regression") for link in links)]
        forests: list[list[Forest]] = []
        out_of_bag = np.full(labels.shape, np.nan)
        with progress_bar("fitting", 2 * len(fitted_tasks) + 1, show=show) as advance:
            molecules = parsed(smiles)
            inputs: list[NDArray[Any]] = [ecfp4(molecules), ecfp6_counts(molecules)]
            for k, task in enumerate(fitted_tasks):
                rows, values = ~np.isnan(labels[:, k]), labels[:, k].astype(np.float32)
                forests.append([])
                for x in inputs:
                    trees = TREES_OF_VALUES if task.kind == "regression" else TREES
                    each = Forest.fit(task, x[rows], values[rows], trees=trees, out_of_bag=True)
                    forests[-1].append(each)
                    advance(1)
                out_of_bag[rows, k] = np.mean([each.out_of_bag for each in forests[-1]], axis=0)
            counts, carriers = counts_of(molecules), carriers_of(len(smiles))
            carried = tuple(kind[carriers] for kind in counts)
            process = Process.fit(similarity(counts, carried), carriers, labels)
        return cls(tasks, links, forests, out_of_bag, process, carried)

    def predict(self, smiles: Sequence[str]) -> FloatArray:
        """Predict probabilities (binary) and values (regression), (n, tasks)."""
        molecules = parsed(smiles)
        return self._weighted(self.by_process(molecules), self.by_forests(molecules))

    def by_forests(self, molecules: Molecules) -> FloatArray:
        """Return the mean predictions of the forests, (n, tasks + links)."""
        inputs: list[NDArray[Any]] = [ecfp4(molecules), ecfp6_counts(molecules)]
        columns = [
            np.mean([f.predict(x) for f, x in zip(forests, inputs, strict=True)], axis=0)
            for forests in self.forests
        ]
        return np.stack(columns, axis=1).astype(np.float32).astype(np.float64)

    def by_process(self, molecules: Molecules) -> FloatArray:
        """Return the predictions of the process, (n, tasks + links)."""
        return self.process.predict(similarity(counts_of(molecules), self.counts))

    def left_out(self) -> FloatArray:
        """Predict each training molecule without having seen it, (n, tasks), NaN without a label.

        The prediction comes from the trees grown without the molecule, and from the process fitted
        to all others.
        """
        return self._weighted(self.process.left_out, self.out_of_bag)

    def _weighted(self, process: FloatArray, forests: FloatArray) -> FloatArray:
        """Return the weighted mean of predictions (n, tasks + links) as tasks, (n, tasks)."""
        return PROCESS_SHARE * self._linked(process) + (1 - PROCESS_SHARE) * self._linked(forests)

    def _linked(self, values: FloatArray) -> FloatArray:
        """Return the tasks' columns from values (n, tasks + links), with classes from 0 to 1."""
        count, names = len(self.tasks), [task.name for task in self.tasks]
        is_binary = np.array([task.kind == "binary" for task in self.tasks])
        predictions = np.where(is_binary, values[:, :count].clip(0, 1), values[:, :count])
        for link, value in zip(self.links, values[:, count:].T, strict=True):
            derived = 1 / (1 + np.exp(-link.slope * (value - link.threshold)))
            k = names.index(link.binary)
            predictions[:, k] = (predictions[:, k] + derived) / 2
        return predictions


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

    new, labels, left_out = label_molecules(
        out / "labels",
        {"train": smiles, "y": np.nan_to_num(train.y, nan=-1e9).tolist(), "molecules": molecules},
        recombine,
        fit_teacher,
        resume=resume,
        show=settings.show,
    )
    halfway = (train.y + left_out) / 2
    y = source.y.copy()
    y[list(train.positions)] = np.where(np.isnan(halfway), train.y, halfway)
    return finetune(
        source.with_labels(y),
        out / "distilled",
        init_weights=first,
        settings=settings,
        resume=resume,
        extra=labelled(encoded_molecules(new, first.config, settings), labels),
    ).model


def label_molecules(
    folder: Path,
    identity: dict[str, Any],
    make_molecules: Callable[[], list[str]],
    fit_teacher: Callable[[], LinkedTeacher],
    *,
    resume: bool,
    show: bool | None = None,
) -> tuple[list[str], FloatArray, FloatArray]:
    """Make molecules and let a teacher label them, 500 at a time. Each part is stored.

    The teacher is fitted only if something is left for it to do.

    Args:
        folder: where the molecules and labels are stored. Files of another identity are deleted.
        identity: what must be the same for stored labels to be used, as JSON values.
        show: as for `progress_bar`.

    Returns:
        The new molecules (m,); their labels (m, tasks); and the teacher's prediction for each of
        its training molecules, made without that molecule (n, tasks).
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
    return stored, np.concatenate(labels) if labels else left_out[:0], left_out


def stored_array(path: Path, compute: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Return the array in a file, or compute it and keep it there."""
    if path.is_file():
        return np.load(path, allow_pickle=False)
    values = compute()
    folder_at(path.parent)
    with atomic_write(path, "wb") as file:
        np.save(file, values, allow_pickle=False)
    return values
