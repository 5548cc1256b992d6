"""Find out where the nodes stand in the padded output (B, S, ...) of an embedding.

A class token may stand before or behind the nodes, and padding in front of them or behind. The
shape does not say which. So a few passes of the same graphs with their nodes in another order, and
with other features, show which rows change: those of the nodes.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphxai.contract.model import evaluating

from .batches import WrappedBatch
from .lookups import NodePlaces, places_in

Wrapped = Any  # a WrappedModel, whose file imports this one
ROUNDING = 1e-5  # of the largest value


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
