"""The positive rules on wrapped models agree with the Graphormer, NumPy, and equal models."""

import gc
import warnings
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import TransformerConv, global_mean_pool

import graphxai as gx
from graphxai.contract.target import Target
from graphxai.datasets.molecules import molecule_to_data
from graphxai.explainers import HeadStatistics, get_explainer
from graphxai.explainers.positive import in_double_precision, pass_relevance_back
from graphxai.models.graphormer import StructureEncoding, collate
from graphxai.rules.positive import CHEFER, PLAIN
from other_models import GpsModel, OwnLayer, SparseModel, encoder, molecules, trained
from toy import random_graphormer

METHODS = ("transformer_attribution", "lrp_zplus", "partial_lrp", "masked_lrp")


def scores(model, x, method="transformer_attribution", **options):
    return gx.explain(model, x, method=method, **options).relevance


def relevance_of(model, graphs, rules):
    """Return the relevance of tokens (B, T, D) and of attention, in double precision."""
    batch = model.collate([model.prepare(graph).data for graph in graphs])
    return pass_relevance_back(in_double_precision(model), batch, Target(), rules)


class Foreign(nn.Module):
    """A Graphormer's weights and structural bias in plain PyTorch."""

    def __init__(self, inner, bias):
        super().__init__()
        self.inner, self.bias = inner, bias.detach()

    def affine(self, part, x):
        return F.linear(x, part.weight, part.bias)

    def norm(self, part, x):
        return F.layer_norm(x, x.shape[-1:], part.weight, part.bias, part.eps)

    def attend(self, attn, x):
        maps = (attn.query, attn.key, attn.value)
        q, k, v = (self.affine(m, x).unflatten(-1, (attn.heads, -1)).transpose(1, 2) for m in maps)
        weights = (q @ k.mT * attn.scale + self.bias).softmax(-1)
        return self.affine(attn.output, (weights @ v).transpose(1, 2).flatten(2))

    def feed(self, ffn, x):
        return self.affine(ffn.contract, F.gelu(self.affine(ffn.expand, x)))

    def forward(self, x):
        for layer in self.inner.layers:
            if layer.pre_layernorm:
                x = x + self.attend(layer.attention, self.norm(layer.attention_norm, x))
                x = x + self.feed(layer.ffn, self.norm(layer.ffn_norm, x))
            else:
                x = self.norm(layer.attention_norm, x + self.attend(layer.attention, x))
                x = self.norm(layer.ffn_norm, x + self.feed(layer.ffn, x))
        return self.affine(self.inner.head, self.norm(self.inner.final_norm, x[:, 0]))


@pytest.mark.parametrize("method", METHODS[:3])
@pytest.mark.parametrize("pre_layernorm", [True, False])
def test_an_unrecognised_graphormer_is_explained_the_same(method, pre_layernorm):
    model = random_graphormer(pre_layernorm=pre_layernorm).double()
    encode = StructureEncoding.from_config(model.config)
    batch = collate([encode(molecule_to_data("CC(=O)Nc1ccccc1"))])

    foreign = gx.wrap(
        Foreign(model, model.bias(batch)), model.config.tasks, inputs="tokens", graph_token=True
    )
    expected = get_explainer(method).attribute(model, batch)
    explanation = gx.explain(foreign, model.embed(batch)[0].detach(), method=method)
    np.testing.assert_allclose(explanation.relevance, expected.relevance[0], rtol=1e-5)


class Encoder(nn.Module):
    """A Graphormer that reads tokens, with the structure of one graph."""

    def __init__(self, inner, batch):
        super().__init__()
        self.inner, self.batch = inner, batch

    def forward(self, x):
        return self.inner.encode(x, self.batch)


