"""Many nodes of one graph share its forward passes, and some nodes alone can be removed."""

from itertools import permutations

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GATConv, GCNConv, TransformerConv

import graphxai as gx
from graphxai.contract.batching import is_large
from graphxai.contract.inputs import Input
from graphxai.engine.request import recorded_only
from graphxai.runtime import progress

LARGE, SMALL = 130, 7
METHODS = ["lrp", "gradient_input", "attn_lrp", "occlusion", "shapley_sampling"]


class Nodes(nn.Module):
    def __init__(self, layer=GCNConv):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = layer(6, 8), layer(8, 3)
        self.passes, self.sizes = 0, []

    def forward(self, x, edge_index):
        self.passes += 1
        self.sizes.append(len(x))
        return self.second(self.first(x, edge_index).relu(), edge_index)


def graph_of(n: int, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, n, (2, 3 * n), generator=generator)
    return Data(x=torch.randn(n, 6, generator=generator), edge_index=edges)


def wrapped(module: nn.Module):
    return gx.wrap(module.eval(), kind="multiclass", classes=3)


def assert_alike(together, alone) -> None:
    for first, second in zip(together, alone, strict=True):
        assert first.relevance == pytest.approx(second.relevance, abs=1e-6)
        assert first.target == second.target
        assert first.drawn.explained == second.drawn.explained
        assert (first.ledger is None) == (second.ledger is None)
        for line in ("output", "without_nodes", "biases", "unexplained") if first.ledger else ():
            expected = pytest.approx(getattr(second.ledger, line), abs=1e-6)
            assert getattr(first.ledger, line) == expected


@pytest.mark.parametrize("layer", [GCNConv, GATConv])
@pytest.mark.parametrize("method", METHODS)
def test_nodes_together_are_explained_as_they_are_alone(layer, method):
    model = wrapped(Nodes(layer))
    size = SMALL if method == "shapley_sampling" else LARGE
    graph, nodes = graph_of(size), [3, 0, size - 1, 3]
    options = {"nodes": [1, 3, 5]} if method == "occlusion" else {}
    together = gx.explain(model, graph, method, node=nodes, **options)
    assert_alike(together, [gx.explain(model, graph, method, node=n, **options) for n in nodes])


def test_the_gradient_of_each_node_is_its_own():
    module, graph = Nodes().eval(), graph_of(LARGE)
    x = graph.x.clone().requires_grad_()
    answer = module(x, graph.edge_index)
    explanations = gx.explain(wrapped(module), graph, "gradient_input", node=[7, 50], target=2)
    for node, explanation in zip((7, 50), explanations, strict=True):
        (gradient,) = torch.autograd.grad(answer[node, 2], x, retain_graph=True)
        expected = (x * gradient).sum(1).tolist()
        assert explanation.relevance == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("method", ["lrp", "attn_lrp", "occlusion"])
def test_a_large_graph_is_passed_forward_once_for_all_its_nodes(method):
    module = Nodes()
    model, graph = wrapped(module), graph_of(LARGE)
    assert is_large(Input(graph))
    options = {"nodes": range(5)} if method == "occlusion" else {}
    gx.explain(model, graph, method, node=0, **options)  # the checks of a first call
    counts = []
    for nodes in ([0], list(range(10))):
        module.passes = 0
        gx.explain(model, graph, method, node=nodes, **options)
        counts.append(module.passes)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_one_pass_predicts_all_nodes(size):
    module = Nodes()
    model, graph = wrapped(module), graph_of(size)
    with torch.no_grad():
        expected = module(graph.x, graph.edge_index).softmax(1)
    gx.predict(model, graph, node=0)
    module.passes = 0
    predictions = gx.predict(model, graph, node=range(size))
    assert module.passes == 1
    for node, prediction in enumerate(predictions):
        probabilities = list(prediction["output"].probabilities.values())
        assert probabilities == pytest.approx(expected[node].tolist(), abs=1e-6)


def test_nodes_of_several_graphs_keep_their_order():
    model = wrapped(Nodes())
    graphs = [graph_of(LARGE, 1), graph_of(LARGE, 2), graph_of(SMALL, 3)]
    inputs, nodes = [graphs[k] for k in (0, 1, 0, 2, 1, 2)], [5, 6, 7, 1, 0, 2]
    pairs = list(zip(inputs, nodes, strict=True))
    together = gx.explain(model, inputs, node=nodes)
    assert_alike(together, [gx.explain(model, graph, node=node) for graph, node in pairs])
    predictions = gx.predict(model, inputs, node=nodes)
    for prediction, (graph, node) in zip(predictions, pairs, strict=True):
        alone = gx.predict(model, graph, node=node)["output"].probabilities
        assert prediction["output"].probabilities == pytest.approx(alone, abs=1e-6)


class Typed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = TransformerConv((4, 3), 3)

    def forward(self, x_dict, edge_index_dict):
        ends = x_dict["author"], x_dict["paper"]
        read = self.convolution(ends, edge_index_dict["author", "writes", "paper"])
        return {"paper": read, "author": x_dict["author"][:, :3]}


def test_nodes_of_one_type_are_explained_and_predicted_as_alone():
    generator = torch.Generator().manual_seed(0)
    graph = HeteroData()
    graph["author"].x = torch.randn(80, 4, generator=generator)
    graph["paper"].x = torch.randn(60, 3, generator=generator)
    ends = torch.stack([torch.randint(0, n, (200,), generator=generator) for n in (80, 60)])
    graph["author", "writes", "paper"].edge_index = ends
    model, nodes = wrapped(Typed()), [("paper", 4), ("author", 3), ("paper", 59)]
    for method in ("lrp", "occlusion"):
        together = gx.explain(model, graph, method, node=nodes)
        assert_alike(together, [gx.explain(model, graph, method, node=n) for n in nodes])
    for node, prediction in zip(nodes, gx.predict(model, graph, node=nodes), strict=True):
        alone = gx.predict(model, graph, node=node)["output"].probabilities
        assert prediction["output"].probabilities == pytest.approx(alone, abs=1e-6)


