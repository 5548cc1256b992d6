"""Small models of every kind, each with a graph, and what can be asked of them."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import (
    AttentionalAggregation,
    GATConv,
    GatedGraphConv,
    GCNConv,
    GINEConv,
    GPSConv,
    HGTConv,
    PNAConv,
    TransformerConv,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)
from torch_geometric.nn.attention import PerformerAttention
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.utils import to_dense_batch

import graphxai as gx
from graphxai.explainers.edge_shapley import edge_shapley
from other_models import quick_explainer

DIM, NODES = 8, 6


class Dense(nn.Module):
    """A transformer over all nodes of a graph, padded, as Graphormer and SAN are."""

    def __init__(self) -> None:
        super().__init__()
        self.maps, self.out = nn.Linear(4, DIM), nn.Linear(DIM, 1)
        layer = nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x, edge_index, batch):
        h, mask = to_dense_batch(self.maps(x), batch)
        return self.out(global_mean_pool(self.encoder(h, src_key_padding_mask=~mask)[mask], batch))


class Sparse(nn.Module):
    """Attention along the edges, as in UniMP."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = TransformerConv(4, DIM), TransformerConv(DIM, DIM)
        self.out = nn.Linear(DIM, 1)

    def forward(self, x, edge_index, batch):
        h = self.second(self.first(x, edge_index).relu(), edge_index)
        return self.out(global_mean_pool(h, batch))


class Hybrid(nn.Module):
    """Messages along the edges beside attention between all nodes, as in GPS."""

    def __init__(self) -> None:
        super().__init__()
        self.maps, self.bonds, self.out = nn.Linear(4, DIM), nn.Linear(2, DIM), nn.Linear(DIM, 1)
        self.layers = nn.ModuleList(
            GPSConv(DIM, GINEConv(nn.Linear(DIM, DIM)), heads=2) for _ in range(2)
        )

    def forward(self, x, edge_index, edge_attr, batch):
        h, e = self.maps(x), self.bonds(edge_attr)
        for layer in self.layers:
            h = layer(h, edge_index, batch, edge_attr=e)
        return self.out(global_add_pool(h, batch))


class Messages(nn.Module):
    """Messages along the edges without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = GCNConv(4, DIM), GCNConv(DIM, DIM), nn.Linear(DIM, 1)

    def forward(self, x, edge_index, batch):
        h = self.second(self.first(x, edge_index).relu(), edge_index).relu()
        return self.out(global_mean_pool(h, batch))


class OfNodes(nn.Module):
    """A class for each node, as in GAT."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GATConv(4, DIM), GATConv(DIM, 1)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


class OfLinks(nn.Module):
    """A score for each pair of nodes that the graph names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GATConv(4, DIM), GATConv(DIM, DIM)

    def forward(self, x, edge_index, edge_label_index):
        h = self.second(self.first(x, edge_index).relu(), edge_index)
        return (h[edge_label_index[0]] * h[edge_label_index[1]]).sum(-1)


class Hetero(nn.Module):
    """Attention between nodes of several types, as in HGT."""

    types = (["author", "paper"], [("author", "writes", "paper"), ("paper", "cites", "paper")])

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = HGTConv({"author": 4, "paper": 3}, DIM, self.types), nn.Linear(DIM, 1)

    def forward(self, x_dict, edge_index_dict, batch_dict):
        papers = self.conv(x_dict, edge_index_dict)["paper"]
        return self.out(global_mean_pool(papers, batch_dict["paper"]))


class Sequence(nn.Module):
    """An encoder of words whose class token, the first row, is read."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(DIM, 1)

    def forward(self, x, src_key_padding_mask=None):
        return self.out(self.encoder(x, src_key_padding_mask=src_key_padding_mask)[:, 0])


class Codes(Dense):
    """A dense transformer over codes of atoms and degrees that embeddings look up."""

    def __init__(self) -> None:
        super().__init__()
        self.atoms, self.degrees = nn.Embedding(8, DIM), nn.Embedding(8, DIM)

    def forward(self, x, edge_index, batch):
        degrees = torch.zeros_like(x).index_add(0, edge_index[1], torch.ones_like(edge_index[1]))
        h, mask = to_dense_batch(self.atoms(x) + self.degrees(degrees), batch)
        return self.out(global_mean_pool(self.encoder(h, src_key_padding_mask=~mask)[mask], batch))


class LinearAttention(nn.Module):
    """Linear attention over all nodes of a graph, as in Performer and SGFormer."""

    def __init__(self) -> None:
        super().__init__()
        self.maps, self.attention = nn.Linear(4, DIM), PerformerAttention(DIM, 2)
        self.out = nn.Linear(DIM, 1)

    def forward(self, x, edge_index, batch):
        h, mask = to_dense_batch(self.maps(x), batch)
        return self.out(global_mean_pool((h + self.attention(h, mask))[mask], batch))


