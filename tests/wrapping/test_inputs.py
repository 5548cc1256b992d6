"""Inputs beside the nodes' features have relevance, also in models that mix graphs."""

import json
import warnings

import numpy as np
import pytest
import torch
from graphs_with_inputs import DIM, EDGES, Inputs, graph
from torch import nn
from torch_geometric.data import Data
from torch_geometric.explain import Explainer as PygExplainer
from torch_geometric.explain import GNNExplainer
from torch_geometric.nn import GCNConv, global_add_pool, global_mean_pool

import graphxai as gx
from graphxai.explainers import REGISTRY, get_explainer
from graphxai.explainers import pyg as algorithms
from other_models import KINDS_OF_METHODS, GpsModel, molecules, quick_explainer

ALL = ("x", "edge_attr", "pe")
IN_UNITS = ("lrp", "lrp_ah", "lrp_ln", "lrp_ah_ln", "attn_lrp", "gradient_input")
GRAPHS = [graph(seed) for seed in (1, 2, 3)]


@pytest.fixture(scope="module")
def model():
    return gx.wrap(Inputs().eval(), kind="regression")


@pytest.mark.parametrize("method", [*IN_UNITS, "integrated_gradients"])
def test_the_relevance_of_every_input_sums_to_its_line_alone_and_in_a_batch(model, method):
    together = gx.explain(model, GRAPHS, method, wrt=ALL)
    for data, explanation in zip(GRAPHS, together, strict=True):
        alone = gx.explain(model, data, method, wrt=ALL)
        assert list(explanation.relevance_of) == list(ALL)
        assert np.array_equal(explanation.relevance_of["x"], explanation.relevance)
        for name in ("edge_attr", "pe"):
            rows, parts = explanation.relevance_of[name], explanation.features_of[name]
            assert parts.shape == data[name].shape
            assert rows == pytest.approx(parts.sum(-1))
            assert rows.sum() == pytest.approx(explanation.ledger.others[name], abs=1e-5)
            assert rows == pytest.approx(alone.relevance_of[name], abs=1e-6)
        assert abs(explanation.ledger.unexplained) < 1e-5


def test_relevance_of_edges_and_positions_is_that_of_a_pass_by_hand(model):
    data, module = GRAPHS[0], model.module
    explanation = gx.explain(model, data, wrt=ALL)
    with torch.no_grad():
        weight = module.head.weight[0]
        edges = data.edge_attr * (weight @ module.edge.weight)
        scale = torch.zeros(4, DIM).index_add(0, EDGES[0], data.edge_attr) + 1  # of messages
        places = data.pe * ((weight * scale) @ module.place.weight)
    assert explanation.features_of["edge_attr"] == pytest.approx(edges.numpy(), abs=1e-6)
    assert explanation.features_of["pe"] == pytest.approx(places.numpy(), abs=1e-6)


def test_a_graph_without_edges_has_no_relevance_of_edges(model):
    lonely = graph(nodes=1)
    lonely.edge_index, lonely.edge_attr = EDGES[:, :0], lonely.edge_attr[:0]
    explanation = gx.explain(model, lonely, wrt=("x", "edge_attr"))
    assert explanation.relevance_of["edge_attr"].shape == (0,)
    assert abs(explanation.ledger.unexplained) < 1e-5


@pytest.mark.parametrize("method", ["lrp", "attn_lrp", "gradient_input"])
@pytest.mark.filterwarnings("ignore:.*without their gradient", "ignore:.*no rule covers")
def test_edges_of_a_gps_sum_to_their_line(method):
    torch.manual_seed(0)
    gps, graphs = gx.wrap(GpsModel().eval(), kind="regression"), molecules()[1:4]
    together = gx.explain(gps, graphs, method, wrt=("x", "edge_attr"))
    for data, explanation in zip(graphs, together, strict=True):
        rows = explanation.relevance_of["edge_attr"]
        assert rows.shape == (data.num_edges,)
        assert rows.sum() == pytest.approx(explanation.ledger.others["edge_attr"], abs=1e-5)
        alone = gx.explain(gps, data, method, wrt=("edge_attr",)).relevance_of["edge_attr"]
        assert rows == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("method", IN_UNITS)
def test_types_have_relevance_by_row_although_they_are_integers(model, method):
    module = model.module
    for data, explanation in zip(
        GRAPHS, gx.explain(model, GRAPHS, method, wrt=["kind"]), strict=True
    ):
        scale = torch.zeros(4, DIM).index_add(0, EDGES[0], data.edge_attr) + 1  # of messages
        with torch.no_grad():
            expected = (module.kind(data.kind) * scale) @ module.head.weight[0]
        assert explanation.relevance_of["kind"] == pytest.approx(expected.numpy(), abs=1e-6)
        assert explanation.ledger.others["kind"] == pytest.approx(expected.sum().item(), abs=1e-5)


