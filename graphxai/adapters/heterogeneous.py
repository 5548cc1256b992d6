"""Heterogeneous graphs (PyG's `HeteroData`) as one graph whose nodes and edges have a type.

The rows of all types follow each other, padded with zeros to one width. All that is done to other
graphs can then be done to them: batches, hidden nodes, relevance. For the model they are taken
apart again.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from graphxai.contract.inputs import InputError

from .calling import CHOSEN, TYPE

SCHEMA = "schema"  # attribute of a graph with types
OF_TYPES = (SCHEMA, "node_type", "edge_type", CHOSEN, TYPE)  # no inputs of their own
EdgeType = tuple[str, str, str]


@dataclass(frozen=True)
class Schema:
    """The types of a graph and the width of their features; zero for edges without any."""

    nodes: tuple[tuple[str, int], ...]
    edges: tuple[tuple[EdgeType, int], ...]

    @classmethod
    def of(cls, graph: HeteroData) -> "Schema":
        """The schema of a graph. Raises InputError for a type of nodes without features."""
        nodes = []
        for kind in graph.node_types:
            x = graph[kind].get("x")
            if not isinstance(x, Tensor) or x.dim() != 2 or not x.is_floating_point():
                raise InputError(
                    f"the nodes of type {kind!r} need float features `x` (n, F); set"
                    f" graph[{kind!r}].x, for example to ones (n, 1)."
                )
            nodes.append((kind, x.shape[1]))
        edges = []
        for edge in graph.edge_types:
            attr = graph[edge].get("edge_attr")
            edges.append((edge, 0 if attr is None else attr.reshape(len(attr), -1).shape[1]))
        return cls(tuple(nodes), tuple(edges))


def as_one_graph(graph: HeteroData) -> Data:
    """A heterogeneous graph as one graph with a type for every node and edge."""
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
    made = Data(
        x=x,
        edge_index=torch.cat(indices, 1) if indices else torch.empty(2, 0, dtype=torch.long),
        node_type=_types(counts),
        edge_type=_types([index.shape[1] for index in indices]),
    )
    if any(size for _, size in schema.edges):
        made.edge_attr = _padded_attributes(graph, schema, x)
    made[SCHEMA] = schema
    if CHOSEN in graph:
        made[TYPE], made[CHOSEN] = graph[TYPE], torch.zeros(len(x), dtype=torch.long)
        start = first[graph[TYPE]]
        made[CHOSEN][start : start + len(graph[CHOSEN])] = graph[CHOSEN]
    return made


def _types(counts: list[int]) -> Tensor:
    return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts, dtype=torch.long))


def _padded_attributes(graph: HeteroData, schema: Schema, like: Tensor) -> Tensor:
    width = max(size for _, size in schema.edges)
    rows = []
    for edge, size in schema.edges:
        count = graph[edge].edge_index.shape[1]
        attr = graph[edge].edge_attr.reshape(count, -1) if size else like.new_zeros(count, 0)
        rows.append(F.pad(attr.to(like), (0, width - size)))
    return torch.cat(rows)


def as_typed(graphs: Any) -> HeteroData:
    """A batch of such graphs as the model takes it, with `batch` for every type of nodes."""
    schema: Schema = graphs[SCHEMA][0]
    made, place = HeteroData(), torch.empty_like(graphs.node_type)
    for code, (kind, width) in enumerate(schema.nodes):
        (own,) = (graphs.node_type == code).nonzero(as_tuple=True)
        place[own] = torch.arange(len(own), device=own.device)
        made[kind].x, made[kind].batch = graphs.x[own, :width], graphs.batch[own]
    for code, (edge, width) in enumerate(schema.edges):
        (own,) = (graphs.edge_type == code).nonzero(as_tuple=True)
        made[edge].edge_index = place[graphs.edge_index[:, own]]
        if width:
            made[edge].edge_attr = graphs.edge_attr[own, :width]
    made.num_graphs = graphs.num_graphs
    return made


def nodes_by_type(graph: Any) -> dict[str, Any] | None:
    """The numbers of the nodes of each type, as arrays; None for a graph without types."""
    schema = graph.get(SCHEMA)
    if schema is None:
        return None
    return {
        kind: (graph.node_type == code).nonzero()[:, 0].cpu().numpy()
        for code, (kind, _) in enumerate(schema.nodes)
    }
