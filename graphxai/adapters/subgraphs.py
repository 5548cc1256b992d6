"""Subgraphs on some of a graph's nodes, with all attributes cut accordingly.

PyG's `Data.subgraph` cuts `edge_index` and attributes with one row per node or edge. Graphs can
have more: other node indices (`expander_edge_index`, `pair_index`) with their own attributes
(`pair_dist`), and matrices over node pairs, also sparse ones. An index is whatever PyG increments
when it makes a batch (`Data.__inc__`). Other attributes are matched by length, in all graphs of a
batch at once; if several lengths are equal, by name.
"""

import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import select

NODES, EDGES, PAIRS = "nodes", "edge_index", "pairs"  # groups of entries; others: an index's name
EVIDENCE = 64  # graphs used to decide what an attribute belongs to

OF_NODES = {"x", "mask", "pos", "z", "batch", "pe", "node", "feat", "tf", "id", "degree", "deg"}
OF_GRAPHS = {"y", "u", "graph", "global", "target", "label"}
OF_PAIRS = {"adj", "adjacency", "bias", "dist", "distance", "distances", "matrix", "spd", "path"}
OF_PAIRS |= {"paths", "attn", "attention", "sim", "kernel", "rel", "spatial", "laplacian", "lap"}
FEATURES = OF_NODES | {"h", "emb", "embedding", "enc", "encoding", "features", "onehot", "attr"}


@dataclass(frozen=True)
class AttributeRole:
    """What an attribute belongs to.

    along: the group for which it has one entry each (NODES, PAIRS or the name of an index); None:
    the graph as a whole. names: the group that its values refer to (NODES or EDGES); rows: which of
    its rows do so, all if empty. square: (n, n), a matrix over pairs.
    """

    along: str | None = None
    names: str | None = None
    rows: tuple[bool, ...] = ()
    square: bool = False


AttributeRoles = dict[str, AttributeRole]


def restricted(
    graph: Data, keep: Tensor, roles: AttributeRoles | None = None, edges: Tensor | None = None
) -> Data:
    """The nodes that stay, with the edges and other entries between them; keep (N,).

    roles: from `attribute_roles` for all graphs of the batch, which is more reliable than for one. edges
    (E,): the edges that stay, as far as their nodes do; None: all.
    """
    roles = attribute_roles([graph]) if roles is None else roles
    kept, made = {NODES: keep} if edges is None else {NODES: keep, EDGES: edges}, copy(graph)
    indices = [key for key, role in roles.items() if role.names is not None and key in graph]
    indices.sort(key=lambda key: roles[key].names != NODES)  # the edges that stay come first
    for key in indices:
        along = roles[key].along
        if along is not None and along != NODES:
            stays = _entries_stay(graph, key, roles[key], kept)
            kept[along] = kept[along] & stays if along in kept else stays
    for key in indices:
        made[key] = _renumbered(graph, key, roles[key], kept)
    if PAIRS in {role.along for role in roles.values()}:
        kept[PAIRS] = (keep[:, None] & keep).flatten()
    for key, role in roles.items():
        if role.names is None and role.along in kept and key in graph:
            made[key] = _cut(graph, key, kept[role.along], role.square)
    made.num_nodes = int(keep.sum())
    return made


def matrices_in(roles: AttributeRoles) -> list[str]:
    """The attributes that are a matrix over pairs of nodes."""
    return [key for key, role in roles.items() if role.square or role.along == PAIRS]


def same_without_nodes(
    graphs: Sequence[Data], roles: AttributeRoles, read: Collection[str] | None
) -> bool:
    """Whether these graphs are equal once their nodes are gone, in all that is read (None: all)."""
    for key, role in roles.items():
        if read is not None and key not in read:
            continue
        if role.along in (NODES, EDGES, PAIRS):
            continue
        value = graphs[0][key]
        if role.along is not None or role.names is not None or not _is_tensor(value):
            return False
        others = (graph[key] for graph in graphs)
        if not all(_is_tensor(other) and torch.equal(value, other) for other in others):
            return False
    return True


def disjoint_copies(graph: Data, times: int) -> Data:
    """Disconnected copies of a graph, without matrices over its nodes, as one graph."""
    roles, _ = roles_and_doubts([graph])
    joined, made = Batch.from_data_list([graph] * times), copy(graph)
    for key, role in roles.items():
        if role.along is not None or role.names is not None:
            made[key] = joined[key]
    made.num_nodes = times * int(graph.num_nodes or 0)
    return made


