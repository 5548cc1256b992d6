"""Occlusion and Shapley values agree with direct loops, and with brute force over subsets."""

from itertools import permutations

import numpy as np
import pytest
import torch
from shapley import batch_of, graph_of, shapley_by_brute_force
from torch_geometric.data import Data

import graphxai as gx
from graphxai.contract import batching
from graphxai.contract.tasks import Task
from graphxai.evaluation.testing import check_batching, check_ledger, check_renumbering
from graphxai.explainers import ShapleySampling, get_explainer
from graphxai.explainers import passes as passes
from graphxai.explainers.orders import gains
from graphxai.models.graphormer import collate
from graphxai.wrapping.removal import outputs_of_parts
from toy import random_graphormer

SMALL = ("CCO", "CC(=O)N", "C1CC1O", "O=S(=O)(N)C", "C")


class Contract:
    """A model with only what an explainer's contract needs."""

    def __init__(self, model):
        self.model, self.config, self.training = model, model.config, False

    def embed(self, batch):
        return self.model.embed(batch)

    def encode(self, tokens, batch, keep=None):
        return self.model.encode(tokens, batch, keep)

    def split_by_feature(self, batch, gradient):
        return None

    def train(self, mode=True):
        return self


@pytest.mark.parametrize("operator", ["mask", "zero"])
def test_a_graph_scores_alike_alone_in_batches_padded_and_renumbered(operator, smiles):
    model = random_graphormer()
    occlusion = get_explainer("occlusion", operator=operator)
    check_batching(model, smiles, occlusion)
    check_renumbering(model, smiles, occlusion)
    partnered = get_explainer("partnered", operator=operator)
    check_batching(model, smiles[:4], partnered)
    check_renumbering(model, smiles[:4], partnered)
    shapley = get_explainer("shapley_sampling", operator=operator, permutations=3)
    check_batching(model, smiles[:4], shapley)
    check_ledger(model, smiles[:4], shapley)


@pytest.mark.parametrize("operator", ["mask", "zero"])
def test_each_part_of_a_graph_runs_once_and_graphs_of_other_sizes_do_not_pad_it(
    operator, monkeypatch
):
    model, shapes = random_graphormer(), []
    encode = type(model).encode

    def noting(self, tokens, *others, **named):
        shapes.append(tuple(tokens.shape[:2]))
        return encode(self, tokens, *others, **named)

    batch = batch_of(model, ["c1ccccc1CCCC", "C", "CCO"])
    monkeypatch.setattr(type(model), "encode", noting)
    monkeypatch.setattr(batching, "CACHED_PAIRS", 11 * 11)
    get_explainer("occlusion", operator=operator).attribute(model, batch)
    # the whole molecule and one part without each of 1, 3 and 10 atoms
    assert sum(rows for rows, _ in shapes) == 2 + 4 + 11
    assert sum(rows * tokens**2 for rows, tokens in shapes) <= 6 * 4**2 + 11 * 11**2
    shapes.clear()
    shapley = get_explainer("shapley_sampling", operator=operator, permutations=2)
    shapley.attribute(model, batch)  # an order and its reverse share nothing but both ends
    assert sum(rows for rows, _ in shapes) == 2 + (4 + 2) + (11 + 9)


def test_occlusion_is_the_loss_without_each_node(smiles):
    model = random_graphormer(tasks=(Task("digit", "multiclass", ("a", "b", "c")),)).double()
    batch = batch_of(model, smiles[2:3])
    n = batch.mask.shape[1]
    with torch.no_grad():
        tokens = model.embed(batch)
        whole = model.encode(tokens, batch)[0]
        for operator in ("mask", "zero"):
            expected = []
            for node in range(n):
                keep, empty = torch.ones(1, n, dtype=torch.bool), tokens.clone()
                keep[0, node], empty[0, node + 1] = False, 0
                hidden, zeroed = model.encode(tokens, batch, keep), model.encode(empty, batch)
                without = hidden if operator == "mask" else zeroed
                expected.append(whole.max() - without[0, whole.argmax()])
            attribution = get_explainer("occlusion", operator=operator).attribute(model, batch)
            torch.testing.assert_close(attribution.relevance[0], torch.stack(expected))
            assert attribution.graph_token.item() == 0


