"""Scores against ground truth agree with scikit-learn, SciPy and counting by hand."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr

from graphxai import explain, load, pairs, predict
from graphxai.datasets.mnist import read_digit
from graphxai.datasets.rules import RULES
from graphxai.datasets.samples import digit_paths
from graphxai.evaluation.ground_truth import (
    COLUMNS,
    evaluate_bonds,
    evaluate_nothing,
    evaluate_truth,
    model_score,
)
from graphxai.evaluation.ground_truth_report import detail
from graphxai.evaluation.truth_metrics import (
    NODE_METRICS,
    PIXEL_METRICS,
    SHARE_METRICS,
    average_precision,
    bond_scores,
    iou,
    iou_top_k,
    mean_average_precision,
    mean_iou,
    metrics_for,
    outstanding,
    pearson,
    pixel_accuracy,
    precision_at,
    rank_correlation,
    roc_auc,
    token_f1,
    top_k_precision,
    undefined,
)
from graphxai.explainers import GradientInput
from graphxai.explainers.edge_shapley import edge_shapley
from ground_truth_tasks import stroke_pixels, stroke_segments
from toy import random_graphormer

# Few distinct values, so that ties are common.
scored_nodes = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=12)


@pytest.fixture(scope="module")
def sklearn():
    return pytest.importorskip("sklearn.metrics")


def split_pairs(pairs: list[tuple[int, bool]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([r for r, _ in pairs], float), np.array([t for _, t in pairs], bool)


@given(scored_nodes)
def test_rank_scores_agree_with_scikit_learn(sklearn, pairs: list[tuple[int, bool]]) -> None:
    relevance, truth = split_pairs(pairs)
    if truth.any() and not truth.all():
        expected = sklearn.roc_auc_score(truth, relevance)
        assert roc_auc(relevance, truth) == pytest.approx(expected, abs=1e-12)
        expected = sklearn.average_precision_score(truth, relevance)
        assert average_precision(relevance, truth) == pytest.approx(expected, abs=1e-12)


@given(scored_nodes)
def test_overlaps_agree_with_scikit_learn(sklearn, pairs: list[tuple[int, bool]]) -> None:
    relevance, truth = split_pairs(pairs)
    if truth.any() and not truth.all():
        chosen = relevance > relevance.mean()
        assert iou(relevance, truth) == pytest.approx(sklearn.jaccard_score(truth, chosen))
        both = sklearn.jaccard_score(truth, chosen, average=None, labels=[False, True])
        assert mean_iou(relevance, truth) == pytest.approx(both.mean())
        accuracy = sklearn.accuracy_score(truth, chosen)
        assert pixel_accuracy(relevance, truth) == pytest.approx(accuracy)


@given(scored_nodes)
def test_top_k_precision_is_the_mean_over_all_ways_to_choose_among_ties(
    pairs: list[tuple[int, bool]],
) -> None:
    relevance, truth = split_pairs(pairs)
    if not truth.any() or truth.all():
        return
    k = int(truth.sum())
    sets = [list(chosen) for chosen in combinations(range(len(truth)), k)]
    totals = np.array([relevance[chosen].sum() for chosen in sets])
    best = [truth[s].mean() for s, total in zip(sets, totals, strict=True) if total == totals.max()]
    assert top_k_precision(relevance, truth) == pytest.approx(np.mean(best))


@given(scored_nodes)
def test_correlations_agree_with_scipy(pairs: list[tuple[int, bool]]) -> None:
    relevance, _ = split_pairs(pairs)
    shares = np.sin(np.arange(len(relevance)) * 2.0) + 0.3 * relevance
    if np.ptp(relevance) == 0:
        assert math.isnan(pearson(relevance, shares))
        return
    assert pearson(relevance, shares) == pytest.approx(pearsonr(relevance, shares)[0], abs=1e-9)
    expected = spearmanr(relevance, shares)[0]
    assert rank_correlation(relevance, shares) == pytest.approx(expected, abs=1e-9)


def test_scores_worked_out_by_hand() -> None:
    relevance, truth = [4.0, 3.0, 2.0, 1.0], [True, False, True, False]
    assert roc_auc(relevance, truth) == 3 / 4  # of four pairs one is the wrong way round
    assert average_precision(relevance, truth) == pytest.approx((1 / 1 + 2 / 3) / 2)
    assert top_k_precision(relevance, truth) == 1 / 2
    assert iou(relevance, truth) == 1 / 3  # above the mean 2.5: the first two nodes
    assert iou_top_k(relevance, truth) == 1 / 3
    assert pixel_accuracy(relevance, truth) == 1 / 2
    assert mean_iou(relevance, truth) == 1 / 3
    background = (1 / 1 + 2 / 3) / 2  # from the least relevant upwards: background, stroke, ...
    expected = ((1 / 1 + 2 / 3) / 2 + background) / 2
    assert mean_average_precision(relevance, truth) == pytest.approx(expected)


TRUTH = np.array([True, False, False, True, False, False])
SHARES = np.array([0.5, -0.2, 0.1, 0.4, -0.9, 0.0])


@pytest.mark.parametrize("metric", [*NODE_METRICS.values(), *PIXEL_METRICS.values()])
def test_a_perfect_explanation_scores_one(metric) -> None:
    assert metric(TRUTH.astype(float), TRUTH) == pytest.approx(1)


@pytest.mark.parametrize("name", ["roc_auc", "top_k_precision", "iou", "iou_top_k"])
def test_an_inverted_explanation_scores_zero(name: str) -> None:
    assert NODE_METRICS[name](-TRUTH.astype(float), TRUTH) == 0


def test_inverted_shares_correlate_with_minus_one() -> None:
    for metric in SHARE_METRICS.values():
        assert metric(2 * SHARES + 1, SHARES) == pytest.approx(1)
        assert metric(-SHARES, SHARES) == pytest.approx(-1)


@pytest.mark.parametrize("metric", [*NODE_METRICS.values(), *PIXEL_METRICS.values()])
def test_scores_do_not_depend_on_the_order_of_nodes(metric) -> None:
    relevance = np.array([1.0, 1.0, 0.0, 0.0, 0.0, 2.0])
    order = [5, 3, 1, 0, 4, 2]
    value = metric(relevance, TRUTH)
    assert metric(relevance[order], TRUTH[order]) == pytest.approx(value, abs=1e-12)


def test_with_nothing_to_distinguish_there_is_a_reason_and_no_score() -> None:
    for truth, reason in (([False] * 3, "nothing is true"), ([True] * 3, "everything is true")):
        assert undefined(truth) == reason
        for metric in (*NODE_METRICS.values(), *PIXEL_METRICS.values()):
            assert math.isnan(metric([1.0, 2.0, 3.0], truth))
    assert undefined([0.3, 0.3]) == "every share is the same"
    assert undefined(TRUTH) == undefined(SHARES) == ""


def test_values_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        roc_auc([1.0, np.nan], [True, False])
    with pytest.raises(ValueError, match=r"\(3,\).*\(2,\)"):
        iou([1.0, 2.0, 3.0], [True, False])
    with pytest.raises(ValueError, match="must be bool"):
        roc_auc([1.0, 2.0], [0, 1])
    with pytest.raises(ValueError, match="not finite"):
        pearson([1.0, 2.0], [np.inf, 0.0])
    with pytest.raises(ValueError, match="int64"):
        metrics_for([0, 1])


MOLECULES = ["Clc1ccccc1", "CCO", "C1CC", "FC(F)F"]


def test_rows_contain_the_scores_of_each_graph() -> None:
    model = random_graphormer()
    truths = [RULES["halogen"].truth(s) for s in ("Clc1ccccc1", "CCO", "CCC", "FC(F)F")]
    rows = evaluate_truth(model, MOLECULES, truths, ["gradient_input"], progress=False)
    assert tuple(rows.columns) == COLUMNS
    assert rows.method.unique().tolist() == ["gradient_input", "random", "ones", "reverse"]
    assert set(rows.operator) == {"none"}
    assert len(rows) == 4 * 4 * len(NODE_METRICS)
    for graph in (0, 3):
        relevance = explain(model, MOLECULES[graph], "gradient_input").relevance
        graph_rows = rows[(rows.graph == graph) & (rows.method == "gradient_input")]
        for name, metric in NODE_METRICS.items():
            assert graph_rows[graph_rows.metric == name].value.item() == pytest.approx(
                metric(relevance, truths[graph])
            )
        assert set(graph_rows.note) == {""}
    assert rows[rows.graph == 1].value.isna().all()
    assert set(rows[rows.graph == 1].note) == {"nothing is true"}
    assert rows[rows.graph == 2].value.isna().all()
    assert rows[rows.graph == 2].note.str.startswith("left out: 'C1CC'").all()


def test_shares_are_scored_for_the_target_asked_for() -> None:
    model = random_graphormer()
    smiles = "CC(=O)Oc1ccccc1C(=O)O"
    truth = RULES["logp"].truth(smiles)
    rows = evaluate_truth(model, [smiles], [truth], ["lrp"], target="pIC50", progress=False)
    relevance = explain(model, smiles, "lrp", target="pIC50").relevance
    value = rows[(rows.method == "lrp") & (rows.metric == "pearson")].value.item()
    assert value == pytest.approx(np.corrcoef(relevance, truth)[0, 1])


def test_a_truth_that_does_not_fit_is_named() -> None:
    model = random_graphormer()
    with pytest.raises(ValueError, match="2 inputs, but 1 truths"):
        evaluate_truth(model, ["C", "CC"], [[True]], ["lrp"])
    with pytest.raises(ValueError, match=r"graph 1.*\(3,\).*\(2,\)"):
        evaluate_truth(model, ["C", "CC"], [[True], [True, False, False]], ["lrp"])
    with pytest.raises(ValueError, match="pixels"):
        evaluate_truth(model, ["CC"], [[[True, False]]], ["lrp"])
    with pytest.raises(ValueError, match="given twice"):
        evaluate_truth(model, ["CC"], [[True, False]], ["lrp", "lrp"])


class Constant(GradientInput):
    """A method that gives every node the same relevance."""

    name = "constant"

    def _attribute(self, model, batch, target):
        attribution = super()._attribute(model, batch, target)
        attribution.relevance[:] = 0.5
        return attribution


def test_constant_relevance_has_no_correlation_and_says_so() -> None:
    shares = RULES["logp"].truth("CCO")
    rows = evaluate_truth(random_graphormer(), ["CCO"], [shares], [Constant()], progress=False)
    assert rows[rows.method == "constant"].value.isna().all()
    assert set(rows[rows.method == "constant"].note) == {"relevance is constant"}
    assert set(rows[rows.method == "random"].note) == {""}


class Broken(GradientInput):
    """A method whose relevance is not a number."""

    name = "broken"

    def _attribute(self, model, batch, target):
        attribution = super()._attribute(model, batch, target)
        attribution.relevance[:] = math.nan
        return attribution


def test_a_method_without_finite_relevance_is_named() -> None:
    with pytest.raises(ValueError, match=r"graph 0, method 'broken'.*not finite"):
        evaluate_truth(random_graphormer(), ["CC"], [[True, False]], [Broken()], progress=False)


def test_intensity_itself_finds_the_stroke_of_a_digit() -> None:
    model = load("mnist-superpixels")
    images = [read_digit(path) for path in digit_paths()[:3]]
    rows = evaluate_truth(
        model, images, [stroke_pixels(i) for i in images], ["lrp"], progress=False
    )
    assert rows.metric.unique().tolist() == list(PIXEL_METRICS)
    assert rows.value.between(0, 1).all()
    explanation = explain(model, images[0], "lrp")
    nodes = stroke_segments(images[0], explanation.segments)
    node_rows = evaluate_truth(model, images[:1], [nodes], ["lrp"], progress=False)
    value = node_rows[(node_rows.method == "lrp") & (node_rows.metric == "roc_auc")].value.item()
    assert value == pytest.approx(roc_auc(explanation.relevance, nodes))
    # The mean ink of its superpixel distinguishes a stroke pixel from the background.
    ink = np.bincount(explanation.segments.ravel(), images[0].ravel()) / np.bincount(
        explanation.segments.ravel()
    )
    assert mean_average_precision(ink[explanation.segments], stroke_pixels(images[0])) > 0.9


def test_the_models_own_score_is_shown(sklearn) -> None:
    model = random_graphormer()
    smiles = ["Clc1ccccc1", "CCO", "FC(F)F", "c1ccccc1", "CC(=O)O", "CCN"]
    labels = [1, 0, 1, 0, 1, 0]
    predictions = predict(model, smiles)
    probability = [p["activity"].probabilities["active"] for p in predictions]
    name, value = model_score(model, smiles, labels)
    assert name == "ROC-AUC"
    assert value == pytest.approx(sklearn.roc_auc_score(labels, probability))
    potency = [p["pIC50"].value for p in predictions]
    name, value = model_score(model, smiles, labels, target="pIC50")
    assert name == "R2"
    assert value == pytest.approx(sklearn.r2_score(labels, potency), rel=1e-5)
    assert math.isnan(model_score(model, smiles[:2], [1, 1])[1])
    with pytest.raises(ValueError, match="labels of shape"):
        model_score(model, smiles, [1])


def test_a_flat_explanation_of_nothing_has_no_false_positive():
    assert outstanding(np.full(9, 0.3) + 1e-9 * np.arange(9)) == 0
    assert outstanding(np.arange(9.0)) == 0
    assert outstanding([0, 0.1, 0, 0.1, 0, 0.1, 0, 0.1, 5]) == pytest.approx(1 / 9)
    assert outstanding([0, 0.1, 0, 0.1, 0, 0.1, 0, 0.1, -5]) == 0


def test_bonds_are_scored_by_their_atoms():
    chain = np.array([[0, 1], [1, 2], [2, 3]])
    np.testing.assert_allclose(bond_scores([1, 3, 5, -1], chain), [2, 4, 2])
    model = random_graphormer()
    truth = np.array([False, False, True])
    rows = evaluate_truth(
        model,
        ["CCO"],
        [truth],
        [custom_numbers],
        bonds=[(chain[:2], [False, True])],
        progress=False,
    )
    scores = rows[rows.method == "custom_numbers"].set_index("metric").value
    assert scores["bond_roc_auc"] == scores["roc_auc"] == 1


def test_false_positives_are_counted_where_nothing_is_true():
    rows = evaluate_nothing(random_graphormer(), ["C" * 9 + "O", "C" * 9], [custom_numbers])
    shares = rows[rows.method == "custom_numbers"].set_index("graph").value
    assert shares.to_dict() == {0: 0.1, 1: 0.0}


def test_false_positives_are_counted_among_bonds_too():
    chain = np.array([[k, k + 1] for k in range(9)])
    rows = evaluate_nothing(
        random_graphormer(), ["C" * 9 + "O", "C"], [custom_numbers], ends=[chain, chain[:0]]
    )
    bond_rows = rows[(rows.method == "custom_numbers") & (rows.metric == "bond_false_positives")]
    assert bond_rows.set_index("graph").value.to_dict() == {0: pytest.approx(1 / 9)}


def test_methods_may_give_bonds_a_relevance_of_their_own():
    def third(model, inputs, ends, target):
        return [np.arange(len(graph_ends)) == 2.0 for graph_ends in ends]

    chain = np.array([[k, k + 1] for k in range(9)])
    bonds = [(chain, chain[:, 0] == 2), (chain, np.zeros(9, bool))]
    rows = evaluate_bonds(random_graphormer(), ["C" * 10] * 2, bonds, methods={"third": third})
    scores = rows.set_index(["graph", "metric"]).value.to_dict()
    assert scores == {
        (0, "bond_roc_auc"): 1,
        (0, "bond_average_precision"): 1,
        (1, "bond_false_positives"): pytest.approx(1 / 9),
    }


def test_a_bond_is_scored_by_its_shapley_value_and_by_what_its_atoms_read_from_each_other():
    model, smiles = random_graphormer(), "CC(=O)N"
    ends, true = np.array([[2, 1], [0, 1], [1, 3]]), np.array([True, False, False])
    rows = evaluate_bonds(model, [smiles], [(ends, true)], target="pIC50")
    scores = rows[rows.metric == "bond_roc_auc"].set_index("method").value
    (shapley,) = edge_shapley(model, [smiles], "pIC50")
    between = pairs(model, smiles, target="pIC50").matrix[1:, 1:]
    values = dict(zip(map(tuple, shapley.edges.tolist()), shapley.values, strict=True))
    bond_values = [values[1, 2], values[0, 1], values[1, 3]]
    assert scores["edge_shapley"] == roc_auc(bond_values, true)
    assert scores["pairs"] == roc_auc([between[a, b] + between[b, a] for a, b in ends], true)


def custom_numbers(model, batch, target):
    """Score nodes by their atomic number, (B, N)."""
    return batch.x[..., 0].float()


@pytest.mark.parametrize("k", [1, 3, 5, 50])
def test_token_f1_of_the_top_nodes_agrees_with_scikit_learn(k: int) -> None:
    """As in figure 4 of Chefer 2021b, where a token is in the rationale if it is in the top k."""
    metrics = pytest.importorskip("sklearn.metrics")
    generator = np.random.default_rng(k)
    relevance, truth = generator.permutation(40).astype(float), generator.random(40) < 0.3
    chosen = relevance >= np.sort(relevance)[-min(k, 40)]
    assert token_f1(relevance, truth, k) == pytest.approx(metrics.f1_score(truth, chosen))
    assert precision_at(relevance, truth, k) == pytest.approx(
        metrics.precision_score(truth, chosen)
    )


def test_ties_at_the_end_of_the_top_are_averaged() -> None:
    truth = np.array([True, False, False, True])
    assert precision_at([2.0, 1.0, 1.0, 1.0], truth, 2) == pytest.approx((1 + 1 / 3) / 2)
    assert np.isnan(token_f1(np.zeros(3), np.zeros(3, bool), 2))
    with pytest.raises(ValueError, match="at least 1"):
        precision_at(np.zeros(4), truth, 0)


def test_a_table_may_have_the_top_nodes_and_says_how_long_methods_took() -> None:
    truths = [np.array([True, False, False]), np.array([True, False, True, False])]
    rows = evaluate_truth(load("bace"), ["CCO", "CC(=O)O"], truths, ["lrp"], top=(1, 2))
    wanted = {f"{name}_{k}" for name in ("precision_at", "token_f1") for k in (1, 2)}
    assert wanted <= set(rows.metric)
    seconds = rows.attrs["seconds"]
    assert seconds.keys() == {"lrp", "random", "ones", "reverse"}
    table = detail(rows, seconds)
    assert "| ms | passes |" in table
    assert "| 1 forward, 1 backward |" in table
    assert "passes" not in detail(rows)
