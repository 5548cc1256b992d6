"""Rules for classes of modules act in both tiers, and leave the modules as they were."""

import threading
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool

import graphxai as gx
from graphxai.engine.request import recorded_only
from graphxai.models.graphormer.layers import FeedForward
from graphxai.rules.conservative import Rules
from graphxai.rules.module_rule import ModuleRule

pytestmark = pytest.mark.usefixtures("only_relevance")

GRAPH = Data(
    x=torch.randn(4, 4, generator=torch.Generator().manual_seed(0)),
    edge_index=torch.tensor([[0, 1], [1, 0]]),
)


class Gate(nn.Module):
    """A value times a gate that no built-in rule takes for one, because tanh may be negative."""

    def __init__(self):
        super().__init__()
        self.value, self.gate = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.value(x) * torch.tanh(self.gate(x))


class NarrowGate(Gate):
    pass


class Gated(nn.Module):
    def __init__(self, gate=Gate):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.gate, self.last = nn.Linear(4, 6), gate(), nn.Linear(6, 1)

    def forward(self, x, batch):
        return self.last(global_add_pool(self.gate(self.first(x)), batch))


def signal_takes_all(x, gate):
    """Hold the gate constant, so that its value gets all relevance (Arras 2017)."""
    return gate.module.value(x) * torch.tanh(gate.module.gate(x)).detach()


def straight_through(x, gate):
    """Pass relevance on as if there were no gate (Bengio 2013)."""
    return x + (gate(x) - x).detach()


def by_hand(module, of_gate):
    x = GRAPH.x.clone().requires_grad_()
    output = module.last(of_gate(module.first(x), module.gate).sum(0)).sum()
    (gradient,) = torch.autograd.grad(output, x)
    return (x * gradient).sum(-1).detach().numpy()


def value_times_constant(h, gate):
    return gate.value(h) * torch.tanh(gate.gate(h)).detach()


@pytest.mark.parametrize("tier", [nullcontext, recorded_only], ids=["hooks", "recorded"])
@pytest.mark.parametrize("method", ["lrp", "attn_lrp"])
def test_the_rule_of_a_module_is_its_gradient(method, tier):
    module = Gated().eval()
    for rule, expected in (
        (signal_takes_all, value_times_constant),
        (straight_through, lambda h, gate: h),
    ):
        model = gx.wrap(module, kind="regression", rules={Gate: rule})
        with tier(), warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # what a rule detaches needs no warning
            explanation = gx.explain(model, GRAPH, method)
        assert explanation.relevance == pytest.approx(by_hand(module, expected), abs=1e-5)
        assert abs(explanation.ledger.unexplained) < 1e-5
        assert explanation.output == pytest.approx(module(GRAPH.x, torch.zeros(4).long()).item())


def test_what_hooks_read_needs_no_recording():
    model = gx.wrap(Gated().eval(), kind="regression", rules={Gate: signal_takes_all})
    gx.explain(model, GRAPH)
    assert model.why_recorded is None


def test_subclasses_follow_the_nearest_rule():
    module = Gated(NarrowGate).eval()
    model = gx.wrap(module, kind="regression", rules={Gate: signal_takes_all})
    expected = by_hand(module, value_times_constant)
    assert gx.explain(model, GRAPH).relevance == pytest.approx(expected, abs=1e-5)
    rules = {Gate: signal_takes_all, NarrowGate: straight_through}
    model = gx.wrap(module, kind="regression", rules=rules)
    with pytest.warns(UserWarning, match="did not act: no Gate is called in Gated"):
        relevance = gx.explain(model, GRAPH).relevance
    assert relevance == pytest.approx(by_hand(module, lambda h, gate: h), abs=1e-5)


def test_a_class_that_does_not_occur_is_named_once():
    model = gx.wrap(Gated().eval(), kind="regression", rules={nn.GRU: straight_through})
    with pytest.warns(UserWarning, match="rules .* did not act: no GRU is called in Gated"):
        gx.explain(model, GRAPH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gx.explain(model, GRAPH)


def test_the_module_is_as_before_even_after_an_error():
    module = Gated().eval()
    before = [dict(vars(part)) for part in module.modules()]
    calls = []

    def failing(x, gate):
        calls.append(gate)
        raise RuntimeError("in the rule")

    with pytest.raises(Exception, match="in the rule"):
        gx.explain(gx.wrap(module, kind="regression", rules={Gate: failing}), GRAPH)
    assert calls
    assert [dict(vars(part)) for part in module.modules()] == before


def test_another_thread_computes_by_the_module_itself():
    module, outputs = Gated().eval(), []

    def doubling(x, gate):
        thread = threading.Thread(target=lambda: outputs.append(gate.module(x.detach())))
        thread.start()
        thread.join()
        outputs.append(gate(x).detach())
        return gate(x)

    gx.explain(gx.wrap(module, kind="regression", rules={Gate: doubling}), GRAPH)
    assert torch.equal(*outputs[:2])


def test_arguments_by_name_and_further_results_reach_the_rule():
    class Scaled(nn.Module):
        def forward(self, x, *, scale):
            return x * scale, scale

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.scaled, self.last = Scaled(), nn.Linear(4, 1)

        def forward(self, x, batch):
            h, scale = self.scaled(x=x, scale=3.0)
            return self.last(global_add_pool(h, batch)) / scale

    def halved(x, scaled):
        y, scale = scaled.function(x, **scaled.options)
        return y / 2 + y.detach() / 2, scale

    net = Net().eval()
    whole = gx.explain(gx.wrap(net, kind="regression"), GRAPH).relevance
    half = gx.explain(gx.wrap(net, kind="regression", rules={Scaled: halved}), GRAPH).relevance
    assert half == pytest.approx(whole / 2, abs=1e-6)


def test_the_rule_acts_on_modules_called_in_a_block():
    module = Gated().eval()
    x = GRAPH.x.clone().requires_grad_()
    rule = ModuleRule(Gate, signal_takes_all)
    with gx.conservative(activation="ratio", custom=(rule,), model=module):
        output = module(x, torch.zeros(4, dtype=torch.long))
    (gradient,) = torch.autograd.grad(output.sum(), x)
    relevance = (x * gradient).sum(-1).detach().numpy()
    assert relevance == pytest.approx(by_hand(module, value_times_constant), abs=1e-5)


def test_the_rule_acts_on_a_bundled_model():
    from graphxai.explainers.gradient import GradientInput

    class NothingFromFeedForward(GradientInput):
        name = "nothing_from_feed_forward"
        rules = Rules(
            attention=True,
            layernorm=True,
            activation="ratio",
            custom=(ModuleRule(FeedForward, lambda x, f: f(x).detach() + 0 * x),),
        )

    model = gx.load("bace")
    changed, lrp = (gx.explain(model, "CCO", m) for m in (NothingFromFeedForward(), "lrp"))
    assert changed.output == pytest.approx(lrp.output, abs=1e-5)
    assert abs(changed.relevance - lrp.relevance).max() > 1e-3


def test_two_rules_for_one_class_are_refused():
    rule = ModuleRule(Gate, straight_through)
    with pytest.raises(ValueError, match=r"several rules for .*Gate"):
        Rules(custom=(rule, ModuleRule(Gate, signal_takes_all)))
    with pytest.raises(ValueError, match=r"names a class of torch\.nn\.Module"):
        ModuleRule(Data, straight_through)
