"""Read the rows of a wrapped model's embedding in a pass, or put other rows in their place.

In a padded output (B, S, ...) a class token may stand before or behind the nodes, and padding in
front of them or behind. The shape does not say which. So a few passes of the same graphs with their
nodes in another order, and with other features, show which rows change: those of the nodes.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphxai.contract.batch import OneGraphAtATime
from graphxai.contract.inputs import InputError
from graphxai.contract.model import evaluating
from graphxai.engine.recording import is_recording
from graphxai.runtime.modules import uncompiled
from graphxai.wrapping.eval_replica import restoring_attributes

from .batches import Wrapped, WrappedBatch
from .code_look_ups import LOOK_UPS, CodeLookUps, RowsByCell
from .lookups import (
    IN_PARTS,
    NodePlaces,
    codes_carry_no_gradient,
    embeddings_in,
    is_unclear,
    joined,
    looks_up_nodes,
    places_in,
    width_of,
)


class ReplacedRows:
    """Lets each embedding return its part of the rows (n, W) in one pass of a wrapped model."""

    def __init__(self, model: Wrapped, rows: Tensor, batch: WrappedBatch) -> None:
        self._model, self._rows, self._batch = model, rows, batch
        self._served = 0  # of the columns W
        self._as_they_are: dict[str, list[Tensor]] = {}

    def __call__(self, name: str, args: tuple[Any, ...], output: Any) -> Any:
        """Replace the output of the embedding of this name, if it holds the nodes."""
        lookups = self._model.lookups
        if (places := lookups.places(name, output, self._batch)) is None:
            if isinstance(output, Tensor):
                self._as_they_are.setdefault(name, []).append(output)
            return output
        if self._served == self._rows.shape[-1] and (lookups.calls or not lookups.may_stop):
            lookups.calls, lookups.may_stop = 0, False  # the rows were read from too few calls
            raise OneGraphAtATime(self._model, "")
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
        super().__init__(model, IN_PARTS)
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
    if model.settings.embedding == (LOOK_UPS,):
        return _rows_by_operation(model, batch)
    calls = _calls_of_embeddings(model, batch)
    if any(is_unclear(output, batch) and n not in model.lookups.dense for n, output in calls):
        _find_forms(model, batch)
    align_padded(model, batch, calls)
    counts = Counter(name for name, _ in calls)
    rows, without_nodes = [], set(counts)
    hold_nodes = {n for n, output in calls if model.lookups.places(n, output, batch) is not None}
    if model.lookups.calls and hold_nodes != without_nodes:  # there may be further calls
        model.lookups.calls = 0
        return embedded_rows(model, batch)
    for name, output in calls:
        if (places := model.lookups.places(name, output, batch)) is not None:
            rows.append(places.rows_in(output, batch))
            without_nodes.discard(name)
        elif name not in model.lookups.chosen and (len(batch) == 1 or counts[name] == 1):
            raise ValueError(_without_nodes(name, output, batch))
    if without_nodes and len(batch) > 1:
        model.lookups.in_parts = True
        raise LookedUpInParts(model, batch)
    for name in model.settings.embedding:
        if counts[name] != 1 and name not in model.lookups.chosen:
            raise ValueError(
                f"the module {name!r} is called {counts[name]} times in a pass; name a module that"
                " is called once."
            )
    if not rows:
        raise ValueError("no look-up of nodes was called in a pass.")
    model.lookups.calls = len(calls) if model.lookups.may_stop else 0
    return joined(rows)


class _AllSeen(BaseException):
    """Ends a pass of which nothing more is needed. No model means to catch it."""


def _calls_of_embeddings(model: Wrapped, batch: WrappedBatch) -> list[tuple[str, Any]]:
    """Return the names and outputs of the embeddings in a pass.

    The pass ends after as many calls as the last whole pass had.
    """
    calls: list[tuple[str, Any]] = []

    def keep(name: str, args: tuple[Any, ...], output: Any) -> None:
        calls.append((name, output))
        if len(calls) == model.lookups.calls:
            raise _AllSeen

    ends_early = model.lookups.calls > 0
    unchanged = restoring_attributes(model.running) if ends_early else nullcontext()
    try:
        with model.settings.hooking_embedding(model.running, keep), unchanged:
            model.call_module(None, batch, batch.mask)
    except (_AllSeen, Exception):  # a model with threads raises another error in its place
        if not 0 < model.lookups.calls <= len(calls):
            raise
    return calls


def _rows_by_operation(model: Wrapped, batch: WrappedBatch) -> Tensor:
    """Return all that operations look up by the codes of each node in a pass (n, W)."""
    assert batch.graphs is not None
    rows = RowsByCell(batch.graphs.x, model.lookups.columns)
    with uncompiled(model.running), CodeLookUps(batch.graphs.x, model.running, rows):
        model.call_module(None, batch, batch.mask)
    return rows.kept()


def outputs_of_rows(model: Wrapped, rows: Tensor, batch: WrappedBatch, shown: Tensor) -> Tensor:
    """Return the outputs (B, C) of a pass that looks up other rows (n, W) or (B, S, W).

    Raises:
        ValueError: the pass did not look up all of the rows.
    """
    if model.settings.embedding != (LOOK_UPS,):
        replaced = ReplacedRows(model, rows, batch)
        with model.settings.hooking_embedding(model.running, replaced):
            outputs = model.call_module(rows, batch, shown)
        if model.settings.embedding:
            replaced.check()
        return outputs
    assert batch.graphs is not None
    by_cell = RowsByCell(batch.graphs.x, model.lookups.columns, rows)
    with uncompiled(model.running), CodeLookUps(batch.graphs.x, model.running, by_cell):
        outputs = model.call_module(rows, batch, shown)
    if not by_cell.served():
        raise ValueError(
            f"{type(model.module).__name__} looked up the codes of x in one pass, not in another:"
            " name a module that returns a row per node with wrap(..., embedding=...)."
        )
    return outputs


def _find_forms(model: Wrapped, batch: WrappedBatch) -> None:
    """Find the form of each embedding's output in a pass of a graph with two nodes or more."""
    with suppress(Exception):
        larger = model.collate([model.repeated(batch.examples()[0], 2)])

        def see(name: str, args: tuple[Any, ...], output: Any) -> None:
            model.lookups.places(name, output, larger)

        with model.settings.hooking_embedding(model.running, see):
            model.call_module(None, larger, larger.mask)