class ClassToken(Dense):
    """A transformer that adds a class token to the nodes of a graph and reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, DIM))

    def forward(self, x, edge_index, batch):
        h, mask = to_dense_batch(self.maps(x), batch)
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1)
        shown = torch.cat([mask.new_ones(len(h), 1), mask], 1)
        return self.out(self.encoder(h, src_key_padding_mask=~shown)[:, 0])


class Bias(nn.Module):
    """Attention with a dense matrix of biases for pairs of nodes, of one graph at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.maps, self.qkv = nn.Linear(4, DIM), nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, 1)

    def forward(self, x, attn_bias):
        q, k, v = self.qkv(self.maps(x)).chunk(3, -1)
        h = (q @ k.T / DIM**0.5 + attn_bias).softmax(-1) @ v
        return self.out(h.mean(0, keepdim=True))


class ReadOut(nn.Module):
    """Messages along the edges, then attention that weights the nodes for the output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = GCNConv(4, DIM), nn.Linear(DIM, 1)
        self.pool = AttentionalAggregation(nn.Linear(DIM, 1))

    def forward(self, x, edge_index, batch):
        return self.out(self.pool(self.first(x, edge_index).relu(), batch))


class Recurrent(nn.Module):
    """Messages whose nodes are updated by a recurrent cell, as in GGNN."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = GatedGraphConv(DIM, 2), nn.Linear(DIM, 1)

    def forward(self, x, edge_index, batch):
        return self.out(global_mean_pool(self.first(x, edge_index), batch))


class Extremes(nn.Module):
    """Messages by mean, maximum, minimum and spread, as in PNA, and a maximum over the nodes."""

    def __init__(self) -> None:
        super().__init__()
        parts, scales = ["mean", "max", "min", "std"], ["identity", "amplification"]
        self.first = PNAConv(4, DIM, parts, scales, deg=torch.tensor([0, 0, 4, 2]))
        self.out = nn.Linear(DIM, 1)

    def forward(self, x, edge_index, batch):
        return self.out(global_max_pool(self.first(x, edge_index).relu(), batch))


class Matrix(nn.Module):
    """Products with a sparse adjacency matrix, as in the first code of GCN."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, DIM), nn.Linear(DIM, 1)

    def forward(self, x, adj_t, batch):
        h = torch.sparse.mm(adj_t, self.first(x)).relu()
        return global_add_pool(torch.sparse.mm(adj_t, self.second(h)), batch)


class Distances(nn.Module):
    """Messages weighted by distances in space, as in SchNet."""

    def __init__(self) -> None:
        super().__init__()
        self.maps, self.filter = nn.Linear(4, DIM), nn.Linear(1, DIM)
        self.out = nn.Linear(DIM, 1)

    def forward(self, x, edge_index, pos, batch):
        h, (source, target) = self.maps(x), edge_index
        far = (pos[source] - pos[target]).norm(dim=-1, keepdim=True)
        h = h.index_add(0, target, h[source] * self.filter((-far).exp()).tanh())
        return self.out(global_add_pool(h.tanh(), batch))


class Loop(nn.Module):
    """A loop over the graphs of a list, each with attention of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.maps, self.qkv = nn.Linear(4, DIM), nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, 1)

    def forward(self, graphs):
        rows = []
        for data in graphs:
            q, k, v = self.qkv(self.maps(data.x)).chunk(3, -1)
            rows.append(((q @ k.T).softmax(-1) @ v).mean(0))
        return self.out(torch.stack(rows))


class Fourier(nn.Module):
    """A Fourier transform over the words instead of attention, as in FNet."""

    def __init__(self) -> None:
        super().__init__()
        self.maps, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, 1)

    def forward(self, x):
        h = torch.fft.fft(self.maps(x), dim=1).real
        return self.out(h.relu().mean(1))


