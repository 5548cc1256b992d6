"""Models may write to their tensors in place, and into one another."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv, global_add_pool
from torch_geometric.utils import to_dense_batch

import graphxai as gx
from graphxai.explainers import Explainer
from graphxai.explainers.base import scored
from pooled_models import DIM, Pooled, answer, explained, graph, seeded

pytestmark = pytest.mark.usefixtures("only_relevance")

# -- in place ----------------------------------------------------------------------------------


def first(h: Tensor, act) -> Tensor:
    """Return the result, or twice the result if it was overwritten."""
    return h + act(h)


def unused(h: Tensor, act) -> Tensor:
    act(h)
    return h


def on_a_view(h: Tensor, act) -> Tensor:
    act(h[:, :3])
    return h


def with_out(h: Tensor, act) -> Tensor:
    buffer = torch.empty(0)
    act(h, buffer)
    return buffer


IN_PLACE = {
    "SiLU": nn.SiLU(inplace=True),
    "Mish": nn.Mish(inplace=True),
    "Hardswish": nn.Hardswish(inplace=True),
    "Hardtanh": nn.Hardtanh(inplace=True),
    "ReLU6": nn.ReLU6(inplace=True),
    "ELU": nn.ELU(inplace=True),
    "ReLU": nn.ReLU(inplace=True),
    "tanh_": Tensor.tanh_,
    "torch.tanh_": torch.tanh_,
    "F.elu_": F.elu_,
    "F.elu by position": lambda h: F.elu(h, 0.7, True),
    "selu": lambda h: F.selu(h, inplace=True),
    "celu_": torch.celu_,
    "silu_": torch._C._nn.silu_,
    "hardtanh_": lambda h: F.hardtanh_(h, -0.3, 0.6),
    "leaky_relu": lambda h: F.leaky_relu(h, 0.2, True),
}


@pytest.mark.parametrize("use", [first, unused, on_a_view], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", IN_PLACE)
def test_what_writes_over_its_argument_does_so_under_the_rules(name, use):
    act = IN_PLACE[name]
    model = seeded(Pooled(lambda _, h: use(h, act)))
    explanation, data = explained(model), graph()
    assert explanation.prediction.value == pytest.approx(answer(model, data), rel=1e-5)
    assert abs(explanation.ledger.unexplained) < 1e-5


@pytest.mark.parametrize("name", ["tanh", "matmul", "add", "normalize"])
def test_a_result_in_a_given_tensor_carries_relevance(name):
    def step(model: Pooled, h: Tensor) -> Tensor:
        buffer = torch.empty(0)
        if name == "tanh":
            torch.tanh(h, out=buffer)
        elif name == "matmul":
            torch.matmul(h, model.weight, out=buffer)
        elif name == "add":
            torch.add(h, model.bias, alpha=2, out=buffer)
        else:
            buffer = torch.empty_like(h)
            F.normalize(h, dim=-1, out=buffer)
        return buffer

    model, data = seeded(Pooled(step)), graph()
    explanation = explained(model)
    assert explanation.prediction.value == pytest.approx(answer(model, data), rel=1e-5)
    assert abs(explanation.ledger.unexplained) < 1e-5
    assert abs(explanation.relevance).max() > 0


def test_a_product_in_place_is_in_place_where_its_factors_are_halved():
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

        def forward(self, x):
            h = self.left(x)
            h.mul_(self.right(x))
            return h.sum()

    model, x = seeded(Product()), torch.randn(3, DIM, requires_grad=True)
    with gx.conservative(False, False, products=True, model=model):
        out = model(x)
    assert out.item() == pytest.approx(model(x).item(), rel=1e-5)
    (slope,) = torch.autograd.grad(out, x)
    left, right = model.left(x), model.right(x)
    (expected,) = torch.autograd.grad((left * right).sum() / 2, x)
    torch.testing.assert_close(slope, expected)


def test_a_users_activation_that_works_in_place():
    class MySwish(nn.Module):
        def forward(self, x):
            return x.mul_(torch.sigmoid(x))

    act = MySwish()
    model = seeded(Pooled(lambda _, h: act(h) + h))
    model.act = act
    explanation = explained(model)
    assert explanation.prediction.value == pytest.approx(answer(model, graph()), rel=1e-5)
    assert abs(explanation.ledger.unexplained) < 1e-5


def test_a_module_that_only_has_the_name_of_an_activation_keeps_its_value():
    class RolledTanh(nn.Module):
        def forward(self, x):
            return torch.tanh(x).roll(1, -1)

    rolled = RolledTanh()
    model = seeded(Pooled(lambda _, h: rolled(F.relu(h))))
    model.act = rolled
    explanation = explained(model)
    assert explanation.prediction.value == pytest.approx(answer(model, graph()), rel=1e-5)
    assert abs(explanation.ledger.unexplained) < 1e-5


def test_a_method_that_explains_another_function_is_detected():
    class Other(Explainer):
        name, title, source = "other", "Other", "none"

        def _attribute(self, model, batch, target):
            outputs = model(batch) * 1.01
            tokens = model.embed(batch)
            return scored(tokens.sum(-1), batch, outputs, target.resolve(model.config, outputs))

    model = gx.wrap(seeded(Pooled()), kind="regression")
    with pytest.warns(UserWarning, match=r"the outputs of Pooled change.*'other'.*by 1\.0e-02"):
        gx.explain(model, graph(), Other())


def test_hardtanh_between_bounds_above_zero_keeps_its_value():
    model = seeded(Pooled(lambda _, h: F.hardtanh(F.relu(h), 0.2, 0.7)))
    explanation = explained(model, warn=True)
    assert explanation.prediction.value == pytest.approx(answer(model, graph()), rel=1e-5)


class WritesOverItsInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(torch.randn(5, 6, generator=torch.Generator().manual_seed(3)))
        self.head = nn.Sequential(nn.Linear(6, DIM), nn.ReLU(), nn.Linear(DIM, 1))

    def forward(self, x: Tensor) -> Tensor:
        x += self.place
        return self.head(x).sum(1)


def test_a_model_that_writes_over_its_input_is_given_a_copy():
    module = seeded(WritesOverItsInput())
    rows = [graph().x, graph().x + 1]
    with torch.no_grad():
        wanted = module(torch.stack(rows))[:, 0]
    model, kept = gx.wrap(module, kind="regression", inputs="tokens"), [row.clone() for row in rows]
    for explanation, output in zip(gx.explain(model, rows, "lrp"), wanted, strict=True):
        assert explanation.output == pytest.approx(output.item(), rel=1e-5)
        assert explanation.ledger.unexplained == pytest.approx(0, abs=1e-5)
    assert all(map(torch.equal, rows, kept))


# -- constants ---------------------------------------------------------------------------------


def class_token(m: Pooled, h: Tensor) -> Tensor:
    z = h.new_zeros(len(h) + 1, DIM)
    z[0] = m.bias
    z[1:] = h
    return z[1:] + z[:1]


def on_a_background(m: Pooled, h: Tensor) -> Tensor:
    z = m.bias.repeat(len(h), 1)
    z[::2] = h[::2]
    return z


def into_a_background(m: Pooled, h: Tensor) -> Tensor:
    z = m.bias.repeat(len(h), 1)
    return z.index_add_(0, torch.arange(len(h)), h)


def written_row(m: Pooled, h: Tensor) -> Tensor:
    h = h.clone()
    h[:, 1] = m.bias[1]
    h[0] = 0.4
    return h


def rows(h: Tensor) -> Tensor:
    return torch.arange(len(h))


CONSTANTS = {
    "a class token written in front": class_token,
    "a background with nodes on it": on_a_background,
    "a background that nodes are added to": into_a_background,
    "a written row": written_row,
    "addmm": lambda m, h: torch.addmm(m.bias, h, m.weight),
    "addmm with beta": lambda m, h: torch.addmm(m.bias, h, m.weight, beta=0.3, alpha=2),
    "addmm of constants": lambda m, h: torch.addmm(h, m.bias.repeat(len(h), 1), m.weight),
    "addcmul": lambda m, h: torch.addcmul(m.bias, h, m.weight[0], value=2),
    "index_add": lambda m, h: h.index_add(0, rows(h), m.bias.expand(len(h), -1)),
    "index_copy": lambda m, h: h.index_copy(0, rows(h)[:2], m.bias.expand(2, -1)),
    "index_fill": lambda m, h: h.index_fill(1, torch.tensor([2]), 0.5),
    "scatter": lambda m, h: h.scatter(1, torch.zeros(len(h), 2).long() + rows(h[:2]), 0.7),
    "masked_fill": lambda m, h: h.masked_fill(h < -0.2, 0.7),
    "masked_scatter": lambda m, h: h.masked_scatter(h < 0, m.weight.repeat(3, 1)),
    "where with a number": lambda m, h: torch.where(h > 0, h, 0.3),
    "fill_": lambda m, h: torch.cat([h[:, :4], h[:, 4:].clone().fill_(0.3)], 1),
    "copy_": lambda m, h: torch.cat([h[:, :4], h[:, 4:].clone().copy_(m.bias[4:])], 1),
    "pad": lambda m, h: F.pad(h, (0, 1), value=0.8)[:, 1:],
    "cat by keyword": lambda m, h: torch.cat(tensors=[h[:, :3], m.weight[: len(h), 3:]], dim=1),
    "add by keyword": lambda m, h: torch.add(input=h, other=m.bias, alpha=2),
    "clamp": lambda m, h: h.clamp(-0.3, 0.4),
    "clamp by keyword": lambda m, h: h.clamp(max=0.4),
    "clamp in place": lambda m, h: h.clone().clamp_(min=0.1),
    "clip": lambda m, h: h.clip(-0.3, 0.4),
    "maximum": lambda m, h: torch.maximum(h, m.bias),
    "lerp": lambda m, h: torch.lerp(h, m.bias.expand_as(h), 0.3),
    "pad_sequence": lambda m, h: (
        nn.utils.rnn.pad_sequence([h[:2], h[2:]], batch_first=True, padding_value=0.6) @ m.weight
    ).flatten(0, 1)[: len(h)],
    "a weight made of nodes": lambda m, h: F.linear(m.weight, h, m.bias[:5]).T,
    "dense batch": lambda m, h: to_dense_batch(h, fill_value=0.3, max_num_nodes=9)[0][0][:5],
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_the_ledger_closes_however_constants_enter(name):
    model = seeded(Pooled(CONSTANTS[name]))
    explanation = explained(model)
    assert explanation.prediction.value == pytest.approx(answer(model, graph()), rel=1e-5)
    assert abs(explanation.ledger.unexplained) < 1e-5 * max(1, abs(explanation.output))


def test_the_share_of_a_constant_is_it_times_its_slope():
    """In an affine network, the output without nodes is the share of the constants."""

    class Affine(Pooled):
        def forward(self, x, edge_index, batch):
            return self.head(global_add_pool(class_token(self, self.embed(x)), batch))

    model, data = seeded(Affine()), graph()
    explanation = explained(model)
    nothing = answer(model, Data(x=torch.zeros_like(data.x), edge_index=data.edge_index))
    assert explanation.ledger.biases == pytest.approx(nothing, abs=1e-5)


def test_what_was_computed_from_weights_before_the_pass_is_a_constant():
    model = seeded(Pooled(lambda m, h: h @ m.cached + m.loose))
    model.cached = model.weight * 2  # with a gradient, and no parameter
    model.loose = torch.randn(DIM, requires_grad=True)
    explanation = explained(model)
    assert abs(explanation.ledger.unexplained) < 1e-5


def test_a_product_over_neighbours_is_named():
    conv = SAGEConv(DIM, DIM, aggr="mul")

    class Model(Pooled):
        def __init__(self):
            super().__init__()
            self.conv = conv

        def forward(self, x, edge_index, batch):
            return self.head(global_add_pool(self.conv(self.embed(x), edge_index), batch))

    with pytest.warns(UserWarning, match=r"conv\.aggr_module: prod"):
        gx.explain(gx.wrap(seeded(Model()), kind="regression"), graph())


def test_one_over_a_signal_adds_up_and_a_constant_over_one_is_named():
    model = seeded(Pooled(lambda m, h: 1 / (h.abs() + 1)))
    e = gx.explain(gx.wrap(model, kind="regression"), graph())
    assert abs(e.ledger.unexplained) < 1e-5
    model = seeded(Pooled(lambda m, h: torch.arange(1, 9).to(h) / (h.abs() + 1)))
    with pytest.warns(UserWarning, match="with the input in the denominator"):
        gx.explain(gx.wrap(model, kind="regression"), graph())


# -- the scale of a norm -----------------------------------------------------------------------


class DenseNorm(nn.Module):
    def forward(self, h):
        return h.abs().sqrt()


class OwnNorm(nn.Module):
    """A norm that divides x by its length, via a number of which the scale is a multiple."""

    def __init__(self, how: str):
        super().__init__()
        self.how = how

    def forward(self, h):
        if self.how == "std_mean":
            std, mean = torch.std_mean(h, -1, keepdim=True)
            return (h - mean) / (std + 1e-3)
        if self.how == "power":
            return h * (h.pow(2).mean(-1, keepdim=True) + 1e-3) ** -0.5
        scale = (h.square().mean(-1, keepdim=True) + 1e-3).sqrt()
        if self.how == "in place":
            return h.clone().div_(scale)
        return h * (2.0 / scale).expand_as(h)


def test_a_root_that_scales_nothing_is_not_a_scale_whatever_its_class_is_called():
    norm, x = DenseNorm(), torch.randn(3, DIM, requires_grad=True)
    with gx.conservative(activation="ratio", model=norm):
        out = norm(x)
    (slope,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(slope, (x.abs().sqrt() / x).detach())  # the rule of functions


@pytest.mark.parametrize("how", ["multiple", "in place", "power", "std_mean"])
def test_a_scale_is_constant_where_it_meets_the_signal(how):
    norm, x = OwnNorm(how), torch.randn(3, DIM, requires_grad=True)
    weights = torch.randn(3, DIM)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with gx.conservative(activation="ratio", model=norm):
            out = norm(x)
    (slope,) = torch.autograd.grad((out * weights).sum(), x)
    if how == "std_mean":
        scale = x.std(-1, keepdim=True).detach() + 1e-3
        by_hand = (x - x.mean(-1, keepdim=True)) / scale
    else:
        scale = (x.square().mean(-1, keepdim=True) + 1e-3).sqrt().detach()
        by_hand = x / scale * (2.0 if how == "multiple" else 1.0)
    torch.testing.assert_close(out, by_hand)
    torch.testing.assert_close(slope, torch.autograd.grad((by_hand * weights).sum(), x)[0])
