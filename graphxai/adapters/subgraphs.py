"""The part of a graph on some of its nodes, where every attribute follows what it belongs to.

`Data.subgraph` of PyG cuts `edge_index` and what has one row a node or an edge. Graphs hold more:
other indices of nodes (`expander_edge_index`, `pair_index`), with attributes of their own
(`pair_dist`), matrices over pairs of nodes, sparse ones too. An index is what PyG counts on when it
makes a batch (`Data.__inc__`). What else an attribute belongs to is told by its length, in all
graphs of a batch at once; where several lengths are the same, by its name.
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
EVIDENCE = 64  # graphs by which it is told what an attribute belongs to

OF_NODES = {"x", "mask", "pos", "z", "batch", "pe", "node", "feat", "tf", "id", "degree", "deg"}
OF_GRAPHS = {"y", "u", "graph", "global", "target", "label"}
OF_PAIRS = {"adj", "adjacency", "bias", "dist", "distance", "distances", "matrix", "spd", "path"}
OF_PAIRS |= {"paths", "attn", "attention", "sim", "kernel", "rel", "spatial", "laplacian", "lap"}
FEATURES = OF_NODES | {"h", "emb", "embedding", "enc", "encoding", "features", "onehot", "attr"}


@dataclass(frozen=True)
class Role:
    """What an attribute belongs to.

    along: the group of which it has one entry each (NODES, PAIRS or the name of an index); None: it
    belongs to the graph as a whole. names: the group whose members its values number (NODES or
    EDGES); rows: which of its rows do so, all if empty. square: (n, n), a matrix over pairs.
    """

    along: str | None = None
    names: str | None = None
    rows: tuple[bool, ...] = ()
    square: bool = False


Roles = dict[str, Role]


def part(graph: Data, keep: Tensor, roles: Roles | None = None) -> Data:
    """The nodes that stay, with the edges and other entries between them; keep (N,).

    roles: from `roles_of` all graphs of the batch, which tell more than one.
    """
    roles = roles_of([graph]) if roles is None else roles
    kept, made = {NODES: keep}, copy(graph)
    indices = [key for key, role in roles.items() if role.names is not None and key in graph]
    indices.sort(key=lambda key: roles[key].names != NODES)  # edges that stay must be known before
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


def several(graph: Data, times: int) -> Data:
    """So many copies of a graph as one graph, which no edge joins."""
    roles, _ = roles_and_doubts([graph])
    joined, made = Batch.from_data_list([graph] * times), copy(graph)
    for key, role in roles.items():
        if role.square and _is_tensor(graph[key]) and graph[key].layout == torch.strided:
            made[key] = _blocks(graph[key], times)
        elif role.along is not None or role.names is not None:
            made[key] = joined[key]
    made.num_nodes = times * int(graph.num_nodes or 0)
    return made


def _blocks(matrix: Tensor, times: int) -> Tensor:
    """A matrix (n, n, ...) so many times on the diagonal; all else is zero."""
    n = len(matrix)
    made = matrix.new_zeros(n * times, n * times, *matrix.shape[2:])
    for start in range(0, n * times, n):
        made[start : start + n, start : start + n] = matrix
    return made


def _plain(value: Tensor) -> Tensor:
    """PyG's `EdgeIndex` as the tensor that it is."""
    as_tensor = getattr(value, "as_tensor", None)
    return value if as_tensor is None else as_tensor()


def _cut(graph: Data, key: str, keep: Tensor, square: bool) -> Any:
    value = graph[key]
    if isinstance(value, Tensor) and value.layout != torch.strided:
        return _cut_sparse(value, keep)
    if square:
        return value[keep][:, keep]
    if isinstance(value, np.ndarray):
        return np.compress(keep.cpu().numpy(), value, axis=graph.__cat_dim__(key, value))
    return select(value, keep, dim=graph.__cat_dim__(key, value))


