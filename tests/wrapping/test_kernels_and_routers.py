"""Attention without a softmax, and routers that weight the experts they choose, are constant."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool
from torch_geometric.utils import to_dense_batch

import graphxai as gx

pytestmark = pytest.mark.usefixtures("only_relevance")

DIM, EXPERTS = 6, 3
EDGES = torch.tensor([[0, 1], [1, 0]])


def graph(nodes: int) -> Data:
    draw = torch.Generator().manual_seed(nodes)
    return Data(x=torch.randn(nodes, DIM, generator=draw), edge_index=EDGES)


GRAPHS = [graph(n) for n in (5, 3, 7)]


class Weighs(nn.Module):
    """A model whose weights can be set constant, as the rule for attention holds them."""

    constant = False

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(DIM, 1)

    def held(self, weights: Tensor) -> Tensor:
        return weights.detach() if self.constant else weights


KERNELS = {
    "relu": F.relu,
    "clamp": lambda scores: scores.clamp(min=0),
    "exp": torch.exp,
    "softplus": F.softplus,
    "sigmoid": torch.sigmoid,
    "squared relu": lambda scores: F.relu(scores) ** 2,
    "relu in parts": lambda scores: F.relu(scores * 2 + 1) / 3,
}


class Kernel(Weighs):
    """Attention between all nodes of a graph by a positive kernel."""

    def __init__(self, kernel: str, normalised: bool = False) -> None:
        super().__init__()
        self.kernel, self.normalised = kernel, normalised
        self.qkv = nn.Linear(DIM, 3 * DIM)

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        rows, mask = to_dense_batch(x, batch)
        q, k, v = self.qkv(rows).chunk(3, -1)
        weights = KERNELS[self.kernel](q @ k.mT / DIM**0.5) * mask[:, None]
        if self.normalised:
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-6)
        rows = rows + self.held(weights) @ v
        return self.head((rows * mask[..., None]).sum(1))


def compare_with_constant_weights(module: Weighs, method: str) -> None:
    model = gx.wrap(module.eval(), kind="regression")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*recorded passes|.*jit.script")
        explanations = gx.explain(model, GRAPHS, method, on_error="raise")
        explanations = [*explanations, gx.explain(model, GRAPHS[0], method)]
    module.constant = True
    for data, explanation in zip([*GRAPHS, GRAPHS[0]], explanations, strict=True):
        x = data.x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(module(x, torch.zeros(len(x)).long()).sum(), x)
        expected = (x * gradient).sum(-1).detach()
        torch.testing.assert_close(torch.tensor(explanation.relevance), expected)
        assert abs(explanation.ledger.unexplained) < 1e-4


@pytest.mark.parametrize("method", ["lrp", "lrp_ah"])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_weights_of_a_positive_kernel_are_constant(kernel, normalised, method):
    compare_with_constant_weights(Kernel(kernel, normalised), method)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_weights_that_are_constant_are_those_that_are_read(kernel):
    module = Kernel(kernel).eval()
    model = gx.wrap(module, kind="regression")
    batch = model.collate([model.prepare(data).data for data in GRAPHS])
    with torch.no_grad(), gx.record() as tape:
        model.encode(model.embed(batch), batch)
    assert len(tape.attention) == 1
    for attention, data in zip(tape.attention[0][:, 0], GRAPHS, strict=True):
        q, k, _ = module.qkv(data.x).chunk(3, -1)
        n = len(data.x)
        expected = KERNELS[kernel](q @ k.T / DIM**0.5).detach()
        torch.testing.assert_close(attention[1 : n + 1, 1 : n + 1], expected)


class ProductOfLayers(nn.Module):
    """A network of two products that mix no nodes: no value is a weight of pairs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))

    def forward(self, x: Tensor, batch: Tensor, constant: bool = False) -> Tensor:
        gate = F.relu(self.a(x) * self.b(x))
        return global_add_pool(gate * self.c(x), batch).sum(-1, keepdim=True)


def test_a_product_of_channels_is_no_attention():
    module = ProductOfLayers().eval()
    e = gx.explain(gx.wrap(module, kind="regression"), GRAPHS[0], "lrp_ah")
    x = GRAPHS[0].x
    value = (F.relu(module.a(x) * module.b(x)) * module.c(x)).sum(-1)
    # half passes to c(x), and the other half to the product of a(x) and b(x), half to each
    torch.testing.assert_close(torch.tensor(e.relevance), value.detach())


def _chosen(p: Tensor) -> tuple[Tensor, Tensor]:
    weight, expert = p.max(-1, keepdim=True)
    return weight, expert


ROUTERS = {
    "max": _chosen,
    "amax": lambda p: (p.amax(-1, keepdim=True), p.argmax(-1, keepdim=True)),
    "top 1": lambda p: p.topk(1, -1),
    "top 2": lambda p: p.topk(2, -1),
    "sorted": lambda p: (part[:, :2] for part in p.sort(-1, descending=True)),
    "gathered": lambda p: (p.gather(-1, p.argmax(-1, keepdim=True)), p.argmax(-1, keepdim=True)),
}
PROBABILITIES = {
    "softmax": lambda scores: scores.softmax(-1),
    "sigmoid": torch.sigmoid,
    "exp": lambda scores: scores.log_softmax(-1).exp(),
}


class Routed(Weighs):
    """Experts whose outputs are multiplied by what the router gives them (Fedus 2022)."""

    def __init__(self, router: str, probabilities: str) -> None:
        super().__init__()
        self.router, self.probabilities = router, probabilities
        self.scores = nn.Linear(DIM, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(EXPERTS))

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        weights, chosen = ROUTERS[self.router](PROBABILITIES[self.probabilities](self.scores(x)))
        rows = torch.stack([expert(x) for expert in self.experts], 1)
        rows = rows.gather(1, chosen[..., None].expand(-1, -1, DIM))
        return self.head(global_add_pool((self.held(weights)[..., None] * rows).sum(1), batch))


@pytest.mark.parametrize("method", ["lrp", "lrp_ah"])
@pytest.mark.parametrize("probabilities", PROBABILITIES)
@pytest.mark.parametrize("router", ROUTERS)
def test_what_a_router_gives_the_chosen_experts_is_constant(router, probabilities, method):
    compare_with_constant_weights(Routed(router, probabilities), method)
