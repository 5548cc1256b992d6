"""A sparse matrix over the nodes gets the relevance of its values, as the dense matrix does."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool
from torch_geometric.utils import spmm

import graphxai as gx

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:the share of constants"),
    pytest.mark.filterwarnings("ignore:Converting sparse"),
    pytest.mark.filterwarnings("ignore:.*recorded passes"),
]

DIM = 4
SIZES = [5, 3]
LAYOUTS = [torch.sparse_coo, torch.sparse_csr]


def by_entries(matrix, h):
    matrix = matrix.to_sparse_coo().coalesce()
    rows, columns = matrix.indices()
    terms = matrix.values()[:, None] * h[columns]
    return h.new_zeros(len(matrix), h.shape[1]).index_add(0, rows, terms)


PRODUCTS = {
    "spmm": torch.spmm,  # as pygcn writes it
    "torch.sparse.mm": torch.sparse.mm,
    "spmm of PyG": spmm,
    "@": torch.matmul,
    "entry by entry": by_entries,
}


class GCN(nn.Module):
    """Two layers that read the neighbours, and the sum of weights of each node's edges."""

    def __init__(self, product):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = (nn.Parameter(torch.randn(size)) for size in ((DIM, 8), (8, 1)))
        self.product = product

    def forward(self, x, adj_t, batch):
        strength = self.product(adj_t, torch.ones(len(x), 1)) * self.first[0]
        h = torch.relu(self.product(adj_t, x @ self.first) + strength)
        return global_add_pool(self.product(adj_t, h @ self.last), batch)


def matrix_and_graph(nodes, layout=None):
    generator = torch.Generator().manual_seed(nodes)
    weights = torch.rand(nodes, nodes, generator=generator)
    dense = weights * (weights < 0.6)
    x = torch.randn(nodes, DIM, generator=generator)
    matrix = dense if layout is None else dense.to_sparse(layout=layout)
    return dense, Data(x=x, adj_t=matrix)


def explained(product, graphs, method, **options):
    model = gx.wrap(GCN(product).eval(), kind="regression")
    return gx.explain(model, graphs, method, wrt=("x", "adj_t"), **options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("method", ["lrp", "gradient_input", "integrated_gradients"])
def test_relevance_is_that_of_the_dense_model(method, name, layout):
    graphs = [matrix_and_graph(nodes, layout)[1] for nodes in SIZES]
    explanations = explained(PRODUCTS[name], graphs, method)
    for nodes, explanation in zip(SIZES, explanations, strict=True):
        dense, graph = matrix_and_graph(nodes)
        expected = explained(torch.matmul, graph, method)
        size = abs(expected.output)
        assert explanation.relevance == pytest.approx(expected.relevance, abs=1e-6 * size)
        values = explanation.relevance_of["adj_t"]  # (nnz,), in the order of rows
        by_row = np.bincount(dense.nonzero()[:, 0], values, nodes)
        assert by_row == pytest.approx(expected.relevance_of["adj_t"], abs=1e-6 * size)
        share, dense_share = (e.ledger.to_dict()["adj_t"] for e in (explanation, expected))
        assert share == pytest.approx(dense_share, abs=1e-6 * size)
        assert abs(share) > 0.1
        allowed = 1e-3 if method == "integrated_gradients" else 1e-6  # of its quadrature
        assert explanation.ledger.unexplained == pytest.approx(0.0, abs=allowed * size)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_saliency_of_a_value_is_the_derivative_to_the_entry(name, layout):
    dense, graph = matrix_and_graph(5, layout)
    leaf = dense.clone().requires_grad_()
    GCN(torch.matmul)(graph.x, leaf, torch.zeros(5, dtype=torch.long)).sum().backward()
    saliency = explained(PRODUCTS[name], graph, "saliency").relevance_of["adj_t"]
    assert saliency == pytest.approx(leaf.grad[dense != 0].abs().numpy(), rel=1e-5)


def test_a_sparse_matrix_over_something_else_is_refused_by_name():
    _, graph = matrix_and_graph(5)
    graph.adj_t = torch.ones(5, 4).to_sparse()
    with pytest.raises(ValueError, match="adj_t is a sparse tensor of shape"):
        explained(lambda matrix, h: h, graph, "lrp")
