"""Functions of published graph models close their ledgers, and equal rules written by hand."""

import math
import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool

import graphxai as gx
from graphxai.engine.operations import OPERATIONS

pytestmark = pytest.mark.usefixtures("only_relevance")

DIM = 6


def slope(f, x):
    """Return the constant `(f(x) - f(0)) / x` of a function of single entries."""
    x = x.detach()
    return (f(x) - f(torch.zeros_like(x))) / x


FUNCTIONS = {
    "softplus": F.softplus,  # CoMFormer (Yan 2024)
    "shifted softplus": lambda x: F.softplus(x) - math.log(2),  # SchNet (Schuett 2017)
    "steep softplus": lambda x: F.softplus(x, beta=3.0, threshold=5.0),
    "signed square root": lambda x: torch.sqrt(x.relu()) - torch.sqrt((-x).relu()),  # GRIT
    "square root of the size": lambda x: x.sign() * x.abs().sqrt(),
    "relu squared": lambda x: x.relu().square(),  # Primer (So 2021)
    "relu to the power of two": lambda x: x.relu() ** 2,
    "relu times itself": lambda x: x.relu() * x.relu(),
    "power": lambda x: x.abs().pow(1.7),
    "log1p": lambda x: torch.log1p(x.relu()),  # scalers of degrees, PNA (Corso 2020)
    "expm1": torch.expm1,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "erf": torch.erf,
    "sine": torch.sin,  # SIREN (Sitzmann 2020)
    "snake": lambda x: x + torch.sin(2 * x).square() / 2,  # Ziyin 2020
    "cosine": torch.cos,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tan": lambda x: torch.tan(x / 8),
    "written-out ELU": lambda x: torch.where(x > 0, x, x.clamp(max=0).exp() - 1),
    "written-out tanh": lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
}


class Entrywise(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.function = nn.Linear(DIM, 8), nn.Linear(8, 1), function

    def forward(self, x, batch):
        return self.last(global_add_pool(self.function(self.first(x)), batch))


def graph(nodes):
    draw = torch.Generator().manual_seed(nodes)
    edges = torch.tensor([[0, 1], [1, 0]])
    return Data(x=torch.randn(nodes, DIM, generator=draw), edge_index=edges)


GRAPHS = [graph(5), graph(3)]


def explained(module, method="lrp"):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*has parts that no rule covers")
        return gx.explain(gx.wrap(module.eval(), kind="regression"), GRAPHS, method)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("method", ["lrp", "attn_lrp"])
def test_a_function_has_a_constant_slope_from_zero(name, method):
    module = Entrywise(FUNCTIONS[name])
    for data, explanation in zip(GRAPHS, explained(module, method), strict=True):
        x = data.x.clone().requires_grad_()
        h = module.first(x)
        output = module.last((h * slope(module.function, h)).sum(0)).sum()
        (gradient,) = torch.autograd.grad(output, x)
        expected = (x * gradient).sum(-1).detach().numpy()
        assert explanation.relevance == pytest.approx(expected, abs=1e-5)
        assert abs(explanation.ledger.unexplained) < 1e-5


def test_every_built_in_rule_says_where_it_is_from():
    rules = {name: row.rule for name, row in OPERATIONS.items() if row.rule}
    for name, rule in rules.items():
        assert re.search(r"[A-Z][a-z]+ (19|20)\d\d", rule.forward.__doc__ or ""), name


class Spread(nn.Module):
    """Aggregate nodes by their mean and spread, as PNA does (Corso 2020)."""

    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.how = nn.Linear(DIM, 8), nn.Linear(16, 1), how

    def forward(self, x, edge_index, batch):
        h = self.first(x)
        graphs = [h[batch == k] for k in range(int(batch.max()) + 1)]
        return self.last(torch.stack([torch.cat([g.mean(0), self.spread(g)]) for g in graphs]))

    def spread(self, h):
        if self.how == "std":
            return h.std(0)
        if self.how == "var":
            return h.var(0)
        if self.how == "var_mean":
            return torch.var_mean(h, 0)[0]
        variance = (h * h).mean(0) - h.mean(0) * h.mean(0)
        return torch.sqrt(variance.relu() + 1e-5)


@pytest.mark.parametrize("how", ["std", "var", "var_mean", "written out"])
def test_the_spread_of_nodes_is_a_mean_of_products_of_deviations(how):
    module = Spread(how)
    for data, explanation in zip(GRAPHS, explained(module), strict=True):
        x = data.x.clone().requires_grad_()
        h = module.first(x)
        deviation = h - h.mean(0)
        n = len(h) if how == "written out" else len(h) - 1
        variance = (deviation * deviation.detach()).sum(0) / n
        spread = variance
        if how == "std":
            spread = variance / variance.detach().sqrt()
        elif how == "written out":
            spread = variance / (variance.detach() + 1e-5).sqrt()
        output = module.last(torch.cat([h.mean(0), spread])).sum()
        (gradient,) = torch.autograd.grad(output, x)
        expected = (x * gradient).sum(-1).detach().numpy()
        assert explanation.relevance == pytest.approx(expected, abs=1e-5)
        assert abs(explanation.ledger.unexplained) < 1e-4


class Normalised(nn.Module):
    """Attention whose weights `F.normalize(p=1)` divides by their sum."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.last, self.constant = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, 1), False

    def forward(self, x, edge_index):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = F.normalize((q @ k.T).exp(), p=1, dim=-1)
        weights = weights.detach() if self.constant else weights
        return self.last((weights @ v).sum(0, keepdim=True))


def test_weights_divided_by_their_norm_of_one_are_attention():
    module = Normalised()
    explanations = explained(module)
    module.constant = True
    for data, explanation in zip(GRAPHS, explanations, strict=True):
        x = data.x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(module(x, None).sum(), x)
        expected = (x * gradient).sum(-1).detach().numpy()
        assert explanation.relevance == pytest.approx(expected, abs=1e-5)
        assert abs(explanation.ledger.unexplained) < 1e-5
