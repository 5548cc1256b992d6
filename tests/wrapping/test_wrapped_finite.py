"""Masks of the most negative number, autocast in a model and ties of a maximum are explained."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool, global_max_pool
from torch_geometric.utils import to_dense_batch

import graphxai as gx
from graphxai.engine.request import recorded_only
from graphxai.explainers import REGISTRY
from graphxai.explanation.prediction import NotFiniteError

pytestmark = pytest.mark.usefixtures("only_relevance")

DIM = 8
EDGES = torch.tensor([[0, 1], [1, 0]])


def graph(nodes: int) -> Data:
    draw = torch.Generator().manual_seed(nodes)
    return Data(x=torch.randn(nodes, DIM, generator=draw), edge_index=EDGES)


GRAPHS = [graph(n) for n in (3, 6, 2)]


class PairMask(nn.Module):
    """Attention whose scores between padding are filled with the most negative number."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(DIM, DIM) for _ in range(3))
        self.out = nn.Linear(DIM, 1)

    def masked(self, scores, pairs):
        return scores.masked_fill(~pairs, -torch.finfo(scores.dtype).max)

    def forward(self, x, batch):
        padded, mask = to_dense_batch(x, batch)
        scores = self.query(padded) @ self.key(padded).mT / DIM**0.5
        scores = self.masked(scores, mask[:, :, None] & mask[:, None, :])
        h = padded + scores.softmax(-1) @ self.value(padded)
        return self.out((h * mask[..., None]).sum(1))


class AddedPairMask(PairMask):
    def masked(self, scores, pairs):
        return scores + (~pairs) * -torch.finfo(scores.dtype).max


SIGNED = ["gradient_input", "lrp", "attn_lrp", "lrp_ln", "saliency"]
POSITIVE = ["lrp_zplus", "partial_lrp", "transformer_attribution"]


@pytest.mark.parametrize("kind", [PairMask, AddedPairMask])
@pytest.mark.parametrize("method", SIGNED + POSITIVE)
def test_finite_relevance_is_not_refused_for_a_mask_beside_it(kind, method):
    model = gx.wrap(kind().eval(), kind="regression")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the share of")
        together = gx.explain(model, GRAPHS, method, on_error="raise")
    for data, explanation in zip(GRAPHS, together, strict=True):
        alone = gx.explain(model, data, method)
        assert explanation.relevance == pytest.approx(alone.relevance, abs=1e-5)


def test_gradient_input_beside_such_a_mask_is_that_of_autograd():
    module = PairMask().eval()
    explanations = gx.explain(gx.wrap(module, kind="regression"), GRAPHS, "gradient_input")
    for data, explanation in zip(GRAPHS, explanations, strict=True):
        x = data.x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(module(x, torch.zeros(len(x)).long()).sum(), x)
        expected = (x * gradient).sum(-1).detach().numpy()
        assert explanation.relevance == pytest.approx(expected, abs=1e-5)


