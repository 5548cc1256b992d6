"""Rules from outside act in both tiers, precede those built in, and are named if they never act."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool

import graphxai as gx
from graphxai.engine.request import recorded_only
from graphxai.explainers import GradientInput
from graphxai.rules.conservative import Rules
from graphxai.rules.operation_rule import OperationRule

pytestmark = pytest.mark.usefixtures("only_relevance")

aten = torch.ops.aten


def nothing(x, operation):
    """Pass nothing on: the whole result is a constant."""
    return operation(x).detach() + 0 * x


def twice(x, operation):
    """Pass on twice the gradient."""
    y = operation(x)
    return 2 * y - y.detach()


class Smooth(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 1)

    def forward(self, x, batch):
        h = self.first(x)
        return self.last(global_add_pool(F.silu(h) + F.elu(h), batch))


GRAPH = Data(
    x=torch.randn(4, 4, generator=torch.Generator().manual_seed(0)),
    edge_index=torch.tensor([[0, 1], [1, 0]]),
)


def by_hand(module, f):
    x = GRAPH.x.clone().requires_grad_()
    output = module.last(f(module.first(x)).sum(0)).sum()
    (gradient,) = torch.autograd.grad(output, x)
    return (x * gradient).sum(-1).detach().numpy()


def constant_ratio(f, h):
    return h * (f(h) / h).detach()


@pytest.mark.parametrize("key", [aten.silu, aten.silu.default])
@pytest.mark.parametrize("method", ["lrp", "attn_lrp"])
def test_a_rule_from_outside_precedes_that_built_in(key, method):
    module = Smooth().eval()
    for rule, factor in ((nothing, 0.0), (twice, 2.0)):
        model = gx.wrap(module, kind="regression", rules={key: rule})

        def expected(h, factor=factor):
            return factor * F.silu(h) + constant_ratio(F.elu, h)

        explanation = gx.explain(model, GRAPH, method)
        assert explanation.relevance == pytest.approx(by_hand(module, expected), abs=1e-5)
        with recorded_only():
            recorded = gx.explain(gx.wrap(module, kind="regression", rules={key: rule}), GRAPH)
        assert recorded.relevance == pytest.approx(by_hand(module, expected), abs=1e-5)


def test_gradients_without_rules_are_those_of_the_model():
    module = Smooth().eval()
    model = gx.wrap(module, kind="regression", rules={aten.silu: nothing})
    plain = gx.explain(gx.wrap(module, kind="regression"), GRAPH, "gradient_input")
    explanation = gx.explain(model, GRAPH, "gradient_input")
    assert explanation.relevance == pytest.approx(plain.relevance, abs=1e-7)


def test_a_rule_that_never_acts_is_named():
    model = gx.wrap(Smooth().eval(), kind="regression", rules={aten.mish: twice, aten.silu: twice})
    with pytest.warns(UserWarning, match="did not act: no mish of one signal passes relevance"):
        gx.explain(model, GRAPH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gx.explain(model, GRAPH)  # once


def test_other_keys_are_refused():
    for key in ("silu", F.silu, Data):
        with pytest.raises(
            TypeError, match=r"rules= names operations such as .* or classes of modules"
        ):
            gx.wrap(Smooth(), kind="regression", rules={key: twice})
    with pytest.raises(ValueError, match="a rule cannot act on 'mm'"):
        gx.wrap(Smooth(), kind="regression", rules={aten.mm: twice})


def test_a_rule_that_computes_something_else_is_noticed_for_every_wrap_of_a_module():
    module = Smooth().eval()
    gx.explain(gx.wrap(module, kind="regression"), GRAPH)
    changed = gx.wrap(module, kind="regression", rules={aten.silu: lambda x, operation: x})
    with pytest.warns(UserWarning, match="the explanation is not of this model"):
        gx.explain(changed, GRAPH)


class LrpWithSoftplus(GradientInput):
    """LRP that holds `softplus(x) / x` constant, too."""

    ratio = OperationRule("softplus", lambda x, f: x * (f(x.detach()) / x.detach()), conserves=True)
    rules = Rules(activation="ratio", custom=(ratio,))


class Softplus(Smooth):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor

    def forward(self, x, batch):
        h = F.softplus(self.first(x))
        return self.last(global_add_pool(h.clamp(min=1e-9) if self.floor else h, batch))


def test_a_clamp_that_changes_no_value_leaves_the_ledger_of_a_conserving_rule_as_it_is():
    plain, clamped = (
        gx.explain(gx.wrap(Softplus(floor).eval(), kind="regression"), GRAPH, LrpWithSoftplus())
        for floor in (False, True)
    )
    assert plain.ledger.unexplained == pytest.approx(0, abs=1e-4)
    assert clamped.ledger.unexplained == pytest.approx(0, abs=1e-4)
    assert clamped.ledger.biases == pytest.approx(plain.ledger.biases, rel=1e-5)
    assert not clamped.ledger.others
    module = Softplus(floor=False).eval()
    expected = by_hand(module, lambda h: constant_ratio(F.softplus, h))
    assert clamped.relevance == pytest.approx(expected, rel=1e-4)
