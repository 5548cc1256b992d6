"""Attention is read where it is repaired, replaced or kept, and not where it is something else."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, JumpingKnowledge, global_add_pool
from torch_geometric.utils import softmax, to_dense_batch

import graphxai as gx
from graphxai.explainers.layers import pass_with_gradients
from small_graphs import graph, started, wrapped

pytestmark = pytest.mark.usefixtures("only_relevance", "recorded_once")


class Dense(nn.Module):
    """A graph attention, then dense attention between the nodes of each graph by `mix`."""

    def __init__(self, mix):
        super().__init__()
        self.mix = mix
        self.first = GATConv(6, 8, 2, concat=False)
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 1)

    def forward(self, x, edge_index, batch):
        h, mask = to_dense_batch(self.first(x, edge_index), batch)
        q, k, v = self.qkv(h).chunk(3, -1)
        pairs = mask[:, :, None] & mask[:, None]
        self.weights = self.mix((q @ k.mT).masked_fill(~pairs, -torch.inf), pairs)
        return self.head(((h + self.weights @ v) * mask[..., None]).sum(1))


PLAIN = {
    "nan_to_num": lambda s, pairs: torch.nan_to_num(s.softmax(-1)),
    "masked": lambda s, pairs: s.softmax(-1).masked_fill(~pairs, 0.0),
    "distances": lambda s, pairs: 0.3 * s.softmax(-1).nan_to_num() + 0.7 * _near(pairs),
    "half": lambda s, pairs: 0.5 * s.softmax(-1).nan_to_num() + 0.5 * pairs.float(),
    "logsumexp": lambda s, pairs: (s - s.logsumexp(-1, keepdim=True)).nan_to_num(-1e9).exp(),
    "sigmoid": lambda s, pairs: s.sigmoid(),
    "renormalised": lambda s, pairs: _renormalised(s.nan_to_num(neginf=0.0).softmax(-1) * pairs),
}
OTHER = {
    "difference": lambda s, pairs: s.softmax(-1).nan_to_num() - 0.1 * s.sigmoid(),
}


def _near(pairs):
    """Return constants for every pair, as MAT adds them (Maziarka 2020)."""
    steps = torch.arange(pairs.shape[-1])
    return torch.exp(-(steps[:, None] - steps).abs().float()) * pairs


def _renormalised(weights):
    return weights / (weights.sum(-1, keepdim=True) + 1e-13)


@pytest.mark.parametrize("how", PLAIN)
def test_attention_that_is_repaired_after_the_softmax_is_read_as_it_acts(how):
    module = started(Dense(PLAIN[how]))
    model, graphs = wrapped(module), [graph(n) for n in (5, 8)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for method in ("rollout", "gae", "lrp"):
            together = gx.explain(model, graphs, method)
            for explanation, data in zip(together, graphs, strict=True):
                wanted = gx.explain(model, data, method).relevance
                np.testing.assert_allclose(explanation.relevance, wanted, rtol=1e-4, atol=1e-6)
        for explanation in gx.explain(model, graphs, "lrp"):
            assert explanation.ledger.unexplained == pytest.approx(
                0, abs=1e-4 * abs(explanation.output)
            )
        last = gx.explain(model, graphs[0], "attention_last").relevance
    np.testing.assert_allclose(last, module.weights[0].mean(0).detach(), rtol=1e-5)


@pytest.mark.parametrize("how", OTHER)
def test_other_ways_to_attend_are_named_by_methods_that_read_attention(how):
    model = wrapped(started(Dense(OTHER[how])))
    with pytest.warns(UserWarning, match="may not be, attention between the nodes"):
        gx.explain(model, graph(5), "rollout")


class Twice(nn.Module):
    """The softmax of one graph, which meets values in a way that the test chooses."""

    def __init__(self, values):
        super().__init__()
        self.qkv, self.head, self.values = nn.Linear(6, 24), nn.Linear(8, 1), values

    def forward(self, x, edge_index):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = torch.stack([q @ k.mT, k @ q.mT]).softmax(-1)
        return self.head(self.values(weights, q, v).sum((0, 1)))[None]


def test_attention_that_meets_values_twice_is_read_in_both_products():
    twice, once = lambda a, q, v: a @ v + a @ q.tanh(), lambda a, q, v: a @ (v + q.tanh())
    explanation, wanted = (
        gx.explain(wrapped(started(Twice(values))), graph(5), "gae") for values in (twice, once)
    )
    np.testing.assert_allclose(explanation.relevance, wanted.relevance, rtol=1e-4, atol=1e-7)


def test_heads_that_meet_values_one_by_one_are_named():
    model = wrapped(started(Twice(lambda a, q, v: (a[0] @ v + a[1] @ q.tanh())[None])))
    with pytest.warns(UserWarning, match="several products.*read the first"):
        gx.explain(model, graph(5), "gae")


def test_a_model_that_caches_its_first_pass_caches_nothing_of_ours():
    module = started(Cached())
    data = graph(8)
    with torch.no_grad():
        wanted = started(Cached())(data.x, data.edge_index).item()
    explanation = gx.explain(wrapped(module), data, "rollout")
    assert explanation.output == pytest.approx(wanted, rel=1e-5)
    with torch.no_grad():
        assert module(data.x, data.edge_index).item() == pytest.approx(wanted, rel=1e-5)


class Cached(nn.Module):
    """A convolution that keeps the normalised edges of its first graph for all later passes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(6, 8, cached=True), GATConv(8, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x, edge_index):
        h = self.second(self.first(x, edge_index).relu(), edge_index)
        return self.head(h.mean(0, keepdim=True))


