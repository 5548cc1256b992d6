"""Read the rows of a wrapped model's embedding in a pass, or put other rows in their place."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphxai.contract.inputs import InputError
from graphxai.contract.model import evaluating

from .batches import WrappedBatch
from .embedding_alignment import align_padded
from .engine.recording_mode import is_recording
from .layout import OneGraphAtATime
from .lookups import embeddings_in, is_unclear, joined, looks_up_nodes, width_of

Wrapped = Any  # a WrappedModel, whose file imports this one


class ReplacedRows:
    """Lets each embedding return its part of the rows (n, W) in one pass of a wrapped model."""

    def __init__(self, model: Wrapped, rows: Tensor, batch: WrappedBatch) -> None:
        self._model, self._rows, self._batch = model, rows, batch
        self._served = 0  # of the columns W
        self._as_they_are: dict[str, list[Tensor]] = {}

    def __call__(self, name: str, args: tuple[Any, ...], output: Any) -> Any:
        """Replace the output of the embedding of this name, if it holds the nodes."""
        if (places := self._model.lookups.places(name, output, self._batch)) is None:
            if isinstance(output, Tensor):
                self._as_they_are.setdefault(name, []).append(output)
            return output
        start, self._served = self._served, self._served + width_of(output, places, self._batch)
        whole = start == 0 and self._served == self._rows.shape[-1]
        of_this = self._rows if whole else self._rows[..., start : self._served]
        return places.with_rows(output, of_this, self._batch)

    def check(self) -> None:
        """Raise LookedUpInParts if the pass ran without some of the rows.

        It may do so if the embeddings looked up the same rows, as when nodes are only removed.
        """
        if self._served == self._rows.shape[-1] or not self._rows.numel():
            return
        if self._rows.requires_grad or is_recording() or not self._were_looked_up():
            raise LookedUpInParts(self._model, self._batch)

    def _were_looked_up(self) -> bool:
        """Return whether the outputs of each embedding, one after the other, are the rows."""
        n = len(self._rows)
        parts = [torch.cat([x.flatten() for x in of]) for of in self._as_they_are.values()]
        if not parts or any(len(part) % n for part in parts):
            return False
        return torch.equal(joined([part.view(n, -1) for part in parts]).to(self._rows), self._rows)


class LookedUpInParts(OneGraphAtATime):
    """An embedding looks up the nodes of a batch in parts, so that its rows cannot be replaced."""

    def __init__(self, model: Wrapped, batch: WrappedBatch) -> None:
        super().__init__(model, batch)
        names = " and ".join(model.settings.embedding)
        self.args = (
            f"{names} in {type(model.module).__name__} looks up the nodes of {len(batch)} graphs in"
            " parts, as in a loop over the graphs, and not all in one call: their rows cannot be"
            " replaced, as this method needs it. Look up all codes in one call, as in h ="
            " embedding(x), before the graphs are taken apart, or name a module that returns a row"
            " per node with wrap(..., embedding=...).",
        )


def embedded_rows(model: Wrapped, batch: WrappedBatch) -> Tensor:
    """Return what all embeddings return in a pass, as node rows (n, W) or tokens (B, S, W).

    Raises:
        ValueError: a named embedding is not called exactly once, or does not hold the nodes.
    """
    calls: list[tuple[str, Any]] = []

    def keep(name: str, args: tuple[Any, ...], output: Any) -> None:
        calls.append((name, output))

    with model.settings.hooking_embedding(model.running, keep):
        model.call_module(None, batch, batch.mask)
    if any(is_unclear(output, batch) and n not in model.lookups.dense for n, output in calls):
        _find_forms(model, batch)
    align_padded(model, batch, calls)
    rows, without_nodes = [], {name for name, _ in calls}
    for name, output in calls:
        if (places := model.lookups.places(name, output, batch)) is not None:
            rows.append(places.rows_in(output, batch))
            without_nodes.discard(name)
        elif name not in model.lookups.chosen:
            raise ValueError(_without_nodes(name, output, batch))
    for name in model.settings.embedding:
        count = [called for called, _ in calls].count(name)
        if count != 1 and name not in model.lookups.chosen:
            raise ValueError(
                f"the module {name!r} is called {count} times in a pass; name a module that is"
                " called once."
            )
    if without_nodes and len(batch) > 1:
        model.lookups.in_parts = True
        raise LookedUpInParts(model, batch)
    if not rows:
        raise ValueError("no look-up of nodes was called in a pass.")
    return joined(rows)


def _find_forms(model: Wrapped, batch: WrappedBatch) -> None:
    """Find the form of each embedding's output in a pass of a graph with two nodes or more."""
    with suppress(Exception):
        larger = model.collate([model.repeated(batch.examples()[0], 2)])

        def see(name: str, args: tuple[Any, ...], output: Any) -> None:
            model.lookups.places(name, output, larger)

        with model.settings.hooking_embedding(model.running, see):
            model.call_module(None, larger, larger.mask)


def choose_embedding(model: Wrapped, data: Data) -> None:
    """Choose all look-up tables that return the nodes, or raise InputError if there are none."""
    names: set[str] = set()
    batch = model.collate([data]).to(model.device)

    def judge(name: str, args: tuple[Any, ...], output: Any) -> None:
        if looks_up_nodes(args[0] if args else None, output, batch):
            names.add(name)

    tables = embeddings_in(model.module)
    settings = replace(model.settings, embedding=tables)
    with evaluating(model), torch.no_grad(), settings.hooking_embedding(model.running, judge):
        model.call_module(None, batch, batch.mask)
    if not names:
        raise InputError(
            f"x has {data.x.dtype} values, which cannot carry gradients, and none of the"
            f" embeddings ({', '.join(tables)}) returns a row per node: name the module that"
            " does with wrap(..., embedding=...)."
        )
    model.lookups.chosen = frozenset(names)
    model.settings = replace(
        model.settings, embedding=tuple(name for name in tables if name in names)
    )


def _without_nodes(name: str, output: Any, batch: WrappedBatch) -> str:
    """Say that the output of a named embedding has no rows for the nodes."""
    if not isinstance(output, Tensor):
        return (
            f"the module {name!r} returns {type(output).__name__}, not a tensor: name a module"
            " that returns one tensor with a row per node."
        )
    return (
        f"the module {name!r} returns shape {tuple(output.shape)}; relevance needs one row per node"
        f" for {len(batch)} inputs of at most {batch.mask.shape[1]} nodes."
    )
