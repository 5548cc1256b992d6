"""Marginals along the activation path agree with removing a node from a softmax by hand."""

import math

import numpy as np
import pytest
import torch
from shapley import batch_of
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, MedianAggregation, global_add_pool
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.utils import to_dense_adj, to_dense_batch

import graphxai as gx
from graphxai.contract.model import NoAttentionError, explaining
from graphxai.contract.target import Target
from graphxai.contract.tasks import Task
from graphxai.datasets.molecules import molecule_to_data
from graphxai.engine.presence.run import PresencePlan
from graphxai.evaluation.testing import check_batching, check_renumbering
from graphxai.explainers import get_explainer
from graphxai.explainers.orders import first_nodes
from graphxai.explainers.passes import Embedded
from graphxai.explainers.path_marginals import marginals_of_present, value_and_marginals
from graphxai.rules import conservative as propagation
from graphxai.wrapping.presence import presence_pass
from other_models import GpsModel, SparseModel, encoder, molecules, trained
from toy import random_graphormer

DIGITS = (Task("digit", "multiclass", ("a", "b", "c")),)


@pytest.mark.parametrize("pre_layernorm", [True, False])
def test_marginal_is_what_one_softmax_changes_by_without_the_node(pre_layernorm, monkeypatch):
    model = random_graphormer(pre_layernorm=pre_layernorm, tasks=DIGITS).double()
    batch = batch_of(model, ["CC(=O)NO"])
    start = Embedded.of(model, batch)
    tokens, bias = start.tokens, start.bias
    present = torch.tensor([[True, False, True, True, False]])
    target = Target("b").resolve(model.config, model.encode(tokens, batch))
    _, values = value_and_marginals(start, target.log_odds, present)

    shown = torch.tensor([True, True, False, True, True, False])  # with the graph token
    layers = []

    def softmax(query, key, bias):
        scores = query @ key.transpose(-2, -1) + bias
        layers.append((scores.detach(), scores.masked_fill(~shown, -torch.inf).softmax(-1)))
        return layers[-1][1]

    monkeypatch.setattr(propagation, "softmax_attention", softmax)
    p = model.encode(tokens, batch, bias=bias).softmax(-1)[:, 1]
    gradients = torch.autograd.grad((p / (1 - p)).log().sum(), [weights for _, weights in layers])
    expected = torch.zeros(5, dtype=torch.double)
    for (scores, weights), gradient in zip(layers, gradients, strict=True):
        assert weights.max() < 0.98
        for node in range(5):
            others = shown.clone()
            others[node + 1] ^= True
            other = scores.masked_fill(~others, -torch.inf).softmax(-1)
            gain = weights - other if present[0, node] else other - weights
            expected[node] += (gain * gradient).sum()
    torch.testing.assert_close(values[0], expected, atol=1e-9, rtol=1e-7)


def test_scores_are_equal_alone_in_batches_and_after_renumbering(smiles):
    model = random_graphormer().double()
    check_batching(model, smiles[2:4], get_explainer("path_marginals", rounds=6))
    check_renumbering(model, smiles[2:5], get_explainer("path_marginals", rounds=6))
    both = get_explainer("path_marginals", rounds=6, ends="both")
    check_batching(model, smiles[2:4], both)
    check_renumbering(model, smiles[2:5], both)


class ReadsFirstToken(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = encoder(), torch.nn.Linear(16, 1, dtype=torch.float64)

    def forward(self, x, src_key_padding_mask=None):
        return self.head(self.encoder(x, src_key_padding_mask=src_key_padding_mask)[:, 0])


@pytest.mark.parametrize("seed", [0, 4, 8])  # each gave atoms of these rings unlike scores
def test_atoms_that_are_alike_score_alike_where_attention_tells_none_apart(seed):
    torch.manual_seed(seed)
    model = gx.wrap(GpsModel().eval(), kind="regression")
    rings = [molecule_to_data(smiles) for smiles in ("CC", "C1CC1", "c1ccccc1")]
    for ring in rings:
        ring.update({"x": ring.x.float(), "edge_attr": ring.edge_attr.float()})
    for ring, e in zip(rings, gx.explain(model, rings, "path_marginals"), strict=True):
        assert e.relevance == pytest.approx([e.relevance[0]] * len(e.relevance), abs=1e-4)
        alone = gx.explain(model, ring, "path_marginals")
        assert e.relevance == pytest.approx(alone.relevance, abs=1e-4)


def test_equivalent_nodes_stay_together():
    scores = torch.tensor([[9, 3.0, 1.0, 1.0 + 1e-6, -2.0, 0.0], [0, 1.0, 1.0, 1.0, 0.0, 0.0]])
    mask = torch.tensor([[True] * 4 + [False], [True] * 3 + [False] * 2])
    assert first_nodes(scores, mask, 0.5).tolist() == [
        [True, True, True, False, False],
        [True, True, True, False, False],
    ]
    assert first_nodes(scores, mask, 0.01)[0].tolist() == [True, False, False, False, False]


@pytest.mark.parametrize(("rounds", "ends"), [(4, "first"), (5, "first"), (6, "both")])
def test_it_takes_two_passes_and_one_for_each_round(rounds, ends, smiles, monkeypatch):
    model = random_graphormer()
    batch = batch_of(model, smiles[:3])
    forward, backward, gradients = [], [], torch.autograd.grad
    model.head.register_forward_hook(lambda *_: forward.append(1))
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *a, **o: backward.append(1) or gradients(*a, **o)
    )
    get_explainer("path_marginals", rounds=rounds, ends=ends).attribute(model, batch)
    assert len(forward) == len(backward) == rounds + 2


