"""The target of an explanation: one number per graph, computed from the model's outputs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.tasks import Task, TaskSet
from graphxai.runtime.options import did_you_mean

Name = str | int
End = Name | tuple[str, Name]
Choice = Name | tuple[End, End] | None
ValueOfOutputs = Callable[[Tensor], Tensor]  # one number for each graph (B,) from (B, num_outputs)

LISTED = 12  # how many tasks an error names


@dataclass(frozen=True, eq=False)
class ResolvedTarget:
    """The target as a formula, `f_c = sum_o weights_o * outputs_o + offset`, for a batch of graphs.

    Args:
        weights: the weight of each output (B, num_outputs).
        offset: the number added to the sum (B,).
        labels: f_c as text, for each graph.
        rivals (B, num_outputs): True at the other classes if f_c is the logit of one of several
            classes.
        is_class: whether f_c is the logit of a class.
    """

    weights: Tensor
    offset: Tensor
    labels: tuple[str, ...]
    rivals: Tensor | None = None
    is_class: bool = False

    def __call__(self, outputs: Tensor) -> Tensor:
        """Compute f_c (B,) from outputs (B, num_outputs)."""
        return (outputs * self.weights).sum(-1) + self.offset

    def log_odds(self, outputs: Tensor) -> Tensor:
        """Return `log p / (1 - p)` (B,) for the probability p of the explained class.

        A single logit is the log-odds already, so it is returned unchanged. So is the value of a
        regression, and a difference.
        """
        explained = self(outputs)
        if self.rivals is None:
            return explained
        return explained - outputs.masked_fill(~self.rivals, -math.inf).logsumexp(-1)

    def probability(self, outputs: Tensor) -> Tensor:
        """Return the probability (B,) of the explained class, or f_c if it belongs to no class."""
        log_odds = self.log_odds(outputs)
        return torch.sigmoid(log_odds) if self.is_class else log_odds


@dataclass(frozen=True)
class Target:
    """A class, a regression value, or the difference of two of these.

    In a model with several tasks, the name of a class may be ambiguous, because another task has
    the same class or because the name has no letters. Such a class is labelled with its task, as in
    "CT_TOX: 0". `choice` accepts this form, and needs it where two tasks share a class.

    A pair within one task consists of two classes, and f_c is the difference of their logits. In a
    pair across two tasks, each end is a class, a task, or (task, class). Two regressions in the
    same unit, or both without one, are subtracted as they are, which is the selectivity if both are
    pIC50. Otherwise there is no common unit. A class then counts as its logit, and a regression as
    its standardised value, `(value - offset) / scale`. The label says which.

    Args:
        choice: a class by name or number, a pair (a, b) for a against b, or None for the
            default: the predicted class of a multiclass task, the second ("positive") class of
            a binary task, the value of a regression. It may also name a task.
        task: the task's name if it is not the first. A single logit counts as two classes:
            +logit for the second, -logit for the first.
    """

    choice: Choice = None
    task: str | None = None

    @classmethod
    def of(cls, value: object) -> "Target":
        """Make a Target from what a user writes, such as "active", 3 or ("active", "inactive").

        None is the default target. A list of two is also a pair, and so is
        ("hERG", ("CYP3A4", "active")). Raises TypeError for anything else.
        """
        if isinstance(value, Target):
            return value
        if isinstance(value, tuple | list) and len(value) == 2:
            return cls((_end(value[0]), _end(value[1])))
        return cls(None if value is None else _scalar(value))

    def tasks_in(self, config: TaskSet) -> tuple[Task, ...]:
        """Return the task that this target belongs to, or both tasks of a difference."""
        if isinstance(self.choice, tuple):
            first, second = self._ends(config)
            return (first.task,) if first.task is second.task else (first.task, second.task)
        return (_task_or_class(config, self.task, self.choice).task,)

    def task_in(self, config: TaskSet) -> Task:
        """Return the task that this target belongs to, or the first of two for a difference."""
        return self.tasks_in(config)[0]

    def settled(self, config: TaskSet, outputs: Sequence[float]) -> "Target":
        """Return this target with its task and class named, given one graph's outputs.

        If the target is the predicted class, that class is filled in.
        """
        if isinstance(self.choice, tuple):
            return self
        chosen = _task_or_class(config, self.task, self.choice)
        if chosen.task.kind == "regression":
            return Target(None, chosen.task.name)
        index = chosen.index
        if index is None:
            values = outputs[chosen.columns]
            index = max(range(len(values)), key=values.__getitem__)
        return Target(chosen.task.classes[index], chosen.task.name)

    def resolve(self, config: TaskSet, outputs: Tensor) -> ResolvedTarget:
        """Turn the target into weights for the outputs (B, num_outputs), given these outputs."""
        if isinstance(self.choice, tuple):
            return _difference(config, *self._ends(config), outputs)
        chosen = _task_or_class(config, self.task, self.choice)
        task, columns = chosen.task, chosen.columns
        offset = outputs.new_zeros(len(outputs))
        if task.kind == "regression":
            weights = task.scale * chosen.row(outputs)
            return ResolvedTarget(weights, offset + task.offset, (task.name,) * len(outputs))
        if chosen.index is None:
            predicted = outputs[:, columns].argmax(-1)
            weights = torch.zeros_like(outputs)
            weights[:, columns] = F.one_hot(predicted, task.num_outputs).to(weights)
            names = [_class_label(config, task, name) for name in task.classes]
            labels = tuple(names[c] for c in predicted.tolist())
        else:
            weights = chosen.row(outputs)
            labels = (_class_label(config, task, task.classes[chosen.index]),) * len(outputs)
        return ResolvedTarget(weights, offset, labels, chosen.rivals(weights), is_class=True)

    def _ends(self, config: TaskSet) -> tuple["_TaskOrClass", "_TaskOrClass"]:
        """Return both ends of a pair, from one task if it has classes with both names."""
        assert isinstance(self.choice, tuple)
        first, second = self.choice
        for task in config.tasks:
            if task.name == first and second in task.classes:
                raise ValueError(
                    f"target {self.choice!r} is a task and one of its classes, not a difference:"
                    f" write '{task.name}: {second}' for this class."
                )
        home = self.task
        if home is None:
            names = {end for end in self.choice if isinstance(end, str)}
            home = next((t.name for t in config.tasks if names and names <= {*t.classes}), None)
        ends = _task_or_class(config, home, first), _task_or_class(config, home, second)
        for end in ends:
            if end.index is None and end.task.kind == "multiclass":
                raise ValueError(
                    f"task {end.task.name!r} has several classes: name one, as in"
                    f" ({end.task.name!r}, {end.task.classes[0]!r})."
                )
        if ends[0] == ends[1]:
            raise ValueError(f"target {self.choice!r} subtracts something from itself.")
        return ends


@dataclass(frozen=True)
class DecidedTarget(Target):
    """A target that was resolved in advance for one batch, and ignores the model's outputs."""

    resolved: ResolvedTarget | None = None

    def resolve(self, config: TaskSet, outputs: Tensor) -> ResolvedTarget:
        """Return the target that was resolved in advance."""
        assert self.resolved is not None
        return self.resolved


