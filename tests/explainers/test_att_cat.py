"""AttCAT of other people's models agrees with a loop over the modules with hooks."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import global_mean_pool

import graphxai as gx
from graphxai.evaluation.testing import check_batching
from graphxai.wrapping import WrappedModel, intercepted
from other_models import Bert, GpsModel, OwnLayer, SparseModel, encoder, molecules, trained

GRAPHS = [g for g in molecules() if g.num_nodes < 20]


def given_to(modules: list[nn.Module], run) -> tuple[Tensor, list[tuple]]:
    """Return what `run` returns, and the arguments of every call of the modules."""
    seen: list[tuple] = []
    hooks = [m.register_forward_pre_hook(lambda _, args: seen.append(args)) for m in modules]
    out = run()
    for hook in hooks:
        hook.remove()
    return out, seen


@pytest.mark.parametrize("name", ["transformer", "gat", "gps"])
def test_graphs_have_the_scores_of_a_loop_over_their_layers(name):
    torch.manual_seed(0)
    model = trained(GpsModel() if name == "gps" else SparseModel(name), GRAPHS, 5)
    model = model.double()
    explanations = gx.explain(gx.wrap(model, kind="regression"), GRAPHS, "att_cat")
    for graph, explanation in zip(GRAPHS, explanations, strict=True):
        n = int(graph.num_nodes)
        x, zeros = graph.x.double().requires_grad_(), torch.zeros(n).long()
        attending = (
            [layer.attn for layer in model.layers] if name == "gps" else [model.first, model.second]
        )
        out, seen = given_to(
            attending, lambda x=x, g=graph, z=zeros: model(x, g.edge_index, g.edge_attr.double(), z)
        )
        expected = torch.zeros(n, dtype=torch.float64)
        for module, args in zip(attending, seen, strict=True):
            (slope,) = torch.autograd.grad(out.sum(), args[0], retain_graph=True)
            share = (args[0] * slope).sum(-1).view(n)
            if name == "gps":
                received = module(*[args[0]] * 3)[1].view(n, n).mean(0)
            else:
                _, (edges, alpha) = module(*args, return_attention_weights=True)
                received = torch.zeros_like(expected).index_add(0, edges[0], alpha.mean(1)) / n
            expected += received * share
        np.testing.assert_allclose(explanation.relevance, expected.detach(), rtol=1e-4)
        assert expected.any()


class Pooled(nn.Module):
    """A model of encoder layers and the mean of the tokens; `batch_first` is PyTorch's."""

    def __init__(self, spelling: str, batch_first: bool = True):
        super().__init__()
        self.layers = encoder().layers
        for layer in self.layers:
            layer.self_attn.batch_first = batch_first
        if spelling != "encoder":
            self.layers = nn.ModuleList(OwnLayer(layer, spelling) for layer in self.layers)
        self.head = nn.Linear(16, 1, dtype=torch.float64)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1 if self.batch_first else 0))


@pytest.mark.parametrize(
    ("spelling", "batch_first"),
    [("encoder", True), ("encoder", False), ("functional", True), ("softmax", True)],
)
def test_rows_of_tokens_have_the_scores_of_a_loop_over_their_layers(spelling, batch_first):
    """This also holds for as many rows as tokens, which makes the axes ambiguous."""
    torch.manual_seed(0)
    model = Pooled(spelling, batch_first).eval()
    rows = torch.randn(5, 5, 16, dtype=torch.float64).requires_grad_()
    attending = [m.self_attn if spelling == "encoder" else m for m in model.layers]
    out, seen = given_to(attending, lambda: model(rows))
    expected = torch.zeros(5, 5, dtype=torch.float64)
    for layer, args in zip(model.layers, seen, strict=True):
        (slope,) = torch.autograd.grad(out.sum(), args[0], retain_graph=True)
        share = (args[0] * slope).sum(-1)
        mha = layer.self_attn if spelling == "encoder" else layer.layer.self_attn
        received = mha(*[args[0]] * 3)[1].mean(1)
        expected += received * (share if batch_first else share.T)
    wrapped = gx.wrap(model, kind="regression", inputs="tokens")
    explanations = gx.explain(wrapped, list(rows.detach()), "att_cat")
    scores = np.stack([explanation.relevance for explanation in explanations])
    np.testing.assert_allclose(scores, expected.detach(), rtol=1e-5)


