"""Codes are explained alike however a model looks them up, or the look-up is refused by name."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool
from torch_geometric.utils import to_dense_batch

import graphxai as gx
from graphxai.contract.inputs import InputError

pytestmark = pytest.mark.usefixtures("only_relevance")

REMOVE_NODES = ("occlusion", "shapley_sampling", "random")
READ_OR_REPLACE_ROWS = """
    lrp lrp_ah_ln lrp_ah lrp_ln lrp_path path_marginals attn_lrp gradient_input
    integrated_gradients saliency smoothgrad order_marginals gae gae_rollout
    transformer_attribution masked_lrp lrp_zplus partial_lrp rollout attention_flow
    attention_last cam grad_cam att_cat"""


def path(*codes: int) -> Data:
    """Make a path of nodes, each with its code and the code of the node before it."""
    ends = torch.arange(len(codes) - 1)
    bonds = torch.stack([ends, ends + 1])
    x = torch.tensor([codes, (codes[-1], *codes[:-1])]).T
    return Data(x=x, edge_index=torch.cat([bonds, bonds.flip(0)], 1))


GRAPHS = [path(3, 1, 0, 2), path(2, 3), path(1, 4, 1)]
SECOND = torch.tensor([0, 5])  # the second column has codes of its own


class ByModule(nn.Module):
    """One layer along the edges, after an embedding of both codes of a node."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.mix, self.out = nn.Embedding(10, 6), nn.Linear(6, 6), nn.Linear(6, 1)

    def rows(self, codes, batch, size):
        return self.table(codes).sum(1)

    def forward(self, x, edge_index, batch, batch_size):
        h = self.rows(x + SECOND, batch, batch_size)
        messages = self.mix(h).tanh()[edge_index[0]]
        h = h.index_add(0, edge_index[1], messages)
        return self.out(global_add_pool(h, batch, size=batch_size).tanh())


class ByIndex(ByModule):
    def rows(self, codes, batch, size):
        return self.table.weight[codes].sum(1)


class ByColumns(ByModule):
    def rows(self, codes, batch, size):
        first, second = codes.unbind(1)
        return F.embedding(first, self.table.weight) + self.table.weight.index_select(0, second)


class OneHot(ByModule):
    def rows(self, codes, batch, size):
        return (F.one_hot(codes, 10).float() @ self.table.weight).sum(1)


class OneHotLinear(ByModule):
    def rows(self, codes, batch, size):
        return F.linear(F.one_hot(codes, 10).to(torch.float), self.table.weight.T).sum(1)


class ByGraph(ByModule):
    def rows(self, codes, batch, size):
        return torch.cat([self.table.weight[codes[batch == graph]].sum(1) for graph in range(size)])


class InChunks(ByModule):
    def rows(self, codes, batch, size):
        return torch.cat([self.table(part).sum(1) for part in codes.split(2)])


class NodeByNode(ByModule):
    def rows(self, codes, batch, size):
        h = torch.zeros(len(codes), 6)
        for node, of_node in enumerate(codes):
            h[node] = self.table(of_node).sum(0)
        return h


class OncePerCode(ByModule):
    def rows(self, codes, batch, size):
        distinct, place = codes.unique(return_inverse=True)
        return self.table(distinct)[place].sum(1)


class OncePerPair(ByModule):
    def rows(self, codes, batch, size):
        distinct, place = torch.unique(codes, dim=0, return_inverse=True)
        return self.table(distinct).sum(1)[place]


class CodeByCode(ByModule):
    def rows(self, codes, batch, size):
        h = torch.zeros(*codes.shape, 6)
        for code in range(10):
            h[codes == code] = self.table(codes[codes == code])
        return h.sum(1)


class Padded(ByModule):
    def rows(self, codes, batch, size):
        padded, mask = to_dense_batch(codes, batch, batch_size=size)
        return self.table.weight[padded].sum(2)[mask]


LOOK_UPS = [
    ByIndex, ByColumns, OneHot, OneHotLinear, ByGraph, InChunks, NodeByNode, OncePerCode,
    CodeByCode, Padded,
]  # fmt: skip


def relevance(kind, graphs, method):
    torch.manual_seed(0)
    model = gx.wrap(kind().eval(), kind="regression")
    return [e.relevance for e in gx.explain(model, graphs, method, on_error="raise")]


@pytest.fixture(scope="module")
def by_module():
    """The relevance by each method of the model that looks up all codes in one call."""
    cache = {}

    def get(method):
        if method not in cache:
            cache[method] = relevance(ByModule, GRAPHS, method)
        return cache[method]

    return get


@pytest.mark.parametrize("kind", LOOK_UPS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "method", ["lrp", "integrated_gradients", "lrp_path", "lrp_zplus", "occlusion", "random"]
)
def test_a_look_up_is_explained_like_that_of_a_module(kind, method, by_module):
    for scores, wanted in zip(relevance(kind, GRAPHS, method), by_module(method), strict=True):
        assert scores == pytest.approx(wanted, abs=1e-5)


def test_rows_that_are_summed_before_nodes_take_them_are_explained_as_sums(by_module):
    for scores, wanted in zip(relevance(OncePerPair, GRAPHS, "lrp"), by_module("lrp"), strict=True):
        assert scores == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("kind", [OneHot, ByGraph, OncePerCode])
def test_evaluation_measures_the_same_curves(kind):
    curves = []
    for each in (ByModule, kind):
        model = gx.wrap(each().eval(), kind="regression")
        report = gx.evaluate(model, GRAPHS, ["lrp", "integrated_gradients"], operators="mask")
        assert not report.failures
        curves.append([unit.values["mask"]["auac"] for unit in report.units])
    assert curves[1] == pytest.approx(curves[0], abs=1e-5)


