"""Answer the requests of the page by name, for servers and notebooks, with the models it offers."""

import base64
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from graphxai.chemistry.profile_text import single_goal
from graphxai.contract.method_names import CONTROLS, DEFAULT_METHOD
from graphxai.contract.target import Target
from graphxai.explainers import REGISTRY
from graphxai.explainers.registry import methods_for
from graphxai.explanation.api import load
from graphxai.explanation.compute.models import Model, ModelPanel
from graphxai.visualization.color import Scale

from .molecules import card, changes_at, contrasted, predicted, trust_of_rows
from .overview import overview, suggestions
from .page import EDITOR, MAX_ATOMS, block_of, read, smiles_of_block, text_of
from .tables import (
    KINDS,
    exported,
    matching_rows,
    measured_in,
    measured_of_rows,
    rows_of,
    series_of,
)

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


LARGEST_FILE = 64_000_000  # how many bytes a file may have that is opened
LARGEST = 4_000_000  # how many characters any other request may have
LONGEST = 120.0  # how long a search may take, in seconds
MOST_MOLECULES = 64  # how many molecules are predicted in one request at most
EXPECTED = (ValueError, ImportError, NotImplementedError)  # errors that a request may cause


class Body:
    """The fields of a request. Reading a field of another type raises ValueError."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    def text(self, name: str, default: str = "", most: int = 2000) -> str:
        """Return a text of at most `most` characters."""
        value = self.fields.get(name, default)
        if not isinstance(value, str) or len(value) > most:
            raise ValueError(f"{name} must be text of at most {most:,} characters.")
        return value.encode("utf-8", "replace").decode()  # half a surrogate pair is not text

    def numbers(self, name: str) -> list[int]:
        """Return a list of at most 200 whole numbers."""
        values = self.items(name, 200)
        if not all(type(value) is int for value in values):
            raise ValueError(f"{name} must be whole numbers.")
        return values

    def items(self, name: str, most: int) -> list[Any]:
        """Return a list of at most `most` values."""
        values = self.fields.get(name, [])
        if not isinstance(values, list) or len(values) > most:
            raise ValueError(f"{name} must be a list of at most {most} values.")
        return values

    def texts(self, name: str) -> list[str]:
        """Return a list of at most `MOST_MOLECULES` texts."""
        return [Body({name: text}).text(name) for text in self.items(name, MOST_MOLECULES)]

    def table(self) -> tuple[str, str]:
        """Return the key and the column of the open table, both "" if there is none."""
        fields = self.fields.get("table")
        table = Body(fields if isinstance(fields, dict) else {})
        return table.text("key"), table.text("column")

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.text("method", DEFAULT_METHOD)

    def target(self) -> Target:
        """Return the output to explain, from the fields `task` and, for a class, `label`."""
        return Target(self.text("label") or None, self.text("task") or None)


Answer = Callable[[OfferedModels, Body], Any]
SEARCH = "suggest"  # the request that is answered step by step


def suggested(models: OfferedModels, body: Body) -> Iterator[dict[str, Any]]:
    """Yield the steps of a search for changes, for at most `LONGEST` seconds.

    What the user wishes is a goal for the chosen task, or joins goals for several properties.
    """
    end = time.monotonic() + LONGEST
    n = max(1, min(24, (body.numbers("n") or [12])[0]))
    towards, model = body.text("towards"), models[body.text("model")]
    goal = single_goal(model, towards)
    panel = ModelPanel.of(model) if goal else models.panel
    steps = suggestions(
        model if goal else list(panel.models),
        body.text("smiles"),
        towards if goal else body.text("wish"),
        body.target(),
        body.numbers("locked"),
        n,
        body.fields.get("sure") is True,
        partial(measured_in, panel, *body.table(), goal),
    )
    for step in steps:
        yield step
        if time.monotonic() > end:
            return


def reason(error: Exception) -> str:
    """Return on one line what went wrong."""
    text = " ".join(str(error).split()).encode("utf-8", "replace").decode()
    return text[:500] or type(error).__name__


def _card(models: OfferedModels, body: Body) -> Any:
    like = body.fields.get("like")
    return card(
        models[body.text("model")],
        body.text("smiles"),
        body.method,
        body.target(),
        like if isinstance(like, dict) else None,
    )


def _match(models: OfferedModels, body: Body) -> Any:
    first = body.fields.get("first", 0)
    if type(first) is not int:
        raise ValueError("first must be a whole number.")
    return matching_rows(*body.table(), body.text("smarts"), first)


def _read(models: OfferedModels, body: Body) -> Any:
    try:
        content = base64.b64decode(body.text("content", most=2 * LARGEST_FILE), validate=True)
    except ValueError:
        raise ValueError("content must be a file in base64.") from None
    if len(content) > LARGEST_FILE:
        raise ValueError(f"the file is larger than {LARGEST_FILE // 10**6} MB: open a part of it.")
    return rows_of(body.text("name"), content, body.text("column"))


def _export(models: OfferedModels, body: Body) -> Any:
    rows = [Body(row) for row in body.items("basket", 1000) if isinstance(row, dict)]
    basket = [{name: row.text(name) for name in ("smiles", "name", "changes")} for row in rows]
    kind, model = body.text("kind"), models[body.text("model")]
    text = exported(kind, model, body.method, body.target(), basket, *body.table())
    return {"text": text, "type": KINDS[kind]}


ANSWERS: dict[str, Answer] = {
    "about": lambda models, body: models.about(body.text("model")),
    "card": _card,
    "changes": lambda models, body: changes_at(
        models[body.text("model")],
        body.text("smiles"),
        body.target(),
        body.numbers("place"),
        body.numbers("locked"),
    ),
    "predict": lambda models, body: predicted(
        models[body.text("model")], body.texts("smiles"), body.target()
    ),
    "overview": lambda models, body: overview(
        models.panel,
        body.texts("smiles"),
        body.text("goal"),
        drawn=body.fields.get("plain") is not True,
    ),
    "trust": lambda models, body: trust_of_rows(
        models[body.text("model")], body.texts("smiles"), body.method, body.target()
    ),
    "match": _match,
    "measured": lambda models, body: {"measured": measured_of_rows(models.panel, *body.table())},
    "series": lambda models, body: series_of(models.panel, *body.table(), body.text("core")),
    "contrast": lambda models, body: contrasted(
        models[body.text("model")], body.text("a"), body.text("b"), body.method, body.target()
    ),
    "read": _read,
    "block": lambda models, body: {"block": block_of(read(body.text("smiles")))},
    "canonical": lambda models, body: {"smiles": smiles_of_block(body.text("block", most=LARGEST))},
    "editor": lambda models, body: {"text": text_of(EDITOR)},
    "export": _export,
}


def steps_of(models: OfferedModels, name: str, body: Body) -> Iterator[Any]:
    """Yield what answers a request: the steps of a search, or else a single value."""
    if name == SEARCH:
        yield from suggested(models, body)
    elif name in ANSWERS:
        yield ANSWERS[name](models, body)
    else:
        raise ValueError(f"there is no request {name!r}.")
