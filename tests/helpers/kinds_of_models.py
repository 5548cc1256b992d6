"""Small models of every kind, each with a graph, and what can be asked of them."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import (
    GATConv,
    GCNConv,
    GINEConv,
    GPSConv,
    HGTConv,
    TransformerConv,
    global_add_pool,
    global_mean_pool,
)
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
