"""Recipes for molecules: fine-tuning, and learning from an ensemble."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphxai.contract.tasks import Task
from graphxai.datasets.features import ATOM_CARDINALITIES, ATOM_FEATURE_NAMES, BOND_CARDINALITIES
from graphxai.datasets.molecules import require_graphs
from graphxai.datasets.recombine import recombine
from graphxai.datasets.splits import Split
from graphxai.learning.fit import fit, initialise
from graphxai.learning.loading import encode_all
from graphxai.learning.settings import TrainingSettings
from graphxai.learning.teachers.labels import Ensemble, Link
from graphxai.models.graphormer import Graphormer, GraphormerConfig, load_checkpoint, locate
from graphxai.runtime.progress import in_chunks, progress_bar

__all__ = [
    "distil",
    "finetune",
    "labelled",
    "molecule_config",
    "recombined",
    "start_at_frequencies",
]

PRETRAINED = "molecules"
MAX_ATOMS = 60  # of a recombined molecule
FINETUNING = TrainingSettings(
    epochs=20,
    batch_size=32,
    learning_rate=3e-4,
    head_learning_rate=1e-3,
    weight_decay=0.05,
    ema_decay=0.99,
    label_smoothing=0.05,
    keep_best=False,
)
DISTILLING = replace(
    FINETUNING,
    epochs=8,
    batch_size=64,
    learning_rate=4e-4,
    head_learning_rate=None,
    ema_decay=0.995,
    label_smoothing=0.0,
)


def molecule_config(tasks: Sequence[Task], **changes: Any) -> GraphormerConfig:
    """Configure the Graphormer for molecules: 4 layers of width 128, 8 heads, OGB's features."""
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
    at_frequencies: bool = False,
) -> Graphormer:
    """Train on graphs with labels `y` (1, tasks), from the weights `start`.

    `start`: a model with the same tasks, whose head is copied too; a checkpoint by name or folder,
    whose head is not; None trains from scratch. `extra`: further training graphs, such as those
    with a teacher's labels. `at_frequencies`: let a new head start from the frequencies of the
    classes, so that the first epochs are not spent on learning that a class is rare.
    """
    torch.manual_seed(settings.seed)
    config = molecule_config(tasks, dropout=0.0, attention_dropout=0.0)
    model = Graphormer(config)
    if isinstance(start, Graphormer):
        initialise(model, start, head=True)
    elif start is not None:
        initialise(model, load_checkpoint(locate(start)))
    if at_frequencies:
        start_at_frequencies(model, torch.cat([graphs[k].y for k in split.train]))
    train = [*(graphs[k] for k in split.train), *extra]
    valid = [graphs[k] for k in split.valid]
    return fit(model, train, valid, settings, out, resume=resume).model


@torch.no_grad()
def start_at_frequencies(model: Graphormer, y: torch.Tensor) -> None:
    """Set the head's bias to the log-odds of classes among labels y (n, tasks), NaN where missing.

    For several classes it is set to their log-frequencies. Every class counts one molecule more.
    """
    if not isinstance(model.head, torch.nn.Linear):
        raise ValueError("only a linear head has a bias for every class.")
    for task, column in zip(model.config.tasks, y.T, strict=True):
        if task.kind == "regression":
            continue
        known = column[~column.isnan()].long()
        counts = torch.bincount(known, minlength=len(task.classes)) + 1.0
        bias = (counts / counts.sum()).log()
        _, columns = model.config.task_columns(task.name)
        model.head.bias[columns] = bias[1:] - bias[:1] if task.kind == "binary" else bias


def distil(
    graphs: Sequence[Data],
    tasks: Sequence[Task],
    split: Split,
    out: str | Path,
    *,
    molecules: int = 40_000,
    links: Sequence[Link] = (),
    start: str | Path | None = PRETRAINED,
    first_settings: TrainingSettings = FINETUNING,
    settings: TrainingSettings = DISTILLING,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Graphormer:
    """Train one Graphormer on the labels and on an ensemble's predictions (Hinton 2015).

    It is first fine-tuned on the training part. Then new molecules are recombined from the training
    molecules and labelled by an `Ensemble` fitted only to the training part, and the Graphormer
    continues on both. Each measured label is averaged with the ensemble's prediction made without
    that molecule, which keeps the network from memorising the labels. Validation and test molecules
    are neither recombined nor labelled, and products identical to one of them are dropped.

    Args:
        graphs: graphs with labels `y` (1, tasks), NaN where one is missing.
        tasks: binary and regression tasks.
        split: split of the graphs.
        out: folder of the run.
        molecules: number of recombined molecules; 0 means plain fine-tuning.
        links: classes that the ensemble also derives from a value.
        start: checkpoint to start from, by name or folder; None trains from scratch.
        first_settings: settings of the fine-tuning.
        settings: settings of the second stage.
        resume: continue an interrupted run in `out`.
        say: called with a line of text at each stage.
    """
    out = Path(out)
    first = finetune(
        graphs,
        tasks,
        split,
        out / "fine-tuned",
        start=start,
        settings=first_settings,
        resume=resume,
    )
    if not molecules:
        return first
    train = [graphs[k].smiles for k in split.train]
    held_out = [graphs[k].smiles for k in (*split.valid, *split.test)]
    y = torch.cat([graph.y for graph in graphs]).double().numpy()
    say("fitting forests and a Gaussian process to the training part")
    teacher = Ensemble(tasks, train, y[list(split.train)], links, settings.show)
    say(f"recombining {molecules:,} molecules for them to label")
    new, extra = recombined(train, molecules, held_out, first.config, settings)
    labels = [teacher.predict(part) for part in in_chunks(new, "labelling", show=settings.show)]
    halfway = (y[list(split.train)] + teacher.left_out()) / 2
    y[list(split.train)] = np.where(np.isnan(halfway), y[list(split.train)], halfway)
    return finetune(
        labelled(graphs, y),
        tasks,
        split,
        out / "distilled",
        start=first,
        settings=settings,
        resume=resume,
        extra=labelled(extra, np.concatenate(labels)) if new else (),
    )


def recombined(
    smiles: Sequence[str],
    count: int,
    exclude: Sequence[str],
    config: GraphormerConfig,
    settings: TrainingSettings,
) -> tuple[list[str], list[Data]]:
    """Make new molecules (see `recombine`) and encode them; `settings` may show progress bars."""
    with progress_bar("recombining", count, show=settings.show) as advance:
        new = recombine(
            smiles,
            count,
            seed=settings.seed,
            exclude=exclude,
            max_atoms=MAX_ATOMS,
            progress=advance,
        )
    graphs: list[Data] = []
    for part in in_chunks(new, "encoding", show=settings.show):
        graphs += encode_all(require_graphs(part), config)
    return new, graphs


def labelled(graphs: Sequence[Data], y: NDArray[np.float64]) -> list[Data]:
    """Return copies of the graphs with labels y (n, tasks)."""
    found = [copy.copy(graph) for graph in graphs]
    for graph, row in zip(found, y, strict=True):
        graph.y = torch.from_numpy(row).float()[None]
    return found
