"""Nodes can be absent however a model sends messages along edges, on whatever axis."""

import warnings
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import ChebConv, ClusterGCNConv, GATConv, GCNConv, SAGEConv

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


def weighted_mean(axis: int):
    """Divide a sum by that of its weights, as a softmax that is written out does."""

    def receive(h: Tensor, s: Tensor, t: Tensor) -> Tensor:
        weights, rows = h[s, :1].exp(), h[s]
        start, divisor = torch.zeros_like(h), torch.zeros(len(h), 1)
        if axis:
            weights, rows, start, divisor = weights.T, rows.T, start.T, divisor.T
        total = start.index_add(axis, t, weights * rows)
        mean = total / divisor.index_add(axis, t, weights).clamp(min=1e-9)
        return mean.T if axis else mean

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


class Chebyshev(ChebConv):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, K=3)


def directed(seed: int) -> Data:
    """A directed graph, of which some nodes have no neighbours to read."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, NODES, (2, 9), generator=generator)
    edges = edges[:, edges[0] != edges[1]].unique(dim=1)
    return Data(x=torch.randn(NODES, 5, generator=generator), edge_index=edges)


def presence_of(module: nn.Module, graph: Data, nodes: list[int]):
    """Record copies of a graph in one batch, of each of which one node is explained."""
    model = gx.wrap(module.eval(), kind="multiclass", classes=3)
    copies = [prepare_for(model, mark_explained(graph, node)).data for node in nodes]
    batch = model.collate(copies)
    with model.evaluating():
        return presence_pass(model, batch, model.embed(batch))


class Parts:
    """The outputs of a model with only some nodes of a graph, each part computed once."""

    def __init__(self, module: nn.Module, graph: Data):
        self.module, self.graph, self.outputs = module, graph, {}

    def value(self, node: int, present: Tensor) -> Tensor:
        key = tuple(present.tolist())
        if key not in self.outputs:
            part = self.graph.subgraph(present)
            with torch.no_grad():
                self.outputs[key] = self.module(part.x, part.edge_index)
        return self.outputs[key][sum(key[:node])]


def coalitions(nodes: list[int], seed: int) -> Tensor:
    """Each other node absent by itself, and four times several of them, bool (11, B, NODES)."""
    drawn = torch.rand(4, NODES, generator=torch.Generator().manual_seed(seed)) < 0.6
    present = torch.cat([~torch.eye(NODES, dtype=torch.bool), drawn])
    present = present[:, None].repeat(1, len(nodes), 1)
    present[:, range(len(nodes)), nodes] = True
    return present


def cases():
    """Return graphs and nodes: one node alone, and all that share a batch."""
    alone, others = [0], list(range(1, NODES))
    return [(0, alone), (0, others), *((seed, alone + others) for seed in SEEDS[1:])]


MODELS = {name: Messages(receive) for name, receive in (SUMS | OTHERS).items()} | {
    layer.__name__: Published(layer)
    for layer in (GCNConv, GATConv, SAGEConv, ClusterGCNConv, Chebyshev)
}


@pytest.mark.parametrize("name", MODELS)
def test_absent_nodes_leave_what_the_graph_without_them_gives(name):
    module = MODELS[name]
    for seed, nodes in cases():
        graph = directed(seed)
        run, parts = presence_of(module, graph, nodes), Parts(module, graph)
        for present in coalitions(nodes, seed):
            left = zip(nodes, present, strict=True)
            expected = torch.stack([parts.value(*each) for each in left])
            torch.testing.assert_close(run.outputs(present), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", SUMS | OTHERS)
def test_marginals_of_one_layer_are_the_changes_of_the_output(name):
    module = Messages((SUMS | OTHERS)[name], layers=1)
    for seed, nodes in cases():
        graph = directed(seed)
        run, parts = presence_of(module, graph, nodes), Parts(module, graph)
        for present in coalitions(nodes, seed):
            marginals = run.marginals(present, lambda outputs: outputs[:, 1])
            for node, coalition, given in zip(nodes, present, marginals, strict=True):
                for other in set(range(NODES)) - {node}:
                    joined, left = coalition.clone(), coalition.clone()
                    joined[other], left[other] = True, False
                    expected = parts.value(node, joined)[1] - parts.value(node, left)[1]
                    assert float(given[other]) == pytest.approx(float(expected), abs=1e-5)


def test_marginals_of_weighted_means_do_not_depend_on_the_axis():
    """A softmax that is written out has its heads before or after the edges."""
    rows, columns = (Messages(weighted_mean(axis), layers=1) for axis in (0, 1))
    for seed, nodes in cases():
        runs = [presence_of(module, directed(seed), nodes) for module in (rows, columns)]
        for present in coalitions(nodes, seed):
            first, second = (run.marginals(present, lambda out: out[:, 1]) for run in runs)
            torch.testing.assert_close(second, first)


def path_marginals(name: str) -> list[gx.Explanation]:
    model, nodes = gx.wrap(MODELS[name].eval(), kind="multiclass", classes=3), list(range(NODES))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [
            each
            for seed in SEEDS
            for each in gx.explain(model, directed(seed), "path_marginals", node=nodes, target=1)
        ]


@pytest.fixture(scope="module")
def of_index_add():
    return path_marginals("index_add")


@pytest.mark.parametrize("name", [name for name in SUMS if name != "index_add"])
def test_path_marginals_are_the_same_for_all_spellings_of_a_sum(name, of_index_add):
    for a, b in zip(of_index_add, path_marginals(name), strict=True):
        assert a.relevance == pytest.approx(b.relevance, abs=1e-4)
