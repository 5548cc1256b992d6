"""Several models as one: the properties that they predict together, each with a name of its own."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from graphxai.contract.tasks import Task
from graphxai.explanation.labelled import numbered
from graphxai.explanation.prediction import Prediction

from .models import Model, loaded_once

ModelOrName: TypeAlias = "Model | str | Path"


@dataclass(frozen=True)
class PredictedProperty:
    """A property that one of several models predicts.

    Attributes:
        name: the name of the task. If several models have it, the model's name follows in brackets.
        place: the position of its model.
        model: the name of its model.
        task: the task.
    """

    name: str
    place: int
    model: str
    task: Task


@dataclass(frozen=True, eq=False)
class ModelPanel:
    """Several models, and the properties that they predict together.

    Attributes:
        names: the name of each model. Models of the same name are numbered.
        properties: the properties of all models, in their order.
    """

    models: tuple[Model, ...]
    names: tuple[str, ...]
    properties: tuple[PredictedProperty, ...]

    @classmethod
    def of(
        cls, models: "ModelOrName | Sequence[ModelOrName]", names: Sequence[str] | None = None
    ) -> "ModelPanel":
        """Load the models that are given by name or folder.

        Args:
            models: a model or several.
            names: what each model is called, by default by its own name.

        Raises:
            ValueError: there is no model, or one only serves as a start for training.
        """
        given: Sequence[Any] = models if isinstance(models, list | tuple) else [models]
        if not given:
            raise ValueError("give at least one model.")
        members = tuple(map(loaded_once, given))
        names = numbered(names or [model.origin.name for model in members])
        owners = Counter(task.name for model in members for task in model.config.tasks)
        properties = tuple(
            PredictedProperty(
                task.name if owners[task.name] == 1 else f"{task.name} ({name})", place, name, task
            )
            for place, (name, model) in enumerate(zip(names, members, strict=True))
            for task in model.config.tasks
        )
        return cls(members, names, properties)

    def merged(
        self, of_models: Sequence[Mapping[str, Prediction] | None]
    ) -> dict[str, Prediction] | None:
        """Join the predictions of all models for one input, by the names of the properties.

        Properties of a model that left the input out are missing. Without any, return None.
        """
        predictions: dict[str, Prediction] = {}
        for each in self.properties:
            of_model = of_models[each.place]
            if of_model is not None:
                predictions[each.name] = of_model[each.task.name].renamed(each.name)
        return predictions or None


def is_several(models: Any) -> bool:
    """Return whether these are several models. A list with a single one counts, too."""
    return isinstance(models, list | tuple)
