"""Keep PyTorch from hiding operations in fused kernels and the ties of a maximum.

Fused operations are written out in plain ones, so that their parts are recorded. Each function
takes the arguments of the ATen operation and returns what it returns. Results that only the
backward pass of the operation needs, such as the logarithms of attention's sums, are zero.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from graphxai.runtime.modules import entered
from graphxai.runtime.scope import Blocks, shared_block

# whether ties are only looked for in models that have put entries in an order before
ties_as_computed: Blocks[bool] = Blocks("graphxai_ties", False)


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """Multiply the first half of x along `dim` by the gate in the second half."""
    value, gate = x.chunk(2, dim)
    return value * gate.sigmoid()


def log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `log(sigmoid(x))`, and return the buffer of the backward pass, too."""
    return -torch.nn.functional.softplus(-x, threshold=50), x.new_zeros(0)


def lerp(start: Tensor, end: Tensor, weight: Any) -> Tensor:
    """Interpolate between two values by a weight, which may be a gate."""
    return start * (1 - weight) + end * weight


def plus(combined: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Return a function that computes `x + value combined(first, second)`."""

    def of_three(x: Tensor, first: Tensor, second: Tensor, *, value: float = 1) -> Tensor:
        term = combined(first, second)
        return x + (term if value == 1 else value * term)

    return of_three


def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Apply dropout, and return its mask, too."""
    if train is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = torch.empty_like(x).bernoulli_(1 - p)
    return x * mask * (1 / (1 - p) if p < 1 else 0.0), mask.bool()


def rrelu(
    x: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
    generator: Any = None,
) -> Tensor:  # fmt: skip
    """Apply a leaky ReLU, whose slopes are random in training and otherwise their mean."""
    if not training:
        return torch.nn.functional.leaky_relu(x, (lower + upper) / 2)
    slope = torch.empty_like(x).uniform_(lower, upper, generator=generator)
    return torch.where(x < 0, x * slope, x)


def trilinear(a: Tensor, weight: Tensor, b: Tensor, *axes: Any) -> Tensor:
    """Sum products of three tensors, after axes of length one are added to each.

    `nn.Bilinear` computes `a^T W b` of a (n, D), weight (K, D, E) and b (n, E), which is written as
    two products.
    """
    *new_axes, summed = axes[:4]
    if (*new_axes, summed) == ([1, 3], [0], [1, 2], [2, 3]):
        rows = torch.tensordot(a, weight, ([1], [1]))  # (n, K, E)
        return (rows * b[:, None]).sum(-1)
    factors = []
    for factor, axes_of_factor in zip((a, weight, b), new_axes, strict=True):
        for axis in axes_of_factor:
            factor = factor.unsqueeze(axis)
        factors.append(factor)
    product = factors[0] * factors[1] * factors[2]
    return product.sum(summed) if summed else product


def sparse_addmm(
    x: Tensor, matrix: Tensor, rows: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """Compute `beta x + alpha (matrix @ rows)` of a sparse matrix (N, M) and rows (M, D).

    `torch.sparse.mm` of a dense matrix passes both factors transposed, in reverse order.
    """
    if matrix.layout == torch.strided:
        product = (rows.T @ matrix.T).T
    else:
        target, source, entries = _entries(matrix)
        terms = entries[:, None] * rows.index_select(0, source)
        product = rows.new_zeros(matrix.shape[0], rows.shape[1]).index_add(0, target, terms)
    product = product if alpha == 1 else alpha * product
    return x * beta + product if beta else product


def _entries(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows, the columns and the values of the entries of a sparse matrix."""
    if matrix.layout != torch.sparse_coo:
        matrix = matrix.to_sparse_coo()
    matrix = matrix.coalesce()  # `_values` of other matrices has no gradient
    rows, columns = matrix.indices()
    return rows, columns, matrix.values()


def sparse_mm_reduce(matrix: Tensor, rows: Tensor, reduce: str) -> tuple[Tensor, Tensor]:
    """Combine the products of a row of a sparse matrix (N, M) and rows (M, D) other than by a sum.

    A row without entries gives zero.
    """
    target, source, entries = _entries(matrix)
    terms = entries[:, None] * rows.index_select(0, source)
    out = rows.new_zeros(matrix.shape[0], rows.shape[1])
    if reduce.startswith("am"):
        out = out.index_reduce(0, target, terms, reduce, include_self=False)
    else:
        out = out.index_add(0, target, terms)
        counts = target.bincount(minlength=len(out)).clamp(min=1)[:, None]
        out = out / counts if reduce == "mean" else out
    return out, target.new_zeros(out.shape)


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Compute `softmax(q k^T + mask) v` of q (..., Q, d), k (..., T, d) and v (..., T, d).

    The result of a query whose keys are all masked is zero.
    """
    if query.dim() > 2 and key.shape[-3] not in (1, query.shape[-3]):  # several queries share a key
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scores = _product(
        query * (query.shape[-1] ** -0.5 if scale is None else scale), key.transpose(-2, -1)
    )
    if is_causal:
        earlier = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~earlier, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch._safe_softmax(scores, -1)
    return _product(torch.dropout(weights, dropout_p, True) if dropout_p else weights, value)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Compute `a @ b` in fewer steps than `matmul` takes if nothing is broadcast."""
    if a.dim() < 4 or a.shape[:-2] != b.shape[:-2]:
        return a @ b
    rows, columns = a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])
    return torch.bmm(rows, columns).view(*a.shape[:-1], b.shape[-1])


def laid_out_like(tensor: Tensor, recorded: Tensor) -> Tensor:
    """Return a tensor with its axes in memory in the order of those of a recorded one.

    A later view of the tensor may depend on it.
    """
    strided = tensor.layout == recorded.layout == torch.strided and not recorded.is_nested
    if not strided or tensor.dim() != recorded.dim() or tensor.stride() == recorded.stride():
        return tensor
    order = sorted(range(tensor.dim()), key=recorded.stride, reverse=True)
    places = [order.index(axis) for axis in range(tensor.dim())]
    return tensor.permute(order).contiguous().permute(places)


def cpu_attention(
    query: Tensor, key: Tensor, value: Tensor, *args: Any, attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute `attention`, laid out like the query, and return the logarithms of its sums, too."""
    out = attention(query, key, value, attn_mask, *args, scale=scale)
    return laid_out_like(out, torch.empty_like(query)), query.new_zeros(query.shape[:-1])


def grouped_mm(
    x: Tensor, matrices: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Multiply rows x (n, D) by the matrix of their group, of matrices (G, D, K).

    Mixtures of experts compute all experts so. Columns or the summed axis may be in groups, too.
    The groups are selected by comparisons, because their ends (G,) in `offs` depend on the input.
    """
    if offs is None:
        product = x @ matrices
    else:
        along = x.shape[-1] if matrices.dim() == 2 and x.dim() == 2 else None
        place = torch.arange(along or (len(x) if x.dim() == 2 else matrices.shape[-1])).to(offs)
        starts = torch.cat([offs.new_zeros(1), offs[:-1]])
        inside = [(start <= place) & (place < end) for start, end in zip(starts, offs, strict=True)]
        if along:  # groups of the summed axis
            product = torch.stack([torch.where(group, x, 0.0) @ matrices for group in inside])
        elif x.dim() == 2:  # groups of rows
            pairs = zip(inside, matrices, strict=True)
            rows = [torch.where(group[:, None], x, 0.0) @ matrix for group, matrix in pairs]
            product = torch.stack(rows).sum(0)
        else:  # groups of columns
            pairs = zip(inside, x, strict=True)
            columns = [torch.where(group, rows @ matrices, 0.0) for group, rows in pairs]
            product = torch.stack(columns).sum(0)
    product = product if bias is None else product + bias
    return product if out_dtype is None else product.to(out_dtype)


def lstm_layer(x: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run one layer of an LSTM over x (S, B, D), step by step."""
    w_input, w_hidden, b_input, b_hidden, hidden, cell, reverse, *settings = args
    has_biases = settings[4]
    steps = x.flip(0) if reverse else x
    h, c, outputs = hidden.reshape(x.shape[1], -1), cell.reshape(x.shape[1], -1), []
    for step in steps.unbind(0):
        gates = step @ w_input.T + h @ w_hidden.T
        if has_biases:
            gates = gates + b_input + b_hidden
        let_in, forget, new, out = gates.chunk(4, -1)
        c = forget.sigmoid() * c + let_in.sigmoid() * new.tanh()
        h = out.sigmoid() * c.tanh()
        outputs.append(h)
    stacked = torch.stack(outputs[::-1] if reverse else outputs)
    return stacked, h.view_as(hidden), c.view_as(cell), x.new_zeros(0)


class _FusedLayout(TorchFunctionMode):
    """Lays attention out in memory like its query, as PyTorch's fused kernels do."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.nn.functional.scaled_dot_product_attention:
            query = args[0] if args else kwargs["query"]
            return laid_out_like(out, torch.empty_like(query))
        return out


@contextmanager
def with_plain_attention(laid_out: bool = False) -> Iterator[None]:
    """Let PyTorch compute attention by products and a softmax within the block.

    PyTorch's fused kernels hide the softmax. It has one setting for all threads. In the meantime,
    attention in other threads is computed in this way too.

    Args:
        laid_out: whether views of the result depend on the layout that fused kernels give it.
    """

    begin = partial(entered, sdpa_kernel, SDPBackend.MATH)
    with shared_block("plain attention", begin), _FusedLayout() if laid_out else nullcontext():
        yield
