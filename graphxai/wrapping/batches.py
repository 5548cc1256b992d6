"""The batches of a wrapped model, which are made from PyG graphs or from rows of tokens."""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphxai.contract.batch import NodeLayout
from graphxai.contract.inputs import EDGE_GATES, SCHEMA
from graphxai.contract.structure import IntArray, shortest_paths
from graphxai.engine.request import STRUCTURE

from .attribute_roles import attribute_roles
from .chosen import nodes_asked, nodes_read
from .heterogeneous import names_added
from .subgraphs import restricted, same_without_nodes

ENTRIES, LAYOUT = "_entry_index", "_layout"  # of the indices and the layout of a sparse matrix
NOT_FURTHER = {"x", "y", "num_nodes", *STRUCTURE}  # are no inputs beside the nodes
Wrapped: TypeAlias = Any  # a WrappedModel, whose file imports those that take one


@dataclass(frozen=True, eq=False)
class WrappedBatch:
    """B inputs of at most N nodes.

    Args:
        mask (B, N): True at nodes.
        x (B, N, ...): the input of each node.
        num_nodes (B,): the number of nodes of each input.
        graphs: the PyG batch, for models of graphs.
        dense: the model's input (B, ...), for models of tokens.
        has_graph_token: whether the model's sequence begins with a graph token.
        singles: the graphs one by one.
        leaves: the attributes of the graphs that are explained, as tensors that require a
            gradient.
        message_layers: how many layers pass messages one after another, if edges are explained.
        read: the names of the graphs' attributes that the model reads, or None if it reads all.
    """

    mask: Tensor
    x: Tensor
    num_nodes: Tensor
    graphs: Batch | None = None
    dense: Tensor | None = None
    has_graph_token: bool = False
    singles: tuple[Data, ...] = ()
    leaves: Mapping[str, Tensor] = field(default_factory=dict)
    message_layers: int = 1
    read: Collection[str] | None = None

    def __len__(self) -> int:
        return self.mask.shape[0]

    @property
    def layout(self) -> NodeLayout:
        """The positions of the nodes."""
        return NodeLayout.of(self.mask, self.has_graph_token)

    @property
    def nodes_asked(self) -> int:
        """The number of nodes for which each graph asks, with outputs next to each other."""
        return 1 if self.graphs is None else len(nodes_asked(self.graphs))

    @property
    def readout(self) -> Tensor | None:
        """The weights (B, N) of nodes in the output, or None if there is a graph token.

        Methods that follow attention start from them. All nodes weigh the same, or those that are
        explained: one node, or both of a pair.
        """
        if self.has_graph_token:
            return None
        read = None if self.graphs is None else nodes_read(self.graphs)
        places = self.mask if read is None else self.mask.masked_scatter(self.mask, read)
        return places.float() / places.sum(-1, keepdim=True).clamp(min=1)

    def contents(self) -> tuple[Any, ...]:
        """Return everything that makes up the batch. Batches with equal contents are alike."""
        graphs = () if self.graphs is None else sorted(self.graphs.to_dict().items())
        return self.has_graph_token, self.mask, self.dense, *chain(*graphs)

    def distances(self) -> list[IntArray]:
        """Return the distances (n, n) between the nodes of each input, -1 if there is no path.

        In a graph, a distance is the number of edges on the shortest path from the node of the
        column to that of the row, which is the direction of messages. Between tokens it is |i - j|.
        """
        if self.graphs is None:
            places = [np.arange(n) for n in self.num_nodes.tolist()]
            return [np.abs(place[:, None] - place) for place in places]
        # PyG's edges point from the node that is read to the node that reads
        pairs = ((int(g.num_nodes or 0), _edges(g).cpu().numpy()) for g in self.examples())
        return [shortest_paths(n, *edges)[0].T for n, edges in pairs]

    def examples(self) -> list[Data]:
        """Return the graphs one by one on the batch's device, as PyG cannot split sparse ones."""
        return list(map(self._on_its_device, self.singles))

    def _on_its_device(self, graph: Data) -> Data:
        device = self.mask.device
        return graph if graph.x.device == device else copy(graph).to(device)

    def data_of(self, row: int) -> Data:
        """Return one input as it was collated, or a row of tokens without its padding."""
        if self.graphs is not None:
            return self._on_its_device(self.singles[row])
        assert self.dense is not None
        n = int(self.num_nodes[row])
        padded = self.dense.shape[1] == self.mask.shape[1] + self.has_graph_token
        values = self.dense[row, : n + self.has_graph_token] if padded else self.dense[row]
        return Data(dense=values, num_nodes=n)

    def of_rows(self, *rows: int) -> "WrappedBatch":
        """Make a batch of some of the inputs."""
        data = [self.data_of(row) for row in rows]
        if self.graphs is not None:
            return collate_graphs(data, read=self.read)
        return collate_tokens(data, None, self.has_graph_token)

    def with_leaves(
        self, names: Sequence[str], codes: bool = False, dtype: torch.dtype = torch.float
    ) -> "WrappedBatch":
        """Return the batch with gradients at these attributes of its graphs.

        Args:
            codes: whether the attributes may be integers, such as types of bonds. The leaf
                (rows,) of such an attribute consists of ones.
            dtype: the type in which the model computes. Leaves are at least as precise.

        Raises:
            ValueError: the graphs do not have an attribute, or it has no gradient.
        """
        if self.graphs is None:
            raise ValueError(f"rows of tokens have no input beside x, so they have no {names[0]}.")
        graphs = self.graphs
        others = NOT_FURTHER | names_added(graphs)
        inputs = [k for k, v in graphs.items() if isinstance(v, Tensor) and k not in others]
        for name in names:
            if name not in inputs:
                beside = f"beside x they have {', '.join(inputs) or 'none'}"
                raise ValueError(f"the graphs have no input {name!r}; {beside}.")
            if not (codes or is_real(graphs[name])):
                raise ValueError(
                    f"{name} has {graphs[name].dtype} values, which carry no gradient: explain it"
                    " by LRP or Gradient x Input."
                )
        if "edge_attr" in names and EDGE_GATES in names and SCHEMA in graphs:
            raise ValueError(
                "edge_attr and edge_index of a heterogeneous graph both have relevance by the types"
                " of edges: ask for one at a time."
            )
        if sparse := [name for name in names if graphs[name].layout != torch.strided]:
            opened = collate_graphs([_opened(graph, sparse) for graph in self.examples()])
            plain = replace(self, graphs=opened.graphs, singles=opened.singles)
            return plain.with_leaves(names, codes, dtype)
        dtype = torch.promote_types(dtype, torch.float)  # gradients are to sum to the output
        types = {
            n: torch.promote_types(graphs[n].dtype, dtype) for n in names if is_real(graphs[n])
        }
        real = {n: graphs[n].detach().to(wide, copy=True) for n, wide in types.items()}
        ones = {n: self.x.new_ones(len(graphs[n]), dtype=dtype) for n in names if n not in real}
        leaves = {n: real[n] if n in real else ones[n] for n in names}
        for leaf in leaves.values():
            leaf.requires_grad_()
        return replace(self.with_values(real), leaves=leaves)

    def with_edge_gates(self) -> "WrappedBatch":
        """Return the batch with zeros (E,) that add to the gates of 1 at the messages of edges.

        Raises ValueError if the graphs have no `edge_index`.
        """
        if self.graphs is None or self.graphs.get("edge_index") is None:
            raise ValueError("the graphs have no edge_index, whose edges could get relevance.")
        gated = [copy(graph) for graph in self.examples()]
        for graph in gated:
            graph[EDGE_GATES] = graph.x.new_zeros(graph.edge_index.shape[1], dtype=torch.float)
        batch = collate_graphs(gated, self.mask.shape[1])
        return replace(self, graphs=batch.graphs, singles=batch.singles)

    def with_values(self, values: Mapping[str, Tensor]) -> "WrappedBatch":
        """Replace the values of some attributes by others of the same shapes."""
        graphs, singles = copy(self.graphs), [copy(graph) for graph in self.examples()]
        assert graphs is not None
        for name, value in values.items():
            graphs[name] = value
            for graph, rows in zip(singles, self.split(name, value), strict=True):
                graph[name] = rows
        return replace(self, graphs=graphs, singles=tuple(singles))

    def without_gradients(self) -> "WrappedBatch":
        """Return the batch with constants in place of its leaves."""
        if not self.leaves:
            return self
        assert self.graphs is not None
        real = [name for name in self.leaves if is_real(self.graphs[name])]
        constant = self.with_values({name: self.leaves[name].detach() for name in real})
        return replace(constant, leaves={})

    def split(self, name: str, values: Tensor) -> list[Tensor]:
        """Split an attribute of the batch, or its relevance, into the rows of each graph."""
        return list(values.split(self._counts(name)))

    def _counts(self, name: str) -> list[int]:
        return [g[name].shape[0] if g[name].dim() else 1 for g in self.singles]

    def graphs_of(self, name: str) -> Tensor | None:
        """Return the graph of each row of an attribute, or None if its rows belong to no graphs."""
        assert self.graphs is not None
        if not all(isinstance(graph.get(name), Tensor) for graph in self.singles):
            return None
        counts = torch.tensor(self._counts(name), device=self.mask.device)
        fits = int(counts.sum()) == len(self.graphs[name])
        return torch.arange(len(self)).to(counts).repeat_interleave(counts) if fits else None

    def to(self, device: torch.device | str) -> "WrappedBatch":
        """Move the batch to a device."""
        moved = {k: v.to(device) for k, v in vars(self).items() if hasattr(v, "to")}
        return replace(self, **moved)

    def repeated(self, times: int) -> "WrappedBatch":
        """Repeat the whole batch."""
        if times == 1:
            return self
        wide: dict[str, Any] = {
            name: torch.cat([getattr(self, name)] * times)
            for name in ("mask", "x", "num_nodes", "dense")
            if getattr(self, name) is not None
        }
        if self.graphs is not None:
            wide["singles"] = tuple(self.examples() * times)
            wide["graphs"] = Batch.from_data_list(list(wide["singles"]))
        return replace(self, **wide)

    def without(self, keep: Tensor, last: int | None = None) -> "WrappedBatch":
        """Keep the nodes where keep (B, N) is True, with the edges between them.

        Args:
            keep: True at the nodes that stay.
            last: the number of a graph to append as a whole, or None to append no graph. One is
                needed because PyG's pooling counts graphs up to the last that is not empty.
        """
        assert self.graphs is not None
        graphs, counts = self.examples(), self.num_nodes.tolist()
        roles = attribute_roles(graphs, self.read)
        pairs = enumerate(zip(graphs, counts, strict=True))
        subgraphs = [restricted(g, keep[b, :n], roles) for b, (g, n) in pairs]
        appended = [] if last is None else [graphs[last]]
        return collate_graphs([*subgraphs, *appended], read=self.read)

    def first_nodes(self, row: int, count: int) -> Data:
        """Return the graph of a row with only its first nodes, of which there are `count`."""
        graphs, n = self.examples(), int(self.num_nodes[row])
        if count >= n:
            return graphs[row]
        first = torch.arange(n, device=self.x.device) < count
        return restricted(graphs[row], first, attribute_roles(graphs, self.read))

    def emptied(self, beside: Data) -> "WrappedBatch":
        """Remove all nodes, and append a graph with nodes, which PyG's pooling needs.

        If the graphs are equal without their nodes, one of them stands for all.
        """
        return collate_graphs([*self.without_any_nodes(), beside], read=self.read)

    def beside_empty(self) -> "WrappedBatch | None":
        """Put a graph without nodes before the others, or return None if there are several."""
        if len(empty := self.without_any_nodes()) > 1:
            return None
        return collate_graphs([*empty, *self.examples()], self.mask.shape[1], self.read)

    def without_any_nodes(self) -> list[Data]:
        """Return the graphs without their nodes, or one for all if they are then equal."""
        graphs = self.examples()
        roles = attribute_roles(graphs, self.read)
        distinct = graphs[:1] if same_without_nodes(graphs, roles, self.read) else graphs
        return [
            restricted(graph, graph.x.new_zeros(int(graph.num_nodes or 0), dtype=torch.bool), roles)
            for graph in distinct
        ]


