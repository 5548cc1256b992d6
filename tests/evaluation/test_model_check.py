"""One check says what works on a model, at what cost, and what to change where it does not."""

import warnings

import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, GINConv, global_add_pool, global_mean_pool

import graphxai as gx
from graphxai.evaluation.testing import check_all
from other_models import GpsModel, graph_of

FEW = ("lrp", "gradient_input", "occlusion", "rollout", "random")


class Gin(nn.Module):
    def __init__(self, width=9):
        super().__init__()
        self.layer, self.head = GINConv(nn.Linear(width, 16)), nn.Linear(16, 1)

    def forward(self, x, edge_index, batch):
        return self.head(global_add_pool(self.layer(x, edge_index).relu(), batch))


class Gat(Gin):
    def __init__(self):
        super().__init__()
        self.layer = GATConv(9, 16)


class Dense(Gin):
    """A transformer in which every node attends to all of the batch, or of its graph."""

    def __init__(self, mixes=False):
        super().__init__()
        self.mixes, self.first = mixes, nn.Linear(9, 16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x, edge_index, batch):
        h = self.first(x)[None]
        apart = None if self.mixes else batch[:, None] != batch
        h = h + self.attention(h, h, h, attn_mask=apart)[0]
        return self.head(global_mean_pool(h[0], batch))


class FailsOnEmpty(Gin):
    def forward(self, x, edge_index, batch):
        h = self.layer(x, edge_index)
        return self.head(torch.stack([h[batch == k].amax(0) for k in range(int(batch[-1]) + 1)]))


class Codes(Gin):
    def __init__(self):
        super().__init__(16)
        self.atoms = nn.Embedding(120, 16)

    def forward(self, x, edge_index, batch):
        return super().forward(self.atoms(x[:, 0]), edge_index, batch)


@pytest.fixture
def graphs():
    return [graph_of(smiles) for smiles in ("Cc1ccoc1", "CCO", "CNC(C)=O")]


def checked(module, graphs, methods=FEW):
    torch.manual_seed(0)
    return gx.check(gx.wrap(module().eval(), kind="regression"), graphs, methods)


@pytest.mark.parametrize("module", [GpsModel, Gat, Dense])
def test_every_method_works_on_a_model_with_attention(module, graphs):
    found = checked(module, graphs)
    assert found.failures == []
    assert all(of.works and of.gradients > 0 for of in found.methods.values())
    assert found.methods["lrp"].tier == "hooks"
    assert found.methods["occlusion"].tier == ""
    assert found.notes["batches"] == "graphs share passes"
    assert len(str(found).splitlines()) <= 12
    assert repr(found) == str(found)  # as Python shows it


def test_attention_is_not_looked_for_where_there_is_none(graphs):
    found = checked(Gin, graphs)
    assert not found.methods["rollout"].applies
    assert found.failures == []
    assert "not for it:  rollout" in str(found)


def test_a_model_that_mixes_graphs_is_told_where(graphs):
    found = checked(lambda: Dense(mixes=True), graphs)
    assert "mixes the graphs of a batch in attention, so graphs run one" in found.notes["batches"]
    assert found.failures == []  # one at a time, they are explained alike


def test_a_model_that_fails_on_an_empty_graph_is_explained_beside_zeros(graphs):
    found = checked(FailsOnEmpty, graphs, (*FEW, "shapley_sampling"))
    assert "the model fails on one" in found.notes["empty graph"]
    assert found.methods["shapley_sampling"].works


def test_the_output_of_an_empty_graph_is_that_of_the_model(graphs):
    module = Gin()
    found = checked(lambda: module, graphs)
    assert found.notes["empty graph"] == f"output {module.head.bias.item():+.4g}"


def test_rows_that_a_table_looks_up_are_named(graphs):
    for graph in graphs:
        graph.x = (graph.x * 5).round().long()
    found = checked(Codes, graphs)
    assert found.notes["look-ups"] == "explained are the rows that atoms looks up for the nodes"


def test_a_method_that_cannot_explain_the_model_says_why(graphs):
    @torch.no_grad()
    def forward(self, x, edge_index, batch):
        return Gin.forward(self, x, edge_index, batch)

    cut = type("Cut", (Gin,), {"forward": forward})
    found = checked(cut, graphs, ["saliency", "occlusion"])
    assert found.methods["occlusion"].works
    assert "does not require grad" in found.methods["saliency"].problem
    assert "fails:" in str(found)


