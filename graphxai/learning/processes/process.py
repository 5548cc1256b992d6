"""Make a Gaussian process the model of a run over a table, and decide by folds what is worth more.

The process is calibrated on folds that it lacked. A network is judged on one of them, and so are
rows that are held back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp

from graphxai.contract.prediction_metrics import FloatArray, readings
from graphxai.contract.tasks import Task
from graphxai.datasets.as_given import Standardisation
from graphxai.datasets.fingerprints import similarity, structure_counts
from graphxai.learning.calibration import mean_readings
from graphxai.learning.conformal import Unseen, nearest_of_other_folds, nearest_of_others
from graphxai.learning.predicting import task_readings
from graphxai.learning.teachers.choosing import choose_process
from graphxai.learning.teachers.gaussian_process import (
    Process,
    one_hot,
    process_columns,
    process_readings,
)
from graphxai.learning.teachers.stacking import FOLDS
from graphxai.learning.training import LearnedModel, Log, RunSource, fit_networks
from graphxai.models.process import CarriedCounts, KernelProcess, ProcessConfig

RIDGE = 1e-3  # keeps the scale of classes finite that are told apart without an error
Choice = Literal["process", "network", "mean"]
AT_MOST = 3_000  # molecules whose marked part is tried, which takes seconds


def learn_process(source: RunSource, standardise: Standardisation, log: Log) -> LearnedModel:
    """Fit a process to the training part, and read it as the folds say that were left out."""
    train, tasks, seed = source.train, source.tasks, source.settings.seed
    log("fitting a Gaussian process to the training part and without each fold, and two forests")
    fitted, forests = choose_process(
        tasks, train.smiles, train.y, source.folds,
        bounds=train.bounds, seed=seed, show=source.training().show,
    )  # fmt: skip
    of_folds = list(fitted.of_folds.values())  # by task
    outputs_of_folds = [each.columns for each in of_folds]
    similarity = nearest_of_other_folds(train.smiles, source.folds)
    read = [
        output_scale(task, outputs, y)
        for task, outputs, y in zip(tasks, outputs_of_folds, train.y.T, strict=True)
    ]
    scale = np.concatenate([np.full(len(shift), factor) for factor, shift in read])
    shift = np.concatenate([shift for _, shift in read])
    process, counts = fitted.process, fitted.carriers
    is_exact = len(counts[0]) == len(train.smiles)
    noise = tuple(each.noise for each in of_folds) if is_exact else ()
    config = ProcessConfig(tasks, len(counts[0]), standardise, noise)
    carried = CarriedCounts.of(counts)

    def model_of(columns: Sequence[Process]) -> KernelProcess:
        weights = np.hstack([each.weights for each in columns])
        means = np.concatenate([each.means for each in columns])
        numbers = torch.from_numpy(weights * scale), torch.from_numpy(means * scale + shift)
        return KernelProcess(config, carried, *numbers).eval()

    model = model_of([process])
    unseen = [
        Unseen(readings(task, torch.from_numpy(outputs * a + b)), y.copy(), similarity)
        for task, outputs, (a, b), y in zip(tasks, outputs_of_folds, read, train.y.T, strict=True)
    ]
    nearest, unknown = nearest_of_others(train.smiles), np.full(len(train.smiles), np.nan)
    left_out = [
        Unseen(unknown if task.classes else process.left_out[:, columns.start], y, nearest)
        for task, columns, y in zip(tasks, model.config.columns, train.y.T, strict=True)
    ]
    models = [
        partial(model_of, [each.processes[fold] for each in of_folds])
        for fold in range(len(source.folds))
    ]
    return LearnedModel(
        model, baselines=forests, unseen=unseen, left_out=left_out, of_folds=models,
        by_folds=[each.readings for each in unseen], process=fitted,
    )  # fmt: skip


def output_scale(task: Task, columns: FloatArray, y: FloatArray) -> tuple[float, FloatArray]:
    """Return the factor and the shifts (columns,) that turn a process's columns into outputs.

    Values are standardised as the task says. Classes were learned as 0 and 1; their logits are
    `factor * column + shift`, with the largest likelihood for molecules that were not learned from
    (Platt 1999).

    Args:
        task: the task.
        columns: what a process predicts without each molecule (n, columns).
        y: the labels (n,), NaN where one is missing.
    """
    if task.kind == "regression":
        return 1 / task.scale, np.array([-task.offset / task.scale])
    known = ~np.isnan(y) & ~np.isnan(columns).any(1)
    x, labels = columns[known], y[known].astype(int)

    def loss(parameters: FloatArray) -> float:
        logits = np.exp(parameters[0]) * x + parameters[1:]
        if task.kind == "binary":
            logits = np.hstack([np.zeros_like(logits), logits])
        picked = logits[np.arange(len(labels)), labels]
        return float((logsumexp(logits, axis=1) - picked).sum() + RIDGE * (parameters**2).sum())

    best = minimize(loss, np.zeros(1 + columns.shape[1])).x
    return float(np.exp(best[0])), best[1:]


@dataclass(frozen=True, eq=False)
class Verdict:
    """How a process and a network err on one fold that neither of them learned from.

    Attributes:
        process, network, mean: the squared errors (n,) of both, and of the mean of their outputs,
            for each molecule: of values in units of their variance, and of probabilities.
        seconds: how long the networks that are still to be trained would take.
    """

    process: FloatArray
    network: FloatArray
    mean: FloatArray
    seconds: float

    @property
    def _gains(self) -> FloatArray:
        """How much less the mean errs than the better of the two (n,)."""
        return min(self.process, self.network, key=lambda each: float(each.mean())) - self.mean

    @property
    def choice(self) -> Choice:
        """The mean if it is better than both by more than one standard error.

        Otherwise the network, if it is better than the process or within one standard error of it.
        """
        if self._gains.mean() > _error_of_mean(self._gains):
            return "mean"
        difference = self.network.mean() - self.process.mean()
        return "network" if difference <= _error_of_mean(self.network - self.process) else "process"

    def __str__(self) -> str:
        process, network, mean, gain = (
            float(each.mean()) for each in (self.process, self.network, self.mean, self._gains)
        )
        said = {
            "network": "the network is trained, as it is better or within one standard error",
            "mean": f"the mean of both, with {mean:.3f}, is better by {gain:.3f} +-"
            f" {_error_of_mean(self._gains):.3f}, so the network is trained and both are kept",
            "process": f"the process stays the model, which saves about {self.seconds:.0f} s",
        }[self.choice]
        return (
            f"mean squared errors on one fold of {len(self.mean):,} training molecules that neither"
            f" learned from: process {process:.3f}, network {network:.3f} (difference"
            f" {network - process:+.3f} +- {_error_of_mean(self.network - self.process):.3f}):"
            f" {said}"
        )


def _error_of_mean(values: FloatArray) -> float:
    return float(values.std(ddof=1)) / len(values) ** 0.5


def worth_of_network(
    source: RunSource, unseen: Sequence[Unseen], out: Path, log: Log
) -> Verdict | None:
    """Train the network of the first fold, and compare it with a process on this fold.

    The network that a run ends with also learns from a teacher, so this one is rather worse.

    Args:
        source: what is learned from. The network is kept in `out`, where a run goes on with it.
        unseen: by task, what the process predicts for each training molecule without its fold.
        out: the folder of the network's run.
        log: called with a line of text at each stage.

    Returns:
        The verdict; None if the training part has no folds, or its first one no label.
    """
    if not source.folds:
        return None
    fold, begun = source.folds[0], time.monotonic()
    (fitted,) = fit_networks(source, out, log, networks=1)
    seconds = time.monotonic() - begun
    by_network = task_readings(fitted.model, [source.train.graphs[k] for k in fold])
    by_process = [each.readings[fold] for each in unseen]
    together = [
        mean_readings(task, *both)
        for task, *both in zip(source.tasks, by_process, by_network, strict=True)
    ]
    errors: list[FloatArray] = []  # of the process, the network and the mean, (n,) each
    for by_model in (by_process, by_network, together):
        by_task = zip(source.tasks, by_model, unseen, strict=True)
        columns = [squared_errors(task, values, each.y[fold]) for task, values, each in by_task]
        table = np.stack(columns, axis=1)
        known = ~np.isnan(table).all(axis=1)
        errors.append(np.nanmean(table[known], axis=1))
    process, network, mean = errors
    more = len(source.folds) - 1 + source.settings.ensemble
    return Verdict(process, network, mean, seconds * more) if len(process) > 1 else None


def squared_errors(task: Task, readings: FloatArray, y: FloatArray) -> FloatArray:
    """Return the squared error (n,) of readings (n,) or (n, classes), NaN without a label y (n,).

    Values are in units of their standard deviation. For classes it is the Brier score.
    """
    if task.kind == "multiclass":
        return ((readings - one_hot(y, len(task.classes))) ** 2).sum(axis=1)
    return ((readings - y) / task.scale) ** 2  # 1 for classes


def cost_of_marked(source: RunSource) -> str:
    """Say how many molecules a column marks as valid, and what it costs not to learn from them.

    Processes predict each fold of the training part from the other folds, once with the marked
    molecules and once without. The result is "" if none is marked.
    """
    train, valid, tasks = source.train, source.valid, dict(enumerate(source.tasks))
    if source.parts.kind != "column" or not valid.smiles:
        return ""
    count, n = len(valid.smiles), len(train.smiles)
    said = (
        f"{count:,} molecules are marked valid and never learned from ({count / (count + n):.0%} of"
        " those that are not tested): they only calibrate intervals and probabilities"
    )
    if not 20 <= n <= AT_MOST - count:
        return said
    counts = structure_counts([*train.smiles, *valid.smiles])
    kernel, every = similarity(counts, counts), np.arange(n + count)
    labels = process_columns(tasks, np.concatenate([train.y, valid.y]))
    errors = []
    for with_valid in (False, True):
        predicted = np.full(labels.shape, np.nan)
        for first in range(FOLDS):
            fold, rest = np.arange(first, n, FOLDS), labels.copy()
            rest[fold] = np.nan
            if not with_valid:
                rest[n:] = np.nan
            process = Process.fit(kernel, every, rest, left_out=False)
            predicted[fold] = process.predict(kernel[fold])
        of_tasks = process_readings(tasks, predicted[:n]).items()
        each = [squared_errors(tasks[k], values, train.y[:, k]) for k, values in of_tasks]
        errors.append(float(np.sqrt(np.nanmean(np.concatenate(each)))))
    without, together = errors
    return (
        f"{said}. A process errs by {without:.3f} without them and by {together:.3f} with them, in"
        f" standard deviations, on {FOLDS} random folds of the training part"
    )