def collate_graphs(
    graphs: list[Data], pad_to: int | None = None, read: Collection[str] | None = None
) -> WrappedBatch:
    """Collate graphs into PyG's batch, with the positions of its nodes."""
    counts, graphs = [int(g.num_nodes or 0) for g in graphs], [copy(graph) for graph in graphs]
    names = [set(graph.keys()) for graph in graphs]
    common = set.intersection(*names)
    for graph, count, of_graph in zip(graphs, counts, names, strict=True):
        for key in of_graph - common:  # a batch requires the same attributes of all graphs
            del graph[key]
        graph.num_nodes = count  # PyG cannot infer it for an empty graph
    batch = Batch.from_data_list(graphs)
    num_nodes = torch.tensor(counts, device=batch.x.device)
    mask = _mask(num_nodes, pad_to)
    x = batch.x.new_zeros(*mask.shape, *batch.x.shape[1:])
    x[mask] = batch.x.detach()
    return WrappedBatch(mask, x, num_nodes, graphs=batch, singles=tuple(graphs), read=read)


def _opened(graph: Data, names: list[str]) -> Data:
    """Replace sparse matrices (n, n) of a graph by their values, in the order of rows, and indices.

    Their relevance is that of the values. `closed` makes matrices of them again.
    """
    opened = copy(graph)
    for name in names:
        matrix = graph[name].to_sparse_coo().coalesce()
        if list(matrix.shape) != [graph.num_nodes] * 2:
            raise ValueError(
                f"{name} is a sparse tensor of shape {tuple(matrix.shape)}, whose entries get no"
                f" relevance: only matrices over the {graph.num_nodes} nodes do."
            )
        opened[name], opened[name + ENTRIES] = matrix.values(), matrix.indices()
        opened[name + LAYOUT] = graph[name].layout
    return opened


