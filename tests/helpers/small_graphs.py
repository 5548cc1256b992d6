"""Small random graphs, and models with weights of order one, for tests of wrapped models."""

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

import graphxai as gx
from graphxai.wrapping import WrappedModel

SIZES = (5, 8, 7)


def graph(n: int) -> Data:
    generator = torch.Generator().manual_seed(n)
    bonds = torch.rand(n, n, generator=generator) < 0.4
    bonds |= torch.diag(torch.ones(n - 1, dtype=torch.bool), 1)
    bonds = torch.triu(bonds, 1)
    return Data(x=torch.randn(n, 6, generator=generator), edge_index=(bonds | bonds.T).nonzero().T)


def ring(nodes: int, width: int) -> Data:
    order = torch.arange(nodes)
    edges = torch.stack([order, order.roll(1)])
    return Data(x=random(nodes, width, seed=nodes), edge_index=torch.cat([edges, edges.flip(0)], 1))


def edge_softmax(scores: Tensor, target: Tensor) -> Tensor:
    """Return the weights of edges, which sum to one at each target."""
    weights = torch.empty_like(scores)
    for node in target.unique():
        weights[target == node] = scores[target == node].softmax(0)
    return weights


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def started(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def wrapped(model: nn.Module, **options) -> WrappedModel:
    return gx.wrap(model, kind="regression", **options)
