"""The stages of a table's training in which networks learn: from labels, then from a teacher.

The second stage is distillation (Hinton 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphxai.datasets.recombine import recombine
from graphxai.learning.finetuning import FINETUNING, finetune, labelled
from graphxai.learning.predicting import encoded_molecules, task_readings
from graphxai.learning.settings import TrainingSettings
from graphxai.learning.splitting import SplitTable
from graphxai.learning.table_settings import TableSettings
from graphxai.learning.teachers.choosing import choose_teacher
from graphxai.learning.teachers.stacking import (
    ForestSource,
    MoleculeFeatures,
    ProcessSource,
    Teacher,
    joint_labels,
    labels_with_teacher,
    shares_text,
    teacher_shares,
)
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
]

FloatArray = NDArray[np.float64]
FROM_SCRATCH = replace(FINETUNING, epochs=40, learning_rate=1e-3, head_learning_rate=None)
STUDENT = replace(FINETUNING, epochs=6, learning_rate=4e-4, label_smoothing=0.0)

RECOMBINED = 8000  # molecules for the teacher to label
MAX_ATOMS = 60  # of a recombined molecule


@dataclass(frozen=True, eq=False)
class TaughtModel:
    """The result of learning from a teacher.

    Attributes:
        model: a network, or an ensemble of several.
        forests: two forests to compare with, by name. They are among the sources of a teacher.
        teacher: the teacher; None if the networks learned from the labels alone.
        shares: by task, the teacher's weight in what was taught; the rest is the network's own. It
            is None for a task with too few labels for a teacher.
        recombined: number of recombined molecules that the network learned from.
        teacher_on_valid: by task, the teacher's predictions for the validation part, or None for a
            task with too few labels. It is empty without a teacher or a validation part.
    """

    model: LoadedModel
    forests: Mapping[str, ForestSource | ProcessSource]
    teacher: Teacher | None = None
    shares: dict[str, float | None] = field(default_factory=dict)
    recombined: int = 0
    teacher_on_valid: list[FloatArray | None] = field(default_factory=list)


def training_settings(settings: TableSettings, network: int = 0) -> TrainingSettings:
    """Return the settings for fitting one of the networks, which have consecutive seeds."""
    recipe = FROM_SCRATCH if settings.init_weights is None else FINETUNING
    return recipe.for_run(replace(settings, seed=settings.seed + network))


def fit_networks(
    split: SplitTable, settings: TableSettings, out: Path, log: Callable[[str], None]
) -> list[Graphormer]:
    """Fit one Graphormer, or several from consecutive seeds, to the labels of the training part."""
    networks = []
    for network in range(settings.ensemble):
        training = training_settings(settings, network)
        if network:
            log(f"network {network + 1} of {settings.ensemble}, seed {training.seed}")
        networks.append(
            finetune(
                split.graphs,
                split.tasks,
                split.parts,
                network_folder(out, network),
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
    """Choose a teacher, and train each network on what it and the teacher predict together.

    The teacher is a weighted mean of forests and Gaussian processes, chosen on scaffold folds of
    the training part. All networks share it. If no teacher is wanted, the networks stay as they
    are, and only the two forests for comparison are fitted.

    Args:
        networks: networks fitted to the training part.
        split: the table.
        settings: settings of the run.
        out: folder of the run.
        log: called with a line of text at each step.
    """
    by_network = [task_readings(model, split.valid.graphs) for model in networks]
    log(
        "choosing a teacher by scaffold folds of the training part"
        if settings.teacher
        else "training random forests for comparison: on ECFP4, and on ECFP4 and descriptors"
    )
    teacher = choose_teacher(
        split.tasks,
        split.train.smiles,
        split.train.y,
        bounds=split.train.bounds,
        weigh=settings.teacher,
        seed=settings.seed,
        show=training_settings(settings).show,
    )
    if not settings.teacher:
        return TaughtModel(joined_networks(networks), teacher.sources)
    for line in teacher.describe():
        log(line)
    on_valid: list[FloatArray | None] = []
    shares: list[list[float | None]] = [teacher.even_shares] * len(networks)
    if split.valid.smiles:
        on_valid = teacher.predict(MoleculeFeatures(split.valid.smiles))
        shares = [teacher_shares(on_valid, each, split.valid.y) for each in by_network]
    students = [
        teach_network(
            model,
            teacher,
            shares[network],
            split,
            network_folder(out, network) / "distilled",
            _student_settings(settings, network),
            molecules=RECOMBINED,
            resume=settings.resume,
            log=log,
        )
        for network, model in enumerate(networks)
    ]
    first = students[0]
    log(f"the teacher's share, the rest is the network's own: {shares_text(first.shares)}")
    joined = joined_networks([student.model for student in students])  # type: ignore[misc]
    return replace(first, model=joined, teacher_on_valid=on_valid)


def network_folder(out: Path, network: int) -> Path:
    """Return the folder for the state of a network. The first one uses the folder of the run."""
    return out / "networks" / str(network) if network else out


def joined_networks(networks: Sequence[Graphormer]) -> LoadedModel:
    """Return the only network, or an ensemble of several."""
    return networks[0] if len(networks) == 1 else Ensemble(networks)


def teach_network(
    model: Graphormer,
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
    """Train a fitted network on what it and its teacher predict together (Hinton 2015).

    What is taught is s teacher + (1 - s) network, with a share s for each task. These predictions
    label molecules recombined from the training part and fill gaps in the training labels. The
    measured labels are moved towards the teacher's predictions without them (`mixed_labels`), which
    keeps the network from memorising them. Validation and test molecules are neither recombined nor
    learned from, and recombined molecules identical to one of them are dropped. If no task has a
    share, the network is returned unchanged.

    Args:
        model: network fitted to the training part.
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
    by_task = {task.name: share for task, share in zip(split.tasks, shares, strict=True)}
    if not any(shares):
        return TaughtModel(model, teacher.sources, teacher, by_task)
    held_out = [*valid.smiles, *test.smiles]
    new_smiles, new_graphs = recombined(train.smiles, molecules, held_out, model.config, training)
    log(f"learning from the network and its teacher on {len(new_smiles):,} recombined molecules")
    smiles, graphs = [*train.smiles, *new_smiles], [*train.graphs, *new_graphs]
    by_network = task_readings(model, graphs)
    with progress_bar("labelling", len(smiles), show=training.show) as advance:
        by_teacher = teacher.predict_in_chunks(smiles, advance)
    taught = joint_labels(by_teacher, by_network, shares, training.seed)  # (m, tasks)
    of_train, of_new = np.split(taught, [len(train.smiles)])
    of_train = np.clip(of_train, *np.moveaxis(train.bounds, 2, 0))  # within the known bounds
    left_out = [teacher.left_out(k) for k in range(len(split.tasks))]
    y = split.y.copy()
    y[list(train.positions)] = labels_with_teacher(train.y, left_out, shares, of_train)
    student = finetune(
        labelled(split.graphs, y),
        split.tasks,
        split.parts,
        out,
        init_weights=model,
        settings=training,
        resume=resume,
        extra=labelled(new_graphs, of_new),
    )
    return TaughtModel(student, teacher.sources, teacher, by_task, len(new_smiles))


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
    """Make new molecules, with arguments as for `recombined`, and return their SMILES."""
    with progress_bar("recombining", count, show=settings.show) as advance:
        return recombine(
            smiles,
            count,
            seed=settings.seed,
            exclude=exclude,
            max_atoms=MAX_ATOMS,
            progress=advance,
        )


def _student_settings(settings: TableSettings, network: int) -> TrainingSettings:
    """Return the settings for teaching a network, which takes fewer epochs than fitting it."""
    fitting = training_settings(settings, network)
    epochs = min(STUDENT.epochs, fitting.epochs)
    return STUDENT.for_run(replace(settings, seed=fitting.seed, epochs=epochs))
