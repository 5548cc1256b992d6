"""Rules act on models that are unaware of them as in forward passes written out by hand."""

import math
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch_geometric.nn import (
    GATv2Conv,
    GPSConv,
    GraphNorm,
    InstanceNorm,
    PairNorm,
    TransformerConv,
)
from torch_geometric.nn import LayerNorm as GraphLayerNorm

import graphxai as gx
from graphxai.models.graphormer import collate
from other_models import OwnLayer, encoder
from small_graphs import edge_softmax
from toy import random_graphormer

EDGES = torch.tensor([[0, 1, 1, 2, 2, 0, 3, 4], [1, 0, 2, 1, 0, 2, 4, 3]])
GROUPS = torch.tensor([0, 0, 0, 1, 1])


def nodes() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(5, 8, generator=generator, dtype=torch.float64).requires_grad_()


def lrp(model: nn.Module, x: Tensor, *args: Tensor, **rules: object) -> Tensor:
    """Return Gradient x Input in the context, under all rules if none is named."""
    rules = rules or {"attention": True, "layernorm": True, "activation": "ratio"}
    with gx.conservative(**{"attention": False, "layernorm": False} | rules, model=model):
        out = model(x, *args)
    out = out[0] if isinstance(out, tuple) else out
    return x * torch.autograd.grad(out.square().sum().sqrt() + out.sum(), x)[0]


def gradient_input(f: Tensor, x: Tensor) -> Tensor:
    return x * torch.autograd.grad(f.square().sum().sqrt() + f.sum(), x)[0]


# -- attention in every spelling ---------------------------------------------------------------


def encoder_by_hand(model: nn.TransformerEncoder, x: Tensor) -> Tensor:
    """Run the encoder with the constants of AH, LN and the activation ratio."""

    def norm(z: Tensor, layer: nn.LayerNorm) -> Tensor:
        scale = (z.var(-1, correction=0, keepdim=True) + layer.eps).sqrt().detach()
        return (z - z.mean(-1, keepdim=True)) / scale * layer.weight + layer.bias

    for layer in model.layers:
        attn = layer.self_attn
        q, k, v = (x @ attn.in_proj_weight.T + attn.in_proj_bias).split(16, dim=-1)
        heads = []
        for h in range(4):
            part = slice(4 * h, 4 * h + 4)
            scores = torch.einsum("bqd,bkd->bqk", q[..., part], k[..., part]) / 2.0
            weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
            heads.append(weights.detach() @ v[..., part])
        mixed = torch.cat(heads, -1) @ attn.out_proj.weight.T + attn.out_proj.bias
        x = norm(x + mixed, layer.norm1)
        z = x @ layer.linear1.weight.T + layer.linear1.bias
        z = z * (0.5 * (1 + torch.erf(z / math.sqrt(2)))).detach()
        x = norm(x + z @ layer.linear2.weight.T + layer.linear2.bias, layer.norm2)
    return x


@pytest.mark.parametrize("spelling", ["encoder", "functional", "softmax", "module"])
@pytest.mark.parametrize("frozen", [False, True], ids=["trainable", "frozen weights"])
def test_every_spelling_of_attention_has_the_lrp_of_the_formula(spelling, frozen):
    model = encoder()
    model.requires_grad_(not frozen)  # frozen weights open the fast path
    x = torch.randn(2, 6, 16, dtype=torch.float64, requires_grad=True)
    other = model
    if spelling != "encoder":
        other = nn.Sequential(*(OwnLayer(layer, spelling) for layer in model.layers)).eval()
    expected = gradient_input(encoder_by_hand(model, x), x)
    assert torch.allclose(lrp(other, x), expected, atol=1e-10)


def test_padding_mask_and_fast_path_agree_with_the_shorter_sequence():
    model = encoder().requires_grad_(False)
    x = torch.randn(1, 6, 16, dtype=torch.float64)
    padding = torch.tensor([[False] * 4 + [True] * 2])
    short = x[:, :4].clone().requires_grad_()
    expected = gradient_input(encoder_by_hand(model, short), short)
    long = x.clone().requires_grad_()
    with gx.conservative(activation="ratio", model=model):
        out = model(long, src_key_padding_mask=padding)[:, :4]
    product = gradient_input(out, long)
    assert torch.allclose(product[:, :4], expected, atol=1e-10)
    assert not product[:, 4:].any()


