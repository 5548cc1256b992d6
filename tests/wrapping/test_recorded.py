"""A recorded pass shows signals that are cut, shares of other inputs, and new spellings."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from graphs_with_inputs import DIM, EDGES, Inputs, graph
from torch import Tensor, nn
from torch_geometric.nn import global_mean_pool
from torch_geometric.utils import softmax as softmax_over

import graphxai as gx
from other_models import GpsModel, SparseModel, encoder

# -- cut off -----------------------------------------------------------------------------------


class Cut(nn.Module):
    """A network without a single bias, in which part of the signal leaves the gradient."""

    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.other = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.head, self.how = nn.Linear(DIM, 1, bias=False), how

    def forward(self, x, batch):
        h = self.first(x)
        return self.head(global_mean_pool(h + self.how(self, h), batch))


def without_gradients(m: Cut, h: Tensor) -> Tensor:
    with torch.no_grad():
        return m.other(h)


def in_inference_mode(m: Cut, h: Tensor) -> Tensor:
    with torch.inference_mode():
        mapped = m.other(h)
    return mapped.clone()


CUTS = {
    "detach": lambda m, h: m.other(h.detach()),
    "data": lambda m, h: m.other(h.data),
    "no_grad": without_gradients,
    "inference_mode": in_inference_mode,
    "tolist": lambda m, h: torch.tensor(h.tolist()),
    "numpy": lambda m, h: torch.from_numpy(2 * h.detach().numpy()),
    "numpy, the same memory": lambda m, h: torch.from_numpy(h.detach().numpy()),
    "item": lambda m, h: torch.ones_like(h) * h.detach().mean().item(),
    "round": lambda m, h: h.round(),
    "threshold": lambda m, h: (h > 0).float(),
    "argmax": lambda m, h: m.other.weight[h.argmax(-1)],
    "number": lambda m, h: float(h.detach().mean()),
}


@pytest.mark.parametrize("how", CUTS)
def test_a_signal_that_is_cut_off_has_its_own_share_and_is_named(how):
    module = Cut(CUTS[how]).eval()
    model, data = gx.wrap(module, kind="regression"), graph()
    with pytest.warns(UserWarning, match="Cut uses values of the nodes without their gradient"):
        ledger = gx.explain(model, data).ledger
    zeros = torch.zeros(4, dtype=torch.long)
    with torch.no_grad():
        whole = module(data.x, zeros).item()
        module.how = lambda m, h: torch.zeros_like(h)
        rest = module(data.x, zeros).item()
    assert ledger.output == pytest.approx(whole, abs=1e-6)
    assert ledger.nodes == pytest.approx(rest, abs=1e-6)
    assert ledger.others["cut off"] == pytest.approx(whole - rest, abs=1e-6)
    assert ledger.biases == 0
    assert abs(ledger.unexplained) < 1e-6


def test_an_encoder_without_gradients_is_all_cut_off():
    module = Cut(lambda m, h: 0 * h).eval()
    module.first.forward = torch.no_grad()(module.first.forward)
    with pytest.warns(UserWarning, match="without their gradient"):
        explanation = gx.explain(gx.wrap(module, kind="regression"), graph())
    assert not explanation.relevance.any()
    assert explanation.ledger.others == {"cut off": pytest.approx(explanation.output)}


def test_what_only_selects_or_hides_is_not_cut_off():
    def hidden(m: Cut, h: Tensor) -> Tensor:
        return torch.where(h > 0, m.other(h), h) * (h.abs().sum(-1, keepdim=True) > 0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger = gx.explain(gx.wrap(Cut(hidden).eval(), kind="regression"), graph()).ledger
    assert not ledger.others
    assert abs(ledger.unexplained) < 1e-6


@pytest.mark.parametrize("method", ["lrp", "gradient_input", "rollout"])
def test_a_change_of_type_is_not_cut_off(method):
    def in_another_type(m: Cut, h: Tensor) -> Tensor:
        weights = (h @ h.mT).float().softmax(-1).topk(2, -1)
        return (m.other(h)[weights.indices] * weights.values[..., None]).sum(1) + 1.0

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*without their gradient")
        model = gx.wrap(Cut(in_another_type).eval(), kind="regression")
        explanation = gx.explain(model, graph(), method)
    if method == "rollout":  # the largest two of each row are read, and have no ledger
        assert explanation.ledger is None
    else:
        assert set(explanation.ledger.others or ()) <= {"constants"}


def softmax_shifted_over(dim: int):
    def attended(m: Cut, h: Tensor) -> Tensor:
        scores = h @ h.mT
        weights = (scores - scores.detach().amax(dim, keepdim=True)).exp()
        return weights / weights.sum(-1, keepdim=True) @ m.other(h)

    return attended


def edge_softmax(m: Cut, h: Tensor) -> Tensor:
    return softmax_over(h, torch.zeros(len(h), dtype=torch.long)) * m.other(h)


@pytest.mark.parametrize("how", [edge_softmax, softmax_shifted_over(-1)], ids=["edges", "rows"])
def test_the_shift_by_the_maximum_in_a_softmax_is_not_cut_off(how):
    model = gx.wrap(Cut(how).eval(), kind="regression")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ledger = gx.explain(model, graph(), method="gradient_input").ledger
    assert "cut off" not in ledger.others


def test_a_shift_of_other_groups_than_those_of_the_softmax_is_cut_off():
    model = gx.wrap(Cut(softmax_shifted_over(0)).eval(), kind="regression")
    with pytest.warns(UserWarning, match="without their gradient"):
        ledger = gx.explain(model, graph(), method="gradient_input").ledger
    assert ledger.others["cut off"]


# -- other inputs ------------------------------------------------------------------------------


def test_every_input_has_a_line_and_biases_are_additive_parameters():
    module = Inputs().eval()
    graphs = [graph(seed) for seed in (1, 2)]
    for data, explanation in zip(
        graphs, gx.explain(gx.wrap(module, kind="regression"), graphs), strict=True
    ):
        scale = torch.zeros(4, DIM).index_add(0, EDGES[0], data.edge_attr) + 1  # of each node's row
        weight = module.head.weight[0]
        with torch.no_grad():
            expected = {
                "edge_attr": ((data.edge_attr @ module.edge.weight.T) @ weight).sum(),
                "pe": (module.place(data.pe) * scale @ weight).sum(),
                "kind": (module.kind(data.kind) * scale @ weight).sum(),
                "constants": (0.25 * scale @ weight).sum(),
            }
            biases = (len(EDGES[0]) * module.edge.bias @ weight).item()
        ledger = explanation.ledger
        assert set(ledger.others) == set(expected)
        for name, value in expected.items():
            assert ledger.others[name] == pytest.approx(value.item(), abs=1e-5), name
        assert ledger.biases == pytest.approx(biases, abs=1e-5)
        assert abs(ledger.unexplained) < 1e-5
        shown = str(ledger)
        assert "pe " in shown
        assert "edge attr" in shown


# -- names do not matter -----------------------------------------------------------------------


def renamed(model: nn.Module) -> nn.Module:
    """Return the same model with another name for every class of a module."""
    for k, module in enumerate(list(model.modules())):
        module.__class__ = type(f"Norm{k}Gelu", (type(module),), {})
    return model


class NormGatedConv(nn.Module):
    """A product of two maps in a module that is named as if it were something else."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        return self.left(x) * self.right(x)


