"""Rules that are added from outside act on bundled and on wrapped models, as written by hand."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data

import graphxai as gx
from graphxai.contract.inputs import prepare_for
from graphxai.explainers import GradientInput, Lrp
from graphxai.explainers.passes import structural_bias
from graphxai.models.graphormer.backward import RULES_FOLLOWED, follows
from graphxai.rules.conservative import Rules, conservative, record, rms_norm
from graphxai.rules.operation_rule import BoundOperation, OperationRule, constant_ratio
from other_models import GpsModel, molecules, trained

DRUGS = ("CC(=O)Oc1ccccc1C(=O)O", "C[C@@]1(N=C(N)SC=C1)c1cc(NC(=O)c2ccc(cn2)C#N)ccc1F", "CO")


# -- three rules that the package does not have ----------------------------------------------------


def straight_through(x: Tensor, f: BoundOperation) -> Tensor:
    """Pass the relevance of the result to the input as if f were the identity."""
    return x + (f(x) - x).detach()


def constant_normaliser(x: Tensor, softmax: BoundOperation) -> Tensor:
    """Return `e^x / Z` with a constant sum Z, so that no key takes weight from another."""
    return softmax(x).detach() * (x - x.detach()).masked_fill(x.isinf(), 0.0).exp()


def constant_moments(x: Tensor, norm: BoundOperation) -> Tensor:
    """Apply LayerNorm with a constant mean as well as a constant scale."""
    _, weight, bias, eps = norm.settings
    assert bias is None
    mean = x.mean(-1, keepdim=True).detach()
    variance = (x.detach() - mean).square().mean(-1, keepdim=True)
    y = (x - mean) * (variance + eps).rsqrt()
    return y if weight is None else y * weight


RULES = {
    "gelu": OperationRule("gelu", straight_through),
    "softmax": OperationRule("softmax", constant_normaliser),
    "layer_norm": OperationRule("layer_norm", constant_moments),
}
NAMES = {"gelu": "activation", "softmax": "softmax", "layer_norm": "LayerNorm"}
IN_FORCE = {
    "gelu alone": Rules(custom=(RULES["gelu"],)),
    "gelu in LRP": Rules(attention=True, layernorm=True, custom=(RULES["gelu"],)),
    "gelu before the ratio": Rules(True, True, "ratio", custom=(RULES["gelu"],)),
    "softmax alone": Rules(custom=(RULES["softmax"],)),
    "softmax in LRP": Rules(layernorm=True, activation="ratio", custom=(RULES["softmax"],)),
    "softmax in AttnLRP": Rules(False, True, "ratio", True, custom=(RULES["softmax"],)),
    "layer_norm alone": Rules(custom=(RULES["layer_norm"],)),
    "layer_norm in LRP": Rules(True, True, "ratio", custom=(RULES["layer_norm"],)),
    "all": Rules(custom=tuple(RULES.values())),
}


def explainer_with(in_force: Rules) -> GradientInput:
    class WithRules(GradientInput):
        name = "with_rules"
        rules = in_force

    return WithRules()


# -- by hand: plain autograd with detached factors and no function of the package -----------------


class ByHand:
    """The operations of a transformer, in which what the rules hold constant is detached."""

    def __init__(self, rules: Rules) -> None:
        self.rules, self.custom = rules, {rule.operation for rule in rules.custom}

    def gelu(self, x: Tensor) -> Tensor:
        y = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        if "gelu" in self.custom:
            return y.detach() + (x - x.detach())
        return x * (y / x).detach() if self.rules.activation == "ratio" else y

    def norm(self, m: nn.Module, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        deviation = ((x - mean).square().mean(-1, keepdim=True) + m.eps).sqrt()
        if "layer_norm" in self.custom:
            mean, deviation = mean.detach(), deviation.detach()
        elif self.rules.layernorm:
            deviation = deviation.detach()
        return (x - mean) / deviation * m.weight + m.bias

    def softmax(self, logits: Tensor) -> Tensor:
        powers = logits.exp()  # small numbers: no maximum is needed
        total = powers.sum(-1, keepdim=True)
        if self.rules.attention:
            return (powers / total).detach()
        return powers / (total.detach() if "softmax" in self.custom else total)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        if self.rules.products:
            a, b = ((z + z.detach()) / 2 for z in (a, b))
        return a @ b

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | float = 0.0) -> Tensor:
        return self.product(self.softmax(self.product(q, k.mT) + bias), v)

    def graphormer(self, model: nn.Module, x: Tensor, bias: Tensor) -> Tensor:
        """Compute outputs of tokens (B, T, D) by a pre-LN Graphormer with a linear head."""
        for layer in model.layers:
            y, part = self.norm(layer.attention_norm, x), layer.attention
            q, k, v = (
                map_(y).unflatten(-1, (part.heads, -1)).transpose(1, 2)
                for map_ in (part.query, part.key, part.value)
            )
            mixed = self.attend(q / q.shape[-1] ** 0.5, k, v, bias)
            x = x + part.output(mixed.transpose(1, 2).flatten(2))
            hidden = self.gelu(layer.ffn.expand(self.norm(layer.ffn_norm, x)))
            x = x + layer.ffn.contract(hidden)
        return model.head(self.norm(model.final_norm, x)[:, 0])


@pytest.fixture(scope="module")
def bace():
    return gx.load("bace").double()


def batch_of(model, inputs):
    return model.collate([prepare_for(model, value).data for value in inputs])


@pytest.mark.parametrize("case", IN_FORCE)
def test_a_rule_from_outside_acts_on_a_bundled_graphormer(case, bace):
    rules = IN_FORCE[case]
    batch = batch_of(bace, DRUGS)
    attribution = explainer_with(rules).attribute(bace, batch, "active")
    tokens, bias = bace.embed(batch).detach().requires_grad_(), structural_bias(bace, batch)
    outputs = ByHand(rules).graphormer(bace, tokens, bias)
    (gradient,) = torch.autograd.grad(outputs[:, 0].sum(), tokens)
    expected = (tokens * gradient).sum(-1).detach()
    torch.testing.assert_close(attribution.output, outputs[:, 0].detach(), rtol=0, atol=1e-11)
    torch.testing.assert_close(attribution.graph_token, expected[:, 0], rtol=0, atol=1e-11)
    nodes = expected[:, 1:].masked_fill(~batch.mask, 0.0)
    torch.testing.assert_close(attribution.relevance, nodes, rtol=0, atol=1e-11)
    plain = explainer_with(Rules(*(getattr(rules, name) for name in list(vars(rules))[:-1])))
    assert (plain.attribute(bace, batch, "active").relevance - nodes).abs().max() > 1e-3


@pytest.mark.parametrize("case", IN_FORCE)
def test_the_ledger_names_what_the_rule_creates_or_loses(case, bace):
    rules = IN_FORCE[case]
    attribution = explainer_with(rules).attribute(bace, batch_of(bace, DRUGS), "active")
    assert attribution.remainders is not None
    assert {NAMES[rule.operation] for rule in rules.custom} <= attribution.remainders.keys()
    left = attribution.unexplained - torch.stack(list(attribution.remainders.values())).sum(0)
    size = (
        1
        + attribution.output.abs()
        + torch.stack(list(attribution.remainders.values())).abs().sum(0)
    )
    assert (left.abs() < 1e-12 * size).all()


# -- wrapped models --------------------------------------------------------------------------------


class Transformer(nn.Module):
    """One layer of attention between all nodes of a graph; `of` computes its operations."""

    def __init__(self) -> None:
        super().__init__()
        self.of: ByHand | None = None
        self.embed = nn.Linear(9, 16)
        self.maps = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.expand, self.head = nn.Linear(16, 24), nn.Linear(24, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        of = self.of
        graphs = []
        for k in range(int(batch.max()) + 1):
            h = self.embed(x[batch == k])
            y = self.first(h) if of is None else of.norm(self.first, h)
            q, key, v = (each(y) for each in self.maps)
            if of is None:
                h = h + F.softmax(q @ key.mT, dim=-1) @ v
                hidden = F.gelu(self.expand(self.second(h)))
            else:
                h = h + of.attend(q, key, v)
                hidden = of.gelu(self.expand(of.norm(self.second, h)))
            graphs.append(self.head(hidden.mean(0)))
        return torch.stack(graphs)


def relevance_by_hand(model: nn.Module, graph: Data, *names: str) -> Tensor:
    x = graph.x.detach().requires_grad_()
    rest = (graph[name] for name in names)
    output = model(x, graph.edge_index, *rest, torch.zeros(len(x), dtype=torch.long))
    (gradient,) = torch.autograd.grad(output.sum(), x)
    return (x * gradient).sum(-1).detach()


def explained(model: nn.Module, graphs: list[Data], explainer: GradientInput) -> list[Tensor]:
    """Return the relevance of nodes in a batch, then of each graph, along kept programs."""
    wrapped = gx.wrap(model, kind="regression")
    relevance = []
    for batch in [graphs, *([graph] for graph in graphs)]:
        together = explainer.attribute(wrapped, batch_of(wrapped, batch))
        relevance += [
            row[: graph.num_nodes] for row, graph in zip(together.relevance, batch, strict=True)
        ]
    return relevance


def in_double(graph: Data) -> Data:
    return Data(x=graph.x.double(), edge_index=graph.edge_index, edge_attr=graph.edge_attr.double())


@pytest.fixture(scope="module")
def graphs() -> list[Data]:
    return [in_double(graph) for graph in molecules()[:3]]


@pytest.mark.parametrize("case", IN_FORCE)
def test_a_rule_from_outside_acts_on_a_wrapped_transformer(case, graphs):
    torch.manual_seed(1)
    model, rules = Transformer().double().eval(), IN_FORCE[case]
    relevance = explained(model, graphs, explainer_with(rules))
    model.of = ByHand(rules)
    expected = [relevance_by_hand(model, graph) for graph in graphs]
    torch.testing.assert_close(relevance, [*expected, *expected], rtol=0, atol=1e-11)


class Straight(nn.Module):
    """A user's activation with the slope of the identity, written as a module."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x).detach() + (x - x.detach())