@pytest.mark.parametrize("pre_layernorm", [True, False])
def test_a_wrapped_graphormer_is_explained_as_itself(pre_layernorm):
    model = random_graphormer(pre_layernorm=pre_layernorm)
    encode = StructureEncoding.from_config(model.config)
    batch = collate([encode(molecule_to_data("CC(=O)Nc1ccccc1"))])
    foreign = gx.wrap(Encoder(model, batch), model.config.tasks, inputs="tokens", graph_token=True)
    distances = np.zeros((3, 4, 5))
    distances[..., 1] = 1.0
    distances[:, 2:, :3] = 1 / 3  # heads 2 and 3 are not important
    heads = HeadStatistics(distances, ("bonded",), np.zeros((3, 4, 1)), np.ones(1), 10)
    for method in ("transformer_attribution", get_explainer("masked_lrp", statistics=heads)):
        explainer = get_explainer(method) if isinstance(method, str) else method
        expected = explainer.attribute(model, batch)
        explanation = gx.explain(foreign, model.embed(batch)[0].detach(), method=method)
        assert np.abs(explanation.relevance).max() > 0
        np.testing.assert_allclose(explanation.relevance, expected.relevance[0].detach(), rtol=1e-4)


class TokenModel(nn.Module):
    """An encoder with mean pooling, whose layers are written as `written` says (see `OwnLayer`)."""

    def __init__(self, written=None):
        super().__init__()
        encoded = encoder()
        own_layers = [OwnLayer(layer, written) for layer in encoded.layers]
        self.body = encoded if written is None else nn.Sequential(*own_layers)
        torch.manual_seed(4)
        self.head = nn.Linear(16, 2).double()

    def forward(self, x):
        return self.head(self.body(x).mean(1))


@pytest.mark.parametrize("method", METHODS)
def test_relevance_does_not_depend_on_how_attention_is_written(method):
    x = torch.randn(7, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    by_hand = gx.wrap(TokenModel("softmax").eval(), kind="multiclass", classes=2, inputs="tokens")
    expected = scores(by_hand, x, method)
    assert np.abs(expected).max() > 1e-6
    for written in ("functional", "module", None):
        model = gx.wrap(TokenModel(written).eval(), kind="multiclass", classes=2, inputs="tokens")
        np.testing.assert_allclose(scores(model, x, method), expected, rtol=1e-6)


class Convolution(nn.Module):
    """One layer of attention along edges or of all nodes, mean pooling, and one output."""

    def __init__(self, dense=False):
        super().__init__()
        torch.manual_seed(5)
        self.conv = TransformerConv(5, 3, heads=2, root_weight=False)
        self.head = nn.Linear(6, 1)
        self.dense = dense

    def forward(self, x, edge_index, batch):
        if not self.dense:
            return self.head(global_mean_pool(self.conv(x, edge_index), batch))
        conv = self.conv
        maps = (conv.lin_query, conv.lin_key, conv.lin_value)
        q, k, v = (f(x).view(len(x), 2, 3).transpose(0, 1) for f in maps)
        weights = (q @ k.transpose(1, 2) / 3**0.5).softmax(-1)
        return self.head((weights @ v).transpose(0, 1).reshape(len(x), 6).mean(0, keepdim=True))


def complete_graph(n=4):
    x = torch.randn(n, 5, generator=torch.Generator().manual_seed(1))
    return Data(x=x, edge_index=torch.ones(n, n).nonzero().T.contiguous())


@pytest.mark.parametrize("method", METHODS[:3])
def test_attention_along_all_edges_is_dense_attention(method):
    graph = complete_graph()
    sparse, dense = (gx.wrap(Convolution(d).eval(), kind="regression") for d in (False, True))
    np.testing.assert_allclose(
        scores(sparse, graph, method), scores(dense, graph, method), rtol=1e-5, atol=1e-9
    )


def test_z_plus_along_edges_equals_loops_over_indices():
    """Eq. 5 is applied from the output through pooling, attention as weights, and values."""
    module, graph = Convolution().eval(), complete_graph()
    state = {name: p.detach().double().numpy() for name, p in module.state_dict().items()}
    x = graph.x.double().numpy()

    def linear(name, value):
        return value @ state[f"conv.{name}.weight"].T + state[f"conv.{name}.bias"]

    q, k, v = (linear(f"lin_{n}", x).reshape(4, 2, 3) for n in ("query", "key", "value"))
    logits = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(3)
    a = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)  # (H, N, N)
    terms = np.einsum("hij,jhd->ijhd", a, v)
    mixed = terms.sum(1)  # (N, H, d)

    def shares(values):
        chosen = np.maximum(values, 0) if (values > 0).any() else values
        return chosen / chosen.sum()

    pooled = mixed.mean(0).reshape(-1)
    of_pooled = np.maximum(pooled * state["head.weight"][0], 0)
    of_pooled = (of_pooled / of_pooled.sum()).reshape(2, 3)
    of_values = np.zeros_like(v)
    for h, d in np.ndindex(2, 3):
        of_mixed = shares(mixed[:, h, d]) * of_pooled[h, d]
        for i in range(4):
            of_values[:, h, d] += shares(terms[i, :, h, d]) * of_mixed[i]
    expected, weight = np.zeros(4), state["conv.lin_value.weight"]
    for j, c in np.ndindex(4, 6):
        products = np.maximum(x[j] * weight[c], 0)
        expected[j] += of_values.reshape(4, 6)[j, c] * (products.sum() > 0)
    model = gx.wrap(module, kind="regression")
    np.testing.assert_allclose(scores(model, graph, "lrp_zplus"), expected, rtol=1e-5)


