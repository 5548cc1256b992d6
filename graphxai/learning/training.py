"""The stages in which networks learn: from labels, and those of a table then from a teacher too.

The second stage is distillation (Hinton 2015).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from graphxai.contract.prediction_metrics import FloatArray
from graphxai.datasets.recombine import recombine, substitute
from graphxai.learning.conformal import Unseen, nearest_of_other_folds
from graphxai.learning.fit import FINETUNING, FitResult, finetune
from graphxai.learning.predicting import encoded_molecules, task_readings
from graphxai.learning.settings import EnsembleSettings, TrainingSettings
from graphxai.learning.splitting import Source, labelled
from graphxai.learning.teachers.choosing import choose_teacher
from graphxai.learning.teachers.gaussian_process import Positions
from graphxai.learning.teachers.stacking import (
    ForestSource,
    ProcessSource,
    Teacher,
    joint_readings,
    mixed_labels,
    shares_text,
    soft_labels,
    stacking_share,
)
from graphxai.models.graphormer import Ensemble, Graphormer, LoadedModel
from graphxai.runtime.progress import progress_bar

Log = Callable[[str], None]
STUDENT = replace(FINETUNING, epochs=4, learning_rate=5e-4, label_smoothing=0.0)

RECOMBINED = 8000  # molecules for the teacher to label
ENVIRONMENTS = 8192  # rows of the table of atom environments that the network reads
SUBSTITUTED = 0.75  # share of them that differ from a given molecule in one substituent
KEPT_BACK = 400  # of these, to see how well the network learned
MAX_ATOMS = 60  # of a recombined molecule
LEAST_SHARE = 0.02  # of a teacher, below which a network has nothing to learn from it


@dataclass(frozen=True, eq=False)
class LearnedModel:
    """The result of learning from a source.

    Attributes:
        model: a network, an ensemble of several, a process, or the mean of a network and a process.
        best_epochs: the epoch whose weights each network has.
        baselines: two forests to compare with, by name, and beside a network that had a teacher a
            process. They are the teacher's sources, whatever their weight.
        teacher: the teacher; None if the networks learned from the labels alone.
        shares: by task, the teacher's weight in what was taught; the rest is the networks' own. It
            is None for a task with too few labels for a teacher.
        recombined: number of recombined molecules that the network learned from.
        unseen: by task, what was predicted for each training molecule by a teacher and a network
            that had not learned from its fold. It is empty without a teacher.
        left_out: by task, what a process of values predicts for each training molecule without it.
            So intervals also know errors near what was learned.
        process: the process that the model is, as a source of a teacher.
        kept_back: for each value or class of two that was taught, what the first network predicts
            for recombined molecules that were kept back, and what it would have been taught (2, k).
        of_folds: for each fold, a function that returns the model that had not learned from it.
        by_folds: by task, what the model that had not learned from its fold predicts for each
            training molecule.
    """

    model: Any
    best_epochs: tuple[int, ...] = ()
    baselines: Mapping[str, ForestSource | ProcessSource] = field(default_factory=dict)
    teacher: Teacher | None = None
    shares: dict[str, float | None] = field(default_factory=dict)
    recombined: int = 0
    unseen: list[Unseen] = field(default_factory=list)
    left_out: list[Unseen] = field(default_factory=list)
    process: ProcessSource | None = None
    kept_back: dict[str, FloatArray] = field(default_factory=dict)
    of_folds: Sequence[Callable[[], Any]] = ()
    by_folds: Sequence[FloatArray] = ()


@dataclass(frozen=True, eq=False)
class RunSource(Source, ABC):
    """A source with what a run does in one way for a table, and in another for graphs.

    Attributes:
        share: the share of the training part that is used, below 1 on a learning curve.
        fitted: sources of a teacher that were fitted to this training part before, by name.
        stored: the facts that go into `scores.json`.
    """

    settings: EnsembleSettings
    _: KW_ONLY
    share: float = 1.0
    fitted: Mapping[str, ForestSource | ProcessSource] | None = None
    stored: ClassVar[tuple[str, ...]]

    @property
    def init_weights(self) -> str | Path | None:
        """Weights to start from; None for none."""
        return getattr(self.settings, "init_weights", None)

    @property
    def folds(self) -> Sequence[Positions]:
        """The folds of the training part, as positions in it, if networks are to teach others."""
        return ()

    def smaller(self) -> list[Self]:
        """Return the source with smaller training parts, for a learning curve if it is wanted."""
        return []

    @abstractmethod
    def training(self, network: int = 0) -> TrainingSettings:
        """Return the settings for fitting one of the networks, which have consecutive seeds."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return what must be the same when a run is resumed, as JSON values."""

    def save(self, folder: Path) -> None:
        """Write what is known of the source before training."""

    @abstractmethod
    def learn(self, out: Path, log: Log) -> LearnedModel:
        """Fit networks in the folder `out`, which may teach others, and make a model of them."""

    @abstractmethod
    def rivals(self, learned: LearnedModel, log: Log) -> dict[str, Mapping[int, FloatArray]]:
        """Return what other models predict for the test part, by name and position of the task."""

    @abstractmethod
    def facts(self, learned: LearnedModel, results: dict[str, Any]) -> dict[str, Any]:
        """Return all that is stored with the model, as JSON values.

        Args:
            results: `temperature`, `scores` and `coverage` by task, and `learning_curve`.
        """

    @abstractmethod
    def words(self, learned: LearnedModel, facts: dict[str, Any]) -> dict[str, str]:
        """Return what the card says of this kind of source alone, by names in `card.TEMPLATE`."""

    @abstractmethod
    def rows(self, positions: Sequence[int]) -> list[list[Any]]:
        """Return a header, and a row for each molecule, graph or node: what it is, its labels."""

    def files(self) -> dict[str, str]:
        """Return the content of further files for the checkpoint."""
        return {}


