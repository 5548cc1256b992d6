"""Methods have the same result under deterministic algorithms and another default precision."""

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, TransformerConv, global_add_pool

import graphxai as gx
from graphxai.explainers.registry import REGISTRY

ATENOLOL = "CC(C)NCC(O)COc1ccc(CC(N)=O)cc1"  # 19 atoms: PyTorch draws 16 and more in another way
EDGES = torch.tensor([[0, 1, 2, 3, 1, 2, 3, 0], [1, 2, 3, 0, 0, 1, 2, 3]])


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = TransformerConv(4, 8, heads=2), GATConv(16, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, x, edge_index, batch):
        h = torch.relu(self.first(x, edge_index))
        return self.head(global_add_pool(torch.relu(self.second(h, edge_index)), batch))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return gx.wrap(Attentive().eval(), kind="regression")


@pytest.mark.parametrize("method", REGISTRY)
def test_a_method_is_the_same_with_deterministic_algorithms(method, model):
    graphs = [Data(x=torch.randn(4, 4), edge_index=EDGES) for _ in range(2)]

    def relevance():
        return [a.relevance.tolist() for a in gx.explain(model, graphs, method=method)]

    try:
        expected = relevance()
    except (TypeError, ValueError) as error:
        pytest.skip(f"{method} does not explain this model: {error}")
    torch.use_deterministic_algorithms(True)
    try:
        assert relevance() == expected
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("method", [name for name in REGISTRY if name != "kernel"])
def test_a_method_draws_the_same_numbers_with_another_default_precision(method):
    model = gx.load("bace")
    expected = gx.explain(model, ATENOLOL, method=method).relevance.tolist()
    torch.set_default_dtype(torch.float64)
    try:
        assert gx.explain(model, ATENOLOL, method=method).relevance.tolist() == expected
    finally:
        torch.set_default_dtype(torch.float32)