@pytest.fixture(scope="module")
def three_models():
    modules = (GpsModel(), GpsModel(norm="layer_norm"), SparseModel("gat"))
    started = [trained(module, molecules()[:4], steps=3) for module in modules]
    return [gx.wrap(module, kind="regression") for module in started]


@pytest.mark.usefixtures("only_relevance", "recorded_once")
def test_scores_of_a_graph_do_not_depend_on_its_batch(three_models):
    graphs = [graph for graph in molecules() if graph.num_nodes < 15]
    for model, method in product(three_models, METHODS):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no operation is without a rule
            together = gx.explain(model, graphs, method=method)
            for graph, explanation in zip(graphs, together, strict=True):
                np.testing.assert_allclose(
                    explanation.relevance,
                    scores(model, graph, method),
                    rtol=1e-5,
                    atol=1e-9,
                    err_msg=method,
                )


@pytest.mark.parametrize("rules", [CHEFER, PLAIN])
def test_relevance_passed_on_by_gps_is_what_came_in(rules):
    """Mean pooling, skips, batch norm, messages and attention together create no relevance.

    Some is lost where no product in a map is positive (eq. 5), or in constants' shares.
    """
    graphs = molecules()[:3]
    model = gx.wrap(trained(GpsModel(), graphs, steps=3), kind="regression")
    tokens = relevance_of(model, graphs, rules).tokens
    assert (tokens[:, 1:].sum((1, 2)) > 0.5).all()
    assert (tokens[:, 1:].sum((1, 2)) <= 1 + 1e-9).all()
    assert rules is CHEFER or (tokens >= 0).all()


