"""What checks of a model have shown: which methods work, at what cost, and what else to know."""

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import torch

from graphxai.explainers.passes import outputs_without_nodes
from graphxai.explainers.wrapped import said_of_probabilities
from graphxai.wrapping.model_checks import advice_on
from graphxai.wrapping.ties import CHOICE, orders_entries

WIDTH = 100  # characters of a line
QUICK = 50  # plain gradients


@dataclass(frozen=True)
class MethodCheck:
    """What the checks of one method have shown.

    Attributes:
        name: the name of the method.
        cost: how many passes it takes.
        problem: why it does not explain the model, or which property its scores lack, or "".
        applies: False if the method is not made for such models, as of attention without any.
        gradients: the processor time for one graph, in multiples of a plain gradient, or NaN.
        tier: "hooks" or "recording", by which the rules act on a wrapped model; "" for others.
        why_recorded: why hooks did not do, with the module and what to write instead, or "".
    """

    name: str
    cost: str
    problem: str = ""
    applies: bool = True
    gradients: float = math.nan
    tier: str = ""
    why_recorded: str = ""

    @property
    def works(self) -> bool:
        """Whether the method explains the model, and its scores have all properties."""
        return self.applies and not self.problem


@dataclass(frozen=True, repr=False)
class ModelCheck:
    """What `graphxai.check` found. As text it has about ten lines.

    Attributes:
        model: the model, as text.
        methods: what was found of each method, by its name.
        notes: what was found of the model by subject, such as "empty graph", with what to do.
        problems: what is wrong with the model, whatever the method.
    """

    model: str
    methods: Mapping[str, MethodCheck]
    notes: Mapping[str, str]
    problems: tuple[str, ...] = ()

    @property
    def failures(self) -> list[str]:
        """What does not work, each as a sentence."""
        return [*self.problems, *(m.problem for m in self.methods.values() if m.problem)]

    def __repr__(self) -> str:
        checked = self.methods.values()
        working = [m for m in checked if m.works]
        names = {
            "works": _with_costs(working) or "no method",
            "fails": _by_reason((m.problem, m.name) for m in checked if m.problem),
            "not for it": ", ".join(m.name for m in checked if not m.applies),
            "by hooks": ", ".join(m.name for m in working if m.tier == "hooks"),
            "recorded": _by_reason((m.why_recorded, m.name) for m in working if m.why_recorded),
            **self.notes,
            "beware": "; ".join(self.problems),
        }
        lines = [
            fill(f"{subject + ':':13s}{text}", WIDTH, subsequent_indent=" " * 13)
            for subject, text in names.items()
            if text
        ]
        return "\n".join([self.model, *lines])


def _by_reason(pairs: Iterable[tuple[str, str]]) -> str:
    """Join the names that have the same reason."""
    names: dict[str, list[str]] = {}
    for reason, name in pairs:
        names.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(of)}: {reason}" for reason, of in names.items())


def _with_costs(working: Sequence[MethodCheck]) -> str:
    """List methods with their costs, the quickest first."""
    ranked = sorted(working, key=lambda m: (math.isnan(m.gradients), m.gradients))
    if not ranked or math.isnan(ranked[0].gradients):
        return ", ".join(m.name for m in ranked)
    listed = (f"{m.name} ({m.gradients:.{int(m.gradients < 10)}f})" for m in ranked)
    return f"{', '.join(listed)}; in brackets the time in plain gradients"


def in_gradients(model: Any, batch: Any, work: Callable[[], Any]) -> float:
    """Return the processor time of work in multiples of a plain gradient of the model.

    It is NaN for a model without gradients.
    """
    tokens = model.embed(batch).detach().requires_grad_()

    def gradient() -> None:
        torch.autograd.grad(model.encode(tokens, batch).sum(), tokens)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not model.encode(tokens, batch).requires_grad:
            return math.nan
        plain = max(min(_seconds(gradient) for _ in range(3)), 1e-9)
        first = _seconds(work)
        # the first call of a quick method may plan its passes
        return (min(first, _seconds(work)) if first < QUICK * plain else first) / plain


def _seconds(work: Callable[[], Any]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def notes_on(model: Any, batch: Any, warned: Iterable[str]) -> dict[str, str]:
    """Say what passes have shown of a model, by subject, with what to do about it."""
    notes = dict(_notes(model, batch))
    if choice := next((text for text in warned if CHOICE in text), ""):
        notes["ties"] = choice
    return notes


def _notes(model: Any, batch: Any) -> Iterator[tuple[str, str]]:
    yield "batches", _on_batches(model, batch)
    yield "empty graph", _on_empty_graphs(model, batch)
    checks = getattr(model, "checks", None)
    if checks is not None:
        with torch.no_grad():
            outputs = model(batch).reshape(-1, model.config.num_outputs)
        if said := said_of_probabilities(model, batch, outputs):
            yield "outputs", said.rstrip(".")
    if checks is None:
        average = getattr(model.config, "ties", "average") == "average"
        chosen = "one of several equally short paths is taken, by the order of the nodes"
        yield "ties", "equally short paths are averaged" if average else chosen
        return
    orders = orders_entries(model.module)
    shared = "entries that are equal share the relevance of a maximum or of a place in an order"
    yield "ties", shared if orders else "no maximum and no order through which relevance passes"
    tables = " and ".join(model.settings.embedding)
    rows = f"explained are the rows that {tables} looks up for the nodes"
    parts = ", for the graphs of a batch in parts, so they run one at a time"
    in_parts = parts if model.lookups.in_parts else ""
    yield "look-ups", rows + in_parts if tables else "none; explained are the numbers in x"


def _on_batches(model: Any, batch: Any) -> str:
    checks = getattr(model, "checks", None)
    if len(batch) == 1:
        return "not looked at: give two graphs or more"
    if checks is None:
        return "graphs share passes"
    if why := model.why_single_passes(batch):
        return f"the model {why}, so graphs run one at a time. {advice_on(why)}".rstrip()
    return "graphs share passes"


def _on_empty_graphs(model: Any, batch: Any) -> str:
    outputs = outputs_without_nodes(model, batch)
    if outputs is None or not bool(outputs.isfinite().all()):
        why = "the model fails on one" if outputs is None else "the output is not finite"
        return (
            f"{why}, so where all nodes are to be hidden or deleted, they are set to zero; let the"
            " model return what it says of nothing"
        )
    return "output " + ", ".join(f"{value:+.4g}" for value in outputs[0].tolist())
