"""Values of which only a bound is known: how they are read, learned, taught and scored."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import norm, truncnorm

from graphxai.contract.tasks import Task
from graphxai.learning.cleaning import clean_table
from graphxai.learning.scores import SPREAD, Objective, censored_loss, kept_bounds, score_test_part
from graphxai.learning.splitting import bound_text
from graphxai.learning.teachers.forests import expected_within, filled_labels
from graphxai.models.graphormer.encoding import StructureEncoding, collate

INF = float("inf")


def test_the_loss_is_the_censored_likelihood():
    values = torch.linspace(-3, 3, 13, dtype=torch.float64)
    above = torch.tensor([0.5, INF], dtype=torch.float64).expand(13, 2)
    expected = -2 * SPREAD**2 * norm.logsf(0.5, loc=values.numpy(), scale=SPREAD)
    np.testing.assert_allclose(censored_loss(values, above), expected, atol=1e-12)
    below = torch.tensor([-INF, 0.5], dtype=torch.float64).expand(13, 2)
    expected = -2 * SPREAD**2 * norm.logcdf(0.5, loc=values.numpy(), scale=SPREAD)
    np.testing.assert_allclose(censored_loss(values, below), expected, atol=1e-12)


def test_far_outside_a_bound_the_loss_is_the_squared_distance_and_has_a_gradient():
    value = torch.tensor([-40.0], requires_grad=True)
    loss = censored_loss(value, torch.tensor([[1.0, INF]]))
    assert float(loss) == pytest.approx(41.0**2, rel=0.01)
    loss.sum().backward()
    assert float(value.grad) == pytest.approx(-2 * 41, rel=0.01)


def test_bounds_count_only_where_nothing_was_measured():
    objective = Objective([Task("y", "regression", (), "", 2.0, 4.0), Task("z", "regression")])
    outputs = torch.tensor([[0.5, 0.0], [0.5, 0.0]], requires_grad=True)
    y = torch.tensor([[6.0, float("nan")], [float("nan"), float("nan")]])
    bounds = torch.tensor([[[6.0, INF], [-INF, INF]], [[6.0, INF], [-INF, INF]]])
    limits = torch.tensor([[1.0, INF]])  # (6 - 2) / 4
    expected = (0.25 + censored_loss(torch.tensor([0.5]), limits)[0]) / 2
    loss = objective(outputs, y, bounds)
    assert float(loss) == pytest.approx(float(expected))
    loss.backward()
    assert outputs.grad.isfinite().all()
    assert float(objective(outputs, y)) == pytest.approx(0.25)


def test_the_expected_value_is_the_mean_of_a_truncated_normal():
    predicted = np.array([-2.0, 0.0, 1.0, 5.0, 5.0, 0.0])
    bounds = np.array([[1, INF], [1, INF], [-INF, 1], [-INF, 1], [2, 3], [-1, 0.5]])
    low, high = bounds.T
    expected = truncnorm.mean((low - predicted) / 0.7, (high - predicted) / 0.7, predicted, 0.7)
    np.testing.assert_allclose(expected_within(predicted, 0.7, bounds), expected, atol=1e-6)
    far = expected_within(np.array([-1e3, 1e3]), 0.7, np.array([[1, INF], [-INF, 1]]))
    np.testing.assert_allclose(far, [1, 1], atol=1e-2)


def test_filled_labels_lie_within_their_bounds_and_nearer_the_truth_than_the_bound():
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 2, (200, 12)).astype(np.float32)
    truth = inputs @ np.linspace(1, 2, 12) + 0.3 * rng.standard_normal(200)
    ceiling = np.quantile(truth, 0.6)
    y = np.where(truth > ceiling, np.nan, truth)
    bounds = np.where((truth > ceiling)[:, None], [ceiling, INF], [-INF, INF])
    task = Task("y", "regression")
    filled = filled_labels([task], inputs, y[:, None], bounds[:, None], seed=0)[:, 0]
    censored = np.isnan(y)
    assert (filled[~censored] == y[~censored]).all()
    assert (filled[censored] >= ceiling).all()
    error = np.abs(filled - truth)[censored].mean()
    assert error < 0.8 * np.abs(ceiling - truth)[censored].mean()


@pytest.fixture
def table(tmp_path):
    rows = [f"{'C' * k}O,{k / 2}" for k in range(1, 31)]
    rows += ["CCN,>20", "CCCN,<0.5", "CCCCN,≥ 18", "NCCC,<0.4", "CCF,>3", "FCC,<2", "CCCl,~4"]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["smiles,y", *rows]), encoding="utf-8")
    return clean_table(path, "smiles", ["y"])


def test_a_compound_with_a_bound_alone_is_learned_from(table):
    by_smiles = dict(zip(table.canonical, table.bounds[:, 0].tolist(), strict=True))
    assert by_smiles["CCN"] == [20, INF]
    assert by_smiles["CCCN"] == [-INF, pytest.approx(0.4)]  # the tighter of two
    assert by_smiles["CCCCN"] == [18, INF]
    assert by_smiles["CCO"] == [-INF, INF]  # measured
    assert not {"CCF", "CCCl"} & set(by_smiles)  # contradictory, and without a side
    assert str(table.targets[0]).endswith("30 values from 0.5 to 15, and 3 bounds")
    (finding,) = (f for f in table.findings if f.check == "bounds instead of values")
    assert finding.count == 7
    assert finding.done.startswith("learned as bounds, such as '>20'")
    assert "contradict each other" in finding.done


def test_batches_carry_bounds_also_beside_graphs_without_any(table):
    encode = StructureEncoding()
    graphs = [encode(graph.clone()) for graph in table.graphs[-2:]]
    del graphs[0].bounds
    batch = collate(graphs)
    assert batch.bounds.shape == (2, 1, 2)
    assert batch.bounds[0].isinf().all()
    assert batch.bounds[1].isfinite().any()


def test_predictions_within_bounds_are_counted():
    bounds = np.array([[5, INF], [-INF, 1], [-INF, INF], [5, INF]])
    kept = kept_bounds({"a": np.array([6.0, 2.0, 9.0, 4.0])}, bounds)
    assert kept == {"n": 3, "kept": {"a": pytest.approx(1 / 3)}}
    assert kept_bounds({"a": np.zeros(1)}, bounds[2:3]) is None
    assert [bound_text(b) for b in ((10, INF), (-INF, 0.1), (-INF, INF))] == [">10", "<0.1", ""]


def test_a_task_is_scored_only_if_it_was_learned_and_tested():
    """Also if it has bounds alone in one part, of which the kept ones are counted where learned."""
    absent, labels = np.full(3, np.nan), np.array([1.0, 2.0, 4.0])
    tasks = [Task(name, "regression") for name in ("both", "learned", "tested")]
    bounds = np.full((3, 3, 2), (-INF, INF))
    bounds[0] = [5, INF]
    source = SimpleNamespace(
        tasks=tasks,
        labelled="molecules",
        train=SimpleNamespace(y=np.stack([labels, labels, absent], axis=1)),
        test=SimpleNamespace(y=np.stack([labels, absent, labels], axis=1), bounds=bounds),
    )
    scores = score_test_part(source, {"model": dict.fromkeys(range(3), labels + 1)})
    assert scores["both"]["scores"]["model"]["MAE"][0] == pytest.approx(1)
    assert scores["both"]["scores"]["dummy"]["MAE"][0] == pytest.approx(10 / 9)
    for name in ("learned", "tested"):
        assert (scores[name]["n"], scores[name]["scores"]) == (0, {})
    assert scores["learned"]["bounds"] == {"n": 1, "kept": {"model": 0.0}}
    assert "bounds" not in scores["tested"]
