"""Make a Gaussian process the model of a run over a table, calibrated on folds that it lacked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp

from graphxai.contract.prediction_metrics import FloatArray, readings
from graphxai.contract.tasks import Task
from graphxai.datasets.as_given import Standardisation
from graphxai.learning.conformal import Unseen, nearest_of_other_folds, nearest_of_others
from graphxai.learning.teachers.choosing import choose_process
from graphxai.learning.teachers.gaussian_process import Process
from graphxai.learning.training import LearnedModel, Log, RunSource
from graphxai.models.process import CarriedCounts, KernelProcess, ProcessConfig

RIDGE = 1e-3  # keeps the scale of classes finite that are told apart without an error


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