@pytest.mark.parametrize(
    "options",
    [{"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 6, "vdim": 10}],
)
@pytest.mark.parametrize("batch_first", [True, False])
def test_multihead_attention_written_out_is_pytorchs(options, batch_first):
    torch.manual_seed(0)
    model = nn.MultiheadAttention(8, 2, batch_first=batch_first, **options).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    widths = options.get("kdim", 8), options.get("vdim", 8)
    query, key, value = (torch.randn(3, 4, w, dtype=torch.float64) for w in (8, *widths))
    length = 4 if batch_first else 3
    mask = torch.rand(length, length) > 0.7
    mask.fill_diagonal_(False)
    for options_ in ({}, {"attn_mask": mask}, {"average_attn_weights": False}):
        out, weights = model(query, key, value, **options_)
        with gx.conservative(attention=False, layernorm=False, model=model):
            again, weights_again = model(query, key, value, **options_)
        assert torch.allclose(out, again)
        assert torch.allclose(weights, weights_again)


def test_scaled_dot_product_attention_written_out_is_pytorchs():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 5, 8, dtype=torch.float64) for _ in range(3))
    mask = torch.rand(2, 1, 5, 5) > 0.3
    mask[0, 0, 2] = False  # a query that may see nothing
    shared = (q, k[:, :2], v[:, :2])
    calls = [
        ((q, k, v), {"attn_mask": mask}),
        ((q, k, v), {"attn_mask": torch.randn(5, 5, dtype=torch.float64), "scale": 0.3}),
        ((q, k, v), {"is_causal": True}),
        (shared, {"enable_gqa": True}),
    ]

    class Model(nn.Module):
        def forward(self, args, kwargs):
            return F.scaled_dot_product_attention(*args, **kwargs)

    for args, kwargs in calls:
        expected = F.scaled_dot_product_attention(*args, **kwargs)
        model = Model()
        with gx.conservative(model=model):
            output = model(args, kwargs)
        assert torch.allclose(output, expected)


def transformer_conv_by_hand(conv: TransformerConv, x: Tensor) -> Tensor:
    source, target = EDGES
    q, k, v = (lin(x).view(-1, 2, 4) for lin in (conv.lin_query, conv.lin_key, conv.lin_value))
    weights = edge_softmax((q[target] * k[source]).sum(-1) / 2.0, target).detach()
    messages = weights[..., None] * v[source]
    summed = torch.stack([messages[target == i].sum(0) for i in range(5)])
    return summed.flatten(1) + conv.lin_skip(x)


def gat_by_hand(conv: GATv2Conv, x: Tensor) -> Tensor:
    loops = torch.arange(5).repeat(2, 1)
    source, target = torch.cat([EDGES, loops], dim=1)
    left, right = conv.lin_l(x).view(-1, 2, 4), conv.lin_r(x).view(-1, 2, 4)
    scores = (F.leaky_relu(left[source] + right[target], 0.2) * conv.att).sum(-1)
    messages = edge_softmax(scores, target).detach()[..., None] * left[source]
    summed = torch.stack([messages[target == i].sum(0) for i in range(5)])
    return summed.flatten(1) + conv.bias


@pytest.mark.parametrize(
    ("conv", "by_hand"),
    [(TransformerConv, transformer_conv_by_hand), (GATv2Conv, gat_by_hand)],
)
def test_attention_along_edges_is_held_constant(conv, by_hand):
    torch.manual_seed(0)
    model, x = conv(8, 4, heads=2).double().eval(), nodes()
    nn.init.normal_(model.lin_key.bias if conv is TransformerConv else model.bias)
    product = lrp(model, x, EDGES, attention=True)
    assert torch.allclose(product, gradient_input(by_hand(model, x), x), atol=1e-12)


