"""Relevance by layer sums to the ledger, and names the layer that breaks conservation."""

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GINEConv, GPSConv, global_mean_pool

import graphxai as gx
from graphxai.evaluation import layer_sums
from graphxai.models.graphormer import Ensemble
from graphxai.visualization.curves import layers_figure
from toy import random_graphormer

SMILES = ["CC(=O)Nc1ccc(O)cc1", "CCN(CC)CCO"]
METHODS = ("gradient_input", "lrp_ah", "lrp_ln", "lrp_ah_ln", "lrp")


class Gps(nn.Module):
    """Three layers, after one of which features may be multiplied, which no rule covers."""

    def __init__(self, broken=None):
        super().__init__()
        self.first, self.edge = nn.Linear(4, 8), nn.Linear(2, 8)
        mlp = lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))  # noqa: E731
        self.layers = nn.ModuleList(GPSConv(8, GINEConv(mlp()), heads=2) for _ in range(3))
        self.read, self.broken = nn.Linear(8, 1), broken

    def forward(self, x, edge_index, edge_attr, batch):
        h, e = self.first(x), self.edge(edge_attr)
        for number, layer in enumerate(self.layers):
            h = layer(h, edge_index, batch, edge_attr=e)
            h = h * h.roll(1, -1) if number == self.broken else h
        return self.read(global_mean_pool(h, batch))


def graphs():
    generator = torch.Generator().manual_seed(1)
    ends = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 4], [1, 0, 2, 1, 3, 2, 4, 3]])
    draw = [torch.randn(n, generator=generator) for n in ((5, 4), (8, 2))]
    return [Data(x=draw[0], edge_index=ends, edge_attr=draw[1])]


@pytest.mark.parametrize("pre_layernorm", [True, False])
def test_what_layers_create_is_what_the_ledger_leaves_unexplained(pre_layernorm):
    model = random_graphormer(pre_layernorm=pre_layernorm).double()
    frame = layer_sums(model, SMILES, METHODS)
    for number, smiles in enumerate(SMILES):
        for method in METHODS:
            rows = frame[(frame.graph == number) & (frame.method == method)].set_index("stage")
            ledger = gx.explain(model, smiles, method).ledger
            assert rows.created.sum() == pytest.approx(ledger.unexplained, abs=1e-6)
            assert rows.biases.sum() == pytest.approx(ledger.biases, abs=1e-6)
            assert rows.inputs.sum() == pytest.approx(sum(ledger.structure.values()), abs=1e-6)
            tokens = ledger.nodes + ledger.graph_token
            assert rows.relevance["before"] == pytest.approx(tokens, abs=1e-6)
            assert rows.relevance["output"] == pytest.approx(ledger.output, abs=1e-6)
    lrp = frame[frame.method == "lrp"]
    assert lrp.created.abs().max() < 1e-10  # at every layer
    assert list(lrp.stage[:2]) == ["before", "layers.0"]


@pytest.mark.parametrize("broken", [None, 1])
def test_it_finds_the_layer_of_a_wrapped_model_that_breaks(broken):
    """LRP holds one of the factors constant. Gradient x Input counts the product twice."""
    torch.manual_seed(0)
    model = gx.wrap(Gps(broken).eval().double(), kind="regression")
    data = [g.apply(lambda t: t.double() if t.is_floating_point() else t) for g in graphs()]
    names = [f"layers.{k}" for k in range(3)]
    frame = layer_sums(model, data, ["lrp", "gradient_input"], layers=names)
    by_method = {name: rows.set_index("stage") for name, rows in frame.groupby("method")}
    assert by_method["lrp"].created.abs().max() < 1e-6
    assert abs(by_method["lrp"].inputs["layers.0"]) > 1e-2  # embedded edges
    created = by_method["gradient_input"].created
    ledger = gx.explain(model, data[0], "gradient_input").ledger
    assert created.sum() == pytest.approx(ledger.unexplained, abs=1e-6)
    if broken is not None:
        assert created.abs().idxmax() == f"layers.{broken}"
        assert abs(created[f"layers.{broken}"]) > 10 * created.drop(f"layers.{broken}").abs().max()


def test_the_figure_has_a_line_for_each_method():
    frame = layer_sums(random_graphormer(), SMILES, ["lrp", "gradient_input"])
    entering, created = layers_figure(frame).axes
    assert [line.get_label() for line in created.lines] == ["lrp", "gradient_input"]
    means = frame[frame.method == "lrp"].groupby("stage", sort=False).relevance.mean()
    assert list(entering.lines[0].get_ydata()) == pytest.approx(list(means))


def test_layers_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="name modules of the model"):
        layer_sums(random_graphormer(), SMILES, layers=["blocks.0"])
    with pytest.raises(ValueError, match="one of its members"):
        layer_sums(Ensemble([random_graphormer(), random_graphormer()]), SMILES)
    with pytest.raises(ValueError, match="gae has no rules"):
        layer_sums(random_graphormer(), SMILES, ["gae"])
