"""Codes that are looked up graph by graph are explained as if they were looked up together."""

import pytest
import torch
from torch import nn
from torch_geometric.data import Data

import graphxai as gx
from graphxai.contract.model import NoAttentionError
from graphxai.explainers import REGISTRY
from graphxai.wrapping.embedding import LookedUpInParts

pytestmark = pytest.mark.usefixtures("only_relevance")


class Together(nn.Module):
    """Looks up all codes in one call, and pools the rows of each graph."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.mix = nn.Embedding(5, 6), nn.Linear(6, 6)
        self.out = nn.Linear(6, 1)

    def pooled(self, rows):
        return torch.tanh(self.mix(rows).sum(0)) + torch.tanh(rows).sum(0)

    def forward(self, x, batch, batch_size):
        rows = self.embed(x[:, 0])
        parts = [self.pooled(rows[batch == b]) for b in range(batch_size)]
        return self.out(torch.stack(parts))


class ByMask(Together):
    def forward(self, x, batch, batch_size):
        codes = [x[:, 0][batch == b] for b in range(batch_size)]
        return self.out(torch.stack([self.pooled(self.embed(c)) for c in codes]))


class ByGraph(Together):
    def forward(self, data):
        codes = [graph.x[:, 0] for graph in data.to_data_list()]
        return self.out(torch.stack([self.pooled(self.embed(c)) for c in codes]))


def molecule(*codes: int) -> Data:
    """Make a path of nodes with these codes."""
    ends = torch.arange(len(codes) - 1)
    bonds = torch.stack([ends, ends + 1])
    x = torch.tensor(codes)[:, None]
    return Data(x=x, edge_index=torch.cat([bonds, bonds.flip(0)], 1))


GRAPHS = [molecule(0, 1, 2, 3), molecule(2, 3), molecule(4, 1, 0)]
METHODS = [name for name in REGISTRY if name not in ("learned", "gnn_explainer", "kernel")]


def relevance(kind, inputs, method, embedding=None):
    torch.manual_seed(0)
    model = gx.wrap(kind().eval(), kind="regression", embedding=embedding)
    explained = gx.explain(model, inputs, method)
    return [e.relevance for e in (explained if isinstance(inputs, list) else [explained])]


@pytest.mark.parametrize("inputs", [GRAPHS[0], GRAPHS], ids=["one graph", "a list"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_what_it_says_of_codes_looked_up_together(method, inputs):
    try:
        expected = relevance(Together, inputs, method)
    except NoAttentionError:
        pytest.skip("the model has no attention")
    for kind in (ByMask, ByGraph):
        for scores, wanted in zip(relevance(kind, inputs, method), expected, strict=True):
            assert scores == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("method", ["lrp", "integrated_gradients", "occlusion"])
def test_so_it_is_if_the_embedding_is_named(method):
    expected = relevance(Together, GRAPHS, method, "embed")
    for scores, wanted in zip(relevance(ByMask, GRAPHS, method, "embed"), expected, strict=True):
        assert scores == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("operator", ["mask", "zero", "delete"])
def test_evaluation_measures_the_same_curves(operator):
    measured = []
    for kind in (Together, ByMask, ByGraph):
        model = gx.wrap(kind().eval(), kind="regression")
        report = gx.evaluate(model, GRAPHS, methods=["lrp", "occlusion"], operators=operator)
        assert not report.failures
        measured.append([unit.values[operator] for unit in report.units])
    for values in zip(*measured, strict=True):
        expected, *others = values
        assert any(expected.values())
        assert all(other == pytest.approx(expected, abs=1e-5, nan_ok=True) for other in others)


@pytest.mark.parametrize("kind", [ByMask, ByGraph])
def test_a_pass_without_the_rows_that_were_to_replace_the_codes_is_refused(kind):
    model = gx.wrap(kind().eval(), kind="regression")
    data = [model.prepare(graph).data for graph in GRAPHS]
    batch = model.collate(data)
    rows = torch.cat([model.embed(model.collate([one]))[0, 1:] for one in data]).detach()
    run = model.rows_to_outputs(batch, batch.mask)
    assert torch.equal(run(rows), model(batch))  # the codes are those of the rows
    for other in (2 * rows, rows.clone().requires_grad_()):
        with pytest.raises(LookedUpInParts, match=r"embed in By.* the nodes of 3 graphs in parts"):
            run(other)
