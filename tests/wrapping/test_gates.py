"""Gates and linear attention agree with passes whose gate is constant, and with PyG's outputs."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import ResGatedGraphConv, TransformerConv, global_mean_pool
from torch_geometric.nn.attention import PolynormerAttention, SGFormerAttention
from torch_geometric.nn.models import Polynormer, SGFormer

import graphxai as gx
from graphxai.evaluation.testing import check_batching, check_ledger, check_renumbering
from graphxai.explainers import get_explainer
from other_models import GpsModel, molecules

pytestmark = pytest.mark.usefixtures("only_relevance", "recorded_once")

EDGES = torch.tensor([[0, 1, 1, 2, 2, 0, 3, 4], [1, 0, 2, 1, 0, 2, 4, 3]])
ALL = {"attention": True, "layernorm": True, "activation": "ratio"}
NOTHING = {"attention": False, "layernorm": False}
GRAPHS = [g for g in molecules() if g.num_nodes < 15]


@pytest.fixture(autouse=True)
def _no_warning():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*has parts that no rule covers")
        yield


@pytest.fixture(autouse=True)
def _double_precision():
    """Let PyG's SGFormer create its constants in double precision, which is then the default."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def nodes() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(5, 8, generator=generator, dtype=torch.float64).requires_grad_()


def gradient_input(f: Tensor, x: Tensor) -> Tensor:
    total = f.square().sum().sqrt() + f.sum()
    return x * torch.autograd.grad(total, x, retain_graph=True)[0]


def relevance(model: nn.Module, x: Tensor, *args: Tensor, **rules: object) -> Tensor:
    """Return Gradient x Input in the context, under all rules if none is named."""
    with gx.conservative(**NOTHING | (rules or ALL), model=model):
        return gradient_input(model(x, *args), x)


def seeded(model: nn.Module) -> nn.Module:
    """Return the model in double precision, with biases far from zero."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, 0.5, 0.3)
    return model.double().eval()


class Written(nn.Module):
    """A function of three linear maps of x: value, gate and another gate."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.maps = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(*(lin(x) for lin in self.maps))


# -- gates -------------------------------------------------------------------------------------

σ = torch.sigmoid