def fit_networks(
    source: RunSource, out: Path, log: Log, *, networks: int | None = None
) -> list[FitResult]:
    """Fit Graphormers to the labels of the training part, from consecutive seeds.

    If the networks are to teach, there is one for each fold of the training part, and it learns
    from the other folds. So each molecule has a network that has not seen it. Otherwise there are
    as many networks as the model shall have, and they learn from the whole part. `networks` is how
    many of them are fitted, by default all.
    """
    settings, train = source.settings, source.parts.train
    if source.folds:
        parts = [
            replace(source.parts, train=tuple(np.delete(train, fold).tolist()), valid=())
            for fold in source.folds
        ]
        folders = [out / "folds" / str(fold) if fold else out for fold in range(len(parts))]
    else:
        parts = [source.parts] * settings.ensemble
        folders = [network_folder(out, network) for network in range(settings.ensemble)]
    fits = []
    for network, (part, folder) in enumerate(list(zip(parts, folders, strict=True))[:networks]):
        training = source.training(network)
        if network or source.folds:
            name = "network for fold" if source.folds else "network"
            log(f"{name} {network + 1} of {len(parts)}, seed {training.seed}")
        fit = finetune(
            replace(source, parts=part),
            folder,
            init_weights=source.init_weights,
            settings=training,
            resume=settings.resume,
            at_frequencies=True,
        )
        fits.append(replace(fit, model=fit.model.cpu()))
    return fits


