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

from .trace import Trace, refs_in

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


# -- a class token, which models such as GraphTrans add to the nodes -------------------------------


# after these operations rows may stand beside other rows
JOINS = VIEWS | {"cat", "stack", "copy", "index_put", "index_copy", "scatter", "slice_scatter"}


def with_class_token(ids: EntryIds, values: Tensor, nodes: NodeIds) -> EntryIds:
    """Give the id of the graph token to a row that stands beside the nodes of each graph.

    Such a row is the only one that is of no node in all graphs, and it is not zero, as padding is.
    All nodes stand beside it: without one of them, the row may be that node's, which has no edge.
    It takes part in attention, so that methods that read attention start from it.

    Args:
        ids: the ids of the values.
    """
    query = ids.query
    absent = query == NONE
    if ids.key is not None or not absent.any() or query.dim() != values.dim():
        return ids
    for axis in range(query.dim() - 1):  # the last axis has the channels of a row
        if query.shape[axis] <= nodes.largest:
            continue
        slot = _only_slot_without_nodes(absent, axis)
        graphs = None if slot is None else _graphs_along(query, axis, nodes)
        if slot is None or graphs is None or not values.select(axis, slot).any():
            continue
        here = torch.arange(query.shape[axis], device=query.device) == slot
        here = here.view([-1 if a == axis else 1 for a in range(query.dim())])
        return EntryIds(torch.where(here & absent, graphs * nodes.tokens, query))
    return ids


def reads_class_token(trace: Trace, nodes: NodeIds) -> bool:
    """Whether a pass reads its outputs at the class tokens of the graphs alone."""
    outputs = [nodes.by_value.get(ref.value) for ref in refs_in(trace.output)]
    return bool(outputs) and all(
        ids is not None
        and ids.key is None
        and bool(((ids.query >= 0) & (ids.query % nodes.tokens == 0)).all())
        for ids in outputs
    )


def _only_slot_without_nodes(absent: Tensor, axis: int) -> int | None:
    """Return the only place along an axis where no graph has a node, if there is one."""
    others = [a for a in range(absent.dim()) if a != axis]
    slots = absent.all(dim=others) if others else absent
    places = slots.nonzero()[:, 0].tolist()
    return places[0] if len(places) == 1 else None


def _graphs_along(query: Tensor, axis: int, nodes: NodeIds) -> Tensor | None:
    """Return the graph whose different nodes stand along an axis, or None if there is no such."""
    ordered = query.movedim(axis, 0).sort(0).values
    repeated = (ordered[1:] == ordered[:-1]) & (ordered[1:] != NONE)
    if bool((ordered < NONE).any()) or bool(repeated.any()):
        return None
    last = ordered[-1]
    graphs = nodes.graph(ordered)
    alike = (graphs == graphs[-1]) | (ordered == NONE)
    return nodes.graph(last).unsqueeze(axis) if bool((alike & (last >= 0)).all()) else None
