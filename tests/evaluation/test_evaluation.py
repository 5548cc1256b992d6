"""Node removal, curves and statistics agree with loops, formulas and other libraries."""

import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from itertools import permutations
from pathlib import Path
from statistics import harmonic_mean

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import graphxai as gx
from graphxai.contract.target import Target
from graphxai.contract.tasks import Task
from graphxai.datasets.molecules import molecule_to_data
from graphxai.datasets.samples import MOLECULES
from graphxai.evaluation import (
    METRICS,
    OPERATORS,
    Series,
    bootstrap,
    compare_pairs,
    conservation,
    holm,
    node_series,
    outputs_of_parts,
)
from graphxai.evaluation.best_ordering import best_areas
from graphxai.evaluation.curves import node_counts, random_coalitions
from graphxai.evaluation.statistics import Comparison, Interval
from graphxai.explainers import get_explainer
from graphxai.models.graphormer import StructureEncoding, collate
from resident_memory import curve_memory_mb
from toy import random_graphormer

REMOVED_BY = [name for name in OPERATORS if name != "resample"]  # which needs fitted atoms
SMILES = "CC(=O)Oc1ccccc1C(=O)O"


def encoded(model, smiles=SMILES):
    return StructureEncoding.from_config(model.config)(molecule_to_data(smiles))


def choices(n, count=9):
    keep = torch.rand(count, n, generator=torch.Generator().manual_seed(1)) < 0.6
    keep[0], keep[1] = True, False
    return keep


@pytest.mark.parametrize("operator", REMOVED_BY)
def test_all_choices_at_once_equal_one_pass_each(operator, monkeypatch):
    model = random_graphormer()
    data = encoded(model)
    keep = choices(data.num_nodes)
    together = outputs_of_parts(model, data, keep, operator)
    monkeypatch.setattr("graphxai.contract.batching.CACHED_PAIRS", 1)  # one choice a pass
    alone = outputs_of_parts(model, data, keep, operator)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)
    full = model(collate([data])).detach()
    torch.testing.assert_close(together[:1], full, atol=1e-5, rtol=1e-4)


def test_masked_nodes_are_excluded_from_every_attention():
    model = random_graphormer()
    data = encoded(model)
    keep = choices(data.num_nodes)
    batch = collate([data])
    with torch.no_grad():
        expected = [model.encode(model.embed(batch), batch, k[None])[0] for k in keep]
    torch.testing.assert_close(
        outputs_of_parts(model, data, keep, "mask"), torch.stack(expected), atol=1e-5, rtol=1e-4
    )


def test_zeroed_nodes_keep_their_token():
    model = random_graphormer()
    data = encoded(model)
    keep = torch.ones(1, data.num_nodes, dtype=torch.bool)
    keep[0, 4] = False
    batch = collate([data])
    with torch.no_grad():
        tokens = model.embed(batch)
        tokens[0, 5] = 0.0
        expected = model.encode(tokens, batch)
    torch.testing.assert_close(outputs_of_parts(model, data, keep, "zero"), expected)