@pytest.mark.parametrize(
    ("operation", "owner"),
    [("gelu", lambda layer: layer.mlp), ("silu", lambda layer: layer.conv.nn)],
)
def test_a_rule_from_outside_acts_on_gps(operation, owner, graphs):
    model = trained(GpsModel(), molecules()).double()
    rules = Rules(custom=(OperationRule(operation, straight_through),))
    relevance = explained(model, graphs, explainer_with(rules))
    for layer in model.layers:
        owner(layer)[1] = Straight(owner(layer)[1])
    expected = [relevance_by_hand(model, graph, "edge_attr") for graph in graphs]
    torch.testing.assert_close(relevance, [*expected, *expected], rtol=0, atol=1e-11)


class Pointwise(nn.Module):
    """A network whose activation writes to its input, if PyTorch has it in place."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(9, 12), nn.Linear(12, 1)
        self.activation = activation

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.activation(self.first(x))
        pooled = h.new_zeros(int(batch.max()) + 1, 12).index_add(0, batch, h)
        return self.last(pooled)


def by_share(x: Tensor, f: BoundOperation) -> Tensor:
    """Return `x f(x) / x` with a constant ratio, which has no value where x is zero."""
    return x * (f(x.detach()) / x.detach())


@pytest.mark.parametrize(
    ("operation", "activation"),
    [
        ("relu", lambda x: F.relu(x, inplace=True)),
        ("softplus", lambda x: F.softplus(x, beta=2.0)),
        ("pow", lambda x: x**3),
        ("abs", torch.abs),
        ("elu", lambda x: F.elu(x, 0.5, inplace=True)),
    ],
)
def test_a_conserving_rule_closes_the_ledger_of_a_wrapped_model(
    operation, activation, graphs, recwarn
):
    """No warning names the activation, which no other rule covers."""
    torch.manual_seed(2)
    model = Pointwise(activation).double().eval()
    rule = OperationRule(operation, by_share, conserves=True)
    explainer = explainer_with(Rules(activation="ratio", custom=(rule,)))
    wrapped = gx.wrap(model, kind="regression")
    for graph in graphs:
        e, x = explainer.attribute(wrapped, batch_of(wrapped, [graph])), graph.x
        h = model.first(x)
        slope = activation(h.clone()) / h * model.last.weight  # (n, 12)
        nodes = (slope @ model.first.weight * x).sum(-1).detach()
        biases = float((slope @ model.first.bias).sum() + model.last.bias)
        torch.testing.assert_close(e.relevance[0], nodes, rtol=0, atol=1e-11)
        assert float(e.biases) == pytest.approx(biases, abs=1e-10)
        assert abs(float(e.unexplained)) < 1e-10
    assert not [w for w in recwarn if "no rule covers" in str(w.message)]


# -- what is refused, and what stays as it was -----------------------------------------------------


@pytest.mark.parametrize(
    "name", ["glue", "linear", "relu6", "addmm", "_softmax", "batch_norm", "mm", "arange"]
)
def test_a_rule_for_no_basic_operation_on_one_signal_is_refused(name):
    with pytest.raises(ValueError, match=f"cannot act on '{name}'"):
        OperationRule(name, straight_through)


def test_a_rule_sees_the_first_result_of_an_operation():
    x = torch.tensor([[1.0, 3.0, 2.0]])
    assert BoundOperation(torch.max, (1,))(x).tolist() == [3.0]
    assert BoundOperation(torch.sort, options={"descending": True})(x).tolist() == [[3, 2, 1]]


def test_two_rules_for_an_operation_are_refused():
    other = OperationRule("gelu", by_share)
    with pytest.raises(ValueError, match="several rules for gelu"):
        Rules(custom=(RULES["gelu"], other))


def test_a_rule_for_a_product_of_two_signals_is_refused(graphs):
    class Squared(Pointwise):
        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            return self.last(self.first(x) * self.first(x)).sum(0, keepdim=True)

    wrapped = gx.wrap(Squared(torch.abs).double().eval(), kind="regression")
    explainer = explainer_with(Rules(custom=(OperationRule("mul", straight_through),)))
    with pytest.raises(ValueError, match="a custom rule acts on 'mul' of one signal"):
        gx.explain(wrapped, graphs[0], explainer)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_rule_that_computes_something_else_is_noticed(wrapped, bace, graphs):
    rules = Rules(custom=(OperationRule("gelu", lambda x, gelu: 1.1 * gelu(x)),))
    model, inputs = bace, list(DRUGS)
    if wrapped:
        model, inputs = gx.wrap(Transformer().double().eval(), kind="regression"), graphs
    explainer = explainer_with(rules)
    explainer.name = "louder"  # outputs are compared once for each name
    with pytest.warns(UserWarning, match="change under the rules of 'louder'"):
        explainer.attribute(model, batch_of(model, inputs))


def test_the_explicit_pass_follows_the_rules_that_it_states_and_no_other():
    assert follows(Rules())
    assert follows(RULES_FOLLOWED)
    assert follows(Lrp.rules)
    for rule in RULES.values():
        assert not follows(Rules(custom=(rule,)))

    class Further(Rules):  # as if somebody added a field
        queries: bool = False

    assert not follows(Further())


def test_rules_act_in_a_block_and_end_with_it():
    x = torch.tensor([-1.0, 0.5, 2.0], requires_grad=True)
    model = nn.Sequential(nn.GELU(), nn.Linear(3, 1, bias=False))
    with gx.conservative(custom=(RULES["gelu"],), model=model):
        inside = model(x)
    (gradient,) = torch.autograd.grad(inside, x)
    torch.testing.assert_close(gradient, model[1].weight[0])
    (gradient,) = torch.autograd.grad(model(x), x)
    assert not torch.allclose(gradient, model[1].weight[0])


def test_a_rule_acts_on_layers_written_with_the_functions_of_the_package():
    """A custom rule holds the scale of RMSNorm constant, as the rule for norms does."""

    def constant_scale(x: Tensor, norm: BoundOperation) -> Tensor:
        return x * (norm(x) / x).detach()

    torch.manual_seed(0)
    x, weight = torch.randn(2, 5, 4, dtype=torch.double).requires_grad_(), torch.rand(4).double()
    gradients = []
    for rules in (
        Rules(layernorm=True),
        Rules(custom=(OperationRule("rms_norm", constant_scale, conserves=True),)),
    ):
        with conservative(**vars(rules)), record(operations=True) as tape:
            y = rms_norm(x, weight, 1e-5)
        assert not tape.operations
        gradients.append(torch.autograd.grad(y.square().sum(), x)[0])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("activation", [torch.tanh, F.leaky_relu, F.silu])
def test_an_activation_is_its_constant_factor_times_its_input_on_both_sides_of_zero(activation):
    x = torch.tensor([-3.0, -0.5, 0.25, 2.0], dtype=torch.double)
    torch.testing.assert_close(x * constant_ratio(x, activation), activation(x))
    zero = torch.zeros((), dtype=torch.double)
    slope = torch.func.grad(activation)(torch.tensor(1e-4, dtype=torch.double))
    assert constant_ratio(zero, activation).item() == pytest.approx(slope.item(), abs=1e-3)
