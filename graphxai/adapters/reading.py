"""The axes of an attention matrix."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Reading:
    """The axes of an attention matrix; all others are heads.

    graphs: None if all nodes of the batch are on one axis, graph after graph. heads_first: whether
    an axis of graphs and heads is (H * B) instead of (B * H).
    """

    query: int
    key: int
    graphs: int | None
    heads_first: bool = False

    def apart(self, weights: Tensor, size: int) -> Tensor:
        """Weights as (B, H, Q, K); as (H, n, n) if graphs have no axis."""
        axes = self._axes(weights.dim())
        moved = weights.permute(axes)
        ends = moved.shape[-2:]
        if self.graphs is None:
            return moved.reshape(-1, *ends)
        if self.heads_first:
            moved = moved.unflatten(0, (-1, size)).transpose(0, 1)
        return moved.reshape(size, -1, *ends)

    def together(self, parts: Tensor, shape: Sequence[int]) -> Tensor:
        """The inverse of `apart`, for weights of this shape."""
        axes = self._axes(len(shape))
        moved = [shape[axis] for axis in axes]
        if self.heads_first:
            size = len(parts)
            parts = parts.reshape(size, moved[0] // size, *moved[1:]).transpose(0, 1)
        back = sorted(range(len(axes)), key=axes.__getitem__)
        return parts.reshape(moved).permute(back)

    def heads(self, shape: Sequence[int], size: int) -> int:
        """The number of heads in weights of this shape, for `size` graphs."""
        rest = [n for axis, n in enumerate(shape) if axis not in (self.query, self.key)]
        return math.prod(rest) // (1 if self.graphs is None else size)

    def _axes(self, count: int) -> list[int]:
        named = [self.query, self.key] if self.graphs is None else [self.graphs]
        heads = [a for a in range(count) if a not in (self.graphs, self.query, self.key)]
        return [*heads, *named] if self.graphs is None else [*named, *heads, self.query, self.key]