SPELLINGS = {
    "value times gate": (lambda v, g, _: v * g.sigmoid(), lambda v, g, _: v * σ(g).detach()),
    "gate from a module": (
        lambda v, g, _: nn.Sigmoid()(g).mul(v),
        lambda v, g, _: v * σ(g).detach(),
    ),
    "the rest of the gate": (
        lambda v, g, w: σ(g) * v + (1 - σ(g)) * w,
        lambda v, g, w: w + σ(g).detach() * (v - w),
    ),
    "lerp": (
        lambda v, g, w: torch.lerp(v, w, σ(g)),
        lambda v, g, w: v + σ(g).detach() * (w - v),
    ),
    "lerp between constants": (
        lambda v, g, w: torch.lerp(v, w, 0.3),
        lambda v, g, w: 0.7 * v + 0.3 * w,
    ),
    "addcmul": (
        lambda v, g, w: torch.addcmul(w, v, σ(g), value=2.0),
        lambda v, g, w: w + 2 * v * σ(g).detach(),
    ),
    "glu": (
        lambda v, g, _: F.glu(torch.cat([v, g], dim=-1)),
        lambda v, g, _: v * σ(g).detach(),
    ),
    "two gates": (
        lambda v, g, w: (σ(g) * σ(w)) * v,
        lambda v, g, w: (σ(g) * σ(w)).detach() * v,
    ),
    "a gate for each row": (
        lambda v, g, _: v * g[:, :1].sigmoid().expand(-1, 8),
        lambda v, g, _: v * σ(g[:, :1]).detach(),
    ),
    "a matrix of gates": (
        lambda v, g, w: σ(g @ w.T) @ v,
        lambda v, g, w: σ(g @ w.T).detach() @ v,
    ),
    "gates over their sum": (
        lambda v, g, _: (σ(g) * v).sum(0) / (σ(g).sum(0) + 1e-6),
        lambda v, g, _: (σ(g).detach() * v).sum(0) / (σ(g).detach().sum(0) + 1e-6),
    ),
    "normalised gates": (
        lambda v, g, _: σ(g) / (σ(g).sum(0) + 1e-6) * v,
        lambda v, g, _: (σ(g) / (σ(g).sum(0) + 1e-6)).detach() * v,
    ),
    "hard gate": (
        lambda v, g, _: v * F.hardsigmoid(g),
        lambda v, g, _: v * F.hardsigmoid(g).detach(),
    ),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_relevance_goes_to_the_value_and_not_to_its_gate(spelling):
    written, by_hand = SPELLINGS[spelling]
    model, x = seeded(Written(written)), nodes()
    expected = by_hand(*(lin(x) for lin in model.maps))
    torch.testing.assert_close(model(x), expected)
    scores = relevance(model, x, attention=True)
    torch.testing.assert_close(scores, gradient_input(expected, x))
    ordinary = gradient_input(model(x), x)
    torch.testing.assert_close(relevance(model, x, layernorm=True), ordinary)  # the rule is off
    assert spelling == "lerp between constants" or not torch.allclose(scores, ordinary)


@pytest.mark.parametrize(
    "function",
    [
        lambda v, *_: v * σ(v),
        lambda v, *_: v * σ(1.702 * v),
        lambda v, *_: σ(v / 2) * (v * 3),
        lambda v, *_: v.mul(σ(-v)),
    ],
)
def test_a_gate_of_the_value_itself_is_an_activation(function):
    """In f(x) = x sigmoid(a x), the rule for activations holds f(x) / x constant, and not AH."""
    model, x = seeded(Written(function)), nodes()
    v = model.maps[0](x)
    ratio = (function(v) / v).detach()
    expected = gradient_input(v * ratio, x)
    torch.testing.assert_close(relevance(model, x, activation="ratio"), expected)
    torch.testing.assert_close(relevance(model, x), expected)
    ordinary = gradient_input(model(x), x)
    torch.testing.assert_close(relevance(model, x, attention=True, layernorm=True), ordinary)


def test_half_of_a_tensor_may_be_the_gate_of_the_other_half():
    """Both halves are cut from one tensor, but this does not make it a gate of the value itself."""
    model, x = seeded(Written(lambda v, *_: v[:, :4] * σ(v[:, 4:]))), nodes()
    v = model.maps[0](x)
    expected = gradient_input(v[:, :4] * σ(v[:, 4:]).detach(), x)
    torch.testing.assert_close(relevance(model, x, attention=True), expected)


def from_half(v: Tensor) -> Tensor:
    """Compute a sigmoid as 1/2, a constant, and v times a constant."""
    return 0.5 + v * ((σ(v) - 0.5) / v).detach()


@pytest.mark.parametrize(
    "function",
    [
        lambda σ, v: σ(v),
        lambda σ, v: σ(v) @ torch.ones(8, 2, dtype=v.dtype),
        lambda σ, v: F.linear(σ(v), torch.ones(2, 8, dtype=v.dtype)),
    ],
)
def test_a_sigmoid_that_lets_nothing_through_has_the_constant_half(function):
    """It is an activation with f(0) = 1/2: no relevance is lost in it."""
    model, x = seeded(Written(lambda v, *_: function(σ, v))), nodes()
    scores = relevance(model, x)
    expected = gradient_input(function(from_half, model.maps[0](x)), x)
    torch.testing.assert_close(scores, expected)
    assert scores.any()


def test_two_gates_that_multiply_each_other_get_half_of_the_relevance_each():
    model, x = seeded(Written(lambda v, g, _: σ(v) * σ(g))), nodes()
    scores = relevance(model, x)
    v, g = from_half(model.maps[0](x)), from_half(model.maps[1](x))
    expected = (gradient_input(v * g.detach(), x) + gradient_input(v.detach() * g, x)) / 2
    torch.testing.assert_close(scores, expected)


def test_log_probabilities_have_the_relevance_of_logits():
    for layer in (nn.LogSoftmax(dim=-1), Written(lambda v, *_: v.log_softmax(1))):
        model, x = seeded(layer), nodes()
        logits = x if isinstance(layer, nn.LogSoftmax) else model.maps[0](x)
        normaliser = logits.exp().sum(-1, keepdim=True).log().detach()
        expected = gradient_input(logits - normaliser, x)
        torch.testing.assert_close(relevance(model, x, attention=True), expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda v, *_: v + 1.5,
        lambda v, *_: 2 - v,
        lambda v, *_: torch.where(v > 0, v, -0.5),
        lambda v, g, _: v * σ(g) + 3,
        lambda v, *_: v.log_softmax(-1),
    ],
)
def test_a_number_that_is_added_is_a_share_of_the_output(function):
    """Relevance and the shares of constants sum to the output, also with log-probabilities."""
    model = nn.Sequential(seeded(Written(function)), nn.Linear(8, 1))
    wrapped = gx.wrap(
        model, kind="regression", forward=lambda m, b: global_mean_pool(m(b.x), b.batch)
    )
    generator = torch.Generator().manual_seed(2)
    graphs = [
        Data(x=torch.randn(n, 8, generator=generator), edge_index=EDGES[:, :0]) for n in (3, 5)
    ]
    for explanation in gx.explain(wrapped, graphs):
        assert abs(explanation.ledger.unexplained) < 1e-6 * abs(explanation.output)
        assert abs(explanation.ledger.others["constants"]) > 0.01