def reordered(graph: Data, order: Tensor, roles: AttributeRoles) -> Data:
    """The same graph, whose node k is node `order[k]`; order (N,). Edges stay in their order."""
    place, made = order.argsort(), copy(graph)
    pairs = (order[:, None] * len(order) + order).flatten()
    for key, role in roles.items():
        value = graph[key]
        if role.names == NODES:
            value, numbers = _plain(value), _numbers(_plain(value), role)
            value = torch.where(numbers, place.to(value)[torch.where(numbers, value, 0)], value)
        if role.along in (NODES, PAIRS):
            value = _moved(graph, key, value, order if role.along == NODES else pairs, role.square)
        made[key] = value
    return made


def _moved(graph: Data, key: str, value: Any, order: Tensor, square: bool) -> Any:
    """The entries of an attribute (both axes of a matrix) in another order."""
    if isinstance(value, SparseTensor):
        return value[order][:, order] if square else value[order]
    if isinstance(value, Tensor) and value.layout != torch.strided:
        return _of_sparse(value, order)
    axis = graph.__cat_dim__(key, value)
    if isinstance(value, np.ndarray):
        return np.take(value, order.cpu().numpy(), axis)
    value = value.index_select(axis, order)
    return value.index_select(1, order) if square else value


def _plain(value: Tensor) -> Tensor:
    """PyG's `EdgeIndex` as a plain tensor."""
    as_tensor = getattr(value, "as_tensor", None)
    return value if as_tensor is None else as_tensor()


def _cut(graph: Data, key: str, keep: Tensor, square: bool) -> Any:
    value = graph[key]
    if isinstance(value, Tensor) and value.layout != torch.strided:
        return _of_sparse(value, keep.nonzero()[:, 0])
    if square:
        return value[keep][:, keep]
    if isinstance(value, np.ndarray):
        return np.compress(keep.cpu().numpy(), value, axis=graph.__cat_dim__(key, value))
    return select(value, keep, dim=graph.__cat_dim__(key, value))


def _of_sparse(matrix: Tensor, chosen: Tensor) -> Tensor:
    """Rows and columns of a sparse matrix (N, N), in its own layout."""
    made = matrix.to_sparse_coo().index_select(0, chosen).index_select(1, chosen).coalesce()
    return made if matrix.layout == torch.sparse_coo else made.to_sparse(layout=matrix.layout)


def _numbers(values: Tensor, role: AttributeRole) -> Tensor:
    """Which values refer to the group: all but -1 and the like, in the rows that do so."""
    if not role.rows:
        return values >= 0
    rows = torch.tensor(role.rows, device=values.device)
    return (values >= 0) & rows.view(-1, *[1] * (values.dim() - 1))


def _stay(values: Tensor, keep: Tensor, role: AttributeRole, key: str) -> Tensor:
    """Where values refer to members that stay, or to none."""
    numbers = _numbers(values, role)
    named = torch.where(numbers, values, 0).long()
    if named.numel() and int(named.max()) >= len(keep):
        raise ValueError(
            f"{key} contains {int(named.max())}, but there are only {len(keep)}"
            f" {'nodes' if role.names == NODES else 'edges'}: PyG treats an attribute of this name"
            " as an index."
        )
    return keep[named] | ~numbers if len(keep) else ~numbers


def _entries_stay(graph: Data, key: str, role: AttributeRole, kept: Mapping[str, Tensor]) -> Tensor:
    """(M,): True at the entries of an index whose members all stay."""
    assert role.names is not None
    values = _plain(graph[key])
    dim = graph.__cat_dim__(key, values) % values.dim()
    stays = _stay(values, kept[role.names], role, key)
    others = [d for d in range(values.dim()) if d != dim]
    return stays.all(others) if others else stays


def _renumbered(graph: Data, key: str, role: AttributeRole, kept: Mapping[str, Tensor]) -> Tensor:
    """The entries of an index that stay, renumbered."""
    assert role.names is not None
    assert role.along is not None
    values, keep = _plain(graph[key]), kept[role.names]
    entries = kept[role.along].nonzero()[:, 0]
    values = values.index_select(graph.__cat_dim__(key, values), entries)
    if not len(keep):
        return values
    numbers, stays = _numbers(values, role), _stay(values, keep, role, key)
    new = (keep.cumsum(0) - 1).to(values.dtype)
    found = torch.where(numbers, new[torch.where(numbers, values, 0).long()], values)
    if bool(stays.all()):
        return found
    warnings.warn(
        f"{key} has one entry per node, and some refer to hidden nodes: they now refer to their own"
        " node instead.",
        stacklevel=3,
    )
    return torch.where(stays, found, torch.arange(len(values)).to(values))