@dataclass(frozen=True)
class TargetOfNode(Target):
    """The target at one of several nodes, whose outputs follow each other (B, k * num_outputs).

    Args:
        place: the place of the node among the k nodes.
    """

    place: int = 0

    def columns(self, config: TaskSet) -> slice:
        """Return where the outputs of the node are."""
        return slice(self.place * config.num_outputs, (self.place + 1) * config.num_outputs)

    def resolve(self, config: TaskSet, outputs: Tensor) -> ResolvedTarget:
        """Turn the target into weights for the outputs of all nodes."""
        columns = self.columns(config)
        resolved = super().resolve(config, outputs[:, columns])
        sides = (columns.start, outputs.shape[1] - columns.stop)
        rivals = None if resolved.rivals is None else F.pad(resolved.rivals, sides)
        return replace(resolved, weights=F.pad(resolved.weights, sides), rivals=rivals)


@dataclass(frozen=True)
class _TaskOrClass:
    """A class of a task, or the task as a whole.

    Args:
        columns: its columns in the model's outputs.
        index: the number of the class. If it is None, the target is the regression's value or the
            predicted class.
    """

    task: Task
    columns: slice
    index: int | None

    def row(self, outputs: Tensor) -> Tensor:
        """Return the weights (B, num_outputs) of the class's logit or the regression's output."""
        weights = torch.zeros_like(outputs)
        if self.task.kind == "multiclass":
            assert self.index is not None
            weights[:, self.columns.start + self.index] = 1.0
        else:  # a single logit belongs to the second class, its negative to the first
            weights[:, self.columns] = -1.0 if self.index == 0 else 1.0
        return weights

    def rivals(self, weights: Tensor) -> Tensor | None:
        """Return True at the task's other classes (B, num_outputs), given a class's weights.

        Return None for a task with a single output, which has no other class.
        """
        if self.task.num_outputs == 1:
            return None
        others = torch.zeros_like(weights, dtype=torch.bool)
        others[:, self.columns] = weights[:, self.columns] == 0
        return others

    @property
    def name(self) -> str:
        """The name of the class, or the name of the task if no class is chosen."""
        return self.task.name if self.index is None else self.task.classes[self.index]

    def label(self, unit: str) -> str:
        """Return the name of a regression with its unit, or of a class with its task."""
        text = unit if self.index is None else f"{self.task.name}, logit"
        return f"{self.name} ({text})" if text else self.name


