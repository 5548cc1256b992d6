"""Continuous node features and positions: how superpixels enter a Graphormer."""

import math

import torch
from torch import Tensor, nn


def frequencies(bands: int) -> Tensor:
    """Wave vectors (F, 2) on the half plane of the integer grid up to `bands`, without zero.

    Multiples of pi, so that the period is twice the unit square and nothing wraps around.
    """
    grid = [(u, v) for u in range(bands + 1) for v in range(-bands, bands + 1) if (u, v) > (0, 0)]
    return torch.tensor(grid, dtype=torch.float32).reshape(-1, 2) * math.pi


class ContinuousEmbedding(nn.Module):
    """Node features times one matrix, without bias: the embedding is a sum over the features.

    The features are x (N, F), the position, the position's Fourier features and, for each
    column of x, their products with it.
    """

    def __init__(self, names: tuple[str, ...], bands: int, has_position: bool, dim: int) -> None:
        super().__init__()
        self.has_position = has_position
        self.register_buffer("waves", frequencies(bands), persistent=False)
        waves = 2 * len(self.waves)
        groups = list(names)
        if has_position:
            groups += ["position"] * (2 + waves)
            groups += [f"{name} x position" for name in names for _ in range(2 + waves)]
        self.groups = tuple(groups)
        self.weight = nn.Parameter(torch.empty(dim, len(groups)))
        nn.init.normal_(self.weight, std=1 / math.sqrt(len(groups)))

    def features(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """The features (B, N, K) of x (B, N, F) and pos (B, N, 2) in [0, 1], `groups` in order."""
        x = x.to(self.weight.dtype)
        if not self.has_position:
            return x
        if pos is None:
            raise ValueError("the model reads node positions; the graph has no `pos`.")
        centred = 2 * pos.to(x.dtype) - 1
        angle = centred @ self.waves.T  # (B, N, F)
        where = torch.cat([centred, angle.cos(), angle.sin()], dim=-1)
        products = (x[..., :, None] * where[..., None, :]).flatten(-2)
        return torch.cat([x, where, products], dim=-1)

    def forward(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """Embeddings (B, N, D)."""
        return self.features(x, pos) @ self.weight.T


class RelativePositionBias(nn.Module):
    """Attention bias from the displacement of two nodes, a Fourier series learned per head.

    `b_h(i, j) = sum_f a_hf cos(w_f (p_i - p_j)) + c_hf sin(w_f (p_i - p_j))`; the addition
    theorems turn the sum over pairs into one matrix product of per-node features.
    """

    def __init__(self, bands: int, num_heads: int) -> None:
        super().__init__()
        self.register_buffer("waves", frequencies(bands), persistent=False)
        self.cosine = nn.Parameter(torch.zeros(num_heads, len(self.waves)))
        self.sine = nn.Parameter(torch.zeros(num_heads, len(self.waves)))

    def forward(self, pos: Tensor) -> Tensor:
        """Bias (B, H, N, N) of positions pos (B, N, 2) in [0, 1]."""
        angle = (2 * pos.to(self.cosine.dtype) - 1) @ self.waves.T
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]  # (B, 1, N, F)
        a, c = self.cosine[:, None, :], self.sine[:, None, :]  # (H, 1, F)
        left = torch.cat([a * cos + c * sin, a * sin - c * cos], dim=-1)
        right = torch.cat([cos, sin], dim=-1)
        return left @ right.transpose(-2, -1)