class Words(nn.Module):
    """An encoder of codes of words with positions, as BERT is."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(9, DIM), nn.Parameter(torch.randn(1, 6, DIM))
        layer = nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(DIM, 1)

    def forward(self, x, src_key_padding_mask=None):
        h = self.table(x) + self.place[:, : x.shape[1]]
        return self.out(self.encoder(h, src_key_padding_mask=src_key_padding_mask)[:, 0])


def graph() -> Data:
    """Return a ring of six nodes with a chord."""
    draw = torch.Generator().manual_seed(0)
    first, second = torch.tensor([[0, 1, 2, 3, 4, 5, 1], [1, 2, 3, 4, 5, 0, 4]])
    edge_index = torch.stack([torch.cat([first, second]), torch.cat([second, first])])
    return Data(
        x=torch.randn(NODES, 4, generator=draw),
        edge_index=edge_index,
        edge_attr=torch.randn(edge_index.shape[1], 2, generator=draw),
    )


def with_codes() -> Data:
    """Return the same graph, with codes in place of features."""
    data = graph()
    data.x = torch.arange(NODES)
    return data


def with_places() -> Data:
    """Return the same graph with a place in space for every node."""
    data = graph()
    data.pos = torch.randn(NODES, 3, generator=torch.Generator().manual_seed(1))
    return data


def with_bias() -> Data:
    """Return the same graph with a dense matrix of biases."""
    data = graph()
    data.attn_bias = torch.randn(NODES, NODES, generator=torch.Generator().manual_seed(1))
    return data


def with_matrix() -> Data:
    """Return the same graph with its edges in a sparse matrix."""
    data = graph()
    del data.edge_attr
    return ToSparseTensor(layout=torch.sparse_coo, remove_edge_index=False)(data)


def typed_graph() -> HeteroData:
    """Return two authors and four papers."""
    draw = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["author"].x = torch.randn(2, 4, generator=draw)
    data["paper"].x = torch.randn(4, 3, generator=draw)
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 0, 1, 1], [0, 1, 2, 3]])
    data["paper", "cites", "paper"].edge_index = torch.tensor([[0, 1, 2], [1, 2, 3]])
    return data


def words() -> torch.Tensor:
    """Return a class token and five words (6, D)."""
    return torch.randn(6, DIM, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Kind:
    """A kind of models.

    Args:
        module: the class of an example.
        value: makes an input.
        choice: the node or pair that is explained.
        options: those of `wrap`.
    """

    module: type[nn.Module]
    value: Callable[[], Any] = graph
    choice: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def model(self) -> Any:
        """Make a wrapped model."""
        torch.manual_seed(0)
        return gx.wrap(self.module().eval(), kind="binary", **self.options)


KINDS = {
    "dense": Kind(Dense),
    "sparse": Kind(Sparse),
    "hybrid": Kind(Hybrid),
    "messages": Kind(Messages),
    "node": Kind(OfNodes, choice={"node": 1}),
    "link": Kind(OfLinks, choice={"pair": (0, 3)}),
    "hetero": Kind(Hetero, typed_graph),
    "sequence": Kind(Sequence, words, options={"inputs": "tokens", "graph_token": True}),
    "codes": Kind(Codes, with_codes),
    "linear": Kind(LinearAttention),
    "class token": Kind(ClassToken),
    "biases": Kind(Bias, with_bias),
    "read-out": Kind(ReadOut),
    "recurrent": Kind(Recurrent),
    "extremes": Kind(Extremes),
    "matrix": Kind(Matrix, with_matrix),
    "distances": Kind(Distances, with_places),
    "loop": Kind(Loop, options={"forward": lambda model, batch: model(batch.to_data_list())}),
    "Fourier": Kind(Fourier, words, options={"inputs": "tokens"}),
    "words": Kind(
        Words,
        lambda: torch.arange(6),
        options={"inputs": "tokens", "graph_token": True, "embedding": "table"},
    ),
}


def _evaluated(kind: Kind, **options: Any) -> Any:
    methods = ["gradient_input", "random"]
    return gx.evaluate(kind.model(), [kind.value()], methods, **options, **kind.choice)


def _set_of(kind: Kind, of: Any) -> Any:
    return gx.counterfactual_set(kind.model(), kind.value(), of=of, **kind.choice)


QUESTIONS: dict[str, Callable[[Kind], Any]] = {
    "`predict`": lambda kind: gx.predict(kind.model(), kind.value(), **kind.choice),
    "`compare`": lambda kind: gx.compare(
        kind.model(), kind.value(), ["lrp", "occlusion"], **kind.choice
    ),
    "`pairs`": lambda kind: gx.pairs(kind.model(), kind.value(), **kind.choice),
    "`evaluate`": _evaluated,
    '`evaluate` with `operator="delete"`': lambda kind: _evaluated(kind, operators=["delete"]),
    "`counterfactual_set` of nodes": lambda kind: _set_of(kind, "nodes"),
    "`counterfactual_set` of edges": lambda kind: _set_of(kind, "edges"),
    "`edge_shapley`": lambda kind: edge_shapley(
        kind.model(), [kind.value()], permutations=1, **kind.choice
    ),
    "`save` as a picture": lambda kind: gx.explain(
        kind.model(), kind.value(), "gradient_input", **kind.choice
    ).svg(),
}


def answer_of(ask: Callable[[], Any], module: type[nn.Module]) -> str:
    """Return "" if a question is answered, or else the sentence with which it is refused."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ask()
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as why:
        return str(why).replace(module.__name__, "The model", 1)
    return ""


def answer_of_method(kind: Kind, method: str) -> str:
    """Return "" if a method explains a model of a kind, or else why it does not."""
    return answer_of(
        lambda: gx.explain(kind.model(), kind.value(), quick_explainer(method), **kind.choice),
        kind.module,
    )


def answer_to(kind: Kind, question: str) -> str:
    """Return "" if a question can be asked of a model of a kind, or else why it cannot."""
    return answer_of(lambda: QUESTIONS[question](kind), kind.module)
