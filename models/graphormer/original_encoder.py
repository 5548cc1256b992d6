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
_WITH_BIAS = {Linear, LayerNorm}
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
    return dtype in (torch.float32, torch.float64) and _are_original(encoder, dtype)


def _are_original(modules: list[tuple[nn.Module, type[nn.Module]]], dtype: torch.dtype) -> bool:
    """Return whether modules of the encoder, with their parts, are as this package wrote them.

    It is asked in every explanation, so it goes through the modules without calling itself.
    """
    while modules:
        module, kind = modules.pop()
        attributes = vars(module)
        if type(module) is not kind or kind.forward is not _FORWARD[kind]:
            return False
        if attributes["training"] or "forward" in attributes:
            return False
        for name in _HOOKS:
            if attributes[name]:
                return False
        parameters = attributes["_parameters"]
        for parameter in parameters.values():
            if parameter is not None and (
                type(parameter) is not nn.Parameter or parameter.dtype != dtype
            ):
                return False
        if kind in _WITH_BIAS and parameters.get("bias") is None:
            return False
        parts, children = _PARTS[kind], attributes["_modules"]
        if children.keys() != parts.keys():
            return False
        for name, part in children.items():
            modules.append((part, parts[name]))  # a part that is None has another type
    return True
