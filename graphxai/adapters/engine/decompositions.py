"""Fused operations written out in plain ones, so that their parts can be seen.

Each function takes the arguments of the ATen operation and returns what it returns. What only its
own backward pass needs, such as the logarithm of attention's sums, is left as zeros.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """A value and its gate, beside each other along `dim`."""
    value, gate = x.chunk(2, dim)
    return value * gate.sigmoid()


def lerp(start: Tensor, end: Tensor, weight: Any) -> Tensor:
    """From one value to another; the weight may be a gate."""
    return start * (1 - weight) + end * weight


def addcmul(x: Tensor, first: Tensor, second: Tensor, *, value: float = 1) -> Tensor:
    """`x + value first second`."""
    product = first * second
    return x + (product if value == 1 else value * product)


def addcdiv(x: Tensor, first: Tensor, second: Tensor, *, value: float = 1) -> Tensor:
    """`x + value first / second`."""
    quotient = first / second
    return x + (quotient if value == 1 else value * quotient)


def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Dropout with its mask."""
    if train is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = torch.empty_like(x).bernoulli_(1 - p)
    return x * mask * (1 / (1 - p) if p < 1 else 0.0), mask.bool()


def rrelu(
    x: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
    generator: Any = None,
) -> Tensor:  # fmt: skip
    """Leaky ReLU with slopes from lower to upper: random ones in training, else their mean."""
    if not training:
        return torch.nn.functional.leaky_relu(x, (lower + upper) / 2)
    slope = torch.empty_like(x).uniform_(lower, upper, generator=generator)
    return torch.where(x < 0, x * slope, x)


def rrelu_(x: Tensor, *args: Any) -> Tensor:
    """The same in place."""
    return x.copy_(rrelu(x, *args))


def trilinear(a: Tensor, weight: Tensor, b: Tensor, *axes: Any) -> Tensor:
    """Sums of products of three tensors, after axes of length one are added to each.

    `nn.Bilinear` is `a^T W b` of a (n, D), weight (K, D, E), b (n, E), which is two products.
    """
    *added, summed = axes[:4]
    if (*added, summed) == ([1, 3], [0], [1, 2], [2, 3]):
        rows = torch.tensordot(a, weight, ([1], [1]))  # (n, K, E)
        return (rows * b[:, None]).sum(-1)
    factors = []
    for factor, own in zip((a, weight, b), added, strict=True):
        for axis in own:
            factor = factor.unsqueeze(axis)
        factors.append(factor)
    product = factors[0] * factors[1] * factors[2]
    return product.sum(summed) if summed else product


def sparse_addmm(
    x: Tensor, matrix: Tensor, rows: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """`beta x + alpha (matrix @ rows)`, of a sparse matrix (N, M) and rows (M, D)."""
    if matrix.layout != torch.sparse_coo:
        matrix = matrix.to_sparse_coo()
    target, source = matrix._indices()
    terms = matrix._values()[:, None] * rows.index_select(0, source)
    summed = rows.new_zeros(matrix.shape[0], rows.shape[1]).index_add(0, target, terms)
    summed = summed if alpha == 1 else alpha * summed
    return x * beta + summed if beta else summed


def attention(
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
    """`softmax(q k^T + mask) v` of q (..., Q, d), k and v (..., T, d); zero where all is masked."""
    if query.dim() > 2 and key.shape[-3] not in (1, query.shape[-3]):  # grouped queries
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scores = _product(
        query * (query.shape[-1] ** -0.5 if scale is None else scale), key.transpose(-2, -1)
    )
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch._safe_softmax(scores, -1)
    return _product(torch.dropout(weights, dropout_p, True) if dropout_p else weights, value)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b`, in fewer steps than `matmul` takes where nothing is broadcast."""
    if a.dim() < 4 or a.shape[:-2] != b.shape[:-2]:
        return a @ b
    rows, columns = a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])
    return torch.bmm(rows, columns).view(*a.shape[:-1], b.shape[-1])


def _for_cpu(
    query: Tensor, key: Tensor, value: Tensor, *args: Any, attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    out = attention(query, key, value, attn_mask, *args, scale=scale)
    return out, query.new_zeros(query.shape[:-1])


def lstm_layer(x: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One layer of an LSTM over x (S, B, D), step by step."""
    w_input, w_hidden, b_input, b_hidden, hidden, cell, reverse, *settings = args
    has_biases = settings[4]
    steps = x.flip(0) if reverse else x
    h, c, found = hidden.reshape(x.shape[1], -1), cell.reshape(x.shape[1], -1), []
    for step in steps.unbind(0):
        gates = step @ w_input.T + h @ w_hidden.T
        if has_biases:
            gates = gates + b_input + b_hidden
        let_in, forget, new, out = gates.chunk(4, -1)
        c = forget.sigmoid() * c + let_in.sigmoid() * new.tanh()
        h = out.sigmoid() * c.tanh()
        found.append(h)
    stacked = torch.stack(found[::-1] if reverse else found)
    return stacked, h.view_as(hidden), c.view_as(cell), x.new_zeros(0)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.glu.default: glu,
    aten.lerp.Scalar: lerp,
    aten.lerp.Tensor: lerp,
    aten.addcmul.default: addcmul,
    aten.addcdiv.default: addcdiv,
    aten.native_dropout.default: native_dropout,
    aten.rrelu_with_noise.default: rrelu,
    aten.rrelu_with_noise_.default: rrelu_,
    aten._trilinear.default: trilinear,
    aten._sparse_addmm.default: sparse_addmm,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _for_cpu,
    aten.scaled_dot_product_attention.default: attention,
    aten.mkldnn_rnn_layer.default: lstm_layer,
}
