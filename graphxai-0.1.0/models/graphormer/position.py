"""Embed continuous node features and positions, such as those of superpixels."""

import math

import torch
from torch import Tensor, nn


def frequencies(bands: int) -> Tensor:
    """Return wave vectors (F, 2) on a half plane of the integer grid up to `bands`, without zero.

    They are multiples of pi. For positions from -1 to 1, the longest wave spans the image once.
    """
    grid = [(u, v) for u in range(bands + 1) for v in range(-bands, bands + 1) if (u, v) > (0, 0)]
    return torch.tensor(grid, dtype=torch.float32).reshape(-1, 2) * math.pi


class ContinuousEmbedding(nn.Module):
    """Multiply node features by a matrix, without bias, so that an embedding sums over features.

    The features are x (N, F), standardised if `offsets` and `scales` are given, the position with
    its Fourier features, and the products of these with each column of x.
    """

    waves: Tensor
    offsets: Tensor | None  # (F,)
    scales: Tensor | None  # (F,)

    def __init__(
        self,
        names: tuple[str, ...],
        bands: int,
        has_position: bool,
        dim: int,
        offsets: tuple[float, ...] = (),
        scales: tuple[float, ...] = (),
    ) -> None:
        super().__init__()
        for name, numbers in {"offsets": offsets, "scales": scales}.items():
            values = torch.tensor(numbers, dtype=torch.float32) if numbers else None
            self.register_buffer(name, values, persistent=False)
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
        """Return the features (B, N, K), in the order of `groups`.

        Args:
            x: node features (B, N, F).
            pos: positions (B, N, 2) in [0, 1].
        """
        x = x.to(self.weight.dtype)
        if self.offsets is not None:
            x = x - self.offsets
        if self.scales is not None:
            x = x / self.scales
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
        """Return embeddings (B, N, D)."""
        return self.features(x, pos) @ self.weight.T


class RelativePositionBias(nn.Module):
    """An attention bias from the displacement between two nodes, learned for each head.

    With d = p_j - p_i for query i and key j, and wave vectors w,

        b_h(i, j) = s_h |c_h|^2 - s_h |d - c_h|^2 + sum_f a_hf cos(w_f d) + e_hf sin(w_f d)

    The first two terms focus head h on the displacement c_h with sharpness s_h. At the start of
    training, the heads attend to a node's neighbours, each head in its own direction (Cordonnier et
    al., ICLR 2020, eq. 9). The Fourier series adds other shapes and starts at zero. The whole bias
    factorises into one matrix product of per-node features.
    """

    waves: Tensor
    radius = 0.12  # initial distance of the neighbours, about a superpixel, and unit of `centre`
    sharpness = 100.0  # initial s_h and unit of `log_sharpness`

    def __init__(self, bands: int, num_heads: int) -> None:
        super().__init__()
        self.register_buffer("waves", frequencies(bands), persistent=False)
        self.cosine = nn.Parameter(torch.zeros(num_heads, len(self.waves)))
        self.sine = nn.Parameter(torch.zeros(num_heads, len(self.waves)))
        angle = torch.arange(num_heads) * (2 * math.pi / num_heads)
        self.centre = nn.Parameter(torch.stack([angle.cos(), angle.sin()], dim=1))
        self.log_sharpness = nn.Parameter(torch.zeros(num_heads))

    def forward(self, pos: Tensor) -> Tensor:
        """Return the bias (B, H, N, N) for positions pos (B, N, 2) in [0, 1]."""
        centred = 2 * pos.to(self.cosine.dtype)[:, None] - 1  # (B, 1, N, 2)
        near_left, near_right = self._neighbours(centred / 2)
        wave_left, wave_right = self._waves(centred)
        left = torch.cat([near_left, wave_left], dim=-1)  # (B, H, N, 4 + 2 F)
        right = torch.cat([near_right, wave_right], dim=-1)
        return left @ right.transpose(-2, -1)

    def _neighbours(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors of 2 s c.d - s |d|^2 for positions p (B, 1, N, 2)."""
        s = (self.sharpness * self.log_sharpness.exp())[:, None, None]  # (H, 1, 1)
        pull = 2 * s * (self.radius * self.centre)[:, None, :]  # (H, 1, 2)
        square = (p * p).sum(-1, keepdim=True)
        ones = torch.ones_like(square)
        query_term = -(pull * p).sum(-1, keepdim=True) - s * square
        return torch.cat([pull + 2 * s * p, -s * ones, query_term], dim=-1), torch.cat(
            [p, square, ones], -1
        )

    def _waves(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors of the Fourier series, by the addition theorems."""
        angle = p @ self.waves.T
        cos, sin = angle.cos(), angle.sin()  # (B, 1, N, F)
        a, e = self.cosine[:, None, :], self.sine[:, None, :]  # (H, 1, F)
        return torch.cat([a * cos - e * sin, a * sin + e * cos], -1), torch.cat([cos, sin], -1)
