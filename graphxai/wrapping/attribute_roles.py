"""Decide what each attribute of a graph belongs to: nodes, edges, pairs of nodes, or an index.

An index is any attribute that PyG increments when it makes a batch (`Data.__inc__`). Other
attributes are matched by their lengths in all graphs of a batch. If several lengths are equal, the
name of the attribute decides.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.typing import SparseTensor

from graphxai.runtime.notices import warn

NODES, EDGES, PAIRS = "nodes", "edge_index", "pairs"  # groups. The name of an index is one too
EVIDENCE = 64  # how many graphs decide what an attribute belongs to

OF_NODES = {"x", "mask", "pos", "z", "batch", "pe", "node", "feat", "tf", "id", "degree", "deg"}
OF_NODES |= {"atom"}  # as in the graphs of `estimators`
OF_EDGES = {"bond", "bonds", "link", "links", "relation", "relations"}
OF_GRAPHS = {"y", "u", "graph", "global", "target", "label"}
OF_PAIRS = {"adj", "adjacency", "bias", "dist", "distance", "distances", "matrix", "spd", "path"}
OF_PAIRS |= {"paths", "attn", "attention", "sim", "kernel", "rel", "spatial", "laplacian", "lap"}
FEATURES = OF_NODES | {"h", "emb", "embedding", "enc", "encoding", "features", "onehot", "attr"}


@dataclass(frozen=True)
class AttributeRole:
    """What an attribute belongs to.

    Args:
        along: the group (NODES, PAIRS or the name of an index) with an entry for each member, or
            None if the attribute belongs to the graph as a whole.
        names: the group that its values refer to (NODES or EDGES), if there is one.
        rows: for each of its rows, whether the values refer to that group. If this is empty, all
            do.
        square: whether it is a matrix (n, n) over pairs of nodes.
    """

    along: str | None = None
    names: str | None = None
    rows: tuple[bool, ...] = ()
    square: bool = False


AttributeRoles = dict[str, AttributeRole]


def attribute_roles(
    graphs: Sequence[Data], attributes: Collection[str] | None = None
) -> AttributeRoles:
    """Decide what each attribute of the graphs belongs to, and warn of uncertain attributes.

    Args:
        attributes: the names of the attributes that the model reads, or None if it reads all.
    """
    roles, doubts = roles_and_doubts(graphs)
    doubts = {k: doubt for k, doubt in doubts.items() if attributes is None or k in attributes}
    if doubts:
        text = "; ".join(f"{key}: {doubt}" for key, doubt in sorted(doubts.items()))
        warn(
            "when nodes or edges are hidden, a graph's attributes are cut to match. For some"
            f" it is uncertain what they belong to: {text}.",
            stacklevel=4,
        )
    return roles


def roles_and_doubts(graphs: Sequence[Data]) -> tuple[AttributeRoles, dict[str, str]]:
    """Decide the role of each attribute, and say what is uncertain about some of them."""
    graphs = graphs[:EVIDENCE]
    counts = {NODES: [int(graph.num_nodes or 0) for graph in graphs]}
    keys = [key for key in graphs[0].keys() if key != "num_nodes"]  # noqa: SIM118
    lengths_of = cache(partial(_lengths, graphs))
    roles_of = ((key, _index_role(graphs, key, counts[NODES])) for key in keys)
    indices = {key: role for key, role in roles_of if role is not None}
    for key in (EDGES, *indices):
        lengths = lengths_of(key) if key in keys else None
        another_column = lengths in counts.values() and graphs[0][key].dim() == 1
        if lengths is not None and not another_column:
            counts[key] = lengths
    roles, doubts = {}, {}
    for key in keys:
        roles[key], doubt = _role(graphs, key, lengths_of, indices.get(key), counts)
        if doubt:
            doubts[key] = doubt
    return roles, doubts


def _role(
    graphs: Sequence[Data],
    key: str,
    lengths_of: Callable[[str], list[int] | None],
    index: AttributeRole | None,
    counts: Mapping[str, list[int]],
) -> tuple[AttributeRole, str]:
    """Decide the role of one attribute, and say what is uncertain about it.

    Args:
        lengths_of: counts the entries of an attribute in each graph, see `_lengths`.
        counts: the number of members that each group has in each graph.
    """
    value = graphs[0][key]
    if isinstance(value, SparseTensor) or (is_tensor(value) and value.layout != torch.strided):
        over_pairs = list(value.sizes() if isinstance(value, SparseTensor) else value.shape)[:2]
        return (
            AttributeRole(NODES, square=True)
            if over_pairs == counts[NODES][:1] * 2
            else AttributeRole()
        ), ""
    lengths = lengths_of(key)
    if index is not None and lengths is not None:
        return AttributeRole(
            _group_of_index(key, value, lengths, counts), index.names, index.rows
        ), ""
    if lengths is None:
        nested = isinstance(value, Mapping | list | tuple) and any(map(is_tensor, _flat(value)))
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


def _group_of_index(key: str, value: Tensor, lengths: list[int], counts: Mapping[str, Any]) -> str:
    """Return the group with an entry for each entry of an index: its own, or one as long."""
    if value.dim() > 1 or set(lengths) == {1}:
        return key
    return next(group for group, count in counts.items() if count == lengths)


def _group(key: str, lengths: list[int], counts: Mapping[str, list[int]]) -> tuple[str | None, str]:
    """Find a group with the right number of members in every graph, and say what is uncertain."""
    fitting = [group for group, count in counts.items() if count == lengths]
    words, one_each = _words(key), set(lengths) == {1}
    if not fitting:
        squares = [n * n for n in counts[NODES]]
        return (PAIRS if lengths == squares and max(lengths) > 1 else None), ""
    if (len(fitting) == 1 and not one_each) or not any(lengths):
        return fitting[0], ""
    alike = [group for group in fitting if group not in (NODES, EDGES) and words & _words(group)]
    if len(alike) == 1:
        return alike[0], ""
    if one_each and words & OF_GRAPHS:
        return None, ""
    if EDGES in fitting and ("edge" in key or words & OF_EDGES):  # as PyG does for "edge"
        return EDGES, ""
    if NODES in fitting and words & OF_NODES:
        return NODES, ""
    if one_each and NODES not in fitting:
        return None, ""  # a number of the graph, whose graphs happen to have one edge or index each
    chosen = NODES if NODES in fitting else fitting[0]
    others = [group for group in fitting if group != chosen] + ["the graph"] * one_each
    return chosen, f"as long as {' and '.join([chosen, *others])}; it is cut with {chosen}"


def _words(key: str) -> set[str]:
    """Split a name into words, and leave out those that all indices have."""
    return set(re.split(r"[^a-z]+", key.lower())) - {"index", "edge", "edges", ""}


def _index_role(graphs: Sequence[Data], key: str, nodes: list[int]) -> AttributeRole | None:
    """Return the role of an index, as shown by what PyG adds to it in a batch, or None.

    `nodes` are the numbers of nodes of the graphs.
    """
    value = graphs[0][key]
    integers = is_tensor(value) and not value.is_floating_point() and value.dtype != torch.bool
    if not integers or value.layout != torch.strided or not value.dim() or "batch" in key:
        return None
    if key == "ptr" or not isinstance(graphs[0].__cat_dim__(key, value), int):
        return None
    added = [torch.as_tensor(g.__inc__(key, g[key])).flatten().tolist() for g in graphs]
    if not any(map(any, added)):
        return None
    # PyG takes long to count edges, so only as many graphs are asked as it takes
    alike = all(int(g.num_edges) == n for g, n in zip(graphs, nodes, strict=True))
    of_edges = alike and not _grows_with_nodes(graphs[0], key)
    for group in (EDGES,) if of_edges else (NODES, EDGES):
        count = nodes if group == NODES else [int(g.num_edges) for g in graphs]
        rows = tuple(row == tuple(count) for row in zip(*added, strict=True))
        if all(rows):
            return AttributeRole(key, group)
        if any(rows) and len(rows) == len(value):
            return AttributeRole(key, group, rows)
    return None


def _grows_with_nodes(graph: Data, key: str) -> bool:
    """Return whether PyG would add more to an index if the graph had one more node."""
    larger = copy(graph)
    larger.x, larger.num_nodes = torch.cat([graph.x, graph.x[:1]]), len(graph.x) + 1
    before, after = (torch.as_tensor(g.__inc__(key, g[key])) for g in (graph, larger))
    return not torch.equal(before, after)


def _lengths(graphs: Sequence[Data], key: str) -> list[int] | None:
    """Count an attribute's entries in each graph, or return None if it has no entries to count."""
    lengths = []
    for graph in graphs:
        value = graph.get(key)
        shape = getattr(value, "shape", None)
        dim = 0 if shape is None else graph.__cat_dim__(key, value)
        if shape is not None and (not isinstance(dim, int) or not shape):
            return None
        if isinstance(value, str | Mapping) or not hasattr(value, "__len__"):
            return None
        lengths.append(len(value) if shape is None else shape[dim])
    return lengths


