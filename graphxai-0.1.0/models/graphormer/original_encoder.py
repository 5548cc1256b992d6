"""Check whether the encoder of a Graphormer still computes what this package wrote."""

from typing import TypeGuard

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from .layers import Attention, EncoderLayer, FeedForward, LayerNorm, Linear
from .model import Graphormer, TransformHead
from .nodes import NodeGraphormer

# The types of the modules of an encoder, each with the names and types of its parts.
_PARTS: dict[type[nn.Module], dict[str, type[nn.Module]]] = {
    EncoderLayer: {
        "attention_norm": LayerNorm,
        "attention": Attention,
        "ffn_norm": LayerNorm,
        "ffn": FeedForward,
        "dropout": nn.Dropout,
    },
    Attention: {"query": Linear, "key": Linear, "value": Linear, "output": Linear},
    FeedForward: {"expand": Linear, "contract": Linear},
    TransformHead: {"transform": Linear, "norm": LayerNorm, "output": nn.Linear},
    LayerNorm: {},
    Linear: {},
    nn.Linear: {},
    nn.Dropout: {},
}
_FORWARD = {kind: kind.forward for kind in _PARTS}
_ENCODE = Graphormer.encode
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_original_encoder(model: object) -> TypeGuard[Graphormer]:
    """Return whether a model is a Graphormer whose encoder computes what this package wrote.

    The model must be in eval mode and in single or double precision, without autocast. No module of
    its encoder may have been replaced, or have hooks, another `forward` or parametrized weights.
    """
    if type(model) is not NodeGraphormer and type(model) is not Graphormer:
        return False
    if model.training or _has_any_global_hook():
        return False
    if "encode" in vars(model) or type(model).encode is not _ENCODE or not len(model.layers):
        return False
    weight = model.node_embedding.in_degree
    if torch.is_autocast_enabled(weight.device.type):
        return False
    encoder: list[tuple[nn.Module, type[nn.Module]]] = [
        (model.dropout, nn.Dropout),
        *((layer, EncoderLayer) for layer in model.layers),
        (model.head, Linear if model.config.head == "linear" else TransformHead),
    ]
    if model.final_norm is not None:
        encoder.append((model.final_norm, LayerNorm))
    dtype = weight.dtype
    return dtype in (torch.float32, torch.float64) and all(
        _is_original(module, kind, dtype) for module, kind in encoder
    )


def _is_original(module: nn.Module, kind: type[nn.Module], dtype: torch.dtype) -> bool:
    """Return whether a module of the encoder, with its parts, is as this package wrote it."""
    attributes = vars(module)
    if type(module) is not kind or kind.forward is not _FORWARD[kind] or "forward" in attributes:
        return False
    if module.training or any(map(attributes.__getitem__, _HOOKS)):
        return False
    for parameter in module._parameters.values():
        if parameter is not None and (
            type(parameter) is not nn.Parameter or parameter.dtype != dtype
        ):
            return False
    if isinstance(module, Linear | LayerNorm) and module.bias is None:
        return False
    parts = _PARTS[kind]
    children = module._modules
    return children.keys() == parts.keys() and all(
        part is not None and _is_original(part, parts[name], dtype)
        for name, part in children.items()
    )
