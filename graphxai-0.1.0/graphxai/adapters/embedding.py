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
from .lookups import Hook, embeddings_in, is_unclear, joined, looks_up_nodes, width_of

Wrapped = Any  # a WrappedModel, whose file imports this one


def replacing_rows(model: Wrapped, rows: Tensor, batch: WrappedBatch) -> Hook:
    """Return a hook for one pass that lets each embedding return its part of the rows (n, W)."""
    start = 0

    def replaced(name: str, args: tuple[Any, ...], output: Any) -> Any:
        nonlocal start
        if (places := model.lookups.places(name, output, batch)) is None:
            return output
        end = start + width_of(output, places, batch)
        of_this = rows if start == 0 and end == rows.shape[-1] else rows[..., start:end]
        start = end
        return places.with_rows(output, of_this, batch)

    return replaced


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
    rows = []
    for name, output in calls:
        if (places := model.lookups.places(name, output, batch)) is not None:
            rows.append(places.rows_in(output, batch))
        elif name not in model.lookups.chosen:
            raise ValueError(_without_nodes(name, output, batch))
    for name in model.settings.embedding:
        count = [called for called, _ in calls].count(name)
        if count != 1 and name not in model.lookups.chosen:
            raise ValueError(
                f"the module {name!r} is called {count} times in a pass; name a module that is"
                " called once."
            )
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
