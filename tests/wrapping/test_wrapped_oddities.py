"""Unusual but real models are explained: class tokens, views, half precision, no edges."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.utils.checkpoint as checkpointing
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch_geometric.data import Data

import graphxai as gx
from graphxai.evaluation.testing import check_ledger
from other_models import KINDS_OF_METHODS, GpsModel, SparseModel, explainers, molecules, trained


class Tokens(nn.Module):
    """An encoder over rows of tokens, which `read` turns into one row."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head, self.start = nn.Linear(16, 3), nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


class OwnClassToken(Tokens):
    def forward(self, x):
        x = torch.cat([self.start.expand(len(x), -1, -1), x], 1)
        return self.head(self.encoder(x)[:, 0])


class WrittenThroughViews(Tokens):
    def forward(self, x):
        both = torch.zeros(*x.shape[:2], 32)
        half = both[..., 16:]
        half.copy_(x)
        both = both + 0.5
        moved = self.start.expand_as(x).clone()
        moved.view(-1).add_(both[..., 16:].reshape(-1))
        return self.head(self.encoder(moved).mean(1))


def rows(count=3):
    draw = torch.Generator().manual_seed(2)
    return [torch.randn(5, 16, generator=draw) for _ in range(count)]


def tokens(module):
    return gx.wrap(module.eval(), kind="multiclass", classes=3, inputs="tokens")


@pytest.mark.parametrize("module", [Tokens, OwnClassToken, WrittenThroughViews])
def test_the_ledger_closes(module):
    check_ledger(tokens(module()), rows(), "lrp")


def test_models_of_tokens_are_measured():
    report = gx.evaluate(tokens(Tokens()), rows(), ["lrp"], operators="zero")
    assert np.isfinite(report.table()["auac"].map(lambda cell: float(str(cell).split()[0]))).all()


@pytest.mark.parametrize("module", [GpsModel, SparseModel])
@pytest.mark.usefixtures("only_relevance", "recorded_once")
def test_a_graph_without_edges_is_explained_by_every_method(module):
    model = gx.wrap(trained(module(), molecules()[:2], steps=2), kind="regression")
    graph = Data(
        x=torch.randn(4, 9, generator=torch.Generator().manual_seed(3)),
        edge_index=torch.zeros(2, 0, dtype=torch.long),
        edge_attr=torch.zeros(0, 3),
    )
    for explainer in explainers():
        assert np.isfinite(gx.explain(model, graph, explainer).relevance).all(), explainer.name


@pytest.mark.parametrize("method", sorted(KINDS_OF_METHODS))
def test_a_half_precision_body_with_a_precise_head_is_explained(method):
    module = Tokens().to(torch.bfloat16)
    module.head.float()
    model = gx.wrap(
        module.eval(),
        kind="multiclass",
        classes=3,
        inputs="tokens",
        forward=lambda m, t: m.head(m.encoder(t.x, src_key_padding_mask=~t.mask).mean(1).float()),
    )
    explanation = gx.explain(model, rows(1)[0], method)
    assert np.isfinite(explanation.relevance).all()


def test_a_graph_token_of_graphs_is_refused():
    with pytest.raises(ValueError, match="needs inputs='tokens'"):
        gx.wrap(GpsModel(), kind="regression", graph_token=True)


def test_attention_of_the_models_own_class_token_is_what_attention_last_shows():
    module, (x, *_) = OwnClassToken().eval(), rows(1)
    layer = module.encoder.layers[0]
    with torch.no_grad():
        both = layer.norm1(torch.cat([module.start[0], x]))[None]
        weights = layer.self_attn(both, both, both)[1]  # (1, T, T), the mean over the heads
    explanation = gx.explain(tokens(module), x, "attention_last")
    np.testing.assert_allclose(explanation.relevance, weights[0, 0, 1:], rtol=1e-5)


class Checkpointed(Tokens):
    """An encoder whose layers are computed again in the backward pass."""

    def __init__(self, how, reentrant):
        super().__init__()
        self.how, self.reentrant = how, reentrant

    def encoded(self, x):
        layers = self.encoder.layers
        if self.how == "plain":
            return layers[0](x)
        if self.how == "sequential":
            return checkpoint_sequential(layers, 1, x, use_reentrant=self.reentrant)
        return checkpoint(layers[0], x, use_reentrant=self.reentrant)

    def forward(self, x):
        return self.head(self.encoded(x).mean(1))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("how", ["block", "sequential"])
@pytest.mark.parametrize("method", ["gradient_input", "lrp", "gae", "transformer_attribution"])
def test_a_checkpointed_block_is_explained_as_without_checkpoints(how, reentrant, method):
    wanted = gx.explain(tokens(Checkpointed("plain", None)), rows(), method)
    model = tokens(Checkpointed(how, reentrant))
    for explanation, plain in zip(gx.explain(model, rows(), method), wanted, strict=True):
        np.testing.assert_allclose(explanation.relevance, plain.relevance, rtol=1e-5, atol=1e-7)
    check_ledger(model, rows(), "lrp")


