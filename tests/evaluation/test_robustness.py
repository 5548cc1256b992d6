"""What models keep with nodes removed, on models for which it is known."""

import pytest
import torch
from torch import nn
from torch_geometric.data import Data

import graphxai as gx
from graphxai.evaluation.robustness import Robustness


class Counts(nn.Module):
    """The number of nodes, against a bound."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound, self.weight = bound, nn.Parameter(torch.ones(1))

    def forward(self, x, edge_index, batch):
        out = x.new_zeros(int(batch.max()) + 1, 1).index_add(0, batch, torch.ones_like(x))
        return self.weight * out - self.bound


EDGE = torch.tensor([[0, 1], [1, 0]])
GRAPHS = [Data(x=torch.rand(nodes, 1), edge_index=EDGE) for nodes in (8, 2, 8, 2)]


def test_a_model_that_counts_nodes_loses_its_classes_without_half_of_them():
    model = gx.wrap(Counts(5.0).eval(), kind="binary", classes=("few", "many"))
    report = gx.evaluate(model, GRAPHS, ["occlusion"], labels=["many", "few", "many", "few"])
    of = report.robustness["mask"]
    assert of == Robustness("accuracy", (1.0, 1.0, 0.5, 0.5), 0.5, 4)
    assert of.kept == 0
    (sentence,) = report.robustness_sentences()
    assert "cannot be trusted" in sentence
    assert sentence in report._repr_html_()


def test_a_regression_that_counts_keeps_what_its_r2_says():
    model = gx.wrap(Counts(0.0).eval(), kind="regression")
    of = gx.evaluate(model, GRAPHS, ["occlusion"]).robustness["mask"]
    # without half of the nodes 8, 2, 8, 2 become 4, 1, 4, 1: squares of errors 16, 1, 16, 1 over 36
    assert of.values == pytest.approx((1.0, 1 - (4 + 0) * 2 / 36, 1 - 34 / 36, 1 - 74 / 36))


def test_a_model_that_bears_it_is_said_to():
    of = Robustness("accuracy", (0.9, 0.88, 0.8, 0.6), 0.5, 20)
    assert of.sentence("mask") == (
        "Without half of the nodes (`mask`) the accuracy is 0.80 instead of 0.90; always the same"
        " answer has 0.50."
    )


def test_the_summary_starts_with_it(tmp_path):
    model = gx.wrap(Counts(5.0).eval(), kind="binary", classes=("few", "many"))
    report = gx.evaluate(model, GRAPHS, ["occlusion"])
    text = (report.save(tmp_path) / "summary.md").read_text()
    table = "| `mask` | agreement | 1.000 | 1.000 | 0.500 | 0.500 |"
    assert table in text
    assert text.index(table) < text.index("| method |")


def test_tables_say_which_methods_know_the_curve():
    from graphxai.explainers.registry import REGISTRY

    notes = {name: cls.traits.note for name, cls in REGISTRY.items() if cls.traits.note}
    assert notes == {
        "learned": "trained on the activation curve",
        "order_marginals": "searches the curve",
    }
