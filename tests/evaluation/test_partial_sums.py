"""The error of partial sums, on functions of coalitions whose values are known."""

import itertools

import pytest
import torch
from torch_geometric.data import Data

import graphxai as gx
from graphxai.evaluation import METRICS, Series
from graphxai.evaluation.curves import random_coalitions

ALL = torch.tensor(list(itertools.product((False, True), repeat=3)))  # (8, 3)
TERMS = torch.tensor([2.0, -1.0, 0.5])


def series(relevance, value):
    """Return the series of a regression whose value at a coalition is `value`."""
    counts = torch.arange(4)
    ends = torch.stack([value(torch.arange(3) < k) for k in range(4)])[:, None]
    of_coalitions = torch.stack([value(part) for part in ALL])[:, None]
    logits = (ends, ends, ends)
    return Series(relevance, counts, counts / 3, *logits, None, ALL, of_coalitions)


def additive(part):
    return 5 + (TERMS * part).sum()


def test_the_terms_of_an_additive_model_have_no_error():
    assert METRICS["partial_sums"].measure(series(TERMS, additive)) == pytest.approx(0)
    assert METRICS["partial_sums_scaled"].measure(series(3 * TERMS, additive)) == pytest.approx(0)


def test_no_relevance_has_the_error_of_the_gains():
    # gains have the mean sum(t) / 2 and the variance sum(t^2) / 4 over all coalitions
    mean, variance = float(TERMS.sum()) / 2, float(TERMS.square().sum()) / 4
    error = METRICS["partial_sums"].measure(series(torch.zeros(3), additive))
    assert error == pytest.approx((variance + mean**2) / variance)


def test_shares_of_an_interaction_miss_what_no_sum_can_hold():
    """v = 1 if the first two are there: halves err by 1/2 where one is there, in half of all."""
    error = METRICS["partial_sums"].measure(
        series(torch.tensor([0.5, 0.5, 0.0]), lambda part: (part[0] & part[1]).float())
    )
    assert error == pytest.approx((0.25 / 2) / (3 / 16))


def test_sizes_of_coalitions_are_equally_likely():
    sizes = random_coalitions(4, 20_000).sum(1)
    share = sizes.bincount(minlength=5) / len(sizes)
    torch.testing.assert_close(share, torch.full((5,), 0.2), atol=0.012, rtol=0)


def test_shapley_values_of_a_sum_have_no_error_in_a_report():
    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(2, 1)

        def forward(self, x, edge_index, batch):
            out = x.new_zeros(int(batch.max()) + 1, 2).index_add(0, batch, x)
            return self.head(out)

    graph = Data(x=torch.randn(6, 2), edge_index=torch.tensor([[0, 1], [1, 0]]))
    model = gx.wrap(Sum().eval(), kind="binary")
    report = gx.evaluate(
        model, [graph], ["shapley_sampling"], metrics=["partial_sums", "partial_sums_scaled"]
    )
    for metric in ("partial_sums", "partial_sums_scaled"):
        values = report.values(metric)
        assert values["shapley_sampling"] == pytest.approx([0], abs=1e-9)
        assert values["random"][0] > 0.01
