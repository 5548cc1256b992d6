"""Make subgraphs on some of a graph's nodes, with all attributes cut accordingly.

PyG's `Data.subgraph` cuts `edge_index` and attributes with one row per node or edge. Graphs can
have more: other node indices (`expander_edge_index`, `pair_index`) with their own attributes
(`pair_dist`), and dense or sparse matrices over pairs of nodes. `attribute_roles` decides what each
attribute belongs to.
"""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import select, subgraph

from graphxai.contract.inputs import EXPLAINED_NODE
from graphxai.runtime.notices import warn

from .attribute_roles import (
    EDGES,
    NODES,
    PAIRS,
    AttributeRole,
    AttributeRoles,
    attribute_roles,
    roles_and_doubts,
)


def restricted(
    graph: Data, keep: Tensor, roles: AttributeRoles | None = None, edges: Tensor | None = None
) -> Data:
    """Restrict a graph to some of its nodes, with the edges and other entries between them.

    Args:
        keep (N,): True at the nodes that stay.
        roles: the roles of its attributes. `attribute_roles` is more reliable if it has seen all
            graphs of a batch.
        edges (E,): True at the edges that may stay, if their nodes stay. None stands for all edges.
    """
    roles = attribute_roles([graph]) if roles is None else roles
    kept = {NODES: keep} if edges is None else {NODES: keep, EDGES: edges}
    subgraph = copy(graph)
    indices = [key for key, role in roles.items() if role.names is not None and key in graph]
    indices.sort(key=lambda key: roles[key].names != NODES)  # decides first which edges stay
    for key in indices:
        along = roles[key].along
        if along is not None and along != NODES:
            stays = _entries_stay(graph, key, roles[key], kept)
            kept[along] = kept[along] & stays if along in kept else stays
    for key in indices:
        subgraph[key] = _renumbered(graph, key, roles[key], kept)
    if PAIRS in {role.along for role in roles.values()}:
        kept[PAIRS] = (keep[:, None] & keep).flatten()
    for key, role in roles.items():
        if role.names is None and role.along in kept and key in graph:
            entries = kept[role.along].nonzero()[:, 0]
            subgraph[key] = _chosen(graph, key, graph[key], entries, role.square)
    subgraph.num_nodes = int(keep.sum())
    return subgraph


def same_without_nodes(
    graphs: Sequence[Data], roles: AttributeRoles, attributes: Collection[str] | None
) -> bool:
    """Return whether graphs are equal without their nodes, in the attributes that the model reads.

    If `attributes` is None, the model reads all of them.
    """
    for key, role in roles.items():
        if attributes is not None and key not in attributes:
            continue
        if role.along in (NODES, EDGES, PAIRS):
            continue
        value = graphs[0][key]
        if role.along is not None or role.names is not None or not isinstance(value, Tensor):
            return False
        others = (graph[key] for graph in graphs)
        if not all(isinstance(other, Tensor) and torch.equal(value, other) for other in others):
            return False
    return True


def disjoint_copies(graph: Data, times: int) -> Data:
    """Join disconnected copies of a graph that has no matrices over its nodes into one graph."""
    roles, _ = roles_and_doubts([graph])
    batch, joined = Batch.from_data_list([graph] * times), copy(graph)
    for key, role in roles.items():
        if role.along is not None or role.names is not None:
            joined[key] = batch[key]
    joined.num_nodes = times * int(graph.num_nodes or 0)
    return joined


def reordered(graph: Data, order: Tensor, roles: AttributeRoles) -> Data:
    """Reorder a graph so that node k is its node `order[k]` (N,). Edges keep their order."""
    place, reordered_graph = order.argsort(), copy(graph)
    pairs = (order[:, None] * len(order) + order).flatten()
    for key, role in roles.items():
        value = graph[key]
        if role.names == NODES:
            value = _plain(value)
            refers = _refers_to_members(value, role)
            value = torch.where(refers, place.to(value)[torch.where(refers, value, 0)], value)
        if role.along in (NODES, PAIRS):
            entries = order if role.along == NODES else pairs
            value = _chosen(graph, key, value, entries, role.square)
        reordered_graph[key] = value
    return reordered_graph


def _chosen(graph: Data, key: str, value: Any, entries: Tensor, square: bool) -> Any:
    """Choose entries of an attribute by their numbers, or rows and columns of a matrix."""
    if isinstance(value, SparseTensor):
        return value[entries][:, entries]
    if isinstance(value, Tensor) and value.layout != torch.strided:
        return _of_sparse(value, entries)
    if square:
        return value.index_select(0, entries).index_select(1, entries)
    axis = graph.__cat_dim__(key, value)
    if isinstance(value, np.ndarray):
        return np.take(value, entries.cpu().numpy(), axis)
    return select(value, entries, axis)


def _plain(value: Tensor) -> Tensor:
    """Turn PyG's `EdgeIndex` into a plain tensor."""
    as_tensor = getattr(value, "as_tensor", None)
    return value if as_tensor is None else as_tensor()


def _of_sparse(matrix: Tensor, chosen: Tensor) -> Tensor:
    """Choose rows and columns of a sparse matrix (N, N), and keep its layout."""
    chosen_part = matrix.to_sparse_coo().index_select(0, chosen).index_select(1, chosen).coalesce()
    if matrix.layout == torch.sparse_coo:
        return chosen_part
    return chosen_part.to_sparse(layout=matrix.layout)


