"""Make a small model of graphs around the step that is tested, and explain it."""

import warnings

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool

import graphxai as gx

DIM = 8


def graph(nodes: int = 5) -> Data:
    generator = torch.Generator().manual_seed(nodes)
    ends = torch.stack([torch.arange(nodes), torch.arange(nodes).roll(1)])
    edges = torch.cat([ends, ends.flip(0)], 1)
    return Data(x=torch.randn(nodes, 6, generator=generator), edge_index=edges)


class Pooled(nn.Module):
    """A linear embedding, `step` on all nodes, and a linear read-out of their sum."""

    def __init__(self, step=None):
        super().__init__()
        self.embed, self.head = nn.Linear(6, DIM), nn.Linear(DIM, 1)
        self.weight, self.bias = nn.Parameter(torch.ones(DIM, DIM)), nn.Parameter(torch.ones(DIM))
        self.norm = nn.LayerNorm(DIM)
        self.step = step

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.step(self, self.embed(x)) if self.step else self.embed(x)
        return self.head(global_add_pool(self.norm(h), batch))


def seeded(model: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.1, 0.4)
    return model.eval()


def explained(model: nn.Module, method: str = "lrp", nodes: int = 5, warn: bool = False):
    wrapped = gx.wrap(model, kind="regression")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if warn else "error", UserWarning)
        return gx.explain(wrapped, graph(nodes), method)


def answer(model: nn.Module, data: Data) -> float:
    with torch.no_grad():
        return model(data.x, data.edge_index, torch.zeros(len(data.x)).long()).item()
