"""The types of models that results are computed for, and how they are loaded."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from graphxai.contract.intervals import Conformal
from graphxai.datasets.as_given import AS_DRAWN, Standardisation
from graphxai.models.graphormer import (
    Ensemble,
    Graphormer,
    LoadedModel,
    load_model,
    require_purpose,
)

if TYPE_CHECKING:
    from graphxai.adapters import WrappedModel

__all__ = ["LoadedModel", "Model", "conformal_of", "loaded", "standardisation_of"]

Model: TypeAlias = "Graphormer | Ensemble | WrappedModel"


def loaded(model: "Model | str | Path") -> "Model":
    """Return a model, after loading it if it is given by name or folder.

    Raises ValueError for weights that only serve as a start for training.
    """
    return require_purpose(load_model(model)) if isinstance(model, str | Path) else model


def conformal_of(model: "Model") -> Mapping[str, Conformal]:
    """Return a model's conformal scores by task. Wrapped models have none."""
    return model.conformal if isinstance(model, Graphormer | Ensemble) else {}


def standardisation_of(model: "Model") -> Standardisation:
    """Return how a model brings molecules to their parents. Wrapped models leave them as drawn."""
    way: Standardisation = getattr(model.config, "standardise", AS_DRAWN)
    return way