def test_a_deleted_node_leaves_the_smaller_molecule():
    """Without its oxygen atom, hexanol's graph is hexane's except for one carbon's features."""
    model = random_graphormer()
    data, smaller = encoded(model, "CCCCCCO"), molecule_to_data("CCCCCC")
    smaller.x = data.x[:6]
    expected = model(collate([StructureEncoding.from_config(model.config)(smaller)]))
    keep = torch.tensor([[True] * 6 + [False]])
    outputs = outputs_of_parts(model, data, keep, "delete")
    torch.testing.assert_close(outputs, expected.detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("operator", REMOVED_BY)
def test_curves_equal_a_loop_over_nodes(operator):
    model = random_graphormer()
    data = encoded(model)
    n = data.num_nodes
    relevance = torch.linspace(-1, 1, n)[torch.randperm(n, generator=torch.Generator())]
    series = node_series(model, data, relevance, Target("inactive"), operator=operator)
    full = model(collate([data]))[0, 0].item()
    joined, rest, left = [], [], []
    for k in range(n + 1):
        keep = torch.zeros(1, n, dtype=torch.bool)
        keep[0, sorted(range(n), key=lambda i: -relevance[i].item())[:k]] = True
        z = outputs_of_parts(model, data, keep, operator)[0, 0].item()
        joined.append(1 / (1 + np.exp(z)))  # the probability of "inactive"
        z = outputs_of_parts(model, data, ~keep, operator)[0, 0].item()
        rest.append(1 / (1 + np.exp(z)))
        keep = torch.ones(1, n, dtype=torch.bool)
        keep[0, sorted(range(n), key=lambda i: abs(relevance[i].item()))[:k]] = False
        z = outputs_of_parts(model, data, keep, operator)[0, 0].item()
        left.append(2 * ((z - full) / 2) ** 2)  # two classes with logits -z/2 and z/2
    np.testing.assert_allclose(series.with_top, joined, atol=1e-5)
    np.testing.assert_allclose(series.without_top, rest, atol=1e-5)
    np.testing.assert_allclose(series.distance, left, atol=1e-4)
    area = np.trapezoid(joined, np.linspace(0, 1, n + 1))
    assert METRICS["auac"].measure(series) == pytest.approx(area, abs=1e-5)
    tenths = [math.ceil(k * n / 10) for k in range(1, 10)]
    drops = np.mean([joined[-1] - rest[k] for k in tenths])
    assert METRICS["aopc"].measure(series) == pytest.approx(drops, abs=1e-5)
    odds = np.mean([np.log(rest[k] / joined[-1]) for k in tenths])
    assert METRICS["lodds"].measure(series) == pytest.approx(odds, abs=1e-4)
    bins = [math.ceil(k * n / 100) for k in (1, 5, 10, 20, 50)]
    missing = np.mean([joined[-1] - joined[k] for k in bins])
    assert METRICS["sufficiency"].measure(series) == pytest.approx(missing, abs=1e-5)
    lost = np.mean([joined[-1] - rest[k] for k in bins])
    assert METRICS["comprehensiveness"].measure(series) == pytest.approx(lost, abs=1e-5)


def test_of_nodes_with_equal_relevance_the_first_one_counts_first():
    model = random_graphormer()
    data = encoded(model)
    n = data.num_nodes
    signs = torch.tensor([1.0, -1.0]).repeat(n)[:n]
    falling, rising = torch.arange(n, 0.0, -1), torch.arange(1.0, n + 1)
    equal, alternating, by_position, by_size = (
        node_series(model, data, relevance, Target(), operator="zero")
        for relevance in (torch.ones(n), signs, falling, rising)
    )
    torch.testing.assert_close(equal.logits_with_top, by_position.logits_with_top)
    torch.testing.assert_close(equal.logits_without_top, by_position.logits_without_top)
    torch.testing.assert_close(alternating.logits_pruned, by_size.logits_pruned)
    assert not torch.allclose(by_position.logits_with_top, by_size.logits_with_top)


def test_the_characterisation_is_the_harmonic_mean_of_two_shares():
    counts = torch.arange(11)
    first, second = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    # Without the top 10 to 60 % the class changes, and so it does with the top 10 and 20 % alone.
    without_top = torch.stack([first if 1 <= k <= 6 else second for k in range(11)])
    with_top = torch.stack([first if 1 <= k <= 2 else second for k in range(11)])
    series = Series(torch.ones(10), counts, counts / 10, with_top, without_top, with_top, 1)
    assert METRICS["fidelity_plus"].measure(series) == pytest.approx(6 / 9)
    assert METRICS["fidelity_minus"].measure(series) == pytest.approx(2 / 9)
    expected = harmonic_mean([6 / 9, 7 / 9])
    assert METRICS["characterisation"].measure(series) == pytest.approx(expected)


def test_every_metric_names_the_direction_of_its_paper():
    """Errors, what is left of a prediction, and signs of a method that ignores the model."""
    lower_is_better = {name for name, metric in METRICS.items() if not metric.higher_is_better}
    assert lower_is_better == {
        "au_mse", "positive_perturbation", "lodds", "sufficiency", "fidelity_minus",
        "unfaithfulness", "exchange_error", "partial_sums", "partial_sums_scaled", "complexity",
        "max_sensitivity", "model_randomisation",
    }  # fmt: skip


def test_the_log_odds_of_an_impossible_class_are_those_of_a_probability_of_1e_12():
    """A probability of 0 would make the mean over a data set infinite."""
    sure, impossible = [[0.0, 200.0]], [[200.0, 0.0]]
    counts = torch.arange(11)
    fractions = counts / 10

    def log_odds(whole, rest):
        with_top = torch.tensor(rest * 10 + whole)  # (11, 2)
        without_top = torch.tensor(whole + rest * 10)
        series = Series(torch.ones(10), counts, fractions, with_top, without_top, with_top, 1)
        return METRICS["lodds"].measure(series)

    assert log_odds(sure, impossible) == pytest.approx(math.log(1e-12))
    assert log_odds(impossible, sure) == pytest.approx(-math.log(1e-12))
    assert log_odds(impossible, impossible) == 0


def test_eleven_steps_take_the_ceiling():
    assert node_counts(13, 11).tolist() == [0, 2, 3, 4, 6, 7, 8, 10, 11, 12, 13]
    assert node_counts(10, 11).tolist() == list(range(11))
    assert node_counts(3).tolist() == [0, 1, 2, 3]


def test_a_curve_of_values_keeps_their_unit_and_starts_at_the_empty_graph():
    task = Task("logS", "regression", offset=-3.0, scale=2.0)
    model = random_graphormer(tasks=(task,))
    data = encoded(model)
    series = node_series(model, data, torch.arange(float(data.num_nodes)), Target())
    ends = torch.tensor([[False], [True]]).expand(2, data.num_nodes)
    empty, full = (task.offset + task.scale * outputs_of_parts(model, data, ends)[:, 0]).tolist()
    assert series.with_top[0] == 0
    assert float(series.with_top[-1]) == pytest.approx(abs(full - empty), rel=1e-5)
    assert float(series.without_top[0]) == pytest.approx(abs(full - empty), rel=1e-5)
    assert series.without_top[-1] == pytest.approx(0, abs=1e-6)
    assert series.distance[0] == 0
    with pytest.raises(ValueError, match="'lodds' needs probabilities"):
        gx.evaluate(model, ["CCO"], metrics=["lodds"])


class Sum(torch.nn.Module):
    """The sum of the nodes' numbers and a constant, so that the numbers are the true relevance."""

    def __init__(self):
        super().__init__()
        self.constant = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, x, edge_index, batch):
        out = self.constant.expand(int(batch.max()) + 1, 1)
        return out.index_add(0, batch, x)