def _refers_to_members(values: Tensor, role: AttributeRole) -> Tensor:
    """Mark the values that refer to a member, which are not negative and in a row that may."""
    if not role.rows:
        return values >= 0
    rows = torch.tensor(role.rows, device=values.device)
    return (values >= 0) & rows.view(-1, *[1] * (values.dim() - 1))


def _stay(values: Tensor, keep: Tensor, role: AttributeRole, key: str) -> Tensor:
    """Mark the values that refer to members that stay, or to no member."""
    refers = _refers_to_members(values, role)
    members = torch.where(refers, values, 0).long()
    if members.numel() and int(members.max()) >= len(keep):
        raise ValueError(
            f"{key} contains {int(members.max())}, but there are only {len(keep)}"
            f" {'nodes' if role.names == NODES else 'edges'}: PyG treats an attribute of this name"
            " as an index."
        )
    return keep[members] | ~refers if len(keep) else ~refers


def _entries_stay(graph: Data, key: str, role: AttributeRole, kept: Mapping[str, Tensor]) -> Tensor:
    """Mark the entries (M,) of an index if all their members stay."""
    assert role.names is not None
    values = _plain(graph[key])
    dim = graph.__cat_dim__(key, values) % values.dim()
    stays = _stay(values, kept[role.names], role, key)
    others = [d for d in range(values.dim()) if d != dim]
    return stays.all(others) if others else stays


def _renumbered(graph: Data, key: str, role: AttributeRole, kept: Mapping[str, Tensor]) -> Tensor:
    """Renumber the entries of an index that stay."""
    assert role.names is not None
    assert role.along is not None
    values, keep = _plain(graph[key]), kept[role.names]
    entries = kept[role.along].nonzero()[:, 0]
    values = values.index_select(graph.__cat_dim__(key, values), entries)
    if not len(keep):
        return values
    refers, stays = _refers_to_members(values, role), _stay(values, keep, role, key)
    new = (keep.cumsum(0) - 1).to(values.dtype)
    renumbered = torch.where(refers, new[torch.where(refers, values, 0).long()], values)
    if bool(stays.all()):
        return renumbered
    warn(
        f"{key} has one entry per node, and some refer to hidden nodes. These entries now refer to"
        " the node that they belong to.",
        stacklevel=3,
    )
    return torch.where(stays, renumbered, torch.arange(len(values)).to(values))


def undirected_edges(edge_index: Tensor, types: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the pairs (M, 2) of nodes that edges join, and the number (E,) of each edge's pair.

    The edges are `edge_index` (2, E). The pairs are in ascending order. Both directions of an edge
    belong to the same pair. A self loop belongs to no pair and has -1. Edges of different `types`
    (E,) belong to different pairs, which then come type by type.
    """
    ends = edge_index.cpu().sort(0).values
    rows = ends if types is None else torch.cat([types.cpu()[None], ends])
    rows, belongs = torch.unique(rows, dim=1, return_inverse=True)
    pairs = rows[-2:]
    proper = pairs[0] != pairs[1]
    numbers = torch.where(proper, proper.cumsum(0) - 1, -1)
    return pairs[:, proper].T, numbers[belongs]


def subgraph_alone(data: Data, choice: Tensor) -> Data:
    """Cut out the subgraph on the chosen nodes (N,), with the graph's labels and no encoding.

    An explained node always stays.
    """
    if (codes := data.get(EXPLAINED_NODE)) is not None:
        choice = choice | (codes == 2)
    edges, attributes = subgraph(
        choice, data.edge_index, data.edge_attr, relabel_nodes=True, num_nodes=data.num_nodes
    )
    part = Data(x=data.x[choice], edge_index=edges, edge_attr=attributes)
    for name in ("pos", "y", EXPLAINED_NODE):
        if data.get(name) is not None:
            part[name] = data[name] if name == "y" else data[name][choice]
    part.num_nodes = int(choice.sum())
    return part


def remaining(data: Data, keep: Tensor, operator: str = "mask") -> Data:
    """Make a graph of the nodes that stay, `keep` (N,), to train a Graphormer on.

    Args:
        data: an encoded graph.
        keep: True for the nodes that stay.
        operator: how nodes are removed. `mask` restricts the encoding to the nodes that stay, and
            `delete` leaves a graph that has to be encoded again.

    Raises:
        ValueError: the operator is another one, which leaves no smaller graph.
    """
    if operator not in ("mask", "delete"):
        raise ValueError(f"operator {operator!r} leaves no smaller graph; use 'mask' or 'delete'.")
    part = subgraph_alone(data, keep)
    if operator == "delete":
        return part
    pairs = keep[:, None] & keep[None, :]  # (N, N)
    inside = pairs.flatten().repeat_interleave(data.bag_sizes.flatten().long())  # (M,)
    part.in_degree, part.out_degree = data.in_degree[keep], data.out_degree[keep]
    part.bag_codes, part.bag_weights = data.bag_codes[inside], data.bag_weights[inside]
    part.bag_sizes = data.bag_sizes[keep][:, keep]
    part.structure = data.structure
    if data.get("environments") is not None:  # as in the whole graph, as the degrees are
        part.environments = data.environments[keep]
        part.environment_settings = data.environment_settings
    return part
