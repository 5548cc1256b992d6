"""Shares with a curve of size say what groups of nodes do, and Shapley values have errors."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from shapley import batch_of, graph_of, shapley_by_brute_force
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, global_add_pool, global_mean_pool

import graphxai as gx
from graphxai.contract.method_names import CONTROLS
from graphxai.contract.model import NoAttentionError
from graphxai.evaluation.testing import check_batching, check_ledger
from graphxai.explainers import REGISTRY, get_explainer
from graphxai.explainers.shapley import ENOUGH, MOST, ORDERS, orders_for
from other_models import quick_explainer
from toy import random_graphormer

PENTANE, HEXANE, AMIDE = "CCCCO", "CCCCCO", "NC(=O)c1cccs1"
EDGES = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 4], [1, 0, 2, 1, 3, 2, 4, 3]])


class OfSize(nn.Module):
    """A score of each node, and a curve of how many nodes there are, out of five."""

    def __init__(self, factors=(3.0, -2.0, 8.0)):
        super().__init__()
        torch.manual_seed(3)
        self.score, self.factors = nn.Linear(3, 1), factors

    def forward(self, x, edge_index, batch):
        graphs = int(batch.max()) + 1 if len(batch) else 1
        k = x.new_zeros(graphs, 1).index_add(0, batch, x.new_ones(len(x), 1)) / 5
        a, b, d = self.factors
        inner = k * (1 - k)
        curve = a * inner + b * inner * (k - 0.5) + d * inner**2
        return global_add_pool(self.score(x), batch, graphs) + curve


class Network(nn.Module):
    """A GCN with mean pooling."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = GCNConv(3, 16), GCNConv(16, 16), nn.Linear(16, 1)

    def forward(self, x, edge_index, batch):
        h = self.first(x, edge_index).relu()
        return self.head(global_mean_pool(self.second(h, edge_index).relu(), batch))


