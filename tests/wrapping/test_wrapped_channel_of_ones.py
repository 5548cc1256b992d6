"""Weights that a product with ones sums, and that divide it, are attention like `w / sum(w)`."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data

import graphxai as gx

pytestmark = pytest.mark.usefixtures("only_relevance")

DIM = 4
GRAPHS = [
    Data(
        x=torch.randn(n, 3, generator=torch.Generator().manual_seed(n)),
        edge_index=torch.randint(0, n, (2, 3 * n), generator=torch.Generator().manual_seed(n)),
    )
    for n in (5, 3)
]


def joined(v):
    return torch.cat([v, torch.ones_like(v[:, :1])], -1)


def quotient(y):
    return y[:, :-1] / y[:, -1:]


def split(y):
    above, below = y.split([DIM, 1], -1)
    return above / (below + 1e-12)


FORMS = {  # of attention w (N, N) to values v (N, D)
    "divided weights": lambda w, v: w / w.sum(-1, keepdim=True) @ v,
    "a column of ones": lambda w, v: (w @ v) / (w @ torch.ones(len(v), 1)),
    "a vector of ones": lambda w, v: (w @ v) / (w @ torch.ones(len(v)))[:, None],
    "a channel behind": lambda w, v: quotient(w @ joined(v)),
    "a channel in front": lambda w, v: (lambda y: y[:, 1:] / y[:, :1])(w @ joined(v).roll(1, -1)),
    "a padded channel": lambda w, v: quotient(w @ F.pad(v, (0, 1), value=1.0)),
    "parts": lambda w, v: split(w @ joined(v)),
}
LINEAR = {  # of kernels q and k (N, D)
    "divided weights": lambda q, k, v: FORMS["divided weights"](q @ k.T, v),
    "a column of ones": lambda q, k, v: (q @ (k.T @ v)) / (q @ (k.T @ torch.ones(len(v), 1))),
    "a channel behind": lambda q, k, v: quotient(q @ (k.T @ joined(v))),
}


class Network(nn.Module):
    def __init__(self, form, linear=False):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(3, DIM) for _ in range(3))
        self.head, self.form, self.linear = nn.Linear(DIM, 1), form, linear

    def forward(self, x, edge_index):
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.linear:
            mixed = LINEAR[self.form](F.elu(q) + 1, F.elu(k) + 1, v)
        elif self.form == "messages":
            source, target = edge_index
            w = (q[target] * k[source]).sum(-1, keepdim=True).exp()
            y = torch.zeros(len(x), DIM + 1).index_add(0, target, w * joined(v)[source])
            mixed = y[:, :-1] / (y[:, -1:] + 1e-12)
        else:
            mixed = FORMS[self.form]((q @ k.T).exp(), v)
        return self.head(mixed.mean(0, keepdim=True))


def explained(method, form, linear=False):
    options = {"rounds": 4} if method == "path_marginals" else {}
    model = gx.wrap(Network(form, linear).eval(), kind="regression")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(no rule covers|weights values|cannot leave)")
        return gx.explain(model, GRAPHS, method, on_error="raise", **options)


METHODS = ["lrp", "attn_lrp", "gae", "lrp_zplus", "transformer_attribution", "path_marginals"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", list(FORMS)[1:])
def test_ones_divide_attention_like_its_sum(form, method):
    expected = explained(method, "divided weights")
    for a, b in zip(explained(method, form), expected, strict=True):
        assert a.relevance == pytest.approx(b.relevance, abs=2e-5)
        assert method != "lrp" or abs(a.ledger.unexplained) < 1e-6


@pytest.mark.parametrize("method", ["lrp", "attn_lrp", "gae", "lrp_zplus"])
@pytest.mark.parametrize("form", list(LINEAR)[1:])
def test_ones_divide_linear_attention_like_its_sum(form, method):
    expected = explained(method, "divided weights", linear=True)
    for a, b in zip(explained(method, form, linear=True), expected, strict=True):
        assert a.relevance == pytest.approx(b.relevance, abs=2e-5)


def test_ones_divide_messages():
    network = Network("messages").eval()
    for data, explanation in zip(GRAPHS, explained("lrp", "messages"), strict=True):
        x, (source, target) = data.x.clone().requires_grad_(), data.edge_index
        w = (network.q(x)[target] * network.k(x)[source]).sum(-1, keepdim=True).exp()
        total = torch.zeros(len(x), 1).index_add(0, target, w)[target]
        messages = (w / total).detach() * network.v(x)[source]
        mixed = torch.zeros(len(x), DIM).index_add(0, target, messages)
        (gradient,) = torch.autograd.grad(network.head(mixed.mean(0)).sum(), x)
        expected = (x * gradient).sum(1).detach().numpy()
        assert explanation.relevance == pytest.approx(expected, abs=1e-5)
        assert abs(explanation.ledger.unexplained) < 1e-6


def test_a_trained_weight_is_no_column_of_ones():
    class Scaled(Network):
        def __init__(self):
            super().__init__("divided weights")
            self.weight = nn.Parameter(torch.ones(DIM, 1))

        def forward(self, x, edge_index):
            v = self.v(x).exp()
            return self.head((v / (v @ self.weight)).mean(0, keepdim=True))

    model = gx.wrap(Scaled().eval(), kind="regression")
    with pytest.warns(UserWarning, match="parts that no rule covers"):
        gx.explain(model, GRAPHS[0])


def test_weights_that_a_trained_weight_sums_are_no_attention():
    """The column may be of ones today, and is not once it was trained."""

    class Divided(Network):
        def __init__(self):
            super().__init__("divided weights")
            self.weight = nn.Parameter(torch.ones(len(GRAPHS[0].x), 1))

        def forward(self, x, edge_index):
            w = (self.q(x) @ self.k(x).T).exp()
            return self.head((w @ self.v(x) / (w @ self.weight)).mean(0, keepdim=True))

    model = gx.wrap(Divided().eval(), kind="regression")
    with pytest.warns(UserWarning, match="parts that no rule covers"):
        gx.explain(model, GRAPHS[0])
