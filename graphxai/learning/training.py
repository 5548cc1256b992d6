"""The stages of a table's training in which networks learn: from labels, then from a teacher.

The second stage is distillation (Hinton 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphxai.datasets.recombine import recombine, substitute
from graphxai.learning.finetuning import FINETUNING, finetune, labelled
from graphxai.learning.predicting import encoded_molecules, task_readings
from graphxai.learning.settings import TableSettings, TrainingSettings
from graphxai.learning.splitting import SplitTable
from graphxai.learning.teachers.choosing import choose_teacher
from graphxai.learning.teachers.joint_labels import (
    joint_labels,
    joint_readings,
    labels_with_teacher,
    shares_text,
    teacher_shares,
)
from graphxai.learning.teachers.stacking import ForestSource, ProcessSource, Teacher
from graphxai.models.graphormer import Ensemble, Graphormer, GraphormerConfig, LoadedModel
from graphxai.runtime.progress import progress_bar

__all__ = [
    "TaughtModel",
    "fit_networks",
    "joined_networks",
    "network_folder",
    "recombined",
    "recombined_smiles",
    "teach_network",
    "teach_networks",
    "training_settings",
    "unseen_readings",
]

FloatArray = NDArray[np.float64]
FROM_SCRATCH = replace(FINETUNING, epochs=40, learning_rate=1e-3, head_learning_rate=None)
STUDENT = replace(FINETUNING, epochs=4, learning_rate=5e-4, label_smoothing=0.0)

RECOMBINED = 8000  # molecules for the teacher to label
ENVIRONMENTS = 8192  # rows of the table of atom environments that the network reads
SUBSTITUTED = 0.75  # share of them that differ from a given molecule in one substituent
KEPT_BACK = 400  # of these, to see how well the network learned
MAX_ATOMS = 60  # of a recombined molecule


@dataclass(frozen=True, eq=False)
class TaughtModel:
    """The result of learning from a teacher.

    Attributes:
        model: a network, or an ensemble of several.
        forests: two forests to compare with, by name. They are among the sources of a teacher.
        teacher: the teacher; None if the networks learned from the labels alone.
        shares: by task, the teacher's weight in what was taught; the rest is the networks' own. It
            is None for a task with too few labels for a teacher.
        recombined: number of recombined molecules that the network learned from.
        unseen: by task, what was predicted for each training molecule by a teacher and a network
            that had not learned from its fold, as from `predicting.readings`. It is empty without
            a teacher.
        learned: for each value or class of two that was taught, what the first network predicts
            for recombined molecules that were kept back, and what it would have been taught (2, k).
    """

    model: LoadedModel
    forests: Mapping[str, ForestSource | ProcessSource]
    teacher: Teacher | None = None
    shares: dict[str, float | None] = field(default_factory=dict)
    recombined: int = 0
    unseen: list[FloatArray] = field(default_factory=list)
    learned: dict[str, FloatArray] = field(default_factory=dict)


def training_settings(settings: TableSettings, network: int = 0) -> TrainingSettings:
    """Return the settings for fitting one of the networks, which have consecutive seeds.

    Networks that only help to teach another one take half of the epochs.
    """
    recipe = FROM_SCRATCH if settings.init_weights is None else FINETUNING
    if settings.teacher:
        recipe = replace(recipe, epochs=recipe.epochs // 2)
    return recipe.for_run(replace(settings, seed=settings.seed + network))


def fit_networks(
    split: SplitTable, settings: TableSettings, out: Path, log: Callable[[str], None]
) -> list[Graphormer]:
    """Fit Graphormers to the labels of the training part, from consecutive seeds.

    If a teacher is wanted, there is a network for each fold of the training part, and it learns
    from the other folds. So each molecule has a network that has not seen it. Otherwise there are
    as many networks as the model shall have, and they learn from the whole part.
    """
    train = split.parts.train
    if settings.teacher:
        parts = [
            replace(split.parts, train=tuple(np.delete(train, fold).tolist()), valid=())
            for fold in split.folds
        ]
        folders = [out if not fold else out / "folds" / str(fold) for fold in range(len(parts))]
    else:
        parts = [split.parts] * settings.ensemble
        folders = [network_folder(out, network) for network in range(settings.ensemble)]
    networks = []
    for network, (part, folder) in enumerate(zip(parts, folders, strict=True)):
        training = training_settings(settings, network)
        if settings.teacher:
            log(f"network for fold {network + 1} of {len(parts)}, seed {training.seed}")
        elif network:
            log(f"network {network + 1} of {settings.ensemble}, seed {training.seed}")
        networks.append(
            finetune(
                split.graphs,
                split.tasks,
                part,
                folder,
                init_weights=settings.init_weights,
                settings=training,
                resume=settings.resume,
                at_frequencies=True,
            )
        )
    return networks


def teach_networks(
    networks: Sequence[Graphormer],
    split: SplitTable,
    settings: TableSettings,
    out: Path,
    log: Callable[[str], None],
) -> TaughtModel:
    """Choose a teacher, and train new networks on what it and the networks predict together.

    The teacher is a weighted mean of forests and Gaussian processes, chosen on the folds of the
    training part. How much it counts beside the networks is chosen on the same folds. If no teacher
    is wanted, the networks stay as they are, and only the two forests for comparison are fitted.

    Args:
        networks: networks fitted to the training part, see `fit_networks`.
        split: the table.
        settings: settings of the run.
        out: folder of the run.
        log: called with a line of text at each step.
    """
    log(
        "choosing a teacher by folds of the training part"
        if settings.teacher
        else "training random forests for comparison: on ECFP4, and on ECFP4 and descriptors"
    )
    teacher = choose_teacher(
        split.tasks,
        split.train.smiles,
        split.train.y,
        folds=split.folds,
        bounds=split.train.bounds,
        weigh=settings.teacher,
        seed=settings.seed,
        show=training_settings(settings).show,
    )
    if not settings.teacher:
        return TaughtModel(joined_networks(networks), teacher.sources)
    for line in teacher.describe():
        log(line)
    by_network = unseen_readings(networks, split)
    by_teacher = [
        teacher.unseen[task.name].readings if task.name in teacher.unseen else None
        for task in split.tasks
    ]
    shares = teacher_shares(by_teacher, by_network, split.train.y)
    students = []
    for student in range(settings.ensemble):
        training = _student_settings(settings, student)
        if student:
            log(f"network {student + 1} of {settings.ensemble}, seed {training.seed}")
        students.append(
            teach_network(
                networks,
                teacher,
                shares,
                split,
                network_folder(out, student) / "distilled",
                training,
                molecules=RECOMBINED,
                resume=settings.resume,
                log=log,
            )
        )
    first = students[0]
    log(f"the teacher's share, the rest is the networks' own: {shares_text(first.shares)}")
    joined = joined_networks([student.model for student in students])  # type: ignore[misc]
    return replace(first, model=joined, unseen=joint_readings(by_teacher, by_network, shares))


def unseen_readings(networks: Sequence[Graphormer], split: SplitTable) -> list[FloatArray]:
    """Return, by task, what networks predict for the fold of the training part that each lacks."""
    unseen: list[FloatArray] = []
    for network, fold in zip(networks, split.folds, strict=True):
        readings = task_readings(network, [split.train.graphs[k] for k in fold])
        if not unseen:
            unseen = [np.full((len(split.train.y), *each.shape[1:]), np.nan) for each in readings]
        for task, each in zip(unseen, readings, strict=True):
            task[fold] = each
    return unseen


def network_folder(out: Path, network: int) -> Path:
    """Return the folder for the state of a network. The first one uses the folder of the run."""
    return out / "networks" / str(network) if network else out


def joined_networks(networks: Sequence[Graphormer]) -> LoadedModel:
    """Return the only network, or an ensemble of several."""
    return networks[0] if len(networks) == 1 else Ensemble(networks)


def teach_network(
    networks: Sequence[Graphormer],
    teacher: Teacher,
    shares: Sequence[float | None],
    split: SplitTable,
    out: Path,
    training: TrainingSettings,
    *,
    molecules: int = RECOMBINED,
    resume: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> TaughtModel:
    """Train a network on what fitted networks and their teacher predict together (Hinton 2015).

    What is taught is s teacher + (1 - s) networks, with a share s for each task and the mean of the
    networks. These predictions label molecules recombined from the training part and fill gaps in
    the training labels. The measured labels are moved towards the teacher's predictions without
    them (`mixed_labels`), which keeps the network from memorising them, and every epoch has them
    twice. Validation and test
    molecules are neither recombined nor learned from, and recombined molecules identical to one of
    them are dropped. A task without a share is learned from its labels alone.

    Args:
        networks: networks fitted to the training part. The new one starts from the first of them.
        teacher: teacher fitted to the training part.
        shares: the teacher's share for each task, None for a task with too few labels for a
            teacher; see `teacher_shares`.
        split: the table.
        out: folder for the state of this training.
        training: settings of this training.
        molecules: number of recombined molecules wanted; fewer if no more combinations exist.
        resume: continue an interrupted run in `out`.
        log: called with a line of text at each step.
    """
    train, valid, test = split.train, split.valid, split.test
    config = networks[0].config
    by_task = {task.name: share for task, share in zip(split.tasks, shares, strict=True)}
    held_out = [*valid.smiles, *test.smiles]
    wanted = molecules if any(share is not None for share in shares) else 0
    new_smiles, new_graphs = recombined(train.smiles, wanted, held_out, config, training)
    order = np.random.default_rng(training.seed).permutation(len(new_smiles)).tolist()
    new_smiles, new_graphs = [new_smiles[k] for k in order], [new_graphs[k] for k in order]
    kept_back = min(KEPT_BACK, len(new_smiles) // 20)
    count = len(new_smiles) - kept_back
    log(f"learning from the networks and the teacher on {count:,} recombined molecules")
    smiles, graphs = [*train.smiles, *new_smiles], [*train.graphs, *new_graphs]
    by_network = mean_readings(networks, graphs)
    with progress_bar("labelling", len(smiles), show=training.show) as advance:
        by_teacher = teacher.predict_in_chunks(smiles, advance)
    taught = joint_labels(by_teacher, by_network, shares, training.seed)  # (m, tasks)
    of_train, of_new = np.split(taught, [len(train.smiles)])
    of_train = np.clip(of_train, *np.moveaxis(train.bounds, 2, 0))  # within the known bounds
    left_out = [teacher.left_out(k) for k in range(len(split.tasks))]
    y = split.y.copy()
    y[list(train.positions)] = mixed = labels_with_teacher(train.y, left_out, shares, of_train)
    student = finetune(
        labelled(split.graphs, y),
        split.tasks,
        split.parts,
        out,
        init_weights=networks[0],
        settings=training,
        resume=resume,
        environments=ENVIRONMENTS,
        extra=[*labelled(train.graphs, mixed), *labelled(new_graphs[:count], of_new[:count])],
    )
    kept_readings = task_readings(student, new_graphs[count:])
    learned = {
        task.name: np.stack([readings, aim])
        for task, readings, aim in zip(split.tasks, kept_readings, of_new[count:].T, strict=True)
        if kept_back and by_task[task.name] is not None and readings.ndim == 1
    }
    return TaughtModel(student, teacher.sources, teacher, by_task, count, learned=learned)


def mean_readings(networks: Sequence[Graphormer], graphs: Sequence[Data]) -> list[FloatArray]:
    """Return the mean of several networks' probabilities and values for graphs, by task."""
    each = [task_readings(network, graphs) for network in networks]
    return [np.mean(readings, axis=0) for readings in zip(*each, strict=True)]


