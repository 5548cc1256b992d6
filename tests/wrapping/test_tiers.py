"""Wrapped models have two tiers: hooks on the autograd graph of a pass, and a recorded pass."""

import functools
import json
import operator
import os
import sys
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from composed import PARTS, Block, Composed, Pool, expected
from composed import differences as differences_of
from composed import graph as composed_graph
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch_geometric.nn import GINEConv, GPSConv, global_add_pool

import graphxai as gx
from graphxai.engine.autograd_graph import AutogradGraph, ValueKeeper
from graphxai.engine.hooked_pass import AFFINE
from graphxai.engine.hooked_plan import hooks_of
from graphxai.engine.operations import NODES_OF_GRAPH, OPERATIONS, Operation
from graphxai.engine.plan import make_plan
from graphxai.engine.recording import recording
from graphxai.engine.replay import Replay
from graphxai.engine.request import PassMemory, recorded_only
from graphxai.engine.role_finder import find_roles
from graphxai.engine.rules import BuiltInRule
from graphxai.explainers import GradientInput
from graphxai.rules.conservative import Rules, conservative
from graphxai.rules.operation_rule import OperationRule
from pooled_models import DIM, Pooled, graph, seeded

pytestmark = pytest.mark.usefixtures("only_relevance")

# -- every rule ------------------------------------------------------------------------------------


