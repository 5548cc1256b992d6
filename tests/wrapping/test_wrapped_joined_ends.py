"""Scores of `cat(h_i, h_j)` are read like `W h_i + V h_j`, which they are after a linear layer."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import global_mean_pool
from torch_geometric.utils import softmax

import graphxai as gx

pytestmark = pytest.mark.usefixtures("only_relevance")

DIM = 4


class Scores(nn.Module):
    """Scores `a^T (h_i, h_j)` (Velickovic 2018, eq. 3), added up or of joined rows."""

    def __init__(self, joined):
        super().__init__()
        self.a, self.joined = nn.Linear(2 * DIM, 1), joined

    def forward(self, h_i, h_j):
        if self.joined == "with an edge between them":
            zeros = torch.zeros_like(h_i[..., :1])
            weight = F.pad(self.a.weight, (0, 1)).roll(1, -1)
            weight = torch.cat([weight[:, 1 : DIM + 1], weight[:, :1], weight[:, DIM + 1 :]], -1)
            scores = F.linear(torch.cat([h_i, zeros, h_j], -1), weight, self.a.bias)
        elif self.joined:
            scores = self.a(torch.cat([h_i, h_j], dim=-1))
        else:
            first, second = self.a.weight.split(DIM, dim=1)
            scores = h_i @ first.T + h_j @ second.T + self.a.bias
        return F.leaky_relu(scores, 0.2)


class AlongEdges(nn.Module):
    """One layer of GAT, whose scores are those of the two ends of each edge."""

    def __init__(self, joined):
        super().__init__()
        torch.manual_seed(0)
        self.maps, self.head = nn.Linear(3, DIM), nn.Linear(DIM, 1)
        self.scores = Scores(joined)

    def forward(self, x, edge_index, batch):
        h, (source, target) = self.maps(x), edge_index
        weights = softmax(self.scores(h[target], h[source]), target, num_nodes=len(x))
        mixed = torch.zeros_like(h).index_add(0, target, weights * h[source])
        return self.head(global_mean_pool(mixed, batch))


class OfAllPairs(AlongEdges):
    """The same with a matrix, as in the first published code of GAT."""

    def forward(self, x, edge_index):
        h, n = self.maps(x), len(x)
        of_rows = h.repeat(1, n).view(n * n, -1), h.repeat(n, 1)
        scores = self.scores(*of_rows).view(n, n)
        bonded = torch.zeros(n, n).index_put(tuple(edge_index.flip(0)), torch.ones(()))
        scores = torch.where(bonded + torch.eye(n) > 0, scores, -9e15 * torch.ones_like(scores))
        return self.head((scores.softmax(1) @ h).mean(0, keepdim=True))


def graphs():
    torch.manual_seed(1)
    return [Data(x=torch.randn(n, 3), edge_index=torch.randint(0, n, (2, 3 * n))) for n in (6, 3)]


@pytest.mark.parametrize("joined", [True, "with an edge between them"])
@pytest.mark.parametrize("network", [AlongEdges, OfAllPairs])
@pytest.mark.parametrize("method", ["rollout", "gae", "path_marginals", "attention_last"])
def test_joined_ends_are_two_nodes(method, network, joined):
    options = {"rounds": 4} if method == "path_marginals" else {}
    expected, explained = (
        gx.explain(gx.wrap(network(form).eval(), kind="regression"), graphs(), method, **options)
        for form in (False, joined)
    )
    for a, b in zip(explained, expected, strict=True):
        assert a.relevance == pytest.approx(b.relevance, abs=1e-5)


def test_attention_of_joined_ends_is_that_of_the_model():
    graph = graphs()[0]
    network = AlongEdges(True).eval()
    network.head.weight.data.fill_(1.0)
    with torch.no_grad():
        h, (source, target) = network.maps(graph.x), graph.edge_index
        weights = softmax(network.scores(h[target], h[source]), target, num_nodes=6)[:, 0]
    matrix = torch.zeros(6, 6).index_put((target, source), weights, accumulate=True)
    explanation = gx.explain(gx.wrap(network, kind="regression"), graph, "attention_last")
    assert explanation.relevance == pytest.approx(matrix.mean(0).numpy(), abs=1e-6)


def test_a_node_joined_with_its_graph_is_no_pair():
    class WithMean(AlongEdges):
        def forward(self, x, edge_index, batch):
            h = self.maps(x)
            scores = self.scores(h, global_mean_pool(h, batch)[batch])
            return self.head(global_mean_pool(h * torch.sigmoid(scores), batch))

    with pytest.raises(gx.contract.model.NoAttentionError):
        gx.explain(gx.wrap(WithMean(True).eval(), kind="regression"), graphs()[0], "rollout")
