"""Turn heterogeneous graphs (PyG's `HeteroData`) into one graph, where nodes and edges have types.

The rows of all types follow each other, padded with zeros to one width. Such a graph can be put
into batches, lose nodes and get relevance like any other. For the model it is split by types again.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from graphxai.contract.inputs import ASKED, EXPLAINED_NODE, SCHEMA, InputError, check_one_graph

from .chosen import PAIR, TYPE

TYPES = ("node_type", "edge_type")  # numbers that are added to a heterogeneous graph
EdgeType = tuple[str, str, str]


@dataclass(frozen=True)
class Schema:
    """The types of a graph with the width of their features, which is 0 for edges without any."""

    nodes: tuple[tuple[str, int], ...]
    edges: tuple[tuple[EdgeType, int], ...]

    @classmethod
    def of(cls, graph: HeteroData) -> "Schema":
        """Read the schema of a graph, or raise InputError if a type of nodes has no features."""
        nodes = []
        for kind in graph.node_types:
            x = graph[kind].get("x")
            if not isinstance(x, Tensor) or x.dim() != 2 or not x.is_floating_point():
                raise InputError(
                    f"the nodes of type {kind!r} need float features `x` (n, F); set"
                    f" graph[{kind!r}].x, for example to ones (n, 1)."
                )
            check_one_graph(graph[kind].get("batch"))
            nodes.append((kind, x.shape[1]))
        edges = []
        for edge in graph.edge_types:
            attr = graph[edge].get("edge_attr")
            edges.append((edge, 0 if attr is None else math.prod(attr.shape[1:])))
        return cls(tuple(nodes), tuple(edges))


def as_one_graph(graph: HeteroData) -> Data:
    """Turn a heterogeneous graph into one graph with a type for every node and edge."""
    schema = Schema.of(graph)
    counts = [len(graph[kind].x) for kind, _ in schema.nodes]
    names = [kind for kind, _ in schema.nodes]
    first = dict(zip(names, torch.tensor([0, *counts]).cumsum(0).tolist(), strict=False))
    width = max(size for _, size in schema.nodes)
    x = torch.cat([F.pad(graph[k].x, (0, width - size)) for k, size in schema.nodes])
    indices = [
        graph[edge].edge_index + x.new_tensor([[first[edge[0]]], [first[edge[2]]]]).long()
        for edge, _ in schema.edges
    ]
    graph_with_types = Data(
        x=x,
        edge_index=torch.cat(indices, 1) if indices else torch.empty(2, 0, dtype=torch.long),
        node_type=_types(counts),
        edge_type=_types([index.shape[1] for index in indices]),
    )
    if any(size for _, size in schema.edges):
        graph_with_types.edge_attr = _padded_attributes(graph, schema, x)
    graph_with_types[SCHEMA] = schema
    if EXPLAINED_NODE in graph:
        chosen, start = torch.zeros(len(x), dtype=torch.long), first[graph[TYPE]]
        chosen[start : start + len(graph[EXPLAINED_NODE])] = graph[EXPLAINED_NODE]
        graph_with_types[TYPE], graph_with_types[EXPLAINED_NODE] = graph[TYPE], chosen
    return graph_with_types


def _types(counts: list[int]) -> Tensor:
    return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts, dtype=torch.long))


def _padded_attributes(graph: HeteroData, schema: Schema, like: Tensor) -> Tensor:
    """Stack the attributes of all edges, padded to one width, with the dtype of `like`."""
    width = max(size for _, size in schema.edges)
    rows = []
    for edge, size in schema.edges:
        count = graph[edge].edge_index.shape[1]
        attr = graph[edge].edge_attr.reshape(count, size) if size else like.new_zeros(count, 0)
        rows.append(F.pad(attr.to(like), (0, width - size)))
    return torch.cat(rows)


def as_typed(graphs: Any) -> HeteroData:
    """Turn a batch of graphs with types into the model's input, with `batch` for each type."""
    schema: Schema = graphs[SCHEMA][0]
    by_type, place = HeteroData(), torch.empty_like(graphs.node_type)
    for code, (kind, width) in enumerate(schema.nodes):
        (nodes,) = (graphs.node_type == code).nonzero(as_tuple=True)
        place[nodes] = torch.arange(len(nodes), device=nodes.device)
        by_type[kind].x, by_type[kind].batch = graphs.x[nodes, :width], graphs.batch[nodes]
    for code, (edge, width) in enumerate(schema.edges):
        (edges,) = (graphs.edge_type == code).nonzero(as_tuple=True)
        by_type[edge].edge_index = place[graphs.edge_index[:, edges]]
        if width:
            by_type[edge].edge_attr = graphs.edge_attr[edges, :width]
    by_type.num_graphs = graphs.num_graphs
    return by_type


def names_added(graph: Any) -> set[str]:
    """Return the names of attributes that are not the user's, and so no inputs of the model."""
    return {SCHEMA, EXPLAINED_NODE, ASKED, TYPE, PAIR, *(TYPES if SCHEMA in graph else ())}


def types_of_nodes(graph: Any) -> Tensor:
    """Return the type of each node (n,), counted from 0, of a graph or a batch.

    A graph of PyG's `to_homogeneous` has them as well. Other attributes of that name are none.
    """
    types = graph.get("node_type")
    if not isinstance(types, Tensor) or types.dim() != 1 or types.is_floating_point():
        return torch.zeros(len(graph.x), dtype=torch.long, device=graph.x.device)
    return types.unique(return_inverse=True)[1]


def numbers_of_types(batch: Any, keep: Tensor) -> Tensor:
    """Return how many types of nodes (B,) each graph of a batch keeps, with nodes keep (B, N)."""
    codes = torch.zeros_like(batch.mask, dtype=torch.long)
    codes[batch.mask] = types_of_nodes(batch.graphs)
    return (F.one_hot(codes).bool() & (batch.mask & keep)[..., None]).any(1).sum(-1)


def nodes_by_type(graph: Any) -> dict[str, Any] | None:
    """Return the numbers of the nodes of each type as arrays, or None for a graph without types."""
    schema = graph.get(SCHEMA)
    if schema is None:
        return None
    return {
        kind: (graph.node_type == code).nonzero()[:, 0].cpu().numpy()
        for code, (kind, _) in enumerate(schema.nodes)
    }


def edges_by_type(graph: Any, with_attributes: bool) -> dict[str, Any]:
    """Return the edge numbers of each type as arrays, under names like "user rates film".

    Types of edges may be left out unless they have attributes.
    """
    return {
        " ".join(edge): (graph.edge_type == code).nonzero()[:, 0].cpu().numpy()
        for code, (edge, width) in enumerate(graph[SCHEMA].edges)
        if width or not with_attributes
    }


def edges_with_types(graph: Any) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Return the edges (M, 2) of a graph with types, each column's edge, and the names of types.

    An edge has the numbers of its nodes within their types. Each column (E,) of the graph's
    `edge_index` has the number of its edge, or -1 if it is a self loop.
    """
    schema: Schema = graph[SCHEMA]
    counts = graph.node_type.cpu().bincount(minlength=len(schema.nodes))
    within = graph.edge_index.cpu() - (counts.cumsum(0) - counts)[graph.node_type[graph.edge_index]]
    first, second = graph.edge_index.cpu()
    proper = first != second
    names = [" ".join(edge) for edge, _ in schema.edges]
    types = tuple(
        names[code] for code in graph.edge_type[proper.to(graph.edge_type.device)].tolist()
    )
    return within[:, proper].T, torch.where(proper, proper.cumsum(0) - 1, -1), types
