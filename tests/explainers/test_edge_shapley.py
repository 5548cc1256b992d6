"""Shapley values of edges agree with all orders of the edges, and with a sum over them."""

from itertools import permutations
from math import factorial

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import (
    GATConv,
    GINConv,
    HeteroConv,
    HGTConv,
    SAGEConv,
    global_add_pool,
)

import graphxai
from graphxai.contract.inputs import prepare_for
from graphxai.explainers.edge_shapley import edge_shapley
from graphxai.wrapping.removal import outputs_without_edges
from toy import random_graphormer


def exact(model, value, column: int = 0) -> np.ndarray:
    """Compute Shapley values of the edges from every order."""
    data = prepare_for(model, value).data
    ends = data.edge_index.sort(0).values.T.tolist()
    pairs = sorted({tuple(pair) for pair in ends})
    worth = {}
    for code in range(2 ** len(pairs)):
        there = {pair for k, pair in enumerate(pairs) if code >> k & 1}
        keep = torch.tensor([tuple(pair) in there for pair in ends])
        worth[code] = float(outputs_without_edges(model, [data], [keep[None]])[0][0, column])
    values = np.zeros(len(pairs))
    for order in permutations(range(len(pairs))):
        code = 0
        for edge in order:
            values[edge] += worth[code | 1 << edge] - worth[code]
            code |= 1 << edge
    return values / factorial(len(pairs))


def test_sampled_values_approach_those_of_all_orders():
    model = random_graphormer()
    wanted = exact(model, "CC(=O)N")
    (shapley,) = edge_shapley(model, ["CC(=O)N"], permutations=200)
    assert shapley.edges.tolist() == [[0, 1], [1, 2], [1, 3]]
    assert np.abs(shapley.values - wanted).max() <= 4 * shapley.spread.max() + 1e-6


def test_values_of_edges_sum_to_what_the_edges_change():
    model = random_graphormer()
    smiles = ["CC(=O)Oc1ccccc1C(=O)O", "CCO", "C"]
    for shapley, value in zip(
        edge_shapley(model, smiles, "pIC50", permutations=3), smiles, strict=True
    ):
        assert shapley.values.sum() == pytest.approx(shapley.output - shapley.without, abs=1e-5)
        assert shapley.output == pytest.approx(
            graphxai.predict(model, value)["pIC50"].value, abs=1e-4
        )
        assert len(shapley.edges) == len(shapley.values) == len(shapley.spread)


def test_a_graph_gets_the_same_values_alone_and_among_others():
    model = random_graphormer()
    (alone,) = edge_shapley(model, ["CC(=O)N"])
    shapley = edge_shapley(model, ["c1ccccc1", "CC(=O)N"])[1]
    np.testing.assert_allclose(shapley.values, alone.values, atol=1e-5)


class Isomorphism(nn.Module):
    """A sum over nodes after one convolution: f = sum_i x_i + sum over edges (x_i + x_j)."""

    def __init__(self):
        super().__init__()
        self.conv = GINConv(nn.Identity())
        self.head = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.head.weight)

    def forward(self, x, edge_index, batch):
        return self.head(global_add_pool(self.conv(x, edge_index), batch))


def test_edges_of_a_message_passing_model_get_what_they_carry():
    graph = Data(
        x=torch.tensor([[1.0], [2.0], [4.0]]),
        edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]),
    )
    model = graphxai.wrap(Isomorphism(), kind="regression")
    (shapley,) = edge_shapley(model, [graph], permutations=1)
    np.testing.assert_allclose(shapley.values, [3.0, 6.0], atol=1e-5)
    assert shapley.without == pytest.approx(7.0)


def test_no_order_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        edge_shapley(random_graphormer(), ["CC"], permutations=0)


class Papers(nn.Module):
    """A model that sums what papers get along two types of edges without attributes."""

    def forward(self, x_dict, edge_index_dict, batch_dict):
        writes = edge_index_dict["author", "writes", "paper"]
        cites = edge_index_dict["paper", "cites", "paper"]
        papers = x_dict["paper"].index_add(0, writes[1], x_dict["author"][writes[0]])
        papers = papers.index_add(0, cites[1], 3 * papers[cites[0]])
        return global_add_pool(papers.relu(), batch_dict["paper"])