def test_performer_is_linear_attention_with_a_constant_matrix():
    torch.manual_seed(0)
    x = nodes()
    model = GPSConv(8, None, heads=2, norm=None, attn_type="performer",
                    attn_kwargs={"head_channels": 6}).double().eval()  # fmt: skip
    attn = model.attn

    def by_hand(graph: Tensor) -> Tensor:
        q, k, v = (lin(graph).view(len(graph), 2, 6) for lin in (attn.q, attn.k, attn.v))
        features = attn.fast_attn.projection_matrix.T
        mixed = []
        for h in range(2):
            phi_q, phi_k = ((z[:, h] @ features).relu() + 1e-3 for z in (q, k))
            weights = phi_q @ phi_k.T
            mixed.append((weights / weights.sum(-1, keepdim=True)).detach() @ v[:, h])
        graph = graph + attn.attn_out(torch.cat(mixed, dim=-1))
        return graph + model.mlp(graph)

    product = lrp(model, x, EDGES, GROUPS[:5] * 0, attention=True)
    assert torch.allclose(product, gradient_input(by_hand(x), x), atol=1e-12)


# -- normalisation and activation --------------------------------------------------------------


def norm_cases() -> list[tuple[nn.Module, tuple[Tensor, ...], object]]:
    def by_graph(f):
        return lambda x: torch.cat([f(x[g == GROUPS]) for g in (0, 1)])

    def graph_norm(m):
        def normalise_graph(z):
            z = z - z.mean(0) * m.mean_scale
            return m.weight * z / (z.square().mean(0) + m.eps).sqrt().detach() + m.bias

        return by_graph(normalise_graph)

    def graph_layer_norm(m):
        def normalise_graph(z):
            z = z - z.mean()
            return z / (z.square().mean() + m.eps).sqrt().detach() * m.weight + m.bias

        return by_graph(normalise_graph)

    def instance_norm(m):
        def normalise_graph(z):
            z = z - z.mean(0)
            return z / (z.square().mean(0) + m.eps).sqrt().detach()

        return by_graph(normalise_graph)

    def pair_norm(m):
        def normalise_graph(z):
            z = z - z.mean(0)
            return z / (z.square().sum(-1).mean() + m.eps).sqrt().detach()

        return by_graph(normalise_graph)

    def group_norm(m):
        def normalise(x):
            z = x.view(5, 2, 4)
            z = z - z.mean(-1, keepdim=True)
            z = z / (z.square().mean(-1, keepdim=True) + m.eps).sqrt().detach()
            return z.view(5, 8) * m.weight + m.bias

        return normalise

    def rms_norm(m):
        return lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt().detach() * m.weight

    def layer_norm(m):
        def normalise(x):
            z = x - x.mean(-1, keepdim=True)
            return z / (z.square().mean(-1, keepdim=True) + m.eps).sqrt().detach()

        return normalise

    return [
        (GraphNorm(8), (GROUPS,), graph_norm),
        (GraphLayerNorm(8), (GROUPS,), graph_layer_norm),
        (InstanceNorm(8), (GROUPS,), instance_norm),
        (PairNorm(), (GROUPS,), pair_norm),
        (nn.GroupNorm(2, 8), (), group_norm),
        (nn.RMSNorm(8, eps=1e-6), (), rms_norm),
        (nn.LayerNorm(8, elementwise_affine=False), (), layer_norm),
    ]


@pytest.mark.parametrize("case", range(7))
def test_the_scale_of_every_norm_is_constant_and_its_mean_is_not(case):
    model, args, by_hand = norm_cases()[case]
    model = model.double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, 1.0, 0.5)
    x = nodes()
    expected = by_hand(model)(x)
    assert torch.allclose(model(x, *args), expected, atol=1e-10)
    assert torch.allclose(
        lrp(model, x, *args, layernorm=True), gradient_input(expected, x), atol=1e-10
    )


ACTIVATIONS = [nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.ReLU(), nn.ELU(), nn.SELU(), nn.CELU(),
               nn.Mish(), nn.Hardswish(), nn.LeakyReLU(), nn.PReLU(), nn.Tanh(), nn.ReLU6(),
               nn.Softsign(), nn.SiLU(inplace=True), nn.ELU(inplace=True)]  # fmt: skip


