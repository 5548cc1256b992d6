"""The tasks of a user's model, from the arguments of `wrap`."""

from collections.abc import Sequence

from graphxai.models.graphormer.config import Task, TaskKind


def tasks_told(
    tasks: Sequence[Task] | Task | None,
    kind: TaskKind | None,
    classes: Sequence[str] | int | None,
    task: str | None,
) -> tuple[Task, ...]:
    """The tasks given, or a single one of this kind. Raises ValueError if neither is given."""
    if tasks and task is not None:
        raise ValueError(f"tasks already have names: task={task!r} goes with `kind`.")
    if isinstance(tasks, Task):
        return (tasks,)
    if tasks:
        return tuple(tasks)
    if kind is None:
        raise ValueError("say what the outputs are: kind='binary', 'multiclass' or 'regression'.")
    if isinstance(classes, int):
        classes = [str(c) for c in range(classes)]
    if classes is None and kind == "binary":
        classes = ("negative", "positive")
    return (Task("output" if task is None else task, kind, tuple(classes or ())),)
