"""Linear attention modules with their attention matrix written out, so that it can be recorded.

PyG's modules sum over the keys first and never compute the matrix. Here padded nodes are not keys,
as if each graph were alone; PyG's sums over a padded batch count them. `attention` is applied to
the matrix (B, H, N, N) before it mixes values; `keys` (B, N) is True at nodes.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Attention = Callable[[Tensor], Tensor]
WrittenOut = Callable[[Any, Attention, Tensor, Tensor], Tensor]


def sgformer(module: Any, attention: Attention, keys: Tensor, x: Tensor) -> Tensor:
    """`A = (q k^T + n I)` over its row sums, q and k of unit length (Wu 2023).

    x (B, N, D) to (B, N, d), the mean over the heads; n is the number of nodes.
    """
    q, k, v = (
        lin(x).unflatten(-1, (module.heads, -1)).transpose(1, 2)  # (B, H, N, d)
        for lin in (module.q, module.k, module.v)
    )
    weights = (_unit(q) @ _unit(k).transpose(-2, -1)) * keys[:, None, None]
    nodes = keys.sum(-1)[:, None, None, None]
    weights = weights + nodes * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    return (attention(weights / weights.sum(-1, keepdim=True)) @ v).mean(1)


def polynormer(module: Any, attention: Attention, keys: Tensor, x: Tensor) -> Tensor:
    """`A = sigmoid(q) sigmoid(k)^T` over its row sums, times a linear map of x (Deng 2024).

    x (B, N, D) to (B, N, H * d).
    """

    def by_head(z: Tensor) -> Tensor:
        return z.unflatten(-1, (module.head_channels, module.heads)).permute(0, 3, 1, 2)

    k = by_head(module.k(x).sigmoid())  # (B, H, N, d)
    q = k if module.qk_shared else by_head(module.q(x).sigmoid())
    weights = (q @ k.transpose(-2, -1)) * keys[:, None, None]
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-6)
    mixed = attention(weights) @ by_head(module.v(x))
    mixed = mixed.permute(0, 2, 3, 1).flatten(2)  # (B, N, d * H)
    out: Tensor = module.lin_out(module.lns(mixed) * (module.h_lins(x) + module.beta))
    return module.dropout(out.relu())


WRITTEN_OUT: dict[str, WrittenOut] = {
    "SGFormerAttention": sgformer,
    "PolynormerAttention": polynormer,
}
PADS_WRONGLY = {"PerformerAttention", *WRITTEN_OUT}  # modules that count padding among the keys


def is_written_out(module: nn.Module) -> bool:
    """Whether the module is one of PyG's that are written out here."""
    kind = type(module)
    return kind.__name__ in WRITTEN_OUT and kind.__module__.startswith("torch_geometric.")


def in_one_type(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of an operation of such a module, floats in the type of the first.

    PyG's SGFormer creates constants of the default type, even in a model of another precision.
    """
    floats = [v.dtype for v in args if isinstance(v, Tensor) and v.is_floating_point()]
    if len(set(floats)) < 2:
        return args
    return tuple(
        v.to(floats[0]) if isinstance(v, Tensor) and v.is_floating_point() else v for v in args
    )


def _unit(z: Tensor) -> Tensor:
    """z (..., d) of length one; zeros are first made small, as PyG does."""
    return F.normalize(torch.where(z == 0, 1e-6, z), dim=-1)
