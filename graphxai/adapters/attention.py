"""PyTorch's attention written out, so that its probabilities can be held constant and recorded.

The definitions follow the documentation of `scaled_dot_product_attention` and
`nn.MultiheadAttention` (Vaswani 2017, section 3.2); the softmax is that of `rules.conservative`.
"""

import math
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.rules import conservative as propagation

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]
# (query, key, value, bias, dropout) to (mixed values, probabilities)
Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], tuple[Tensor, Tensor]]

_MULTI_HEAD = signature(F.multi_head_attention_forward)


def probabilities(query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
    """`softmax(q k^T + bias)` (..., Q, T); zero in rows whose every key is excluded."""
    if bias is None:
        bias = query.new_zeros(())
        return propagation.softmax_attention(query, key, bias)
    nothing = (bias == -math.inf).all(-1, keepdim=True)  # a softmax over no keys is not a number
    weights = propagation.softmax_attention(query, key, bias.masked_fill(nothing, 0.0))
    return weights.masked_fill(nothing, 0.0)


def additive(mask: Tensor | None, like: Tensor, *, true_is: str) -> Tensor | None:
    """A mask as a term of the logits; a boolean one marks what is "kept" or "excluded"."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    excluded = mask if true_is == "excluded" else ~mask
    return like.new_zeros(mask.shape).masked_fill(excluded, -math.inf)


def scaled_dot_product(
    attend: Attend,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`F.scaled_dot_product_attention` of query (..., H, Q, d), key and value (..., H, T, d)."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    bias = additive(attn_mask, query, true_is="kept")
    if is_causal:
        earlier = query.new_ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        bias = additive(earlier, query, true_is="kept")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return attend(query * scale, key, value, bias, dropout_p)[0]


def multi_head(
    attend: Attend, linear: Linear, constant: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """`F.multi_head_attention_forward`: query (Q, B, D) or (Q, D) in, the same shape out.

    `constant` is applied to the learned extra value `bias_v`. Attention is returned if the caller
    needs it.
    """
    bound = _MULTI_HEAD.bind(*args, **kwargs)
    bound.apply_defaults()
    a = bound.arguments
    query, key, value = a["query"], a["key"], a["value"]
    batched = query.dim() == 3
    if not batched:
        query, key, value = (t.unsqueeze(1) for t in (query, key, value))
    heads, padding = a["num_heads"], a["key_padding_mask"]
    q, k, v = (linear(t, *w) for t, w in zip((query, key, value), _projections(a), strict=True))
    if padding is not None and not batched:
        padding = padding.unsqueeze(0)
    bias = _bias(a["attn_mask"], padding, q, k, heads, bool(a["is_causal"]))
    if a["bias_k"] is not None:
        k = torch.cat([k, a["bias_k"].expand(-1, k.shape[1], -1)])
        v = torch.cat([v, constant(a["bias_v"]).expand(-1, v.shape[1], -1)])
    if a["add_zero_attn"]:
        k, v = F.pad(k, (0, 0, 0, 0, 0, 1)), F.pad(v, (0, 0, 0, 0, 0, 1))
    if bias is not None:
        bias = F.pad(bias, (0, len(k) - bias.shape[-1]))
    q, k, v = (t.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3) for t in (q, k, v))  # (B, H, ., d)
    dropout = a["dropout_p"] if a["training"] else 0.0
    mixed, weights = attend(q * q.shape[-1] ** -0.5, k, v, bias, dropout)
    mixed = mixed.permute(2, 0, 1, 3).flatten(2)  # (Q, B, D)
    out = linear(mixed, a["out_proj_weight"], a["out_proj_bias"])
    weights = weights.mean(1) if a["average_attn_weights"] else weights
    if not batched:
        out, weights = out.squeeze(1), weights.squeeze(0)
    return out, weights if a["need_weights"] else None


def _projections(a: dict[str, Any]) -> list[tuple[Tensor, Tensor | None]]:
    """Weight and bias of the maps to queries, keys and values."""
    biases = (None,) * 3 if a["in_proj_bias"] is None else a["in_proj_bias"].chunk(3)
    if a["use_separate_proj_weight"]:
        weights = (a["q_proj_weight"], a["k_proj_weight"], a["v_proj_weight"])
    else:
        weights = a["in_proj_weight"].chunk(3)
    return list(zip(weights, biases, strict=True))


def _bias(
    mask: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor, heads: int, causal: bool
) -> Tensor | None:
    """Mask (Q, T) or (B * H, Q, T) and key padding (B, T) as one term (B, H, Q, T) or less."""
    bias = additive(mask, q, true_is="excluded")
    if bias is None and causal:
        later = q.new_ones(len(q), len(k), dtype=torch.bool).triu(1)
        bias = additive(later, q, true_is="excluded")
    if bias is not None and bias.dim() == 3:
        bias = bias.reshape(-1, heads, *bias.shape[1:])
    excluded = additive(padding, q, true_is="excluded")
    if excluded is None:
        return bias
    excluded = excluded[:, None, None, :]
    if bias is None:
        return excluded.expand(-1, -1, len(q), -1)
    return bias + excluded
