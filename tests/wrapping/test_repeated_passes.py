"""One model explains batch after batch: what earlier passes have shown must still be true."""

import gc
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GINConv, GPSConv, global_add_pool, global_mean_pool

import graphxai as gx
from graphxai.engine import hooked_plan
from graphxai.engine.replay import own_gradient
from graphxai.engine.request import recorded_only

DIM = 8


def ring(nodes: int, seed: int = 0, scale: float = 1.0) -> Data:
    draw = torch.Generator().manual_seed(seed)
    nodes_in_order = torch.arange(nodes)
    edges = torch.cat(
        [torch.stack([nodes_in_order, nodes_in_order.roll(k)]) for k in (1, -1)], dim=1
    )
    return Data(x=scale * torch.randn(nodes, DIM, generator=draw), edge_index=edges)


class Gps(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        conv = GINConv(nn.Linear(DIM, DIM))
        self.layers = nn.ModuleList(GPSConv(DIM, conv, heads=2, act="gelu") for _ in range(2))
        self.head, self.calls = nn.Linear(DIM, 1), []

    def forward(self, x, edge_index, batch):
        self.calls.append(len(x))
        for layer in self.layers:
            x = layer(x, edge_index, batch)
        return self.head(global_mean_pool(x, batch))


class Function(nn.Module):
    """Two linear maps with a function between them."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.other = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.head, self.between = nn.Linear(DIM, 1), between

    def forward(self, x, edge_index, batch):
        x = self.between(self, self.first(x), edge_index, batch)
        return self.head(global_add_pool(x, batch))


def on_a_value(m, h, edge_index, batch):
    return m.other(h).relu() if float(h.detach().sum()) > 0 else F.gelu(h)


def on_a_list(m, h, edge_index, batch):
    return m.other(h) if sum(map(sum, h.detach().tolist())) > 0 else -h


def as_deep_as_large(m, h, edge_index, batch):
    for _ in range(len(h) % 3 + 1):
        h = h + m.other(h).tanh()
    return h


def as_often_as_neighbours(m, h, edge_index, batch):
    for k in range(int(edge_index[0].bincount().max())):
        h = h * F.silu(m.other(h)) if k else m.other(h)
    return h


def in_place(m, h, edge_index, batch):
    kept = h.clone()
    kept[: len(h) // 2] = m.other(h)[: len(h) // 2]
    return kept.add_(h).relu_()


def attention_by_size(m, h, edge_index, batch):
    in_same_graph = batch[:, None] == batch
    scores = (h @ m.other(h).T).masked_fill(~in_same_graph, -torch.inf)
    return (scores.softmax(-1) if len(h) < 9 else scores.sigmoid()) @ h


def detached_if_small(m, h, edge_index, batch):
    return m.other(h.detach() if len(h) < 9 else h) + h


def through_memory(m, h, edge_index, batch):
    return m.other(h.data if len(h) < 9 else h) + h


def without_gradients_if_small(m, h, edge_index, batch):
    with torch.set_grad_enabled(len(h) >= 9):
        mapped = m.other(h)
    return mapped + h


def slices(m, h, edge_index, batch):
    cut = 2 if len(h) < 9 else 4
    a, b = h[:, :2], h[:, :cut]
    return F.pad(a * b.sigmoid().sum(-1, keepdim=True), (0, DIM - 2)) + m.other(h)


def with_a_hook(m, h, edge_index, batch):
    mapped = m.other(h)
    if len(h) != 4 and mapped.requires_grad:
        mapped.register_hook(lambda gradient: 3 * gradient)
    return mapped.relu()


BETWEEN = [
    on_a_value, on_a_list, as_deep_as_large, as_often_as_neighbours, in_place, attention_by_size,
    detached_if_small, through_memory, without_gradients_if_small, slices,
    with_a_hook,
]  # fmt: skip


def batches():
    star = ring(6, 5)
    star.edge_index = torch.tensor([[0, 0, 0, 0, 0, 1, 2], [1, 2, 3, 4, 5, 0, 0]])
    return [
        [ring(4)], [ring(5, 1, 4.0), ring(3, 2)], [ring(9, 3)], [ring(4, 4, -1.0)], [star],
    ]  # fmt: skip


def same(explanations, expected):
    for explanation, other in zip(explanations, expected, strict=True):
        torch.testing.assert_close(explanation.relevance, other.relevance, rtol=1e-5, atol=1e-6)
        assert explanation.ledger.biases == pytest.approx(other.ledger.biases, abs=1e-5)
        assert explanation.ledger.others == pytest.approx(other.ledger.others, abs=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["lrp", "gradient_input"])
@pytest.mark.parametrize("between", BETWEEN)
def test_control_flow_that_depends_on_data_is_noticed(between, method):
    seen = gx.wrap(Function(between).eval(), kind="regression")
    expected = [
        gx.explain(gx.wrap(Function(between).eval(), kind="regression"), graphs, method)
        for graphs in batches()
    ]
    for _ in range(2 if method == "lrp" else 1):
        for graphs, explanations in zip(batches(), expected, strict=True):
            same(gx.explain(seen, graphs, method), explanations)


def test_the_model_runs_once_for_a_batch_beside_a_graph_without_nodes():
    module = Gps().eval()
    model = gx.wrap(module, kind="regression")
    gx.explain(model, [ring(4), ring(6, 1)])
    module.calls.clear()
    gx.explain(model, [ring(5, 2), ring(3, 3), ring(7, 4)])
    assert module.calls == [15]


def test_the_second_call_for_one_graph_finds_the_plan_of_the_first(monkeypatch):
    model, made = gx.wrap(Gps().eval(), kind="regression"), []
    make = hooked_plan._make_plan
    monkeypatch.setattr(hooked_plan, "_make_plan", lambda *args: made.append(1) or make(*args))
    for _ in range(3):
        gx.explain(model, ring(6))
    assert len(made) == 1


class WithConstants(Gps):
    """Two linear maps, to which edge attributes, a number and a cut-off signal are added."""

    def __init__(self):
        super().__init__()
        self.of_edges = nn.Linear(3, DIM)

    def forward(self, x, edge_index, batch, edge_attr):
        messages = self.of_edges(edge_attr)
        x = x + torch.zeros_like(x).index_add(0, edge_index[1], messages) + 0.5
        return super().forward(x + x.detach().round(), edge_index, batch)


@pytest.mark.parametrize("method", ["lrp", "lrp_ah", "lrp_ln", "gradient_input", "attn_lrp"])
def test_each_graph_of_a_batch_has_the_shares_of_constants_that_it_has_alone(method):
    graphs = [ring(nodes, nodes) for nodes in (4, 7, 5)]
    for graph in graphs:
        graph.edge_attr = torch.randn(graph.num_edges, 3)
        graph.x, graph.edge_attr = graph.x.double(), graph.edge_attr.double()
    model = gx.wrap(WithConstants().double().eval(), kind="regression")
    with recorded_only():
        together = gx.explain(model, graphs, method)
        alone = [gx.explain(model, graph, method) for graph in graphs]
    for explanation, lone in zip(together, alone, strict=True):
        ledger = explanation.ledger
        assert ledger.others.keys() == {"edge_attr", "constants", "cut off"}
        assert ledger.others == pytest.approx(lone.ledger.others, rel=1e-9)
        assert ledger.biases == pytest.approx(lone.ledger.biases, rel=1e-9)
        if method == "lrp":  # relevance is single precision
            assert ledger.unexplained == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("method", ["gradient_input", "lrp_ln"])
def test_a_plan_is_compared_with_a_recorded_pass_only_once(method, monkeypatch):
    model = gx.wrap(Gps().eval(), kind="regression")
    gx.explain(model, [ring(6), ring(4, 1)], method)
    monkeypatch.setattr("graphxai.engine.recorded_pass.record_pass", None)
    again = gx.explain(model, [ring(5, 1), ring(4, 2), ring(7)], method)
    monkeypatch.undo()
    fresh = gx.wrap(Gps().eval(), kind="regression")
    same(again, gx.explain(fresh, [ring(5, 1), ring(4, 2), ring(7)], method))


def replaced(m):
    m.first.weight = nn.Parameter(-m.first.weight.detach())


def written(m):
    with torch.no_grad():
        m.other.weight.mul_(-2)


def swapped(m):
    m.other = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh())


def frozen(m):
    m.requires_grad_(False)


def doubled(m):
    m.double()


@pytest.mark.parametrize("change", [replaced, written, swapped, frozen, doubled])
def test_a_model_that_changed_is_explained_as_it_is(change):
    torch.manual_seed(1)
    module = Function(lambda m, h, *_: h + m.other(h).relu()).eval()
    model = gx.wrap(module, kind="regression")
    gx.explain(model, ring(5))
    change(module)
    again = gx.explain(model, ring(6, 1))
    same([again], [gx.explain(gx.wrap(module, kind="regression"), ring(6, 1))])
    assert again.ledger.unexplained == pytest.approx(0, abs=1e-4)


def test_hooks_that_come_later_take_part():
    module = Function(lambda m, h, *_: m.other(h)).eval()
    model = gx.wrap(module, kind="regression")
    before = gx.explain(model, ring(5))
    module.other.register_forward_hook(lambda m, args, output: 3 * output)
    after = gx.explain(model, ring(5))
    torch.testing.assert_close(after.relevance, 3 * before.relevance)


@pytest.mark.filterwarnings("ignore:Function draws random numbers")
def test_dropout_that_comes_later_is_one_draw():
    module = Function(lambda m, h, *_: F.dropout(m.other(h), 0.5, m.on)).eval()
    module.on = False
    model = gx.wrap(module, kind="regression")
    gx.explain(model, ring(5))
    module.on = True
    drawn = gx.explain(model, ring(5))
    assert drawn.ledger.unexplained == pytest.approx(0, abs=1e-4)


def test_nothing_of_a_batch_is_kept_alive():
    references = []

    def between(m, h, *_):
        references.append(weakref.ref(h))
        return m.other(h).relu()

    model = gx.wrap(Function(between).eval(), kind="regression")
    for seed in range(3):
        gx.explain(model, ring(5, seed))
    gc.collect()
    assert not [reference for reference in references if reference() is not None]


def test_threads_explain_one_model():
    model = gx.wrap(Gps().eval(), kind="regression")
    graphs = [[ring(3 + k, k)] for k in range(4)]
    alone = [gx.explain(gx.wrap(Gps().eval(), kind="regression"), graph) for graph in graphs]
    explanations = [None] * len(graphs)

    def work(k):
        for _ in range(2):
            explanations[k] = gx.explain(model, graphs[k])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(graphs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for explanation, other in zip(explanations, alone, strict=True):
        same(explanation, other)


class _Doubled(torch.autograd.Function):
    """A function that has its own backward pass and keeps a weight for it."""

    @staticmethod
    def forward(ctx, x, weight):
        return 2 * torch.tanh(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def test_what_a_custom_function_does_is_explained_wherever_it_stands():
    module = Function(
        lambda m, h, *_: _Doubled.apply(m.other(_Doubled.apply(h, m.head.weight)), m.head.weight)
    )
    model = gx.wrap(module.eval(), kind="regression")
    for graphs in ([ring(4), ring(6, 1)], [ring(5, 2), ring(3, 3), ring(7, 4)]):
        for explanation in gx.explain(model, graphs):
            assert explanation.ledger.unexplained == pytest.approx(0, abs=1e-5)
            assert not explanation.ledger.others


class WithEdges(nn.Module):
    """A model in which attributes of edges and nodes pass through their own layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.of_edges = nn.Linear(DIM, DIM), nn.Linear(3, DIM)
        self.of_places, self.head = nn.Linear(2, DIM), nn.Linear(2 * DIM, 2)

    def forward(self, x, edge_index, edge_attr, pe, batch):
        h = self.first(x) + self.of_places(pe)
        source, target = edge_index
        messages = (h[source] + self.of_edges(edge_attr).relu()).relu()
        h = torch.cat([h, torch.zeros_like(h).index_add(0, target, messages)], -1)
        return self.head(global_mean_pool(h, batch))


def test_shares_of_each_graph_are_those_that_it_has_alone():
    model = gx.wrap(WithEdges().eval(), kind="multiclass", classes=2)
    for sizes in ((4, 7, 5), (3, 3), (6, 1, 2, 8)):
        graphs = [ring(nodes, nodes) for nodes in sizes]
        for graph in graphs:
            graph.edge_attr = torch.randn(graph.num_edges, 3)
            graph.pe = torch.randn(graph.num_nodes, 2)
        alone = [
            gx.explain(gx.wrap(WithEdges().eval(), kind="multiclass", classes=2), g) for g in graphs
        ]
        for explanation in gx.explain(model, graphs, target=1):
            assert explanation.ledger.others.keys() == {"edge_attr", "pe"}
        same(gx.explain(model, graphs), alone)


def test_rows_that_an_order_by_value_moves_keep_their_graph():
    def sorted_by_value(m, h, edge_index, batch):
        order = h.detach().sum(-1).argsort()
        return m.other(h[order]).relu()[order.argsort()]

    module = Function(sorted_by_value).eval()
    model, graphs = gx.wrap(module, kind="regression"), [ring(4), ring(6, 1, 5.0), ring(5, 2)]
    alone = [gx.explain(model, graph) for graph in graphs]
    same(gx.explain(model, graphs), alone)
    with recorded_only():
        same(gx.explain(model, graphs), alone)


class Recurrent(nn.Module):
    """A recurrent layer over the embeddings of tokens, followed by their mean."""

    def __init__(self, kind, batch_first, both_ways):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(10, DIM)
        settings = {"num_layers": 2, "batch_first": batch_first, "bidirectional": both_ways}
        self.layer = kind(DIM, DIM, **settings)
        self.head = nn.Linear(2 * DIM if both_ways else DIM, 1)

    def forward(self, ids):
        x = self.embed(ids)
        if self.layer.batch_first:
            return self.head(self.layer(x)[0].mean(1))
        return self.head(self.layer(x.transpose(0, 1))[0].mean(0))


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_sequences_of_another_length_are_explained_as_alone(kind, batch_first, both_ways):
    """A recurrent layer splits a longer sequence into more steps than the list has."""
    model = gx.wrap(
        Recurrent(kind, batch_first, both_ways).eval(), kind="regression", inputs="tokens",
        embedding="embed",
    )  # fmt: skip
    sequences = [torch.tensor([1, 2, 3]), torch.tensor([4, 5]), torch.tensor([6, 7, 8, 9])]
    together = gx.explain(model, sequences)
    for sequence, explanation in zip(sequences, together, strict=True):
        alone = gx.explain(model, sequence)
        torch.testing.assert_close(explanation.relevance, alone.relevance, atol=1e-6, rtol=1e-5)
        assert abs(alone.ledger.unexplained) < 1e-6


class InPlace(nn.Module):
    """A model that turns and raises a signal in place."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, 1, bias=False)

    def forward(self, x, edge_index, batch):
        h = self.first(x).T.contiguous()
        h.transpose_(0, 1).pow_(torch.ones(DIM))
        return self.head(global_add_pool(h, batch))


@pytest.mark.filterwarnings("ignore:InPlace has parts that no rule covers")  # `pow`
def test_operations_in_place_whose_other_variant_has_another_name():
    model, graphs = gx.wrap(InPlace().eval(), kind="regression"), [ring(4), ring(5, seed=1)]
    for _ in range(2):
        for graph, explanation in zip(graphs, gx.explain(model, graphs), strict=True):
            with torch.no_grad():
                x = model.module.first(graph.x) @ model.module.head.weight.T
            torch.testing.assert_close(torch.from_numpy(explanation.relevance), x[:, 0])


def test_a_pass_whose_gradient_is_not_autograds_own_is_refused(monkeypatch):
    """A gradient that is said to be autograd's, and is twice it, is not what the pass gives."""
    model = gx.wrap(Function(lambda m, h, *_: F.gelu(m.other(h))).eval(), kind="regression")
    monkeypatch.setattr(
        "graphxai.engine.request.own_gradient", lambda call, rows: 2 * own_gradient(call, rows)
    )
    with pytest.raises(ValueError, match="whose gradient is not autograd's own"):
        gx.explain(model, ring(5), "lrp_zplus")
