"""Nodes can be absent however a model sends messages along edges, on whatever axis."""

import warnings
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

import graphxai as gx
from graphxai.contract.inputs import prepare_for
from graphxai.wrapping.chosen import mark_explained
from graphxai.wrapping.presence import presence_pass

NODES = 7
SEEDS = range(4)


def wide(index: Tensor, rows: Tensor) -> Tensor:
    return index[:, None].expand_as(rows)


def adjacency(h: Tensor, source: Tensor, target: Tensor) -> Tensor:
    matrix = torch.zeros(len(h), len(h))
    matrix[target, source] = 1.0
    return matrix


# each takes rows (n, D) and the ends of edges (E,), and returns what the rows receive (n, D)
SUMS = {
    "index_add": lambda h, s, t: torch.zeros_like(h).index_add(0, t, h[s]),
    "index_add, axis 1": lambda h, s, t: torch.zeros_like(h.T).index_add(1, t, h[s].T).T,
    "index_add, axis -1": lambda h, s, t: torch.zeros_like(h.T).index_add(-1, t, h[s].T).T,
    "scatter_add, axis 1": lambda h, s, t: (
        torch.zeros_like(h.T).scatter_add(1, wide(t, h[s]).T, h[s].T).T
    ),
    "index_put": lambda h, s, t: torch.zeros_like(h).index_put((t,), h[s], accumulate=True),
    "A @ h": lambda h, s, t: adjacency(h, s, t) @ h,
    "h' @ A'": lambda h, s, t: (h.T @ adjacency(h, s, t).T).T,
}


def reduced(way: str, axis: int, with_self: bool = True):
    def receive(h: Tensor, s: Tensor, t: Tensor) -> Tensor:
        rows, index = (h[s], wide(t, h[s])) if axis == 0 else (h[s].T, wide(t, h[s]).T)
        base = torch.zeros_like(h if axis == 0 else h.T)
        out = base.scatter_reduce(axis, index, rows, way, include_self=with_self)
        return out if axis == 0 else out.T

    return receive


OTHERS = {
    **{
        f"{way}, axis {axis}, {with_self}": reduced(way, axis, with_self)
        for way in ("amax", "amin", "mean")
        for axis in (0, 1)
        for with_self in (True, False)
    },
    "scatter": lambda h, s, t: h.scatter(0, wide(t, h[s]), h[s]),
    "scatter, axis 1": lambda h, s, t: h.T.scatter(1, wide(t, h[s]).T, h[s].T).T,
    "index_copy": lambda h, s, t: h.index_copy(0, t, h[s]),
    "assignment": lambda h, s, t: h.clone().index_put((t,), h[s]),
}


class Messages(nn.Module):
    def __init__(self, receive, layers: int = 2):
        super().__init__()
        torch.manual_seed(0)
        widths = [5, *[6] * (layers - 1), 3]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.receive = receive

    def forward(self, x, edge_index):
        for k, layer in enumerate(self.layers):
            h = layer(x.relu() if k else x)
            x = h + self.receive(h, *edge_index)
        return x


class Published(nn.Module):
    def __init__(self, layer):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = layer(5, 6), layer(6, 3)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def directed(seed: int) -> Data:
    """A directed graph, of which some nodes have no neighbours to read."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, NODES, (2, 9), generator=generator)
    edges = edges[:, edges[0] != edges[1]].unique(dim=1)
    return Data(x=torch.randn(NODES, 5, generator=generator), edge_index=edges)


def presence_of(module: nn.Module, graph: Data, node: int):
    model = gx.wrap(module.eval(), kind="multiclass", classes=3)
    batch = model.collate([prepare_for(model, mark_explained(graph, node)).data])
    with model.evaluating():
        return presence_pass(model, batch, model.embed(batch)), batch


def value_with(module: nn.Module, graph: Data, node: int, present: Tensor) -> Tensor:
    part = graph.subgraph(present)
    with torch.no_grad():
        return module(part.x, part.edge_index)[int(present[:node].sum())]


def coalitions(node: int, seed: int) -> list[Tensor]:
    drawn = torch.rand(4, NODES, generator=torch.Generator().manual_seed(seed)) < 0.6
    single = ~torch.eye(NODES, dtype=torch.bool)
    drawn[:, node] = single[:, node] = True
    return [*single, *drawn]


MODELS = {name: Messages(receive) for name, receive in (SUMS | OTHERS).items()} | {
    layer.__name__: Published(layer) for layer in (GCNConv, GATConv, SAGEConv)
}


@pytest.mark.parametrize("name", MODELS)
def test_absent_nodes_leave_what_the_graph_without_them_gives(name):
    module = MODELS[name]
    for seed in SEEDS:
        graph = directed(seed)
        for node in range(NODES):
            run, _ = presence_of(module, graph, node)
            for present in coalitions(node, seed):
                expected = value_with(module, graph, node, present)
                torch.testing.assert_close(
                    run.outputs(present[None])[0], expected, atol=1e-5, rtol=1e-4
                )


@pytest.mark.parametrize("name", SUMS | OTHERS)
def test_marginals_of_one_layer_are_the_changes_of_the_output(name):
    module = Messages((SUMS | OTHERS)[name], layers=1)
    for seed in SEEDS:
        graph = directed(seed)
        for node in range(NODES):
            run, _ = presence_of(module, graph, node)
            for present in coalitions(node, seed):
                marginals = run.marginals(present[None], lambda outputs: outputs[:, 1])[0]
                for other in set(range(NODES)) - {node}:
                    joined, left = present.clone(), present.clone()
                    joined[other], left[other] = True, False
                    of_both = (value_with(module, graph, node, p)[1] for p in (joined, left))
                    expected = float(torch.sub(*of_both))
                    assert float(marginals[other]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", SUMS)
def test_path_marginals_are_the_same_for_all_spellings_of_a_sum(name):
    for seed in SEEDS:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            first, second = (
                gx.explain(
                    gx.wrap(MODELS[spelling].eval(), kind="multiclass", classes=3),
                    directed(seed),
                    "path_marginals",
                    node=list(range(NODES)),
                    target=1,
                )
                for spelling in ("index_add", name)
            )
        for a, b in zip(first, second, strict=True):
            assert a.relevance == pytest.approx(b.relevance, abs=1e-4)