class AlongEdges(ByModule):
    """Looks up the codes of nodes, and those of the source of each edge again."""

    again = True

    def forward(self, x, edge_index, batch, batch_size):
        h = self.table.weight[x[:, 0]]
        source = edge_index[0]
        messages = self.table.weight[x[:, 0][source]] if self.again else h[source]
        h = h.index_add(0, edge_index[1], messages.tanh())
        return self.out(global_add_pool(h, batch, size=batch_size).tanh())


class AlongEdgesOnce(AlongEdges):
    again = False


@pytest.mark.parametrize("method", ["lrp", "integrated_gradients", "occlusion", "lrp_path"])
def test_a_code_that_is_looked_up_twice_has_the_relevance_of_both(method):
    wanted = relevance(AlongEdgesOnce, GRAPHS, method)
    for scores, expected in zip(relevance(AlongEdges, GRAPHS, method), wanted, strict=True):
        assert scores == pytest.approx(expected, abs=1e-5)


class SortedFirst(ByModule):
    """Looks up codes in order of size, and computes with the codes as numbers."""

    def rows(self, codes, batch, size):
        return self.table(codes[:, 0].sort().values) + codes.float().sum(1, keepdim=True)


@pytest.mark.parametrize("method", REMOVE_NODES)
def test_codes_that_nodes_do_not_look_up_leave_methods_that_remove_nodes(method):
    module, data = SortedFirst().eval(), path(0, 1, 2)  # in order of size: as many rows as nodes
    scores = gx.explain(gx.wrap(module, kind="regression"), data, method).relevance
    if method == "occlusion":
        kept = data.subgraph(torch.tensor([1, 2]))
        outputs = [
            module(g.x, g.edge_index, torch.zeros(len(g.x), dtype=torch.long), 1).item()
            for g in (data, kept)
        ]
        assert scores[0] == pytest.approx(outputs[0] - outputs[1], abs=1e-5)


@pytest.mark.parametrize("method", READ_OR_REPLACE_ROWS.split())
def test_codes_that_nodes_do_not_look_up_are_refused_where_their_rows_are_needed(method):
    model = gx.wrap(SortedFirst().eval(), kind="regression")
    with pytest.raises((InputError, ValueError), match=r"nothing is looked up by them alone|atten"):
        gx.explain(model, path(0, 1, 2), method)


# -- codes that are not entries of x, and look-ups that cannot be followed -------------------------


class WithDegrees(nn.Module):
    """Adds what it looks up for degrees, which it counts itself, to what it looks up for codes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.atoms, self.degrees = nn.Embedding(9, 6), nn.Embedding(9, 6)
        self.out = nn.Linear(6, 1)

    def forward(self, x, edge_index, batch):
        one = torch.ones_like(edge_index[1])
        degrees = torch.zeros_like(x).index_add(0, edge_index[1], one)
        h = self.atoms(x) + self.degrees(degrees)
        return self.out(global_add_pool(F.gelu(h), batch))


def ring_of_codes(nodes):
    order = torch.arange(nodes)
    edges = torch.stack([order, order.roll(1)])
    return Data(x=order % 9, edge_index=torch.cat([edges, edges.flip(0)], 1))


@pytest.mark.parametrize("method", ["lrp", "gradient_input", "integrated_gradients"])
def test_degrees_that_an_embedding_looks_up_count_as_features(method):
    module, graphs = WithDegrees().eval(), [ring_of_codes(4), ring_of_codes(7)]
    by_default = gx.explain(gx.wrap(module, kind="regression"), graphs, method)
    named = gx.wrap(module, kind="regression", embedding=("atoms", "degrees"))
    for e, wanted in zip(by_default, gx.explain(named, graphs, method), strict=True):
        assert e.relevance == pytest.approx(wanted.relevance, abs=1e-6)
    atoms = gx.explain(gx.wrap(module, kind="regression", embedding="atoms"), graphs[0], method)
    assert abs(atoms.relevance - by_default[0].relevance).max() > 1e-3


UNSEEN = {
    "gather": lambda table, x: table.weight.gather(0, x[:, None].expand(-1, 6)),
    "comparison": lambda table, x: torch.einsum(
        "nc,cd->nd", (x[:, None] == torch.arange(9)).float(), table.weight
    ),
    "powers": lambda table, x: table.weight[3] ** x[:, None],
}


@pytest.mark.parametrize("how", UNSEEN)
def test_look_ups_that_cannot_be_followed_are_refused_and_nodes_can_still_be_removed(how):
    class Model(WithDegrees):
        def forward(self, x, edge_index, batch):
            return self.out(global_add_pool(F.gelu(UNSEEN[how](self.atoms, x)), batch))

    module, graphs = Model().eval(), [ring_of_codes(4), ring_of_codes(7)]
    for method in ("lrp", "integrated_gradients", "lrp_path"):
        with pytest.raises(ValueError, match="cannot carry gradients, and nothing is looked up"):
            gx.explain(gx.wrap(module, kind="regression"), graphs, method, on_error="raise")
    for e, data in zip(
        gx.explain(gx.wrap(module, kind="regression"), graphs, "occlusion"), graphs, strict=True
    ):
        with torch.no_grad():
            one_each = module.out(F.gelu(UNSEEN[how](module.atoms, data.x))) - module.out.bias
        assert e.relevance == pytest.approx(one_each[:, 0].numpy(), abs=1e-5)
