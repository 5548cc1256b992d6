"""Methods that read attention name attention without a softmax, and nothing else."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import (
    EGConv,
    FAConv,
    GATConv,
    GCNConv,
    GPSConv,
    ResGatedGraphConv,
    SuperGATConv,
    TransformerConv,
    global_add_pool,
    global_mean_pool,
)
from torch_geometric.nn.models import AttentiveFP
from torch_geometric.utils import scatter, to_dense_batch

import graphxai as gx
from graphxai.contract.inputs import prepare_all
from small_graphs import SIZES, graph, started, wrapped

pytestmark = pytest.mark.usefixtures("only_relevance")

DIM = 8


def sparsemax(scores):
    """Compute the sparsemax of Martins and Astudillo 2016, algorithm 1, along the last axis."""
    ordered = scores.sort(dim=-1, descending=True).values
    count = torch.arange(1, scores.shape[-1] + 1)
    sums = ordered.cumsum(-1)
    support = (1 + count * ordered > sums).sum(-1, keepdim=True)
    threshold = (sums.gather(-1, support - 1) - 1) / support
    return (scores - threshold).clamp(min=0)


def _relu(q, k, v, mask):
    return ((q @ k.mT).relu() * mask[:, None] / 5) @ v


def _gelu(q, k, v, mask):
    return (F.gelu(q @ k.mT) * mask[:, None]) @ v


def _sparsemax(q, k, v, mask):
    return sparsemax((q @ k.mT).masked_fill(~mask[:, None], -1e4)) @ v


def _linear_einsum(q, k, v, mask):
    k = k.relu() * mask[..., None]
    moments = torch.einsum("bnd,bne->bde", k, v) / 5
    return torch.einsum("bnd,bde->bne", q.relu(), moments)


def _three_at_once(q, k, v, mask):
    return torch.einsum("bnd,bmd,bme->bne", q, k * mask[..., None], v)


def _entrywise(q, k, v, mask):
    weights = (q[:, :, None] * k[:, None]).sum(-1).relu() * mask[:, None]
    return (weights[..., None] * v[:, None]).sum(2)


def _distances(q, k, v, mask):
    return (mask[:, None] / (1 + torch.cdist(q, k))) @ v


def _heads_that_talk(q, k, v, mask):
    """Attend as in Shazeer 2020, with squares in place of the softmax."""
    q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in (q, k, v))
    weights = F.conv2d(q @ k.mT, torch.tensor([[1.0, 0.5], [-0.5, 1.0]])[..., None, None])
    out = (weights.square() * mask[:, None, None]) @ v
    return out.transpose(1, 2).flatten(2)


DENSE = [_heads_that_talk, _gelu, _linear_einsum, _three_at_once, _distances]


class Mixing(nn.Module):
    """A graph attention, followed by `mix` of queries, keys and values."""

    def __init__(self, mix):
        super().__init__()
        self.mix, self.embed = mix, nn.Linear(6, DIM)
        self.first = GATConv(DIM, DIM)
        self.qkv, self.head = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, 1)


class Dense(Mixing):
    """A model that mixes all nodes of each graph, (B, N, D)."""

    def forward(self, x, edge_index, batch):
        h = self.first(self.embed(x), edge_index)
        h, mask = to_dense_batch(h, batch)
        out = self.mix(*self.qkv(h).chunk(3, -1), mask)
        return self.head(((h + out) * mask[..., None]).sum(1))


def _edges_dot(q, k, v, source, target, batch):
    weights = (q[target] * k[source]).sum(-1, keepdim=True).relu()
    return scatter(weights * v[source], target, dim=0, dim_size=len(q))


def _edges_einsum(q, k, v, source, target, batch):
    weights = torch.einsum("ed,ed->e", q[target], k[source])
    return scatter(weights[:, None] * v[source], target, dim=0, dim_size=len(q))


def _flat_moments(q, k, v, source, target, batch):
    moments = global_add_pool((k[:, :, None] * v[:, None]).flatten(1), batch)
    return torch.einsum("nd,nde->ne", q, moments[batch].unflatten(1, (DIM, DIM)))


class Sparse(Mixing):
    """A model that mixes all nodes of a batch, (n, D), along edges."""

    def forward(self, x, edge_index, batch):
        h = self.first(self.embed(x), edge_index)
        out = self.mix(*self.qkv(h).chunk(3, -1), *edge_index, batch)
        return self.head(global_mean_pool(h + out, batch))


MODELS = [*(Dense(mix) for mix in DENSE)] + [Sparse(mix) for mix in (_edges_einsum, _flat_moments)]
POSITIVE = [*(Dense(mix) for mix in (_relu, _entrywise, _sparsemax)), Sparse(_edges_dot)]


@pytest.mark.parametrize("method", ["rollout", "gae"])
@pytest.mark.parametrize("sizes", [(5,), (7, 4), SIZES, (4, 8, 8, 8, 8, 8, 8, 8)])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.mix.__name__)
def test_attention_without_a_softmax_is_named(model, sizes, method):
    with pytest.warns(UserWarning, match="has no softmax.*leave it out: the model"):
        gx.explain(wrapped(started(model)), [graph(n) for n in sizes], method)


@pytest.mark.parametrize("sizes", [(5,), (7, 4), SIZES])
@pytest.mark.parametrize("model", POSITIVE, ids=lambda model: model.mix.__name__)
def test_weights_of_a_positive_kernel_are_read(model, sizes):
    module = started(model)
    model, graphs = wrapped(module), [graph(n) for n in sizes]
    batch = model.collate([item.data for item in prepare_all(model, graphs)])
    with torch.no_grad(), gx.record() as tape:
        model.encode(model.embed(batch), batch)
    assert len(tape.attention) == 2  # the first is of the graph attention
    for attention, data in zip(tape.attention[1][:, 0], graphs, strict=True):
        n, (source, target) = len(data.x), data.edge_index
        with torch.no_grad():
            h = module.first(module.embed(data.x), data.edge_index)
            q, k, _ = module.qkv(h).chunk(3, -1)
            scores = q @ k.T
        expected = scores.relu() / (5 if module.mix is _relu else 1)
        if module.mix is _sparsemax:
            expected = sparsemax(scores)
        elif module.mix is _edges_dot:
            linked = torch.zeros(n, n).index_put((target, source), torch.ones(len(source)))
            expected = expected * linked
        torch.testing.assert_close(attention[1 : n + 1, 1 : n + 1], expected)


def _bilinear(q, k, v, mask):
    """Attend by a softmax whose logits are scaled by the query and go through functions."""
    logits = (q @ k.mT).tanh() * k.mean(-1, keepdim=True).abs() + (q[:, :, None] - k[:, None]).sum(
        -1
    )
    return logits.masked_fill(~mask[:, None], -torch.inf).softmax(-1) @ v


def _without_projections(q, k, v, mask):
    h = v
    for _ in range(2):
        h = h + (h @ h.mT / 9).masked_fill(~mask[:, None], -torch.inf).softmax(-1) @ h
    return h


def _second_order(q, k, v, mask):
    """Scale the channels by a factor that is computed from their covariance."""
    v = v * mask[..., None]
    return v * (v.mT @ k).sum(-1).sigmoid()[:, None]


def _rms(q, k, v, mask):
    return v * torch.rsqrt((v * v).mean(-1, keepdim=True) + 1e-3) + q * k


def _gated_attention(q, k, v, mask):
    weights = (q @ k.mT).masked_fill(~mask[:, None], -torch.inf).softmax(-1)
    return torch.einsum("bij,bjd,bid->bid", weights, v, q)


def _gates_of_channels(q, k, v, mask):
    return q.sigmoid() @ torch.ones(DIM, DIM) + v


class Convs(nn.Module):
    """A model of attention and convolutions of other kinds."""

    def __init__(self, *convs):
        super().__init__()
        self.embed, self.first, self.head = nn.Linear(6, DIM), GATConv(DIM, DIM), nn.Linear(DIM, 1)
        self.convs = nn.ModuleList(convs)

    def forward(self, x, edge_index, batch):
        h = first = self.first(self.embed(x), edge_index)
        for conv in self.convs:
            arguments = (first,) if isinstance(conv, FAConv) else ()
            of_batch = (batch,) if isinstance(conv, GPSConv) else ()
            h = h + conv(h, *arguments, edge_index, *of_batch)
        return self.head(global_mean_pool(h, batch))


ORDINARY = {
    **{
        mix.__name__: Dense(mix)
        for mix in (
            _bilinear,
            _without_projections,
            _second_order,
            _rms,
            _gates_of_channels,
            _gated_attention,
        )
    },
    "transformer": Convs(TransformerConv(DIM, DIM), TransformerConv(DIM, DIM)),
    "gps": Convs(GPSConv(DIM, GCNConv(DIM, DIM), heads=2, norm="layer_norm")),
    "performer": Convs(GPSConv(DIM, None, heads=2, norm=None, attn_type="performer")),
    "supergat": Convs(SuperGATConv(DIM, DIM), SuperGATConv(DIM, DIM, attention_type="SD")),
    "egconv": Convs(EGConv(DIM, DIM, num_heads=2, num_bases=4)),
    "faconv": Convs(FAConv(DIM)),
}


@pytest.mark.parametrize("sizes", [(5,), SIZES, (4, 8, 8, 8, 8, 8, 8, 8)])
@pytest.mark.parametrize("which", ORDINARY)
@pytest.mark.usefixtures("recorded_once")
def test_nothing_else_is_named(which, sizes):
    model, graphs = wrapped(started(ORDINARY[which])), [graph(n) for n in sizes]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message=".*counts padding.*passes instead of")
        for method in ("rollout", "gae", "attention_flow"):
            gx.explain(model, graphs, method)


class GatedReadOut(nn.Module):
    """One number per node after gated convolutions (Li 2016; Bresson 2017)."""

    def __init__(self):
        super().__init__()
        self.embed, self.gate, self.head = (
            nn.Linear(6, DIM),
            nn.Linear(2 * DIM, 1),
            nn.Linear(DIM, 1),
        )
        self.layers = nn.ModuleList(
            [GPSConv(DIM, ResGatedGraphConv(DIM, DIM), heads=2, norm=None) for _ in range(2)]
        )

    def forward(self, x, edge_index, batch):
        h = first = self.embed(x)
        for layer in self.layers:
            h = layer(h, edge_index, batch)
        gate = self.gate(torch.cat([h, first], -1)).sigmoid()
        return self.head(global_add_pool(gate * h, batch))


class PaddedReadOut(nn.Module):
    """A softmax over the nodes of each graph, (B, N), which may be square."""

    def __init__(self):
        super().__init__()
        self.conv = GATConv(6, DIM)
        self.gate, self.head = nn.Linear(DIM, 1), nn.Linear(DIM, 1)

    def forward(self, x, edge_index, batch):
        h, mask = to_dense_batch(self.conv(x, edge_index), batch)
        weights = self.gate(h).squeeze(-1).masked_fill(~mask, -1e9).softmax(-1)
        return self.head((weights[..., None] * h).sum(1))


@pytest.mark.parametrize("model", [GatedReadOut, PaddedReadOut])
@pytest.mark.parametrize("sizes", [(7,), (1,), (5, 8, 7), (3, 2, 3), (4, 8, 8, 8, 8, 8, 8, 8)])
def test_a_gated_read_out_is_not_named(model, sizes):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        gx.explain(wrapped(started(model())), [graph(n) for n in sizes], "rollout")


# -- weights that sum to one without a softmax are read -----------------------------------------


def _normalised(q, k, v, mask):
    weights = (q @ k.mT).square() * mask[:, None]
    return torch.einsum("bij,bjd->bid", weights / weights.sum(-1, keepdim=True), v)


def _linear(q, k, v, mask):
    q, k = F.elu(q) + 1, (F.elu(k) + 1) * mask[..., None]
    return q @ (k.mT @ v) / (q @ k.sum(1)[..., None])


def _divided_at_the_end(q, k, v, mask):
    weights = (q @ k.mT / 3).exp() * mask[:, None]
    return weights @ v / weights.sum(-1, keepdim=True)


WEIGHTS = {  # what the attention of each is divided by its sum
    _normalised: lambda q, k: (q @ k.mT).square(),
    _linear: lambda q, k: (F.elu(q) + 1) @ (F.elu(k) + 1).mT,
    _divided_at_the_end: lambda q, k: (q @ k.mT / 3).exp(),
}


@pytest.mark.parametrize("sizes", [(5,), (1,), (8, 3), SIZES])
@pytest.mark.parametrize("mix", WEIGHTS, ids=lambda mix: mix.__name__)
def test_weights_that_sum_to_one_are_read(mix, sizes):
    module = started(Dense(mix))
    model, graphs = wrapped(module), [graph(n) for n in sizes]
    batch = model.collate([item.data for item in prepare_all(model, graphs)])
    with torch.no_grad(), gx.record() as tape:
        model.encode(model.embed(batch), batch)
    dense = tape.attention[-1][:, 0]  # the first is of the graph attention
    for attention, data in zip(dense, graphs, strict=True):
        with torch.no_grad():
            h = module.first(module.embed(data.x), data.edge_index)
            weights = WEIGHTS[mix](*module.qkv(h).chunk(3, -1)[:2])
        n = len(data.x)
        expected = weights / weights.sum(-1, keepdim=True)
        torch.testing.assert_close(attention[1 : n + 1, 1 : n + 1], expected)
        assert not attention[n + 1 :].any()


class Narrow(nn.Module):
    """Linear attention with keys and values of different widths."""

    def __init__(self, width, heads=2):
        super().__init__()
        self.first, self.heads = GATConv(6, DIM), heads
        self.q, self.k = nn.Linear(DIM, heads * width), nn.Linear(DIM, heads * width)
        self.v, self.head = nn.Linear(DIM, heads * DIM), nn.Linear(heads * DIM, 1)

    def forward(self, x, edge_index, batch):
        h, mask = to_dense_batch(self.first(x, edge_index), batch)
        each = (part(h).unflatten(-1, (self.heads, -1)) for part in (self.q, self.k, self.v))
        q, k, v = (part.transpose(1, 2) for part in each)  # (B, H, N, width or DIM)
        q, k = F.elu(q) + 1, (F.elu(k) + 1) * mask[:, None, :, None]
        out = q @ (k.mT @ v) / (q @ k.sum(2)[..., None])
        return self.head((out.transpose(1, 2).flatten(2) * mask[..., None]).sum(1))


@pytest.mark.parametrize("nodes", range(2, 10))
def test_linear_attention_is_read_whatever_its_width_and_the_number_of_nodes(nodes):
    model = wrapped(started(Narrow(width=5)))
    batch = model.collate([item.data for item in prepare_all(model, [graph(nodes)])])
    with torch.no_grad(), gx.record() as tape:
        model.encode(model.embed(batch), batch)
    linear = tape.attention[-1]
    assert linear.shape == (1, 2, nodes + 1, nodes + 1)
    torch.testing.assert_close(linear[0, :, 1:, 1:].sum(-1), torch.ones(2, nodes))


def test_a_read_out_by_attention_is_not_named():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = AttentiveFP(6, DIM, 1, edge_dim=2, num_layers=2, num_timesteps=2)

        def forward(self, x, edge_index, batch):
            return self.net(x, edge_index, x.new_ones(edge_index.shape[1], 2), batch)

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        gx.explain(wrapped(started(Net())), [graph(n) for n in SIZES], "rollout")
