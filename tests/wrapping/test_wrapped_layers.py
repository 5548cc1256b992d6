"""Heads that are computed apart count as one layer, and so does attention side by side."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.explain import Explainer, ModelConfig
from torch_geometric.nn import GATConv, GCNConv, GPSConv, global_mean_pool
from torch_geometric.utils import to_dense_batch

import graphxai as gx
import graphxai.explainers.pyg
from graphxai.explainers.layers import layers_of, pass_with_gradients
from graphxai.explainers.pyg import Algorithm
from graphxai.rules.tape import Tape
from small_graphs import SIZES, graph, started, wrapped

pytestmark = pytest.mark.usefixtures("only_relevance", "recorded_once")

HEADS, DIM = 2, 8
READING = [
    *("attention_last", "rollout", "attention_flow", "gae", "gae_rollout", "cam", "grad_cam"),
    *("att_cat", "transformer_attribution", "partial_lrp"),
]


def tape_of(attention):
    return Tape(False, False, False, False, attention=attention)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM // HEADS) for _ in range(3))

    def forward(self, h, mask):
        logits = (self.q(h) @ self.k(h).mT).masked_fill(~mask[:, None], -torch.inf)
        return logits.softmax(-1) @ self.v(h)


class HeadByHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([Head() for _ in range(HEADS)])

    def forward(self, h, mask):
        return torch.cat([head(h, mask) for head in self.heads], -1)


class LoopOfHeads(HeadByHead):
    """Attention that loops over its heads, which have no module each."""

    def forward(self, h, mask):
        heads_out = []
        for head in self.heads:
            q, k, v = (h @ part.weight.T + part.bias for part in (head.q, head.k, head.v))
            heads_out.append((q @ k.mT).masked_fill(~mask[:, None], -torch.inf).softmax(-1) @ v)
        return torch.cat(heads_out, -1)


class Together(HeadByHead):
    def forward(self, h, mask):
        q, k, v = (torch.stack([getattr(parts, n)(h) for parts in self.heads], 1) for n in "qkv")
        logits = (q @ k.mT).masked_fill(~mask[:, None, None], -torch.inf)
        return (logits.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Transformer(nn.Module):
    def __init__(self, kind, depth=2):
        super().__init__()
        self.embed, self.head = nn.Linear(6, DIM), nn.Linear(DIM, 1)
        self.layers = nn.ModuleList([kind() for _ in range(depth)])

    def forward(self, x, edge_index, batch):
        h, mask = to_dense_batch(self.embed(x), batch)
        for layer in self.layers:
            h = h + layer(h, mask)
        return self.head((h * mask[..., None]).sum(1))


@pytest.mark.parametrize("kind", [HeadByHead, LoopOfHeads])
def test_heads_computed_one_after_another_are_heads_of_one_layer(kind):
    models = [wrapped(started(Transformer(k))) for k in (kind, Together)]
    graphs = [graph(n) for n in SIZES]
    for method in READING:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            explanations, wanted = (gx.explain(model, graphs, method) for model in models)
        for explanation, other in zip(explanations, wanted, strict=True):
            assert abs(other.relevance).max() > 1e-4, method
            np.testing.assert_allclose(
                explanation.relevance, other.relevance, rtol=1e-4, atol=1e-6, err_msg=method
            )


def test_important_heads_that_are_computed_apart_are_named():
    with pytest.warns(UserWarning, match="Transformer computes the heads .* one after"):
        gx.explain(wrapped(started(Transformer(HeadByHead))), graph(7), "masked_lrp")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for model in (Transformer(Together), Gps(GATConv)):
            gx.explain(wrapped(started(model)), graph(7), "masked_lrp")


class Gps(nn.Module):
    def __init__(self, local):
        super().__init__()
        self.embed, self.head = nn.Linear(6, DIM), nn.Linear(DIM, 1)
        self.layers = nn.ModuleList(
            [GPSConv(DIM, local(DIM, DIM), heads=2, norm="layer_norm") for _ in range(3)]
        )

    def forward(self, x, edge_index, batch):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, edge_index, batch)
        return self.head(global_mean_pool(h, batch))


@pytest.mark.parametrize("local", [GATConv, GCNConv])
def test_what_attends_side_by_side_is_one_layer(local):
    model = wrapped(started(Gps(local)))
    batch = model.collate([graph(n) for n in SIZES])
    outputs, attention = pass_with_gradients(model, batch)
    layers = layers_of(model, tape_of(attention), lambda: (outputs, attention))
    each = 2 if local is GATConv else 1
    assert [len(layer) for layer in layers] == [each] * 3
    assert sorted(k for layer in layers for k in layer) == list(range(3 * each))
    heads = [weights.shape[1] for weights in layers.of(attention)]
    assert heads == [2 + each - 1] * 3


class Siblings(nn.Module):
    """Two towers of different depth, and one attention that reads both."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(6, DIM), nn.Linear(DIM, 1)
        self.first, self.second = GATConv(DIM, DIM), GATConv(DIM, DIM)
        self.beside, self.last = GATConv(DIM, DIM), GATConv(DIM, DIM)

    def forward(self, x, edge_index, batch):
        h = self.embed(x)
        aside = self.beside(h, edge_index)
        deep = self.second(self.first(h, edge_index), edge_index)
        return self.head(global_mean_pool(self.last(deep + aside, edge_index), batch))


