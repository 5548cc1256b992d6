"""Shapley values from coalitions equal exact ones where they can, and orders correct the others."""

import numpy as np
import pytest
import torch
from shapley import batch_of, graph_of, shapley_by_brute_force
from torch import nn
from torch_geometric.data import Data

import graphxai as gx
from graphxai.evaluation.testing import check_batching, check_ledger
from graphxai.explainers import get_explainer
from graphxai.explainers.orders import mean_and_error
from graphxai.explainers.shapley import between, pooled
from graphxai.explainers.shares import random_coalitions
from toy import random_graphormer

AMIDE = "NC(=O)c1cccs1"


class SumOfScores(nn.Module):
    """Add a score of each node, so that a node adds the same to every coalition."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(3, 1)

    def forward(self, x, edge_index):
        return self.score(x).sum(0, keepdim=True)


def test_two_coalitions_are_enough_where_nodes_add_up():
    module = SumOfScores().eval()
    graph = Data(x=torch.randn(6, 3), edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]))
    model = gx.wrap(module, kind="regression")
    shapley = gx.explain(model, graph, "shapley_sampling", permutations=0, gates=2)
    expected = module.score(graph.x)[:, 0].detach()
    np.testing.assert_allclose(shapley.relevance, expected, atol=1e-5)


def test_orders_correct_the_coalitions():
    model = random_graphormer().double()
    expected = shapley_by_brute_force(model, graph_of(model, AMIDE), "mask")
    batch = batch_of(model, [AMIDE])

    def error(**options):
        shapley = get_explainer("shapley_sampling", **options).attribute(model, batch, "active")
        return np.linalg.norm(shapley.relevance[0].numpy() - expected)

    assert error(permutations=0, gates=16) < error(permutations=4)
    assert error(permutations=512, gates=16) < 0.2 * error(permutations=0, gates=16)


def test_the_spread_covers_the_exact_values():
    model = random_graphormer().double()
    expected = shapley_by_brute_force(model, graph_of(model, AMIDE), "mask")
    batch = batch_of(model, [AMIDE])
    within = []
    for seed in range(25):
        shapley = get_explainer("shapley_sampling", permutations=8, gates=8, seed=seed)
        attribution = shapley.attribute(model, batch, "active")
        off = np.abs(attribution.relevance[0].numpy() - expected)
        within.append(off < 1.96 * attribution.spread[0].numpy())
    assert 0.85 < np.mean(within) <= 1.0


def test_the_estimate_lies_where_james_and_stein_put_it():
    gates = torch.tensor([[1.0, 2.0, 0.0, 9.0]])
    mask = torch.tensor([[True, True, True, False]])
    samples = torch.tensor([[[2.0, 4.0, 1.0, 0.0]], [[4.0, 2.0, 1.0, 0.0]]])
    sampled, noisy = mean_and_error(samples, mask.expand_as(samples))
    estimate, error = between(gates, sampled, pooled(noisy, mask), mask)
    noise = 1.0 + 1.0 + 0.0  # the squared standard errors of the means 3, 3, 1
    weight = 1 - noise / (2**2 + 1**2 + 1**2)
    expected = [1 + weight * 2, 2 + weight * 1, weight * 1]
    np.testing.assert_allclose(estimate[0, :3], expected, rtol=1e-6)
    assert (error[0, :3] > 0).all()
    assert error[0, 3] == 0


def test_scores_add_up_and_do_not_depend_on_other_graphs(smiles):
    model = random_graphormer()
    for permutations in (0, 4):
        shapley = get_explainer("shapley_sampling", permutations=permutations, gates=4)
        check_ledger(model, smiles[:4], shapley)
        check_batching(model, smiles[:4], shapley)


def test_coalitions_come_in_all_sizes_and_are_never_empty():
    batch = batch_of(random_graphormer(), [AMIDE, "CC", "C"])
    sizes = random_coalitions(batch, 16, seed=0)[::2].sum(-1)
    assert sizes[:, 0].tolist() == [1, 1, 1, 2, 2, 3, 3, 4]
    assert sizes[:, 1:].unique().tolist() == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gates": 3}, "an even number"),
        ({"gates": 4, "operator": "zero"}, "operator 'mask'"),
        ({"gates": 4, "permutations": 2}, "at least 4 permutations"),
    ],
)
def test_gates_that_cannot_be_used_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        get_explainer("shapley_sampling", **options)
