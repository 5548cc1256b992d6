"""Nested, sparse and complex tensors in a model are explained rightly, or refused by name."""

import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn
from torch_geometric.nn import GCNConv, GINConv, SAGEConv, global_add_pool
from torch_geometric.transforms import ToSparseTensor

import graphxai as gx
from graphxai.contract.model import NoAttentionError
from graphxai.explainers import REGISTRY
from small_graphs import ring

pytestmark = pytest.mark.usefixtures("only_relevance")

DIM = 4
METHODS = [name for name in REGISTRY if name not in ("learned", "gnn_explainer", "kernel")]
HOLDS = "relevance cannot be followed through "


GRAPHS = [ring(4, DIM), ring(6, DIM), ring(3, DIM)]


class Model(nn.Module):
    """Two layers that mix the nodes by `mix`, and a sum over the nodes of each graph."""

    def __init__(self, *convolutions):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, 1)
        self.convolutions = nn.ModuleList(make() for make in convolutions)

    def mix(self, h, edge_index):
        return h

    def forward(self, x, edge_index, batch, batch_size):
        h = self.mix(self.first(x), edge_index)
        for convolution in self.convolutions:
            h = convolution(h, edge_index).relu()
        return self.out(global_add_pool(h, batch, size=batch_size))


class WithMatrix(Model):
    def forward(self, x, adj_t, batch, batch_size):
        return super().forward(x, adj_t, batch, batch_size)


def explained(model, graphs, method):
    torch.manual_seed(0)
    return gx.explain(gx.wrap(model.eval(), kind="regression"), graphs, method, on_error="raise")


def agree(model, graphs, other, other_graphs, method):
    try:
        expected = explained(other, other_graphs, method)
    except NoAttentionError:
        pytest.skip("the model has no attention")
    for e, wanted in zip(explained(model, graphs, method), expected, strict=True):
        assert e.relevance == pytest.approx(wanted.relevance, rel=1e-4, abs=1e-5)
        assert e.additive == wanted.additive
        if wanted.ledger:
            assert e.ledger.biases == pytest.approx(wanted.ledger.biases, abs=1e-5)


# -- sparse tensors --------------------------------------------------------------------------------

CONVOLUTIONS = {
    "GCN": lambda: GCNConv(DIM, DIM),
    "GIN": lambda: GINConv(nn.Linear(DIM, DIM)),
    "GraphSAGE": lambda: SAGEConv(DIM, DIM),
}


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo], ids=["CSR", "COO"])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
@pytest.mark.parametrize("method", METHODS)
def test_a_sparse_adjacency_is_explained_as_the_edges_are(method, kind, layout):
    layers = [CONVOLUTIONS[kind]] * 2
    sparse = [ToSparseTensor(layout=layout)(graph.clone()) for graph in GRAPHS]
    if (kind, method) in (("GCN", "path_marginals"), ("GCN", "shares"), ("GraphSAGE", "shares")):
        pytest.skip("marginals need to know the edges of each node")
    agree(WithMatrix(*layers), sparse, Model(*layers), GRAPHS, method)


def test_a_sparse_adjacency_that_only_scales_messages_has_no_share():
    sparse = ToSparseTensor()(GRAPHS[0].clone())
    model = gx.wrap(WithMatrix(CONVOLUTIONS["GIN"]).eval(), kind="regression")
    shares = gx.explain(model, sparse, wrt=("x", "adj_t")).relevance_of["adj_t"]
    assert shares.tolist() == [0.0] * GRAPHS[0].num_edges


@pytest.mark.parametrize("method", METHODS)
def test_a_sparse_attribute_that_the_model_does_not_read_changes_nothing(method):
    with_matrix = [graph.clone() for graph in GRAPHS]
    for graph in with_matrix:
        graph.adj = torch.eye(graph.num_nodes).to_sparse()
    agree(Model(CONVOLUTIONS["GIN"]), with_matrix, Model(CONVOLUTIONS["GIN"]), GRAPHS, method)


class DenseProduct(Model):
    def product(self, matrix, h):
        return matrix @ h

    def mix(self, h, edge_index):
        matrix = torch.zeros(len(h), len(h)).index_put(tuple(edge_index), torch.tensor(0.5))
        return self.product(matrix, h)


class SparseProduct(DenseProduct):
    def product(self, matrix, h):
        return torch.sparse.mm(matrix, h)


@pytest.mark.parametrize("method", METHODS)
def test_the_sparse_product_of_a_dense_matrix_is_the_dense_product(method):
    agree(SparseProduct(), GRAPHS, DenseProduct(), GRAPHS, method)


class SparseSignal(Model):
    """A product whose sparse factor depends on the nodes."""

    def mix(self, h, edge_index):
        return torch.sparse.mm(h.relu().to_sparse(), self.first.weight)