@pytest.mark.parametrize("act", ACTIVATIONS, ids=str)
def test_activations_multiply_by_a_constant_ratio(act):
    x, act = nodes(), act.double()
    layer = nn.Linear(8, 8, bias=False).double()
    model = nn.Sequential(layer, act)
    z = layer(x)
    expected = z * (act(z.detach().clone()) / z.detach())
    assert torch.allclose(
        lrp(model, x, activation="ratio"), gradient_input(expected, x), atol=1e-10
    )


def test_ratio_at_zero_is_finite():
    x = torch.zeros(3, requires_grad=True)
    with gx.conservative(activation="ratio", model=(model := nn.Sequential(nn.SiLU()))):
        model(x).sum().backward()
    assert torch.allclose(x.grad, torch.full((3,), 0.5), atol=1e-3)  # the slope of SiLU at zero


@pytest.mark.parametrize(
    "rules",
    [
        {"activation": "ratio"},
        {"attention": False},
        {"layernorm": False},
        {"attention": False, "activation": "ratio", "products": True},
    ],
    ids=["lrp", "lrp_ln", "lrp_ah", "attn_lrp"],
)
def test_graphormer_has_the_same_relevance_by_interception_as_by_its_own_hooks(
    monkeypatch, smiles, rules
):
    model = random_graphormer()
    batch = collate([model.prepare(s).data for s in smiles[:4]])
    with gx.conservative(**rules):
        tokens = model.embed(batch).detach().requires_grad_()
        by_hooks = torch.autograd.grad(model.encode(tokens, batch).sum(), tokens)[0]

    class Plain:  # what the layers call is PyTorch's, as in anybody's model
        gelu = staticmethod(F.gelu)
        linear = staticmethod(lambda x, w, b, alike: F.linear(x, w, b))
        current_tape = staticmethod(lambda: None)
        softmax_attention = staticmethod(
            lambda q, k, bias: torch.softmax(q @ k.transpose(-2, -1) + bias, dim=-1)
        )
        mix_values = staticmethod(torch.matmul)
        layer_norm = staticmethod(lambda x, w, b, eps: F.layer_norm(x, x.shape[-1:], w, b, eps))

    from graphxai.models.graphormer import layers
    from graphxai.models.graphormer import model as graphormer

    monkeypatch.setattr(layers, "rules", Plain)
    monkeypatch.setattr(graphormer, "rules", Plain)

    class Rest(nn.Module):
        def __init__(self):
            super().__init__()
            self.graphormer = model

        def forward(self, tokens):
            return self.graphormer.encode(tokens, batch)

    with gx.conservative(**rules, model=(rest := Rest())):
        out = rest(tokens)
    by_interception = torch.autograd.grad(out.sum(), tokens)[0]
    assert torch.allclose(
        by_interception, by_hooks, rtol=1e-4, atol=1e-5 * by_hooks.abs().max().item()
    )


def test_inputs_by_keyword_and_by_position_are_equal():
    torch.manual_seed(0)
    model, x = TransformerConv(8, 4, heads=2).double().eval(), nodes()
    inner = x * 1.0  # an input need not be a leaf
    with gx.conservative(layernorm=False, model=model):
        out = model(edge_index=EDGES, x=inner)
    assert torch.allclose(gradient_input(out, x), lrp(model, x, EDGES, attention=True))


# -- attention is recorded ---------------------------------------------------------------------


def test_recorded_attention_is_what_the_layers_report():
    torch.manual_seed(0)
    x = nodes()
    conv, mha = TransformerConv(8, 4, heads=2).double(), nn.MultiheadAttention(8, 2).double()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.mha = conv, mha

        def forward(self, x):
            h = self.conv(x, EDGES)[:, None]
            return self.mha(h, h, h, need_weights=False)[0]

    model = Model().eval()
    with gx.conservative(attention=False, layernorm=False, model=model), gx.record() as tape:
        model(x)
    _, (_, alpha) = conv(x, EDGES, return_attention_weights=True)
    h = conv(x, EDGES)[:, None]
    _, weights = mha(h, h, h, average_attn_weights=False)
    sparse, dense = tape.attention
    assert torch.allclose(sparse[0, :, EDGES[1] + 1, EDGES[0] + 1].T, alpha)
    assert torch.isclose(sparse.sum(), alpha.sum())
    assert torch.allclose(dense[:, :, 1:, 1:], weights)