# -- PyG's layers ------------------------------------------------------------------------------


def test_a_transformer_layer_with_a_gated_skip_connection():
    conv, x = seeded(TransformerConv(8, 4, heads=2, beta=True)), nodes()
    source, target = EDGES
    _, (_, alpha) = conv(x, EDGES, return_attention_weights=True)
    read = alpha.detach()[..., None] * conv.lin_value(x).view(-1, 2, 4)[source]
    mixed = torch.zeros(5, 2, 4, dtype=x.dtype).index_add(0, target, read).flatten(1)
    skip = conv.lin_skip(x)
    beta = σ(conv.lin_beta(torch.cat([mixed, skip, mixed - skip], dim=-1))).detach()
    expected = beta * skip + (1 - beta) * mixed
    torch.testing.assert_close(conv(x, EDGES), expected)
    scores = relevance(conv, x, EDGES, attention=True)
    torch.testing.assert_close(scores, gradient_input(expected, x))


def test_a_gated_graph_convolution():
    conv, x = seeded(ResGatedGraphConv(8, 6)), nodes()
    source, target = EDGES
    gate = σ(conv.lin_key(x)[target] + conv.lin_query(x)[source]).detach()
    messages = gate * conv.lin_value(x)[source]
    summed = torch.zeros(5, 6, dtype=x.dtype).index_add(0, target, messages)
    expected = summed + conv.lin_skip(x) + conv.bias
    torch.testing.assert_close(conv(x, EDGES), expected)
    scores = relevance(conv, x, EDGES, attention=True)
    torch.testing.assert_close(scores, gradient_input(expected, x))


def test_sgformer_attention_is_a_matrix_held_constant():
    module, x = seeded(SGFormerAttention(8, heads=2, head_channels=6, qkv_bias=True)), nodes()
    q, k, v = (lin(x).view(5, 2, 6) for lin in (module.q, module.k, module.v))
    q, k = (z / z.norm(dim=-1, keepdim=True) for z in (q, k))
    weights = torch.einsum("ihd,jhd->hij", q, k) + 5 * torch.eye(5, dtype=x.dtype)
    weights = (weights / weights.sum(-1, keepdim=True)).detach()
    expected = torch.einsum("hij,jhd->ihd", weights, v).mean(1)
    torch.testing.assert_close(module(x[None])[0], expected)
    with gx.conservative(layernorm=False, model=module), gx.record() as tape:
        product = gradient_input(module(x[None])[0], x)
    torch.testing.assert_close(product, gradient_input(expected, x))
    torch.testing.assert_close(tape.attention[0][0], weights)