def _cut_sparse(matrix: Tensor, keep: Tensor) -> Tensor:
    """Rows and columns of a sparse matrix (N, N), in its own layout."""
    entries = matrix.to_sparse_coo().coalesce()
    indices = entries.indices()
    inside = keep[indices].all(0)
    n = int(keep.sum())
    made = torch.sparse_coo_tensor(
        (keep.cumsum(0) - 1)[indices[:, inside]],
        entries.values()[inside],
        (n, n, *matrix.shape[2:]),
        is_coalesced=True,
    )
    return made if matrix.layout == torch.sparse_coo else made.to_sparse(layout=matrix.layout)


def _numbers(values: Tensor, role: Role) -> Tensor:
    """Which values are numbers of the group: all but -1 and the like, in the rows that name it."""
    if not role.rows:
        return values >= 0
    rows = torch.tensor(role.rows, device=values.device)
    return (values >= 0) & rows.view(-1, *[1] * (values.dim() - 1))


def _stay(values: Tensor, keep: Tensor, role: Role, key: str) -> Tensor:
    """Where values name what stays, or nothing."""
    numbers = _numbers(values, role)
    named = torch.where(numbers, values, 0).long()
    if named.numel() and int(named.max()) >= len(keep):
        raise ValueError(
            f"{key} holds {int(named.max())}, which is the number of none of {len(keep)}"
            f" {'nodes' if role.names == NODES else 'edges'}: PyG takes an attribute of this name"
            " for an index."
        )
    return keep[named] | ~numbers if len(keep) else ~numbers


def _entries_stay(graph: Data, key: str, role: Role, kept: Mapping[str, Tensor]) -> Tensor:
    """(M,): True at the entries of an index all of whose members stay."""
    assert role.names is not None
    values = _plain(graph[key])
    dim = graph.__cat_dim__(key, values) % values.dim()
    stays = _stay(values, kept[role.names], role, key)
    others = [d for d in range(values.dim()) if d != dim]
    return stays.all(others) if others else stays


def _renumbered(graph: Data, key: str, role: Role, kept: Mapping[str, Tensor]) -> Tensor:
    """The entries of an index that stay, by the new numbers of what they name."""
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
        f"{key} has one entry a node, of which some name nodes that are hidden: they name their own"
        " node instead.",
        stacklevel=3,
    )
    return torch.where(stays, found, torch.arange(len(values)).to(values))


def has_matrices(graph: Data) -> bool:
    """Whether a graph holds dense matrices over pairs of its nodes, which PyG cannot batch."""
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


def roles_of(graphs: Sequence[Data], read: Collection[str] | None = None) -> Roles:
    """What each attribute of the graphs belongs to. What cannot be told a warning names.

    read: names of the attributes that somebody reads; None: of all.
    """
    found, doubts = roles_and_doubts(graphs)
    doubts = {key: doubt for key, doubt in doubts.items() if read is None or key in read}
    if doubts:
        text = "; ".join(f"{key}: {doubt}" for key, doubt in sorted(doubts.items()))
        warnings.warn(
            "where nodes are hidden every attribute of a graph must follow what it belongs to, and"
            f" of some this cannot be told for certain: {text}.",
            stacklevel=4,
        )
    return found