def has_matrices(graph: Data) -> bool:
    """Whether a graph has dense matrices over node pairs, which PyG cannot batch."""
    n = int(graph.num_nodes or 0)
    square = [
        key
        for key, value in graph
        if _is_tensor(value) and value.dim() > 1 and value.shape[:2] == (n, n) and n
    ]
    if not square:
        return False
    found, _ = roles_and_doubts([graph])
    return any(found[key].square and graph[key].layout == torch.strided for key in square)


# -- what belongs to what ----------------------------------------------------------------------


def attribute_roles(graphs: Sequence[Data], read: Collection[str] | None = None) -> AttributeRoles:
    """What each attribute of the graphs belongs to, with a warning about uncertain ones.

    read: names of the attributes that the model reads; None: all.
    """
    found, doubts = roles_and_doubts(graphs)
    doubts = {key: doubt for key, doubt in doubts.items() if read is None or key in read}
    if doubts:
        text = "; ".join(f"{key}: {doubt}" for key, doubt in sorted(doubts.items()))
        warnings.warn(
            "when nodes are hidden, the attributes of a graph are cut to match, and for some it is"
            f" uncertain what they belong to: {text}.",
            stacklevel=4,
        )
    return found


def roles_and_doubts(graphs: Sequence[Data]) -> tuple[AttributeRoles, dict[str, str]]:
    """The role of each attribute, and by name in words what is uncertain about it."""
    graphs = graphs[:EVIDENCE]
    counts = {NODES: [int(graph.num_nodes or 0) for graph in graphs]}
    keys = [key for key in graphs[0].keys() if key != "num_nodes"]  # noqa: SIM118
    indices = {key: found for key in keys if (found := _names(graphs, key)) is not None}
    for key in (EDGES, *indices):
        lengths = _lengths(graphs, key) if key in keys else None
        another_column = lengths in counts.values() and graphs[0][key].dim() == 1
        if lengths is not None and not another_column:
            counts[key] = lengths
    roles, doubts = {}, {}
    for key in keys:
        roles[key], doubt = _role(graphs, key, indices.get(key), counts)
        if doubt:
            doubts[key] = doubt
    return roles, doubts


def _role(
    graphs: Sequence[Data], key: str, index: AttributeRole | None, counts: Mapping[str, list[int]]
) -> tuple[AttributeRole, str]:
    """The role of one attribute, and in words what is uncertain about it."""
    value = graphs[0][key]
    if isinstance(value, SparseTensor) or (_is_tensor(value) and value.layout != torch.strided):
        over_pairs = list(value.sizes() if isinstance(value, SparseTensor) else value.shape)[:2]
        return (
            AttributeRole(NODES, square=True)
            if over_pairs == counts[NODES][:1] * 2
            else AttributeRole()
        ), ""
    lengths = _lengths(graphs, key)
    if index is not None and lengths is not None:
        return AttributeRole(_own_group(key, value, lengths, counts), index.names, index.rows), ""
    if lengths is None:
        nested = isinstance(value, Mapping | list | tuple) and any(map(_is_tensor, _flat(value)))
        return AttributeRole(), "it is left unchanged, with everything in it" if nested else ""
    along, doubt = _group(key, lengths, counts)
    if along is None and not doubt and _may_name_nodes(value, counts[NODES][0]):
        doubt = "its numbers may refer to nodes, but its name lacks 'index'; left unchanged"
    if along == NODES and _is_square(graphs, key):
        words = _words(key)
        if not words & FEATURES:
            doubt = "" if words & OF_PAIRS else "it is treated as a matrix over pairs of nodes"
            return AttributeRole(NODES, square=True), doubt
    return AttributeRole(along), doubt


def _own_group(key: str, value: Tensor, lengths: list[int], counts: Mapping[str, Any]) -> str:
    """The entries of an index: its own, the nodes', or those of another column of it."""
    if value.dim() > 1 or set(lengths) == {1}:
        return key
    return next(group for group, count in counts.items() if count == lengths)


