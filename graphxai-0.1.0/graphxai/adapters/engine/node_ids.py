"""Find out which node every entry of every tensor in a recorded pass belongs to.

Each entry has a node id, and the ids follow the values through the pass. An operation that only
moves entries moves their ids. A map of channels keeps them. A product of entries of two nodes
belongs to the pair of them, and a sum over nodes to their graph. So the ids of an attention matrix
say which node is the query and which the key of each entry, and no axis has to be guessed.

An id is `graph * T + token` for a node (token 0 is the graph token), `-2 - graph` for several nodes
of one graph, `NONE` for padding and constants, and `MIXED` for nodes of several graphs. A tensor of
ids has length one along each axis on which all entries have the same id.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

NONE = -1
MIXED = -(2**60)
LARGE = 2**61  # larger than any id
VIEWS = {"view", "_unsafe_view", "reshape", "_reshape_alias"}
RESHAPES = VIEWS | {"squeeze", "unsqueeze", "clone"}


@dataclass(frozen=True, eq=False)
class EntryIds:
    """The node ids of a tensor's entries.

    Args:
        key: if the entries belong to pairs of nodes, the id of the second node of each pair,
            and `query` has that of the first.
    """

    query: Tensor
    key: Tensor | None = None

    def map(self, f: Callable[[Tensor], Tensor]) -> "EntryIds":
        """Apply a function to the ids of both nodes."""
        return EntryIds(f(self.query), None if self.key is None else f(self.key))


@dataclass(eq=False)
class NodeIds:
    """The ids of the values of a pass.

    Args:
        tokens: the number T of tokens of a graph.
        largest: the number of nodes of the largest graph.
    """

    tokens: int
    largest: int = 0
    by_value: dict[int, EntryIds] = field(default_factory=dict)

    def are_pairs(self, value: int) -> bool | None:
        """Whether a value's entries belong to pairs of nodes, or None if it has no ids."""
        ids = self.by_value.get(value)
        return None if ids is None else ids.key is not None

    def graph(self, ids: Tensor) -> Tensor:
        """Return the graph of each id, but `NONE` and `MIXED` as they are."""
        of_node = ids.div(self.tokens, rounding_mode="floor")
        graph = torch.where(ids >= 0, of_node, -2 - ids)
        return torch.where((ids == NONE) | (ids == MIXED), ids, graph)


def agree(a: Tensor, b: Tensor) -> bool:
    """Whether ids are the same wherever neither is `NONE`."""
    try:
        a, b = torch.broadcast_tensors(a, b)
    except RuntimeError:
        return False
    return bool(((a == b) | (a == NONE) | (b == NONE)).all())


def compressed(ids: Tensor) -> Tensor:
    """Shorten to length one the axes on which all entries have the same id."""
    for axis in reversed(range(ids.dim())):
        if ids.shape[axis] > 1 and ids.numel() and _are_alike(ids, axis):
            ids = ids.narrow(axis, 0, 1)
    return ids


def _are_alike(ids: Tensor, axis: int) -> bool:
    """Whether all entries along an axis have the same id."""
    if ids.stride(axis) == 0:
        return True
    if ids.device.type == "cpu":  # to compare two entries first is much quicker than all
        array = ids.numpy()
        last = [0] * array.ndim
        last[axis] = -1
        if array.item(0) != array[tuple(last)]:
            return False
    return bool((ids == ids.narrow(axis, 0, 1)).all())
