"""What a model should say of a molecule: a class, or a value above or below a limit."""

import re
from dataclasses import dataclass

import numpy as np

from graphxai.contract.target import Target
from graphxai.explanation.compute.models import Model
from graphxai.explanation.prediction import Prediction


@dataclass(frozen=True)
class Wish:
    """What the model should say: a class, or a value above or below a limit.

    side: for a regression, +1 above the limit and -1 below it.
    """

    task: str
    label: str | None = None
    limit: float = 0.0
    side: int = 1

    @classmethod
    def of(cls, text: str, model: Model) -> "Wish":
        """Read the name of a class, ">6.5" or "<6.5"; "task: ..." names a task.

        Raises ValueError for anything else, where the message lists what the model offers, and for
        a class that several tasks have.
        """
        config = model.config
        named = next((t for t in config.tasks if text.startswith(f"{t.name}:")), None)
        rest = text.removeprefix(f"{named.name}:").strip() if named else text.strip()
        tasks = [named] if named else list(config.tasks)
        if found := re.fullmatch(r"([<>])=?\s*([-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?)", rest, re.I):
            values = [task for task in tasks if task.kind == "regression"]
            if values:
                side = 1 if found[1] == ">" else -1
                return cls(values[0].name, limit=float(found[2]), side=side)
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

    @property
    def target(self) -> Target:
        """The output whose relevance guides the search."""
        return Target(self.label, self.task)

    def columns(self, model: Model) -> list[str]:
        """The names of the model's tasks, the wish's first."""
        return sorted((task.name for task in model.config.tasks), key=lambda n: n != self.task)

    def value(self, prediction: Prediction) -> float:
        """The predicted value, or the probability of the class."""
        if self.label is not None:
            return prediction.probabilities[self.label]
        assert prediction.value is not None
        return prediction.value

    def distance(self, prediction: Prediction) -> float:
        """How far beyond the wish a prediction is; negative on the wrong side.

        A class: log-odds against the most probable other one. A value: its distance from the limit.
        """
        own = self.value(prediction)
        if self.label is None:
            return self.side * (own - self.limit)
        other = max(p for name, p in prediction.probabilities.items() if name != self.label)
        return float(np.log(max(own, 1e-12) / max(other, 1e-12)))

    def sure(self, prediction: Prediction) -> bool | None:
        """Whether the model is sure that the wish is fulfilled; None if that is not known.

        A class: see `Prediction.sure`. A value: its whole interval lies beyond the limit.
        """
        if self.label is not None:
            known = prediction.sure
            return None if known is None else known and prediction.label == self.label
        if (interval := prediction.interval) is None:
            return None
        return min(self.side * (end - self.limit) for end in interval) > 0

    def __str__(self) -> str:
        sign = ">" if self.side > 0 else "<"
        return self.label or f"{self.task} {sign} {self.limit:g}"