def test_a_perfect_explanation_of_a_value_beats_its_reverse_whether_the_value_rises_or_falls():
    ends = torch.tensor([[0, 1], [1, 0]])
    terms = [[3.0, -1.0, 0.5, -0.2], [-3.0, 1.0, -0.5, 0.2], [2.0, 1.0], [-2.0, -1.0, 2.5]]
    graphs = [Data(x=torch.tensor(of_graph)[:, None], edge_index=ends) for of_graph in terms]
    model = gx.wrap(Sum().eval(), kind="regression")
    larger = ("auac", "srg", "aopc", "comprehensiveness")

    def perfect(model, batch, target):
        return get_explainer("occlusion").attribute(model, batch, target).relevance

    def reverse(model, batch, target):
        return -perfect(model, batch, target)

    report = gx.evaluate(model, graphs, [perfect, reverse], metrics=[*larger, "sufficiency"])
    for metric in larger:
        values = report.values(metric)
        assert (values["perfect"] > values["reverse"]).all(), metric
    values = report.values("sufficiency")
    assert (values["perfect"] < values["reverse"]).all()
    # the value moves by 0, 3, 3.5, 3.3, 2.3 towards the end, whether it rises or falls
    area = (3 + 3.5 + 3.3 + 2.3 / 2) / 4
    assert report.values("auac")["perfect"][:2] == pytest.approx([area, area])


def test_curves_of_a_model_that_does_not_see_the_removal_are_undefined(tmp_path):
    class Constant(Sum):
        def forward(self, x, edge_index, batch):
            return self.constant.expand(int(batch.max()) + 1, 1) + 0 * x.sum()

    graph = Data(x=torch.rand(4, 1), edge_index=torch.tensor([[0, 1], [1, 0]]))
    for kind in ("regression", "binary"):
        model = gx.wrap(Constant().eval(), kind=kind)
        report = gx.evaluate(model, [graph], ["random"], metrics=["auac", "srg", "sparsity"])
        assert np.isnan(report.values("auac")["random"]).all()
        assert np.isnan(report.values("srg")["random"]).all()
        assert np.isfinite(report.values("sparsity")["random"]).all()
        assert "On 1 graph the output is the same without any node" in report.save(
            tmp_path / kind
        ).joinpath("summary.md").read_text(encoding="utf-8")