# -- no trace ----------------------------------------------------------------------------------


def test_the_model_is_bit_for_bit_as_before_and_no_hook_stays():
    model = encoder()
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    parameters = {name: (id(p), p.clone()) for name, p in model.named_parameters()}

    def outputs_and_gradients():
        model.zero_grad()
        model(x).sum().backward()
        with torch.no_grad():
            fast = model(x)
        return [fast, *(p.grad.clone() for p in model.parameters())]

    before = outputs_and_gradients()
    lrp(model, x.clone().requires_grad_())
    with pytest.raises(KeyError), gx.conservative(activation="ratio", model=model):
        raise KeyError("left early")
    with pytest.raises((RuntimeError, AssertionError)), gx.conservative(model=model):
        model(torch.randn(2, 6, 15))
    for first, second in zip(before, outputs_and_gradients(), strict=True):
        assert torch.equal(first, second)
    for name, parameter in model.named_parameters():
        assert parameters[name][0] == id(parameter)
        assert torch.equal(parameters[name][1], parameter)
    assert not torch_module._global_forward_hooks
    assert not torch_module._global_forward_pre_hooks
    assert torch._C._len_torch_function_stack() == 0
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert all("forward" not in vars(m) for m in model.modules())


def test_an_error_inside_the_model_leaves_the_context_usable():
    model = encoder()
    x = torch.randn(2, 6, 16, dtype=torch.float64, requires_grad=True)
    expected = lrp(model, x)
    with gx.conservative(activation="ratio", model=model):
        with pytest.raises((RuntimeError, AssertionError)):
            model(torch.randn(2, 6, 15))
        product = gradient_input(model(x), x)
    assert torch.equal(product, expected)


def test_another_thread_sees_nothing_of_the_context():
    model = encoder().requires_grad_(False)
    x = torch.randn(2, 6, 16, dtype=torch.float64)

    def gradient() -> Tensor:
        z = x.clone().requires_grad_()
        return torch.autograd.grad(model(z).sum(), z)[0]

    def fast() -> Tensor:
        with torch.no_grad():
            return model(x)

    before, in_thread = (gradient(), fast()), []
    with gx.conservative(activation="ratio", model=model):
        thread = threading.Thread(target=lambda: in_thread.extend([gradient(), fast()]))
        thread.start()
        thread.join()
        inside = gradient()
    assert torch.equal(in_thread[0], before[0])
    assert torch.equal(in_thread[1], before[1])
    assert not torch.allclose(inside, before[0])


def test_the_rules_act_on_this_model_only():
    x = nodes()
    torch.manual_seed(0)
    named, other = (nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).double() for _ in range(2))
    expected = torch.autograd.grad(other(x).square().sum(), x)[0]
    with gx.conservative(model=named):
        gradient = torch.autograd.grad(other(x).square().sum(), x)[0]
    assert torch.equal(gradient, expected)


# -- what the rules do not know ----------------------------------------------------------------


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.lin(x) * torch.lgamma(self.other(x))


def test_what_is_unknown_is_named_once_with_its_place():
    x = nodes()
    model = nn.Sequential(nn.Linear(8, 8), Product(), nn.GELU(), Product()).double()
    with pytest.warns(UserWarning, match="Sequential has parts") as caught:
        lrp(model, x)
    assert len(caught) == 1
    text = str(caught[0].message)
    for part in ("1: lgamma", "3: lgamma"):
        assert part in text
    assert "2:" not in text


def test_a_rule_that_is_off_gives_no_warning(recwarn):
    lrp(nn.Sequential(nn.Sigmoid()).double(), nodes(), attention=True)
    assert not recwarn.list


def test_an_unforeseen_operation_is_named():
    class LogGamma(nn.Module):
        def forward(self, x):
            return torch.lgamma(x)

    with pytest.warns(UserWarning, match=": lgamma"):
        lrp(nn.Sequential(LogGamma()).double(), nodes())


