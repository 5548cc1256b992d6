"""The positions of nodes in a batch, from which attention (B, H, T, T) is put together."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, eq=False)
class NodeLayout:
    """The graph and slot that each row of the model's nodes belongs to.

    Args:
        graph, slot: the graph and the slot of each row (n,).
        mask (B, N): True at nodes.
        graph_token: whether the model's sequence starts with a graph token. If it does not, row and
            column 0 of recorded attention are zero.
    """

    graph: Tensor
    slot: Tensor
    mask: Tensor
    graph_token: bool = False

    @classmethod
    def of(cls, mask: Tensor, graph_token: bool = False) -> "NodeLayout":
        """Lay out nodes that have their rows in the order of mask (B, N)."""
        graph, slot = mask.nonzero(as_tuple=True)
        return cls(graph, slot, mask, graph_token)

    @property
    def tokens(self) -> int:
        """The number T of tokens, including the graph token."""
        return self.mask.shape[1] + 1


class OneGraphAtATime(ValueError):
    """The graphs of a batch cannot share a pass of the model, so the batch is not explained.

    Attributes:
        batches: a batch with one graph for each of the graphs.
    """

    def __init__(self, model: Any, batch: Any) -> None:
        super().__init__(
            f"the graphs of a batch cannot share a pass of {type(model.module).__name__}: explain"
            " one at a time."
        )
        self.batches: list[Any] = [batch.of_rows(row) for row in range(len(batch))]