def _class_label(config: TaskSet, task: Task, name: str) -> str:
    """Return a class's name, with its task's name in front if the class alone is ambiguous."""
    is_shared = any(name in other.classes for other in config.tasks if other is not task)
    unclear = is_shared or not any(character.isalpha() for character in name)
    return f"{task.name}: {name}" if len(config.tasks) > 1 and unclear else name


def _task_or_class(config: TaskSet, task: str | None, choice: End | None) -> _TaskOrClass:
    """Return the task or class that `choice` names, in this task, or in any if `task` is None."""
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
                names = [name for task in config.tasks for name in (task.name, *task.classes)]
                raise ValueError(
                    f"the model has no class {choice!r} and no task of that name; its tasks are"
                    f" {_list_tasks(config)}.{did_you_mean(str(choice), names)}"
                )
            task, choice = next(iter(named), (None, choice))
    chosen, columns = config.task_columns(task)
    if choice is None:
        return _TaskOrClass(chosen, columns, 1 if chosen.kind == "binary" else None)
    return _TaskOrClass(chosen, columns, _class_index(chosen, choice))


def _list_tasks(config: TaskSet) -> str:
    """Return the tasks of a model with their classes, as text."""
    named = [
        f"{task.name!r} ({', '.join(task.classes)})" if task.classes else repr(task.name)
        for task in config.tasks[:LISTED]
    ]
    more = f" and {len(config.tasks) - LISTED} more" if len(config.tasks) > LISTED else ""
    return f"{', '.join(named)}{more}"


def _difference(
    config: TaskSet, first: _TaskOrClass, second: _TaskOrClass, outputs: Tensor
) -> ResolvedTarget:
    """Return the target of the first end against the second, in one task or in two."""
    weights = first.row(outputs) - second.row(outputs)
    offset = outputs.new_zeros(len(outputs))
    task, other = first.task, second.task
    if task is other:
        if task.kind == "binary":  # the single logit is already the difference
            weights /= 2
        label = " against ".join(_class_label(config, task, end.name) for end in (first, second))
        return ResolvedTarget(weights, offset, (label,) * len(outputs))
    alike = task.kind == other.kind == "regression" and task.unit == other.unit
    unit = task.unit if alike else "standardised"
    if alike:
        weights = task.scale * first.row(outputs) - other.scale * second.row(outputs)
        offset += task.offset - other.offset
    label = f"{first.label(unit)} against {second.label(unit)}"
    return ResolvedTarget(weights, offset, (label,) * len(outputs))


def _end(value: object) -> End:
    """Read an end of a pair, which is a name, a number, or (task, class)."""
    if not isinstance(value, tuple | list):
        return _scalar(value)
    if len(value) != 2 or not isinstance(value[0], str):
        raise TypeError(f"an end of a pair is a class, a task, or (task, class), not {value!r}.")
    return value[0], _scalar(value[1])


def _scalar(value: object) -> Name:
    """Return a name or a number unchanged, or raise a TypeError for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(
            f"a target is a class name, a class number, a pair of them or None, not {value!r}."
        )
    return int(value.__index__())


def _class_index(task: Task, choice: Name) -> int:
    """Return the number of a class, or raise a ValueError that lists the classes."""
    if task.kind == "regression":
        raise ValueError(f"task {task.name!r} is a regression and has no classes.")
    if isinstance(choice, str):
        if choice not in task.classes:
            raise ValueError(
                f"task {task.name!r} has no class {choice!r}; it has {', '.join(task.classes)}."
                f"{did_you_mean(choice, task.classes)}"
            )
        return task.classes.index(choice)
    if not 0 <= choice < len(task.classes):
        raise ValueError(
            f"target {choice} is out of range: task {task.name!r} has {len(task.classes)} classes."
        )
    return choice