def teach_networks(
    networks: Sequence[Graphormer], source: RunSource, out: Path, log: Log
) -> LearnedModel:
    """Choose a teacher, and train new networks on what it and the networks predict together.

    The teacher is a weighted mean of forests and Gaussian processes, chosen on the folds of the
    training part. How much it counts beside the networks is chosen on the same folds. If that is
    next to nothing, the networks stay as they are. So they do without folds, where only the two
    forests for comparison are fitted.

    Args:
        networks: networks fitted to the training part, see `fit_networks`.
        log: called with a line of text at each step.
    """
    settings, train, tasks = source.settings, source.train, source.tasks
    log(
        "choosing a teacher by folds of the training part"
        if source.folds
        else "training random forests for comparison: on ECFP4, and on ECFP4 and descriptors"
    )
    teacher = choose_teacher(
        tasks,
        train.smiles,
        train.y,
        folds=source.folds,
        bounds=train.bounds,
        fitted=source.fitted,
        seed=settings.seed,
        show=source.training().show,
    )
    if not source.folds:
        return LearnedModel(joined_networks(networks), baselines=teacher.sources)
    for line in teacher.describe():
        log(line)
    by_network = unseen_readings(networks, source)
    by_teacher = [stack and stack.unseen.readings for stack in teacher.stacks]
    shares = list(map(stacking_share, by_teacher, by_network, train.y.T))
    similarity = nearest_of_other_folds(train.smiles, source.folds)
    joint = map(joint_readings, by_teacher, by_network, shares)
    unseen = [Unseen(r, y, similarity) for r, y in zip(joint, train.y.T, strict=True)]
    of_folds: dict[str, Any] = {
        "of_folds": [partial(lambda each: each, network) for network in networks],
        "by_folds": by_network,
    }
    of_teacher = max((share for share in shares if share is not None), default=1.0)
    if of_teacher < LEAST_SHARE and not settings.bears_removal:
        log(f"the teacher's share is below {LEAST_SHARE:.0%}: the networks stay as they are")
        by_task = {task.name: share for task, share in zip(tasks, shares, strict=True)}
        joined = joined_networks(networks)
        return LearnedModel(
            joined, (), teacher.sources, teacher, by_task, unseen=unseen, **of_folds
        )
    students = []
    for student in range(settings.ensemble):
        fitting = source.training(student)
        epochs = min(STUDENT.epochs, fitting.epochs)  # no more than fitting the network took
        training = replace(STUDENT.for_run(settings), seed=fitting.seed, epochs=epochs)
        if student:
            log(f"network {student + 1} of {settings.ensemble}, seed {training.seed}")
        folder = network_folder(out, student) / "distilled"
        students.append(
            teach_network(
                networks, teacher, shares, source, folder, training,
                resume=settings.resume, log=log,
            )
        )  # fmt: skip
    first = students[0]
    log(f"the teacher's share, the rest is the networks' own: {shares_text(first.shares)}")
    joined = joined_networks([student.model for student in students])
    return replace(first, model=joined, unseen=unseen, **of_folds)