@pytest.mark.parametrize("operator", ["mask", "zero"])
def test_partnered_is_two_thirds_of_the_loss_and_one_third_of_that_beside_the_absent_partner(
    operator,
):
    model = random_graphormer().double()
    explainer = get_explainer("partnered", operator=operator)
    attribution = explainer.attribute(model, batch_of(model, SMALL), "active")
    for row, text in zip(attribution.relevance, SMALL, strict=True):
        graph = graph_of(model, text)

        def f(*absent, graph=graph):
            keep = torch.tensor([[k not in absent for k in range(graph.num_nodes)]])
            return float(outputs_of_parts(model, graph, keep, operator)[0, 0])

        expected = []
        for i in range(graph.num_nodes):
            loss = f() - f(i)
            beside = [f(j) - f(i, j) for j in range(graph.num_nodes) if j != i]
            then = max(beside, key=lambda value: abs(value - loss), default=loss)
            expected.append(2 / 3 * loss + then / 3)
        np.testing.assert_allclose(row[: len(expected)].numpy(), expected, atol=1e-12)


class Gate(torch.nn.Module):
    """Whether there is a first mark, a second one, both or one of them, by the sums of features."""

    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def forward(self, x, edge_index, batch):
        sums = x.new_zeros(int(batch.max()) + 1, x.shape[1]).index_add(0, batch, x)
        a, b = sums[:, :1], sums[:, 1:2]
        return {"xor": a + b - 2 * a * b, "or": a + b - a * b, "and": a * b, "sum": a + b}[
            self.gate
        ]


@pytest.mark.parametrize(
    ("gate", "both", "one"),
    [
        ("xor", (-1 / 3, -1 / 3), (1, 0)),
        ("or", (1 / 3, 1 / 3), (1, 0)),
        ("sum", (1, 1), (1, 0)),
    ],
)
def test_partnered_scores_of_two_marks_are_those_computed_by_hand(gate, both, one):
    model = gx.wrap(Gate(gate), kind="regression")
    marks = {(1, 1): both, (1, 0): one}
    for (_, second), expected in marks.items():
        x = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, second], [0.0, 0.0]])
        edges = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
        e = gx.explain(model, Data(x=x, edge_index=edges), "partnered")
        np.testing.assert_allclose(e.relevance, [expected[0], 0, expected[1], 0], atol=1e-6)
        if second:  # alone, a mark has no partner
            alone = gx.explain(model, Data(x=x, edge_index=edges), "partnered", nodes=[0, 1])
            occlusion = gx.explain(model, Data(x=x, edge_index=edges), "occlusion", nodes=[0, 1])
            np.testing.assert_allclose(alone.relevance, occlusion.relevance, atol=1e-6)


