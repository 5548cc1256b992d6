"""What is explained: one number per graph, computed from the model's outputs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.tasks import Task, TaskSet

Name = str | int
End = Name | tuple[str, Name]
Choice = Name | tuple[End, End] | None

LISTED = 12  # tasks that an error names


@dataclass(frozen=True, eq=False)
class ResolvedTarget:
    """`f_c = sum_o weights_o * outputs_o + offset` for each graph of a batch.

    weights (B, num_outputs), offset (B,); labels: what f_c is, in words, one per graph; rivals
    (B, num_outputs): True at the other classes if f_c is the logit of one of several.
    """

    weights: Tensor
    offset: Tensor
    labels: tuple[str, ...]
    rivals: Tensor | None = None

    def __call__(self, outputs: Tensor) -> Tensor:
        """Compute f_c (B,) from outputs (B, num_outputs)."""
        return (outputs * self.weights).sum(-1) + self.offset

    def log_odds(self, outputs: Tensor) -> Tensor:
        """`log p / (1 - p)` (B,) for the probability p of the class explained.

        f_c itself where that is a single logit (the log-odds already), a value or a difference.
        """
        explained = self(outputs)
        if self.rivals is None:
            return explained
        return explained - outputs.masked_fill(~self.rivals, -math.inf).logsumexp(-1)


@dataclass(frozen=True)
class Target:
    """A class, a regression value, or the difference of two of these.

    `choice`: a class by name or number, a pair (a, b) for a against b, or None for the default:
    the predicted class of a multiclass task, the second ("positive") class of a binary task, the
    value of a regression. It may also name a task. `task`: the task's name if it is not the first.
    A single logit counts as two classes: +logit for the second, -logit for the first.

    In a model with several tasks, a class whose name alone is ambiguous (another task has it too,
    or it has no letters) is named with its task, "CT_TOX: 0". `choice` takes that, and needs it
    where another task has the class, too.

    The ends of a pair are two classes of one task (f_c is the difference of their logits) or
    belong to two tasks; each end is then a class, a task, or (task, class). Two regressions in the
    same unit are subtracted in that unit (selectivity, if both are pIC50). Otherwise there is no
    common unit, and each end counts as the model outputs it: a class as its logit, a regression as
    its standardised value, `(value - offset) / scale`. The label says which.
    """

    choice: Choice = None
    task: str | None = None

    @classmethod
    def of(cls, value: object) -> "Target":
        """Make a Target from what a user writes: None, "active", 3, ("active", "inactive"), ...

        A list of two is also a pair, and so is ("hERG", ("CYP3A4", "active")). Raises TypeError
        for anything else.
        """
        if isinstance(value, Target):
            return value
        if isinstance(value, tuple | list) and len(value) == 2:
            return cls((_end(value[0]), _end(value[1])))
        return cls(None if value is None else _scalar(value))

    def tasks_in(self, config: TaskSet) -> tuple[Task, ...]:
        """The task this target belongs to, or both tasks of a difference."""
        if isinstance(self.choice, tuple):
            first, second = self._sides(config)
            return (first.task,) if first.task is second.task else (first.task, second.task)
        return (_side_in(config, self.task, self.choice).task,)

    def task_in(self, config: TaskSet) -> Task:
        """The task this target belongs to; of two tasks the first."""
        return self.tasks_in(config)[0]

    def settled(self, config: TaskSet, outputs: Sequence[float]) -> "Target":
        """The same target with its task and class named, given one graph's outputs.

        If the target is the predicted class, that class is filled in.
        """
        if isinstance(self.choice, tuple):
            return self
        side = _side_in(config, self.task, self.choice)
        if side.task.kind == "regression":
            return Target(None, side.task.name)
        index = side.index
        if index is None:
            values = outputs[side.columns]
            index = max(range(len(values)), key=values.__getitem__)
        return Target(side.task.classes[index], side.task.name)

    def resolve(self, config: TaskSet, outputs: Tensor) -> ResolvedTarget:
        """Turn names into weights over the columns of outputs (B, num_outputs)."""
        if isinstance(self.choice, tuple):
            return _difference(config, *self._sides(config), outputs)
        side = _side_in(config, self.task, self.choice)
        task, columns = side.task, side.columns
        offset = outputs.new_zeros(len(outputs))
        if task.kind == "regression":
            weights = task.scale * side.row(outputs)
            return ResolvedTarget(weights, offset + task.offset, (task.name,) * len(outputs))
        if side.index is None:
            chosen = outputs[:, columns].argmax(-1)
            weights = torch.zeros_like(outputs)
            weights[:, columns] = F.one_hot(chosen, task.num_outputs).to(weights)
            names = [_named(config, task, name) for name in task.classes]
            labels = tuple(names[c] for c in chosen.tolist())
            return ResolvedTarget(weights, offset, labels, side.rivals(weights))
        label, weights = _named(config, task, task.classes[side.index]), side.row(outputs)
        return ResolvedTarget(weights, offset, (label,) * len(outputs), side.rivals(weights))

    def _sides(self, config: TaskSet) -> tuple["_Side", "_Side"]:
        """Both ends of a pair, in one task if that task has classes with both names."""
        assert isinstance(self.choice, tuple)
        first, second = self.choice
        for task in config.tasks:
            if task.name == first and second in task.classes:
                raise ValueError(
                    f"target {self.choice!r} is a task and a class of it, not one thing against"
                    f" another: write '{task.name}: {second}' for this class."
                )
        home = self.task
        if home is None:
            names = {end for end in self.choice if isinstance(end, str)}
            home = next((t.name for t in config.tasks if names and names <= {*t.classes}), None)
        sides = _side_in(config, home, first), _side_in(config, home, second)
        for side in sides:
            if side.index is None and side.task.kind == "multiclass":
                raise ValueError(
                    f"task {side.task.name!r} has several classes: name one, as in"
                    f" ({side.task.name!r}, {side.task.classes[0]!r})."
                )
        if sides[0] == sides[1]:
            raise ValueError(f"target {self.choice!r} subtracts something from itself.")
        return sides


@dataclass(frozen=True)
class Decided(Target):
    """The target of one batch, whatever a model's own outputs for it are."""

    resolved: ResolvedTarget | None = None

    def resolve(self, config: TaskSet, outputs: Tensor) -> ResolvedTarget:
        """What was decided."""
        assert self.resolved is not None
        return self.resolved