def choose_embedding(model: Wrapped, data: Data) -> None:
    """Choose all look-up tables that return the nodes, or else all look-ups by codes of nodes.

    Without either, methods that only remove nodes explain the model.
    """
    names: set[str] = set()
    batch = model.collate([data]).to(model.device)
    assert batch.graphs is not None
    rows, in_tables = RowsByCell(batch.graphs.x, {}), 0
    look_ups = CodeLookUps(batch.graphs.x, model.running, rows)

    def judge(name: str, args: tuple[Any, ...], output: Any) -> None:
        nonlocal in_tables
        codes = args[0] if args else None
        if not look_ups.is_computed(codes) and looks_up_nodes(codes, output, batch):
            names.add(name)
            in_tables += look_ups.cells_of(codes) is not None

    tables = embeddings_in(model.module)
    settings = replace(model.settings, embedding=tables)
    try:
        with (
            evaluating(model), torch.no_grad(), settings.hooking_embedding(model.running, judge),
            uncompiled(model.running), look_ups,
        ):  # fmt: skip
            model.call_module(None, batch, batch.mask)
    except Exception as error:  # such as that of a product of whole numbers and weights
        if tables:
            raise
        raise InputError(codes_carry_no_gradient(data.x)) from error
    if rows.calls > in_tables:
        model.settings = replace(model.settings, embedding=(LOOK_UPS,))
        return
    if not names:
        return
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


ROUNDING = 1e-5  # of the largest value


# -- where the nodes stand in a padded output ------------------------------------------------------


