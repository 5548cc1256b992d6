"""Describe the passes of a wrapped model to the engine that explains them."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from .batches import WrappedBatch
from .beside_empty import pass_beside_empty
from .engine.pass_request import PassRequest
from .heterogeneous import OF_TYPES

Wrapped = Any  # a WrappedModel, whose file imports this one
NO_INPUTS = {"x", "num_nodes", "y", *OF_TYPES}  # attributes that do not count as further inputs


def described_pass(model: Wrapped, rows: Tensor, batch: WrappedBatch, shown: Tensor) -> PassRequest:
    """Describe the pass of node rows (n, D) or (B, S, D), with the graph's other attributes.

    If the rows are an embedding, `x` is one of these attributes, because the model may use it for
    more than the embedding.

    Args:
        model: the wrapped model.
        rows: the rows of the nodes.
        batch: the batch.
        shown (B, N): False at the tokens to hide.
    """
    everything_else_read = (model.settings, shown, *batch.contents())
    call_with_leaves = model.rows_to_outputs(batch, shown) if batch.leaves else None
    leaves, batch = batch.leaves, batch.without_gradients()
    no_inputs = NO_INPUTS if not model.settings.embedding else NO_INPUTS - {"x"}
    others = {
        name: value
        for name, value in (() if batch.graphs is None else batch.graphs.items())
        if isinstance(value, Tensor) and value.layout == torch.strided and name not in no_inputs
    }
    request = PassRequest(
        module=model.running,
        call=model.rows_to_outputs(batch, shown),
        rows=rows,
        layout=batch.layout,
        others=others,
        graphs_of=cache(batch.graphs_of),
        leaves=leaves,
        call_with_leaves=call_with_leaves,
        key=everything_else_read,
        memory=model.memory,
        part=partial(_pass_of_two, model, rows, batch, shown),
    )
    beside_empty = partial(pass_beside_empty, model, request, batch, shown)
    return request if leaves else replace(request, beside_empty=beside_empty)


def _pass_of_two(
    model: Wrapped, rows: Tensor, batch: WrappedBatch, shown: Tensor
) -> PassRequest | None:
    """Describe the pass of the smallest and the largest graph; None if there are no others.

    They are of different size, if they can be, because the smaller one then has padding.
    """
    if len(batch) <= 2:
        return None
    chosen = [int(batch.num_nodes.argmin()), int(batch.num_nodes.argmax())]
    if chosen[0] == chosen[1]:
        chosen[1] += 1
    two = batch.of_rows(*chosen)
    if batch.graphs is not None:
        rows = torch.cat([rows[batch.layout.graph == graph] for graph in chosen])
    elif rows.shape[1] == batch.mask.shape[1] + batch.has_graph_token:
        rows = rows[chosen, : two.mask.shape[1] + two.has_graph_token]
    else:
        return None
    return described_pass(model, rows, two, shown[chosen, : two.mask.shape[1]])
