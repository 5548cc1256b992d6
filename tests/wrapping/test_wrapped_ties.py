"""Equal entries in an order share the relevance of its values, or a warning names the choice."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import (
    GINEConv,
    SortAggregation,
    TopKPooling,
    global_add_pool,
    global_max_pool,
)
from torch_geometric.utils import from_smiles, scatter, to_dense_batch

import graphxai as gx
from ogb_folders import bace_rows

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
        warnings.filterwarnings("ignore", message=".*torch.jit")  # of PyTorch's first dual number
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
        warnings.simplefilter("error", UserWarning)
        others = graph(1.7 * DISTINCT.x[:3])  # padded, and equal to no node of the first
        gx.explain(model, [DISTINCT, others], "gradient_input", on_error="raise")
    x = DISTINCT.x[:1].expand(4, -1)
    with pytest.warns(UserWarning, match="chooses among entries that are equal"):
        gx.explain(model, [graph(torch.cat([x, sign * 9 * x])) for sign in (-1, 1)], "lrp")


def in_one_group(reduce):
    """Reduce the rows (1, n, K) of a graph by a function of a group index."""

    def take(h):
        index = torch.zeros(h.shape[1], dtype=torch.long)
        return reduce(h[0], h.new_zeros(1, h.shape[2]), index)

    return take


ROUNDED = SPELLINGS | {
    "max": lambda h: h.max(1).values,
    "amax": lambda h: h.amax(1),
    "amax of two axes": lambda h: h.amax((0, 1), keepdim=True),
    "scatter": in_one_group(lambda h, out, i: scatter(h, i, reduce="max")),
    "scatter by name": in_one_group(
        lambda h, out, i: torch.scatter_reduce(
            out, 0, index=i[:, None].expand_as(h), src=h, reduce="amax", include_self=False
        )
    ),
    "index_reduce": in_one_group(
        lambda h, out, i: out.index_reduce(0, i, h, "amax", include_self=False)
    ),
    "segment_reduce": lambda h: torch.segment_reduce(
        h[0], "max", lengths=torch.tensor([h.shape[1]]), axis=0
    ),
    "segment_reduce by offsets": lambda h: torch.segment_reduce(
        h[0], "max", offsets=torch.tensor([0, h.shape[1]]), axis=0
    ),
    "sparse.mm": lambda h: torch.sparse.mm(torch.ones(1, 5).to_sparse_csr(), h[0], "amax"),
    "max_pool1d": lambda h: nn.functional.max_pool1d(h.mT, h.shape[1]),
    "MaxPool1d, padded": lambda h: nn.MaxPool1d(9, padding=4, stride=5)(h.mT)[..., :1],
    "global_max_pool": in_one_group(lambda h, out, i: global_max_pool(h, i)),
}


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(("size", "stride", "padding", "dilation"), [(2, 2, 0, 1), (3, 2, 1, 2)])
def test_maxima_of_windows_are_those_of_pytorch(size, stride, padding, dilation, ceil_mode):
    module = Ordered(
        lambda h: nn.functional.max_pool1d(h.mT, size, stride, padding, dilation, ceil_mode)
    )
    below = Data(x=torch.cat([DISTINCT.x, DISTINCT.x]), edge_index=EDGES)  # with ties
    first, second = (
        explained(module, data, "gradient_input")
        for data in (below, graph(below.x * (1 + 1e-7 * torch.arange(10))[:, None]))
    )
    assert first.relevance == pytest.approx(second.relevance, abs=1e-5)
    with torch.no_grad():
        wanted = module(below.x, torch.zeros(10).long()).item()
    assert first.output == pytest.approx(wanted, abs=1e-6)
    assert first.relevance.sum() == pytest.approx(wanted, abs=1e-5)


class Rounded(Ordered):
    """A model whose rows differ in their last bits, as matrix products of equal atoms do."""

    def forward(self, x, batch):
        h = self.first(x)
        ulps = torch.arange(len(h))[:, None] * torch.finfo(h.dtype).eps
        h, _ = to_dense_batch(h * (1 + ulps), batch, fill_value=-1e9)
        return self.take(h).flatten(1).sum(1, keepdim=True)


@pytest.mark.parametrize("spelling", ROUNDED)
@pytest.mark.parametrize("method", ["gradient_input", "lrp"])
def test_nodes_that_only_rounding_tells_apart_share(spelling, method):
    explanation = explained(Rounded(ROUNDED[spelling]), EQUAL, method)
    share = explanation.output / 5  # the model is linear and its nodes are equal
    assert explanation.relevance == pytest.approx([share] * 5, rel=1e-4)


def test_nodes_further_apart_than_rounding_do_not_share():
    far = graph(torch.ones(5, DIM) * (1 + 1e-4 * torch.arange(5))[:, None])
    module = Ordered(lambda h: h.amax(1)).eval()
    relevance = explained(module, far, "gradient_input").relevance
    rows = module.first(far.x)  # (5, 3)
    expected = torch.zeros(5).index_add(0, rows.argmax(0), rows.amax(0))
    assert relevance == pytest.approx(expected.detach().numpy(), abs=1e-6)


def colours(data):
    """Number atoms so that equal numbers have equal features and neighbours (Weisfeiler 1968)."""
    numbers, previous = data.x.unique(dim=0, return_inverse=True)[1].tolist(), 0
    while len(set(numbers)) > previous:
        previous = len(set(numbers))
        around = [[] for _ in numbers]
        edges = zip(data.edge_index.T.tolist(), data.edge_attr.tolist(), strict=True)
        for (source, target), kind in edges:
            around[target].append((numbers[source], *kind))
        signs = [(n, *sorted(near)) for n, near in zip(numbers, around, strict=True)]
        places = {sign: place for place, sign in enumerate(sorted(set(signs)))}
        numbers = [places[sign] for sign in signs]
    return np.array(numbers)


class Deep(nn.Module):
    def __init__(self, pool):
        super().__init__()
        torch.manual_seed(1)
        self.atoms, self.bonds = nn.Linear(9, 64), nn.Linear(3, 64)
        networks = [nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)) for _ in "abc"]
        self.layers = nn.ModuleList(map(GINEConv, networks))
        self.pool, self.last = pool, nn.Linear(64, 1)

    def forward(self, x, edge_index, edge_attr, batch):
        h, bonds = self.atoms(x), self.bonds(edge_attr)
        for layer in self.layers:
            h = layer(h, edge_index, bonds)
        return self.last(self.pool(h, batch))


POOLS = {
    "scatter": global_max_pool,
    "sort": lambda h, b: to_dense_batch(h, b, fill_value=-1e9)[0].sort(1).values[:, -1],
}


@pytest.mark.parametrize("pool", POOLS)
def test_equal_atoms_are_equal_alone_and_in_a_list(pool):
    molecules = [from_smiles(row["mol"]) for row in bace_rows(25)]
    for data in molecules:
        data.x, data.edge_attr = data.x.float(), data.edge_attr.float()
    together, apart = (gx.wrap(Deep(POOLS[pool]).eval(), kind="regression") for _ in "ab")
    in_list = gx.explain(together, molecules, "lrp")
    for data, of_list in zip(molecules, in_list, strict=True):
        numbers, alone = colours(data), gx.explain(apart, data, "lrp")
        for relevance in (of_list.relevance, alone.relevance):
            means = np.bincount(numbers, relevance) / np.bincount(numbers)
            assert relevance == pytest.approx(
                means[numbers], abs=1e-5 * float(abs(relevance).max())
            )


@pytest.mark.parametrize("take", [lambda h: h.amax(1), lambda h: h.sort(1).values[:, -1]])
def test_what_rounding_explains_does_not_depend_on_other_graphs(take):
    large = torch.ones(5, DIM)
    near = large * (1 + 3 * torch.finfo(torch.float32).eps * torch.arange(5))[:, None]
    near[:, 0] += 1e-5 * torch.arange(5)
    alone = explained(Ordered(take), graph(near), "gradient_input").relevance
    for scale in (1e-3, 1e3):
        others = [graph(scale * DISTINCT.x) for _ in range(7)]
        in_list = explained(Ordered(take), [graph(near), *others], "gradient_input")[0].relevance
        assert in_list == pytest.approx(alone, abs=1e-6)
    assert len(set(np.round(alone, 4))) > 1


def by_maximum(maximum):
    """Write a softmax over the keys out by hand, with a maximum that is taken away."""

    def weigh(scores):
        e = (scores - maximum(scores)).exp()
        return e / e.sum(-1, keepdim=True)

    return weigh


def on_edges(scores):
    """Write a softmax out by hand over the edges of a complete graph."""
    n = scores.shape[-1]
    target = torch.arange(n).repeat_interleave(n)
    of_edges = scores.flatten()
    e = (of_edges - scatter(of_edges, target, reduce="max")[target]).exp()
    return (e / scatter(e, target, reduce="sum")[target]).view_as(scores)


SOFTMAX_BY_HAND = {
    "amax": by_maximum(lambda s: s.amax(-1, keepdim=True)),
    "max": by_maximum(lambda s: s.max(-1, keepdim=True).values),
    "scatter": on_edges,
}


class AttendsToTies(nn.Module):
    """Attention in which the largest scores differ by rounding alone."""

    def __init__(self, weigh):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(DIM, DIM) for _ in range(3))
        self.last, self.weigh = nn.Linear(DIM, 1), weigh

    def forward(self, x, batch):
        scores = self.query(x) @ self.key(x).mT / DIM**0.5
        ulps = torch.arange(len(x)) * torch.finfo(scores.dtype).eps
        mixed = self.weigh(scores * (1 + ulps)) @ self.value(x)
        return self.last(global_add_pool(mixed, batch))


@pytest.mark.parametrize("spelling", SOFTMAX_BY_HAND)
@pytest.mark.parametrize("method", ["lrp", "lrp_zplus", "transformer_attribution"])
def test_a_softmax_by_hand_with_nearly_tied_scores_is_that_of_pytorch(spelling, method):
    tied = graph(torch.cat([DISTINCT.x, DISTINCT.x]))  # every largest score is there twice
    by_hand, by_torch = (
        explained(AttendsToTies(weigh), tied, method)
        for weigh in (SOFTMAX_BY_HAND[spelling], lambda scores: scores.softmax(-1))
    )
    largest = float(abs(by_torch.relevance).max())
    assert by_hand.relevance == pytest.approx(by_torch.relevance, abs=1e-4 * largest)