@pytest.mark.parametrize("method", ["lrp", "lrp_ah", "lrp_ln", "attn_lrp", "gradient_input"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: (GpsModel("layer_norm", "silu"), {}),
        lambda: (SparseModel(), {}),
        lambda: (nn.Sequential(NormGatedConv(), nn.GELU(), nn.Linear(DIM, 1)), {"batch": True}),
    ],
    ids=["gps", "sparse", "product"],
)
@pytest.mark.usefixtures("only_relevance")
def test_names_of_classes_change_nothing(make, method):
    def explained(change) -> Tensor:
        torch.manual_seed(0)
        module, options = make()
        module = change(module).eval()
        forward = (lambda m, b: global_mean_pool(m(b.x), b.batch)) if options else None
        data = graph(dim=DIM if options else 9)
        data.edge_attr = data.edge_attr[:, :3]
        model = gx.wrap(module, kind="regression", forward=forward)
        return torch.tensor(gx.explain(model, data, method).relevance)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(explained(lambda m: m), explained(renamed))


# -- rules -------------------------------------------------------------------------------------


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))
        self.function = function

    def forward(self, x):
        return self.function(self.q(x), self.k(x), self.v(x))


def softmax(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.T / 3).softmax(-1)


def gates(z: Tensor) -> Tensor:
    """Apply an activation as a constant factor."""
    return (F.silu(z) / z).detach() * z