class TokensFirst(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head, self.batch_first = nn.Linear(8, 1), batch_first

    def forward(self, x):
        h = x if self.batch_first else x.transpose(0, 1)
        h = self.encoder(h)
        return self.head((h if self.batch_first else h.transpose(0, 1)).mean(1))


@pytest.mark.parametrize("method", ["transformer_attribution", "masked_lrp", "lrp_zplus"])
def test_tokens_may_come_before_inputs(method):
    rows = list(torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(2)))
    plain, other = (
        gx.wrap(started(TokensFirst(first)), kind="regression", inputs="tokens")
        for first in (True, False)
    )
    together = gx.explain(other, rows, method)
    for explanation, row in zip(together, rows, strict=True):
        for wanted in (gx.explain(plain, row, method), gx.explain(other, row, method)):
            np.testing.assert_allclose(
                explanation.relevance, wanted.relevance, rtol=1e-4, atol=1e-7
            )


class FeatureGate(nn.Module):
    """A softmax over the channels of a node, which is no attention, however many nodes exist."""

    def __init__(self):
        super().__init__()
        self.embed, self.gate, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x, edge_index, batch):
        h = self.embed(x)
        h = h * self.gate(h).softmax(-1)
        return global_add_pool(h @ self.head.weight.T, batch)


@pytest.mark.parametrize("method", ["lrp", "attn_lrp"])
def test_a_gate_of_channels_is_not_attention_even_with_as_many_nodes(method):
    model = wrapped(started(FeatureGate()))
    graphs = [graph(8), graph(5), graph(3)]  # 8 nodes, or 5 and 3 of them, and 8 channels
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        alone = [gx.explain(model, data, method) for data in graphs]
        together = gx.explain(model, graphs[1:], method)
    for explanation, wanted in zip([alone[0], *together], alone, strict=True):
        np.testing.assert_allclose(explanation.relevance, wanted.relevance, rtol=1e-4, atol=1e-6)
        if method == "lrp":
            assert abs(explanation.ledger.unexplained) < 1e-4 * abs(explanation.output)
            assert np.abs(explanation.relevance).max() > 0.01


class ByChannel(nn.Module):
    """Attention with weights for every channel (Zhao 2021); its product is written in two ways."""

    def __init__(self, mix):
        super().__init__()
        self.mix, self.embed, self.head = mix, nn.Linear(6, 8), nn.Linear(8, 1)
        self.qkv = nn.Linear(8, 24)

    def forward(self, x, edge_index, batch):
        h, mask = to_dense_batch(self.embed(x), batch)
        q, k, v = self.qkv(h).chunk(3, -1)
        logits = (q[:, :, None] - k[:, None]).masked_fill(~mask[:, None, :, None], -1e9)
        y = self.mix(logits.softmax(2), v[:, None].expand(-1, h.shape[1], -1, -1))
        return self.head(((h + y) * mask[..., None]).sum(1))


