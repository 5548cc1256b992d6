"""The controls of a report: random scores, equal ones, and the first method reversed."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import graphxai as gx
from graphxai.evaluation.testing import check_all
from graphxai.explainers import Explainer, get_explainer

MOLECULES = ["CCO", "c1ccccc1O", "CC(=O)N"]
CONTROLS = ("random", "ones", "reverse")


@pytest.fixture(scope="module")
def model():
    return gx.load("bace")


def test_the_controls_join_every_report_and_come_last(model):
    report = gx.evaluate(model, MOLECULES, ["gae", "lrp"], metrics=["auac", "srg"])
    assert report.methods == ("gae", "lrp", *CONTROLS)
    several = gx.evaluate({"a": model, "b": model}, MOLECULES, ["lrp"], metrics=["srg"])
    assert several.methods == ("lrp", *CONTROLS)
    truths = [np.arange(3) < 1, np.arange(7) < 2, np.arange(4) > 2]
    of_truth = gx.evaluate(model, MOLECULES, ["lrp"], metrics=["roc_auc"], truths=truths)
    values = of_truth.values("roc_auc")
    assert values["ones"] == pytest.approx([0.5] * 3)
    assert values["reverse"] == pytest.approx(1 - values["lrp"])


def test_a_method_of_the_user_may_have_the_name_of_a_control(model):
    def reverse(model, batch, target):
        return -get_explainer("gae").attribute(model, batch, target).relevance

    report = gx.evaluate(model, MOLECULES, ["lrp", reverse], metrics=["srg"])
    assert report.methods == ("lrp", "reverse", "random", "ones")


def test_reverse_turns_the_sign_of_the_first_method_without_explaining_again(model):
    calls = []

    class Counted(Explainer):
        name, title, source = "counted", "Counted", "a test"

        def _attribute(self, model, batch, target):
            calls.append(len(batch))
            return get_explainer("lrp")._attribute(model, batch, target)

    report = gx.evaluate(model, MOLECULES, [Counted(), "occlusion"], metrics=["srg", "au_mse"])
    assert sum(calls) == len(MOLECULES)
    srg, au_mse = report.values("srg"), report.values("au_mse")
    assert srg["reverse"] == pytest.approx(-srg["counted"], abs=1e-6)
    assert au_mse["reverse"] == pytest.approx(au_mse["counted"])


@pytest.mark.parametrize("method", ["lrp", "gae"])
def test_reverse_of_a_method_explains_on_its_own(model, method):
    forwards = gx.explain(model, MOLECULES[1], method)
    reverse = gx.explain(model, MOLECULES[1], "reverse", of=method)
    np.testing.assert_allclose(reverse.relevance, -forwards.relevance, rtol=1e-6)
    assert reverse.ledger is None
    assert (gx.explain(model, MOLECULES[1], "ones").relevance == 1).all()


def test_the_controls_are_checked_with_all_methods(model):
    check_all(model, MOLECULES[:2])
    assert set(CONTROLS) <= set(gx.check(model, MOLECULES[:2], costs=False).methods)


class Count(torch.nn.Module):
    """A value that is larger where fewer nodes are left, so that any explanation fails."""

    def forward(self, x, edge_index, batch):
        n = x.new_zeros(int(batch.max()) + 1, 1).index_add(0, batch, torch.ones_like(x[:, :1]))
        s = x.new_zeros(int(batch.max()) + 1, 1).index_add(0, batch, x)
        return s / (1 + n)


def test_a_measure_on_which_a_control_wins_says_so(tmp_path):
    ends = torch.tensor([[0, 1], [1, 0]])
    graphs = [Data(x=torch.tensor(of)[:, None], edge_index=ends) for of in ([1.0, 2, 3], [2.0, 5])]
    model = gx.wrap(Count().eval(), kind="regression")

    def worst(model, batch, target):
        return -batch.x[..., 0]

    report = gx.evaluate(model, graphs, [worst], metrics=["auac"])
    (said,) = [line for line in report.sentences() if "control" in line]
    assert said.startswith("By auac under `mask` the control `reverse` is better than every method")
    assert said in report.save(tmp_path).joinpath("summary.md").read_text(encoding="utf-8")
    fair = gx.evaluate(model, graphs, ["occlusion"], metrics=["auac", "srg", "au_mse"])
    assert not [line for line in fair.sentences() if "control" in line]


def test_areas_of_values_come_with_one_spread_of_the_whole_set():
    ends = torch.tensor([[0, 1], [1, 0]])
    graphs = [Data(x=torch.tensor(of)[:, None], edge_index=ends) for of in ([1.0, 2, 3], [2.0, 5])]
    model = gx.wrap(Count().eval(), kind="regression")
    report = gx.evaluate(model, graphs, ["occlusion"], metrics=["auac"])
    outputs = [6 / 4, 7 / 3]
    assert report.robustness["mask"].spread == pytest.approx(np.std(outputs))
    assert f"standard deviation of {np.std(outputs):.3g}" in report.sentences()[0]
    classes = gx.evaluate(gx.load("bace"), MOLECULES, ["lrp"], metrics=["auac"])
    assert "standard deviation" not in " ".join(classes.sentences())