@pytest.mark.parametrize("spelling", ["addmm", "residual addmm", "einsum", "baddbmm"])
def test_a_product_with_weights_is_a_linear_map_however_it_is_written(spelling):
    class Spelled(Convolution):
        def __init__(self, spelling):
            super().__init__()
            self.up, self.spelling = nn.Linear(6, 6, bias=False), spelling

        def change(self, h):
            w, b = self.up.weight.T, h.new_zeros(())
            if self.spelling == "addmm":
                return h + torch.addmm(b, h, w)
            if self.spelling == "residual addmm":
                return torch.addmm(h, h, w)
            if self.spelling == "einsum":
                rows = torch.einsum("nd->dn", h)
                return h + torch.einsum("dn,ed->ne", rows, self.up.weight)
            if self.spelling == "baddbmm":
                return h + torch.baddbmm(b, h[None], w[None])[0]
            return h + self.up(h)

        def forward(self, x, edge_index, batch):
            h = self.change(self.conv(x, edge_index))
            return self.head(global_mean_pool(h, batch))

    graph = complete_graph()
    for method in METHODS[:3]:
        expected = scores(gx.wrap(Spelled("").eval(), kind="regression"), graph, method)
        model = gx.wrap(Spelled(spelling).eval(), kind="regression")
        np.testing.assert_allclose(scores(model, graph, method), expected, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_a_model_that_fixes_its_type_is_explained_in_that_type(method):
    class Fixed(Convolution):
        dtype = torch.float32

        def forward(self, x, edge_index, batch):
            h = self.conv(x, edge_index)
            h = h + h @ torch.full((6, 6), 0.2, dtype=self.dtype or h.dtype)
            return self.head(global_mean_pool(h, batch))

    class Free(Fixed):
        dtype = None

    graph = complete_graph()
    relevance, expected = (
        scores(gx.wrap(kind().eval(), kind="regression"), graph, method) for kind in (Fixed, Free)
    )
    assert np.abs(expected).max() > 0
    np.testing.assert_allclose(relevance, expected, rtol=1e-3)


def test_operations_in_place_change_nothing():
    class InPlace(nn.Module):
        def __init__(self, in_place):
            super().__init__()
            torch.manual_seed(6)
            self.conv, self.up = TransformerConv(5, 3, heads=2), nn.Linear(6, 6)
            self.head, self.in_place = nn.Linear(6, 1), in_place

        def forward(self, x, edge_index, batch):
            h = self.conv(x, edge_index)
            y = self.up(h)
            if self.in_place:
                F.relu(y, inplace=True)
                h += y
                h.mul_(2.0)
            else:
                h = (h + y.relu()) * 2.0
            return self.head(global_mean_pool(h, batch))

    graph = complete_graph()
    for method in METHODS[:3]:
        writing_over, copying = (
            gx.wrap(InPlace(p).eval(), kind="regression") for p in (True, False)
        )
        np.testing.assert_allclose(
            scores(writing_over, graph, method), scores(copying, graph, method)
        )


@pytest.mark.parametrize("gate", ["sigmoid", "glu", "silu"])
def test_a_gate_hands_all_relevance_to_what_it_lets_through(gate):
    """The gate acts as a constant, but a value that gates itself is an activation."""

    class Gated(Convolution):
        frozen = None

        def odd(self, h):
            g = torch.sigmoid(h if gate == "silu" else h.flip(-1))
            if self.frozen is None:
                self.last = g.detach()
                both = torch.cat([h, h.flip(-1)], dim=-1)
                return F.glu(both) if gate == "glu" else h * g
            return h * self.frozen

        def forward(self, x, edge_index, batch):
            return self.head(global_mean_pool(self.odd(self.conv(x, edge_index)), batch))

    module, graph = Gated().eval(), complete_graph()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = scores(gx.wrap(module, kind="regression"), graph, "lrp_zplus")
    module(graph.x, graph.edge_index, torch.zeros(4, dtype=torch.long))
    module.frozen = module.last
    model = gx.wrap(
        module,
        kind="regression",
        forward=lambda m, b: m.double()(b.x.double(), b.edge_index, b.batch),
    )
    np.testing.assert_allclose(values, scores(model, graph, "lrp_zplus"), rtol=1e-4)


def test_other_products_give_each_factor_half():
    """In u * v from two maps of a token, a half is lost where a map has no positive term."""

    class Unit(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(7)
            self.up, self.attn = nn.Linear(4, 2, bias=False), nn.MultiheadAttention(4, 1)
            self.attn.in_proj_weight.data.normal_()

        def forward(self, x):
            u, v = self.up(self.attn(x, x, x)[0]).chunk(2, dim=-1)
            return (u * v).sum(1)

    model = gx.wrap(Unit().double().eval(), kind="regression", inputs="tokens")
    passed = relevance_of(model, [torch.ones(1, 4, dtype=torch.float64)], PLAIN)
    with torch.no_grad():
        mixed = model.module.attn(*[torch.ones(1, 1, 4, dtype=torch.float64)] * 3)[0][0, 0]
        products = mixed * model.module.up.weight  # (2, 4)
    reached = (products > 0).any(-1).sum().item()
    assert passed.attention[0].sum().item() == pytest.approx(reached / 2)


@pytest.mark.parametrize("attention", ["SGFormerAttention", "PolynormerAttention"])
@pytest.mark.parametrize("method", METHODS[:3])
def test_linear_attention_is_explained_alone_as_in_a_batch(attention, method):
    from torch_geometric.nn import attention as kinds
    from torch_geometric.utils import to_dense_batch

    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(8)
            self.up = nn.Linear(9, 8)
            sizes = {"channels": 8, "heads": 2, "head_channels": 8 if "SG" in attention else 4}
            self.attn = getattr(kinds, attention)(**sizes)
            self.head = nn.Linear(8, 1)
            self.head.weight.data.abs_()  # otherwise eq. 5 drops all relevance after a ReLU

        def forward(self, x, batch):
            h, mask = to_dense_batch(self.up(x), batch)
            return self.head(global_mean_pool(self.attn(h, mask)[mask], batch))

    graphs = molecules()[:3]
    model = gx.wrap(Linear().eval(), kind="regression")
    together = gx.explain(model, graphs, method=method)
    for graph, explanation in zip(graphs, together, strict=True):
        alone = scores(model, graph, method)
        assert np.abs(alone).max() > 0
        np.testing.assert_allclose(explanation.relevance, alone, rtol=1e-4, atol=1e-8)


def test_an_operation_without_a_rule_is_named():
    class Odd(Convolution):
        def forward(self, x, edge_index, batch):
            h = self.conv(x, edge_index)
            distances = torch.cdist(h, h).sum(-1, keepdim=True).expand(-1, 3)
            return self.head(global_mean_pool(torch.cat([h[:, :3], distances], -1), batch))

    model = gx.wrap(Odd().eval(), kind="regression")
    with pytest.warns(UserWarning, match="has parts that no positive rule covers.*Odd: cdist"):
        scores(model, complete_graph(), "lrp_zplus")


class Scaled(nn.Module):
    """Attention, and a LayerNorm that may be written out in a module of another name."""

    def __init__(self, written_out):
        super().__init__()
        torch.manual_seed(9)
        self.attn, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 1)
        self.written_out = written_out

    def forward(self, x):
        h = x + self.attn(x, x, x, need_weights=False)[0]
        if self.written_out:
            h = h - h.mean(-1, keepdim=True)
            h = h / (h.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        else:
            h = F.layer_norm(h, (8,))
        return self.head(h).mean(1)


@pytest.mark.parametrize("method", METHODS[:3])
def test_a_norm_that_is_written_out_anywhere_is_a_norm(method):
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(2))
    first, second = (
        gx.wrap(Scaled(out).eval(), kind="regression", inputs="tokens") for out in (True, False)
    )
    np.testing.assert_allclose(scores(first, x, method), scores(second, x, method), rtol=1e-5)


def test_a_mean_of_neighbours_is_not_the_mean_of_a_norm():
    """The difference of a node and its neighbours is a sum, so both have relevance."""

    class Differences(nn.Module):
        def forward(self, x, edge_index, batch):
            source, target = edge_index
            near = torch.zeros_like(x).index_add(0, target, x[source])
            return global_mean_pool((x - near).relu(), batch)[:, :1]

    line = Data(x=torch.tensor([[2.0], [-3.0]]), edge_index=torch.tensor([[1], [0]]))
    values = scores(gx.wrap(Differences(), kind="regression"), line, "lrp_zplus")
    np.testing.assert_allclose(values, [0.4, 0.6], rtol=1e-6)


def test_a_signal_that_was_cut_off_is_named():
    class Cut(nn.Module):
        def forward(self, x, edge_index, batch):
            return global_mean_pool(x + x.detach().relu(), batch)[:, :1]

    with pytest.warns(UserWarning, match="Cut uses values of the nodes without their gradient"):
        scores(gx.wrap(Cut(), kind="regression"), complete_graph(), "lrp_zplus")


@pytest.mark.parametrize("method", METHODS[:3])
def test_a_softmax_by_logarithms_is_a_softmax(method):
    class Mixing(nn.Module):
        def __init__(self, by_logarithms):
            super().__init__()
            torch.manual_seed(10)
            self.qkv, self.head = nn.Linear(6, 18), nn.Linear(6, 1)
            self.by_logarithms = by_logarithms

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            s = q @ k.mT
            a = (s - s.logsumexp(-1, keepdim=True)).exp() if self.by_logarithms else s.softmax(-1)
            return self.head(x + a @ v).mean(1)

    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(3))
    first, second = (gx.wrap(Mixing(p), kind="regression", inputs="tokens") for p in (True, False))
    np.testing.assert_allclose(scores(first, x, method), scores(second, x, method), rtol=1e-5)


def new_tensors_in_memory():
    """Count the tensors in memory, but not those that were frozen for the garbage collector."""
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@pytest.mark.parametrize("method", [*METHODS, "rollout", "gradient_input", "lrp"])
def test_no_tensor_of_a_pass_stays_in_memory(method):
    model, molecule = gx.wrap(GpsModel().eval(), kind="regression"), molecules()[0]
    for _ in range(2):  # what is learned of a model is kept
        scores(model, molecule, method)
    gc.collect()
    gc.freeze()
    for _ in range(2):
        scores(model, molecule, method)
    assert new_tensors_in_memory() == 0