@pytest.mark.parametrize("method", ["lrp", "attn_lrp"])
def test_a_product_and_its_sum_are_explained_as_an_einsum(method):
    graphs = [graph(5), graph(8)]
    as_product, as_einsum = (
        gx.explain(wrapped(started(ByChannel(mix))), graphs, method)
        for mix in (
            lambda a, v: (a * v).sum(2),
            lambda a, v: torch.einsum("bijd,bijd->bid", a, v),
        )
    )
    for explanation, wanted in zip(as_product, as_einsum, strict=True):
        np.testing.assert_allclose(explanation.relevance, wanted.relevance, rtol=1e-4, atol=1e-6)


class PairStates(nn.Module):
    """Attention that hands a layer's logits to the next, padding and all (Zhou 2023, Uni-Mol)."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(6, 8), nn.Linear(8, 1)
        self.layers = nn.ModuleList([nn.Linear(8, 24) for _ in range(2)])

    def forward(self, x, edge_index, batch):
        h, mask = to_dense_batch(self.embed(x), batch)
        logits = torch.zeros(len(h), 1, h.shape[1]).masked_fill(~mask[:, None], -torch.inf)
        for layer in self.layers:
            q, k, v = layer(h).chunk(3, -1)
            logits = q @ k.mT + logits
            h = h + logits.softmax(-1) @ v
        return self.head((h * mask[..., None]).sum(1))


class KeysFirst(nn.Module):
    """A softmax along axis -2 that is transposed before it meets the values."""

    def __init__(self):
        super().__init__()
        self.qkv, self.head = nn.Linear(6, 24), nn.Linear(8, 1)

    def forward(self, x, edge_index, batch, keys_first=True):
        h, mask = to_dense_batch(self.qkv(x), batch)
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in h.chunk(3, -1))
        logits = (k @ q.mT).masked_fill(~mask[:, None, :, None], -1e9)
        weights = logits.softmax(-2).mT if keys_first else logits.mT.softmax(-1)
        out = (weights @ v).transpose(1, 2).flatten(2)
        return self.head((out * mask[..., None]).sum(1))


class QueriesFirst(KeysFirst):
    def forward(self, x, edge_index, batch):
        return super().forward(x, edge_index, batch, keys_first=False)


class OfEdges(nn.Module):
    """Attention with scores that are sums of one number each, (E,) (Xiong 2020, AttentiveFP)."""

    def __init__(self):
        super().__init__()
        self.embed, self.a, self.b, self.head = (
            *(nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 1), nn.Linear(8, 1)),
        )

    def forward(self, x, edge_index, batch):
        h, (source, target) = self.embed(x), edge_index
        scores = self.a(h).squeeze(-1)[target] + self.b(h).squeeze(-1)[source]
        weights = softmax(scores, target, num_nodes=len(h))
        out = torch.zeros_like(h).index_add(0, target, weights[:, None] * h[source])
        return self.head(global_add_pool(h + out, batch))


@pytest.mark.parametrize("model", [PairStates, KeysFirst, OfEdges])
@pytest.mark.parametrize("method", ["transformer_attribution", "masked_lrp", "partial_lrp"])
def test_the_positive_rules_are_the_same_alone_and_in_a_batch(model, method):
    model, graphs = wrapped(started(model())), [graph(n) for n in (5, 8, 7)]
    for explanation, data in zip(gx.explain(model, graphs, method), graphs, strict=True):
        wanted = gx.explain(model, data, method).relevance
        assert np.isfinite(wanted).all()
        assert abs(wanted).max() > 1e-4
        np.testing.assert_allclose(explanation.relevance, wanted, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("method", ["rollout", "transformer_attribution", "masked_lrp"])
def test_it_does_not_matter_which_way_round_attention_is_computed(method):
    keys_first, queries_first = wrapped(started(KeysFirst())), wrapped(started(QueriesFirst()))
    for n in (5, 8):
        relevance, wanted = (
            gx.explain(model, graph(n), method).relevance for model in (keys_first, queries_first)
        )
        np.testing.assert_allclose(relevance, wanted, rtol=1e-4, atol=1e-7)


class ReadByAQuery(nn.Module):
    """Attention between nodes, which a learned query then reads out."""

    def __init__(self):
        super().__init__()
        self.embed, self.query, self.head = (
            nn.Linear(6, 8),
            nn.Parameter(torch.ones(8)),
            nn.Linear(8, 1),
        )
        self.between = nn.MultiheadAttention(8, 2, batch_first=True)
        self.reading = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, edge_index, batch):
        h, mask = to_dense_batch(self.embed(x), batch)
        h = h + self.between(h, h, h, key_padding_mask=~mask)[0]
        query = self.query.expand(len(h), 1, -1)
        return self.head(self.reading(query, h, h, key_padding_mask=~mask)[0][:, 0])


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_small_graph_is_read_the_same_before_and_after_a_larger_one(nodes):
    before, after = wrapped(started(ReadByAQuery())), wrapped(started(ReadByAQuery()))
    first = gx.explain(before, graph(nodes), "rollout").relevance
    gx.explain(after, graph(7), "rollout")
    np.testing.assert_allclose(
        first, gx.explain(after, graph(nodes), "rollout").relevance, rtol=1e-5
    )


class OverLayers(nn.Module):
    """A softmax over the layers of each node, of which there may be as many as nodes."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(6, 8), nn.Linear(8, 1)
        self.layers = nn.ModuleList([GATConv(8, 8) for _ in range(3)])
        self.jump = JumpingKnowledge("lstm", 8, 3)

    def forward(self, x, edge_index, batch):
        h, states = self.embed(x), []
        for layer in self.layers:
            h = layer(h, edge_index)
            states.append(h)
        return self.head(global_add_pool(self.jump(states), batch))


