"""What a model predicts: its tasks, and which output columns belong to each."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, get_args

from graphxai.runtime.options import did_you_mean

TaskKind = Literal["binary", "multiclass", "regression"]


@dataclass(frozen=True)
class Task:
    """One property that the model predicts.

    A "binary" task has one logit, for the second class against the first. A "multiclass" task has
    one logit per class. A "regression" has one value, reported in `unit` as
    `offset + scale * output`.
    """

    name: str
    kind: TaskKind
    classes: tuple[str, ...] = ()
    unit: str = ""
    offset: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ValueError(f"a task's name must be non-empty text, not {self.name!r}.")
        if not isinstance(self.unit, str):
            raise ValueError(f"task {self.name!r}: unit must be text, not {self.unit!r}.")
        if isinstance(self.classes, str) or not all(isinstance(c, str) for c in self.classes):
            raise ValueError(f"task {self.name!r}: classes must be a list of names.")
        object.__setattr__(self, "classes", tuple(self.classes))
        if self.kind not in (kinds := get_args(TaskKind)):
            raise ValueError(
                f"task {self.name!r}: there is no kind {self.kind!r}; the kinds are"
                f" {', '.join(map(repr, kinds))}."
            )
        if self.kind == "regression" and self.classes:
            raise ValueError(f"task {self.name!r}: a regression has no classes: leave them out.")
        if self.kind == "binary" and len(self.classes) != 2:
            raise ValueError(f"task {self.name!r}: a binary task has two classes.")
        for name in ("offset", "scale"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not math.isfinite(value):
                raise ValueError(f"task {self.name!r}: {name} is {value!r}, not a finite number.")
        if self.scale <= 0:
            raise ValueError(f"task {self.name!r}: scale must be positive, not {self.scale}.")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError(f"task {self.name!r}: two classes have the same name.")
        if self.kind == "multiclass" and len(self.classes) < 2:
            raise ValueError(f"task {self.name!r}: a multiclass task needs two classes or more.")

    @property
    def num_outputs(self) -> int:
        """The number of the model's output columns that belong to this task."""
        return len(self.classes) if self.kind == "multiclass" else 1


@dataclass(frozen=True)
class TaskSet:
    """A model's tasks, in the order of its output columns."""

    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        tasks = tuple(t if isinstance(t, Task) else Task(**t) for t in self.tasks)
        object.__setattr__(self, "tasks", tasks)
        if not tasks:
            raise ValueError("tasks is empty: give at least one task.")
        names = [task.name for task in tasks]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two tasks have the same name, {twice!r}: give each its own.")

    @property
    def num_outputs(self) -> int:
        """The number of output columns of all tasks together."""
        return sum(task.num_outputs for task in self.tasks)

    @cached_property
    def columns(self) -> tuple[slice, ...]:
        """The output columns of each task."""
        sizes = [task.num_outputs for task in self.tasks]
        ends = accumulate(sizes)
        return tuple(slice(end - size, end) for size, end in zip(sizes, ends, strict=True))

    def task_columns(self, name: str | None = None) -> tuple[Task, slice]:
        """Return a task by its name, and its output columns. The default is the first task."""
        for task, columns in zip(self.tasks, self.columns, strict=True):
            if name is None or task.name == name:
                return task, columns
        names = [task.name for task in self.tasks]
        listed = ", ".join(map(repr, names))
        hint = did_you_mean(str(name), names)
        raise ValueError(f"the model has no task {name!r}; it has {listed}.{hint}")


TO_START = "weights to start from"  # the summary of a model that predicts nothing useful


def is_to_start(metadata: Mapping[str, Any]) -> bool:
    """Return whether a model with these metadata has only weights to start training from."""
    return bool(metadata.get("summary") == TO_START)
