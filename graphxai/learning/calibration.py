"""Calibrate a model on predictions for molecules that were not learned from.

It gets temperatures (Guo 2017), intervals and the mean node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.prediction_metrics import FloatArray
from graphxai.contract.tasks import Task
from graphxai.learning.conformal import Unseen, calibrate_readings, unseen_in
from graphxai.learning.predicting import encode_all
from graphxai.learning.splitting import Source
from graphxai.learning.training import LearnedModel
from graphxai.models.graphormer import Graphormer, LoadedModel, measure_mean_node, members_of
from graphxai.models.process import SummedModel

MIN_FOR_TEMPERATURE = 20  # labels
TEMPERATURES = torch.linspace(math.log(0.25), math.log(4.0), 401).exp()  # that are tried
LEAST = 1e-6  # the least probability that is told from 0


@dataclass(frozen=True, eq=False)
class Calibration:
    """How a model was calibrated, and what it then says about the molecules held out.

    Attributes:
        temperatures: by task, the number by which its logits are divided; None if there is none.
        coverage: by task, how often intervals or sets of classes hold on the test part.
        test_readings: by task, probabilities and values for the test part.
        unseen: by task, what the calibrated model stands for on the training part, from what had
            not learned from each molecule; empty if nothing says that.
    """

    temperatures: dict[str, float | None]
    coverage: dict[str, Any]
    test_readings: list[FloatArray]
    unseen: list[Unseen]


def calibrate(learned: LearnedModel, source: Source) -> Calibration:
    """Calibrate a model in place, and measure its intervals on the test part.

    A model that had a teacher is calibrated on the whole training part, by what was predicted for
    each fold without having learned from it. A validation part counts as well, if there is one.
    Without a teacher there is nothing else. The model also stores the mean node of the training
    part.
    """
    model = learned.model

    def in_validation() -> list[Unseen]:
        return unseen_in(model, source, source.valid) if source.parts.valid else []

    # What never saw a fold of the training part predicts what the network would have been taught.
    # What the network makes of that differs as on recombined molecules that were kept back, so
    # these differences are dealt to the predictions.
    unseen = []
    for task, each in zip(source.tasks, learned.unseen, strict=False):
        if task.name in learned.kept_back:
            predicted, aim = (_logits(task, values) for values in learned.kept_back[task.name])
            dealt = torch.arange(len(each.readings)) % len(predicted)
            logits = _logits(task, each.readings) + (predicted - aim)[dealt]
            each = replace(each, readings=_readings(task, logits))
        unseen.append(each)
    held_out = unseen or in_validation()
    temperatures = fit_temperatures(model, held_out)
    unseen = [
        replace(each, readings=_readings(task, _logits(task, each.readings) / temperature))
        if (temperature := temperatures[task.name])
        else each
        for task, each in zip(source.tasks, unseen, strict=False)
    ]
    of_valid = in_validation()  # with the temperatures
    tested = unseen_in(model, source, source.test)
    coverage = {}
    if held_out:
        names = [task.name for task in source.tasks]
        more = {
            name: [*of_valid[k : k + 1], *learned.left_out[k : k + 1]] if unseen else []
            for k, name in enumerate(names)
        }
        coverage = calibrate_readings(model, unseen or of_valid, tested, more)
    for member in members_of(model):
        if not hasattr(member, "mean_node"):
            continue
        measure_mean_node(member, encode_all(source.train.graphs, member.config))
    return Calibration(temperatures, coverage, [each.readings for each in tested], unseen)


def fit_temperatures(model: LoadedModel, unseen: Sequence[Unseen]) -> dict[str, float | None]:
    """Fit a temperature per task, and fold it into each class read-out.

    Args:
        model: the model, which is changed in place.
        unseen: by task, predictions for molecules that were not learned from; empty for none.
    """
    tasks, columns = model.config.tasks, model.config.columns
    temperatures: dict[str, float | None] = dict.fromkeys(task.name for task in tasks)
    if isinstance(model, SummedModel):
        return temperatures  # its two models were calibrated
    for task, part, each in zip(tasks, columns, unseen, strict=False):
        labels = torch.from_numpy(each.y)
        temperature = task_temperature(task, _logits(task, each.readings), labels)
        temperatures[task.name] = temperature
        if temperature is not None:
            for member in members_of(model):
                scale_logits(member, part, temperature)
    return temperatures


def mean_readings(task: Task, a: FloatArray, b: FloatArray) -> FloatArray:
    """Return the readings of the mean of two models' outputs."""
    return _readings(task, (_logits(task, a) + _logits(task, b)) / 2)


def _readings(task: Task, logits: Tensor) -> FloatArray:
    """Return the readings that belong to what `_logits` returns."""
    if task.kind == "multiclass":
        return logits.softmax(1).numpy()
    return (logits[:, 0].sigmoid() if task.kind == "binary" else logits[:, 0]).numpy()


def _logits(task: Task, readings: FloatArray) -> Tensor:
    """Return the outputs (n, columns) that belong to a task's readings, up to a constant."""
    if task.kind == "regression":
        return torch.from_numpy(readings)[:, None]
    probabilities = torch.from_numpy(readings).clip(LEAST, 1 - LEAST)
    return probabilities.log() if task.kind == "multiclass" else probabilities.logit()[:, None]


def task_temperature(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """Fit the temperature of a task's outputs (n, columns) to labels y (n,) (Guo 2017).

    The result is None for a regression, and for fewer than 20 labels or fewer than two classes.
    """
    present = ~y.isnan()
    outputs, y = outputs[present].double(), y[present]
    if task.kind == "regression" or len(y) < MIN_FOR_TEMPERATURE or len(y.unique()) < 2:
        return None
    if task.kind == "binary":
        return best_temperature(
            lambda t: F.binary_cross_entropy_with_logits(outputs[:, 0] / t, y.double())
        )
    return best_temperature(lambda t: F.cross_entropy(outputs / t, y.long()))


def best_temperature(loss: Callable[[float], Tensor], grid: Tensor = TEMPERATURES) -> float:
    """Return the temperature of a grid with the least loss."""
    return min(grid.tolist(), key=lambda t: float(loss(t)))


@torch.no_grad()
def scale_logits(model: Graphormer, columns: slice, temperature: float) -> None:
    """Divide some outputs by `temperature`, by scaling the weights of the linear head."""
    if (divide := getattr(model, "divide_outputs", None)) is not None:
        divide(columns, temperature)
        return
    if not isinstance(model.head, torch.nn.Linear):
        raise ValueError("the temperature can only be folded into a linear head.")
    model.head.weight[columns] /= temperature
    model.head.bias[columns] /= temperature
