"""A batch of graphs of different sizes, padded to one size."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """B graphs of at most N nodes, padded to one size. Each has T = N + 1 tokens.

    x (B, N, F); pos (B, N, 2) or None; mask (B, N), True at nodes; in_degree, out_degree (B, N);
    bag_codes, bag_weights (M,) and bag_offsets (B * N * N,) over all ordered pairs (empty for
    padding); num_nodes (B,); y (B, number of tasks) or None, NaN where a label is missing.
    """

    x: Tensor
    pos: Tensor | None
    mask: Tensor
    in_degree: Tensor
    out_degree: Tensor
    bag_codes: Tensor
    bag_weights: Tensor
    bag_offsets: Tensor
    num_nodes: Tensor
    y: Tensor | None = None

    @property
    def distance_codes(self) -> Tensor:
        """The table row of every pair's distance (B, N, N), which is the first code of its bag.

        The rows of padding are arbitrary.
        """
        first = self.bag_offsets.clamp(max=len(self.bag_codes) - 1).long()
        b, n = self.mask.shape
        return self.bag_codes[first].reshape(b, n, n)

    def __len__(self) -> int:
        return self.x.shape[0]

    def to(self, device: torch.device | str) -> "GraphBatch":
        """Return the batch with every tensor on `device`."""
        moved = {name: value.to(device) for name, value in vars(self).items() if value is not None}
        return replace(self, **moved)

    def pin_memory(self) -> "GraphBatch":
        """Return the batch in page-locked memory."""
        pinned = {
            name: value.pin_memory() for name, value in vars(self).items() if value is not None
        }
        return replace(self, **pinned)