class Autocast(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(0)
        self.dtype = dtype
        layer = nn.TransformerEncoderLayer(DIM, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(DIM, 1)

    def forward(self, x, batch):
        padded, mask = to_dense_batch(x, batch)
        with torch.autocast("cpu", dtype=self.dtype, enabled=self.dtype != torch.float32):
            h = self.encoder(padded, src_key_padding_mask=~mask)
            return self.out((h * mask[..., None]).sum(1)).float()


@pytest.mark.parametrize(
    "method", ["lrp", "attn_lrp", "lrp_ah_ln", "lrp_ln", "lrp_path", "path_marginals", "gae"]
)
def test_autocast_within_a_model_changes_relevance_by_its_rounding(method):
    exact = gx.wrap(Autocast(torch.float32).eval(), kind="regression")
    rounded = gx.wrap(Autocast(torch.bfloat16).eval(), kind="regression")
    expected = gx.explain(exact, GRAPHS, method, on_error="raise")
    for a, b in zip(gx.explain(rounded, GRAPHS, method, on_error="raise"), expected, strict=True):
        size = float(abs(b.relevance).max())
        assert a.relevance == pytest.approx(b.relevance, abs=0.08 * size)


class Normalised(Autocast):
    def __init__(self, dtype):
        super().__init__(dtype)
        self.first, self.norm = nn.Linear(DIM, DIM), nn.BatchNorm1d(DIM)

    def forward(self, x, batch):
        with torch.autocast("cpu", dtype=self.dtype, enabled=self.dtype != torch.float32):
            return self.out(global_add_pool(self.norm(self.first(x)).relu(), batch)).float()


@pytest.mark.parametrize("method", ["lrp", "gradient_input", "attn_lrp"])
def test_the_ledger_of_a_recorded_pass_closes_with_a_batch_norm_under_autocast(method):
    model = gx.wrap(Normalised(torch.bfloat16).eval(), kind="regression")
    with warnings.catch_warnings(), recorded_only():
        warnings.simplefilter("error")
        e = gx.explain(model, GRAPHS[0], method)
    assert abs(e.ledger.biases) > 0.1
    assert abs(e.ledger.unexplained) < 0.02 * (abs(e.ledger.biases) + abs(e.relevance).sum())


class MaxPool(nn.Module):
    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.how = nn.Linear(DIM, 4), nn.Linear(4, 1), how

    def forward(self, x, batch):
        h = self.first(x)
        if self.how == "pyg":
            return self.last(global_max_pool(h, batch))
        padded, mask = to_dense_batch(h, batch)
        padded = padded.masked_fill(~mask[..., None], -1e9)
        if self.how == "method":
            return self.last(padded.max(1).values)
        if self.how == "function":
            values, _ = torch.max(padded, dim=1)
            return self.last(values)
        return self.last(-(-padded).min(dim=1, keepdim=True)[0].squeeze(1))


@pytest.mark.parametrize("how", ["method", "function", "minimum"])
@pytest.mark.parametrize("method", ["gradient_input", "lrp", "attn_lrp", "lrp_zplus"])
def test_six_equal_atoms_share_the_relevance_of_their_maximum(how, method):
    benzene = Data(x=torch.ones(6, DIM), edge_index=EDGES)
    explanation = gx.explain(gx.wrap(MaxPool(how).eval(), kind="regression"), benzene, method)
    pooled = gx.explain(gx.wrap(MaxPool("pyg").eval(), kind="regression"), benzene, method)
    assert explanation.relevance == pytest.approx([explanation.relevance[0]] * 6, abs=1e-6)
    assert explanation.relevance == pytest.approx(pooled.relevance, abs=1e-6)
    assert explanation.relevance[0] != 0


@pytest.mark.parametrize("how", ["method", "function", "minimum"])
def test_a_maximum_without_ties_is_explained_as_before(how):
    module = MaxPool(how).eval()
    explanation = gx.explain(gx.wrap(module, kind="regression"), GRAPHS[1], "gradient_input")
    x = GRAPHS[1].x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(module(x, torch.zeros(6).long()).sum(), x)
    expected = (x * gradient).sum(-1).detach().numpy()
    assert explanation.relevance == pytest.approx(expected, abs=1e-6)


class Overwritten(nn.Module):
    """A model that sums nodes into a tensor whose earlier content does not count."""

    def __init__(self, before):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.before = nn.Linear(DIM, 4), nn.Linear(4, 1), before

    def forward(self, x, batch):
        h, graphs = self.first(x), int(batch.max()) + 1
        out = {"zeros": h.new_zeros(graphs, 4), "sevens": h.new_full((graphs, 4), 7.0)}.get(
            self.before, h[:graphs].clone()
        )
        index = batch[:, None].expand(-1, 4)
        return self.last(out.scatter_reduce_(0, index, h, "sum", include_self=False))


@pytest.mark.parametrize("before", ["sevens", "nodes"])
@pytest.mark.parametrize("method", ["lrp_zplus", "lrp", "gradient_input"])
def test_what_a_sum_overwrites_has_no_relevance(before, method):
    explanation = gx.explain(
        gx.wrap(Overwritten(before).eval(), kind="regression"), GRAPHS[1], method
    )
    plain = gx.explain(gx.wrap(Overwritten("zeros").eval(), kind="regression"), GRAPHS[1], method)
    assert explanation.relevance == pytest.approx(plain.relevance, abs=1e-6)


class Exponentials(PairMask):
    """Attention whose softmax is written out, so that large scores overflow."""

    def forward(self, x, batch):
        weights = (self.query(x) @ self.query(x).T).exp() * (batch[:, None] == batch)
        h = x + weights / weights.sum(-1, keepdim=True) @ self.value(x)
        return self.out(h.new_zeros(int(batch.max()) + 1, DIM).index_add(0, batch, h))


class Fused(PairMask):
    """Attention of PyTorch, which multiplies queries and keys before it scales their products."""

    def forward(self, x, batch):
        padded, mask = to_dense_batch(x, batch)
        query, keys = self.query(padded)[:, None], mask[:, None, None]
        h = F.scaled_dot_product_attention(query, query, self.value(padded)[:, None], keys)
        return self.out((h[:, 0] * mask[..., None]).sum(1) * 1e-20)


OTHERS = ("learned", "att_cat", "kernel")  # these are trained, need layers or a process


@pytest.mark.parametrize(("kind", "size"), [(Exponentials, 30.0), (Fused, 1.5e19)])
@pytest.mark.parametrize("method", [name for name in REGISTRY if name not in OTHERS])
def test_a_graph_whose_output_is_no_number_is_refused_by_every_method(method, kind, size):
    module, overflowing = kind().eval(), graph(4)
    overflowing.x = overflowing.x * size
    assert module(overflowing.x, torch.zeros(4, dtype=torch.long)).isnan().all()
    model = gx.wrap(module, kind="regression")
    assert gx.explain(model, GRAPHS[0], method).output  # is a number
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="not a finite number"):
            gx.explain(model, overflowing, method)


class UndefinedSum(nn.Module):
    """A model without an output where the first feature's sum over the nodes is not wanted."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.value, self.out = (nn.Linear(DIM, d) for d in (DIM, DIM, 1))

    def forward(self, x, batch):
        padded, mask = to_dense_batch(x, batch)
        scores = (self.query(padded) @ padded.mT).masked_fill(~mask[:, None], -1e9)
        h = padded + scores.softmax(-1) @ self.value(padded)
        outputs = self.out((h.tanh() * mask[..., None]).sum(1))
        sums = (padded[..., :1] * mask[..., None]).sum(1)  # (B, 1)
        return outputs.masked_fill(self.is_undefined(sums.detach()), torch.nan)

    def is_undefined(self, sums):
        return (sums - 2).abs() < 0.01


class UndefinedBetween(UndefinedSum):
    """A model with outputs for no nodes and for all of a graph's nodes, and nothing between."""

    def is_undefined(self, sums):
        return (sums.abs() > 0.01) & ((sums - 1).abs() > 0.01)


def with_sum(total, nodes=5):
    data = graph(nodes)
    data.x[:, 0] = total / nodes
    return data


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", [name for name in REGISTRY if name not in OTHERS])
def test_an_undefined_output_in_a_list_is_refused_by_every_method(method):
    model = gx.wrap(UndefinedSum().eval(), kind="regression")
    before, after = with_sum(1.0), with_sum(3.0, 4)
    with pytest.raises(NotFiniteError):
        gx.explain(model, with_sum(2.0), method)
    with pytest.raises(NotFiniteError):
        gx.explain(model, [before, with_sum(2.0), after], method, on_error="raise")
    explanations = gx.explain(model, [before, with_sum(2.0), after], method)
    assert [e is None for e in explanations] == [False, True, False]


ELSEWHERE = [  # these ask for outputs of other inputs than the graph
    "integrated_gradients",
    "smoothgrad",
    "occlusion",
    "partnered",
    "shapley_sampling",
    "order_marginals",
    "shares",
    "gnn_explainer",
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", [name for name in REGISTRY if name not in OTHERS])
def test_relevance_from_undefined_outputs_of_other_inputs_is_refused(method):
    model = gx.wrap(UndefinedBetween().eval(), kind="regression")
    if method in ELSEWHERE:
        with pytest.raises(NotFiniteError):
            gx.explain(model, with_sum(1.0), method)
    else:
        assert gx.explain(model, with_sum(1.0), method).output