@dataclass(frozen=True)
class _Side:
    """A class of a task by number; without an index, the task's value or predicted class."""

    task: Task
    columns: slice
    index: int | None

    def row(self, outputs: Tensor) -> Tensor:
        """Weights (B, num_outputs) of the class's logit, or of the regression's output."""
        weights = torch.zeros_like(outputs)
        if self.task.kind == "multiclass":
            assert self.index is not None
            weights[:, self.columns.start + self.index] = 1.0
        else:  # a single logit belongs to the second class, its negative to the first
            weights[:, self.columns] = -1.0 if self.index == 0 else 1.0
        return weights

    def rivals(self, weights: Tensor) -> Tensor | None:
        """Where the task's other classes are (B, num_outputs), given the weights of one of several.

        None in a task with a single output.
        """
        if self.task.num_outputs == 1:
            return None
        others = torch.zeros_like(weights, dtype=torch.bool)
        others[:, self.columns] = weights[:, self.columns] == 0
        return others

    @property
    def name(self) -> str:
        """The class, or the task."""
        return self.task.name if self.index is None else self.task.classes[self.index]

    def label(self, unit: str) -> str:
        """The name with its unit (and for a class its task), for a pair across two tasks."""
        text = unit or "standardised" if self.index is None else f"{self.task.name}, logit"
        return f"{self.name} ({text})"


def _named(config: TaskSet, task: Task, name: str) -> str:
    """A class in words: preceded by its task where its name alone is ambiguous."""
    elsewhere = any(name in other.classes for other in config.tasks if other is not task)
    unclear = elsewhere or not any(character.isalpha() for character in name)
    return f"{task.name}: {name}" if len(config.tasks) > 1 and unclear else name


def _side_in(config: TaskSet, task: str | None, choice: End | None) -> _Side:
    """The task or class that `choice` names, searched in `task`, or in all tasks if None."""
    if isinstance(choice, tuple):
        task, choice = choice
    elif isinstance(choice, str) and task is None:
        if choice in (t.name for t in config.tasks):
            task, choice = choice, None
        else:
            classes = [(t.name, name) for t in config.tasks for name in t.classes]
            full = [pair for pair in classes if ": ".join(pair) == choice]
            short = [pair for pair in classes if pair[1] == choice]
            named = full or short
            if len(named) > 1:
                raise ValueError(
                    f"{len(named)} tasks have a class {choice!r}: name the task too, as in"
                    f" '{': '.join(named[0])}'."
                )
            if not named and len(config.tasks) > 1:
                raise ValueError(
                    f"the model has no class {choice!r} and no task of that name; its tasks are"
                    f" {_offered(config)}."
                )
            task, choice = next(iter(named), (None, choice))
    found, columns = config.task_columns(task)
    if choice is None:
        return _Side(found, columns, 1 if found.kind == "binary" else None)
    return _Side(found, columns, _class_index(found, choice))


def _offered(config: TaskSet) -> str:
    """The tasks of a model with their classes, in words."""
    named = [
        f"{task.name!r} ({', '.join(task.classes)})" if task.classes else repr(task.name)
        for task in config.tasks[:LISTED]
    ]
    more = f" and {len(config.tasks) - LISTED} more" if len(config.tasks) > LISTED else ""
    return f"{', '.join(named)}{more}"


def _difference(config: TaskSet, first: _Side, second: _Side, outputs: Tensor) -> ResolvedTarget:
    """First against second, in one task or in two."""
    weights = first.row(outputs) - second.row(outputs)
    offset = outputs.new_zeros(len(outputs))
    one, other = first.task, second.task
    if one is other:
        if one.kind == "binary":  # +logit - (-logit): the one logit is already the difference
            weights /= 2
        label = " against ".join(_named(config, one, side.name) for side in (first, second))
        return ResolvedTarget(weights, offset, (label,) * len(outputs))
    unit = one.unit if one.kind == other.kind == "regression" and one.unit == other.unit else ""
    if unit:
        weights = one.scale * first.row(outputs) - other.scale * second.row(outputs)
        offset += one.offset - other.offset
    label = f"{first.label(unit)} against {second.label(unit)}"
    return ResolvedTarget(weights, offset, (label,) * len(outputs))


def _end(value: object) -> End:
    """One end of a pair: a name, a number, or (task, class)."""
    if not isinstance(value, tuple | list):
        return _scalar(value)
    if len(value) != 2 or not isinstance(value[0], str):
        raise TypeError(f"an end of a pair is a class, a task, or (task, class), not {value!r}.")
    return value[0], _scalar(value[1])


def _scalar(value: object) -> Name:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(
            f"a target is a class name, a class number, a pair of them or None, not {value!r}."
        )
    return int(value.__index__())


def _class_index(task: Task, choice: Name) -> int:
    if task.kind == "regression":
        raise ValueError(f"task {task.name!r} is a regression and has no classes.")
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