class Function(nn.Module):
    """A function of one signal."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


FUNCTIONS = {
    "native_layer_norm": nn.LayerNorm(6),
    "native_group_norm": nn.GroupNorm(2, 6),
    "_fused_rms_norm": nn.RMSNorm(6),
    "gelu": nn.GELU(),
    "gelu, approximated": nn.GELU("tanh"),
    "silu": nn.SiLU(),
    "elu": nn.ELU(0.7),
    "elu, scaled": nn.SELU(),
    "celu": nn.CELU(1.3),
    "mish": nn.Mish(),
    "hardswish": nn.Hardswish(),
    "hardtanh": nn.ReLU6(),
    "hardshrink": nn.Hardshrink(0.3),
    "softshrink": nn.Softshrink(0.3),
    "pow": Function(lambda x: x**3),
    "erf": Function(torch.erf),
    "log1p": Function(lambda x: torch.log1p(x + 9)),
    "asinh": Function(torch.asinh),
    "atan": Function(torch.atan),
    "sin": Function(torch.sin),
    "sinh": Function(torch.sinh),
    "cos": Function(torch.cos),
    "cosh": Function(torch.cosh),
    "tanh": nn.Tanh(),
    "tanh, saturated": Function(lambda x: (30 * x).tanh()),
    "sqrt": Function(lambda x: (x + 9).sqrt()),
    "softplus": nn.Softplus(),
    "sigmoid": nn.Sigmoid(),
    "hardsigmoid": nn.Hardsigmoid(),
    "hardtanh, above zero": nn.Hardtanh(0.2, 1.0),
    "pow, negative": Function(lambda x: (x + 9) ** -1.5),
    "reciprocal": Function(lambda x: 1 / (x + 9)),
    "rsqrt": Function(lambda x: (x + 9).rsqrt()),
    "log": Function(lambda x: (x + 9).log()),
    "log2": Function(lambda x: (x + 9).log2()),
    "log10": Function(lambda x: (x + 9).log10()),
    "exp2": Function(torch.exp2),
    "erfc": Function(torch.erfc),
    "acos": Function(lambda x: (x / 9).acos()),
    "asin": Function(lambda x: (x / 9).asin()),
    "atanh": Function(lambda x: (x / 9).atanh()),
    "_log_softmax": nn.LogSoftmax(-1),
    "native_batch_norm": nn.BatchNorm1d(6, track_running_stats=False),
    "var": Function(lambda x: x.var(-1, keepdim=True).expand(x.shape)),
}


def by_hooks(function: nn.Module, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    leaf = x.clone().requires_grad_()
    with ValueKeeper({}) as keeper:
        y = function(leaf)
    graph = AutogradGraph(y, {get_gradient_edge(leaf).node: 1})
    keeper.give_to(graph.nodes)
    trace = graph.trace()
    plan = make_plan(trace, find_roles(trace), AFFINE)
    for number, hook_of in hooks_of(plan, {}):
        node = graph.nodes[trace.places[number]]
        node.register_hook(hook_of(node))
    return torch.autograd.grad((y * weights).sum(), leaf)[0]


def by_replay(function: nn.Module, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    leaf = x.clone().requires_grad_()
    with recording(function, [leaf]) as end:
        trace = end(function(leaf))
    plan = make_plan(trace, find_roles(trace), AFFINE)
    again = x.clone().requires_grad_()
    with conservative(**vars(AFFINE)):
        y = Replay(plan, {trace.slot_of(1): again}).output()
    return torch.autograd.grad((y * weights).sum(), again)[0]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_rule_passes_back_the_same_by_hooks_as_by_replay(name):
    function = FUNCTIONS[name].double()
    for parameter in function.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    draw = torch.Generator().manual_seed(0)
    x, weights = (torch.randn(5, 6, generator=draw, dtype=torch.double) for _ in range(2))
    x[0, 0] = 0.0
    hooked, replayed = (way(function, x, weights) for way in (by_hooks, by_replay))
    torch.testing.assert_close(hooked, replayed, rtol=1e-12, atol=1e-12)


def test_every_rule_that_hooks_can_follow_is_tried_here():
    results_only = {"exp", "var_mean"}  # their nodes say too little
    hooked = {saved.name for saved in NODES_OF_GRAPH.values() if OPERATIONS[saved.name].rule}
    assert {name.split(",")[0] for name in FUNCTIONS} == hooked - results_only


def test_a_rule_that_is_added_to_the_table_acts_in_both_tiers(monkeypatch):
    def half(func, x, *args, **kwargs):
        y = func(x, *args, **kwargs)
        return y / 2 + y.detach() / 2

    row = Operation("leaky_relu", rule=BuiltInRule("activation", half))
    monkeypatch.setitem(OPERATIONS, "leaky_relu", row)
    x, weights = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))
    for way in (by_hooks, by_replay):
        expected = weights * torch.where(x > 0, 1, 0.1) / 2
        torch.testing.assert_close(way(nn.LeakyReLU(0.1), x, weights), expected)


# -- every composed model --------------------------------------------------------------------------

RECIPES = [
    *([["plus", f"{kind}: {spelling}"]] for kind in PARTS for spelling in PARTS[kind].spellings),
    *([[spelling, "norm: by hand", "activation: gelu"]] for spelling in Block.spellings),
]
READ_OUTS = [([["plus", "attention: softmax"]], spelling) for spelling in Pool.spellings]


def composed(blocks, pool):
    """Wrap a composed model."""

    def forward(model, g):
        return model(g.x, g.edge_index, g.edge_attr, g.pe, g.batch)

    module = Composed(blocks, pool)
    return gx.wrap(module, kind="multiclass", classes=2, forward=forward)


@functools.cache
def by_the_first_tier(recipe):
    """Explain two graphs by the first tier where it serves, and return the model as well.

    `recipe` has the arguments of `composed` as JSON.
    """
    model = composed(*json.loads(recipe))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model, gx.explain(model, [composed_graph(5), composed_graph(6)], target=1)


@pytest.mark.parametrize(
    ("blocks", "pool"), [*((recipe, "mean") for recipe in RECIPES), *READ_OUTS], ids=str
)
def test_both_tiers_say_what_the_rules_written_out_by_hand_say(blocks, pool):
    graphs = [composed_graph(5), composed_graph(6)]
    model, hooked = by_the_first_tier(json.dumps([blocks, pool]))
    with warnings.catch_warnings(), recorded_only():
        warnings.simplefilter("ignore")
        recorded = gx.explain(composed(blocks, pool), graphs, target=1)
    for first, second, data in zip(hooked, recorded, graphs, strict=True):
        wanted = expected(model.module, data)
        for gap in (differences_of(first, wanted), differences_of(second, wanted)):
            assert max(gap.values()) < 1e-6, gap  # relevance is kept in single precision


def test_most_spellings_need_no_recording():
    """The others are named, each by what its autograd graph does not say."""
    recorded = {}
    for blocks in RECIPES:
        model, _ = by_the_first_tier(json.dumps([blocks, "mean"]))
        if model.why_recorded is not None:
            recorded[blocks[0][1]] = model.why_recorded
    assert len(recorded) <= 11
    assert "activation: quick gelu" not in recorded
    assert "constants: number" not in recorded
    assert recorded["product: module"].startswith("trilinear in ")


# -- what the first tier must not be trusted with --------------------------------------------------


def explained_twice(module: nn.Module, data=None):
    """Explain a model by the first tier where it serves, and by the second."""
    model, data = gx.wrap(module, kind="regression"), data or graph()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = gx.explain(model, data)
        why = model.why_recorded
        with recorded_only():
            second = gx.explain(model, data)
    return first, second, why


def shifted(model, h):
    return h + torch.linspace(0, 1, DIM)


def cut_off(model, h):
    return h + h.detach().relu()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def hidden(model, h):
    return h + Doubled.apply(h)


def random_numbers(model, h):
    return F.dropout(h, 0.5, training=True)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (shifted, "do not sum to the output"),
        (cut_off, "do not sum to the output"),
        (hidden, "DoubledBackward"),
        (random_numbers, "random numbers"),
    ],
)
def test_what_the_graph_does_not_say_is_recorded(function, why):
    first, second, reason = explained_twice(seeded(Pooled(function)))
    assert why in reason
    if function is not random_numbers:
        np.testing.assert_array_equal(first.relevance, second.relevance)
        assert first.ledger.others == second.ledger.others


@pytest.mark.parametrize("method", ["lrp", "attn_lrp", "gradient_input"])
def test_a_frozen_model_is_explained_as_fast_as_others_and_stays_frozen(method):
    module, data = seeded(Gps()), with_bonds(5)
    expected = gx.explain(gx.wrap(module, kind="regression"), data, method)
    module.requires_grad_(False)
    model, parameters = gx.wrap(module, kind="regression"), list(module.parameters())
    e = gx.explain(model, data, method)
    assert (model.tier, model.why_recorded) == ("hooks", None)
    np.testing.assert_array_equal(e.relevance, expected.relevance)
    assert str(e.ledger) == str(expected.ledger)
    assert all(map(operator.is_, module.parameters(), parameters))
    assert not any(p.requires_grad or p.grad is not None for p in parameters)


def test_a_model_that_cannot_be_copied_is_told_to_have_gradients_of_its_parameters():
    class Holder:
        def __init__(self, part):
            self.part = part

    module = seeded(Gps()).requires_grad_(False)
    module.holder = Holder(next(module.children()))
    first, second, reason = explained_twice(module, with_bonds(5))
    assert "requires_grad=True" in reason
    np.testing.assert_array_equal(first.relevance, second.relevance)
    assert explained_twice(module.requires_grad_(True), with_bonds(5))[2] is None


WARN = PassMemory.warn_of_recording  # the tests keep it quiet


def test_a_model_says_once_that_it_is_recorded_and_why(monkeypatch):
    monkeypatch.setattr(PassMemory, "warn_of_recording", WARN)
    model = gx.wrap(seeded(Pooled(shifted)), kind="regression")
    with pytest.warns(UserWarning, match=r"recorded passes.*constants in Pooled") as said:
        gx.explain(model, graph())
    assert len([w for w in said if "recorded passes" in str(w.message)]) == 1
    others = [gx.wrap(seeded(Gps()), kind="regression") for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for method in ("lrp", "gradient_input", "attn_lrp"):
            gx.explain(model, graph(), method)
        for other, method in zip(others, ("lrp", "rollout"), strict=True):
            gx.explain(other, with_bonds(5), method)


def test_the_tier_is_that_of_the_last_method():
    model = gx.wrap(seeded(Gps()), kind="regression")
    assert model.tier is None
    gx.explain(model, with_bonds(5))
    assert model.tier == "hooks"
    for method in ("rollout", "lrp_zplus"):
        gx.explain(model, with_bonds(5), "lrp")
        gx.explain(model, with_bonds(5), method)
        assert model.tier == "recording"
    module = seeded(Pooled(shifted))  # nothing shows before the gradient that it has to be recorded
    model = gx.wrap(module, kind="regression")
    gx.explain(model, graph())
    assert model.tier == "recording"


def test_a_model_in_training_mode_keeps_what_its_passes_have_shown(monkeypatch):
    model = gx.wrap(seeded(Gps(norm="batch_norm")).train(), kind="regression")
    gx.explain(model, with_bonds(5), "gradient_input")
    monkeypatch.setattr("graphxai.engine.recorded_pass.record_pass", None)
    gx.explain(model, with_bonds(6), "gradient_input")
    assert model.tier == "hooks"


def test_a_batch_norm_without_a_bias_needs_no_recording():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = (
                nn.Linear(graph().num_features, DIM),
                nn.BatchNorm1d(DIM, affine=False),
            )
            self.norm.running_mean += 0.5
            self.head = nn.Linear(DIM, 1)

        def forward(self, x, edge_index):
            return self.head(self.norm(self.first(x)).relu().sum(0, keepdim=True))

    first, second, why = explained_twice(seeded(Normed()))
    assert why is None
    torch.testing.assert_close(first.relevance, second.relevance)
    assert first.ledger.biases == pytest.approx(second.ledger.biases)


def test_types_of_bonds_that_choose_among_parameters_have_their_own_line():
    class WithTypes(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.types = nn.Linear(graph().num_features, DIM), nn.Embedding(3, DIM)
            self.head = nn.Linear(DIM, 1)

        def forward(self, x, edge_index, kind):
            h = self.first(x)
            messages = h[edge_index[0]] + self.types(kind)
            return self.head(h.index_add(0, edge_index[1], messages).relu().sum(0, keepdim=True))

    data = graph()
    data.kind = torch.arange(data.num_edges) % 3
    first, second, why = explained_twice(seeded(WithTypes()), data)
    assert why is None
    assert first.ledger.others == pytest.approx(second.ledger.others)
    assert first.ledger.others.keys() == {"kind"}


class Choosing(nn.Module):
    """A linear model that adds parameters, which `chosen` takes by features."""

    def __init__(self, chosen):
        super().__init__()
        self.first, self.head = nn.Linear(6, DIM), nn.Linear(DIM, 1)
        self.table, self.row = nn.Embedding(4, DIM), nn.Parameter(torch.ones(DIM))
        self.chosen = chosen

    def forward(self, x, edge_index, distance):
        added = self.chosen(self, x, distance)
        return self.head(self.first(x).sum(0, keepdim=True) + added.sum(0, keepdim=True))


CHOICES = {  # each with the line of the ledger that it belongs to
    "kinds of atoms": ("cut off", lambda m, x, _: m.table(x[:, 0].long().clamp(0, 3))),
    "rows of a table": ("cut off", lambda m, x, _: m.table.weight[x.argmax(1) % 4]),
    "one of two": ("cut off", lambda m, x, _: torch.where(x[:, :1] > 0, m.row, m.table.weight[0])),
    "none": ("cut off", lambda m, x, _: m.row.expand(len(x), -1).masked_fill(x[:, :1] > 0, 0.0)),
    "bins": ("distance", lambda m, _, d: m.table(torch.bucketize(d, torch.tensor([0.2, 0.5])))),
    "places": ("biases", lambda m, x, _: m.table(torch.arange(len(x)) % 4)),
}


@pytest.mark.parametrize("method", ["lrp", "attn_lrp", "gradient_input"])
@pytest.mark.parametrize("name", CHOICES)
def test_parameters_belong_to_what_chooses_them(name, method):
    line, chosen = CHOICES[name]
    data, module = graph(), seeded(Choosing(chosen))
    data.distance = torch.rand(data.num_edges)
    model = gx.wrap(module, kind="regression")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ledger = gx.explain(model, data, method).ledger
    assert model.tier == ("hooks" if line == "biases" else "recording")
    with torch.no_grad():
        share = (chosen(module, data.x, data.distance) @ module.head.weight[0]).sum().item()
        biases = (len(data.x) * module.first.bias @ module.head.weight[0] + module.head.bias).item()
    shares = ledger.others | {"biases": ledger.biases}
    expected = {"biases": biases} | {line: share + (biases if line == "biases" else 0.0)}
    assert shares == pytest.approx(expected, abs=1e-5)


class Gps(nn.Module):
    """A GPS that has an encoder of edges with a bias."""

    def __init__(self, width: int = 16, layers: int = 2, norm: str = "layer_norm"):
        super().__init__()
        self.nodes, self.edges = nn.Linear(graph().num_features, width), nn.Linear(2, width)
        mlps = (nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers))
        self.layers = nn.ModuleList(
            GPSConv(width, GINEConv(mlp), heads=4, norm=norm) for mlp in mlps
        )
        self.head = nn.Linear(width, 1)

    def forward(self, x, edge_index, edge_attr, batch):
        h, edges = self.nodes(x), self.edges(edge_attr)
        for layer in self.layers:
            h = layer(h, edge_index, batch, edge_attr=edges)
        return self.head(global_add_pool(h, batch))


def with_bonds(nodes: int):
    data = graph(nodes)
    generator = torch.Generator().manual_seed(nodes)
    data.edge_attr = torch.randn(data.num_edges, 2, generator=generator)
    return data


def test_a_biased_encoder_of_edges_needs_no_recording():
    module = seeded(Gps())
    model, graphs = gx.wrap(module, kind="regression"), [with_bonds(n) for n in (4, 7, 5)]
    together = gx.explain(model, graphs)
    assert model.why_recorded is None
    with recorded_only():
        recorded = gx.explain(model, graphs)
    for first, second, data in zip(together, recorded, graphs, strict=True):
        alone = gx.explain(model, data)
        for other in (second, alone):
            np.testing.assert_allclose(first.relevance, other.relevance, rtol=1e-4, atol=1e-6)
            assert first.ledger.biases == pytest.approx(other.ledger.biases, abs=1e-5)
            assert first.ledger.others == pytest.approx(other.ledger.others, abs=1e-5)


def test_a_plan_serves_other_sizes_but_not_another_structure():
    module = seeded(Gps())
    model = gx.wrap(module, kind="regression")
    for graphs in ([with_bonds(6)], [with_bonds(3), with_bonds(9)]):
        for first in gx.explain(model, graphs):
            assert abs(first.ledger.unexplained) < 1e-5
    module.head = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 1))
    changed, data = gx.explain(model, with_bonds(6)), with_bonds(6)
    with recorded_only():
        np.testing.assert_allclose(
            changed.relevance, gx.explain(model, data).relevance, rtol=1e-4, atol=1e-6
        )


def test_attributes_of_a_graph_require_no_gradient_afterwards():
    model, data = gx.wrap(seeded(Gps()), kind="regression"), with_bonds(5)
    gx.explain(model, data)
    assert not data.edge_attr.requires_grad
    assert model.tier == "hooks"


# -- under rules that are not affine ---------------------------------------------------------------

OTHER_METHODS = ["gradient_input", "attn_lrp", "lrp_ah", "lrp_ln", "lrp_ah_ln"]


@pytest.mark.parametrize("method", ["lrp", "gradient_input"])
def test_other_inputs_are_explained_by_hooks_as_by_recordings(method):
    model = gx.wrap(seeded(Gps(norm="batch_norm")), kind="regression")
    graphs, wrt = [with_bonds(n) for n in (4, 7, 5)], ("x", "edge_attr")
    hooked = gx.explain(model, graphs, method, wrt=wrt)
    assert model.tier == "hooks"
    with recorded_only():
        recorded = gx.explain(model, graphs, method, wrt=wrt)
    for first, second in zip(hooked, recorded, strict=True):
        for name in wrt:
            np.testing.assert_allclose(
                first.relevance_of[name], second.relevance_of[name], rtol=1e-4, atol=1e-5
            )
        assert first.ledger.biases == pytest.approx(second.ledger.biases, abs=1e-4)


@pytest.mark.parametrize("method", OTHER_METHODS)
def test_other_methods_say_the_same_in_both_tiers(method):
    module = seeded(Gps(norm="batch_norm")).double()
    graphs = [with_bonds(n) for n in (4, 7, 5)]
    for data in graphs:
        data.x, data.edge_attr = data.x.double(), data.edge_attr.double()
    model = gx.wrap(module, kind="regression")
    gx.explain(model, graphs[0], method)  # proves the plan for one graph
    together = gx.explain(model, graphs, method)
    assert model.why_recorded is None
    with recorded_only():
        recorded = gx.explain(model, graphs, method)
    for first, second, data in zip(together, recorded, graphs, strict=True):
        for other in (second, gx.explain(model, data, method)):
            np.testing.assert_allclose(first.relevance, other.relevance, rtol=1e-5, atol=1e-7)
            assert first.ledger.biases == pytest.approx(other.ledger.biases, abs=1e-7)
            assert first.ledger.others == pytest.approx(other.ledger.others, abs=1e-7)


class Halved(GradientInput):
    """LRP in which GELU passes half of its gradient back."""

    half = OperationRule("gelu", lambda x, gelu: gelu(x) / 2 + gelu(x).detach() / 2)
    rules = Rules(attention=True, layernorm=True, custom=(half,))


def test_a_number_in_a_norm_by_hand_needs_no_recording():
    """PyG's LayerNorm adds an epsilon, which no node of the autograd graph shows."""
    model, data = gx.wrap(seeded(Gps()), kind="regression"), with_bonds(6)
    first = gx.explain(model, data, "lrp_ah")
    assert model.why_recorded is None
    assert "constants" in first.ledger.others
    with recorded_only():
        second = gx.explain(model, data, "lrp_ah").ledger
    assert first.ledger.others == pytest.approx(second.others, abs=1e-7)
    assert gx.explain(model, data, "attn_lrp").ledger.others.keys() == {"edge_attr"}