def closed(graphs: Any) -> Any:
    """Make sparse matrices of the values that `_opened` took out, in place."""
    for key in [key for key in graphs.keys() if key.endswith(ENTRIES)]:  # noqa: SIM118
        name = key.removesuffix(ENTRIES)
        size, layout = (graphs.num_nodes, graphs.num_nodes), graphs[name + LAYOUT][0]
        matrix = torch.sparse_coo_tensor(graphs[key], graphs[name], size, is_coalesced=True)
        graphs[name] = matrix if layout == torch.sparse_coo else matrix.to_sparse(layout=layout)
    return graphs


def collate_tokens(rows: list[Data], pad_to: int | None, graph_token: bool) -> WrappedBatch:
    """Pad rows of tokens (N, ...) with zeros, or stack other inputs such as images."""
    values = [row["dense"] for row in rows]
    num_nodes = torch.tensor([int(row.num_nodes or 0) for row in rows], device=values[0].device)
    mask = _mask(num_nodes, pad_to)
    first = int(graph_token)
    if any(len(v) != int(n) + first for v, n in zip(values, num_nodes, strict=True)):
        x = mask[..., None].float()  # such tokens have no values before the embedding
        return WrappedBatch(mask, x, num_nodes, None, torch.stack(values), graph_token)
    longest = mask.shape[1] + first
    dense = torch.stack([F.pad(v, (0, 0) * (v.dim() - 1) + (0, longest - len(v))) for v in values])
    return WrappedBatch(mask, dense[:, first:], num_nodes, None, dense, graph_token)


