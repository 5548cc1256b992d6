"""Shapley values of edges agree with all orders of the edges, and with a sum over them."""

from itertools import permutations
from math import factorial

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GINConv, global_add_pool

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