@pytest.mark.parametrize("nodes", range(2, 7))
def test_a_softmax_over_layers_is_not_attention_between_nodes(nodes):
    model = wrapped(started(OverLayers()))
    batch = model.collate([graph(nodes)])
    _, attention = pass_with_gradients(model, batch)
    assert len(attention) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        gx.explain(model, graph(nodes), "rollout")


class OfBonds(nn.Module):
    """Attention between bonds that share an atom. A ring has as many bonds as atoms."""

    def __init__(self):
        super().__init__()
        self.embed, self.first, self.conv = nn.Linear(6, 8), GATConv(8, 8), GATConv(8, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x, edge_index, batch):
        h = self.first(self.embed(x), edge_index)
        a, b = edge_index[:, edge_index[0] < edge_index[1]]
        share = (a[:, None] == a) | (a[:, None] == b) | (b[:, None] == a) | (b[:, None] == b)
        z = self.conv(h[a] + h[b], share.fill_diagonal_(False).nonzero().T)
        h = h.index_add(0, a, z).index_add(0, b, z)
        return self.head(global_add_pool(h, batch))


@pytest.mark.parametrize(("nodes", "ring"), [(7, False), (7, True), (3, True)])
def test_attention_between_bonds_is_not_mistaken_for_attention_between_atoms(nodes, ring):
    start = torch.arange(nodes - 1 + ring)
    edges = torch.stack([start, (start + 1) % nodes])
    data = Data(x=graph(nodes).x, edge_index=torch.cat([edges, edges.flip(0)], 1))
    with pytest.warns(UserWarning, match="leave it out: conv"):
        gx.explain(wrapped(started(OfBonds())), data, "rollout")


class Triangles(nn.Module):
    """Attention of pairs to pairs of the same row (Jumper 2021), without heads."""

    def __init__(self):
        super().__init__()
        self.embed, self.first, self.head = nn.Linear(6, 8), GATConv(8, 8), nn.Linear(8, 1)
        self.a, self.b, self.qkv = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 24)

    def forward(self, x, edge_index, batch):
        h, mask = to_dense_batch(self.first(self.embed(x), edge_index), batch)
        pairs = self.a(h)[:, :, None] + self.b(h)[:, None]  # (B, N, N, D)
        q, k, v = self.qkv(pairs).chunk(3, -1)
        weights = (q @ k.mT).masked_fill(~mask[:, None, None], -1e9).softmax(-1)
        both = (mask[:, :, None] & mask[:, None])[..., None]
        return self.head(((pairs + weights @ v) * both).sum((1, 2)))


def test_attention_between_pairs_is_left_out_with_a_warning():
    model, graphs = wrapped(started(Triangles())), [graph(n) for n in (5, 8)]
    with pytest.warns(UserWarning, match="leave it out: the model"):
        together = gx.explain(model, graphs, "rollout")
    with pytest.warns(UserWarning, match="leave it out: the model"):
        alone = gx.explain(model, graphs[0], "rollout")
    np.testing.assert_allclose(together[0].relevance, alone.relevance, rtol=1e-4)