def test_both_ends_of_the_order_count_alike():
    model = random_graphormer(tasks=(Task("toxic", "binary", ("no", "yes")),)).double()
    batch = batch_of(model, ["CC(O)CNC(=O)OCCl"])  # no two atoms are alike
    path = get_explainer("lrp_path").attribute(model, batch)
    target = Target().resolve(model.config, model(batch).detach())
    embedded = Embedded.of(model, batch)

    def size(scores):
        return scores / scores.abs().mean()

    scores = start = 2 * size(path.relevance[0])
    n, first, rest = len(scores), [], []
    for k in range(3):
        wanted = (0.5 + 0.618 * k) % 1
        order = scores.argsort(descending=True)
        for side, nodes in (
            (first, order[: math.ceil(wanted * n)]),
            (rest, order[math.ceil((1 - wanted) * n) :]),
        ):
            present = torch.zeros(1, n, dtype=torch.bool)
            present[0, nodes] = True
            with explaining(model):
                p = torch.sigmoid(model.encode(embedded.tokens, batch, present))[0, 0].detach()
                of_logit = value_and_marginals(embedded, target, present)[1][0]
            side.append(p * (1 - p) * of_logit)  # those of the probability
        scores = start + size(sum(first)) + size(sum(rest))
    by_both = get_explainer("path_marginals", rounds=6, ends="both").attribute(model, batch)
    torch.testing.assert_close(by_both.relevance[0], scores)
    assert by_both.spread.shape == by_both.relevance.shape
    with pytest.raises(ValueError, match="'first' or 'both'"):
        get_explainer("path_marginals", ends="last")


@pytest.mark.parametrize("module", [GpsModel, SparseModel])
def test_in_wrapped_models_present_nodes_get_what_they_give_through_attention(module):
    graphs = molecules()[:3]
    model = gx.wrap(trained(module(), graphs, steps=3), kind="regression")
    batch = model.collate(graphs)
    present = batch.mask & (torch.arange(batch.mask.shape[1]) % 3 > 0)
    target = Target().resolve(model.config, model(batch).detach())
    with explaining(model):
        values = marginals_of_present(Embedded.of(model, batch), target.log_odds, present)
    assert not values[~present].any()
    for b, graph in enumerate(graphs):
        part = graph.subgraph(present[b, : graph.num_nodes])
        alone = model.collate([part])
        target = Target().resolve(model.config, model(alone).detach())
        with explaining(model):
            expected = marginals_of_present(Embedded.of(model, alone), target.log_odds, alone.mask)
        torch.testing.assert_close(values[b][present[b]], expected[0], atol=1e-5, rtol=1e-4)
        assert expected.abs().max() > 1e-4


def test_a_node_alone_gives_nothing_through_attention_of_any_kind():
    """Linear attention of one node cannot even be told from a product of channels."""
    torch.manual_seed(0)
    for kind in ("multihead", "performer"):
        model = gx.wrap(GpsModel(attn=kind).eval(), kind="regression")
        for graph in map(molecule_to_data, ("C", "CCO")):
            graph.update({"x": graph.x.float(), "edge_attr": graph.edge_attr.float()})
            e = gx.explain(model, graph, "path_marginals")
            path = gx.explain(model, graph, "lrp_path").relevance
            if graph.num_nodes == 1:
                assert e.relevance == pytest.approx(path / abs(path))
            assert abs(e.relevance).sum() > 0


