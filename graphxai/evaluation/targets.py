"""Decide which output an evaluation tracks: one target for all graphs, or a class of each graph.

By default it is the true class of each graph where labels are given, and otherwise the predicted
one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import torch

from graphxai.contract.target import Target
from graphxai.contract.tasks import Task
from graphxai.explanation.compute.models import Model
from graphxai.explanation.compute.predicting import predictions_or_errors

from .measure import Item
from .store import Key

ClassSource: TypeAlias = Literal["true", "predicted"]
Labels: TypeAlias = Sequence[Any] | Mapping[Key, Any]  # by position or by key
Unlabelled: TypeAlias = list[tuple[Key, str]]  # graphs without a label, with the reason


@dataclass(frozen=True)
class TrackedOutput:
    """The output that an evaluation tracks.

    Args:
        target: the output of every graph. If there is a `class_source`, only its task counts.
        class_source: "true" tracks each graph's true class, "predicted" its predicted class.
    """

    target: Target
    class_source: ClassSource | None = None

    @property
    def text(self) -> str | None:
        """The output as text, for the settings of a run."""
        choice = self.class_source or self.target.choice
        parts = [self.target.task, None if choice is None else str(choice)]
        return ": ".join(part for part in parts if part) or None


def tracked_output(model: Model, target: Any, labels: Labels | None) -> TrackedOutput:
    """Read which output to track: a target as for `explain`, or "true" or "predicted".

    If the model has a class called "true" or "predicted", the class is meant. Without a choice, a
    classifier's true class is tracked if there are labels, and otherwise its predicted class.

    Raises ValueError if the target has several classes, or is unknown.
    """
    wanted = Target.of(target)
    tasks = {task.name for task in model.config.tasks}
    classes = {name for task in model.config.tasks for name in task.classes}
    class_source = next(
        (word for word in get_args(ClassSource) if wanted.choice == word not in classes | tasks),
        None,
    )
    if class_source is not None:
        wanted = replace(wanted, choice=None)
    elif wanted.choice in tasks - classes:
        wanted = Target(None, str(wanted.choice))
    label = wanted.resolve(model.config, torch.zeros(1, model.config.num_outputs)).labels[0]
    if isinstance(wanted.choice, tuple):
        raise ValueError(f"an evaluation tracks a single class, not {label!r}.")
    if wanted.task_in(model.config).kind == "regression":
        class_source = None
    elif wanted.choice is None and class_source is None:
        class_source = "predicted" if labels is None else "true"
    return TrackedOutput(wanted, class_source)


def targets_by_graph(
    model: Model,
    prepared: Sequence[Item],
    tracked: TrackedOutput,
    labels: Mapping[Key, Any] | None,
) -> tuple[dict[Key, Target], Unlabelled]:
    """Return the target of each graph, and the graphs that have none.

    Args:
        labels: the names or numbers of the true classes by key, for "true".

    Raises ValueError if labels are missing or name an unknown class.
    """
    task = tracked.target.task_in(model.config)
    if tracked.class_source == "true" and labels is None:
        raise ValueError("target 'true' needs the labels of the graphs.")
    if tracked.class_source is None:
        return {key: tracked.target for key, _ in prepared}, []
    if tracked.class_source == "predicted":
        classes = _predicted(model, prepared, task)
    else:
        classes = {key: class_name(task, (labels or {}).get(key)) for key, _ in prepared}
    targets = {key: Target(name, task.name) for key, name in classes.items() if name is not None}
    missing = [key for key, name in classes.items() if name is None]
    return targets, [(key, f"no label of task {task.name!r}.") for key in missing]


def _predicted(model: Model, prepared: Sequence[Item], task: Task) -> dict[Key, str | None]:
    """Return the class that the model predicts for each graph."""
    place = [t.name for t in model.config.tasks].index(task.name)
    labels = {
        key: predictions[place].label
        for key, predictions in predictions_or_errors(model, prepared)
        if not isinstance(predictions, Exception)
    }
    return {key: labels.get(key) for key, _ in prepared}


def class_name(task: Task, label: Any) -> str | None:
    """Return the class name for a label (a name or a number), or None for None or NaN."""
    if label is None or label != label:
        return None
    if isinstance(label, str):
        if label not in task.classes:
            raise ValueError(
                f"task {task.name!r} has no class {label!r}; it has {', '.join(task.classes)}."
            )
        return label
    if f"{label:g}" in task.classes:  # classes named by numbers
        return f"{label:g}"
    if float(label) != int(label) or not 0 <= int(label) < len(task.classes):
        raise ValueError(f"label {label!r} is not a class number of task {task.name!r}.")
    return task.classes[int(label)]


def label_number(task: Task, label: Any) -> float | None:
    """Return a label as a value or the number of its class, or None if it is missing."""
    if task.kind == "regression":
        return None if label is None or label != label else float(label)
    name = class_name(task, label)
    return None if name is None else float(task.classes.index(name))