class DenseSignal(Model):
    def mix(self, h, edge_index):
        return h.relu() @ self.first.weight


@pytest.mark.parametrize("method", ["lrp", "gradient_input", "attn_lrp", "lrp_path"])
def test_a_sparse_factor_that_depends_on_the_nodes_is_the_dense_factor(method):
    (wanted,) = explained(DenseSignal(), GRAPHS[:1], method)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (of_sparse,) = explained(SparseSignal(), GRAPHS[:1], method)
    assert of_sparse.relevance == pytest.approx(wanted.relevance, rel=1e-4, abs=1e-5)
    messages = [str(warning.message) for warning in caught]
    if wanted.ledger and wanted.ledger.biases != pytest.approx(of_sparse.ledger.biases, abs=1e-5):
        assert any("the share of biases in SparseSignal is unknown" in text for text in messages)


def test_positive_rules_refuse_sparse_signals_by_name():
    model = gx.wrap(SparseSignal().eval(), kind="regression")
    with pytest.raises(ValueError, match=f"{HOLDS}a sparse tensor"):
        gx.explain(model, GRAPHS[0], "lrp_zplus")


# -- nested tensors --------------------------------------------------------------------------------


class Nested(Model):
    """Pads the graphs by a nested tensor."""

    def forward(self, x, batch, batch_size):
        h = self.first(x)
        rows = [h[batch == graph] for graph in range(batch_size)]
        padded = torch.nested.as_nested_tensor(rows).to_padded_tensor(0.0)
        return self.out(torch.nn.functional.gelu(padded).sum(1))


JAGGED = """
import torch, graphxai as gx
from torch_geometric.data import Data

class Jagged(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.out = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)

    def forward(self, x, batch):
        ends = torch.nn.functional.pad(torch.bincount(batch).cumsum(0), (1, 0))
        rows = torch.nested.nested_tensor_from_jagged(self.first(x), ends)
        return self.out(torch.nn.functional.gelu(rows).to_padded_tensor(0.0).sum(1))

model = gx.wrap(Jagged().eval(), kind="regression")
graph = Data(x=torch.randn(2, 3), edge_index=torch.tensor([[0, 1], [1, 0]]))
for method in ("lrp", "attn_lrp", "transformer_attribution", "lrp_zplus", "lrp_path"):
    try:
        gx.explain(model, graph, method)
    except ValueError as error:
        print(method, error)
print(gx.explain(model, graph, "occlusion").relevance.shape)
"""


def test_a_jagged_tensor_is_refused_and_does_not_end_the_process():
    done = subprocess.run([sys.executable, "-c", JAGGED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"{HOLDS}a nested tensor in the model") == 5
    assert done.stdout.endswith("(2,)\n")


def test_a_nested_tensor_that_pads_is_explained_or_refused_by_name():
    x = GRAPHS[0].x.clone().requires_grad_()
    module = Nested().eval()
    (gradient,) = torch.autograd.grad(module(x, torch.zeros(4).long(), 1).sum(), x)
    e = explained(module, GRAPHS[0], "gradient_input")
    assert e.relevance == pytest.approx((x * gradient).sum(-1).detach().numpy(), abs=1e-6)
    with pytest.raises(ValueError, match=f"{HOLDS}a nested tensor"):
        explained(module, GRAPHS[0], "lrp_zplus")


# -- complex tensors -------------------------------------------------------------------------------


class Rotated(Model):
    """Rotates pairs of channels by an angle, as rotary positions do."""

    def mix(self, h, edge_index):
        a, b = h[:, 0::2], h[:, 1::2]
        sine, cosine = torch.tensor([0.3, 0.7]).sin(), torch.tensor([0.3, 0.7]).cos()
        return torch.stack([a * cosine - b * sine, a * sine + b * cosine], -1).flatten(1)


class ComplexRotated(Model):
    def mix(self, h, edge_index):
        turn = torch.polar(torch.ones(2), torch.tensor([0.3, 0.7]))
        return torch.view_as_real(torch.view_as_complex(h.view(-1, 2, 2)) * turn).flatten(1)


@pytest.mark.parametrize("method", ["lrp", "gradient_input", "attn_lrp", "lrp_path"])
def test_a_complex_rotation_is_explained_as_a_real_one(method):
    agree(ComplexRotated(), GRAPHS, Rotated(), GRAPHS, method)


class Modulus(Model):
    def mix(self, h, edge_index):
        return torch.complex(h, self.first(h)).abs()


def test_positive_rules_refuse_complex_signals_by_name():
    with pytest.raises(ValueError, match=f"{HOLDS}a complex tensor"):
        explained(Modulus(), GRAPHS[0], "lrp_zplus")
