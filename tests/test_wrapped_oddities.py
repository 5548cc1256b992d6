"""Models written in ways that people write them: class tokens, views, half precision, no edges."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data

import graphxai as gx
from graphxai.explainers import REGISTRY
from graphxai.testing import check_ledger
from other_models import GpsModel, SparseModel, explainers, molecules, trained


class Tokens(nn.Module):
    """An encoder over rows of tokens; `read` makes one row of them."""

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
def test_a_graph_without_edges_is_explained_by_every_method(module):
    model = gx.wrap(trained(module(), molecules()[:2], steps=2), kind="regression")
    graph = Data(
        x=torch.randn(4, 9, generator=torch.Generator().manual_seed(3)),
        edge_index=torch.zeros(2, 0, dtype=torch.long),
        edge_attr=torch.zeros(0, 3),
    )
    for explainer in explainers():
        assert np.isfinite(gx.explain(model, graph, explainer).relevance).all(), explainer.name


@pytest.mark.parametrize("method", sorted(REGISTRY))
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
    found = gx.explain(model, rows(1)[0], method)
    assert np.isfinite(found.relevance).all()


def test_a_graph_token_of_graphs_is_refused():
    with pytest.raises(ValueError, match="is for inputs='tokens'"):
        gx.wrap(GpsModel(), kind="regression", graph_token=True)


def test_attention_over_a_class_token_of_the_models_own_is_told_from_none():
    with pytest.raises(ValueError, match="a class token that the model adds"):
        gx.explain(tokens(OwnClassToken()), rows(1)[0], "rollout")
