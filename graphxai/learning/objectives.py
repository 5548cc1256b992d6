"""The training loss (multi-task, missing labels masked) and the scores of a model's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.prediction_metrics import score_task
from graphxai.contract.tasks import Task, TaskKind, TaskSet

SPREAD = 0.5  # of a measurement around its prediction, in standard deviations of the labels


class Objective:
    """The loss over all tasks of a model; labels that are NaN are ignored.

    A binary task has the cross-entropy of a sigmoid, and its labels may be any probability. A
    multi-class task has the cross-entropy of a softmax, and a regression the squared error in
    standardised units. A regression of which only a bound is known, such as ">10", has the censored
    likelihood of a normal error (Tobin 1958) in its place. The result is the mean over the labels
    present, weighted by task.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        weights: Sequence[float] | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        if weights is not None and len(weights) != len(tasks):
            raise ValueError(f"{len(weights)} task weights for {len(tasks)} tasks.")
        self.weights = torch.tensor([1.0] * len(tasks) if weights is None else list(weights))
        self.smoothing = label_smoothing
        self.offset = torch.tensor([task.offset for task in tasks])
        self.scale = torch.tensor([task.scale for task in tasks])
        self.columns = TaskSet(tuple(tasks)).columns
        self.positions = {
            kind: [k for k, task in enumerate(tasks) if task.kind == kind]
            for kind in get_args(TaskKind)
        }

    def __call__(self, outputs: Tensor, y: Tensor, bounds: Tensor | None = None) -> Tensor:
        """Return the loss of outputs (B, num_outputs) for labels y (B, tasks).

        It is 0 if all labels are NaN and there are no bounds (B, tasks, 2), see `GraphBatch`.
        """
        outputs = outputs.float()
        present = ~y.isnan()
        if bounds is not None:
            bounded = bounds.isfinite().any(-1) & ~present  # (B, tasks)
            present = present | bounded
        weights = self.weights.to(y.device) * present  # (B, tasks)
        target = y.nan_to_num()
        losses = torch.zeros_like(target)
        if k := self.positions["binary"]:
            soft = target[:, k] * (1 - self.smoothing) + 0.5 * self.smoothing
            logits = outputs[:, [self.columns[task].start for task in k]]
            losses[:, k] = F.binary_cross_entropy_with_logits(logits, soft, reduction="none")
        if k := self.positions["regression"]:
            standard = (target[:, k] - self.offset.to(y.device)[k]) / self.scale.to(y.device)[k]
            values = outputs[:, [self.columns[task].start for task in k]]
            losses[:, k] = F.mse_loss(values, standard, reduction="none")
            if bounds is not None:
                scale, offset = self.scale.to(y.device)[k], self.offset.to(y.device)[k]
                limits = (bounds[:, k] - offset[:, None]) / scale[:, None]  # (B, k, 2)
                losses[:, k] = torch.where(
                    bounded[:, k], censored_loss(values, limits), losses[:, k]
                )
        for task in self.positions["multiclass"]:
            losses[:, task] = F.cross_entropy(
                outputs[:, self.columns[task]],
                target[:, task].long(),
                reduction="none",
                label_smoothing=self.smoothing,
            )
        return (losses * weights).sum() / weights.sum().clamp(min=1e-12)


def censored_loss(values: Tensor, bounds: Tensor) -> Tensor:
    """Return -2 s^2 log P for values (...) whose truth lies between bounds (..., 2).

    P is the probability that a normal error of standard deviation s = `SPREAD` brings the value
    between the bounds (Tobin 1958). The factor makes it comparable with the squared error: far
    outside, it is the squared distance from the nearer bound.
    """
    # An infinite bound has no gradient; from 30 s within a finite one, the probability is 1.
    low, high = ((bounds[..., k] - values) / SPREAD for k in (0, 1))
    below = torch.special.log_ndtr(low.clamp(min=-30).neg())  # log P(truth > low)
    above = torch.special.log_ndtr(high.clamp(max=30))  # log P(truth < high)
    both = below + above  # the product bounds the probability of an interval
    return -2 * SPREAD**2 * both


def scores(tasks: Sequence[Task], outputs: Tensor, y: Tensor) -> dict[str, float]:
    """Score outputs (G, num_outputs) for labels y (G, tasks), by task name.

    A binary task has the ROC-AUC, a multi-class task the accuracy, and a regression R squared, so
    higher is better. A task without labels, or with a single class, is left out.
    """
    by_task = {}
    for task, columns, labels in zip(tasks, TaskSet(tuple(tasks)).columns, y.T, strict=True):
        present = ~labels.isnan()
        value = score_task(task, outputs[present, columns], labels[present])
        if value is not None:
            by_task[task.name] = value
    return by_task
