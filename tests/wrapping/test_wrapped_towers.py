"""Wrapped models may have attention that the output ignores, and different numbers of heads."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, GPSConv, TransformerConv, global_mean_pool

import graphxai as gx
from graphxai.evaluation.measure import NoisyModel
from graphxai.evaluation.testing import check_batching
from graphxai.wrapping.eval_replica import copied
from small_graphs import SIZES, graph, random, started, wrapped

pytestmark = pytest.mark.usefixtures("only_relevance", "recorded_once")

# -- towers that the output does not rest on ---------------------------------------------------


class TwoTowers(nn.Module):
    """Two towers, the second of which serves an auxiliary loss."""

    def __init__(self, both: bool = True):
        super().__init__()
        self.embed, self.both = nn.Linear(6, 8), both
        self.a, self.head, self.b = GATConv(8, 8), nn.Linear(8, 1), GATConv(8, 8)

    def forward(self, x, edge_index, batch):
        h = self.embed(x)
        out = self.head(global_mean_pool(self.a(h, edge_index), batch))
        if self.both:
            self.aux = self.b(h, edge_index)
        return out


@pytest.mark.parametrize(
    "method",
    [
        *("gae", "gae_rollout", "cam", "grad_cam", "att_cat", "rollout", "attention_last"),
        *("attention_flow", "transformer_attribution", "masked_lrp", "partial_lrp", "lrp_zplus"),
    ],
)
def test_attention_that_the_output_does_not_depend_on_changes_nothing(method):
    both, single = started(TwoTowers()), TwoTowers(both=False).eval()
    single.load_state_dict(both.state_dict())
    both(graph(5).x, graph(5).edge_index, torch.zeros(5).long())  # leaves a tensor behind
    for n in SIZES:
        relevance = gx.explain(wrapped(both), graph(n), method).relevance
        expected = gx.explain(wrapped(single), graph(n), method).relevance
        assert np.allclose(relevance, expected, atol=1e-6)
        assert abs(expected).max() > 1e-6


def test_a_copy_keeps_what_a_pass_left_as_a_constant():
    model = started(TwoTowers())
    model(graph(5).x, graph(5).edge_index, torch.zeros(5).long())
    other = copied(model)
    assert torch.equal(other.aux, model.aux)
    assert not other.aux.requires_grad
    assert model.aux.requires_grad
    assert other.a.lin.weight is not model.a.lin.weight
    noisy = copied(NoisyModel(wrapped(model), seed=0))
    assert noisy.module.a.lin.weight is not model.a.lin.weight


class Gps(nn.Module):
    """Layers with one and with two heads, along edges with self-loops and among all nodes."""

    def __init__(self, norm: str):
        super().__init__()
        self.embed, self.head = nn.Linear(6, 8), nn.Linear(8, 1)
        self.along_edges = GPSConv(8, GATConv(8, 8, edge_dim=3), heads=2, norm=norm)
        self.all_nodes = GPSConv(8, TransformerConv(8, 8), heads=2, norm=norm)

    def forward(self, x, edge_index, edge_attr, batch):
        h = self.along_edges(self.embed(x), edge_index, batch, edge_attr=edge_attr)
        return self.head(global_mean_pool(self.all_nodes(h, edge_index, batch), batch))


@pytest.mark.parametrize("norm", ["layer_norm", "graph_norm"])
def test_masked_lrp_of_layers_with_other_numbers_of_heads(norm):
    graphs = [graph(n) for n in SIZES]
    for data in graphs:
        data.edge_attr = random(data.num_edges, 3)
    check_batching(wrapped(started(Gps(norm))), graphs, gx.explainers.get_explainer("masked_lrp"))