def gru_by_hand(cell: nn.GRUCell, x: Tensor, h: Tensor) -> Tensor:
    """Run a GRU whose gates take no relevance: `(1 - z) n + z h` and `r (U h)` pass it on."""
    from_x = (x @ cell.weight_ih.T + cell.bias_ih).chunk(3, -1)
    from_h = (h @ cell.weight_hh.T + cell.bias_hh).chunk(3, -1)
    r, z = ((a + b).sigmoid().detach() for a, b in zip(from_x[:2], from_h[:2], strict=True))
    new = from_x[2] + r * from_h[2]
    new = new * (new.tanh() / new).detach()
    return (1 - z) * new + z * h


def lstm_by_hand(cell: nn.LSTMCell, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    gates = x @ cell.weight_ih.T + cell.bias_ih + h @ cell.weight_hh.T + cell.bias_hh
    let_in, forget, new, out = gates.chunk(4, -1)
    let_in, forget, out = (gate.sigmoid().detach() for gate in (let_in, forget, out))
    c = forget * c + let_in * new * (new.tanh() / new).detach()
    return out * c * (c.tanh() / c).detach(), c


class Twice(nn.Module):
    """A recurrent cell that reads the same input in two steps."""

    def __init__(self, cell: nn.Module):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        state = self.cell(x)
        state = self.cell(x, state)
        return state[0] if isinstance(state, tuple) else state


def test_gates_of_recurrent_cells_take_no_relevance():
    """The rule is that of Arras et al. 2017 and 2019 for LSTMs."""
    torch.manual_seed(0)
    x = nodes()
    gru, lstm = Twice(nn.GRUCell(8, 8)).double(), Twice(nn.LSTMCell(8, 8)).double()
    zero = torch.zeros_like(x)
    by_hand = gru_by_hand(gru.cell, x, gru_by_hand(gru.cell, x, zero))
    torch.testing.assert_close(gru(x), by_hand)
    torch.testing.assert_close(lrp(gru, x), gradient_input(by_hand, x))
    by_hand, _ = lstm_by_hand(lstm.cell, x, *lstm_by_hand(lstm.cell, x, zero, zero))
    torch.testing.assert_close(lstm(x), by_hand)
    torch.testing.assert_close(lrp(lstm, x), gradient_input(by_hand, x))


@pytest.mark.parametrize("layer", [nn.GRU, nn.LSTM])
def test_recurrent_layers_are_their_cells_step_by_step(layer):
    torch.manual_seed(0)
    model, x = layer(8, 8).double(), nodes()
    cell = {nn.GRU: nn.GRUCell, nn.LSTM: nn.LSTMCell}[layer](8, 8).double()
    cell.load_state_dict({k.removesuffix("_l0"): v for k, v in model.state_dict().items()})

    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell

        def forward(self, x):
            states, state = [], None
            for row in x:
                state = self.cell(row[None], state)
                states.append(state[0] if isinstance(state, tuple) else state)
            return torch.cat(states)

    steps = Steps()
    torch.testing.assert_close(model(x)[0], steps(x))
    torch.testing.assert_close(lrp(model, x), lrp(steps, x))


def test_rules_act_on_modules_only():
    with (
        pytest.raises(TypeError, match=r"act on a torch\.nn\.Module, not on str"),
        gx.conservative(model="bace"),
    ):
        pass


def test_a_softmax_at_the_output_is_not_attention():
    x = nodes()
    model = nn.Sequential(nn.Linear(8, 3), nn.Softmax(dim=-1)).double()
    expected = torch.autograd.grad(model(x)[:, 0].sum(), x)[0]
    with (
        pytest.warns(UserWarning, match="a softmax whose result enters no product"),
        gx.conservative(model=model),
    ):
        out = model(x)
    assert torch.allclose(torch.autograd.grad(out[:, 0].sum(), x)[0], expected)
    assert expected.any()


def test_a_custom_autograd_function_is_looked_into():
    class LogGamma(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.lgamma()

        @staticmethod
        def backward(ctx, g):
            return ctx.saved_tensors[0].digamma() * g

    class Model(nn.Module):
        def forward(self, x):
            return LogGamma.apply(x) + x

    with pytest.warns(UserWarning, match="Model: lgamma"):
        lrp(Model(), nodes())