def _group(key: str, lengths: list[int], counts: Mapping[str, list[int]]) -> tuple[str | None, str]:
    """The group that has as many members in every graph, and in words what is uncertain."""
    hits = [group for group, count in counts.items() if count == lengths]
    words, one_each = _words(key), set(lengths) == {1}
    if not hits:
        squares = [n * n for n in counts[NODES]]
        return (PAIRS if lengths == squares and max(lengths) > 1 else None), ""
    if (len(hits) == 1 and not one_each) or not any(lengths):
        return hits[0], ""
    own = [group for group in hits if group not in (NODES, EDGES) and words & _words(group)]
    if len(own) == 1:
        return own[0], ""
    if one_each and words & OF_GRAPHS:
        return None, ""
    if EDGES in hits and "edge" in key:  # as PyG decides
        return EDGES, ""
    if NODES in hits and words & OF_NODES:
        return NODES, ""
    chosen = NODES if NODES in hits else hits[0]
    others = [group for group in hits if group != chosen] + ["the graph"] * one_each
    return chosen, f"as long as {' and '.join([chosen, *others])}; it is cut with {chosen}"


def _words(key: str) -> set[str]:
    """The words of a name, without those common to all indices."""
    return set(re.split(r"[^a-z]+", key.lower())) - {"index", "edge", "edges", ""}


def _names(graphs: Sequence[Data], key: str) -> AttributeRole | None:
    """What an attribute's integers refer to, if anything: from what PyG adds to them in a batch."""
    value = graphs[0][key]
    whole = _is_tensor(value) and not value.is_floating_point() and value.dtype != torch.bool
    if not whole or value.layout != torch.strided or not value.dim() or "batch" in key:
        return None
    if key == "ptr" or not isinstance(graphs[0].__cat_dim__(key, value), int):
        return None
    added = [_flat_numbers(g.__inc__(key, g[key])) for g in graphs]
    if not any(map(any, added)):
        return None
    nodes, edges = [int(g.num_nodes or 0) for g in graphs], [int(g.num_edges) for g in graphs]
    of_edges = nodes == edges and not _grows_with_nodes(graphs[0], key)
    for group, count in ((EDGES, edges),) if of_edges else ((NODES, nodes), (EDGES, edges)):
        rows = tuple(row == tuple(count) for row in zip(*added, strict=True))
        if all(rows):
            return AttributeRole(key, group)
        if any(rows) and len(rows) == len(value):
            return AttributeRole(key, group, rows)
    return None


def _flat_numbers(value: Any) -> list[Any]:
    """Numbers as a list; most are a single one."""
    return [value] if isinstance(value, int) else torch.as_tensor(value).flatten().tolist()


def _grows_with_nodes(graph: Data, key: str) -> bool:
    """Whether PyG would add more to an index if there were one more node."""
    larger = copy(graph)
    larger.x, larger.num_nodes = torch.cat([graph.x, graph.x[:1]]), len(graph.x) + 1
    before, after = (torch.as_tensor(g.__inc__(key, g[key])) for g in (graph, larger))
    return not torch.equal(before, after)


def _lengths(graphs: Sequence[Data], key: str) -> list[int] | None:
    """The number of entries in each graph; None if it has no entries."""
    found = []
    for graph in graphs:
        value = graph.get(key)
        dim = graph.__cat_dim__(key, value) if hasattr(value, "shape") else 0
        if hasattr(value, "shape") and (not isinstance(dim, int) or not value.shape):
            return None
        if isinstance(value, str | Mapping) or not hasattr(value, "__len__"):
            return None
        assert value is not None
        found.append(value.shape[dim] if hasattr(value, "shape") else len(value))
    return found


def _is_square(graphs: Sequence[Data], key: str) -> bool:
    """Whether there is one column per node too; for single nodes only the name decides."""
    values, n = [graph[key] for graph in graphs], [int(graph.num_nodes or 0) for graph in graphs]
    tensors = all(_is_tensor(value) and value.dim() > 1 for value in values)
    text = max(n) > 1 or bool(_words(key) & OF_PAIRS)
    return tensors and [value.shape[1] for value in values] == n and text


def _may_name_nodes(value: Any, n: int) -> bool:
    """Whether integers come in pairs, (M, 2) or (2, M), all less than n."""
    if not _is_tensor(value) or value.dtype not in (torch.long, torch.int) or value.dim() != 2:
        return False
    in_pairs = 2 in value.shape and max(value.shape) > 2
    return in_pairs and int(value.min()) >= 0 and int(value.max()) < n


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _flat(values: Any) -> Iterator[Any]:
    entries = values.values() if isinstance(values, Mapping) else values
    return chain.from_iterable(
        _flat(entry) if isinstance(entry, Mapping | list | tuple) else [entry] for entry in entries
    )
