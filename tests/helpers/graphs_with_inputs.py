"""Graphs with edge attributes, positions and kinds, and a model that adds them to the nodes."""

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool

DIM = 8
EDGES = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])


def graph(seed: int = 0, nodes: int = 4, dim: int = DIM) -> Data:
    draw = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(nodes, dim, generator=draw),
        edge_index=EDGES,
        edge_attr=torch.randn(EDGES.shape[1], DIM, generator=draw),
        pe=torch.randn(nodes, DIM, generator=draw),
        kind=torch.arange(nodes) % 3,
    )


class Inputs(nn.Module):
    """A model that adds edges, positions, an embedding and a number; edges also scale messages."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.node, self.edge = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM)
        self.place, self.kind = nn.Linear(DIM, DIM, bias=False), nn.Embedding(3, DIM)
        self.head = nn.Linear(DIM, 1, bias=False)

    def forward(self, x, edge_index, edge_attr, pe, kind, batch):
        h = self.node(x) + self.place(pe) + self.kind(kind) + 0.25
        messages = h[edge_index[0]] * edge_attr + self.edge(edge_attr)
        mixed = torch.zeros_like(h).index_add(0, edge_index[1], messages)
        return self.head(global_add_pool(h + mixed, batch))