class TypedMessages(nn.Module):
    """Messages with a vector for the type of their edge, as in a relational network."""

    def __init__(self):
        super().__init__()
        self.of_type, self.head = nn.Embedding(3, DIM), nn.Linear(DIM, 1)

    def forward(self, x, edge_index, edge_type, batch):
        messages = x[edge_index[0]] + self.of_type(edge_type)
        return self.head(global_add_pool(x.index_add(0, edge_index[1], messages), batch))


def test_types_of_edges_are_an_input_under_the_name_that_pyg_gives_them():
    data, module = molecule_of(edge_type=torch.tensor([0, 0, 1, 1])), TypedMessages().eval()
    explanation = gx.explain(gx.wrap(module, kind="regression"), data, wrt=("x", "edge_type"))
    with torch.no_grad():
        expected = module.of_type(data.edge_type) @ module.head.weight[0]
    assert explanation.relevance_of["edge_type"] == pytest.approx(expected.numpy(), abs=1e-6)
    assert explanation.ledger.others["edge_type"] == pytest.approx(expected.sum().item(), abs=1e-5)
    assert explanation.ledger.biases == pytest.approx(module.head.bias.item(), abs=1e-5)


class Scaled(nn.Module):
    """A model whose nodes have an attribute that scales them."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(DIM, 1)

    def forward(self, x, node_type, batch):
        scale = node_type.reshape(len(x), -1).float().sum(1, keepdim=True)
        return self.head(global_add_pool(x * scale, batch))


@pytest.mark.parametrize(
    "node_type", [torch.tensor([-1, 2, 2, 5]), torch.eye(4)[:, :2], torch.tensor([0.5, 2, 1, 1])]
)
def test_an_attribute_named_as_types_of_nodes_may_hold_anything(node_type):
    data, module = molecule_of(node_type=node_type), Scaled().eval()
    explanation = gx.explain(gx.wrap(module, kind="regression"), data, "occlusion")
    scale = node_type.reshape(4, -1).float().sum(1, keepdim=True)
    expected = (data.x * scale) @ module.head.weight[0]
    assert explanation.relevance == pytest.approx(expected.detach().numpy(), abs=1e-5)


def molecule_of(**attributes) -> Data:
    torch.manual_seed(5)
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    return Data(x=torch.rand(4, DIM), edge_index=edges, **attributes)


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = GCNConv(DIM, 1)

    def forward(self, x, edge_index, batch):
        return global_add_pool(self.layer(x, edge_index), batch)


@pytest.mark.parametrize(
    "attributes",
    [{"edge_gates": torch.rand(4)}, {"explained_node": torch.tensor(1)}, {"schema": "version 1"}],
)
def test_attributes_that_the_model_does_not_read_change_nothing(attributes):
    data, module = molecule_of(**attributes), Convolution().eval()
    model = gx.wrap(module, kind="regression")
    own = module(data.x, data.edge_index, torch.zeros(4, dtype=torch.long)).item()
    assert gx.predict(model, data)["output"].value == pytest.approx(own, abs=1e-6)
    without = gx.explain(model, molecule_of()).relevance
    assert gx.explain(model, data).relevance == pytest.approx(without, abs=1e-6)


def test_saliency_of_an_input_is_the_length_of_its_gradient(model):
    data = GRAPHS[0].clone()
    edges = data.edge_attr.requires_grad_()
    zeros = torch.zeros(len(data.x), dtype=torch.long)
    output = model.module(data.x, data.edge_index, edges, data.pe, data.kind, zeros)
    (gradient,) = torch.autograd.grad(output.sum(), edges)
    explanation = gx.explain(model, GRAPHS, "saliency", wrt="edge_attr")[0]
    assert explanation.relevance_of["edge_attr"] == pytest.approx(gradient.norm(dim=-1).numpy())
    assert not explanation.features_of


def test_integrated_gradients_move_all_inputs_together(model):
    """All inputs and the output for zeros then sum to the output."""
    data = GRAPHS[0]
    ledger = gx.explain(model, data, "integrated_gradients", wrt=ALL).ledger
    zeros = torch.zeros(4, dtype=torch.long)
    with torch.no_grad():
        nothing = model.module(
            0 * data.x, data.edge_index, 0 * data.edge_attr, 0 * data.pe, data.kind, zeros
        )
    assert ledger.biases == pytest.approx(nothing.item(), abs=1e-6)
    assert abs(ledger.unexplained) < 1e-5


def test_by_default_only_the_nodes_features_are_explained(model):
    explanation = gx.explain(model, GRAPHS[0])
    assert not explanation.relevance_of
    same = gx.explain(model, GRAPHS[0], wrt=ALL).relevance
    assert same == pytest.approx(explanation.relevance, abs=1e-7)


@pytest.mark.parametrize(
    ("method", "of", "message"),
    [
        ("occlusion", ("edge_attr",), "Occlusion explains the nodes' features x only"),
        ("gae", ALL, "explains the nodes' features x only, not edge_attr, pe"),
        (
            "lrp",
            ("edge_weight",),
            "no input 'edge_weight'; beside x they have edge_attr",
        ),
        ("saliency", ("kind",), "kind has torch.int64 values, which carry no gradient: explain it"),
    ],
)
def test_what_cannot_be_explained_is_refused_in_a_sentence(model, method, of, message):
    with pytest.raises(ValueError, match=message):
        gx.explain(model, GRAPHS[0], method, wrt=of)


def test_a_graphormer_and_tokens_have_no_further_inputs():
    from toy import random_graphormer

    with pytest.raises(ValueError, match="not available for a Graphormer"):
        gx.explain(random_graphormer(), "CCO", wrt=ALL)
    tokens = gx.wrap(Tokens().eval(), kind="regression", inputs="tokens")
    with pytest.raises(ValueError, match="no input beside x"):
        gx.explain(tokens, torch.randn(3, DIM), wrt=("pe",))


class Tokens(nn.Module):
    """A model that mixes its inputs, because its mean is over the batch too."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.centre, self.head = Centre(), nn.Linear(DIM, 1)

    def forward(self, x):
        return self.head(self.centre(x).relu().mean(1))


