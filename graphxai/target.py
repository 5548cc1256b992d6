"""What is explained: one number per graph, made of the model's outputs."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphxai.models.graphormer.config import Task, TaskSet

Choice = str | int | tuple[str | int, str | int] | None


@dataclass(frozen=True, eq=False)
class ResolvedTarget:
    """`f_c = sum_o weights_o * outputs_o + offset` for each graph of a batch.

    weights (B, num_outputs), offset (B,); `labels`, one a graph, say in words what f_c is.
    """

    weights: Tensor
    offset: Tensor
    labels: tuple[str, ...]

    def __call__(self, outputs: Tensor) -> Tensor:
        """f_c (B,) of outputs (B, num_outputs)."""
        return (outputs * self.weights).sum(-1) + self.offset


@dataclass(frozen=True)
class Target:
    """A class, a contrast of two classes, or a regression value.

    `choice`: a class by name or number, a pair (a, b) for the difference of their logits, or
    None: the predicted class of a multiclass task, the second ("positive") class of a binary one,
    the value of a regression. A name may also be a task's. `task`: the task's name if it is not
    the first one. A single logit counts as two classes: +logit for the second, -logit for the
    first.
    """

    choice: Choice = None
    task: str | None = None

    @classmethod
    def of(cls, value: object) -> "Target":
        """A Target from what a user writes: None, "active", 3, ("active", "inactive"), ...

        A list of two is a pair too. Raises TypeError for anything else.
        """
        if isinstance(value, Target):
            return value
        if isinstance(value, list):
            value = tuple(value)
        if isinstance(value, tuple) and len(value) == 2:
            return cls((_scalar(value[0]), _scalar(value[1])))
        return cls(None if value is None else _scalar(value))

    def task_in(self, config: TaskSet) -> Task:
        """The task this target belongs to."""
        return self._locate(config)[0]

    def resolve(self, config: TaskSet, outputs: Tensor) -> ResolvedTarget:
        """Turn names into weights over the columns of outputs (B, num_outputs)."""
        task, columns, choice = self._locate(config)
        weights = outputs.new_zeros(outputs.shape)
        offset = outputs.new_zeros(len(outputs))
        if task.kind == "regression":
            if choice is not None:
                raise ValueError(f"task {task.name!r} is a regression and has no classes.")
            weights[:, columns] = task.scale
            return ResolvedTarget(weights, offset + task.offset, (task.name,) * len(outputs))
        if choice is None and task.kind == "multiclass":
            chosen = outputs[:, columns].argmax(-1)
            weights[:, columns] = torch.nn.functional.one_hot(chosen, task.num_outputs).to(weights)
            return ResolvedTarget(weights, offset, tuple(task.classes[c] for c in chosen.tolist()))
        if choice is None:
            choice = 1
        if isinstance(choice, tuple):
            first, second = (_class_index(task, c) for c in choice)
            weights[:, columns] = _class_row(task, first, outputs)
            weights[:, columns] -= _class_row(task, second, outputs)
            if task.kind == "binary":  # +logit - (-logit): one logit is the difference already
                weights /= 2
            label = f"{task.classes[first]} against {task.classes[second]}"
        else:
            index = _class_index(task, choice)
            weights[:, columns] = _class_row(task, index, outputs)
            label = task.classes[index]
        return ResolvedTarget(weights, offset, (label,) * len(outputs))

    def _locate(self, config: TaskSet) -> tuple[Task, slice, Choice]:
        """Task, its columns and the choice within it; a bare name may be a task's or a class's."""
        name, choice = self.task, self.choice
        if name is None and isinstance(choice, str):
            if choice in (task.name for task in config.tasks):
                name, choice = choice, None
            else:
                name = next((t.name for t in config.tasks if choice in t.classes), None)
        task, columns = config.task_columns(name)
        return task, columns, choice


def _scalar(value: object) -> str | int:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(
            f"a target is a class name, a class number, a pair of them or None, not {value!r}."
        )
    return int(value.__index__())


def _class_index(task: Task, choice: str | int) -> int:
    if isinstance(choice, str):
        if choice not in task.classes:
            raise ValueError(
                f"task {task.name!r} has no class {choice!r}; it has {', '.join(task.classes)}."
            )
        return task.classes.index(choice)
    if not 0 <= choice < len(task.classes):
        raise ValueError(
            f"target {choice} is out of range: task {task.name!r} has {len(task.classes)} classes."
        )
    return choice


def _class_row(task: Task, index: int, outputs: Tensor) -> Tensor:
    """Weights of one class over the task's columns."""
    if task.kind == "binary":
        return outputs.new_tensor([1.0 if index == 1 else -1.0])
    row: Sequence[float] = [float(c == index) for c in range(task.num_outputs)]
    return outputs.new_tensor(row)
