"""Experts that a model computes together, by one product of matrices for groups of rows."""

import warnings

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool

import graphxai as gx
from graphxai.engine.fused import grouped_mm

pytestmark = pytest.mark.usefixtures("only_relevance")

EDGES = torch.tensor([[0, 1], [1, 0]])
ENDS = torch.tensor([4, 12], dtype=torch.int32)
GROUPS = {
    "rows": ((12, 8), (2, 8, 16), ENDS),
    "columns": ((2, 4, 8), (8, 12), ENDS),
    "the summed axis": ((4, 12), (12, 16), ENDS),
    "pairs of matrices": ((2, 4, 8), (2, 8, 16), None),
}


@pytest.mark.parametrize("groups", GROUPS)
def test_products_for_groups_are_written_out_as_pytorch_computes_them(groups):
    first, second, ends = GROUPS[groups]
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(first, generator=draw), torch.randn(second, generator=draw)
    expected = torch._grouped_mm(a, b, offs=ends)
    assert torch.allclose(grouped_mm(a, b, ends), expected, atol=1e-5)


class Experts(nn.Module):
    """Route each row to an expert, as Mixtral does in Hugging Face's transformers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(8, 2)
        self.experts = nn.Parameter(torch.randn(2, 8, 16))
        self.last = nn.Linear(16, 1)

    def forward(self, x, batch):
        chosen = self.router(x).argmax(-1)
        order = chosen.argsort(stable=True)
        ends = chosen.bincount(minlength=2).cumsum(0).int()
        rows = torch._grouped_mm(x[order], self.experts, offs=ends)
        return self.last(global_add_pool(rows[order.argsort()].relu(), batch))


@pytest.mark.parametrize("method", ["lrp", "attn_lrp", "lrp_zplus"])
def test_experts_of_groups_of_rows_have_the_relevance_of_each_rows_expert(method):
    module = Experts().eval()
    model = gx.wrap(module, kind="regression")
    draw = torch.Generator().manual_seed(1)
    graphs = [Data(x=torch.randn(n, 8, generator=draw), edge_index=EDGES) for n in (6, 3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explanations = gx.explain(model, graphs, method)

    class OneByOne(Experts):
        def forward(self, x, batch):
            chosen = self.router(x).argmax(-1).tolist()
            rows = [row @ self.experts[expert] for row, expert in zip(x, chosen, strict=True)]
            return self.last(global_add_pool(torch.stack(rows).relu(), batch))

    for data, explanation in zip(graphs, explanations, strict=True):
        with warnings.catch_warnings():  # the list of experts leaves PyTorch
            warnings.simplefilter("ignore")
            expected = gx.explain(gx.wrap(OneByOne().eval(), kind="regression"), data, method)
        assert explanation.relevance == pytest.approx(expected.relevance, abs=1e-5)
        assert explanation.output == pytest.approx(expected.output, abs=1e-5)
