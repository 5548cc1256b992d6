"""Run variants of a batch, with other tokens or hidden nodes, in passes of limited size.

A Graphormer's structural bias is computed once and shared by all variants.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.models.graphormer import Graphormer

Operator = Literal["mask", "zero"]
MAX_PAIRS = 50_000  # how many token pairs a pass may have before it no longer fits the cache


def structural_bias(model: ExplainableModel, batch: GraphBatch) -> Tensor | None:
    """Compute the structural bias (B, H, T, T) of attention, or None if the model has none."""
    if not isinstance(model, Graphormer):
        return None
    with torch.no_grad():
        return model.bias(batch)


def encode(
    model: ExplainableModel,
    tokens: Tensor,
    batch: GraphBatch,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Compute outputs (B, num_outputs), given the bias from `structural_bias` if there is one."""
    if bias is None or not isinstance(model, Graphormer):
        return model.encode(tokens, batch, keep)
    return model.encode(tokens, batch, keep, bias)


def encode_variants(
    model: ExplainableModel,
    tokens: Tensor,
    batch: GraphBatch,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Compute the outputs (K, B, num_outputs) of K variants of a batch.

    Args:
        model: any explainable model.
        tokens: the tokens of every variant (K, B, T, D).
        batch: B graphs.
        keep: False where a node is hidden (K, B, N).
        bias: the structural bias (B, H, T, T), if the model has one.
    """
    k, b = tokens.shape[:2]
    if bias is None and getattr(model, "takes_variants", False):  # all at once
        hidden = None if keep is None else keep.flatten(0, 1)
        return model.encode(tokens.flatten(0, 1), batch, hidden).unflatten(0, (k, b))
    if bias is None:
        kept = [None] * k if keep is None else list(keep)
        return torch.stack([model.encode(tokens[i], batch, kept[i]) for i in range(k)])
    shared = bias if b == 1 else bias.expand(k, -1, -1, -1, -1).flatten(0, 1)
    hidden = None if keep is None else keep.flatten(0, 1)
    return encode(model, tokens.flatten(0, 1), batch, hidden, shared).unflatten(0, (k, b))


def encode_parts(
    model: ExplainableModel,
    tokens: Tensor,
    batch: GraphBatch,
    keep: Tensor,
    bias: Tensor,
    operator: Operator,
) -> Tensor:
    """Compute a Graphormer's outputs (K, B, num_outputs) for K parts of each graph.

    Nothing is computed twice: a part that equals another one of its graph, such as one without a
    node that is padding, takes that one's output. Passes are made of graphs of similar size,
    without the padding of the batch.

    Args:
        model: the Graphormer.
        tokens: the tokens of the batch (B, T, D).
        batch: B graphs.
        keep: True at the nodes of each part (K, B, N).
        bias: the structural bias (B, H, T, T).
        operator: how the other nodes are removed, by a mask or by zeros as their tokens.
    """
    sizes: list[int] = batch.num_nodes.tolist()
    rows: list[tuple[int, Tensor]] = []
    places: list[tuple[int, int, Tensor]] = []
    for graph in sorted(range(len(sizes)), key=sizes.__getitem__):
        parts, place = keep[:, graph, : sizes[graph]].unique(dim=0, return_inverse=True)
        places.append((graph, len(rows), place))
        rows += [(graph, part) for part in parts]
    outputs = torch.cat(
        [_encode_rows(model, tokens, batch, part, bias, operator) for part in _fitting(rows)]
    )
    result = outputs.new_empty(*keep.shape[:2], outputs.shape[-1])
    for graph, first, place in places:
        result[:, graph] = outputs[first + place]
    return result


def _fitting(rows: list[tuple[int, Tensor]]) -> Iterator[list[tuple[int, Tensor]]]:
    """Cut the parts of graphs (N,), which grow in size, into passes with as many as fit."""
    start = 0
    for stop in range(1, len(rows) + 1):
        tokens = len(rows[min(stop, len(rows) - 1)][1]) + 1
        if stop == len(rows) or (stop + 1 - start) * tokens**2 > MAX_PAIRS:
            yield rows[start:stop]
            start = stop


def _encode_rows(
    model: ExplainableModel,
    tokens: Tensor,
    batch: GraphBatch,
    rows: list[tuple[int, Tensor]],
    bias: Tensor,
    operator: Operator,
) -> Tensor:
    """Compute the outputs (R, num_outputs) of R parts, each with the number of its graph."""
    kept = pad_sequence([part for _, part in rows], batch_first=True)  # (R, N)
    graphs, t = [graph for graph, _ in rows], kept.shape[1] + 1
    shared = graphs[0] == graphs[-1]  # one graph needs no copies of its bias
    pairs = bias[graphs[:1], :, :t, :t].expand(len(rows), -1, -1, -1) if shared else None
    pairs = bias[graphs, :, :t, :t] if pairs is None else pairs
    if operator == "mask":
        return encode(model, tokens[graphs, :t], batch, kept, pairs)
    stays = torch.cat([kept.new_ones(len(rows), 1), kept], dim=-1)
    return encode(model, tokens[graphs, :t] * stays[..., None], batch, bias=pairs)


def in_passes(batch: GraphBatch, variants: int) -> Iterator[slice]:
    """Slice the variants into passes, each with as many as fit."""
    pairs = len(batch) * (batch.mask.shape[1] + 1) ** 2
    step = max(1, MAX_PAIRS // getattr(batch, "size", pairs))
    for start in range(0, variants, step):
        yield slice(start, min(start + step, variants))
