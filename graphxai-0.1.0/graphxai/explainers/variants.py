"""Run variants of a batch, with other tokens or hidden nodes, in passes of limited size.

A Graphormer's structural bias is computed once and shared by all variants.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.models.graphormer import Graphormer

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
    if bias is None and hasattr(batch, "repeated"):  # a wrapped model takes all variants at once
        hidden = None if keep is None else keep.flatten(0, 1)
        return model.encode(tokens.flatten(0, 1), batch, hidden).unflatten(0, (k, b))
    if bias is None:
        kept = [None] * k if keep is None else list(keep)
        return torch.stack([model.encode(tokens[i], batch, kept[i]) for i in range(k)])
    shared = bias if b == 1 else bias.expand(k, -1, -1, -1, -1).flatten(0, 1)
    hidden = None if keep is None else keep.flatten(0, 1)
    return encode(model, tokens.flatten(0, 1), batch, hidden, shared).unflatten(0, (k, b))


def in_passes(batch: GraphBatch, variants: int) -> Iterator[slice]:
    """Slice the variants into passes, each with as many as fit."""
    step = max(1, MAX_PAIRS // (len(batch) * (batch.mask.shape[1] + 1) ** 2))
    for start in range(0, variants, step):
        yield slice(start, min(start + step, variants))