class IgnoresNodes(nn.Module):
    """Attention and messages between the nodes, of which the head makes a constant."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lift, self.layer = nn.Linear(3, 8), GCNConv(8, 8)
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.constant_(self.head.bias, -3.0)

    def forward(self, x, edge_index):
        h = self.layer(self.lift(x), edge_index)
        h = h + self.attention(h[None], h[None], h[None])[0][0]
        return self.head(h.mean(0, keepdim=True))


class Constant(nn.Module):
    """A constant that does not even depend on its input."""

    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.tensor([[-3.0]]))

    def forward(self, x, edge_index):
        return self.value * 1.0


def path_of(nodes=5, seed=0):
    x = torch.randn(nodes, 3, generator=torch.Generator().manual_seed(seed))
    edges = EDGES if nodes == 5 else torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)])
    return Data(x=x, edge_index=edges)


def wrapped(module):
    return gx.wrap(module.eval(), kind="regression")


def test_shares_close_and_the_curve_is_zero_at_both_ends():
    e = gx.explain(random_graphormer(), AMIDE, "shares")
    assert e.relevance.sum() == pytest.approx(e.output - e.without_nodes, abs=1e-5)
    assert e.value_of([]) == pytest.approx(e.without_nodes, abs=1e-5)
    assert e.value_of(range(len(e))) == pytest.approx(e.output, abs=1e-5)
    assert e.value_of([0, 2]) == pytest.approx(
        e.without_nodes + e.relevance[[0, 2]].sum() + e.ledger.curve_at(2 / 8), abs=1e-5
    )


def test_what_a_group_does_is_exact_where_nodes_add_up_and_size_follows_the_curve():
    module = OfSize()
    graph = path_of()
    e = gx.explain(wrapped(module), graph, "shares", coalitions=30)
    # marginals see no count of rows, so the shares are those of the scores, and size is the curve
    np.testing.assert_allclose(e.relevance, module.score(graph.x)[:, 0].detach(), atol=1e-4)
    for group in ([0], [1, 3], [0, 1, 4], [0, 1, 2, 3]):
        alone = module(graph.x[group], EDGES, torch.zeros(len(group), dtype=torch.long))
        assert e.value_of(group) == pytest.approx(alone.item(), abs=0.02)
    assert e.ledger.group_error < 0.01


@pytest.mark.parametrize("kind", ["Graphormer", "wrapped"])
def test_the_stated_error_is_that_of_coalitions_that_were_not_fitted(kind):
    model = random_graphormer() if kind == "Graphormer" else wrapped(Network())
    graphs = [AMIDE, "CC(=O)Nc1ccc(O)cc1"] if kind == "Graphormer" else [path_of(12, 1), path_of(9)]
    for graph in graphs:
        e = gx.explain(model, graph, "shares")
        groups = np.random.default_rng(0).random((200, len(e))) < 0.5
        values = gx.game(model, graph)(groups)
        said = [e.value_of(group.nonzero()[0]) for group in groups]
        off = np.sqrt(np.mean((values - said) ** 2))
        assert 0.4 < e.ledger.group_error / off < 3


def test_shares_do_not_depend_on_other_graphs(smiles):
    check_ledger(random_graphormer(), smiles[:4], "shares")
    check_batching(random_graphormer(), smiles[:4], "shares")


def test_the_curve_and_its_error_are_in_the_result(tmp_path):
    e = gx.explain(random_graphormer(), AMIDE, "shares")
    figures = e.to_dict()["ledger"]
    assert {"curve: k(1-k)", "curve: (k(1-k))^2", "group_error"} <= set(figures)
    assert figures["total"] == pytest.approx(figures["output"], abs=1e-5)
    assert f"a group of atoms ± {e.ledger.group_error:.2f}" in e.caption
    assert "group error" in e.section()
    lrp = gx.explain(random_graphormer(), AMIDE)
    assert "group_error" not in lrp.to_dict()["ledger"]
    with pytest.raises(ValueError, match="method='shares'"):
        lrp.value_of([0])
    with pytest.raises(ValueError, match="nodes 0 to 7"):
        e.value_of([8])


def test_a_node_is_explained_by_orders():
    class OfNodes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = GCNConv(3, 1)

        def forward(self, x, edge_index):
            return self.layer(x, edge_index)

    model, graph = wrapped(OfNodes()), path_of()
    with pytest.warns(UserWarning, match="8 orders"):
        e = gx.explain(model, graph, "shares", node=2)
    assert e.ledger.group_error is not None
    assert e.spread is not None


def test_weights_combine_scores_that_are_then_shifted_to_the_same_sum():
    model, weights = random_graphormer(), (0.5, -1.0, 2.0, 0.25)
    scores = [
        gx.explain(model, AMIDE, name).relevance
        for name in ("shares", "occlusion", "path_marginals", "lrp_path")
    ]
    expected = np.tensordot(weights, scores, axes=1)
    e = gx.explain(model, AMIDE, get_explainer("shares", weights=weights))
    np.testing.assert_allclose(np.diff(e.relevance), np.diff(expected), atol=1e-4)
    assert e.relevance.sum() == pytest.approx(e.output - e.without_nodes, abs=1e-5)
    with pytest.raises(ValueError, match="4 weights, not 2"):
        get_explainer("shares", weights=(1.0, 2.0))


def test_fitted_weights_are_those_with_which_exchanges_err_least():
    """By the measure of exchanges, on coalitions that were not fitted, of the fitted graphs."""
    model, graphs = wrapped(Network()), [path_of(12, 1), path_of(9), path_of(10, 2)]
    fitted = gx.fit_shares(model, graphs)
    others = [(1.0, 0.0, 0.0, 0.0), *(np.array(fitted.weights) + 0.3 * np.eye(4))]
    exchanges = []
    for k, graph in enumerate(graphs):
        drawn = np.random.default_rng(k)
        sizes = drawn.integers(1, len(graph.x), 400).repeat(2)[:, None]
        coalitions = drawn.random((800, len(graph.x))).argsort(1).argsort(1) < sizes
        change = np.subtract(*gx.game(model, graph)(coalitions).reshape(400, 2).T)
        exchanges.append((graph, coalitions, change))

    def error(weights):
        method, squares = get_explainer("shares", weights=tuple(weights)), []
        for graph, coalitions, change in exchanges:
            of_nodes = gx.explain(model, graph, method).relevance
            said = np.subtract(*(coalitions @ of_nodes).reshape(400, 2).T)
            squares.append(np.mean((change - said) ** 2) / np.mean(change**2))
        return np.mean(squares)

    least = error(fitted.weights)
    assert all(error(weights) > least for weights in others)
    assert gx.fit_shares(model, graphs).weights == fitted.weights


def test_fitting_weights_says_what_is_wrong_with_the_graphs():
    with pytest.raises(ValueError, match="give a list"):
        gx.fit_shares(random_graphormer(), AMIDE)
    with pytest.raises(ValueError, match="no exchange of nodes"):
        gx.fit_shares(random_graphormer(), ["C"])


# -- Shapley values --------------------------------------------------------------------------------


def test_shapley_values_are_exact_where_all_coalitions_take_no_more_passes():
    model = random_graphormer().double()
    smiles = [PENTANE, "C", AMIDE, "CCO"]
    attribution = get_explainer("shapley_sampling").attribute(model, batch_of(model, smiles))
    for row in (0, 1, 3):
        expected = shapley_by_brute_force(model, graph_of(model, smiles[row]), "mask")
        values = attribution.relevance[row, : len(expected)].numpy()
        np.testing.assert_allclose(values, expected, atol=1e-12)
        assert not attribution.spread[row].any()
    check_batching(model, smiles, "shapley_sampling")


@pytest.mark.parametrize("smiles", [HEXANE, AMIDE])
def test_orders_are_raised_until_the_error_is_a_tenth_of_the_largest_value(smiles):
    model = random_graphormer().double()
    expected = shapley_by_brute_force(model, graph_of(model, smiles), "mask")
    batch = batch_of(model, [smiles])
    few = get_explainer("shapley_sampling", permutations=ORDERS).attribute(model, batch, "active")
    raised = get_explainer("shapley_sampling").attribute(model, batch, "active")
    off = np.abs(raised.relevance[0].numpy() - expected)
    assert few.spread.max() > ENOUGH * few.relevance.abs().max()
    assert raised.spread.max() < few.spread.max()
    assert (off <= 3 * raised.spread[0].numpy() + 1e-12).all()


def test_the_number_of_orders_follows_from_the_error():
    scores, joining = torch.tensor([[1.0, -2.0]] * 4), torch.ones(4, 2, dtype=torch.bool)
    error = torch.tensor([[0.1, 0.2], [0.1, 0.21], [0.4, 0.1], [9.0, 9.0]])
    assert orders_for(scores, error, torch.ones(4), joining).tolist() == [8, 16, 32, MOST]
    many = torch.ones(4, 300, dtype=torch.bool)
    assert orders_for(scores, error, torch.ones(4), many).tolist() == [8, 16, 32, 32]
    rounding = orders_for(1e-9 * scores, 1e-9 * error, torch.ones(4), joining)
    assert rounding.tolist() == [ORDERS] * 4


def test_standard_errors_stand_in_the_picture():
    e = gx.explain(random_graphormer(), AMIDE, "shapley_sampling", permutations=8)
    assert f"each atom ± {e.spread.max():.2g} at most" in e.caption
    assert "at most" in e.svg()


# -- a model that ignores its nodes ----------------------------------------------------------------

OF_ATTENTION = {"attention_last", "rollout", "attention_flow"}  # weights, whatever the output is
METHODS = [
    name
    for name, cls in REGISTRY.items()
    if cls.traits.explains_any_model and name not in {*CONTROLS, *OF_ATTENTION}
]


def ignoring_graphormer():
    model = random_graphormer()
    for parameter in model.head.parameters():
        nn.init.zeros_(parameter)
    return model


@pytest.mark.parametrize("method", METHODS)
def test_nodes_that_a_model_ignores_get_zeros(method):
    explainer = quick_explainer(method)
    for model, graph in ((wrapped(IgnoresNodes()), path_of()), (ignoring_graphormer(), AMIDE)):
        np.testing.assert_allclose(gx.explain(model, graph, explainer).relevance, 0, atol=1e-6)
    with suppress(NoAttentionError):
        relevance = gx.explain(wrapped(Constant()), path_of(), explainer).relevance
        np.testing.assert_allclose(relevance, 0, atol=1e-6)
