"""A model that raises, is undefined or is silent about no nodes has one answer: nodes of zeros."""

import math

import pytest
import torch
from torch import nn
from torch_geometric.nn import global_add_pool

import graphxai as gx
from graphxai.wrapping.removal import outputs_of_many
from small_graphs import ring

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

DIM = 4


GRAPHS = [ring(4, DIM), ring(6, DIM), ring(3, DIM)]


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, 1)

    def forward(self, x, edge_index, batch, batch_size):
        self.look_at(torch.bincount(batch, minlength=batch_size))
        h = self.first(x).index_add(0, edge_index[1], x[edge_index[0]])
        outputs = self.out(global_add_pool(h.tanh(), batch, size=batch_size))
        return self.finished(outputs, torch.bincount(batch, minlength=batch_size))

    def look_at(self, counts):
        pass

    def finished(self, outputs, counts):
        return outputs


class RaisesKeyError(Sum):
    def look_at(self, counts):
        if not counts.all():
            raise KeyError("no nodes")


class Divides(Sum):
    def look_at(self, counts):
        for count in counts.tolist():
            1 / count


class Undefined(Sum):
    def finished(self, outputs, counts):
        return outputs.masked_fill(counts[:, None] == 0, math.nan)


class Silent(Sum):
    def finished(self, outputs, counts):
        return outputs[counts > 0]


UNABLE = [RaisesKeyError, Divides, Undefined, Silent]


def zeroed(graph):
    x = torch.zeros_like(graph.x)
    return Sum().eval()(x, graph.edge_index, torch.zeros(len(x), dtype=torch.long), 1).item()


@pytest.mark.parametrize("kind", UNABLE)
@pytest.mark.parametrize("method", ["shapley_sampling", "occlusion", "lrp", "lrp_path"])
def test_the_ledger_says_that_nodes_were_zeros(kind, method):
    model = gx.wrap(kind().eval(), kind="regression")
    for graph, e in zip(GRAPHS, gx.explain(model, GRAPHS, method, on_error="raise"), strict=True):
        if e.ledger is not None:
            assert e.ledger.without_nodes is None
            assert e.ledger.zeroed_nodes == pytest.approx(zeroed(graph), abs=1e-5)
            assert "zeroed nodes" in str(e.ledger)
        if method == "shapley_sampling":
            assert e.relevance.sum() == pytest.approx(e.output - zeroed(graph), abs=1e-4)


def output_of_part(graph, keep):
    """Return the output of the subgraph on some nodes, or with nodes of zeros if there are none."""
    if not keep.any():
        return zeroed(graph)
    part = graph.subgraph(keep)
    return Sum().eval()(part.x, part.edge_index, torch.zeros(len(part.x)).long(), 1).item()


def first_nodes(graph):
    """Return choices of the first 0, 1, ..., N nodes."""
    return torch.ones(graph.num_nodes + 1, graph.num_nodes).tril(-1).bool()


@pytest.mark.parametrize("kind", UNABLE)
@pytest.mark.parametrize("operator", ["mask", "delete"])
def test_without_nodes_every_operator_measures_nodes_of_zeros(kind, operator):
    model = gx.wrap(kind().eval(), kind="regression")
    parts = [first_nodes(graph) for graph in GRAPHS]
    outputs = outputs_of_many(model, GRAPHS, parts, operator)
    for graph, keeps, of_graph in zip(GRAPHS, parts, outputs, strict=True):
        expected = [output_of_part(graph, keep) for keep in keeps]
        assert of_graph[:, 0].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", UNABLE)
@pytest.mark.parametrize("operator", ["mask", "delete"])
def test_removal_curves_are_finite_and_the_report_says_what_was_measured(kind, operator):
    model = gx.wrap(kind().eval(), kind="regression")
    metrics = ["auac", "srg", "au_mse"]
    report = gx.evaluate(model, GRAPHS, ["lrp"], operators=operator, metrics=metrics)
    assert not report.failures
    for unit in report.units:
        assert all(math.isfinite(value) for value in unit.values[operator].values())
        assert {*metrics} <= unit.values[operator].keys()
    assert any("leaves no node, all nodes are set to zero" in line for line in report.sentences())


def test_a_report_on_a_model_with_an_output_for_nothing_says_nothing_of_zeros():
    for empty, zeros in (("no nodes", False), ("zeros", True)):
        model = gx.wrap(Sum().eval(), kind="regression", empty=empty)
        report = gx.evaluate(model, GRAPHS, ["lrp"], operators="delete", metrics=["auac"])
        assert any("set to zero" in line for line in report.sentences()) == zeros


def test_a_transform_may_fail_on_a_graph_without_nodes():
    def transform(graph):
        assert graph.num_nodes
        return graph

    model = gx.wrap(Sum().eval(), kind="regression", transform=transform)
    (outputs,) = outputs_of_many(model, [GRAPHS[0]], [first_nodes(GRAPHS[0])], "delete")
    assert outputs[0].item() == pytest.approx(Sum().out.bias.item())


def test_zeros_may_be_chosen():
    models = [gx.wrap(Sum().eval(), kind="regression", empty=e) for e in ("no nodes", "zeros")]
    removed, set_to_zero = (gx.explain(m, GRAPHS[0], "shapley_sampling").ledger for m in models)
    assert removed.without_nodes == pytest.approx(Sum().out.bias.item())
    assert removed.zeroed_nodes is None
    assert set_to_zero.without_nodes is None
    assert set_to_zero.zeroed_nodes == pytest.approx(zeroed(GRAPHS[0]), abs=1e-6)
    assert set_to_zero.nodes == pytest.approx(set_to_zero.change, abs=1e-4)
    with pytest.raises(ValueError, match="empty must be 'no nodes' or 'zeros', not 'mean'"):
        gx.wrap(Sum(), kind="regression", empty="mean")
