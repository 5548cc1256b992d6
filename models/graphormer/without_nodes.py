"""Compute the output of a graph without nodes, which every explanation names, in a few products."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .layers import EncoderLayer, LayerNorm, Linear
from .model import Graphormer, TransformHead
from .original_encoder import has_original_encoder

__all__ = ["outputs_without_nodes"]


@torch.no_grad()
def outputs_without_nodes(model: Graphormer) -> Tensor | None:
    """Return the outputs (1, num_outputs) of a graph without nodes, the same for all batches.

    The graph token then attends to itself alone, so that a layer passes on its value. No part of
    the model is called, only its weights are read. So the result is None for a model whose encoder
    was changed, or which answers for nodes: `Graphormer.outputs_without_nodes` asks the model.
    """
    if type(model) is not Graphormer or not has_original_encoder(model):
        return None
    x = model.graph_token[None]  # (1, D)
    if model.embedding_norm is not None:
        x = model.embedding_norm(x)
    for layer in model.layers:
        assert isinstance(layer, EncoderLayer)
        x = _layer(layer, x)
    if model.final_norm is not None:
        x = _norm(model.final_norm, x)
    head = model.head
    if isinstance(head, Linear):
        return F.linear(x, head.weight, head.bias)
    assert isinstance(head, TransformHead)
    x = _norm(head.norm, F.gelu(F.linear(x, head.transform.weight, head.transform.bias)))
    return F.linear(x, head.output.weight) + head.bias


def _layer(layer: EncoderLayer, x: Tensor) -> Tensor:
    """Return the graph token x (1, D) after a layer in which it sees nothing else."""
    value, output = layer.attention.value, layer.attention.output
    expand, contract = layer.ffn.expand, layer.ffn.contract
    y = _norm(layer.attention_norm, x) if layer.pre_layernorm else x
    y = F.linear(F.linear(y, value.weight, value.bias), output.weight, output.bias)
    x = y.add_(x) if layer.pre_layernorm else _norm(layer.attention_norm, y.add_(x))
    y = _norm(layer.ffn_norm, x) if layer.pre_layernorm else x
    y = F.linear(F.gelu(F.linear(y, expand.weight, expand.bias)), contract.weight, contract.bias)
    return y.add_(x) if layer.pre_layernorm else _norm(layer.ffn_norm, y.add_(x))


def _norm(norm: LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)
