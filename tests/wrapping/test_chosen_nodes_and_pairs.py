"""Models with an output for every node or every pair of nodes work in every function."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GATConv, TransformerConv

import graphxai as gx
from graphxai.wrapping.chosen import chosen_nodes

EDGES = torch.tensor([[0, 1, 2, 3, 1, 4], [1, 0, 3, 0, 2, 2]])


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attention = GATConv(8, 3)

    def forward(self, x, edge_index):
        return self.attention(x, edge_index)


class Links(Layer):
    def forward(self, x, edge_index, edge_label_index):
        first, second = super().forward(x, edge_index)[edge_label_index]
        return (first * second).sum(-1)


class AllPairs(Layer):
    def forward(self, x, edge_index):
        h = super().forward(x, edge_index)
        return h @ h.T


GRAPH = Data(x=torch.randn(5, 8, generator=torch.Generator().manual_seed(1)), edge_index=EDGES)
LAYER = Layer().eval()


def score(kept: list[int], pair: tuple[int, int]) -> float:
    if not set(pair) <= set(kept):
        return 0.0
    part = GRAPH.subgraph(torch.tensor(kept))
    with torch.no_grad():
        rows = LAYER(part.x, part.edge_index)
    return float(rows[kept.index(pair[0])] @ rows[kept.index(pair[1])])


@pytest.fixture
def nodes():
    return gx.wrap(Layer().eval(), kind="multiclass", classes=3)


@pytest.mark.parametrize("kind", [Links, AllPairs])
@pytest.mark.parametrize("pair", [(2, 0), (3, 3), (4, 1)])
def test_the_score_of_a_pair_is_explained(kind, pair):
    model = gx.wrap(kind().eval(), kind="regression")
    explanation = gx.explain(model, GRAPH, "occlusion", pair=pair)
    everything = list(range(5))
    whole = score(everything, pair)
    drops = [whole - score([v for v in everything if v != hidden], pair) for hidden in range(5)]
    assert explanation.output == pytest.approx(whole, abs=1e-6)
    assert explanation.relevance == pytest.approx(drops, abs=1e-6)
    lrp = gx.explain(model, GRAPH, pair=pair)
    assert lrp.output == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize("pairs", [[(0, 1), (2, 3), (4, 0)], torch.tensor([[0, 1], [2, 3]])])
def test_several_pairs_of_one_graph_are_a_list(pairs):
    model = gx.wrap(Links().eval(), kind="regression")
    explanations = gx.explain(model, GRAPH, pair=pairs)
    for pair, explanation in zip(torch.as_tensor(pairs).tolist(), explanations, strict=True):
        alone = gx.explain(model, GRAPH, pair=tuple(pair))
        assert explanation.relevance == pytest.approx(alone.relevance, abs=1e-6)


def test_several_nodes_of_one_graph_are_a_list(nodes):
    for chosen in ([0, 2, 4], range(0, 5, 2), torch.tensor([0, 2, 4])):
        explanations = gx.explain(nodes, GRAPH, node=chosen)
        for node, explanation in zip((0, 2, 4), explanations, strict=True):
            alone = gx.explain(nodes, GRAPH, node=node)
            assert explanation.relevance == pytest.approx(alone.relevance, abs=1e-6)


def test_a_chosen_node_is_predicted(nodes):
    with torch.no_grad():
        expected = LAYER(GRAPH.x, EDGES).softmax(-1)
    for node, predictions in zip((0, 3), gx.predict(nodes, GRAPH, node=[0, 3]), strict=True):
        probabilities = list(predictions["output"].probabilities.values())
        assert probabilities == pytest.approx(expected[node].tolist(), abs=1e-6)


def test_pairs_of_a_chosen_node_sum_to_what_it_read(nodes):
    read = gx.pairs(nodes, GRAPH, node=2, target="0")
    assert read.matrix[[1, 2, 4, 5]].any() == False  # noqa: E712 - only node 2 is read
    alone = gx.explain(nodes, GRAPH, node=2, target="0").relevance
    assert read.matrix.sum(0)[1:] == pytest.approx(alone, abs=1e-6)


def test_methods_are_evaluated_at_nodes_and_at_pairs(nodes):
    report = gx.evaluate(nodes, [GRAPH], ["lrp"], node=[0, 2, 3], metrics=["auac"])
    assert len({unit.graph for unit in report.units}) == 3
    by_list = gx.evaluate(nodes, [GRAPH] * 3, ["lrp"], node=[0, 2, 3], metrics=["auac"])
    assert report.rows.value.tolist() == by_list.rows.value.tolist()
    links = gx.wrap(Links().eval(), kind="regression")
    report = gx.evaluate(links, {"a": GRAPH, "b": GRAPH}, pair=[(0, 1), (2, 3)])
    assert {unit.graph for unit in report.units} == {"a", "b"}
    assert not report.failures


def test_an_evaluation_without_a_node_says_to_choose_one(nodes):
    with pytest.raises(ValueError, match="choose the node to explain"):
        gx.evaluate(nodes, [GRAPH], ["lrp"])


@pytest.mark.parametrize("of", ["nodes", "edges"])
def test_a_counterfactual_keeps_the_chosen_node(nodes, of):
    for node in range(5):
        counterfactual = gx.counterfactual_set(nodes, GRAPH, node=node, of=of)
        assert of == "edges" or node not in counterfactual.members
        if counterfactual:
            assert counterfactual.after.label != counterfactual.before.label
        with torch.no_grad():
            expected = LAYER(GRAPH.x, EDGES)[node].argmax()
        assert counterfactual.before.label == str(int(expected))


def test_a_pair_needs_a_model_that_scores_pairs(nodes):
    with pytest.raises(ValueError, match="pair= is for models that read 'edge_label_index'"):
        gx.explain(nodes, GRAPH, pair=(0, 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pair": (0, 9)}, "there is no node 9"),
        ({"pair": 3}, "the numbers of two nodes"),
        ({"pair": (0, 1), "node": 2}, "not both"),
    ],
)
def test_a_pair_that_is_none_is_refused(options, message):
    model = gx.wrap(Links().eval(), kind="regression")
    with pytest.raises(ValueError, match=message):
        gx.explain(model, GRAPH, **options)


class Typed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.writes = TransformerConv((4, 4), 4, edge_dim=2)
        self.cites = TransformerConv(4, 4, edge_dim=3)
        self.last = nn.Linear(4, 1)

    def forward(self, x_dict, edge_index_dict, edge_attr_dict, batch_dict):
        writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
        papers = self.writes(
            (x_dict["author"], x_dict["paper"]), edge_index_dict[writes], edge_attr_dict[writes]
        )
        papers = papers + self.cites(x_dict["paper"], edge_index_dict[cites], edge_attr_dict[cites])
        return self.last(papers.mean(0, keepdim=True))


def test_edges_of_a_heterogeneous_graph_have_relevance_by_type():
    draw = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["author"].x = torch.randn(2, 4, generator=draw)
    data["paper"].x = torch.randn(3, 4, generator=draw)
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 0, 1], [0, 1, 2]])
    data["author", "writes", "paper"].edge_attr = torch.randn(3, 2, generator=draw)
    data["paper", "cites", "paper"].edge_index = torch.tensor([[0, 1], [1, 2]])
    data["paper", "cites", "paper"].edge_attr = torch.randn(2, 3, generator=draw)
    module = Typed().eval()
    model = gx.wrap(module, kind="regression")
    explanation = gx.explain(model, data, "gradient_input", wrt=("x", "edge_attr"))
    attributes = {k: v.clone().requires_grad_() for k, v in data.edge_attr_dict.items()}
    output = module(data.x_dict, data.edge_index_dict, attributes, None)
    gradients = torch.autograd.grad(output.sum(), list(attributes.values()))
    for (kind, values), gradient in zip(attributes.items(), gradients, strict=True):
        expected = (values * gradient).sum(-1).detach().numpy()
        assert explanation.relevance_of[" ".join(kind)] == pytest.approx(expected, abs=1e-6)


def test_a_forward_that_ignores_the_pair_is_refused():
    def of_the_graph(module, batch):
        return module(batch.x, batch.edge_index).sum().reshape(1, 1)

    class TakesData(Layer):
        def forward(self, data):
            return super().forward(data.x, data.edge_index).sum().reshape(1, 1)

    for model in (
        gx.wrap(Layer().eval(), kind="regression", forward=of_the_graph),
        gx.wrap(TakesData().eval(), kind="regression"),
    ):
        with pytest.raises(ValueError, match="pair= is for models that read 'edge_label_index'"):
            gx.explain(model, GRAPH, pair=(0, 1))


@pytest.mark.parametrize("kind", ["the pair", "all pairs"])
def test_a_forward_that_scores_the_pair_is_explained(kind):
    def of_the_pair(module, batch):
        first, second = module(batch.x, batch.edge_index)[batch.edge_label_index]
        return (first * second).sum(-1)

    def of_all(module, batch):
        rows = module(batch.x, batch.edge_index)
        return rows @ rows.T

    forward = of_the_pair if kind == "the pair" else of_all
    model = gx.wrap(Layer().eval(), kind="regression", forward=forward)
    for pair, explanation in zip(
        [(2, 0), (4, 1)], gx.explain(model, GRAPH, "occlusion", pair=[(2, 0), (4, 1)]), strict=True
    ):
        assert explanation.output == pytest.approx(score(list(range(5)), pair), abs=1e-6)
        without_3 = score([0, 1, 2, 4], pair)
        expected = explanation.output - without_3
        assert explanation.relevance[3] == pytest.approx(expected, abs=1e-6)


class Counted(Layer):
    """A model without a batch vector, which counts its passes."""

    passes = 0

    def forward(self, x, edge_index):
        type(self).passes += 1
        return super().forward(x, edge_index)


class OverAll(Counted):
    """A model that subtracts the mean over all rows that it gets."""

    def forward(self, x, edge_index):
        rows = super().forward(x, edge_index)
        return rows - rows.mean(0)


class ByNumber(Counted):
    """A model that divides by the number of rows that it gets."""

    def forward(self, x, edge_index):
        return super().forward(x, edge_index) / len(x)


@pytest.mark.parametrize("method", ["lrp", "occlusion", "shapley_sampling"])
@pytest.mark.parametrize("kind", [Counted, OverAll, ByNumber])
def test_nodes_of_one_graph_share_passes_whether_or_not_copies_of_it_could(kind, method):
    def explained(choice):
        torch.manual_seed(0)
        model = gx.wrap(kind().eval(), kind="multiclass", classes=3)
        gx.explain(model, GRAPH, method, node=[0, 1])  # it is checked once
        kind.passes = 0
        return gx.explain(model, GRAPH, method, node=choice, target="1"), kind.passes

    together, passes = explained(list(range(5)))
    for node in (1, 4):
        alone, passes_alone = explained(node)
        assert together[node].relevance == pytest.approx(alone.relevance, abs=1e-6)
        assert passes <= passes_alone + 2


# -- methods that follow attention start from the chosen nodes -------------------------------------


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = GATConv(8, 6), GATConv(6, 3)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


class TwoLayerLinks(TwoLayers):
    def forward(self, x, edge_index, edge_label_index):
        first, second = super().forward(x, edge_index)[edge_label_index]
        return (first * second).sum(-1)


def attention_of(layer, x) -> torch.Tensor:
    """Return the attention (N, N) of a layer as PyG tells it, a row for each node that reads."""
    edges, weights = layer(x, EDGES, return_attention_weights=True)[1]
    return torch.zeros(5, 5).index_put((edges[1], edges[0]), weights.mean(1), accumulate=True)


@torch.no_grad()
def rows_by_hand() -> dict[str, torch.Tensor]:
    module = TwoLayers().eval()
    first = attention_of(module.first, GRAPH.x)
    last = attention_of(module.second, module.first(GRAPH.x, EDGES).relu())
    one, two = ((a + torch.eye(5)) / (a.sum(1, keepdim=True) + 1) for a in (first, last))
    return {"rollout": two @ one, "attention_last": last}


@pytest.mark.parametrize("method", ["rollout", "attention_last"])
def test_attention_is_read_in_the_row_of_the_chosen_node(method):
    rows = rows_by_hand()[method].numpy()
    model = gx.wrap(TwoLayers().eval(), kind="multiclass", classes=3)
    for node, explanation in enumerate(gx.explain(model, GRAPH, method, node=range(5))):
        alone = gx.explain(model, GRAPH, method, node=node)
        assert alone.relevance == pytest.approx(rows[node], abs=1e-6)
        assert explanation.relevance == pytest.approx(rows[node], abs=1e-6)
    links = gx.wrap(TwoLayerLinks().eval(), kind="regression")
    for pair in [(0, 3), (2, 2)]:
        explanation = gx.explain(links, GRAPH, method, pair=pair)
        assert explanation.relevance == pytest.approx(rows[list(pair)].mean(0), abs=1e-6)


def test_attention_flows_from_the_chosen_node_alone():
    model = gx.wrap(Layer().eval(), kind="multiclass", classes=3)
    with torch.no_grad():
        last = attention_of(LAYER.attention, GRAPH.x)
    for node in range(5):
        # of a single layer, what flows to each node is what is joined to the chosen one
        expected = (last[node] + torch.eye(5)[node]) / 2
        flow = gx.explain(model, GRAPH, "attention_flow", node=node).relevance
        assert flow == pytest.approx(expected.numpy(), abs=1e-6)


@torch.no_grad()
def test_gradients_by_attention_are_not_diluted_by_other_nodes(nodes):
    weights = attention_of(LAYER.attention, GRAPH.x)
    values = LAYER.attention.lin(GRAPH.x)  # (N, 3), whose mean by attention is the answer
    for node in range(5):
        gain = (weights[node] * values[:, 1]).numpy()  # A * dA
        cam = gx.explain(nodes, GRAPH, "grad_cam", node=node, target="1")
        assert cam.relevance == pytest.approx(gain, abs=1e-6)
        gae = gx.explain(nodes, GRAPH, "gae", node=node, target="1")
        positive = np.maximum(gain, 0)
        expected = (np.eye(5)[node] + positive) * positive.any()  # nothing, where nothing is read
        assert gae.relevance == pytest.approx(expected, abs=1e-6)


def test_an_evaluation_at_nodes_reads_the_rows_of_these_nodes():
    rows = rows_by_hand()["rollout"]

    def by_hand(model, batch, target):
        return rows[[chosen_nodes(graph)[0] for graph in batch.singles]]

    model = gx.wrap(TwoLayers().eval(), kind="multiclass", classes=3)
    report = gx.evaluate(model, GRAPH, ["rollout", by_hand], node=[0, 1, 3], metrics=["auac"])
    values = report.rows.pivot(index="graph", columns="method", values="value")
    assert values["rollout"].to_numpy() == pytest.approx(values["by_hand"].to_numpy(), abs=1e-6)