def test_nothing_of_pytorch_is_replaced_while_a_model_is_explained():
    """Checkpoints and `torch.vmap` work as usual, here and in other threads."""
    calls = []

    def block(x):
        calls.append(threading.current_thread().name)
        return x.sin()

    def train(name):
        x = torch.ones(3, requires_grad=True)
        checkpoint(block, x, use_reentrant=False).sum().backward()
        checkpoint(block, x, use_reentrant=True).sum().backward()
        return calls.count(name)

    def vmapped():
        seen = []
        torch.vmap(lambda r: seen.append(r.dim()) or r)(torch.ones(4, 2))
        return len(seen)

    class Model(nn.Module):
        def forward(self, x):
            seen_states.append(
                (dict(vars(checkpointing)), dict(vars(checkpointing.CheckpointFunction)))
            )
            seen_states.append((train("MainThread"), vmapped()))
            with ThreadPoolExecutor(1, "other") as pool:
                seen_states.append(pool.submit(lambda: (train("other_0"), vmapped())).result())
            return x

    seen_states = []
    before = dict(vars(checkpointing)), dict(vars(checkpointing.CheckpointFunction))
    with gx.conservative(model=(model := Model())):
        model(torch.ones(2, 3, requires_grad=True))
    assert seen_states == [before, (4, 1), (4, 1)]


class Mapped(Tokens):
    """An encoder written for one row of tokens, and mapped over the batch."""

    def forward(self, x):
        return torch.vmap(lambda row: self.head(self.encoder(row[None])[0].mean(0)))(x)


class MappedTwice(Tokens):
    """A gate and a bias within two maps, with several arguments and results along other axes."""

    def forward(self, x):
        def gated(pair, weight):
            h = torch.nn.functional.silu(self.head(pair["a"] + pair["b"])) * weight
            return h, {"sum": h + 1}

        inner = torch.vmap(gated, in_dims=(0, None), out_dims=(1, 0))
        outer = torch.vmap(inner, in_dims=({"a": 1, "b": 0}, None), out_dims=0)
        pair = {"a": self.encoder(x).transpose(0, 1), "b": x}
        first, second = outer(pair, torch.tensor(0.5))
        return first.mean(2) + second["sum"].mean(1)


class Square(torch.autograd.Function):
    """A custom function that no rule looks into."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, slope):
        return 2 * ctx.saved_tensors[0] * slope


class OwnSoftmax(torch.autograd.Function):
    """A softmax that has its gradient written by hand."""

    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, slope):
        (y,) = ctx.saved_tensors
        return y * (slope - (slope * y).sum(-1, keepdim=True))


class Squares(nn.Module):
    def forward(self, x):
        return Square.apply(x)


class OwnAttention(nn.Module):
    def forward(self, x):
        return OwnSoftmax.apply(x @ x.mT) @ x


class Slope(nn.Module):
    def forward(self, x):
        return torch.func.grad(lambda z: z.lgamma().sum())(x)


class With(Tokens):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return self.head(self.part(self.encoder(x)).mean(1))


@pytest.mark.parametrize("module", [Mapped, MappedTwice])
def test_the_ledger_closes_within_vmap(module):
    module = module()
    model = tokens(module)
    check_ledger(model, rows(), "lrp")
    with torch.no_grad():
        wanted = module(torch.stack(rows()))
    for explanation, output in zip(gx.explain(model, rows(), "lrp"), wanted, strict=True):
        np.testing.assert_allclose(explanation.output, output.max(), rtol=1e-5)


def test_rules_act_within_vmap_as_on_the_batch():
    for method in ("lrp", "lrp_ah", "attn_lrp"):
        wanted = gx.explain(tokens(Tokens()), rows(), method)
        for explanation, plain in zip(
            gx.explain(tokens(Mapped()), rows(), method), wanted, strict=True
        ):
            np.testing.assert_allclose(explanation.relevance, plain.relevance, rtol=1e-4, atol=1e-6)


def test_attention_within_vmap_is_read_as_on_the_batch():
    for method in ("rollout", "gae", "lrp_zplus"):
        wanted = gx.explain(tokens(Tokens()), rows(), method)
        for explanation, plain in zip(
            gx.explain(tokens(Mapped()), rows(), method), wanted, strict=True
        ):
            np.testing.assert_allclose(explanation.relevance, plain.relevance, rtol=1e-4, atol=1e-6)


class PlainAttention(nn.Module):
    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


class PlainSquares(nn.Module):
    def forward(self, x):
        return x * x


@pytest.mark.parametrize(
    ("part", "plain"), [(Squares, PlainSquares), (OwnAttention, PlainAttention)]
)
@pytest.mark.parametrize("method", ["lrp", "lrp_zplus", "gae"])
def test_a_custom_function_is_explained_by_its_forward_pass(part, plain, method):
    def explanation_with(part):
        torch.manual_seed(4)
        return gx.explain(tokens(With(part())), rows(1)[0], method)

    with_function, without = explanation_with(part), explanation_with(plain)
    assert method != "lrp" or abs(with_function.ledger.unexplained) < 1e-5
    np.testing.assert_allclose(with_function.relevance, without.relevance, rtol=1e-4, atol=1e-6)


def test_what_no_rule_covers_within_a_transform_is_named_with_its_module():
    with pytest.warns(UserWarning, match="part: digamma"):
        gx.explain(tokens(With(Slope())), rows(1)[0], "lrp")


def test_a_list_with_an_entry_for_each_node_moves_with_the_nodes():
    edges = torch.tensor([[0, 1], [1, 2]])
    graph = Data(x=torch.eye(4), edge_index=edges, names=["N", "C", "O", "S"])
    model = gx.wrap(nn.Linear(4, 1), kind="regression", forward=lambda module, batch: batch.x)
    (moved,) = model.renumbered([graph], [torch.tensor([3, 0, 1, 2])])
    assert moved.names == ["S", "N", "C", "O"]
    assert model.induced(graph, torch.tensor([True, False, True, True])).names == ["N", "O", "S"]