# -- some nodes alone are removed ------------------------------------------------------------------


class Pooled(Nodes):
    def __init__(self):
        super().__init__()
        self.offset = nn.Parameter(torch.ones(3))

    def forward(self, x, edge_index, batch):
        rows = super().forward(x, edge_index)
        return rows.new_zeros(int(batch.max()) + 1, 3).index_add(0, batch, rows / 10) + self.offset


def value_without(module: nn.Module, graph: Data, removed: tuple[int, ...]) -> float:
    keep = torch.tensor([k for k in range(len(graph.x)) if k not in removed])
    part = graph.subgraph(keep)
    with torch.no_grad():
        return float(module(part.x, part.edge_index, torch.zeros(len(keep)).long())[0, 1])


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_occlusion_of_some_nodes_removes_these(size):
    module, graphs = Pooled().eval(), [graph_of(size, seed) for seed in range(2)]
    for inputs in (graphs, graphs[0]):
        explained = gx.explain(wrapped(module), inputs, "occlusion", target=1, nodes=[4, 2])
        for graph, explanation in zip(graphs, np.atleast_1d(np.array(explained)), strict=False):
            expected = np.zeros(size)
            for node in (2, 4):
                drop = value_without(module, graph, ()) - value_without(module, graph, (node,))
                expected[node] = drop
            assert explanation.relevance == pytest.approx(expected, abs=1e-5)


def test_shapley_values_of_some_nodes_leave_the_others_present():
    module, graph, players = Pooled().eval(), graph_of(SMALL), (1, 4, 6)
    gains = dict.fromkeys(players, 0.0)
    orders = list(permutations(players))
    for order in orders:
        for place, node in enumerate(order):
            before = value_without(module, graph, order[place:])
            gains[node] += value_without(module, graph, order[place + 1 :]) - before
    explanation = gx.explain(
        wrapped(module), graph, "shapley_sampling", target=1, nodes=players, permutations=600
    )
    expected = [gains.get(node, 0.0) / len(orders) for node in range(SMALL)]
    assert explanation.relevance == pytest.approx(expected, abs=0.02)
    assert explanation.ledger.biases == pytest.approx(
        value_without(module, graph, players), abs=1e-5
    )
    total = explanation.ledger.output - explanation.ledger.biases
    assert explanation.relevance.sum() == pytest.approx(total, abs=1e-5)


def test_a_graphormer_loses_only_these_nodes():
    model = gx.load("bace")
    whole = gx.explain(model, "CCOC", "occlusion").relevance
    some = gx.explain(model, "CCOC", "occlusion", nodes=[1, 3]).relevance
    assert some == pytest.approx(whole * [0, 1, 0, 1], abs=1e-6)


@pytest.mark.parametrize("nodes", [[SMALL], [-1], []])
def test_nodes_that_a_graph_lacks_are_refused(nodes):
    with pytest.raises(ValueError, match=r"there is no node 7|numbers of nodes from 0"):
        gx.explain(wrapped(Pooled()), graph_of(SMALL), "occlusion", nodes=nodes)


def test_a_long_occlusion_says_beforehand_what_it_takes(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LONG", 0.0)
    model, graph = wrapped(Pooled()), graph_of(250)
    gx.explain(model, graph, "occlusion")
    said = capsys.readouterr().err
    assert said.startswith("Occlusion: 251 passes, about ")
    assert "nodes=[...] removes only these nodes" in said
    gx.explain(model, graph, "occlusion", progress=False)
    assert capsys.readouterr().err == ""


# -- passes are no larger than they have to be -----------------------------------------------------


def test_the_output_without_nodes_needs_a_few_nodes_of_a_large_graph():
    module, graph = Pooled(), graph_of(LARGE)
    explanation = gx.explain(wrapped(module), graph, target=1)
    assert explanation.ledger.without_nodes == pytest.approx(1.0, abs=1e-6)
    assert [size for size in module.sizes if size > 16] == [LARGE]


def test_a_pass_without_a_node_has_no_other_graph_beside_it():
    module, graph = Pooled(), graph_of(LARGE)
    model = wrapped(module)
    gx.explain(model, graph, "occlusion", nodes=[0])
    module.sizes.clear()
    gx.explain(model, graph, "occlusion", nodes=range(5))
    assert max(module.sizes[1:]) <= 5 * LARGE
    assert sum(module.sizes) <= 7 * LARGE + 8


def test_nodes_of_a_model_that_ends_in_log_probabilities_need_no_recording():
    class Ends(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = GATConv(6, 8), nn.Linear(8, 3)

        def forward(self, x, edge_index):
            return self.second(self.first(x, edge_index).relu()).log_softmax(-1)

    graphs = [graph_of(6), graph_of(7)]
    options = {"kind": "multiclass", "classes": 3}
    model = gx.wrap(Ends().eval(), **options)
    nodes = {"node": [1, 4]}
    for data in graphs:
        hooked = gx.explain(model, data, target=1, **nodes)
        assert model.tier == "hooks"
        with recorded_only():
            recorded = gx.explain(gx.wrap(model.module, **options), data, target=1, **nodes)
        for first, second in zip(hooked, recorded, strict=True):
            assert first.relevance == pytest.approx(second.relevance, abs=1e-5)
            assert first.ledger.to_dict() == pytest.approx(second.ledger.to_dict(), abs=1e-5)