def _is_square(graphs: Sequence[Data], key: str) -> bool:
    """Return whether there is also a column for every node. For single nodes the name decides."""
    values, n = [graph[key] for graph in graphs], [int(graph.num_nodes or 0) for graph in graphs]
    tensors = all(is_tensor(value) and value.dim() > 1 for value in values)
    is_clear = max(n) > 1 or bool(_words(key) & OF_PAIRS)
    return tensors and [value.shape[1] for value in values] == n and is_clear


def _may_name_nodes(value: Any, n: int) -> bool:
    """Return whether the values are pairs of integers, (M, 2) or (2, M), all of them below n."""
    if not is_tensor(value) or value.dtype not in (torch.long, torch.int) or value.dim() != 2:
        return False
    in_pairs = 2 in value.shape and max(value.shape) > 2
    return in_pairs and int(value.min()) >= 0 and int(value.max()) < n


def is_tensor(value: Any) -> bool:
    """Return whether an attribute is a tensor."""
    return isinstance(value, Tensor)


def _flat(values: Any) -> Iterator[Any]:
    """Yield everything in nested containers."""
    entries = values.values() if isinstance(values, Mapping) else values
    return chain.from_iterable(
        _flat(entry) if isinstance(entry, Mapping | list | tuple) else [entry] for entry in entries
    )


def matrices_in(roles: AttributeRoles) -> list[str]:
    """List the attributes that are a matrix over pairs of nodes."""
    return [key for key, role in roles.items() if role.square or role.along == PAIRS]


def has_matrices(graph: Data) -> bool:
    """Return whether a graph has dense matrices over node pairs, which PyG cannot batch."""
    # this is asked for every graph, and PyG takes long to count nodes
    lengths = {
        key: shape[0]
        for key, value in graph.to_dict().items()
        if is_tensor(value) and len(shape := value.shape) > 1 and shape[0] == shape[1]
    }
    n = int(graph.num_nodes or 0) if lengths else 0
    square = [key for key, length in lengths.items() if length == n]
    if not n or not square:
        return False
    roles, _ = roles_and_doubts([graph])
    return any(roles[key].square and graph[key].layout == torch.strided for key in square)