def test_edges_without_attributes_have_values_by_type():
    draw = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["author"].x = torch.randn(2, 1, generator=draw)
    data["paper"].x = torch.randn(3, 1, generator=draw)
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 0, 1], [0, 1, 2]])
    data["paper", "cites", "paper"].edge_index = torch.tensor([[0, 1, 1], [1, 2, 1]])
    model = graphxai.wrap(Papers(), kind="regression")
    (result,) = edge_shapley(model, [data], permutations=400)
    edges = [("writes", 0, 0), ("writes", 0, 1), ("writes", 1, 2), ("cites", 0, 1), ("cites", 1, 2)]
    names = {"writes": "author writes paper", "cites": "paper cites paper"}
    assert result.types == tuple(names[kind] for kind, *_ in edges)
    assert result.edges.tolist() == [[first, second] for _, first, second in edges]

    def worth(kept) -> float:
        h = data["paper"].x.flatten().tolist()
        loops = [("cites", 1, 1)]  # stay
        for kind, i, j in kept:
            h[j] += data["author"].x[i].item() if kind == "writes" else 0.0
        added = [(j, 3 * h[i]) for kind, i, j in [*kept, *loops] if kind == "cites"]
        for j, value in added:
            h[j] += value
        return sum(max(0.0, value) for value in h)

    values = np.zeros(5)
    for order in permutations(range(5)):
        for place, edge in enumerate(order):
            before = [edges[k] for k in order[:place]]
            values[edge] += (worth([*before, edges[edge]]) - worth(before)) / factorial(5)
    assert np.abs(result.values - values).max() <= 4 * result.spread.max() + 1e-6
    by_type = result.by_type()
    assert list(by_type) == [names["writes"], names["cites"]]
    assert by_type[names["cites"]].tolist() == result.values[3:].tolist()


WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
LINKS = ("paper", "cites", "paper"), ("paper", "extends", "paper")


def typed_graph(papers: int) -> HeteroData:
    draw = torch.Generator().manual_seed(papers)
    graph = HeteroData()
    graph["author"].x = torch.randn(2, 4, generator=draw)
    graph["paper"].x = torch.randn(papers, 4, generator=draw)
    graph[WRITES].edge_index = torch.tensor([[0, 0, 1], [0, 1, 2]])
    graph[CITES].edge_index = torch.tensor([[0, 1], [1, 2]])
    return graph


class OfPapers(nn.Module):
    """Two layers over the types of nodes and edges, whose papers are read."""

    def __init__(self, *layers):
        super().__init__()
        self.layers, self.last = nn.ModuleList(layers), nn.Linear(4, 1)

    def forward(self, x_dict, edge_index_dict, batch_dict):
        for layer in self.layers:
            updated = layer(x_dict, edge_index_dict)
            x_dict = x_dict | {kind: h.relu() for kind, h in updated.items() if h is not None}
        return self.last(global_add_pool(x_dict["paper"], batch_dict["paper"]))


def attention_and_mean() -> HeteroConv:
    attention = GATConv((4, 4), 4, add_self_loops=False)
    return HeteroConv({WRITES: attention, CITES: SAGEConv(4, 4)})


def transformer() -> HGTConv:
    return HGTConv(4, 4, (["author", "paper"], [WRITES, CITES]), heads=2)


@pytest.mark.filterwarnings("ignore:There exist node types")
@pytest.mark.parametrize("layer", [attention_and_mean, transformer])
def test_shares_of_typed_edges_close_alone_and_in_a_list(layer):
    torch.manual_seed(0)
    module = OfPapers(layer(), layer()).eval()
    model = graphxai.wrap(module, kind="regression")
    graphs = [typed_graph(papers) for papers in (3, 5)]
    for graph, together in zip(graphs, edge_shapley(model, graphs), strict=True):
        (alone,) = edge_shapley(model, [graph])
        batch = {kind: torch.zeros(len(x), dtype=torch.long) for kind, x in graph.x_dict.items()}
        without = {kind: edges[:, :0] for kind, edges in graph.edge_index_dict.items()}
        with torch.no_grad():
            whole = float(module(graph.x_dict, graph.edge_index_dict, batch))
            bare = float(module(graph.x_dict, without, batch))
        for shares in (alone, together):
            by_type = shares.by_type()
            assert {kind: len(values) for kind, values in by_type.items()} == {
                "author writes paper": 3,
                "paper cites paper": 2,
            }
            total = sum(values.sum() for values in by_type.values())
            assert total == pytest.approx(whole - bare, abs=1e-6)
            assert all(np.abs(values).max() > 1e-3 for values in by_type.values())
        assert together.values == pytest.approx(alone.values, abs=1e-6)