def test_check_all_raises_what_the_check_has_found(graphs, monkeypatch):
    class Counting(Gin):
        """Read the places of nodes, which no method can make equal after renumbering."""

        def forward(self, x, edge_index, batch):
            places = torch.arange(len(x), dtype=x.dtype)[:, None] - len(x) / 2
            return self.head(global_add_pool(self.layer(x * places, edge_index), batch))

    model = gx.wrap(Counting().eval(), kind="regression")
    monkeypatch.setattr("graphxai.evaluation.testing.methods_for", lambda model: ["lrp"])
    failures = gx.check(model, graphs).failures
    with pytest.raises(AssertionError) as error:
        check_all(model, graphs)
    assert str(error.value).splitlines() == failures


# -- models that return probabilities --------------------------------------------------------------


class Returns(Gin):
    """A model of two columns, which are returned after `last`."""

    def __init__(self, last):
        super().__init__()
        self.head, self.last = nn.Linear(16, 2), last

    def forward(self, x, edge_index, batch):
        return self.last(super().forward(x, edge_index, batch))


def near_half(logits):
    return 0.5 + 0.1 * logits.tanh()  # as probabilities might be, from no sigmoid


ONE = {"kind": "binary"}
TWO = {"kind": "multiclass", "classes": 2}
TASKS = {"tasks": [gx.Task("a", "binary", ("n", "y")), gx.Task("b", "regression")]}


def said(work) -> list[str]:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        work()
    return [str(w.message) for w in warned if "returns probabilities" in str(w.message)]


@pytest.mark.parametrize(
    ("last", "options", "are_probabilities"),
    [
        (lambda z: z[:, 0].sigmoid(), ONE, True),
        (lambda z: z.softmax(-1)[:, 1], ONE, True),
        (lambda z: z.sigmoid().split(1, 1)[0], ONE, True),
        (lambda z: torch.where(z[:, 0] > -99, z[:, 0].sigmoid(), 0.0), ONE, True),
        (lambda z: z.softmax(-1), TWO, True),
        (lambda z: torch.cat([z[:, :1].sigmoid(), z[:, 1:]], 1), TASKS, True),
        (lambda z: 1 / (1 + (-z[:, 0]).exp()), ONE, True),
        (lambda z: z[:, 0].exp() / (1 + z[:, 0].exp()), ONE, True),
        (lambda z: (1 + (-z[:, 0]).exp()) ** -1, ONE, True),
        (lambda z: z.exp() / z.exp().sum(-1, keepdim=True), TWO, True),
        (lambda z: near_half(z[:, 0]), ONE, False),
        (lambda z: 0.5 + 0.1 * (z[:, 0] / (1 + z[:, 1].exp())).tanh(), ONE, False),
        (lambda z: z[:, 0].tanh().square() / (1 + z[:, 1].exp()), ONE, False),
        (near_half, TWO, False),
        (lambda z: z.log_softmax(-1), TWO, False),
        (lambda z: z[:, 0].sigmoid(), {"kind": "regression"}, False),
    ],
)
def test_a_model_that_returns_probabilities_is_told_to_return_logits(
    last, options, are_probabilities, graphs
):
    def works():
        yield lambda model: gx.predict(model, graphs[0])
        yield lambda model: gx.explain(model, graphs, "lrp")
        yield lambda model: gx.explain(model, graphs[0], "occlusion")

    for work in works():
        torch.manual_seed(0)
        model = gx.wrap(Returns(last).eval(), **options)
        assert len(said(lambda work=work, model=model: work(model))) == are_probabilities
        assert not said(lambda work=work, model=model: work(model))  # once
    found = str(gx.check(gx.wrap(Returns(last).eval(), **options), graphs, ["lrp"]))
    assert ("returns probabilities" in " ".join(found.split())) == are_probabilities


def test_a_check_leaves_the_mode_of_every_part_and_the_gradients_of_the_caller():
    network = Gin().train()
    network.layer.eval()  # as someone does who trains with fixed statistics
    graphs = [graph_of(smiles) for smiles in ("CCO", "CCN")]
    network.head.weight.grad = torch.ones_like(network.head.weight)
    modes = [part.training for part in network.modules()]
    assert "lrp" in str(gx.check(gx.wrap(network, kind="regression"), graphs, FEW))
    assert [part.training for part in network.modules()] == modes
    assert torch.equal(network.head.weight.grad, torch.ones_like(network.head.weight))
