"""Positions of nodes in a batch, by which attention of any shape is recorded as (B, H, T, T)."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Layout:
    """Graph and slot of every node, both (n,), in the order of the model's node rows.

    mask (B, N) is True at nodes; `graph_token`: the model's sequence starts with one. Without, row
    and column 0 of recorded attention are zero.
    """

    graph: Tensor
    slot: Tensor
    mask: Tensor
    graph_token: bool = False

    @classmethod
    def of(cls, mask: Tensor, graph_token: bool = False) -> "Layout":
        """The layout of nodes that lie in the order of mask (B, N)."""
        graph, slot = mask.nonzero(as_tuple=True)
        return cls(graph, slot, mask, graph_token)

    @property
    def tokens(self) -> int:
        """T, including the graph token."""
        return self.mask.shape[1] + 1
