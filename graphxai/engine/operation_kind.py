"""What each ATen operation always does, read from its schema, and the parts of fused ones.

Fused operations are written out in plain ones, so that their parts are recorded. Each function
takes the arguments of the ATen operation and returns what it returns. Results that only the
backward pass of the operation needs, such as the logarithms of attention's sums, are zero.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

VALUELESS = {  # operations whose result does not depend on the values of their arguments
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "new_zeros",
    "new_ones", "new_full", "new_empty", "new_empty_strided", "randint_like", "zero", "fill",
}  # fmt: skip


class OperationKind(NamedTuple):
    """What an operation always does.

    Args:
        writes: the place and name of the argument that it writes to, if any.
        views: whether its results may share memory with its arguments.
        draws: whether it draws random numbers.
        valueless: whether its result does not depend on the values of its arguments.
        parts: a function that computes it by other operations, which are recorded in its place,
            if there is one.
    """

    name: str
    writes: tuple[int, str] | None
    views: bool
    draws: bool
    valueless: bool
    parts: Callable[..., Any] | None


@cache
def operation_kind(func: Any) -> OperationKind:
    """Read from its schema what an operation always does."""
    schema = func._schema
    full = schema.name.removeprefix("aten::")
    name = full if full.startswith("__") else full.rstrip("_")
    aliased = [(k, a) for k, a in enumerate(schema.arguments) if a.alias_info is not None]
    writes = ((k, argument.name) for k, argument in aliased if argument.alias_info.is_write)
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), torch._C.DispatchKey.CompositeImplicitAutograd
    )
    return OperationKind(
        name,
        next(writes, None),
        bool(aliased),
        torch.Tag.nondeterministic_seeded in func.tags,
        name in VALUELESS,
        DECOMPOSITIONS.get(func) or (func.decompose if composite else None),
    )


def out_of_place(func: Any) -> Any:
    """Return the variant of an in-place operation that returns a new tensor."""
    packet = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::").rstrip("_"))
    if func._overloadname in packet.overloads():
        return getattr(packet, func._overloadname)
    wanted = [str(argument.type) for argument in func._schema.arguments]
    for name in packet.overloads():  # `transpose_` has the variant `transpose.int`
        overload = getattr(packet, name)
        if [str(argument.type) for argument in overload._schema.arguments] == wanted:
            return overload
    raise NotImplementedError(f"{func} has no variant that returns a new tensor.")


# -- fused operations written out in plain ones ----------------------------------------------------


aten = torch.ops.aten


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """Multiply the first half of x along `dim` by the gate in the second half."""
    value, gate = x.chunk(2, dim)
    return value * gate.sigmoid()


def lerp(start: Tensor, end: Tensor, weight: Any) -> Tensor:
    """Interpolate between two values by a weight, which may be a gate."""
    return start * (1 - weight) + end * weight


def addcmul(x: Tensor, first: Tensor, second: Tensor, *, value: float = 1) -> Tensor:
    """Compute `x + value first second`."""
    product = first * second
    return x + (product if value == 1 else value * product)


def addcdiv(x: Tensor, first: Tensor, second: Tensor, *, value: float = 1) -> Tensor:
    """Compute `x + value first / second`."""
    quotient = first / second
    return x + (quotient if value == 1 else value * quotient)


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


def rrelu_(x: Tensor, *args: Any) -> Tensor:
    """Apply `rrelu` in place."""
    return x.copy_(rrelu(x, *args))


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
    rows, columns = matrix._indices()
    return rows, columns, matrix._values()


def sparse_mm_reduce(matrix: Tensor, rows: Tensor, reduce: str) -> tuple[Tensor, Tensor]:
    """Combine the products of a row of a sparse matrix (N, M) and rows (M, D) other than by a sum.

    A row without entries gives zero.
    """
    target, source, entries = _entries(matrix)
    terms = entries[:, None] * rows.index_select(0, source)
    out = rows.new_zeros(matrix.shape[0], rows.shape[1])
    if reduce in ("sum", "mean"):
        out = out.index_add(0, target, terms)
        counts = target.bincount(minlength=len(out)).clamp(min=1)[:, None]
        out = out / counts if reduce == "mean" else out
    else:
        out = out.index_reduce(0, target, terms, reduce, include_self=False)
    return out, target.new_zeros(out.shape)


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


def _cpu_attention(
    query: Tensor, key: Tensor, value: Tensor, *args: Any, attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    out = attention(query, key, value, attn_mask, *args, scale=scale)
    return out, query.new_zeros(query.shape[:-1])


def grouped_mm(
    x: Tensor,
    matrices: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
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
    aten._sparse_mm_reduce_impl.default: sparse_mm_reduce,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _cpu_attention,
    aten.scaled_dot_product_attention.default: attention,
    aten.mkldnn_rnn_layer.default: lstm_layer,
    aten._grouped_mm.default: grouped_mm,
}
