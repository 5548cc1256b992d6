"""A class token that a model adds to the nodes of each graph: where it is, and whether it is read.

Models such as GraphTrans join a row of their own with the rows of the nodes, before or behind them.
It takes part in attention and gets the id of the graph token, so that methods that read attention
start from it, as they do in a Graphormer.
"""

import torch
from torch import Tensor

from .node_ids import NONE, VIEWS, EntryIds, NodeIds
from .trace import Trace, refs_in

# after these operations rows may stand beside other rows
JOINS = VIEWS | {"cat", "stack", "copy", "index_put", "index_copy", "scatter", "slice_scatter"}


def with_class_token(ids: EntryIds, values: Tensor, nodes: NodeIds) -> EntryIds:
    """Give the id of the graph token to a row that stands beside the nodes of each graph.

    Such a row is the only one that is of no node in all graphs, and it is not zero, as padding is.
    All nodes stand beside it: without one of them, the row may be that node's, which has no edge.

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