def test_layers_are_levels_of_dependence():
    model = wrapped(started(Siblings()))
    batch = model.collate([graph(5)])
    outputs, attention = pass_with_gradients(model, batch)
    layers = layers_of(model, tape_of(attention), lambda: (outputs, attention))
    assert list(layers) == [(0, 1), (2,), (3,)]


def test_rollout_of_siblings_by_hand():
    data, plain, read = graph(7), started(Siblings()), []

    def reading(forward):
        def call(x, edge_index):
            out, (ends, weights) = forward(x, edge_index, return_attention_weights=True)
            read.append(torch.zeros(7, 7).index_put((ends[1], ends[0]), weights[:, 0]))
            return out

        return call

    for conv in (plain.beside, plain.first, plain.second, plain.last):
        conv.forward = reading(conv.forward)
    with torch.no_grad():
        plain(data.x, data.edge_index, torch.zeros(7, dtype=torch.long))
    beside, first, second, last = read
    row, eye = torch.full((1, 7), 1 / 7), torch.eye(7)
    for matrix in (last, second, (beside + first) / 2):
        row = row @ (matrix + eye) / 2
    relevance = gx.explain(wrapped(started(Siblings())), data, "rollout").relevance
    np.testing.assert_allclose(relevance, row[0], rtol=1e-4)


@pytest.mark.parametrize("method", ["rollout", "gae", "partial_lrp"])
def test_what_a_first_call_of_pygs_explainer_showed_holds_for_the_next(method):
    model, data = started(Gps(GATConv)), graph(7)
    batch, passes = torch.zeros(7, dtype=torch.long), []
    settings = ModelConfig("regression", "graph", "raw")
    explainer = Explainer(
        model,
        Algorithm(method),
        explanation_type="model",
        node_mask_type="object",
        model_config=settings,
    )
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    calls = []
    for _ in range(2):
        passes.clear()
        mask = explainer(data.x, data.edge_index, batch=batch).node_mask[:, 0]
        calls.append((len(passes), mask))
    (first, mask), (second, again) = calls
    assert second < first
    assert torch.equal(mask, again)
    wanted = gx.explain(wrapped(started(Gps(GATConv))), data, method).relevance
    np.testing.assert_allclose(again, wanted, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("method", ["rollout", "gae", "transformer_attribution"])
def test_a_part_may_be_put_in_place_of_another(method):
    module = started(Siblings())
    model, data = wrapped(module), graph(7)
    before = gx.explain(model, data, method).relevance
    fresh = started(Siblings())
    for edited in (module, fresh):
        edited.second = GATConv(DIM, DIM, heads=4, concat=False)
        started(edited)
    relevance = gx.explain(model, data, method).relevance
    np.testing.assert_allclose(
        relevance, gx.explain(wrapped(fresh), data, method).relevance, rtol=1e-5
    )
    assert abs(relevance - before).max() > 1e-3


def test_a_part_may_have_other_heads_and_the_same_weights():
    module, data = started(Gps(GCNConv)), graph(7)
    model = wrapped(module)
    gx.explain(model, data, "rollout")
    fresh = started(Gps(GCNConv))
    for edited in (module, fresh):
        edited.layers[1].attn = nn.MultiheadAttention(DIM, 4, batch_first=True)
        started(edited)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        relevance = gx.explain(model, data, "rollout").relevance
    np.testing.assert_allclose(
        relevance, gx.explain(wrapped(fresh), data, "rollout").relevance, rtol=1e-5
    )


class InChunks(nn.Module):
    """Attention of two heads, for all queries at once or for one part after another."""

    def __init__(self, way: str):
        super().__init__()
        self.embed, self.qkv, self.head = nn.Linear(6, 8), nn.Linear(8, 24), nn.Linear(8, 1)
        self.way = way

    def forward(self, x, edge_index, batch):
        h, mask = to_dense_batch(self.embed(x), batch)
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(h).chunk(3, -1))
        keep = mask[:, None, None, :]

        def attended(queries):
            return F.scaled_dot_product_attention(queries, k, v, keep)

        match self.way:
            case "whole":
                mixed = attended(q)
            case "joined":
                mixed = torch.cat([attended(part) for part in q.split(2, 2)], 2)
            case "written":
                mixed = torch.empty_like(q)
                for begin in range(0, q.shape[2], 3):
                    mixed[:, :, begin : begin + 3] = attended(q[:, :, begin : begin + 3])
            case "stacked":
                rows = range(q.shape[2])
                mixed = torch.stack([attended(q[:, :, [r]])[:, :, 0] for r in rows], 2)
        h = h + mixed.transpose(1, 2).flatten(-2)
        return self.head(global_mean_pool(h[mask], batch))


@pytest.mark.parametrize("way", ["joined", "written", "stacked"])
def test_chunks_of_queries_are_rows_of_one_matrix(way):
    graphs = [graph(n) for n in (5, 3)]
    for method in ("rollout", "gae", "partial_lrp", "masked_lrp"):
        whole, parts = (
            gx.explain(wrapped(started(InChunks(spelling))), graphs, method)
            for spelling in ("whole", way)
        )
        for expected, explanation in zip(whole, parts, strict=True):
            np.testing.assert_allclose(explanation.relevance, expected.relevance, atol=1e-6)
