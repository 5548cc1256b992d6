"""Sparsemax and entmax are held constant like a softmax, in the spellings of published packages.

The reference holds the same weights constant by hand.
"""

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.utils import to_dense_batch

import graphxai as gx

DIM = 6


def sorted_sparsemax(scores):
    """Compute sparsemax as the package `entmax` does (Martins 2016, algorithm 1)."""
    scores = scores - scores.max(dim=-1, keepdim=True)[0]
    ordered, _ = torch.sort(scores, dim=-1, descending=True)
    sums = ordered.cumsum(-1) - 1
    places = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype)
    support = places * ordered > sums
    size = support.sum(dim=-1).unsqueeze(-1)
    threshold = sums.gather(-1, size - 1)
    threshold = threshold / size.to(scores.dtype)
    return torch.clamp(scores - threshold, min=0)


def filled_sparsemax(scores):
    """Compute sparsemax with a support that is filled in (Martins 2016, as in AllenNLP)."""
    ordered = scores.topk(scores.shape[-1], -1)[0]
    sums = ordered.cumsum(-1) - 1
    places = torch.arange(1.0, scores.shape[-1] + 1)
    size = ((places * ordered) > sums).sum(-1, keepdim=True)
    return torch.relu(scores - sums.gather(-1, size - 1) / size)


def summed_sparsemax(scores):
    """Compute sparsemax with partial sums by a triangular matrix."""
    ordered, count = scores.sort(dim=-1, descending=True)[0], scores.shape[-1]
    sums = ordered @ torch.triu(torch.ones(count, count)) - 1
    size = (torch.arange(1, count + 1) * ordered > sums).sum(-1, keepdim=True)
    return torch.clamp(scores - sums.gather(-1, size - 1) / size, min=0)


def sorted_entmax(scores):
    """Compute 1.5-entmax as the package `entmax` does (Peters 2019, algorithm 2)."""
    scores = (scores - scores.max(dim=-1, keepdim=True)[0]) / 2
    ordered, _ = torch.sort(scores, dim=-1, descending=True)
    rho = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype)
    mean = ordered.cumsum(-1) / rho
    mean_of_squares = (ordered**2).cumsum(-1) / rho
    spread = rho * (mean_of_squares - mean**2)
    delta = torch.clamp((1 - spread) / rho, 0)
    thresholds = mean - torch.sqrt(delta)
    size = (thresholds <= ordered).sum(-1).unsqueeze(-1)
    return torch.clamp(scores - thresholds.gather(-1, size - 1), min=0) ** 2


def bisected_entmax(scores, alpha=1.5, rounds=40):
    """Compute entmax by bisection, without gradients of the threshold (Blondel 2019)."""
    scores = scores * (alpha - 1)
    highest = scores.max(dim=-1, keepdim=True)[0]
    low = highest - 1
    step = (highest - (1 / scores.shape[-1]) ** (alpha - 1)) - low
    with torch.no_grad():
        for _ in range(rounds):
            step = step / 2
            middle = low + step
            sums = torch.clamp(scores - middle, min=0).pow(1 / (alpha - 1)).sum(-1, keepdim=True)
            low = torch.where(sums >= 1, middle, low)
    return torch.clamp(scores - low, min=0).pow(1 / (alpha - 1))


def normalised_entmax(scores):
    """Make sure that the weights of a bisection sum to one."""
    weights = bisected_entmax(scores, rounds=30)
    return weights / weights.sum(-1, keepdim=True)


class Sparsemax(torch.autograd.Function):
    """Compute sparsemax by a function with a gradient of its own."""

    @staticmethod
    def forward(ctx, scores):
        weights = sorted_sparsemax(scores)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx, gradient):
        (weights,) = ctx.saved_tensors
        support = (weights > 0).to(gradient)
        mean = (gradient * support).sum(-1, keepdim=True) / support.sum(-1, keepdim=True)
        return support * (gradient - mean)


SPELLINGS = {
    "sparsemax by sorting": sorted_sparsemax,
    "sparsemax by topk": filled_sparsemax,
    "sparsemax by a matrix": summed_sparsemax,
    "sparsemax as a function": Sparsemax.apply,
    "entmax by sorting": sorted_entmax,
    "entmax by bisection": bisected_entmax,
    "entmax, normalised": normalised_entmax,
}


class Sparse(nn.Module):
    def __init__(self, kernel):
        super().__init__()
        torch.manual_seed(0)
        self.kernel = kernel
        self.qkv, self.last = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, 1)
        self.constant = None

    def weights(self, rows, mask):
        q, k, _ = self.qkv(rows).chunk(3, -1)
        return self.kernel((2 * q @ k.mT).masked_fill(~mask[:, None], -1e4))

    def forward(self, x, batch):
        rows, mask = to_dense_batch(x, batch)
        weights = self.weights(rows, mask)
        weights = weights.detach() if self.constant else weights
        rows = rows + weights @ self.qkv(rows).chunk(3, -1)[2]
        return self.last((rows * mask[..., None]).sum(1))


def graph(nodes):
    draw = torch.Generator().manual_seed(nodes)
    edges = torch.tensor([[0, 1], [1, 0]])
    return Data(x=torch.randn(nodes, DIM, generator=draw), edge_index=edges)


GRAPHS = [graph(6), graph(4)]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_sparse_weights_are_constant_under_lrp(spelling):
    module = Sparse(SPELLINGS[spelling]).eval()
    explanations = gx.explain(gx.wrap(module, kind="regression"), GRAPHS, on_error="raise")
    module.constant = True
    for data, explanation in zip(GRAPHS, explanations, strict=True):
        x = data.x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(module(x, torch.zeros(len(x)).long()).sum(), x)
        expected = (x * gradient).sum(-1).detach().numpy()
        assert explanation.relevance == pytest.approx(expected, abs=1e-5)
        assert abs(explanation.ledger.unexplained) < 1e-5


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_sparse_weights_are_read_as_attention(spelling):
    module = Sparse(SPELLINGS[spelling]).eval()
    explanations = gx.explain(gx.wrap(module, kind="regression"), GRAPHS, "attention_last")
    for data, explanation in zip(GRAPHS, explanations, strict=True):
        with torch.no_grad():
            mask = torch.ones(1, len(data.x), dtype=torch.bool)
            expected = module.weights(data.x[None], mask)[0].mean(0)
        assert explanation.relevance == pytest.approx(expected.numpy(), abs=1e-5)


def test_a_threshold_that_makes_no_sum_of_one_leaves_a_positive_kernel_that_is_constant():
    module = Sparse(lambda scores: (scores - scores.mean(-1, keepdim=True)).relu()).eval()
    data = graph(5)
    explanation = gx.explain(gx.wrap(module, kind="regression"), data)
    module.constant = True
    x = data.x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(module(x, torch.zeros(5).long()).sum(), x)
    constant = (x * gradient).sum(-1).detach().numpy()
    assert explanation.relevance == pytest.approx(constant, abs=1e-5)
    assert abs(explanation.ledger.unexplained) < 1e-5