@pytest.mark.parametrize("shared", [True, False])
def test_polynormer_attention_is_a_matrix_and_a_product_of_equals(shared):
    module = seeded(PolynormerAttention(8, 2, 6, qk_shared=shared))
    x, y = nodes(), nodes()  # y is what the other factor is made of
    k = σ(module.k(x)).view(5, 6, 2)
    q = k if shared else σ(module.q(x)).view(5, 6, 2)
    weights = torch.einsum("idh,jdh->hij", q, k)
    weights = (weights / (weights.sum(-1, keepdim=True) + 1e-6)).detach()
    mixed = torch.einsum("hij,jmh->imh", weights, module.v(x).view(5, 6, 2)).flatten(1)
    centred = mixed - mixed.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + module.lns.eps).rsqrt().detach()
    normed = centred * scale * module.lns.weight + module.lns.bias
    out = module.lin_out(normed * (module.h_lins(y) + module.beta)).relu()
    torch.testing.assert_close(module(x[None])[0], out)
    expected = gradient_input(out, x) / 2 + gradient_input(out, y) / 2
    with gx.conservative(activation="ratio", model=module), gx.record() as tape:
        product = gradient_input(module(x[None])[0], x)
    torch.testing.assert_close(product, expected)
    torch.testing.assert_close(tape.attention[0][0], weights)


def test_rules_that_are_off_leave_linear_attention_as_it_is():
    for module in (SGFormerAttention(8, 2, 6), PolynormerAttention(8, 2, 6)):
        x = nodes()
        ordinary = gradient_input(seeded(module)(x[None]), x)
        with gx.conservative(**NOTHING, model=module):
            product = gradient_input(module(x[None]), x)
        torch.testing.assert_close(product, ordinary)


# -- whole models ------------------------------------------------------------------------------


class Convolutions(nn.Module):
    def __init__(self, conv, **options) -> None:
        super().__init__()
        self.first, self.second = (
            conv(9, 8, edge_dim=3, **options),
            conv(8, 8, edge_dim=3, **options),
        )
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x, edge_index, edge_attr, batch):
        h = F.gelu(self.norm(self.first(x, edge_index, edge_attr)))
        return self.head(global_mean_pool(self.second(h, edge_index, edge_attr), batch))


class SwitchedOn(Polynormer):
    """A model with its global attention on, which its authors switch on after some epochs."""

    def __init__(self, **options) -> None:
        super().__init__(9, 8, 2, local_layers=2, global_layers=2, **options)
        self._global = True


