"""Pass graphs through the model one at a time if they cannot share a pass."""

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data

from .batches import WrappedBatch
from .subgraphs import attribute_roles, restricted

Wrapped = Any  # a WrappedModel, which calls the functions here


def one_by_one(
    model: Wrapped,
    tokens: Tensor,
    batch: WrappedBatch,
    keep: Tensor | None,
    nothing: Tensor | None = None,
) -> Tensor:
    """Outputs (K * B, C) of tokens (K * B, T, D) of a batch of B; keep (K * B, N) as in `encode`.

    nothing (1, C): the output if no node is left; None: the model's output for an empty graph. If
    that is not finite, the nodes are set to zero instead, with a warning.
    """
    graphs, times = batch.examples(), len(tokens) // len(batch)
    shown = batch.mask.repeat(times, 1) if keep is None else batch.mask.repeat(times, 1) & keep
    roles = None if keep is None else attribute_roles(graphs, model.read_of_graphs())
    outputs = []
    for row, (of_tokens, stays) in enumerate(zip(tokens[:, 1:], shown, strict=True)):
        graph = graphs[row % len(graphs)]
        own = stays[: int(graph.num_nodes or 0)]
        rest = graph if keep is None else restricted(graph, own, roles)
        if bool(own.any()):
            rows = F.pad(of_tokens[stays], (0, 0, 1, 0))[None]
            outputs.append(model.encode(rows, model.collate([rest])))
        else:
            outputs.append(
                _of_nothing(model, graph, rest, of_tokens) if nothing is None else nothing
            )
    return torch.cat(outputs)


def tokens_one_by_one(
    model: Wrapped, tokens: Tensor, batch: WrappedBatch, keep: Tensor | None
) -> Tensor:
    """As `one_by_one`, for rows of tokens."""
    outputs = []
    for row, own in enumerate(tokens):
        one = batch.of_rows(row % len(batch))
        nodes = one.mask.shape[1]
        shown = None if keep is None else keep[row : row + 1, :nodes]
        outputs.append(model.encode(own[None, : nodes + 1], one, shown))
    return torch.cat(outputs)


def _of_nothing(model: Wrapped, graph: Data, empty: Data, like: Tensor) -> Tensor:
    """Output (1, C) of a graph with all nodes hidden; like (N, D)."""
    if (found := _finite_output(model, empty, like[:0], graph)) is not None:
        return found
    warn_of_zeroed_nodes(model)
    zeros = like.new_zeros(1, int(graph.num_nodes or 0) + 1, like.shape[1])
    return model.encode(zeros, model.collate([graph]))


def output_of_empty(model: Wrapped, empty: Data) -> Tensor:
    """Output (1, C) of a graph without nodes; NaN, with a warning, if the model has none."""
    if (found := _finite_output(model, empty)) is not None:
        return found
    warn_of_undefined_empty(model)
    return torch.full((1, model.config.num_outputs), torch.nan, device=empty.x.device)


def outputs_without_any_nodes(model: Wrapped, batch: WrappedBatch) -> Tensor | None:
    """Outputs (B, C) of these graphs with all nodes hidden, or None if one is not finite."""
    graphs = batch.examples()
    roles = attribute_roles(graphs, model.read_of_graphs())
    outputs = []
    for graph in graphs:
        none = torch.zeros(int(graph.num_nodes or 0), dtype=torch.bool, device=graph.x.device)
        found = _finite_output(model, restricted(graph, none, roles), beside=graph)
        if found is None:
            return None
        outputs.append(found)
    return torch.cat(outputs)


def _finite_output(
    model: Wrapped, empty: Data, rows: Tensor | None = None, beside: Data | None = None
) -> Tensor | None:
    """The model's output (1, C) for an empty graph, or None if not finite.

    rows: tokens (0, D); beside: a graph to run with it, if it cannot run alone and the model does
    not mix graphs.
    """
    if (found := _first_output(model, [empty], rows)) is not None or beside is None:
        return found
    return None if model.survey.mixing is not None else _first_output(model, [empty, beside])


def _first_output(model: Wrapped, graphs: list[Data], rows: Tensor | None = None) -> Tensor | None:
    """The output (1, C) of the first graph in a pass of all, or None if not finite."""
    try:
        batch = model.collate(graphs)
        rows = model.embed(batch)[:, 1:][batch.mask] if rows is None else rows
        found: Tensor = model.pass_on(rows, batch)[:1]
    except (RuntimeError, ValueError, IndexError):
        return None
    return found if bool(torch.isfinite(found).all()) else None


def warn_of_zeroed_nodes(model: Wrapped) -> None:
    """Warn that nodes were set to zero because the output of an empty graph is not finite."""
    warnings.warn(
        f"{type(model.module).__name__} has no finite output for a graph without nodes: where all"
        " nodes are hidden, they were set to zero instead.",
        stacklevel=5,
    )


def warn_of_undefined_empty(model: Wrapped) -> None:
    """Warn that the output of graphs without nodes is not finite."""
    warnings.warn(
        f"{type(model.module).__name__} has no finite output for a graph without nodes, so results"
        " that need it, such as curves with the operator 'delete', are NaN: use 'mask' or 'zero'.",
        stacklevel=5,
    )
