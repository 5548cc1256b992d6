"""Calibrate a model on molecules held out: temperatures (Guo 2017), intervals, the mean node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from graphxai.contract.tasks import Task
from graphxai.learning.conformal import Unseen, calibrate_readings, unseen_by_task
from graphxai.learning.predicting import task_outputs, task_readings
from graphxai.learning.splitting import SplitTable
from graphxai.learning.training import TaughtModel
from graphxai.models.graphormer import (
    Graphormer,
    LoadedModel,
    measure_mean_node,
    members_of,
    set_standardisation,
)

__all__ = [
    "Calibration",
    "calibrate_table",
    "fit_temperature",
    "fit_temperatures",
    "scale_logits",
    "task_temperature",
]

FloatArray = NDArray[np.float64]
MIN_FOR_TEMPERATURE = 20  # labels


@dataclass(frozen=True, eq=False)
class Calibration:
    """How a model was calibrated, and what it then says about the molecules held out.

    Attributes:
        temperatures: by task, the number by which its logits are divided; None if there is none.
        coverage: by task, how often intervals or sets of classes hold on the test part.
        valid_readings: by task, probabilities and values for the validation part.
        test_readings: by task, probabilities and values for the test part.
    """

    temperatures: dict[str, float | None]
    coverage: dict[str, Any]
    valid_readings: list[FloatArray]
    test_readings: list[FloatArray]


def calibrate_table(taught: TaughtModel, split: SplitTable) -> Calibration:
    """Calibrate a model in place on the validation part, and measure its intervals.

    The model also stores the mean node of the training part, and how the molecules that it learned
    from were standardised.
    """
    model, train, valid, test = taught.model, split.train, split.valid, split.test
    teacher_errors = _errors_of_teacher(taught, split)
    temperatures = fit_temperatures(model, valid.graphs, valid.y)
    valid_readings = task_readings(model, valid.graphs)
    test_readings = task_readings(model, test.graphs)
    coverage = {}
    if valid.smiles:
        coverage = calibrate_readings(
            model,
            unseen_by_task(valid_readings, valid.y, valid.smiles, train.smiles),
            unseen_by_task(test_readings, test.y, test.smiles, train.smiles),
            teacher_errors,
        )
    set_standardisation(model, split.table.standardise)
    for member in members_of(model):
        measure_mean_node(member, train.graphs)
    return Calibration(temperatures, coverage, valid_readings, test_readings)


def fit_temperatures(
    model: LoadedModel, graphs: Sequence[Data], y: FloatArray
) -> dict[str, float | None]:
    """Fit a temperature per task on validation graphs, and fold it into each class read-out.

    Args:
        model: the model, which is changed in place.
        graphs: the encoded validation graphs.
        y: their labels (n, tasks), NaN where one is missing.
    """
    tasks, columns = model.config.tasks, model.config.columns
    temperatures: dict[str, float | None] = dict.fromkeys(task.name for task in tasks)
    if not graphs:
        return temperatures
    outputs = task_outputs(model, graphs)
    for k, (task, labels) in enumerate(zip(tasks, torch.from_numpy(y).T, strict=True)):
        temperatures[task.name] = temperature = task_temperature(task, outputs[k], labels)
        if temperature is not None:
            for member in members_of(model):
                scale_logits(member, columns[k], temperature)
    return temperatures


def _errors_of_teacher(taught: TaughtModel, split: SplitTable) -> dict[str, Unseen]:
    """Return the teacher's predictions for unseen training molecules, for the tasks it taught.

    They stand in for the network, which predicts nearly the same but has seen these molecules.
    They are needed because the molecules held out for calibration are few, from few scaffolds. A
    random split does without them. Its held-out molecules resemble those to come, and errors on
    other scaffolds would make the intervals too wide.
    """
    if taught.teacher is None or split.parts.kind == "random":
        return {}
    return {
        name: unseen for name, unseen in taught.teacher.unseen.items() if taught.shares.get(name)
    }


def task_temperature(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """Fit the temperature of a task's outputs (n, columns) to labels y (n,) (Guo 2017).

    The result is None for a regression, and for fewer than 20 labels or fewer than two classes.
    """
    present = ~y.isnan()
    outputs, y = outputs[present].double(), y[present]
    if task.kind == "regression" or len(y) < MIN_FOR_TEMPERATURE or len(y.unique()) < 2:
        return None
    if task.kind == "binary":
        return fit_temperature(outputs[:, 0], y)
    grid = torch.linspace(math.log(0.25), math.log(4.0), 401).exp().tolist()
    return min(grid, key=lambda t: float(torch.nn.functional.cross_entropy(outputs / t, y.long())))


def fit_temperature(logits: Tensor, active: Tensor) -> float:
    """Find the temperature T for which sigmoid(logits / T) fits the labels best (Guo 2017).

    Logits (G,) and labels `active` (G,) are those of validation graphs. T is searched from 0.25 to
    4 on a fine logarithmic grid.
    """
    grid = torch.linspace(math.log(0.25), math.log(4.0), 401).exp()
    losses = [
        float(
            torch.nn.functional.binary_cross_entropy_with_logits(
                logits.double() / t, active.double()
            )
        )
        for t in grid
    ]
    return float(grid[int(torch.tensor(losses).argmin())])


@torch.no_grad()
def scale_logits(model: Graphormer, columns: slice, temperature: float) -> None:
    """Divide some outputs by `temperature`, by scaling the weights of the linear head."""
    if not isinstance(model.head, torch.nn.Linear):
        raise ValueError("the temperature can only be folded into a linear head.")
    model.head.weight[columns] /= temperature
    model.head.bias[columns] /= temperature