class Pooled(nn.Module):
    """A model of nodes, followed by the mean over them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x, edge_index, batch):
        return global_mean_pool(self.model(x, edge_index, batch), batch)


MODELS = {
    "gated skip": lambda: Convolutions(TransformerConv, beta=True),
    "gated convolution": lambda: Convolutions(ResGatedGraphConv),
    "sgformer": lambda: Pooled(SGFormer(9, 8, 2, trans_num_heads=2, gnn_num_layers=2)),
    "polynormer": lambda: Pooled(SwitchedOn(pre_ln=True)),
    "polynormer, local": lambda: Pooled(Polynormer(9, 8, 2, local_layers=2, local_attn=True)),
    "polynormer, shared": lambda: Pooled(SwitchedOn(qk_shared=True, post_bn=False)),
}


def whole(name: str):
    return gx.wrap(seeded(MODELS[name]()), kind="multiclass", classes=2)


@pytest.mark.parametrize("name", MODELS)
def test_the_ledger_closes(name):
    """The ledger closes to 1e-4 of the output, bias terms included, alone and in a padded batch."""
    model = whole(name)
    check_ledger(model, GRAPHS)
    for target in (0, 1):
        together = gx.explain(model, GRAPHS, target=target)
        for graph, explanation in zip(GRAPHS, together, strict=True):
            alone = gx.explain(model, graph, target=target)
            np.testing.assert_allclose(alone.relevance, explanation.relevance, rtol=1e-4, atol=1e-6)
            for ledger in (alone.ledger, explanation.ledger):
                assert abs(ledger.unexplained) < 1e-4 * abs(ledger.output)
            data, zeros = graph.x.double(), torch.zeros(int(graph.num_nodes)).long()
            args = (graph.edge_attr.double(),) if name.startswith("gated") else ()
            with torch.no_grad():
                out = model.module(data, graph.edge_index, *args, zeros)[0, target]
            assert explanation.output == pytest.approx(out.item(), rel=1e-5)


@pytest.mark.parametrize("name", ["sgformer", "polynormer"])
@pytest.mark.usefixtures("recorded_once")
def test_linear_attention_is_read_by_every_method_that_reads_attention(name):
    model = whole(name)
    for method in ("rollout", "attention_last", "gae", "attn_lrp", "att_cat"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check_batching(model, GRAPHS[:2], get_explainer(method))
            check_renumbering(model, GRAPHS[:1], get_explainer(method))
    pairs = gx.pairs(model, GRAPHS[0])
    n = int(GRAPHS[0].num_nodes)
    assert pairs.by_layer.shape == (2, n + 1, n + 1)
    rows = torch.ones(n, dtype=torch.float64)
    with torch.no_grad(), gx.record() as tape:
        batch = model.collate([GRAPHS[0]])
        model.encode(model.embed(batch), batch)
    for attention in tape.attention:
        torch.testing.assert_close(attention[0, 0, 1:, 1:].sum(-1), rows, atol=1e-5, rtol=0)


@pytest.mark.parametrize("attention", ["performer", "sgformer", "polynormer"])
def test_predictions_do_not_count_padding_as_keys(attention):
    """This also holds for models that are explained at an inner module."""
    if attention == "performer":
        torch.manual_seed(0)
        model = GpsModel("layer_norm", "silu", "performer").eval()
        wrapped = gx.wrap(model, kind="regression", embedding="embed")
    else:
        model = seeded(MODELS[attention]())
        at = "model.trans_conv.fcs.0" if attention == "sgformer" else "model.ln"
        wrapped = gx.wrap(model, kind="multiclass", classes=2, embedding=at)
    with torch.no_grad():
        together = wrapped(wrapped.collate(GRAPHS))
        alone = [wrapped(wrapped.collate([graph]))[0] for graph in GRAPHS]
    torch.testing.assert_close(together, torch.stack(alone))


class Chain(nn.Module):
    """A model of a graph between two maps of its nodes."""

    def __init__(self, before: nn.Module, model: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.before, self.model, self.after = before, model, after

    def forward(self, x, edge_index, batch):
        return self.after(self.model(self.before(x), edge_index, batch))


def ring(nodes: int) -> Data:
    nodes_in_order = torch.arange(nodes)
    edges = torch.stack([nodes_in_order, nodes_in_order.roll(1)])
    return Data(x=torch.randn(nodes, 9), edge_index=torch.cat([edges, edges.flip(0)], 1))


def test_padding_is_not_counted_whatever_was_explained_before():
    """A pass over a large graph alone cannot show what padding does to a small one."""
    for seed in (3, 4):
        torch.manual_seed(seed)
        attention = SGFormer(16, 16, 16, trans_num_heads=1, trans_num_layers=2)
        model = Pooled(Chain(nn.Linear(9, 16), attention, nn.Linear(16, 1))).eval()
        wrapped, small, large = gx.wrap(model, kind="regression"), ring(5), ring(9)
        gx.explain(wrapped, large, "gradient_input")
        after = gx.explain(wrapped, [small, large], "gradient_input")[0].relevance
        alone = gx.explain(wrapped, small, "gradient_input").relevance
        np.testing.assert_allclose(after, alone, atol=1e-5 * abs(alone).max(), rtol=0)


def test_a_transform_that_fails_on_small_graphs_does_not_stop_an_explanation():
    def large_only(graph: Data) -> Data:
        assert graph.num_nodes > 6
        return graph

    torch.manual_seed(0)
    module = Pooled(SGFormer(9, 16, 2)).eval()
    plain = gx.wrap(module, kind="multiclass", classes=2)
    wrapped = gx.wrap(module, kind="multiclass", classes=2, transform=large_only)
    graph = ring(8)
    explanation, wanted = (
        gx.explain(w, graph, "gradient_input", target=1) for w in (wrapped, plain)
    )
    assert np.array_equal(explanation.relevance, wanted.relevance)