def halves(a: Tensor, b: Tensor) -> Tensor:
    """Multiply two factors so that either gets half of the relevance."""
    return (a * b.detach() + a.detach() * b) / 2 + (a * b).detach() * 0


def written_norm(z: Tensor) -> Tensor:
    return (z - z.mean(-1, keepdim=True)) / (z.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()


def held_norm(z: Tensor) -> Tensor:
    return (z - z.mean(-1, keepdim=True)) / (
        z.var(-1, keepdim=True, correction=0) + 1e-5
    ).sqrt().detach()


def rms(z: Tensor) -> Tensor:
    return z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-5)


SPELLINGS = {
    "exp of s - logsumexp": lambda q, k, v: (s := q @ k.T / 3).sub(s.logsumexp(-1, True)).exp() @ v,
    "exp of log_softmax": lambda q, k, v: (q @ k.T / 3).log_softmax(-1).exp() @ v,
    "softmin": lambda q, k, v: F.softmin(-(q @ k.T) / 3, -1) @ v,
    "divided at the end": lambda q, k, v: (e := (q @ k.T / 3).exp()) @ v / e.sum(-1, keepdim=True),
    "divided first": lambda q, k, v: (e := (q @ k.T / 3).exp()) / e.sum(-1, keepdim=True) @ v,
}


def relevance(model: nn.Module, x: Tensor) -> Tensor:
    with gx.conservative(activation="ratio", model=model):
        f = model(x)
    return gradient_input(f, x)


def gradient_input(f: Tensor, x: Tensor) -> Tensor:
    weights = torch.linspace(0.5, 2, f.numel(), dtype=f.dtype).view_as(f)
    return x * torch.autograd.grad((f * weights).sum(), x, retain_graph=True)[0]


def rows() -> Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(5, DIM, generator=draw, dtype=torch.float64).requires_grad_()


def check(function, by_hand) -> None:
    """Check that LRP of a function is Gradient x Input of the one by hand, with the same values."""
    model, x = Function(function).double(), rows()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = relevance(model, x)
    expected = by_hand(model.q(x), model.k(x), model.v(x))
    torch.testing.assert_close(scores, gradient_input(expected, x))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_softmax_is_attention_however_it_is_spelt(spelling):
    check(SPELLINGS[spelling], lambda q, k, v: softmax(q, k).detach() @ v)


def test_differential_attention_is_held_as_one():
    """Ye et al. 2024 define it as `(A1 - lambda A2) v`."""
    check(
        lambda q, k, v: (softmax(q, k) - 0.3 * softmax(k, q)) @ v,
        lambda q, k, v: (softmax(q, k) - 0.3 * softmax(k, q)).detach() @ v,
    )
    check(
        lambda q, k, v: (softmax(q, k) + softmax(k, q)) @ v,
        lambda q, k, v: (softmax(q, k) + softmax(k, q)).detach() @ v,
    )


def test_both_branches_of_a_swiglu_get_half():
    """SwiGLU is from Shazeer 2020, and the uniform rule from Achtibat 2024."""
    check(lambda q, k, v: F.silu(q) * k, lambda q, k, v: halves(gates(q), k))

    def gelu(z: Tensor) -> Tensor:
        return (F.gelu(z) / z).detach() * z

    check(lambda q, k, v: F.gelu(q) * k, lambda q, k, v: halves(gelu(q), k))


def test_norms_written_out_inside_another_module_keep_their_scale():
    check(lambda q, k, v: written_norm(q) + v, lambda q, k, v: held_norm(q) + v)
    check(
        lambda q, k, v: rms(q) + v,
        lambda q, k, v: q * torch.rsqrt(q.pow(2).mean(-1, keepdim=True) + 1e-5).detach() + v,
    )


def test_the_output_is_the_models_own():
    model, x = encoder(), torch.randn(2, 6, 16, dtype=torch.float64, requires_grad=True)
    with gx.conservative(activation="ratio", model=model):
        output = model(x)
    torch.testing.assert_close(output, model(x))
