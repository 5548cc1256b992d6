"""The models that the page offers, loaded when they are first used."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphxai.contract.method_names import CONTROLS
from graphxai.explainers import REGISTRY
from graphxai.explainers.registry import methods_for
from graphxai.explanation.api import load
from graphxai.explanation.compute.models import Model
from graphxai.explanation.compute.panel import ModelPanel
from graphxai.visualization.color import Scale

from .page import MAX_ATOMS

# The page leaves out methods that take seconds for a molecule, and the controls.
LEFT_OUT = {
    "attention_flow", "gnn_explainer", "integrated_gradients", "order_marginals",
    "path_marginals", "shapley_sampling", *CONTROLS,
}  # fmt: skip


class OfferedModels:
    """Models by name. The page only names them and never sends a path."""

    def __init__(self, models: "Sequence[Model | str | Path]") -> None:
        """Offer models, names or folders. The first is loaded at once and shown first.

        Raises ValueError if a model does not read molecules.
        """
        self._models: dict[str, Model | str | Path] = {}
        self._panel: ModelPanel | None = None
        for model in models:
            name = Path(model).name if isinstance(model, str | Path) else model.origin.name
            while name in self._models:
                name += "'"
            self._models[name] = model
        self[self.names[0]]

    @property
    def names(self) -> list[str]:
        """The names of the models, in the order given."""
        return list(self._models)

    def __getitem__(self, name: str) -> Model:
        if name not in self._models:
            raise ValueError(f"there is no model {name!r}; there is {', '.join(self.names)}.")
        model = self._models[name]
        if isinstance(model, str | Path):
            model = self._models[name] = load(model)
        if not model.config.reads_molecules:
            raise ValueError(
                f"model {name!r} reads {model.config.reads}; the app shows models of molecules."
            )
        return model

    @property
    def panel(self) -> ModelPanel:
        """All models together, which are loaded for it."""
        if self._panel is None:
            self._panel = ModelPanel.of([self[name] for name in self.names], self.names)
        return self._panel

    def about(self, name: str) -> dict[str, Any]:
        """Return what the page needs to offer choices: models, methods, tasks and colours.

        `name` is the name of the model with these tasks, or "" for the first.
        """
        name = name or self.names[0]
        model = self[name]
        return {
            "models": self.names,
            "model": name,
            "summary": str(model.origin.metadata.get("summary", "")),
            "tasks": [[task.name, list(task.classes), task.unit] for task in model.config.tasks],
            "methods": {
                method: REGISTRY[method].title
                for method in methods_for(model)
                if method not in LEFT_OUT
            },
            "colours": Scale(1.0).arms(),
            "unsigned_colours": Scale(1.0, one_sided=True).arms(),
            "most_atoms": MAX_ATOMS,
        }
