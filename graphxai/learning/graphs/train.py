"""Train a Graphormer on anybody's graphs: split, fit, calibrate, score, write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from graphxai.contract.tasks import Task
from graphxai.datasets.graph_folders import load_graphs
from graphxai.learning import conformal
from graphxai.learning.calibration import fit_temperatures
from graphxai.learning.finetuning import start_at_frequencies
from graphxai.learning.fit import FitResult, fit, require_hardware
from graphxai.learning.graphs.baselines import forest_readings, gin_readings
from graphxai.learning.graphs.labels import TaskLike
from graphxai.learning.graphs.splitting import GraphPart, SplitGraphs, split_graphs
from graphxai.learning.graphs.writing import begin_run, write_run
from graphxai.learning.predicting import task_readings
from graphxai.learning.scores import dummy_predictions, measure
from graphxai.learning.settings import GraphSettings, TrainingSettings
from graphxai.learning.training import joined_networks, network_folder
from graphxai.models.graphormer import (
    Graphormer,
    LoadedModel,
    graphormer,
    measure_mean_node,
    members_of,
)
from graphxai.runtime.options import with_options

__all__ = ["train"]


def train(
    dataset: Iterable[Data] | Data | str | Path,
    out: str | Path = "runs/graphs",
    *,
    task: TaskLike = None,
    settings: GraphSettings | None = None,
    command: str = "",
    log: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> Path:
    """Train a Graphormer on graphs, and score it on its test graphs beside simple models.

    The graphs are split, or their nodes if these have the labels, and continuous features and
    values are standardised on the training part.
    The network is fitted until the validation loss no longer falls. It is calibrated on the
    validation part and scored on the test part, beside a GIN with as many parameters, a forest on
    mean features and a dummy.

    Args:
        dataset: a PyG data set, a graph or a list of graphs, each with a label `y` (numbers or a
            row of them, NaN where one is missing), an `edge_index`, and if there are any `x` and
            `edge_attr`; or a folder, see `graphxai.datasets.graph_folders`. Integers are
            categories, other features are numbers. If `y` has a row for each node, the nodes are
            learned. Graphs may then say by `train_mask`, `val_mask` and `test_mask` which.
        out: folder of the run, with `test.csv` (predictions); the checkpoint is its sub-folder
            `model`, with `scores.json`.
        task: a `Task`, or a list of one for each label; or "binary", "multiclass",
            "classification" or "regression"; by default from the labels.
        settings: settings of the run, by default `GraphSettings()`.
        command: how the run was started, for the model card.
        log: called with a line of text at each stage.
        options: fields of `GraphSettings` to change, such as `split=(train, valid, test)`,
            `seed=1` or `resume=True`.

    Returns:
        The checkpoint folder, for `graphxai.load`.

    Raises:
        ImportError: the extra `train` is not installed.
        TypeError: there is no such option.
        ValueError: a graph cannot be used (the message names it), labels do not fit the task, or
            `out` already contains a run and `resume` is False, or one of other graphs or settings.
    """
    settings = with_options(settings or GraphSettings(), options, "train")
    require_hardware(settings)
    out, name = Path(out), ""
    if isinstance(dataset, str | Path):
        stored, name = load_graphs(dataset), Path(dataset).name
        dataset = stored.graphs
        if settings.split is None and stored.split is not None:
            settings = with_options(settings, {"split": stored.split}, "train")
    split = split_graphs(dataset, task, settings, name)
    training = settings.training(
        len(split.train.graphs),
        max(int(graph.num_nodes or 0) for graph in split.graphs),
        of_nodes=split.labelled == "nodes",
    )
    begin_run(out, split, training, settings.ensemble, resume=settings.resume)
    log(f"{split.name}: {split}")
    fits = _fit_networks(split, training, settings, out, log)
    model = joined_networks([each.model.cpu() for each in fits])
    temperatures = fit_temperatures(model, _unseen(model, split.valid))
    for member in members_of(model):
        measure_mean_node(member, split.train.graphs)
    coverage = _calibrate_intervals(model, split)
    if settings.baselines:
        log("training a GIN with as many parameters, and a forest, for comparison")
    readings = {"graphormer": task_readings(model, split.test.graphs)}
    readings |= _baselines(fits[0].model, split, training) if settings.baselines else {}
    figures: dict[str, Any] = {"temperature": temperatures, "coverage": coverage}
    figures |= {"scores": _scores(readings, split), "best_epochs": [each.epoch for each in fits]}
    figures["ensemble"] = settings.ensemble
    return write_run(out, model, split, training, figures, readings["graphormer"], command)


def _unseen(model: LoadedModel, part: GraphPart) -> list[conformal.Unseen]:
    """Return, by task, a model's predictions for a part, with its labels."""
    if not part.graphs:
        return []
    return conformal.unseen_by_task(task_readings(model, part.graphs), part.y, None, [])