class OneKindOfNodes(nn.Module):
    """The layers of a `HeteroConv` on one `edge_index`, with the type of each edge by hand."""

    def __init__(self, module: OfPapers):
        super().__init__()
        self.convs = nn.ModuleList(module.layers[0].convs[kind] for kind in LINKS)
        self.last = module.last

    def forward(self, x, edge_index, edge_kind, batch):
        pairs = enumerate(self.convs)
        h = sum(conv(x, edge_index[:, edge_kind == number]) for number, conv in pairs)
        return self.last(global_add_pool(h.relu(), batch))


def test_typed_edges_have_the_shares_of_a_homogeneous_model_that_computes_the_same():
    torch.manual_seed(0)
    convs = {LINKS[0]: GATConv(4, 4, add_self_loops=False), LINKS[1]: SAGEConv(4, 4)}
    module = OfPapers(HeteroConv(convs)).eval()
    typed, plain = (
        graphxai.wrap(each.eval(), kind="regression") for each in (module, OneKindOfNodes(module))
    )
    edges = torch.tensor([[0, 0, 1, 2, 3], [1, 2, 2, 3, 4]])
    kind = torch.tensor([0, 0, 0, 1, 1])
    typed_graphs, plain_graphs = [], []
    for nodes in (5, 6):
        x, graph = torch.randn(nodes, 4), HeteroData()
        graph["paper"].x = x
        for number, link in enumerate(LINKS):
            graph[link].edge_index = edges[:, kind == number]
        typed_graphs.append(graph)
        plain_graphs.append(Data(x=x, edge_index=edges, edge_kind=kind))
    together = edge_shapley(typed, typed_graphs)
    alone = [edge_shapley(typed, [graph])[0] for graph in typed_graphs]
    expected = edge_shapley(plain, plain_graphs)
    for shares in (together, alone):
        for of_typed, of_plain in zip(shares, expected, strict=True):
            assert of_typed.values == pytest.approx(of_plain.values, abs=1e-6)
            by_type = of_typed.by_type()
            for number, link in enumerate(LINKS):
                by_hand = of_plain.values[kind.numpy() == number]
                assert by_type[" ".join(link)] == pytest.approx(by_hand, abs=1e-6)


class Weighted(nn.Module):
    """A sum of neighbours times a weight of each edge, under any name."""

    def __init__(self, name: str):
        super().__init__()
        self.name, self.last = name, nn.Linear(2, 1)

    def forward(self, data):
        messages = data.x[data.edge_index[0]] * data[self.name][:, None]
        h = data.x.index_add(0, data.edge_index[1], messages).relu()
        return self.last(global_add_pool(h, data.batch))


def shares_of_weights(name: str) -> np.ndarray:
    """Compute shares of a graph with as many edges as nodes."""
    torch.manual_seed(0)
    model, x = Weighted(name).eval(), torch.randn(4, 2)
    edges, weights = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 1]]), torch.tensor([0.5, 2.0, -1.0, 3.0])
    data = Data(x=x, edge_index=edges, **{name: weights})
    return edge_shapley(graphxai.wrap(model, kind="regression"), [data])[0].values


def test_weights_of_edges_go_with_the_edges_of_a_graph_with_as_many_nodes():
    assert shares_of_weights("bond_order") == pytest.approx(shares_of_weights("edge_weight"))
    said = "strength: as long as nodes and edge_index; it is cut with nodes"
    with pytest.warns(UserWarning, match=said), pytest.raises(RuntimeError, match="size"):
        shares_of_weights("strength")