def test_a_class_token_takes_its_share_and_padding_none():
    model = Bert().eval()
    wrapped = gx.wrap(
        model,
        kind="multiclass",
        classes=3,
        inputs="tokens",
        embedding="embeddings",
        graph_token=True,
    )
    ids = torch.tensor([[0, 5, 3, 7]])
    given = [model.attention[0], model.attention[1]]
    out, seen = given_to(given, lambda: model(ids, torch.ones(1, 4).long()))
    expected = torch.zeros(4)
    for attention, (h, _) in zip(model.attention, seen, strict=True):
        (slope,) = torch.autograd.grad(out[0, 2], h, retain_graph=True)
        q, k = (attention.split(lin(h))[0] for lin in (attention.query, attention.key))
        weights = (q @ k.transpose(1, 2) / 2).softmax(-1)  # (H, T, T)
        expected += weights.mean((0, 1)) * (h * slope).sum(-1)[0]
    batch = wrapped.collate([wrapped.prepare(each).data for each in (ids[0], torch.arange(6))])
    attribution = gx.explainers.get_explainer("att_cat").attribute(wrapped, batch, 2)
    torch.testing.assert_close(attribution.relevance[0, :3], expected[1:].detach())
    torch.testing.assert_close(attribution.graph_token[0], expected[0].detach())
    assert not attribution.relevance[0, 3:].any()


def test_scores_do_not_depend_on_the_other_graphs():
    torch.manual_seed(0)
    model = gx.wrap(GpsModel("layer_norm").eval(), kind="regression")
    check_batching(model, GRAPHS, gx.explainers.get_explainer("att_cat"))


def test_attention_outside_every_module_with_rows_of_nodes_is_named():
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(9, 1)

        def forward(self, data: Batch) -> Tensor:
            weights = (data.x @ data.x.T).softmax(-1)
            return self.lin(global_mean_pool(weights @ data.x, data.batch))

    model = gx.wrap(Whole(), kind="regression")
    with pytest.raises(ValueError, match="att_cat needs the token rows that enter"):
        gx.explain(model, GRAPHS[0], "att_cat")


class Intercepted(nn.Module):
    """A model of tokens that meets the contract itself, and lets its layers be recorded."""

    def __init__(self, wrapped: WrappedModel) -> None:
        super().__init__()
        self.wrapped, self.layers, self.config = wrapped, wrapped.module, wrapped.config

    def embed(self, batch):
        return self.wrapped.embed(batch)

    def encode(self, tokens, batch, keep=None):
        with intercepted(self.layers, layout=batch.layout):
            return self.layers(tokens[:, 1:])

    def split_by_feature(self, batch, gradient):
        return None


def test_a_model_whose_layers_are_intercepted_has_the_scores_of_the_wrapped_layers():
    torch.manual_seed(0)
    wrapped = gx.wrap(Pooled("encoder").eval(), kind="regression", inputs="tokens")
    rows = [torch.randn(5, 16, dtype=torch.float64) for _ in range(2)]
    batch = wrapped.collate([wrapped.prepare(each).data for each in rows])
    explainer = gx.explainers.get_explainer("att_cat")
    of_wrapped = explainer.attribute(wrapped, batch)
    of_intercepted = explainer.attribute(Intercepted(wrapped), batch)
    torch.testing.assert_close(of_intercepted.relevance, of_wrapped.relevance)
    assert of_wrapped.relevance.any()