def recombined(
    smiles: Sequence[str],
    count: int,
    exclude: Sequence[str],
    config: GraphormerConfig,
    settings: TrainingSettings,
) -> tuple[list[str], list[Data]]:
    """Make new molecules and encode them.

    Args:
        smiles: the molecules to recombine, see `recombine`.
        count: number of new molecules wanted; fewer if no more combinations exist.
        exclude: molecules that must not be made.
        config: configuration of the model that will read them.
        settings: their seed draws the molecules, and they say whether to show progress.

    Returns:
        The new SMILES and the encoded graphs.
    """
    new = recombined_smiles(smiles, count, exclude, settings)
    return new, encoded_molecules(new, config, settings)


def recombined_smiles(
    smiles: Sequence[str], count: int, exclude: Sequence[str], settings: TrainingSettings
) -> list[str]:
    """Make new molecules, with arguments as for `recombined`, and return their SMILES.

    Three quarters of them are given molecules with another substituent. The others are joined from
    halves of different molecules, so they are farther from the given ones.
    """
    limits: dict[str, Any] = {"seed": settings.seed, "max_atoms": MAX_ATOMS}
    with progress_bar("recombining", count, show=settings.show) as advance:
        limits["progress"] = advance
        near = substitute(smiles, round(SUBSTITUTED * count), exclude=exclude, **limits)
        return near + recombine(smiles, count - len(near), exclude=[*exclude, *near], **limits)


def _student_settings(settings: TableSettings, network: int) -> TrainingSettings:
    """Return the settings for teaching a network, which takes fewer epochs than fitting it."""
    fitting = training_settings(settings, network)
    epochs = min(STUDENT.epochs, fitting.epochs)
    return STUDENT.for_run(replace(settings, seed=fitting.seed, epochs=epochs))