class AllOrders(ShapleySampling):
    """A generator that draws every order once."""

    name = "all orders"

    def random_orders(self, x, number):
        every = torch.tensor(list(permutations(range(len(x)))))
        return every.repeat(number // len(every), 1)


@pytest.mark.parametrize("operator", ["mask", "zero"])
def test_shapley_values_over_all_orders_are_exact(operator):
    model = random_graphormer().double()
    explainer = AllOrders(operator, permutations=120)
    attribution = explainer.attribute(model, batch_of(model, SMALL))
    for row, text in zip(attribution.relevance, SMALL, strict=True):
        graph = graph_of(model, text)
        expected = shapley_by_brute_force(model, graph, operator)
        np.testing.assert_allclose(row[: len(expected)].numpy(), expected, atol=1e-12)


def test_sampled_shapley_values_approach_the_exact_ones():
    model = random_graphormer()
    text = "NC(=O)c1cccs1"
    batch, graph = batch_of(model, [text]), graph_of(model, text)
    assert graph.num_nodes == 8
    expected = shapley_by_brute_force(model, graph, "mask")

    def error(count):
        runs = [get_explainer("shapley_sampling", permutations=count, seed=s) for s in range(4)]
        estimates = [run.attribute(model, batch, "active").relevance[0].numpy() for run in runs]
        return np.sqrt(np.mean((np.stack(estimates) - expected) ** 2))

    few, many = error(8), error(512)
    assert many < few / 4  # the error falls with the root of the number: eightfold
    assert many < 0.02 * np.abs(expected).max()


@pytest.mark.parametrize("permutations", [1, 5, 8])
def test_shapley_values_share_out_what_the_nodes_add(permutations, smiles):
    model = random_graphormer().double()
    batch = batch_of(model, smiles)
    attribution = get_explainer("shapley_sampling", permutations=permutations).attribute(
        model, batch
    )
    none = torch.zeros_like(batch.mask)
    with torch.no_grad():
        tokens = model.embed(batch)
        difference = model.encode(tokens, batch) - model.encode(tokens, batch, none)
    torch.testing.assert_close(attribution.relevance.sum(-1), difference[:, 0])
    assert attribution.unexplained.abs().max() < 1e-12


def test_orders_follow_from_seed_and_graph(smiles):
    model = random_graphormer()
    x = batch_of(model, smiles[2:3]).x[0]
    orders = get_explainer("shapley_sampling", seed=1).random_orders(x)
    assert torch.equal(orders, get_explainer("shapley_sampling", seed=1).random_orders(x))
    assert not torch.equal(orders, get_explainer("shapley_sampling", seed=2).random_orders(x))
    assert torch.equal(orders.sort(-1).values, torch.arange(len(x)).expand(8, -1))
    assert torch.equal(orders[1::2], orders[::2].flip(-1))
    independent = get_explainer("shapley_sampling", antithetic=False).random_orders(x)
    assert not torch.equal(independent[1::2], independent[::2].flip(-1))


@pytest.mark.parametrize("method", ["occlusion", "shapley_sampling", "integrated_gradients"])
def test_results_depend_neither_on_the_size_of_passes_nor_on_a_shared_bias(
    method, smiles, monkeypatch
):
    model = random_graphormer().double()
    batch = batch_of(model, smiles[:4])
    options = {"steps": 9} if method == "integrated_gradients" else {}
    explainer = get_explainer(method, **options)
    expected = explainer.attribute(model, batch).relevance
    bare = explainer.attribute(Contract(model), batch).relevance
    torch.testing.assert_close(bare, expected)
    monkeypatch.setattr(batching, "CACHED_PAIRS", 3 * len(batch) * (batch.mask.shape[1] + 1) ** 2)
    torch.testing.assert_close(explainer.attribute(model, batch).relevance, expected)


def test_settings_that_cannot_be_used_are_named():
    with pytest.raises(ValueError, match="use 'mask' or 'zero'"):
        get_explainer("occlusion", operator="delete")
    with pytest.raises(ValueError, match="operator must be 'mask' or 'zero', not 'cut'"):
        get_explainer("shapley_sampling", operator="cut")
    with pytest.raises(ValueError, match="permutations must be at least 1"):
        get_explainer("shapley_sampling", permutations=0)


def log_odds_by_hand(outputs, explained):
    p = outputs.double().softmax(-1)[:, explained]
    return (p / (1 - p)).log()


@pytest.mark.parametrize("operator", ["mask", "zero"])
def test_own_order_adds_each_nodes_gain_along_the_order_of_the_scores(operator):
    model = random_graphormer(tasks=(Task("digit", "multiclass", ("a", "b", "c")),)).double()
    graph = graph_of(model, "CC(=O)NO")
    attribution = get_explainer("order_marginals", operator=operator, rounds=2, start="occlusion")
    attribution = attribution.attribute(model, collate([graph]), "b")
    first = get_explainer("occlusion").attribute(model, collate([graph]), "b").relevance[0]
    start = first / first.abs().mean()
    scores, found_gains = start, []
    for _ in range(2):
        order = scores.argsort(descending=True)
        keep = torch.zeros(6, 5, dtype=torch.bool)
        for k in range(6):
            keep[k, order[:k]] = True
        values = log_odds_by_hand(outputs_of_parts(model, graph, keep, operator), 1)
        gain = torch.empty(5, dtype=torch.double)
        gain[order] = values[1:] - values[:-1]
        found_gains.append(gain)
        mean = torch.stack(found_gains).mean(0)
        scores = start + mean / mean.abs().mean()
    torch.testing.assert_close(attribution.relevance[0], scores)
    error = (found_gains[0] - found_gains[1]).abs() / 2  # of a mean of two
    torch.testing.assert_close(attribution.spread[0], error / mean.abs().mean())


def test_own_order_scores_alike_alone_in_batches_padded_and_renumbered(smiles):
    model = random_graphormer().double()
    explainer = get_explainer("order_marginals")
    check_batching(model, smiles[2:5], explainer)
    check_renumbering(model, smiles[2:5], explainer)


def test_tied_nodes_share_what_they_add_together():
    scores = torch.tensor([[5.0, 2.0, 1.0, 2.0, 0.0]])  # graph token first; padding last
    mask = torch.tensor([[True, True, True, False]])
    values = torch.tensor([[0.0], [7.0], [4.0], [5.0], [9.0]])  # the first two in either order
    assert gains(values, scores, mask).tolist() == [[2.0, 1.0, 2.0, 0.0]]


def test_own_order_only_runs_forward_from_a_start_without_gradients(monkeypatch):
    model = random_graphormer()
    monkeypatch.setattr(torch.autograd, "grad", None)
    explainer = get_explainer("order_marginals", start="occlusion", rounds=1)
    assert explainer.attribute(model, batch_of(model, ["CCO"])).spread is None


@pytest.mark.parametrize(
    ("options", "message"),
    [({"rounds": 5}, "1 to 4"), ({"start": "nothing"}, "the methods are")],
)
def test_impossible_own_orders_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        get_explainer("order_marginals", **options)


def test_the_spread_of_shapley_values_covers_their_mean_over_many_seeds():
    """Student's t of four pairs of orders has 61 % within one standard error, 86 % within two."""
    model = random_graphormer()
    batch = batch_of(model, ["CC(=O)Nc1ccccc1"])
    attributions = [
        get_explainer("shapley_sampling", seed=s).attribute(model, batch) for s in range(40)
    ]
    scores, spread = (
        torch.cat([getattr(f, n) for f in attributions]) for n in ("relevance", "spread")
    )
    off = (scores - scores.mean(0)).abs() / spread
    assert 0.5 < (off < 1).double().mean() < 0.72
    assert 0.78 < (off < 2).double().mean() < 0.93


def test_without_a_second_sample_there_is_no_spread():
    model = random_graphormer()
    for options in ({"permutations": 2}, {"permutations": 1, "antithetic": False}):
        shapley = get_explainer("shapley_sampling", **options)
        assert shapley.attribute(model, batch_of(model, ["CCO"])).spread is None


def test_a_pass_holds_as_many_variants_as_fit_and_no_more():
    model = random_graphormer()
    batch = batch_of(model, ["CC(=O)Nc1ccccc1", "CCO"])
    pairs_of_a_variant = 2 * 11**2  # two graphs, padded to ten atoms and the graph token
    first, *_, last = passes.in_passes(batch, 1000)
    assert first == slice(0, batching.CACHED_PAIRS // pairs_of_a_variant)
    assert last.stop == 1000
