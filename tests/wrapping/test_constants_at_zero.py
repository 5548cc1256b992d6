"""Functions of single entries that are not zero at zero: their value there is a constant."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool

import graphxai as gx
from graphxai.engine.request import recorded_only
from graphxai.rules.operation_rule import secant

pytestmark = pytest.mark.usefixtures("only_relevance")

DIM = 4
# those that are finite at zero
AT_ZERO = {
    "sigmoid": torch.sigmoid,
    "logsigmoid": F.logsigmoid,
    "hardsigmoid": F.hardsigmoid,
    "softplus": F.softplus,
    "exp2": torch.exp2,
    "cos": torch.cos,
    "erfc": torch.erfc,
    "acos": lambda x: torch.acos(x.tanh() / 2),
    "hardtanh": lambda x: F.hardtanh(x, 0.5, 2.0),
}
# those that are infinite at zero, with the function of what they are applied to, from one on
FROM_ONE = {
    "log": (torch.log, lambda x: x.relu() + 1),
    "log2": (torch.log2, lambda x: x.square() + 1),
    "log10": (torch.log10, lambda x: x.abs() + 0.5),
    "reciprocal": (lambda z: 1 / z, lambda x: x.square() + 2),
    "negative": (torch.reciprocal, lambda x: -2 - x.abs()),
    "rsqrt": (torch.rsqrt, lambda x: x.square() + 1),
    "power": (lambda z: z**-2, lambda x: x.abs() + 2),
}


class Twice(nn.Module):
    """A network with one function twice."""

    def __init__(self, function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.first, self.second = nn.Linear(DIM, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 1)
        self.double()

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        h = self.function(self.second(self.function(self.first(x))))
        return self.head(global_add_pool(h, batch))


def line(f, x: Tensor, start: Tensor) -> Tensor:
    """Return f(x) as the line from f(start) to f(x), whose slope is constant."""
    with torch.no_grad():
        slope = ((f(x) - f(start)) / (x - start)).nan_to_num(0.0)  # where relu(x) + 1 is one
    return f(start) + slope * (x - start)


def by_ratio(square, x: Tensor) -> Tensor:
    return x * (square(x) / x).detach()


GRAPHS = [
    Data(x=torch.randn(n, DIM, generator=torch.Generator().manual_seed(n)).double())
    for n in (5, 3, 4)
]


def compare(function, by_hand, has_constant: bool) -> None:
    """Compare LRP with the gradient of a network whose functions are lines."""
    module = Twice(function).eval()
    model = gx.wrap(module, kind="regression")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*recorded passes|.*jit.script")
        hooked = [gx.explain(model, GRAPHS[0], "lrp"), *gx.explain(model, GRAPHS, "lrp")]
        with recorded_only():
            recorded = [gx.explain(model, GRAPHS[0], "lrp"), *gx.explain(model, GRAPHS, "lrp")]
    module.function = by_hand
    for data, *both in zip([GRAPHS[0], *GRAPHS], hooked, recorded, strict=True):
        x = data.x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(module(x, torch.zeros(len(x)).long()).sum(), x)
        expected = (x * gradient).sum(-1).detach()
        for e in both:
            assert e.relevance == pytest.approx(expected.numpy(), abs=1e-6)
            assert abs(e.ledger.unexplained) < 1e-6
            constants = [(each.ledger.others or {}).get("constants", 0.0) for each in both]
            assert constants == pytest.approx(constants[:1] * 2, abs=1e-6)
            assert abs(constants[0]) > 0.1 or not has_constant


@pytest.mark.parametrize("name", AT_ZERO)
def test_the_value_at_zero_is_a_constant_of_the_ledger(name):
    f = AT_ZERO[name]
    if name == "acos":

        def by_hand(x: Tensor) -> Tensor:
            z = by_ratio(torch.tanh, x) / 2
            return line(torch.acos, z, torch.zeros_like(z))
    else:

        def by_hand(x: Tensor) -> Tensor:
            return line(f, x, torch.zeros_like(x))

    compare(f, by_hand, True)


@pytest.mark.parametrize("name", FROM_ONE)
def test_a_function_without_a_value_at_zero_begins_at_one(name):
    f, inner = FROM_ONE[name]

    def by_hand(x: Tensor) -> Tensor:
        z = inner(x)
        if name in ("log2", "reciprocal", "rsqrt"):  # a square passes on by its ratio
            z = by_ratio(torch.square, x) + (z - x.square()).detach()
        return line(f, z, torch.ones_like(z).copysign(z.detach()))

    compare(lambda x: f(inner(x)), by_hand, False)


def test_spellings_of_one_function_have_the_same_relevance_and_constants():
    for spellings in (
        [torch.sigmoid, lambda x: 0.5 * torch.tanh(x / 2) + 0.5],
        [F.logsigmoid, lambda x: -F.softplus(-x)],
        [lambda x: torch.log(x.relu() + 1), lambda x: torch.log1p(x.relu())],
        [lambda x: torch.rsqrt(x.abs() + 1), lambda x: (x.abs() + 1) ** -0.5],
    ):
        models = [gx.wrap(Twice(f).eval(), kind="regression") for f in spellings]
        one, other = (gx.explain(model, GRAPHS[0], "lrp") for model in models)
        assert one.relevance == pytest.approx(other.relevance, abs=1e-5)
        assert one.ledger.biases == pytest.approx(other.ledger.biases, abs=1e-4)


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "exp2"])
def test_slopes_near_zero_are_no_rounding(name):
    x = torch.tensor([1e-3, -1e-5, 3e-7, -2e-8])
    slope, constant = secant(AT_ZERO[name], x)
    exact, exact_constant = secant(AT_ZERO[name], x.double())
    assert slope.dtype == constant.dtype == torch.float32
    torch.testing.assert_close(slope, exact.float())
    torch.testing.assert_close(constant, exact_constant.float())


def test_a_gate_is_still_constant():
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.gate, self.value = nn.Linear(DIM, 1), nn.Linear(DIM, 1)
            self.double()

        def forward(self, x: Tensor, batch: Tensor) -> Tensor:
            return global_add_pool(torch.sigmoid(self.gate(x)) * self.value(x), batch)

    module = Gated().eval()
    e = gx.explain(gx.wrap(module, kind="regression"), GRAPHS[0], "lrp")
    gate = torch.sigmoid(module.gate(GRAPHS[0].x)).squeeze(-1)
    expected = gate * (GRAPHS[0].x @ module.value.weight[0])
    assert e.relevance == pytest.approx(expected.detach().numpy(), abs=1e-5)
    assert not (e.ledger.others or {}).get("constants")


class SignedRoots(nn.Module):
    """Takes signed square roots, as GRIT does (Ma 2023); half of them are taken of zero."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, 3), nn.Linear(3, 1)

    def forward(self, x, batch):
        h = self.first(x)
        return self.last(global_add_pool(h.relu().sqrt() - (-h).relu().sqrt(), batch))


def test_the_biases_before_a_root_of_zero_have_their_gradients_as_share():
    torch.manual_seed(0)
    module, data = SignedRoots().eval(), Data(x=torch.randn(4, 2), num_nodes=4)
    with recorded_only(), warnings.catch_warnings():
        warnings.simplefilter("error")
        e = gx.explain(gx.wrap(module, kind="regression"), data, "gradient_input")
    module(data.x, torch.zeros(4, dtype=torch.long)).sum().backward()
    share = sum((b * b.grad).sum().item() for b in (module.first.bias, module.last.bias))
    assert e.ledger.biases == pytest.approx(share, rel=1e-4)
    assert not e.ledger.others