def _calibrate_intervals(model: LoadedModel, split: SplitGraphs) -> dict[str, Any]:
    """Give the model conformal scores, and return their coverage by task."""
    if split.labelled == "graphs":
        return conformal.calibrate(model, split.graphs, split.y, split.parts)
    if not split.valid.graphs:
        return {}
    valid, test = (_unseen(model, part) for part in (split.valid, split.test))
    return conformal.calibrate_readings(model, valid, test)


def _fit_networks(
    split: SplitGraphs,
    training: TrainingSettings,
    settings: GraphSettings,
    out: Path,
    log: Callable[[str], None],
) -> list[FitResult]:
    """Fit one network, or several from consecutive seeds."""
    fits = []
    for number in range(settings.ensemble):
        of_network = replace(training, seed=training.seed + number)
        if number:
            log(f"network {number + 1} of {settings.ensemble}, seed {of_network.seed}")
        folder = network_folder(out, number)
        fits.append(_fit(split, of_network, folder, resume=settings.resume))
    return fits


def _fit(split: SplitGraphs, training: TrainingSettings, out: Path, *, resume: bool) -> FitResult:
    """Fit a network to the labels of the training part."""
    torch.manual_seed(training.seed)
    model = graphormer(split.config)
    start_at_frequencies(model, torch.from_numpy(split.train.y))
    return fit(model, split.train.graphs, split.valid.graphs, training, out, resume=resume)


def _baselines(
    model: Graphormer, split: SplitGraphs, training: TrainingSettings
) -> dict[str, list[Any]]:
    """Return what simple models predict for the test part, by name and task."""
    if not split.parts.test:
        return {}
    forest = "feature_forest" if split.labelled == "graphs" else "neighbour_forest"
    return {
        "gin": gin_readings(model, split, training),
        forest: forest_readings(model.config, split, training.seed),
    }


def _scores(readings: dict[str, list[Any]], split: SplitGraphs) -> dict[str, Any]:
    """Score predictors and a dummy on the test part, by task."""
    return {each.name: _score(each, k, readings, split) for k, each in enumerate(split.tasks)}


def _score(
    task: Task, k: int, readings: dict[str, list[Any]], split: SplitGraphs
) -> dict[str, Any]:
    """Score predictors of the k-th task on the test graphs that have its label."""
    learned = split.train.y[:, k][~np.isnan(split.train.y[:, k])]
    truth = split.test.y[:, k]
    tested = ~np.isnan(truth)
    about = {"kind": task.kind, "unit": task.unit, "trained": len(learned)}
    about["tested"] = split.labelled
    if not tested.any():
        return about | {"n": 0, "scores": {}}
    predictions = {name: by_task[k][tested] for name, by_task in readings.items()}
    predictions["dummy"] = dummy_predictions(task, learned, int(tested.sum()))
    return about | measure(task.kind, predictions, truth[tested])