def roles_and_doubts(graphs: Sequence[Data]) -> tuple[Roles, dict[str, str]]:
    """The role of each attribute, and by its name in words what is not certain about it."""
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
    graphs: Sequence[Data], key: str, index: Role | None, counts: Mapping[str, list[int]]
) -> tuple[Role, str]:
    """The role of one attribute, and in words what is not certain about it."""
    value = graphs[0][key]
    if isinstance(value, SparseTensor) or (_is_tensor(value) and value.layout != torch.strided):
        over_pairs = list(value.sizes() if isinstance(value, SparseTensor) else value.shape)[:2]
        return (Role(NODES, square=True) if over_pairs == counts[NODES][:1] * 2 else Role()), ""
    lengths = _lengths(graphs, key)
    if index is not None and lengths is not None:
        return Role(_own_group(key, value, lengths, counts), index.names, index.rows), ""
    if lengths is None:
        nested = isinstance(value, Mapping | list | tuple) and any(map(_is_tensor, _flat(value)))
        return Role(), "it stays as it is, with all that is in it" if nested else ""
    along, doubt = _group(key, lengths, counts)
    if along is None and not doubt and _may_name_nodes(value, counts[NODES][0]):
        doubt = "its numbers may be of nodes, but no name with 'index' says so; they stay"
    if along == NODES and _is_square(graphs, key):
        words = _words(key)
        if not words & FEATURES:
            doubt = "" if words & OF_PAIRS else "it is taken for a matrix over pairs of nodes"
            return Role(NODES, square=True), doubt
    return Role(along), doubt


def _own_group(key: str, value: Tensor, lengths: list[int], counts: Mapping[str, Any]) -> str:
    """The entries of an index: its own, those of nodes, or of one that is another column of it."""
    if value.dim() > 1 or set(lengths) == {1}:
        return key
    return next(group for group, count in counts.items() if count == lengths)


def _group(key: str, lengths: list[int], counts: Mapping[str, list[int]]) -> tuple[str | None, str]:
    """The group that has as many members in every graph, and in words what is not certain."""
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
    return chosen, f"as long as {' and '.join([chosen, *others])}, it follows {chosen}"


def _words(key: str) -> set[str]:
    """The words of a name, without those that every index has."""
    return set(re.split(r"[^a-z]+", key.lower())) - {"index", "edge", "edges", ""}


def _names(graphs: Sequence[Data], key: str) -> Role | None:
    """Whether and what an attribute's whole numbers name: by what PyG adds to them in a batch."""
    value = graphs[0][key]
    whole = _is_tensor(value) and not value.is_floating_point() and value.dtype != torch.bool
    if not whole or value.layout != torch.strided or not value.dim() or "batch" in key:
        return None
    if key == "ptr" or not isinstance(graphs[0].__cat_dim__(key, value), int):
        return None
    added = [torch.as_tensor(g.__inc__(key, g[key])).flatten() for g in graphs]
    if not any(bool(a.any()) for a in added):
        return None
    nodes, edges = [int(g.num_nodes or 0) for g in graphs], [int(g.num_edges) for g in graphs]
    of_edges = nodes == edges and not _grows_with_nodes(graphs[0], key)
    for group, count in ((EDGES, edges),) if of_edges else ((NODES, nodes), (EDGES, edges)):
        rows = torch.stack([a == n for a, n in zip(added, count, strict=True)]).all(0)
        if bool(rows.all()):
            return Role(key, group)
        if bool(rows.any()) and len(rows) == len(value):
            return Role(key, group, tuple(rows.tolist()))
    return None


def _grows_with_nodes(graph: Data, key: str) -> bool:
    """Whether PyG would add more to an index if there were a node more."""
    larger = copy(graph)
    larger.x, larger.num_nodes = torch.cat([graph.x, graph.x[:1]]), len(graph.x) + 1
    before, after = (torch.as_tensor(g.__inc__(key, g[key])) for g in (graph, larger))
    return not torch.equal(before, after)


def _lengths(graphs: Sequence[Data], key: str) -> list[int] | None:
    """The number of entries in each graph; None of what has none."""
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
    """Whether there is one column for each node too; of single nodes only its name tells."""
    values, n = [graph[key] for graph in graphs], [int(graph.num_nodes or 0) for graph in graphs]
    tensors = all(_is_tensor(value) and value.dim() > 1 for value in values)
    text = max(n) > 1 or bool(_words(key) & OF_PAIRS)
    return tensors and [value.shape[1] for value in values] == n and text


def _may_name_nodes(value: Any, n: int) -> bool:
    """Whether whole numbers come in pairs, (M, 2) or (2, M), none as large as n."""
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