def a_number_of_the_nodes(model, h):
    return (h + (h.mean().item() - 0.5)).relu()


def test_a_number_that_is_computed_from_the_nodes_is_cut_off():
    model = gx.wrap(seeded(Pooled(a_number_of_the_nodes)), kind="regression")
    with pytest.warns(UserWarning, match="without their gradient"):
        first = gx.explain(model, graph())
    assert model.tier == "recording"
    assert first.ledger.others.keys() == {"cut off"}


def test_a_custom_rule_acts_through_hooks_as_in_a_recorded_pass():
    model, data = gx.wrap(seeded(Gps()), kind="regression"), with_bonds(6)
    first = gx.explain(model, data, Halved())
    assert model.why_recorded is None
    with recorded_only():
        second = gx.explain(model, data, Halved())
    np.testing.assert_allclose(first.relevance, second.relevance, rtol=1e-4, atol=1e-6)
    assert not np.allclose(first.relevance, gx.explain(model, data, "lrp_ah_ln").relevance)


def test_a_buffer_of_zeros_may_change_after_the_comparison():
    def with_a_buffer(model, h):
        return (h + model.offset).relu()

    module = seeded(Pooled(with_a_buffer))
    module.register_buffer("offset", torch.zeros(DIM))
    model = gx.wrap(module, kind="regression")
    gx.explain(model, graph(), "gradient_input")
    module.offset += 1
    first = gx.explain(model, graph(), "gradient_input")
    with recorded_only():
        second = gx.explain(model, graph(), "gradient_input")
    assert first.ledger.biases == pytest.approx(second.ledger.biases)