def align_padded(model: Wrapped, batch: WrappedBatch, calls: list[tuple[str, Any]]) -> None:
    """Find where the nodes stand in the outputs of padded embeddings, once for each.

    Args:
        calls: the names and outputs of the embeddings in a pass of the batch.

    Raises:
        ValueError: an output has more rows than nodes, and which are the nodes' cannot be told.
    """
    padded = {}
    for name, output in calls:
        places = model.lookups.places(name, output, batch)
        if batch.graphs is not None and places is not None and places.dense:
            padded[name] = output.shape[1] - batch.mask.shape[1]
    aligned = model.lookups.aligned
    if not padded.keys() <= aligned.keys():
        example = batch.examples()[0]
        for graphs in ([example, model.repeated(example, 2)], [example]):
            if not padded.keys() <= aligned.keys():
                with suppress(Exception), evaluating(model), torch.no_grad():
                    aligned.update(_places_by_name(model, graphs))
        aligned.update(dict.fromkeys(padded.keys() - aligned.keys()))
    for name, further in padded.items():
        if further and aligned[name] is None:
            raise ValueError(
                f"the module {name!r} returns {further} rows more than the graphs have nodes, and"
                " which rows are the nodes' cannot be told: name a module that returns the rows of"
                " the nodes alone, before the model adds others."
            )


def _places_by_name(model: Wrapped, graphs: list[Data]) -> dict[str, NodePlaces]:
    """Return where the nodes stand in each padded output, as far as changes of the nodes show."""
    before = _padded_outputs(model, graphs)
    sizes = torch.tensor([int(graph.num_nodes or 0) for graph in graphs])
    changed = {name: torch.zeros(out.shape[:2], dtype=torch.bool) for name, out in before.items()}
    places: dict[str, NodePlaces] = {}
    for other in _changes(model, graphs):
        with suppress(Exception):  # codes may have no other values
            for name, output in _padded_outputs(model, other).items():
                difference = (output - before[name]).abs().flatten(2).amax(-1)
                changed[name] |= (difference > ROUNDING * before[name].abs().max()).cpu()
        seen = {name: _places_of(rows, sizes) for name, rows in changed.items()}
        places |= {name: where for name, where in seen.items() if where is not None}
        if places.keys() == before.keys():
            break
    return places


def _changes(model: Wrapped, graphs: list[Data]) -> Iterator[list[Data]]:
    """Yield the graphs with their nodes in other orders, and with other features."""
    sizes = [int(graph.num_nodes or 0) for graph in graphs]
    for turned in (lambda n: torch.arange(n).flip(0), lambda n: torch.arange(n).roll(1)):
        yield model.renumbered(graphs, [turned(n) for n in sizes])
    other_values = (torch.neg,) if graphs[0].x.is_floating_point() else (
        lambda x: x.roll(1, -1), torch.zeros_like, torch.ones_like
    )  # fmt: skip
    for changed in other_values:
        copies = [graph.clone() for graph in graphs]
        for graph in copies:
            graph.x = changed(graph.x)
        yield copies


def _padded_outputs(model: Wrapped, graphs: list[Data]) -> dict[str, Tensor]:
    """Return the first padded output (B, S, ...) of each embedding in a pass."""
    outputs: dict[str, Tensor] = {}
    batch = model.collate(graphs).to(model.device)

    def keep(name: str, args: tuple[Any, ...], output: Any) -> None:
        places = places_in(output, batch, model.lookups.dense.get(name))
        if places is not None and places.dense:
            outputs.setdefault(name, output.detach().clone())

    with model.settings.hooking_embedding(model.running, keep):
        model.call_module(None, batch, batch.mask)
    return outputs


def _places_of(changed: Tensor, sizes: Tensor) -> NodePlaces | None:
    """Return where the nodes stand among rows (B, S), if just as many rows changed, side by side.

    Args:
        changed: for each row whether it changed with the nodes.
        sizes: the numbers of nodes (B,).
    """
    if not torch.equal(changed.sum(1), sizes):
        return None
    first = changed.int().argmax(1)
    behind = changed.shape[1] - first - sizes
    slots = torch.arange(changed.shape[1])
    side_by_side = (slots >= first[:, None]) & (slots < (first + sizes)[:, None])
    if not torch.equal(changed, side_by_side):
        return None
    if len(first.unique()) == 1:
        return NodePlaces(dense=True, before=int(first[0]))
    return NodePlaces(dense=True, behind=int(behind[0])) if len(behind.unique()) == 1 else None
