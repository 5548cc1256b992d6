"""What a model says about itself in a notebook and as text: name, tasks, score and size."""

from html import escape
from typing import Any

from torch.nn.parameter import UninitializedParameter

from .model import Origin
from .tasks import Task, TaskSet

__all__ = ["ShownModel", "tasks_text"]

LISTED = 6  # how many tasks are named


class ShownModel:
    """A model that is shown in a few lines, and not as all of its layers.

    `torch.nn.Module.__repr__(model)` still lists the layers.
    """

    def __repr__(self) -> str:
        name, *others = self._described().values()
        return f"{type(self).__name__}({name}: {'; '.join(others)})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th style="text-align: left">{escape(key)}</th>'
            f'<td style="text-align: left">{escape(value)}</td></tr>'
            for key, value in self._described().items()
        )
        return f"<table>{rows}</table>"

    def _described(self) -> dict[str, str]:
        """Return name, tasks, score and size in words. A model without a score has none."""
        origin: Origin = self.origin  # type: ignore[attr-defined]
        config: TaskSet = self.config  # type: ignore[attr-defined]
        score = origin.metadata.get("summary")
        return {
            "model": origin.name,
            "predicts": tasks_text(config.tasks),
            **({"score": score} if isinstance(score, str) and score else {}),
            "size": f"{self._num_parameters():,} parameters",
        }

    def _num_parameters(self) -> int:
        """Return how many numbers were learned, as far as their shapes are known."""
        network: Any = self
        network = getattr(network, "module", network)  # a wrapped model learned in its module
        weights = (p for p in network.parameters() if not isinstance(p, UninitializedParameter))
        return sum(weight.numel() for weight in weights)


def tasks_text(tasks: tuple[Task, ...]) -> str:
    """Return what a model predicts in words, such as `solubility (regression)`."""
    named = [f"{task.name} ({task.kind})" for task in tasks[:LISTED]]
    more = [f"{len(tasks) - LISTED} more"] if len(tasks) > LISTED else []
    return ", ".join([*named, *more])
