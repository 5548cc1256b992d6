"""Errors of values over coalitions, on functions of coalitions whose values are known."""

import itertools

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import graphxai as gx
from graphxai.evaluation import METRICS, Series
from graphxai.evaluation.curves import random_coalitions
from graphxai.evaluation.metrics import size_share

ALL = torch.tensor(list(itertools.product((False, True), repeat=3)))  # (8, 3)
PAIRS = [(s, t) for s, t in itertools.product(ALL, ALL) if s.sum() == t.sum()]
EXCHANGES = torch.stack([part for pair in PAIRS for part in pair])  # (40, 3), all pairs of a size
TERMS = torch.tensor([2.0, -1.0, 0.5])


def series(relevance, value, coalitions=EXCHANGES):
    """Return the series of a regression whose value at a coalition is `value`."""
    counts = torch.arange(4)
    ends = torch.stack([value(torch.arange(3) < k) for k in range(4)])[:, None]
    of_coalitions = torch.stack([value(part) for part in coalitions])[:, None]
    logits = (ends, ends, ends)
    return Series(relevance, counts, counts / 3, *logits, None, coalitions, of_coalitions)


def exchange_error(relevance, value):
    return METRICS["exchange_error"].measure(series(relevance, value))


def additive(part):
    return 5 + (TERMS * part).sum()


def interacting(part):
    return 5 + (TERMS * part).sum() + 3 * (part[0] & part[2]).float() + part.sum() ** 2


def test_the_terms_of_an_additive_model_have_no_error():
    assert exchange_error(TERMS, additive) == pytest.approx(0)
    assert exchange_error(3 * TERMS, additive) == pytest.approx(0)


def test_a_curve_of_the_size_alone_changes_no_error():
    assert exchange_error(TERMS, lambda part: additive(part) + 7 * part.sum() ** 2) < 1e-12


@pytest.mark.parametrize("each", [1.0, -1.0, 0.3, 0.0])
def test_equal_scores_have_an_error_of_one(each):
    assert exchange_error(torch.full((3,), each), interacting) == pytest.approx(1, abs=1e-12)


def test_a_reversed_explanation_is_as_bad_as_equal_scores():
    assert exchange_error(-TERMS, additive) == 1


@pytest.mark.parametrize("seed", range(5))
def test_the_error_is_that_of_least_squares_over_all_exchanges(seed):
    relevance = torch.randn(3, generator=torch.Generator().manual_seed(seed))
    moved = [float(interacting(s) - interacting(t)) for s, t in PAIRS]
    told = [float((relevance * s).sum() - (relevance * t).sum()) for s, t in PAIRS]
    candidates = np.linspace(0, 20, 200_001)  # factors that are not negative
    squares = [np.dot(x, y) for x, y in ((moved, moved), (moved, told), (told, told))]
    errors = squares[0] - 2 * candidates * squares[1] + candidates**2 * squares[2]
    assert exchange_error(relevance, interacting) == pytest.approx(errors.min() / squares[0])


def test_random_scores_of_many_nodes_have_an_error_of_about_one():
    generator = torch.Generator().manual_seed(0)
    terms = torch.randn(40, generator=generator)
    coalitions = random_coalitions(40, 64)
    values = (terms * coalitions).sum(1)[:, None]
    ends = torch.zeros(2, 1)
    errors = [
        METRICS["exchange_error"].measure(
            Series(
                torch.randn(40, generator=generator),
                torch.tensor([0, 40]),
                torch.tensor([0.0, 1.0]),
                *(ends, ends, ends),
                None,
                coalitions,
                values,
            )
        )
        for _ in range(100)
    ]
    assert np.mean(errors) == pytest.approx(0.97, abs=0.03)


def test_without_an_effect_of_exchanges_there_is_no_error():
    assert np.isnan(exchange_error(TERMS, lambda part: 2.0 * part.sum()))


def test_the_share_of_the_size_is_that_of_the_variance_between_sizes():
    """Of many coalitions, it is 1 - (mean variance at one size) / (variance of all)."""
    coalitions = random_coalitions(3, 40_000)
    values = np.array([float(interacting(part)) for part in ALL])
    sizes = ALL.sum(1).numpy()
    weights = np.array([1 / 4 / (sizes == k).sum() for k in sizes])  # sizes are equally likely
    within = sum(values[sizes == k].var() / 4 for k in range(4))
    total = weights @ values**2 - (weights @ values) ** 2
    share = size_share(series(TERMS, interacting, coalitions))
    assert share == pytest.approx(1 - within / total, abs=0.01)


def test_neighbouring_coalitions_have_one_size_and_sizes_are_equally_likely():
    sizes = random_coalitions(4, 20_000).sum(1)
    assert torch.equal(sizes[::2], sizes[1::2])
    share = sizes.bincount(minlength=5) / len(sizes)
    torch.testing.assert_close(share, torch.full((5,), 0.2), atol=0.012, rtol=0)


class Sum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(2, 1)

    def forward(self, x, edge_index, batch):
        out = x.new_zeros(int(batch.max()) + 1, 2).index_add(0, batch, x)
        return self.head(out)


GRAPH = Data(
    x=torch.randn(6, 2, generator=torch.Generator().manual_seed(1)),
    edge_index=torch.tensor([[0, 1], [1, 0]]),
)


def test_shapley_values_of_a_sum_have_no_error_in_a_report(tmp_path):
    torch.manual_seed(0)  # an estimate of a share of nearly 0 may be below it
    model = gx.wrap(Sum().eval(), kind="binary")
    report = gx.evaluate(model, [GRAPH], ["shapley_sampling"], metrics=["exchange_error"])
    values = report.values("exchange_error")
    assert values["shapley_sampling"] == pytest.approx([0], abs=1e-9)
    assert values["ones"] == values["reverse"] == 1
    assert values["random"][0] > 0.01
    assert report.metrics() == ("exchange_error",)
    share = report.size_share()
    assert share.n == 1
    assert 0 <= share.mean < 1
    said = f"the number of nodes alone explains {share} of the variance"
    assert said in report.save(tmp_path).joinpath("summary.md").read_text(encoding="utf-8")


# -- the old measure, which works for one minor version ----------------------------------------


def test_partial_sums_still_work_and_say_why_not_to_use_them():
    model = gx.wrap(Sum().eval(), kind="binary")
    old = ["partial_sums", "partial_sums_scaled"]
    with pytest.warns(FutureWarning, match="equal ones. Take 'exchange_error'") as warned:
        report = gx.evaluate(model, [GRAPH], ["shapley_sampling"], metrics=old)
    assert {warning.filename for warning in warned} == {__file__}
    for metric in old:
        values = report.values(metric)
        assert values["shapley_sampling"] == pytest.approx([0], abs=1e-9)
        assert values["random"][0] > 0.01


def test_no_relevance_has_the_error_of_the_gains():
    # gains have the mean sum(t) / 2 and the variance sum(t^2) / 4 over all coalitions
    mean, variance = float(TERMS.sum()) / 2, float(TERMS.square().sum()) / 4
    error = METRICS["partial_sums"].measure(series(torch.zeros(3), additive, ALL))
    assert error == pytest.approx((variance + mean**2) / variance)


def test_shares_of_an_interaction_miss_what_no_sum_can_hold():
    """v = 1 if the first two are there: halves err by 1/2 where one is there, in half of all."""
    of_both = series(torch.tensor([0.5, 0.5, 0.0]), lambda part: (part[0] & part[1]).float(), ALL)
    assert METRICS["partial_sums"].measure(of_both) == pytest.approx((0.25 / 2) / (3 / 16))
