"""Benchmarks run with anybody's methods and targets, go on after a stop, and report."""

import json
import math
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex
from scipy.stats import entropy, kendalltau, spearmanr
from torch_geometric.data import Data

import graphxai as gx
from graphxai.cli import listing
from graphxai.cli.main import main
from graphxai.contract.method_names import CONTROLS
from graphxai.contract.target import Target
from graphxai.contract.tasks import Task
from graphxai.datasets.molecules import molecule_to_data
from graphxai.evaluation import (
    METRICS,
    Resampling,
    conservation,
    merged,
    node_series,
    output,
    outputs_of_parts,
)
from graphxai.evaluation.curves import several_series
from graphxai.evaluation.measure import NoisyModel, shuffled_stages
from graphxai.evaluation.metrics import OLD
from graphxai.evaluation.output import summary_markdown
from graphxai.evaluation.report import examples_svg
from graphxai.evaluation.store import Store, Unit
from graphxai.explainers import get_explainer
from graphxai.models.graphormer import StructureEncoding, collate, save_checkpoint
from graphxai.visualization.curves import curves_figure
from other_models import GpsModel
from pages import sketched
from toy import random_graphormer

SMILES = ["CCO", "CC(=O)Oc1ccccc1C(=O)O", "CC(=O)[O-].[Na+]", "c1ccncc1", "CC(C)N"]


def three_classes():
    return random_graphormer(tasks=(Task("odour", "multiclass", ("sweet", "sour", "none")),))


def encoded(model, smiles):
    return StructureEncoding.from_config(model.config)(molecule_to_data(smiles))


def by_number(model, batch, target):
    """Score nodes by their atomic number, (B, N)."""
    return batch.x[..., 0].float()


def by_number_in_lists(model, batch, target):
    return [row[:n].tolist() for row, n in zip(batch.x[..., 0], batch.num_nodes, strict=True)]


