"""Every method notices a model whose output for a graph depends on the graphs beside it."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, global_mean_pool

import graphxai as gx
from small_graphs import graph, started, wrapped

GRAPHS = [graph(n) for n in (5, 8, 3)]


class Attending(nn.Module):
    """Attention along edges, then between all nodes of a batch, or of each graph."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.mixes = mixes
        self.first, self.qkv, self.head = GATConv(6, 8), nn.Linear(8, 24), nn.Linear(8, 1)

    def forward(self, x, edge_index, batch):
        h = self.first(x, edge_index)
        q, k, v = self.qkv(h).chunk(3, -1)
        scores = q @ k.mT
        if not self.mixes:
            scores = scores.masked_fill(batch[:, None] != batch, -torch.inf)
        return self.head(global_mean_pool(h + scores.softmax(-1) @ v, batch))


@pytest.mark.parametrize("method", ["lrp", "saliency", "gae", "lrp_zplus", "occlusion"])
def test_a_model_that_mixes_graphs_is_named_and_explained_graph_by_graph(method):
    model = wrapped(started(Attending(mixes=True)))
    with pytest.warns(UserWarning, match="Attending mixes the graphs of a batch"):
        together = gx.explain(model, GRAPHS, method)
    for explanation, data in zip(together, GRAPHS, strict=True):
        alone = gx.explain(wrapped(started(Attending(mixes=True))), data, method)
        np.testing.assert_allclose(explanation.relevance, alone.relevance, rtol=1e-4, atol=1e-6)
        assert explanation.output == pytest.approx(alone.output, rel=1e-5)


def test_a_model_that_keeps_graphs_apart_is_not_named():
    model = wrapped(started(Attending(mixes=False)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        together = gx.explain(model, GRAPHS, "lrp")
    for explanation, data in zip(together, GRAPHS, strict=True):
        alone = gx.explain(model, data, "lrp")
        np.testing.assert_allclose(explanation.relevance, alone.relevance, rtol=1e-4, atol=1e-6)


def test_a_norm_over_the_batch_is_named():
    class Normed(Attending):
        def forward(self, x, edge_index, batch):
            h = self.first(x, edge_index)
            return self.head(global_mean_pool((h - h.mean(0)) / h.std(0), batch))

    with pytest.warns(UserWarning, match="Normed mixes the graphs of a batch"):
        gx.explain(wrapped(started(Normed(mixes=True))), GRAPHS, "gradient_input")
