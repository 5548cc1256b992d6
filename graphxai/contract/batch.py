"""Batches of graphs of different sizes, padded to one size, and the places of their nodes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """B graphs of at most N nodes, padded to one size. Each has T = N + 1 tokens.

    Args:
        x: the features of the nodes (B, N, F).
        pos: the positions of the nodes (B, N, 2), or None.
        mask: True at nodes and False at padding (B, N).
        in_degree, out_degree: the degrees of the nodes (B, N).
        bag_codes, bag_weights: the table rows of every ordered pair of nodes and their weights,
            one bag after another (M,).
        bag_offsets: where the bag of each pair begins (B * N * N,). Bags of padding are empty.
        num_nodes: the number of nodes of each graph (B,).
        y: the labels (B, number of tasks), NaN where one is missing, or None. If nodes have the
            labels, there is a row for each node of all graphs.
        explained: for models of nodes, the number of each graph's explained node (B,), or
            the numbers of several nodes of one graph (1, k), or None.
        environments: the row of each node's environments in a table (B, N, radii), for models that
            read them, or None.
        bounds: for labels that were not measured, the lowest and the highest possible value
            (B, number of tasks, 2), which are infinite if nothing is known. None without bounds.
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
    explained: Tensor | None = None
    bounds: Tensor | None = None
    environments: Tensor | None = None

    @property
    def distance_codes(self) -> Tensor:
        """The table row (B, N, N) of every pair's distance, which is the first code in its bag.

        The rows of padding are arbitrary.
        """
        first = self.bag_offsets.clamp(max=len(self.bag_codes) - 1).long()
        b, n = self.mask.shape
        return self.bag_codes[first].reshape(b, n, n)

    def __len__(self) -> int:
        return self.x.shape[0]

    def to(self, device: torch.device | str) -> "GraphBatch":
        """Return the batch with every tensor on `device`."""
        return self._each(lambda value: value.to(device))

    def pin_memory(self) -> "GraphBatch":
        """Return the batch in page-locked memory."""
        return self._each(Tensor.pin_memory)

    def _each(self, of: Callable[[Tensor], Tensor]) -> "GraphBatch":
        return replace(self, **{name: of(t) for name, t in vars(self).items() if t is not None})


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
        why: what the model does, so that they cannot; "" if nobody need be told.
    """

    def __init__(self, model: Any, why: str) -> None:
        super().__init__(
            f"the graphs of a batch cannot share a pass of {type(model.module).__name__}: explain"
            " one at a time."
        )
        self.model, self.why = model, why

    def apart(self, *batches: Any) -> list[Any]:
        """Return a batch for each of the graphs, and warn of it, or raise this again for one."""
        count = sum(map(len, batches))
        if self.why and count == 1:
            raise self
        self.model.warn_of_single_passes(self.why, count)
        return [batch.of_rows(row) for batch in batches for row in range(len(batch))]
