"""What a model should predict for a molecule: a class, or a value above or below a limit."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from graphxai.contract.target import Target
from graphxai.explanation.compute.models import Model
from graphxai.explanation.prediction import Prediction


@dataclass(frozen=True)
class Goal:
    """What the model should predict: a class, or a value above or below a limit.

    Args:
        task: name of the task.
        label: name of the class; None for a value.
        limit: limit of the value.
        side: +1 if the value should lie above the limit, -1 if it should lie below.
    """

    task: str
    label: str | None = None
    limit: float = 0.0
    side: int = 1

    @classmethod
    def of(cls, text: str, model: Model) -> "Goal":
        """Read a goal from text: the name of a class, ">6.5" or "<6.5"; "task: ..." names a task.

        Raises:
            ValueError: for anything else, with a message that lists what the model offers; and for
                a class that several tasks have.
        """
        config = model.config
        named = next((t for t in config.tasks if text.startswith(f"{t.name}:")), None)
        rest = text.removeprefix(f"{named.name}:").strip() if named else text.strip()
        tasks = [named] if named else list(config.tasks)
        if comparison := re.fullmatch(r"([<>])=?\s*([-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?)", rest, re.I):
            values = [task for task in tasks if task.kind == "regression"]
            if values:
                side = 1 if comparison[1] == ">" else -1
                return cls(values[0].name, limit=float(comparison[2]), side=side)
        having = [task.name for task in tasks if rest in task.classes]
        if len(having) > 1:
            raise ValueError(
                f"{len(having)} tasks have a class {rest!r}: name the task too, as in"
                f" '{having[0]}: {rest}'."
            )
        if having:
            return cls(having[0], rest)
        offered = [
            f"{task.name}: >LIMIT or <LIMIT"
            if task.kind == "regression"
            else f"{task.name}: {', '.join(task.classes)}"
            for task in config.tasks
        ]
        raise ValueError(f"cannot go towards {text!r}; this model offers {'; '.join(offered)}.")

    @classmethod
    def at(cls, value: float, predictions: Mapping[str, Prediction]) -> "Goal":
        """Return the goal of crossing a value from the side on which the prediction lies.

        Args:
            value: the limit, for the first task with values.
            predictions: those of the molecule, by task.

        Raises:
            ValueError: the model predicts no values.
        """
        for task, prediction in predictions.items():
            if prediction.value is not None:
                return cls(task, limit=value, side=1 if prediction.value <= value else -1)
        raise ValueError(f"cannot go towards {value:g}, as this model predicts no values.")

    @property
    def target(self) -> Target:
        """The output whose relevance guides the search."""
        return Target(self.label, self.task)

    def columns(self, model: Model) -> list[str]:
        """Return the names of the model's tasks, the goal's first."""
        return sorted((task.name for task in model.config.tasks), key=lambda n: n != self.task)

    def value(self, prediction: Prediction) -> float:
        """Return the predicted value, or the probability of the class."""
        if self.label is not None:
            return prediction.probabilities[self.label]
        assert prediction.value is not None
        return prediction.value

    def distance(self, prediction: Prediction) -> float:
        """Return how far beyond the goal a prediction lies, negative on the wrong side.

        For a class, it is the log-odds against the most probable other class. For a value, it is
        the distance from the limit.
        """
        reached = self.value(prediction)
        if self.label is None:
            return self.side * (reached - self.limit)
        other = max(p for name, p in prediction.probabilities.items() if name != self.label)
        return float(np.log(max(reached, 1e-12) / max(other, 1e-12)))

    def sure(self, prediction: Prediction) -> bool | None:
        """Return whether the model is sure that the goal is reached, or None if it cannot tell.

        For a class, see `Prediction.sure`. For a value, its whole interval must lie beyond the
        limit.
        """
        if self.label is not None:
            sure = prediction.sure
            return None if sure is None else sure and prediction.label == self.label
        if (interval := prediction.interval) is None:
            return None
        return min(self.side * (end - self.limit) for end in interval) > 0

    def __str__(self) -> str:
        sign = ">" if self.side > 0 else "<"
        return self.label or f"{self.task} {sign} {self.limit:g}"