def test_coalitions_of_all_sizes_and_nodes_are_equally_likely():
    drawn = random_coalitions(4, 4000)  # 800 are expected of each size
    sizes = torch.bincount(drawn.sum(1), minlength=5)
    assert len(sizes) == 5
    assert (sizes - 800).abs().max() < 4 * 800**0.5
    of_two = drawn[drawn.sum(1) == 2].float().mean(0)  # each node is in half of them
    assert (of_two - 0.5).abs().max() < 0.08
    assert torch.equal(random_coalitions(4, 4000), drawn)


def test_a_graph_of_one_node_has_curves():
    model = random_graphormer()
    series = node_series(model, encoded(model, "C"), torch.tensor([1.0]), Target())
    assert series.fractions.tolist() == [0, 1]
    assert all(
        math.isfinite(metric.measure(series))
        for metric in METRICS.values()
        if metric.measure and not metric.coalitions
    )


@pytest.mark.parametrize(
    ("relevance", "message"),
    [(torch.zeros(5), r"shape \(5,\); the graph has 13"), (torch.full((13,), np.nan), "finite")],
)
def test_scores_that_cannot_be_ordered_are_named(relevance, message):
    model = random_graphormer()
    with pytest.raises(ValueError, match=message):
        node_series(model, encoded(model), relevance, Target())


def test_relevance_orders_nodes_better_than_its_reverse():
    """This holds for every inhibitor among the samples, whatever the model predicts."""
    model = gx.load("bace")
    for smiles in list(MOLECULES.values())[:5]:
        data = model.prepare(smiles).data
        relevance = torch.from_numpy(gx.explain(model, smiles).relevance)
        best = node_series(model, data, relevance, Target())
        worst = node_series(model, data, -relevance, Target())
        assert best.activation.area > worst.activation.area


def test_bootstrap_covers_the_mean_as_often_as_claimed():
    rng = np.random.default_rng(0)
    inside = 0
    for k in range(200):
        mean = bootstrap(rng.normal(1.0, 2.0, 60), draws=500, seed=k)
        inside += mean.low <= 1.0 <= mean.high
    assert 178 <= inside <= 199  # 95 % of 200, within three standard deviations
    assert mean.n == 60
    with pytest.raises(ValueError, match="at least one value"):
        bootstrap([])


def test_holm_equals_the_textbook():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    difference = Interval(0.2, 0.1, 0.3, 9)
    for adjusted, significant in ((0.049, True), (0.05, False)):
        assert Comparison("a", "b", difference, 0.01, adjusted, 1.0).significant is significant


def test_paired_tests_see_a_shift_and_no_shift():
    rng = np.random.default_rng(0)
    base = rng.normal(size=40)
    values = {"a": base + 0.5, "b": base + rng.normal(0, 0.1, 40), "c": base + 0.5}
    first, second = compare_pairs(values, [("a", "b"), ("a", "c")])
    assert first.significant
    assert first.difference.mean == pytest.approx(0.5, abs=0.1)
    assert not second.significant
    assert second.p == 1.0


def test_comparisons_are_a_table_and_words():
    """One sample is always higher by 2, so p of Wilcoxon's test is 2 / 2^n."""
    first = np.linspace(0, 1, 10)
    values = {"<b>": first + 2 + 0.01 * np.arange(10), "low": first, "same": first}
    compared = compare_pairs(values, [("<b>", "low"), ("low", "same")])
    frame = compared.to_frame()
    assert frame.p.tolist() == pytest.approx([2 / 2**10, 1.0])
    assert frame.p_holm.tolist() == pytest.approx([4 / 2**10, 1.0])
    assert frame.difference.tolist() == pytest.approx([2.045, 0.0])
    assert frame.significant.tolist() == [True, False]
    assert frame.n.tolist() == [10, 10]
    text = str(compared).splitlines()
    assert text[0].startswith("<b> against low: 2.045 [")
    assert text[0].endswith("over 10 graphs, p = 0.0039 (Holm), d_z = +67.54: <b> higher")
    assert text[1].endswith("not significant")
    for page in (compared._repr_html_(), compared[0]._repr_html_()):
        assert "<b>" not in page
        assert "&lt;b&gt; higher" in page
    assert list(compare_pairs(values, []).to_frame().columns) == list(frame.columns)