def as_tokens(rows: Tensor, batch: WrappedBatch, embedding: str) -> Tensor:
    """Arrange node rows (n, D) or (B, S, D) as tokens (B, T, D).

    If their shape does not fit, the error names the module that returned the rows, `embedding`.
    """
    size, nodes = batch.mask.shape
    length = nodes + int(batch.has_graph_token)
    if batch.graphs is not None and rows.dim() == 2 and len(rows) == int(batch.mask.sum()):
        tokens = rows.new_zeros(size, nodes + 1, rows.shape[1])
        tokens[:, 1:][batch.mask] = rows
        return tokens
    if rows.dim() != 3 or rows.shape[:2] != (size, length):
        where = f"the module {embedding!r} returns" if embedding else "the input has"
        raise ValueError(
            f"{where} shape {tuple(rows.shape)}; relevance needs one row per node for"
            f" {size} inputs of at most {nodes} nodes."
        )
    return rows if batch.has_graph_token else F.pad(rows, (0, 0, 1, 0))


def as_rows(tokens: Tensor, batch: WrappedBatch) -> Tensor:
    """Arrange tokens (B, T, D) as node rows, which is the inverse of `as_tokens`."""
    if batch.graphs is not None:
        return tokens[:, 1:][batch.mask]
    return tokens if batch.has_graph_token else tokens[:, 1:]


def is_real(value: Any) -> bool:
    """Return whether a value is a tensor of floats."""
    return isinstance(value, Tensor) and value.is_floating_point()


def _edges(graph: Data) -> Tensor:
    """Return the edges (2, E), from `adj_t` if there is no `edge_index`."""
    if graph.edge_index is not None:
        return graph.edge_index
    matrix = graph.get("adj_t")
    if isinstance(matrix, Tensor) and matrix.layout != torch.strided:
        return matrix.to_sparse_coo().coalesce().indices().flip(0)
    return torch.empty(2, 0, dtype=torch.long)


def _mask(num_nodes: Tensor, pad_to: int | None) -> Tensor:
    n = max(int(num_nodes.max()), pad_to or 0)
    return torch.arange(n, device=num_nodes.device) < num_nodes[:, None]
