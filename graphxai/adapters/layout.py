"""Positions of nodes in a batch, by which attention of any shape is recorded as (B, H, T, T)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, eq=False)
class NodeLayout:
    """Graph and slot of every node, both (n,), in the order of the model's node rows.

    mask (B, N) is True at nodes; `graph_token`: the model's sequence starts with one. Without, row
    and column 0 of recorded attention are zero.
    """

    graph: Tensor
    slot: Tensor
    mask: Tensor
    graph_token: bool = False

    @classmethod
    def of(cls, mask: Tensor, graph_token: bool = False) -> "NodeLayout":
        """The layout of nodes that lie in the order of mask (B, N)."""
        graph, slot = mask.nonzero(as_tuple=True)
        return cls(graph, slot, mask, graph_token)

    @property
    def tokens(self) -> int:
        """T, including the graph token."""
        return self.mask.shape[1] + 1


class OneGraphAtATime(ValueError):
    """A batch cannot be explained, because its graphs cannot share a pass of the model.

    batches: the graphs of the batch, each alone.
    """

    def __init__(self, model: Any, batch: Any) -> None:
        super().__init__(
            f"the graphs of a batch cannot share a pass of {type(model.module).__name__}: explain"
            " one at a time."
        )
        self.batches: list[Any] = [batch.of_rows(row) for row in range(len(batch))]