class Centre(nn.Module):
    def forward(self, h):
        return h - h.mean((0, 1))


def test_files_keep_the_relevance_of_inputs(model, tmp_path):
    explanation = gx.explain(model, GRAPHS[0], wrt=ALL)
    stored = json.loads(explanation.save(tmp_path / "e.json").read_text())
    for name in ALL:
        assert stored["relevance_of"][name] == explanation.relevance_of[name].tolist()
    assert stored["features_of"]["pe"] == explanation.features_of["pe"].tolist()
    assert explanation.to_pyg().edge_mask.tolist() == explanation.relevance_of["edge_attr"].tolist()


def test_pyg_gets_a_mask_of_edges(model):
    data = GRAPHS[0]
    rest = {"pe": data.pe, "kind": data.kind, "edge_attr": data.edge_attr}
    settings = {"mode": "regression", "task_level": "graph", "return_type": "raw"}

    def masks(algorithm, **inputs):
        return PygExplainer(
            model.module, algorithm, explanation_type="model", node_mask_type="object",
            edge_mask_type="object", model_config=settings,
        )(data.x, data.edge_index, **inputs)  # fmt: skip

    expected = gx.explain(model, data, wrt=ALL)
    explanation = masks(algorithms.Lrp(), batch=torch.zeros(4, dtype=torch.long), **rest)
    assert explanation.edge_mask.numpy() == pytest.approx(
        expected.relevance_of["edge_attr"], abs=1e-6
    )
    assert explanation.node_mask[:, 0].numpy() == pytest.approx(expected.relevance, abs=1e-6)
    with pytest.raises(ValueError, match="does not support"):
        masks(algorithms.Occlusion(), batch=None, **rest)


def test_edges_of_a_batch_keep_their_order_in_pyg_masks(model):
    first, second = GRAPHS[:2]
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    edges = torch.cat([EDGES, EDGES + 4], 1)[:, order]
    attr = torch.cat([first.edge_attr, second.edge_attr])[order]
    explanation = PygExplainer(
        model.module, algorithms.Lrp(), explanation_type="model", edge_mask_type="object",
        model_config={"mode": "regression", "task_level": "graph", "return_type": "raw"},
    )(
        torch.cat([first.x, second.x]), edges, edge_attr=attr, pe=torch.cat([first.pe, second.pe]),
        kind=torch.cat([first.kind, second.kind]), batch=torch.arange(2).repeat_interleave(4),
    )  # fmt: skip
    expected = np.concatenate(
        [gx.explain(model, data, wrt=ALL).relevance_of["edge_attr"] for data in (first, second)]
    )
    assert explanation.edge_mask.numpy() == pytest.approx(expected[order], abs=1e-6)


# -- graphs that a model mixes -------------------------------------------------------------------


class Mixing(nn.Module):
    """Attention over all nodes of a batch, or whatever else `mix` does with them."""

    def __init__(self, mix=None):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(DIM, DIM), nn.Linear(DIM, 1)
        self.mix = Attention() if mix is None else mix

    def forward(self, x, batch):
        return self.head(global_mean_pool(self.mix(self.first(x)), batch))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, 2, batch_first=True)

    def forward(self, h, mask=None):
        return h + self.attention(h[None], h[None], h[None], attn_mask=mask)[0][0]