def test_gated_attention_of_a_node_alone_gives_nothing_beside_other_graphs_either():
    """A gate (EGT) leaves a part of all the attention, which does not sum to one."""

    class Gated(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.gate = torch.nn.Linear(3, 8), torch.nn.Linear(1, 1)
            self.head = torch.nn.Linear(8, 1)

        def forward(self, x, edge_index, batch):
            h, mask = to_dense_batch(self.first(x), batch)
            scores = (h @ h.mT).clamp(-5, 5)
            gates = self.gate(to_dense_adj(edge_index, batch)[..., None] + scores[..., None])
            weights = scores.masked_fill(~mask[:, None], -1e9).softmax(-1)
            h = h + (weights * gates.squeeze(-1).sigmoid()) @ h
            return self.head((h * mask[..., None]).sum(1))

    torch.manual_seed(0)
    model = gx.wrap(Gated().eval(), kind="regression")
    rings = [torch.stack([torch.arange(n), (torch.arange(n) + 1) % n]) for n in (3, 5)]
    graphs = [Data(x=torch.randn(int(r.max()) + 1, 3), edge_index=r) for r in rings]
    batch = model.collate([model.prepare(graph).data for graph in graphs])
    target = Target().resolve(model.config, model(batch).detach())
    present = batch.mask.clone()
    present[0, 1:] = False
    with explaining(model):
        values = marginals_of_present(Embedded.of(model, batch), target.log_odds, present)
    assert not values[0].any()
    assert values[1].all()


def test_a_node_alone_with_a_graph_token_still_has_a_marginal():
    model = gx.wrap(ReadsFirstToken(), kind="regression", inputs="tokens", graph_token=True)
    batch = model.collate([Data(dense=torch.randn(4, 16, dtype=torch.float64), num_nodes=3)])
    target = Target().resolve(model.config, model(batch).detach())
    with explaining(model):
        only_second = torch.tensor([[False, True, False]])
        start = Embedded.of(model, batch)
        values = marginals_of_present(start, target.log_odds, only_second)
    assert abs(values[0, 1]) > 1e-4
    assert not values[~only_second].any()


@pytest.mark.parametrize("rounds", [3, 33])
def test_impossible_rounds_are_refused(rounds):
    with pytest.raises(ValueError, match="4 to 32"):
        get_explainer("path_marginals", rounds=rounds)


@pytest.mark.parametrize("wrapped", [False, True])
def test_values_of_lrp_in_this_order_keep_its_ledger(smiles, wrapped):
    model, inputs = random_graphormer().double(), smiles
    if wrapped:
        inputs = molecules()[:2]
        model = gx.wrap(trained(SparseModel(), inputs, steps=3), kind="regression")
    explainer = get_explainer("path_marginals", rounds=4, values="lrp")
    explanations = gx.explain(model, inputs, explainer)
    order = gx.explain(model, inputs, get_explainer("path_marginals", rounds=4))
    for e, by_marginals, lrp in zip(explanations, order, gx.explain(model, inputs), strict=True):
        assert e.ledger.nodes == pytest.approx(lrp.ledger.nodes, abs=1e-5)
        assert e.ledger.unexplained == pytest.approx(lrp.ledger.unexplained, abs=1e-5)
        assert e.additive
        assert e.spread is None
        best = by_marginals.relevance.argmax()
        assert e.relevance[best] == pytest.approx(e.relevance.max())
    check_batching(model, inputs, explainer)


def test_messages_and_pooling_count_in_a_model_without_attention():
    """The sum of all nodes after one layer without activation: every node's marginal is its own."""

    class Sums(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(4, 1, bias=False)

        def forward(self, x, edge_index, batch):
            out = x.new_zeros(int(batch.max()) + 1, x.shape[1]).index_add(0, batch, x)
            return self.head(out)

    graph = Data(x=torch.randn(6, 4), edge_index=torch.tensor([[0, 1], [1, 0]]))
    model = gx.wrap(Sums().eval(), kind="regression")
    e = gx.explain(model, graph, "path_marginals")
    contributions = (graph.x @ model.module.head.weight[0]).detach().numpy()
    assert e.relevance == pytest.approx(3 * contributions / abs(contributions).mean(), rel=1e-4)
    assert e.spread == pytest.approx(0, abs=1e-5)


def test_a_model_that_cannot_leave_nodes_out_is_named():
    class Sorted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.encoder = torch.nn.Linear(16, 1), encoder()
            self.head = torch.nn.Linear(16, 1, dtype=torch.float64)

        def forward(self, x, src_key_padding_mask=None):
            h = self.encoder(x, src_key_padding_mask=src_key_padding_mask)
            return self.head(h.sort(1).values[:, -2:].mean(1))

    model = gx.wrap(Sorted().eval().double(), kind="regression", inputs="tokens")
    with pytest.warns(UserWarning, match=r"\(the model: sort\): write .*; path_marginals measures"):
        gx.explain(model, torch.randn(5, 16, dtype=torch.float64), "path_marginals")


def test_without_attention_it_is_refused_with_what_cannot_be_left_out_and_methods_that_work():
    class Middle(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.pool = torch.nn.Linear(3, 3), MedianAggregation()
            self.head = torch.nn.Linear(3, 1)

        def forward(self, x, batch):
            return self.head(self.pool(self.inner(x), batch))

    model, graph = gx.wrap(Middle().eval(), kind="regression"), Data(x=torch.randn(4, 3))
    with pytest.raises(NoAttentionError, match=r"pool: sort.*no attention.*'occlusion'"):
        gx.explain(model, graph, "path_marginals")
    for method in ("occlusion", "shapley_sampling", "lrp"):
        assert np.isfinite(gx.explain(model, graph, method).relevance).all()


def test_a_sparse_matrix_that_keeps_nodes_from_being_left_out_is_named():
    class Gcn(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = GCNConv(3, 8), torch.nn.Linear(8, 1)

        def forward(self, x, adj_t, batch):
            return self.head(global_add_pool(self.layer(x, adj_t).relu(), batch))

    graph = Data(x=torch.randn(3, 3), edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    model = gx.wrap(Gcn().eval(), kind="regression")
    with pytest.raises(NoAttentionError, match="let it read edge_index instead of adj_t"):
        gx.explain(model, ToSparseTensor()(graph), "path_marginals")


@pytest.mark.parametrize("reads", ["root", "root and pool"])
def test_a_node_that_the_graph_names_is_left_out_as_one_that_the_caller_names(reads):
    class Rooted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = GCNConv(3, 8), GCNConv(8, 8)
            self.head = torch.nn.Linear(8, 1)

        def forward(self, x, edge_index, batch, root_index=None):
            h = self.second(self.first(x, edge_index).tanh(), edge_index)
            if root_index is None:
                return self.head(h)
            if reads == "root":
                return self.head(h[root_index])
            to_root = torch.zeros_like(h).index_add(0, root_index, torch.ones(len(root_index), 8))
            return self.head(global_add_pool(h + to_root, batch))

    torch.manual_seed(0)
    model = gx.wrap(Rooted().eval(), kind="regression")
    ring = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])
    graph = Data(x=torch.randn(5, 3), edge_index=torch.cat([ring, ring.flip(0)], 1))
    named = graph.clone()
    named.root_index = torch.tensor([2])
    batch = model.collate([named, named])
    with explaining(model):
        run = presence_pass(model, batch, model.embed(batch))
        without_root = batch.mask & (torch.arange(5) != 2)
        expected = model.encode(model.embed(batch), batch, without_root).detach()
        outputs = run.outputs(without_root)
    torch.testing.assert_close(outputs, expected, atol=1e-5, rtol=1e-4)
    assert bool(outputs.any()) == (reads == "root and pool")
    if reads == "root":
        together = gx.explain(model, [named, named], "path_marginals")
        expected = gx.explain(model, graph, "path_marginals", node=2).relevance
        for e in together:
            assert e.relevance == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_an_index_of_the_data_set_is_refused_by_its_name():
    class ReadsAll(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = GCNConv(3, 8), torch.nn.Linear(8, 1)

        def forward(self, data):
            h = self.layer(data.x, data.edge_index).relu()
            return self.head(global_add_pool(h, data.batch))

    model = gx.wrap(ReadsAll().eval(), kind="regression")
    graph = Data(x=torch.randn(3, 3), edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    graph.row_index = torch.tensor([5321])
    with pytest.raises(ValueError, match="row_index contains 5321, but there are only 3 nodes"):
        gx.explain(model, graph, "path_marginals")


def test_by_presence_gates_it_takes_at_most_forty_passes(monkeypatch):
    """Count the pass that is recorded, one to compare with, and 19 forward and backward."""
    torch.manual_seed(0)
    model = gx.wrap(GpsModel().eval(), kind="regression")
    graph = molecule_to_data("CC(=O)Oc1ccccc1C(=O)O")
    graph.update({"x": graph.x.float(), "edge_attr": graph.edge_attr.float()})
    batch = model.collate([model.prepare(graph).data])
    explainer = get_explainer("path_marginals")
    with explaining(model):  # the first time, whether graphs may share a pass is found out
        explainer._attribute(model, batch, Target())
    calls, backward = [], []
    model.module.register_forward_hook(lambda *_: calls.append("model"))
    outputs, gradients = PresencePlan.outputs, torch.autograd.grad
    monkeypatch.setattr(PresencePlan, "outputs", lambda *a: calls.append("run") or outputs(*a))
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *a, **o: backward.append(1) or gradients(*a, **o)
    )
    with explaining(model):
        explainer._attribute(model, batch, Target())
    assert calls.count("model") == 2
    assert 17 <= calls.count("run") == len(backward) <= 19  # a coalition may come again