def attending_with_an_offset(model, h):
    scores = h @ h.T + torch.linspace(0, 1, len(h))
    return scores.softmax(-1) @ h


def test_constants_that_affine_rules_do_not_pass_are_found_by_a_recorded_pass():
    """Numbers that are added to scores matter only where attention passes relevance on."""
    model = gx.wrap(seeded(Pooled(attending_with_an_offset)), kind="regression")
    gx.explain(model, graph())
    assert model.why_recorded is None
    first = gx.explain(model, graph(), "gradient_input")
    assert "a constant that autograd does not know (constants" in model.why_recorded
    with recorded_only():
        second = gx.explain(model, graph(), "gradient_input")
    np.testing.assert_array_equal(first.relevance, second.relevance)
    assert first.ledger.others == second.ledger.others
    assert "constants" in first.ledger.others


def attending_to_earlier_nodes(model, h):
    later = torch.full((len(h), len(h)), -torch.inf).triu(1)
    return (h @ h.T + later).softmax(-1) @ h


def test_a_mask_of_zeros_and_minus_infinity_adds_nothing_that_autograd_should_know():
    model = gx.wrap(seeded(Pooled(attending_to_earlier_nodes)), kind="regression")
    first = gx.explain(model, graph(), "gradient_input")
    assert model.why_recorded is None
    with recorded_only():
        second = gx.explain(model, graph(), "gradient_input")
    np.testing.assert_allclose(first.relevance, second.relevance, rtol=1e-4, atol=1e-6)


def engine_functions_entered(explain) -> set[tuple[str, str]]:
    """Return the functions of the engine that are entered from another file of the package."""
    package, entered = f"{os.sep}graphxai{os.sep}", set()

    def note(frame, event, _):
        file, caller = frame.f_code.co_filename, frame.f_back
        while caller is not None and package not in caller.f_code.co_filename:
            caller = caller.f_back
        from_elsewhere = caller is None or caller.f_code.co_filename != file
        if event == "call" and f"{package}engine{os.sep}" in file and from_elsewhere:
            entered.add((file, frame.f_code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        explain()
    finally:
        sys.setprofile(before)
    return entered


def test_a_later_pass_of_lrp_enters_few_functions_of_the_engine():
    model, data = gx.wrap(seeded(Gps()), kind="regression"), with_bonds(6)
    for _ in range(2):  # the plan is made and proved
        gx.explain(model, data)
    entered = engine_functions_entered(lambda: gx.explain(model, data))
    assert model.tier == "hooks"
    assert 0 < len(entered) <= 35, sorted(entered)
    assert len({file for file, _ in entered}) <= 11