class Unseen(nn.Module):
    """A mean over the batch that no gradient passes through."""

    def forward(self, h):
        return h + h.detach().mean(0)


@pytest.mark.parametrize("method", [name for name in KINDS_OF_METHODS if name != "cam"])
def test_every_method_names_the_module_that_mixes_graphs_and_keeps_them_apart(method):
    module = Mixing().eval()
    model, explainer = gx.wrap(module, kind="regression"), quick_explainer(method)
    with pytest.warns(UserWarning, match="Mixing mixes the graphs of a batch in mix.attention"):
        together = gx.explain(model, GRAPHS, explainer)
    for data, explanation in zip(GRAPHS, together, strict=True):
        alone = gx.explain(gx.wrap(module, kind="regression"), data, explainer)
        assert explanation.relevance == pytest.approx(alone.relevance, abs=1e-6)
        assert explanation.output == pytest.approx(alone.output, abs=1e-6)


@pytest.mark.parametrize(
    ("mix", "place"),
    [(nn.InstanceNorm1d(4 * 3), "mix"), (Unseen(), "mix"), (nn.LayerNorm(DIM), None)],
)
def test_norms_over_a_batch_mix_and_norms_of_rows_do_not(mix, place):
    module = Mixing(mix).eval()
    if isinstance(mix, nn.InstanceNorm1d):  # over all nodes
        mix.forward = lambda h: (h - h.mean(0)) / h.std(0)
    model = gx.wrap(module, kind="regression")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gx.explain(model, GRAPHS, "random")
    named = [str(w.message) for w in caught if "mixes the graphs" in str(w.message)]
    assert [f"in {place}, so" in text for text in named] == ([] if place is None else [True])


def test_predictions_of_a_mixing_model_are_those_of_graphs_alone():
    module = Mixing().eval()
    together = gx.predict(gx.wrap(module, kind="regression"), GRAPHS)
    alone = [gx.predict(gx.wrap(module, kind="regression"), data) for data in GRAPHS]
    for a, b in zip(together, alone, strict=True):
        assert a["output"].value == pytest.approx(b["output"].value, abs=1e-6)


def test_rows_of_tokens_are_kept_apart_too():
    model = gx.wrap(Tokens().eval(), kind="regression", inputs="tokens")
    inputs = [torch.randn(3, DIM) for _ in range(3)]
    with pytest.warns(UserWarning, match="Tokens mixes the graphs of a batch in centre"):
        together = gx.explain(model, inputs)
    alone = gx.explain(gx.wrap(Tokens().eval(), kind="regression", inputs="tokens"), inputs[1])
    assert together[1].relevance == pytest.approx(alone.relevance, abs=1e-6)


# -- signals without their gradient --------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        m
        for m, cls in REGISTRY.items()
        if cls.traits.needs_gradients and not cls.traits.reports_cut_gradients
    ],
)
def test_methods_without_a_line_for_it_name_a_signal_that_is_cut_off(method):
    module = CutAttention().eval()
    with pytest.warns(UserWarning, match="CutAttention uses values of the nodes without their"):
        gx.explain(gx.wrap(module, kind="regression"), GRAPHS, quick_explainer(method))


class CutAttention(nn.Module):
    """Attention, and beside it a signal that may be without its gradient."""

    def __init__(self, cut=True):
        super().__init__()
        torch.manual_seed(0)
        self.attention, self.head, self.cut = Attention(), nn.Linear(DIM, 1), cut

    def forward(self, x, batch):
        h = self.attention(x, batch[:, None] != batch)
        beside = torch.from_numpy(x.detach().numpy()) if self.cut else x
        return self.head(global_add_pool(h + beside, batch))


def test_hiding_nodes_needs_no_gradient():
    models = [gx.wrap(CutAttention(cut).eval(), kind="regression") for cut in (True, False)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cut, whole = (gx.explain(model, GRAPHS, "occlusion") for model in models)
    for explanation, expected in zip(cut, whole, strict=True):
        np.testing.assert_allclose(explanation.relevance, expected.relevance, rtol=1e-5)


def test_options_of_a_method_can_be_read():
    assert get_explainer("integrated_gradients", steps=7).get_params() == {"steps": 7, "power": 4}
    theirs = algorithms.from_pyg(GNNExplainer(), edge_mask="object").get_params()
    assert (theirs["node_mask"], theirs["edge_mask"], theirs["seed"]) == ("object", "object", 0)
    for name in REGISTRY:
        explainer = get_explainer(name)
        again = type(explainer)(**explainer.get_params())
        assert again.get_params() == explainer.get_params()