@pytest.mark.parametrize("operator", ["mask", "zero", "delete"])
def test_curves_of_several_methods_equal_those_of_each_method_alone(operator):
    model = three_classes()
    data = encoded(model, SMILES[1])
    scores = [torch.randn(13, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    scores.append(torch.zeros(13))
    smaller = encoded(model, SMILES[2])
    few = [torch.arange(5.0)]
    together, of_smaller = several_series(
        model, [data, smaller], [scores, few], Target("sour"), operator=operator
    )
    alone = node_series(model, smaller, few[0], Target("sour"), operator=operator)
    torch.testing.assert_close(of_smaller[0].logits_pruned, alone.logits_pruned)
    for relevance, series in zip(scores, together, strict=True):
        alone = node_series(model, data, relevance, Target("sour"), operator=operator)
        torch.testing.assert_close(series.logits_with_top, alone.logits_with_top)
        torch.testing.assert_close(series.logits_without_top, alone.logits_without_top)
        torch.testing.assert_close(series.logits_pruned, alone.logits_pruned)


def test_perturbation_metrics_equal_a_loop():
    model = three_classes()
    data = encoded(model, SMILES[1])
    n, relevance = 13, torch.randn(13, generator=torch.Generator().manual_seed(5))
    order = relevance.argsort(descending=True).tolist()

    def outputs(kept):
        keep = torch.zeros(1, n, dtype=torch.bool)
        keep[0, kept] = True
        return outputs_of_parts(model, data, keep)[0].double()

    predicted = int(outputs(order).argmax())
    explained = (predicted + 1) % 3
    series = node_series(model, data, relevance, Target(explained))
    sizes = [math.ceil(round(k * n / 10, 9)) for k in range(1, 10)]
    without_top = [int(outputs(order[k:]).argmax()) for k in sizes]
    top = [int(outputs(order[:k]).argmax()) for k in sizes]
    expected = {
        "positive_perturbation": np.mean([c == explained for c in without_top]),
        "negative_perturbation": np.mean([c == explained for c in top]),
        "fidelity_plus": np.mean([c != predicted for c in without_top]),
        "fidelity_minus": np.mean([c != predicted for c in top]),
    }
    plus, kept = expected["fidelity_plus"], 1 - expected["fidelity_minus"]
    expected["characterisation"] = 2 / (1 / plus + 1 / kept) if plus and kept else 0.0
    whole, quarter = outputs(order).softmax(0), outputs(order[: math.ceil(n / 4)]).softmax(0)
    expected["unfaithfulness"] = 1 - math.exp(-entropy(whole, quarter))
    expected["complexity"] = entropy(relevance.abs())
    size = relevance.abs().double().numpy()
    pairs = np.abs(size[:, None] - size[None]).sum()
    expected["sparsity"] = pairs / (2 * n * size.sum())  # the Gini index by its definition
    gains = [
        (outputs(order[:k]).softmax(0) - outputs(order[k:]).softmax(0))[explained]
        for k in range(n + 1)
    ]
    expected["srg"] = np.trapezoid(gains, dx=1 / n)
    for name, value in expected.items():
        assert METRICS[name].measure(series) == pytest.approx(value, abs=1e-6), name
    reverse = node_series(model, data, -relevance, Target(explained))
    assert METRICS["srg"].measure(reverse) == pytest.approx(-expected["srg"], abs=1e-6)


def test_negative_perturbation_keeps_the_most_relevant():
    """Removing the least relevant 10 % leaves the most relevant 90 %."""
    model = three_classes()
    data = encoded(model, SMILES[1])
    relevance = torch.arange(13.0)
    series = node_series(model, data, relevance, Target("sweet"))
    reverse = node_series(model, data, -relevance, Target("sweet"))
    torch.testing.assert_close(
        series.logits_with_top, reverse.logits_without_top.flip(0), atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("method", [by_number, by_number_in_lists])
def test_a_users_function_is_a_method(method):
    model = random_graphormer()
    report = gx.evaluate(model, SMILES, [method, "lrp"])
    assert report.methods == (method.__name__, "lrp", *CONTROLS)
    explanation = gx.explain(model, SMILES[1], method)
    expected = [atom.GetAtomicNum() - 1 for atom in explanation.molecule.GetAtoms()]
    assert explanation.relevance.tolist() == expected
    assert not explanation.additive


def test_a_method_that_fails_gets_a_note_and_the_run_goes_on():
    model = random_graphormer()

    def sometimes_nan(model, batch, target):
        scores = batch.x[..., 0].float()
        scores[batch.num_nodes == 5] = math.nan
        return scores

    def too_short(model, batch, target):
        return [[1.0]] * len(batch)

    def refuses_salts(model, batch, target):
        if (batch.x[..., 0] == 10).any():  # sodium
            raise RuntimeError("no <metals> | please")
        return batch.x[..., 0].float()

    report = gx.evaluate(model, SMILES, [sometimes_nan, too_short, refuses_salts])
    notes = report.failures
    assert [key for key, _ in notes["sometimes_nan"]] == [2]  # acetate and sodium: five atoms
    assert notes["sometimes_nan"][0][1] == "the scores are not finite."
    assert len(notes["too_short"]) == 5
    assert "for a graph of 3 nodes" in dict(notes["too_short"])[0]
    assert notes["refuses_salts"] == [(2, "RuntimeError: no <metals> | please")]
    assert report.intervals("auac")["sometimes_nan"].n == 4
    assert report.intervals("auac")["too_short"].n == 0
    assert report.table().loc["too_short", "auac"] == "undefined"
    assert report.table().loc["refuses_salts", "auac"].endswith("(n = 4)")
    with pytest.raises(ValueError, match="'too_short' is given twice"):
        gx.evaluate(model, SMILES, [too_short, too_short])
    with pytest.raises(TypeError, match="a method is a name, an explainer or a function"):
        gx.evaluate(model, SMILES, [3])


def test_each_graph_is_followed_in_its_own_class():
    model = three_classes()
    names = ["sweet", "sour", "none"]
    labels = ["sour", 2, None, float("nan"), 0.0]
    report = gx.evaluate(model, SMILES, ["lrp"], labels=labels, target="true")
    assert {u.graph: u.target for u in report.units} == {0: "sour", 1: "none", 4: "sweet"}
    assert [key for key, _ in report.rejected] == [2, 3]
    report = gx.evaluate(model, SMILES, ["lrp"], target="predicted")
    predicted = [gx.predict(model, s)["odour"].label for s in SMILES]
    assert [u.target for u in report.units if u.method == "lrp"] == predicted
    explanation = gx.explain(model, SMILES[1], "lrp", target=names.index(predicted[1]))
    series = node_series(
        model,
        encoded(model, SMILES[1]),
        torch.from_numpy(explanation.relevance),
        Target(predicted[1]),
    )
    assert report.values("auac")["lrp"][1] == pytest.approx(series.activation.area, abs=1e-6)
    with pytest.raises(ValueError, match="needs the labels"):
        gx.evaluate(model, SMILES, target="true")
    with pytest.raises(ValueError, match="has no class 'salty'"):
        gx.evaluate(model, SMILES, labels=["salty"] * 5, target="true")
    with pytest.raises(ValueError, match="out of range"):
        gx.evaluate(model, SMILES, target=7)
    with pytest.raises(ValueError, match="tracks a single class"):
        gx.evaluate(model, SMILES, target=("sweet", "sour"))


def test_labels_in_a_list_follow_the_order_of_inputs_with_keys():
    model, keyed = three_classes(), dict(zip("abcde", SMILES, strict=True))
    labels = ["sour", 2, None, float("nan"), 0.0]
    report = gx.evaluate(model, keyed, ["lrp"], labels=labels, metrics=["auac"])
    assert {u.graph: u.target for u in report.units} == {"a": "sour", "b": "none", "e": "sweet"}
    as_list = gx.evaluate(model, SMILES, ["lrp"], labels=labels, metrics=["auac"])
    assert report.robustness == as_list.robustness
    assert report.robustness["mask"].measure == "accuracy"


def test_the_sensitivity_of_a_recorded_model_is_measured_for_every_method():
    """A softmax by hand is recorded and run again, and its outputs are compared with the model."""

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.codes, self.head = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 1)

        def forward(self, x, edge_index, batch):
            h = self.codes(x)
            h = (h.exp() / h.exp().sum(-1, keepdim=True)) * h
            return self.head(h.new_zeros(int(batch.max()) + 1, 4).index_add(0, batch, h))

    torch.manual_seed(0)
    graph = Data(x=torch.arange(4), edge_index=torch.tensor([[0, 1], [1, 0]]))
    model = gx.wrap(Network().eval(), kind="regression")
    methods = ["lrp", "attn_lrp", "integrated_gradients", "occlusion"]
    report = gx.evaluate(model, [graph], methods, metrics=["max_sensitivity"])
    values = report.values("max_sensitivity")
    assert all(values[method][0] > 0 for method in methods), values


def test_labels_are_used_without_a_target_and_predictions_without_labels():
    """The command's rule: the true class with labels, otherwise the predicted one."""
    labels = ["sour", "sweet", "none", "none", "sweet"]
    for model, given in (
        (three_classes(), labels),
        (random_graphormer(tasks=(Task("taste", "binary", ("no", "yes")),)), ["no", "yes"] * 2),
    ):
        task, smiles = model.config.tasks[0].name, SMILES[: len(given)]
        for target in (None, Target(None, task), task):
            report = gx.evaluate(model, smiles, ["lrp"], labels=given, target=target)
            assert [u.target for u in report.units if u.method == "lrp"] == given
            assert report.settings["target"].endswith("true")
            report = gx.evaluate(model, smiles, ["lrp"], target=target)
            predicted = [gx.predict(model, s)[task].label for s in smiles]
            assert [u.target for u in report.units if u.method == "lrp"] == predicted
            assert report.settings["target"].endswith("predicted")
        by_word = gx.evaluate(model, smiles, ["lrp"], labels=given, target="true")
        by_default = gx.evaluate(model, smiles, ["lrp"], labels=given)
        np.testing.assert_array_equal(
            by_word.values("auac")["lrp"], by_default.values("auac")["lrp"]
        )


def test_what_would_not_be_used_is_refused():
    model, smiles = random_graphormer(tasks=(Task("taste", "binary", ("no", "yes")),)), SMILES[:2]
    with pytest.raises(ValueError, match="labels would not be used"):
        gx.evaluate(model, smiles, labels=[1, 0], target="predicted", metrics=["sparsity"])
    with pytest.raises(ValueError, match="labels has 3 entries for 2 inputs"):
        gx.evaluate(model, smiles, labels=[1, 0, 1])
    with pytest.raises(ValueError, match="resampling= is for the operator 'resample'"):
        gx.evaluate(model, smiles, resampling=Resampling(draws=2))


def test_a_regression_has_the_metrics_that_fit_it():
    model = random_graphormer()
    report = gx.evaluate(model, SMILES, target="pIC50", metrics="all")
    assert "lodds" not in report.metrics()
    assert {"auac", "au_mse", "aopc", "sparsity", "max_sensitivity"} <= set(report.metrics())
    with pytest.raises(ValueError, match="needs probabilities"):
        gx.evaluate(model, SMILES, target="pIC50", metrics=["auac", "fidelity_plus"])


def test_rankings_of_operators_are_compared_by_kendalls_tau():
    model = random_graphormer()
    report = gx.evaluate(model, SMILES, ["lrp", "gae", "rollout"], operators="all")
    assert report.operators == ("mask", "zero", "delete")
    tau = report.agreement("au_mse")
    means = {op: [i.mean for i in report.intervals("au_mse", op).values()] for op in tau}
    assert tau.loc["mask", "delete"] == pytest.approx(
        kendalltau(means["mask"], means["delete"]).statistic
    )
    assert tau.loc["zero", "zero"] == pytest.approx(1)


def test_shuffling_leaves_the_model_alone_and_reaches_every_block():
    model = random_graphormer()
    before = {name: p.clone() for name, p in model.named_parameters()}
    blocks = []
    for block, shuffled in shuffled_stages(model, seed=3):
        blocks.append(block)
        assert shuffled is not model
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        other = shuffled.get_parameter(name)
        torch.testing.assert_close(
            other.flatten().sort().values, parameter.detach().flatten().sort().values
        )
        if parameter.numel() > 8:
            assert not torch.equal(other, parameter)
    assert blocks[0] == "head"
    assert blocks.index("layers.2") < blocks.index("layers.1") < blocks.index("node_embedding")


def test_checks_see_a_method_that_ignores_the_model():
    model = random_graphormer()
    report = gx.evaluate(
        model, SMILES, ["lrp"], metrics=["max_sensitivity", "model_randomisation", "sparsity"]
    )
    assert report.operators == ()
    assert report.intervals("max_sensitivity")["random"].mean == 0
    assert report.intervals("model_randomisation")["random"].mean == pytest.approx(1)
    assert report.intervals("model_randomisation")["lrp"].mean < 0.95
    assert report.intervals("max_sensitivity")["lrp"].mean > 0
    *_, (_, shuffled) = shuffled_stages(model, seed=0)
    first = gx.explain(model, SMILES[1]).relevance
    second = gx.explain(shuffled, SMILES[1]).relevance
    expected = abs(spearmanr(first, second).statistic)
    assert report.values("model_randomisation")["lrp"][1] == pytest.approx(expected, abs=1e-6)


def test_noise_is_the_same_alone_and_in_a_batch():
    model = random_graphormer()
    noisy = NoisyModel(model, seed=1)
    graphs = [encoded(model, s) for s in SMILES]
    together = get_explainer("lrp").attribute(noisy, collate(graphs)).relevance
    for row, graph in zip(together, graphs, strict=True):
        alone = get_explainer("lrp").attribute(noisy, collate([graph])).relevance[0]
        torch.testing.assert_close(row[: len(alone)], alone, atol=1e-5, rtol=1e-4)
    plain = get_explainer("lrp").attribute(model, collate(graphs)).relevance
    assert not torch.allclose(plain, together)


class Interrupted:
    """A method that scores by atomic number until the run is interrupted."""

    __name__ = "numbers"

    def __init__(self, graphs):
        self.left, self.seen = graphs, 0

    def __call__(self, model, batch, target):
        self.left -= len(batch)
        if self.left < 0:
            raise KeyboardInterrupt
        self.seen += len(batch)
        return by_number(model, batch, target)


def test_an_interrupted_run_resumes_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("graphxai.evaluation.runs.CHUNK", 2)
    model = random_graphormer()
    settings = {"metrics": ["auac", "sparsity"], "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        gx.evaluate(model, SMILES, ["lrp", Interrupted(2)], **settings)
    with pytest.raises(FileExistsError, match="resume"):
        gx.evaluate(model, SMILES, ["lrp", Interrupted(9)], **settings)
    with (tmp_path / "run" / "units.jsonl").open("a") as file:
        file.write('{"checkpoint": "torn')
    second = Interrupted(9)
    report = gx.evaluate(model, SMILES, ["lrp", second], resume=True, **settings)
    assert second.seen == 3
    whole = gx.evaluate(model, SMILES, ["lrp", by_number], metrics=["auac", "sparsity"])
    renamed = whole.rows.replace({"by_number": "numbers"})
    pd.testing.assert_frame_equal(report.rows, renamed, check_exact=True)
    more = gx.evaluate(model, SMILES, ["lrp", "gae", Interrupted(0)], resume=True, **settings)
    assert more.methods == ("lrp", "gae", "numbers", *CONTROLS)  # another method is added
    assert len(list(Store(tmp_path / "run").units())) == 5 * 6
    with pytest.raises(ValueError, match=r"other settings \(steps\)"):
        gx.evaluate(model, SMILES, ["lrp"], resume=True, steps=11, **settings)
    changed = gx.evaluate(model, ["CCN", *SMILES[1:]], ["lrp"], resume=True, **settings)
    assert changed.units[0].digest != report.units[0].digest  # another graph under the same key


def method_named_mine(power):
    """Return a function with one name and, for each power, other code."""
    if power == 1:

        def mine(model, batch, target):
            return batch.mask.float().cumsum(1)

    else:

        def mine(model, batch, target):
            return batch.mask.float().cumsum(1) ** 2 % 5

    return mine


def test_a_method_with_other_code_is_measured_again(tmp_path):
    """Its name is the same, as after a fault in it was corrected. The other methods are kept."""
    model, settings = random_graphormer(), {"metrics": ["auac"], "progress": False}
    first = gx.evaluate(model, SMILES, ["lrp", method_named_mine(1)], out=tmp_path, **settings)
    again = [
        gx.evaluate(model, SMILES, ["lrp", method], out=tmp_path, resume=True, **settings)
        for method in (method_named_mine(1), method_named_mine(2))
    ]
    fresh = gx.evaluate(model, SMILES, ["lrp", method_named_mine(2)], **settings)
    pd.testing.assert_frame_equal(again[0].rows, first.rows, check_exact=True)
    pd.testing.assert_frame_equal(again[1].rows, fresh.rows, check_exact=True)
    assert not first.rows.equals(fresh.rows)
    measured = Counter(unit.method for unit in Store(tmp_path).units())
    assert (measured["lrp"], measured["mine"]) == (len(SMILES), 2 * len(SMILES))


def test_a_damaged_run_is_named(tmp_path):
    (tmp_path / "units.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match=r"units\.jsonl, line 1: not a line of a benchmark run"):
        list(Store(tmp_path).units())
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(ValueError, match=r"run\.json is not from a benchmark run"):
        Store(tmp_path).begin("x", {}, resume=True)


def test_a_unit_survives_its_line():
    unit = Unit("m 1", 3, "d", "lrp", 2, "active", {"mask": {"auac": math.nan, "au_mse": 0.5}})
    again = Unit.from_json(unit.to_json())
    assert math.isnan(again.values["mask"]["auac"])
    assert again.values["mask"]["au_mse"] == 0.5
    assert again.graph == 3


def test_the_seed_is_that_of_every_method_made_by_name():
    model = random_graphormer()

    def areas(method, seed):
        settings = {"metrics": "auac", "seed": seed, "progress": False}
        values = gx.evaluate(model, SMILES, [method], **settings).values("auac")
        return values["shapley_sampling"].tolist(), values["random"].tolist()

    by_name = [areas("shapley_sampling", seed) for seed in (0, 1)]
    assert by_name[0] == areas("shapley_sampling", 0)
    assert by_name[0][0] != by_name[1][0]
    assert by_name[0][1] != by_name[1][1]
    given = get_explainer("shapley_sampling", seed=1)
    assert areas(given, 0) == (by_name[1][0], by_name[0][1])


def test_a_graph_counts_once_whatever_the_number_of_checkpoints():
    models = [random_graphormer(), random_graphormer(num_layers=2)]
    reports = [
        gx.evaluate(model, {7: SMILES[1], 9: SMILES[2]}, ["lrp"], metrics="auac")
        for model in models
    ]
    for report, model in zip(reports, models, strict=True):  # names, as saved models have
        object.__setattr__(
            report,
            "units",
            tuple(Unit(**{**vars(u), "checkpoint": str(id(model))}) for u in report.units),
        )
    both = merged(reports)
    values = [report.values("auac")["lrp"] for report in reports]
    np.testing.assert_allclose(both.values("auac")["lrp"], np.mean(values, axis=0))
    assert both.intervals("auac")["lrp"].n == 2
    spread = both.seeds("auac").loc["lrp"]
    means = [v.mean() for v in values]
    assert spread["mean"] == pytest.approx(np.mean(means))
    assert spread["sd"] == pytest.approx(np.std(means, ddof=1))


def test_there_is_no_mean_over_a_probability_and_a_value_or_over_two_values():
    model, value = random_graphormer(), Task("log D", "regression")
    models = {"a": model, "b": random_graphormer(tasks=(value,))}
    with pytest.raises(
        ValueError, match=r"different outputs, a class, log D, of which there is no"
    ):
        gx.evaluate(models, SMILES[:2], ["random"], metrics="auac")
    by_task = [
        gx.evaluate(model, SMILES[:2], ["random"], metrics="auac", target=task.name)
        for task in (*model.config.tasks[1:], model.config.tasks[0])
    ]
    with pytest.raises(ValueError, match="different outputs"):
        merged(by_task)


def test_examples_show_the_property_that_was_measured_by_methods_that_work():
    tasks = (Task("log S", "regression"), Task("log D", "regression"))
    model = random_graphormer(tasks=tasks)

    report = gx.evaluate(model, SMILES[:3], ["lrp", "gae"], target="log D")
    units = (
        replace(u, note="no attention", values={}) if u.method == "gae" else u for u in report.units
    )
    svg = examples_svg(model, dict(enumerate(SMILES)), replace(report, units=tuple(units)))
    assert "log D" in svg
    assert "log S" not in svg
    assert "Generic attention" not in svg


def test_a_summary_names_ten_inputs_that_were_left_out_and_counts_the_others():
    report = gx.evaluate(random_graphormer(), SMILES[1:3], ["lrp"], metrics="auac")
    assert "left out" not in summary_markdown(report, [])
    for count, told in ((1, 1), (10, 10), (12, 11)):
        rejected = tuple((f"row {k}", "no SMILES") for k in range(count))
        text = summary_markdown(replace(report, rejected=rejected), [])
        assert f"{count} inputs were left out:" in text
        assert text.count("* row ") + text.count(" more\n") == told
        assert ("* and 2 more" in text) == (count == 12)


def test_a_saved_report_can_be_read_back(tmp_path, monkeypatch):
    """The figures of one operator are drawn in full size."""
    model = random_graphormer()
    save = {"mask": output._save, None: output._save}
    monkeypatch.setattr(output, "_save", lambda *figure: save.get(figure[-1], sketched)(*figure))

    def hostile(model, batch, target):
        raise ValueError("<script>alert(1)</script> | `x`")

    hostile.__name__ = "<img src=x>|"
    report = gx.evaluate(
        model, [*SMILES, "C1CC"], ["lrp", "gae", hostile], metrics="all", operators="all"
    )
    folder = report.save(tmp_path / "bench")
    rows = pd.read_csv(folder / "results.csv")
    metrics = [metric for name, metric in METRICS.items() if name not in OLD]
    measured = sum(3 if metric.removal else 1 for metric in metrics)  # three operators
    shares = (rows.metric == "size_share").sum()  # those of methods that gave scores
    assert shares == 5 * 5 * 3
    assert len(rows) == len(report.rows) == 5 * 6 * measured + shares
    parquet = pd.read_parquet(folder / "results.parquet")
    np.testing.assert_allclose(parquet.value, report.rows.value)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["graphs"] == 5
    assert summary["failures"] == {"<img src=x>|": 5}
    mean = summary["results"]["delete"]["auac"]["lrp"]["mean"]
    assert mean == pytest.approx(report.values("auac", "delete")["lrp"].mean())
    text = (folder / "summary.md").read_text()
    assert "<script" not in text
    assert "<img" not in text
    assert "not significant" in text
    assert "Kendall's tau" in text
    pictures = {path.stem for path in folder.glob("*.png")}
    assert pictures >= {"activation", "activation-zero", "pruning-delete", "forest"}
    assert pictures >= {"conservation", "randomisation"}
    compared = pd.read_csv(folder / "comparisons.csv")
    assert set(compared[compared.metric == "auac"].operator) == {"mask", "zero", "delete"}
    latex = report.to_latex()
    assert latex == (folder / "table.tex").read_text(encoding="utf-8")
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 3
    assert f"{report.intervals('auac', 'delete')['lrp'].mean:.3f}" in latex


def run(arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["graphxai", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code


@pytest.fixture
def checkpoint(tmp_path):
    save_checkpoint(random_graphormer(), tmp_path / "toy")
    return tmp_path / "toy"


def test_the_command_measures_a_table(checkpoint, tmp_path, monkeypatch, capsys, small_figures):
    table = tmp_path / "molecules.csv"
    lines = [f"{s},{k % 2}" for k, s in enumerate(SMILES)]
    table.write_text("\n".join(["smiles,label", *lines, "C1CC,1", "CCC,"]))
    out = tmp_path / "bench"
    arguments = ["benchmark", checkpoint, table, "--label-column", "label", "--methods"]
    arguments += ["lrp,gae", "--out", out]
    assert run(arguments, monkeypatch) == 0
    shown = capsys.readouterr()
    assert "graphs: 5" in shown.err
    assert "left out: 6:" in shown.err
    assert "left out: 7: no label" in shown.err
    summary = json.loads((out / "summary.json").read_text())
    assert summary["settings"]["command"].startswith("graphxai benchmark ")
    assert summary["settings"]["target"] == "true"
    assert (out / "examples.svg").read_text().startswith("<svg")
    assert run(arguments, monkeypatch) == 1
    assert "--resume" not in capsys.readouterr().out
    assert run([*arguments, "--resume"], monkeypatch) == 0
    assert "graphs: 5" in capsys.readouterr().err
    resumed = json.loads((out / "summary.json").read_text())["settings"]["command"]
    assert resumed == summary["settings"]["command"]
    second = ["benchmark", checkpoint, table, "--task", "pIC50", "--out", tmp_path / "value"]
    assert run(second, monkeypatch) == 0
    settings = json.loads((tmp_path / "value" / "summary.json").read_text())["settings"]
    assert settings["target"] == "pIC50"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mnist"], "'mnist' is not one of bace, mnist-superpixels"),
        (["bace", "x.csv"], "a table goes with a checkpoint folder"),
        (["bace", "--model", "mnist-superpixels"], "reads digits"),
    ],
)
def test_an_impossible_benchmark_is_refused(arguments, message, monkeypatch, capsys):
    assert run(["benchmark", *arguments], monkeypatch) != 0
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_command_trains_on_a_rule_and_scores_against_it(tmp_path, monkeypatch, capsys):
    pytest.importorskip("lightning")
    table = tmp_path / "molecules.csv"
    ends = ("C", "O", "N", "F", "Cl", "Br")
    chains = [f"{'C' * i}N{'C' * j}{end}" for i in (1, 2, 3) for j in (1, 2, 3) for end in ends]
    table.write_text("\n".join(["smiles", *chains]))
    out = tmp_path / "rules"
    arguments = ["benchmark", "rules", table, "--rule", "halogen", "--out", out, "--methods", "lrp"]
    assert run(arguments, monkeypatch) == 0
    assert "Is there a halogen atom?" in capsys.readouterr().out
    rows = pd.read_csv(out / "halogen" / "rows.csv")
    assert set(rows.method) == {"lrp", *CONTROLS}
    assert rows.value.between(0, 1).all()
    written = [p.read_text() for p in out.rglob("*") if p.suffix in (".csv", ".json", ".md")]
    kept = [chain for chain in chains if any(chain in text for text in written)]
    assert written
    assert not kept, "a structure in a file must be read again to the same answer"
    assert run(arguments, monkeypatch) == 1
    assert "--resume" in capsys.readouterr().err
    assert run([*arguments, "--resume"], monkeypatch) == 0
    assert run(["benchmark", "rules", "--rule", "colour"], monkeypatch) == 1
    assert "colour" in capsys.readouterr().err


def float_graph(smiles):
    data = molecule_to_data(smiles)
    return Data(x=data.x.float() / 5, edge_index=data.edge_index, edge_attr=data.edge_attr.float())


def test_a_wrapped_model_has_every_metric_and_a_hash_of_its_weights():
    model = gx.wrap(
        GpsModel(), kind="binary", classes=("no", "yes"), featurize=float_graph, name="mine"
    )
    report = gx.evaluate(model, SMILES, ["lrp"], metrics="all", operators="all", target="yes")
    assert set(report.metrics()) == set(METRICS) - OLD
    rows = report.rows
    undefined = rows[rows.value.isna()]  # equal scores have no ranks to compare
    assert set(zip(undefined.method, undefined.metric, strict=True)) == {
        ("ones", "model_randomisation")
    }
    assert report.units[0].checkpoint.startswith("mine ")
    before = report.settings["sha256"]
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    assert gx.evaluate(model, SMILES, ["lrp"]).settings["sha256"] != before


def test_every_table_says_which_method_searches_the_curve(capsys):
    methods = ["order_marginals", "lrp"]
    report = gx.evaluate(random_graphormer(), SMILES[:2], methods, target="active")
    rows = [line for line in summary_markdown(report, []).splitlines() if line.startswith("| `")]
    assert any("`order_marginals`" in row for row in rows)
    for row in rows:
        assert ("(searches the curve)" in row) == ("`order_marginals`" in row)
    assert "order_marginals (searches the curve)" in report._repr_html_()
    assert "order_marginals" in report.table().index  # data keep the name
    listing.methods()
    assert capsys.readouterr().out.count("searches") == 1


def test_labels_that_are_numbers_may_be_names():
    model = random_graphormer(tasks=(Task("class", "binary", ("1", "2")),))
    report = gx.evaluate(model, SMILES[:3], ["lrp"], labels=[1.0, 2.0, 2], target="true")
    assert {u.graph: u.target for u in report.units} == {0: "1", 1: "2", 2: "2"}


def test_equal_labels_have_no_r2_and_the_report_is_written_all_the_same(tmp_path, small_figures):
    model = random_graphormer(tasks=(Task("value", "regression"),))
    report = gx.evaluate(model, SMILES[:2], ["lrp"], labels=[1.0, 1.0], metrics=["au_mse"])
    report.save(tmp_path)
    settings = json.loads((tmp_path / "summary.json").read_text())["settings"]
    assert None in settings["robustness"]["mask"]["values"]


def test_figures_and_tables_of_a_regression_speak_of_its_value(tmp_path):
    report = gx.evaluate("solubility", SMILES, ["lrp", "gradient_input"])
    (axes,) = report.plot("activation").axes
    assert axes.get_ylabel() == "solubility (log mol/L), moved from none to all nodes"
    (axes,) = report.plot("pruning").axes
    assert axes.get_ylabel() == "squared distance of solubility (log mol/L)"
    text = (report.save(tmp_path) / "summary.md").read_text()
    assert "p is how far solubility (log mol/L) has moved" in text
    assert "probability" not in text.partition("## What the metrics measure")[2].split("\n")[2]
    assert " | ms | passes |" in text
    (axes,) = gx.evaluate("bace", SMILES, ["lrp"]).plot("activation").axes
    assert axes.get_ylabel() == "probability of the explained class"


def test_a_curve_is_drawn_into_a_subplot():
    report = gx.evaluate(random_graphormer(), SMILES, ["lrp", "gradient_input"], metrics="all")
    from matplotlib.figure import Figure

    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert report.plot("activation", ax=right) is figure
    assert len(right.lines) == len(report.plot("activation").axes[0].lines) > 0
    assert not left.lines
    with pytest.raises(ValueError, match="several panels: leave out ax="):
        report.plot("forest", ax=left)


def test_figures_of_equal_reports_are_equal_files(tmp_path):
    report = gx.evaluate(random_graphormer(), SMILES[:2], ["lrp"], metrics="auac")
    for name in ("first", "second"):
        report.save(tmp_path / name)
    figures = [path.name for path in (tmp_path / "first").glob("*.svg")]
    assert {"activation.svg", "forest.svg", "conservation.svg"} <= {*figures}
    for name in figures:
        first, second = ((tmp_path / folder / name).read_bytes() for folder in ("first", "second"))
        assert first == second
    report.plot("forest").savefig(tmp_path / "forest.svg", metadata={"Creator": "me"})
    text = (tmp_path / "forest.svg").read_text()
    assert ">me<" in text
    assert "<dc:date>" not in text


@pytest.mark.parametrize("count", [3, 12, 28])
def test_every_curve_has_its_band_and_a_colour_of_its_own(count):
    grid = np.linspace(0, 1, 5)
    curves = {f"method {k}": (grid, grid - 0.1, grid + 0.1) for k in range(count)}
    figure = curves_figure(
        grid, curves | {"random": (grid, grid, grid)}, title="", x_label="", y_label=""
    )
    (axes,) = figure.axes
    assert len(axes.collections) == len(axes.lines) == count + 1
    assert len({to_hex(line.get_color()) for line in axes.lines}) == count + 1


def test_a_plot_shows_itself_in_a_notebook():
    report = gx.evaluate(random_graphormer(), SMILES, ["lrp", "gradient_input"], metrics="all")
    for kind in ("activation", "pruning", "conservation", "forest", "randomisation"):
        assert report.plot(kind)._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="unknown plot 'pie'"):
        report.plot("pie")


def test_scores_that_do_not_fit_the_model_are_noted():
    def elsewhere(model, batch, target):
        return torch.zeros(batch.mask.shape, device="meta")

    report = gx.evaluate(random_graphormer(), SMILES[:2], [elsewhere])
    assert len(report.failures["elsewhere"]) == 2
    assert "meta tensor" in report.failures["elsewhere"][0][1]


def test_one_method_with_different_options_is_listed_with_its_options():
    model = random_graphormer(num_layers=1)
    methods = [get_explainer("shapley_sampling", permutations=n) for n in (1, 2)]
    methods.append(get_explainer("shapley_sampling"))
    names = [
        "shapley_sampling (permutations=1)", "shapley_sampling (permutations=2)",
        "shapley_sampling", *CONTROLS,
    ]  # fmt: skip
    report = gx.evaluate(model, SMILES[:2], methods, metrics=["auac"])
    assert list(report.methods) == names
    assert methods[0].name == "shapley_sampling"  # the given ones stay as they are
    alone = gx.evaluate(model, SMILES[:2], methods[1], metrics=["auac"]).rows
    rows = report.rows[report.rows.method == names[1]]
    assert rows.value.tolist() == alone[alone.method == "shapley_sampling"].value.tolist()
    assert list(conservation(model, SMILES[:2], methods)) == names[:3]
    with pytest.raises(ValueError, match="'lrp' is given twice: leave one out, or"):
        gx.evaluate(model, SMILES[:2], ["lrp", "lrp"])
