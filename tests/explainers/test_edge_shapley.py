"""Shapley values of edges, against all orders of the edges and a sum over them."""

from itertools import permutations
from math import factorial

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GINConv, global_add_pool

import graphxai
from graphxai.adapters.removal import outputs_without_edges
from graphxai.contract.inputs import prepare_for
from graphxai.explainers.edge_shapley import edge_shapley
from toy import random_graphormer


def exact(model, value, column: int = 0) -> np.ndarray:
    """Shapley values of the edges, from every order."""
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
    (found,) = edge_shapley(model, ["CC(=O)N"], permutations=200)
    assert found.edges.tolist() == [[0, 1], [1, 2], [1, 3]]
    assert np.abs(found.values - wanted).max() <= 4 * found.spread.max() + 1e-6


def test_values_of_edges_sum_to_what_the_edges_change():
    model = random_graphormer()
    smiles = ["CC(=O)Oc1ccccc1C(=O)O", "CCO", "C"]
    for one, value in zip(
        edge_shapley(model, smiles, "pIC50", permutations=3), smiles, strict=True
    ):
        assert one.values.sum() == pytest.approx(one.output - one.without, abs=1e-5)
        assert one.output == pytest.approx(graphxai.predict(model, value)["pIC50"].value, abs=1e-4)
        assert len(one.edges) == len(one.values) == len(one.spread)


def test_a_graph_gets_the_same_values_alone_and_among_others():
    model = random_graphormer()
    (alone,) = edge_shapley(model, ["CC(=O)N"])
    found = edge_shapley(model, ["c1ccccc1", "CC(=O)N"])[1]
    np.testing.assert_allclose(found.values, alone.values, atol=1e-5)


class Isomorphism(nn.Module):
    """Sum over the nodes after one convolution: f = sum_i x_i + sum over edges (x_i + x_j)."""

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
    (found,) = edge_shapley(model, [graph], permutations=1)
    np.testing.assert_allclose(found.values, [3.0, 6.0], atol=1e-5)
    assert found.without == pytest.approx(7.0)


def test_no_order_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        edge_shapley(random_graphormer(), ["CC"], permutations=0)
