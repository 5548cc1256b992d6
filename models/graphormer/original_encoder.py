"""Check whether the encoder of a Graphormer still computes what this package wrote."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from graphxai.runtime.derived_values import DerivedValues, derived_values

from .layers import Attention, EncoderLayer, FeedForward, LayerNorm, Linear
from .model import Graphormer, NodeGraphormer, TransformHead

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
_SETTINGS = {EncoderLayer: ("pre_layernorm",), Attention: ("heads", "scale"), LayerNorm: ("eps",)}
_WITH_BIAS = {Linear, LayerNorm}
_FORWARD = {kind: kind.forward for kind in _PARTS}
_ENCODE = Graphormer.encode
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def prepared_encoder(model: object) -> DerivedValues | None:
    """Return what was computed from the weights of a model's encoder, if it is the original.

    The result is None unless the model is a Graphormer whose encoder computes what this package
    wrote. It must be in eval mode and in single or double precision, without autocast. No module of
    its encoder may have been replaced, or have hooks, another `forward` or parametrized weights.
    """
    if type(model) is not NodeGraphormer and type(model) is not Graphormer:
        return None
    if model.training or _has_any_global_hook():
        return None
    if "encode" in vars(model) or type(model).encode is not _ENCODE or not len(model.layers):
        return None
    weight = model.node_embedding.in_degree
    if torch.is_autocast_enabled(weight.device.type):
        return None
    encoder: list[tuple[nn.Module, type[nn.Module]]] = [
        (model.dropout, nn.Dropout),
        *((layer, EncoderLayer) for layer in model.layers),
        (model.head, Linear if model.config.head == "linear" else TransformHead),
    ]
    if model.final_norm is not None:
        encoder.append((model.final_norm, LayerNorm))
    dtype = weight.dtype
    original = _original_state(encoder, dtype) if dtype in (torch.float32, torch.float64) else None
    return None if original is None else derived_values(model, *original)


def _original_state(
    modules: list[tuple[nn.Module, type[nn.Module]]], dtype: torch.dtype
) -> tuple[list[Tensor], list[Any]] | None:
    """Return the weights and settings of modules if they and their parts are as they were written.

    It is asked in every explanation, so it goes through the modules without calling itself.
    """
    weights: list[Tensor] = []
    settings: list[Any] = []
    while modules:
        module, kind = modules.pop()
        attributes = vars(module)
        if type(module) is not kind or kind.forward is not _FORWARD[kind]:
            return None
        changed = attributes["training"] or "forward" in attributes
        if changed or any(map(attributes.__getitem__, _HOOKS)):
            return None
        parameters = attributes["_parameters"]
        for parameter in parameters.values():
            if parameter is None:
                continue
            if type(parameter) is not nn.Parameter or parameter.dtype != dtype:
                return None
            weights.append(parameter)
        if kind in _WITH_BIAS and parameters.get("bias") is None:
            return None
        settings += [attributes[name] for name in _SETTINGS.get(kind, ())]
        parts, children = _PARTS[kind], attributes["_modules"]
        if children.keys() != parts.keys():
            return None
        for name, part in children.items():
            modules.append((part, parts[name]))  # a part that is None has another type
    return weights, settings
