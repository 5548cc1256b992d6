"""Equal entries in an order share the relevance of its values, or a warning names the choice."""

import warnings

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import SortAggregation, TopKPooling, global_add_pool
from torch_geometric.utils import to_dense_batch

import graphxai as gx

pytestmark = pytest.mark.usefixtures("only_relevance")

DIM = 4
EDGES = torch.tensor([[0, 1], [1, 0]])
SPELLINGS = {
    "topk": lambda h: h.topk(2, 1).values,
    "topk by name": lambda h: torch.topk(input=h, k=2, dim=1, sorted=False)[0],
    "topk along the last axis": lambda h: h.mT.topk(2)[0],
    "sort": lambda h: h.sort(1, descending=True).values[:, :2],
    "sort, stable": lambda h: torch.sort(h, dim=1, stable=True)[0][:, -2:],
    "msort": lambda h: torch.msort(h[0])[-2:][None],
    "kthvalue": lambda h: h.kthvalue(h.shape[1], 1).values,
    "kthvalue that keeps its axis": lambda h: torch.kthvalue(h, h.shape[1], 1, True)[0],
}


class Ordered(nn.Module):
    """A model that sums what an operation takes from rows that share a linear map."""

    def __init__(self, take):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.take = nn.Linear(DIM, 3, bias=False), take

    def forward(self, x, batch):
        h, _ = to_dense_batch(self.first(x), batch, fill_value=-1e9)
        return self.take(h).flatten(1).sum(1, keepdim=True)


def graph(x):
    return Data(x=x, edge_index=EDGES)


EQUAL = graph(torch.ones(5, DIM))
DISTINCT = graph(torch.randn(5, DIM, generator=torch.Generator().manual_seed(0)))


def explained(module, data, method):
    return gx.explain(gx.wrap(module.eval(), kind="regression"), data, method)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("method", ["gradient_input", "lrp", "lrp_zplus"])
def test_equal_nodes_share_the_relevance_of_an_order(spelling, method):
    module = Ordered(SPELLINGS[spelling])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explanation = explained(module, EQUAL, method)
    assert explanation.relevance == pytest.approx([explanation.relevance[0]] * 5, abs=1e-6)
    if method != "lrp_zplus":
        total = explanation.relevance.sum()
        assert total == pytest.approx(explanation.output, abs=1e-5)
        assert abs(total) > 0.1


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_order_without_ties_is_explained_by_its_gradient(spelling):
    module = Ordered(SPELLINGS[spelling]).eval()
    x = DISTINCT.x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(module(x, torch.zeros(5).long()).sum(), x)
    expected = (x * gradient).sum(-1).detach().numpy()
    for method in ("gradient_input", "lrp"):
        assert explained(module, DISTINCT, method).relevance == pytest.approx(expected, abs=1e-6)


CHOICES = {
    "argmax": lambda h: h[torch.arange(len(h)), h.sum(-1).argmax(1)],
    "argsort": lambda h: h.take_along_dim(h.sum(-1).argsort(1, descending=True)[:, :2, None], 1),
    "topk": lambda h: h.take_along_dim(h.sum(-1).topk(2, 1).indices[..., None], 1),
    "max": lambda h: h.take_along_dim(h.sum(-1).max(1, keepdim=True).indices[..., None], 1),
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("method", ["gradient_input", "lrp"])
def test_a_choice_among_equal_nodes_is_named(choice, method):
    module = Ordered(CHOICES[choice])
    above = module.first(torch.ones(DIM)).sum().sign()
    tied = graph(above * torch.cat([torch.ones(4, DIM), torch.zeros(1, DIM)]))
    with pytest.warns(UserWarning, match="Ordered chooses among entries that are equal"):
        explained(module, tied, method)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explained(Ordered(CHOICES[choice]), DISTINCT, method)


class Pooling(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.kind = nn.Linear(DIM, 3), kind
        self.pool = TopKPooling(3, ratio=2) if kind == "TopKPooling" else SortAggregation(2)
        self.last = nn.Linear(3 if kind == "TopKPooling" else 6, 1)

    def forward(self, x, edge_index, batch):
        h = self.first(x)
        if self.kind == "SortAggregation":
            return self.last(self.pool(h, batch))
        h, _, _, batch, _, _ = self.pool(h, edge_index, batch=batch)
        return self.last(global_add_pool(h, batch))


@pytest.mark.parametrize("kind", ["TopKPooling", "SortAggregation"])
def test_pooling_that_chooses_nodes_is_named_if_nodes_are_equal(kind):
    model = gx.wrap(Pooling(kind).eval(), kind="regression")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gx.explain(model, [DISTINCT, graph(DISTINCT.x[:3])], "gradient_input")  # with padding
    x = DISTINCT.x[:1].expand(4, -1)
    with pytest.warns(UserWarning, match="chooses among entries that are equal"):
        gx.explain(model, [graph(torch.cat([x, sign * 9 * x])) for sign in (-1, 1)], "lrp")