def test_a_report_contains_every_row_and_always_the_controls(tmp_path, small_figures):
    model = random_graphormer()
    inputs = ["CCO", "C1CC", SMILES, "CC(=O)[O-].[Na+]"]
    report = gx.evaluate(model, inputs, ["lrp", "gae"], operators=("mask", "zero"))
    assert [index for index, _ in report.rejected] == [1]
    assert set(report.rows.method) == {"lrp", "gae", "random", "ones", "reverse"}
    assert len(report.rows) == 3 * 5 * 2 * (4 + 1)  # with the share of the size
    table = report.table()
    assert table.attrs["n"] == 3
    assert list(table.columns) == ["auac", "au_mse", "srg", "exchange_error"]
    assert len(report.compare(metric="au_mse", operator="zero")) == 10
    folder = report.save(tmp_path / "bench")
    summary = (folder / "summary.md").read_text()
    assert "3 graphs" in summary
    assert all(f"* `{name}`: " in summary for name in report.metrics())  # what each measures
    assert len((folder / "results.csv").read_text().splitlines()) == 151
    best, every = report.against_the_best("auac"), report.compare(metric="auac")
    assert [c.first for c in best] == [report.ranking("auac")[0]] * 4
    tested = {frozenset((c.first, c.second)): c.p_adjusted for c in every}  # Holm over ten pairs
    assert all(c.p_adjusted == tested[frozenset((c.first, c.second))] for c in best)
    with pytest.raises(ValueError, match="no method 'lime'"):
        report.compare("lrp", "lime")
    with pytest.raises(ValueError, match="unknown metric 'f1'; choose from auac"):
        gx.evaluate(model, ["CCO"], metrics=["f1"])
    with pytest.raises(ValueError, match="no graph to evaluate"):
        gx.evaluate(model, ["C1CC"])


def test_conservation_is_exact_for_lrp_and_only_for_it():
    model = gx.load("bace")
    by_method = conservation(model, list(MOLECULES.values()))
    assert list(by_method) == ["gradient_input", "lrp_ah_ln", "lrp"]
    assert by_method["lrp"].unexplained < 1e-5
    assert by_method["gradient_input"].unexplained > 0.1
    outputs = by_method["lrp"].outputs
    np.testing.assert_allclose(outputs, by_method["gradient_input"].outputs, atol=1e-5)
    fitted = np.polyfit(outputs, by_method["lrp"].tokens, 1)
    assert by_method["lrp"].slope == pytest.approx(fitted[0])
    assert by_method["lrp"].gap == pytest.approx(np.abs(by_method["lrp"].biases).mean(), abs=1e-5)
    assert -1 <= by_method["gradient_input"].correlation <= 1


def test_curves_of_500_nodes_take_at_most_200_mb():
    """A separate process measures them, so that nothing else counts."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the resident set is read from /proc")
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        assert process.submit(curve_memory_mb, 500).result() < 200


def test_local_search_finds_the_best_of_all_orderings():
    """A graph of five nodes is small enough to try every ordering."""
    model = random_graphormer()
    data, target = encoded(model, "CC(O)CN"), Target("inactive")
    series = [
        node_series(model, data, torch.tensor(p, dtype=torch.float), target)
        for p in permutations(range(1, 6))
    ]
    starts = [torch.tensor([1.0, 4.0, 2.0, 5.0, 3.0])]
    auac, au_mse = best_areas(model, data, target, starts)
    all_auac = sorted(s.activation.area for s in series)
    all_au_mse = sorted(s.pruning.area for s in series)
    assert all_auac[-4] - 1e-6 <= auac <= all_auac[-1] + 1e-6  # among the best four of 120
    assert all_au_mse[0] - 1e-6 <= au_mse <= all_au_mse[3] + 1e-6
    of_start = node_series(model, data, starts[0], target)
    assert auac >= of_start.activation.area - 1e-6
    assert au_mse <= of_start.pruning.area + 1e-6