def unseen_readings(networks: Sequence[Graphormer], source: RunSource) -> list[FloatArray]:
    """Return, by task, what networks predict for the fold of the training part that each lacks."""
    unseen: list[FloatArray] = []
    for network, fold in zip(networks, source.folds, strict=True):
        readings = task_readings(network, [source.train.graphs[k] for k in fold])
        if not unseen:
            unseen = [np.full((len(source.train.y), *each.shape[1:]), np.nan) for each in readings]
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
    source: Source,
    out: Path,
    training: TrainingSettings,
    *,
    molecules: int | None = None,
    resume: bool = False,
    log: Log = lambda line: None,
) -> LearnedModel:
    """Train a network on what fitted networks and their teacher predict together (Hinton 2015).

    What is taught is s teacher + (1 - s) networks, with a share s for each task and the mean of the
    networks. These predictions label molecules recombined from the training part and fill gaps in
    the training labels. The measured labels are moved towards the teacher's predictions without
    them (`mixed_labels`), which keeps the network from memorising them, and every epoch has them
    twice. Validation and test molecules are neither recombined nor learned from, and recombined
    molecules identical to one of them are dropped. A task without a share is learned from its
    labels alone.

    Args:
        networks: networks fitted to the training part. The new one starts from the first of them.
        teacher: teacher fitted to the training part.
        shares: the teacher's share for each task, None for a task with too few labels for a
            teacher; see `stacking_share`.
        source: the molecules.
        out: folder for the state of this training.
        training: settings of this training.
        molecules: number of recombined molecules wanted, by default 8,000; fewer if no more
            combinations exist.
        resume: continue an interrupted run in `out`.
        log: called with a line of text at each step.
    """
    train, tasks = source.train, source.tasks
    by_task = {task.name: share for task, share in zip(tasks, shares, strict=True)}
    wanted = RECOMBINED if molecules is None else molecules
    wanted = wanted if any(share is not None for share in shares) else 0
    held_out = [*source.valid.smiles, *source.test.smiles]
    new_smiles = recombined_smiles(train.smiles, wanted, held_out, training)
    new_graphs = encoded_molecules(new_smiles, networks[0].config, training)
    order = np.random.default_rng(training.seed).permutation(len(new_smiles)).tolist()
    new_smiles, new_graphs = [new_smiles[k] for k in order], [new_graphs[k] for k in order]
    kept_back = min(KEPT_BACK, len(new_smiles) // 20)
    count = len(new_smiles) - kept_back
    log(f"learning from the networks and the teacher on {count:,} recombined molecules")
    smiles, graphs = [*train.smiles, *new_smiles], [*train.graphs, *new_graphs]
    each = [task_readings(network, graphs) for network in networks]
    by_network = [np.mean(of_task, axis=0) for of_task in zip(*each, strict=True)]
    by_teacher = teacher.predict_in_chunks(smiles, training.show)
    joint = zip(map(joint_readings, by_teacher, by_network, shares), shares, strict=True)
    columns = [
        np.full(len(readings), np.nan) if share is None else soft_labels(readings, training.seed)
        for readings, share in joint
    ]
    taught = np.stack(columns, axis=1)  # (m, tasks)
    of_train, of_new = np.split(taught, [len(train.smiles)])
    of_train = np.clip(of_train, *np.moveaxis(train.bounds, 2, 0))  # within the known bounds
    left_out = map(teacher.left_out, range(len(tasks)))
    moved = np.stack(list(map(mixed_labels, train.y.T, left_out, shares)), axis=1)
    mixed = np.where(np.isnan(moved), of_train, moved)  # the gaps have what is taught
    y = source.y.copy()
    y[list(train.positions)] = mixed
    config = replace(source.config, environments=ENVIRONMENTS)
    student = finetune(
        replace(source.with_labels(y), config=config),
        out,
        init_weights=networks[0],
        settings=training,
        resume=resume,
        extra=[*labelled(train.graphs, mixed), *labelled(new_graphs[:count], of_new[:count])],
    ).model
    kept_readings = task_readings(student, new_graphs[count:])
    kept = {
        task.name: np.stack([readings, aim])
        for task, readings, aim in zip(tasks, kept_readings, of_new[count:].T, strict=True)
        if kept_back and by_task[task.name] is not None and readings.ndim == 1
    }
    return LearnedModel(student, (), teacher.sources, teacher, by_task, count, kept_back=kept)


def recombined_smiles(
    smiles: Sequence[str], count: int, exclude: Sequence[str], settings: TrainingSettings
) -> list[str]:
    """Recombine molecules, and return the SMILES of the new ones.

    Three quarters of them are given molecules with another substituent. The others are joined from
    halves of different molecules, so they are farther from the given ones.

    Args:
        smiles: the molecules to recombine, see `recombine`.
        count: number of new molecules wanted; fewer if no more combinations exist.
        settings: their seed draws the molecules, and they say whether to show progress.
    """
    limits: dict[str, Any] = {"seed": settings.seed, "max_atoms": MAX_ATOMS}
    with progress_bar("recombining", count, show=settings.show) as advance:
        limits["progress"] = advance
        near = substitute(smiles, round(SUBSTITUTED * count), exclude=exclude, **limits)
        return near + recombine(smiles, count - len(near), exclude=[*exclude, *near], **limits)
