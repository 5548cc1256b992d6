"""If nodes of a wrapped model are hidden, every attribute of a graph follows what it belongs to."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.explain import Explainer
from torch_geometric.nn import GCNConv, TransformerConv, global_mean_pool
from torch_geometric.utils import to_dense_batch

import graphxai as gx
import graphxai.explainers.pyg
from graphxai.evaluation.testing import check_batching
from graphxai.explainers.heads import head_statistics
from graphxai.wrapping.attribute_roles import attribute_roles
from graphxai.wrapping.removal import outputs_of_parts
from graphxai.wrapping.subgraphs import restricted
from small_graphs import SIZES, graph, random, started, wrapped

# -- by hand -----------------------------------------------------------------------------------


def renumbered(index: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Return the entries (2, M) among the nodes that stay, renumbered, and which they are."""
    new = {old: i for i, old in enumerate(keep.nonzero()[:, 0].tolist())}
    inside = [m for m, pair in enumerate(index.T.tolist()) if all(v in new for v in pair)]
    columns = [[new[v] for v in index[:, m].tolist()] for m in inside]
    return torch.tensor(columns, dtype=torch.long).reshape(-1, 2).T, torch.tensor(inside).long()


class Expander(nn.Module):
    """Messages along the bonds, and along a second index that has its own attributes."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.first = TransformerConv(8, 4, heads=2)
        self.second = TransformerConv(8, 4, heads=2, edge_dim=3)
        self.of_pairs, self.head = nn.Linear(1, 8), nn.Linear(8, 1)

    def forward(
        self,
        x,
        edge_index,
        expander_edge_index,
        expander_edge_attr,
        pair_index,
        pair_dist,
        u,
        batch,
    ):
        h = self.embed(x)
        h = h + self.first(h, edge_index)
        h = h + self.second(h, expander_edge_index, expander_edge_attr)
        source, target = pair_index
        h = h.index_add(0, target, (h[source] * self.of_pairs(pair_dist[:, None])).tanh())
        return self.head(global_mean_pool(h, batch) + u)


def with_indices(n: int) -> Data:
    data = graph(n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    ring = torch.stack([order, order.roll(1)])
    data.expander_edge_index = torch.cat([ring, ring.flip(0)], 1)
    data.expander_edge_attr = random(2 * n, 3, seed=n)
    data.pair_index = torch.tensor(list(itertools.permutations(range(n), 2))).T
    data.pair_dist = random(n * (n - 1), seed=n)
    data.u = random(1, 8, seed=n)
    return data


def expander_of(model: nn.Module, data: Data, keep: Tensor) -> float:
    edges, _ = renumbered(data.edge_index, keep)
    expander, of_expander = renumbered(data.expander_edge_index, keep)
    pairs, of_pairs = renumbered(data.pair_index, keep)
    zeros = torch.zeros(int(keep.sum()), dtype=torch.long)
    attributes = data.expander_edge_attr[of_expander], pairs, data.pair_dist[of_pairs], data.u
    with torch.no_grad():
        return model(data.x[keep], edges, expander, *attributes, zeros).item()


def occluded(output, n: int) -> list[float]:
    whole = torch.ones(n, dtype=torch.bool)
    return [output(whole) - output(torch.arange(n) != i) for i in range(n)]


@pytest.fixture(scope="module")
def expander() -> nn.Module:
    return started(Expander())


@pytest.fixture(scope="module")
def graphs() -> list[Data]:
    return [with_indices(n) for n in SIZES]


def test_occlusion_renumbers_every_index_and_cuts_what_belongs_to_it(expander, graphs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        together = gx.explain(wrapped(expander), graphs, "occlusion")
        alone = [gx.explain(wrapped(expander), data, "occlusion") for data in graphs]
    for data, explanation, other in zip(graphs, together, alone, strict=True):
        expected = occluded(lambda keep, d=data: expander_of(expander, d, keep), len(data.x))
        assert np.allclose(explanation.relevance, expected, atol=1e-5)
        assert np.allclose(other.relevance, expected, atol=1e-5)


def test_shapley_values_sum_to_what_hiding_all_nodes_costs(expander, graphs):
    for data in graphs:
        explanation = gx.explain(wrapped(expander), data, "shapley_sampling")
        assert explanation.ledger.unexplained == pytest.approx(0, abs=1e-5)


def test_shapley_values_of_a_small_graph_are_near_those_over_all_orders(expander):
    data = with_indices(3)
    explanation = gx.explain(wrapped(expander), data, "shapley_sampling", permutations=400)
    choices = [c for k in range(4) for c in itertools.combinations(range(3), k)]
    keep = torch.tensor([[i in c for i in range(3)] for c in choices])
    with torch.no_grad():
        empty = expander.head(data.u).item()  # the mean over no nodes is zero
    outputs = {
        c: expander_of(expander, data, k) if c else empty
        for c, k in zip(choices, keep, strict=True)
    }
    for i in range(3):
        value = 0.0
        for choice in (c for c in choices if i not in c):
            weight = math.factorial(len(choice)) * math.factorial(2 - len(choice)) / 6
            value += weight * (outputs[tuple(sorted((*choice, i)))] - outputs[choice])
        assert explanation.relevance[i] == pytest.approx(value, abs=0.1 * abs(value) + 0.03)


def test_evaluation_measures_the_parts_of_the_graph(expander, graphs):
    model = wrapped(expander)
    keep = torch.rand(6, 8, generator=torch.Generator().manual_seed(3)) > 0.4
    for operator in ("mask", "delete"):
        outputs = outputs_of_parts(model, graphs[1], keep, operator)
        expected = [expander_of(expander, graphs[1], choice) for choice in keep]
        assert outputs[:, 0].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("method", ["occlusion", "shapley_sampling", "lrp_path", "lrp"])
def test_a_graph_in_a_batch_is_explained_as_alone(expander, graphs, method):
    check_batching(wrapped(expander), graphs, gx.explainers.get_explainer(method))


@pytest.mark.parametrize("method", ["lrp", "occlusion", "integrated_gradients"])
def test_pygs_explainer_splits_a_batch_with_all_its_indices(expander, graphs, method):
    batch = Batch.from_data_list(graphs)
    names = ("expander_edge_index", "expander_edge_attr", "pair_index", "pair_dist", "u", "batch")
    explainer = Explainer(
        expander,
        graphxai.explainers.pyg.Algorithm(method),
        explanation_type="model",
        node_mask_type="object",
        model_config={"mode": "regression", "task_level": "graph", "return_type": "raw"},
    )
    explanation = explainer(batch.x, batch.edge_index, **{name: batch[name] for name in names})
    explanations = gx.explain(wrapped(expander), graphs, method)
    expected = np.concatenate([e.relevance for e in explanations])
    assert np.allclose(explanation.node_mask[:, 0], expected, atol=1e-5)


# -- matrices over pairs -----------------------------------------------------------------------


class Dense(nn.Module):
    """Attention with a bias for each pair of nodes, of one graph at a time."""

    def __init__(self, name: str):
        super().__init__()
        self.name = name
        self.q, self.k, self.v = (nn.Linear(6, 6) for _ in range(3))
        self.head = nn.Linear(6, 1)

    def forward(self, data):
        x = data.x
        scores = self.q(x) @ self.k(x).T + data[self.name]
        return self.head((scores.softmax(-1) @ self.v(x)).sum(0, keepdim=True))


def test_rows_and_columns_of_a_matrix_over_pairs_go_with_a_node():
    model = started(Dense("attn_bias"))
    graphs = [graph(n) for n in SIZES]
    for n, data in zip(SIZES, graphs, strict=True):
        data.attn_bias = random(n, n, seed=n)

    def output(data, keep):
        part = Data(x=data.x[keep], attn_bias=data.attn_bias[keep][:, keep])
        with torch.no_grad():
            return model(part).item()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*matrices of pairs.*passes instead of")
        explanations = gx.explain(wrapped(model), graphs, "occlusion")
        paths = gx.explain(wrapped(model), graphs, "integrated_gradients")
    for data, explanation, path in zip(graphs, explanations, paths, strict=True):
        expected = occluded(lambda keep, d=data: output(d, keep), len(data.x))
        assert np.allclose(explanation.relevance, expected, atol=1e-5)
        assert path.ledger.unexplained == pytest.approx(0, abs=1e-4)


def test_the_output_without_nodes_is_that_of_the_model_on_an_empty_graph():
    model, graphs = started(Expander()), [with_indices(n) for n in SIZES]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explanations = gx.explain(wrapped(model), graphs)
    none = torch.zeros(1, max(SIZES), dtype=torch.bool)
    for data, e in zip(graphs, explanations, strict=True):
        expected = outputs_of_parts(wrapped(model), data, none[:, : len(e)], "mask")
        assert e.without_nodes == pytest.approx(expected.item(), abs=1e-5)  # u stays


class Alone(nn.Module):
    """A model that takes one graph, and no batch vector."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = TransformerConv(6, 8), nn.Linear(8, 1)

    def forward(self, x, edge_index):
        return self.head(self.conv(x, edge_index).tanh().mean(0, keepdim=True))


def test_a_model_of_one_graph_is_given_one_at_a_time():
    model, graphs = started(Alone()), [graph(n) for n in SIZES]

    def output(data, keep):
        with torch.no_grad():
            return model(data.x[keep], renumbered(data.edge_index, keep)[0]).item()

    for data, explanation in zip(
        graphs, gx.explain(wrapped(model), graphs, "occlusion"), strict=True
    ):
        expected = occluded(lambda keep, d=data: output(d, keep), len(data.x))
        assert np.allclose(explanation.relevance, expected, atol=1e-5)
    for explanation in gx.explain(wrapped(model), graphs, "integrated_gradients"):
        assert explanation.ledger.unexplained == pytest.approx(0, abs=1e-4)
        assert explanation.without_nodes is None  # the mean over no nodes is not finite
        assert "without" not in explanation.caption + str(explanation.ledger)
    assert head_statistics(wrapped(model), graphs).rows == sum(SIZES)
    pairs = gx.pairs(wrapped(model), graphs)
    assert [p.by_layer.shape[-1] for p in pairs] == [n + 1 for n in SIZES]
    with pytest.warns(UserWarning, match="no finite output for a graph without nodes"):
        explanation = gx.explain(wrapped(model), graphs[0], "shapley_sampling")
    with torch.no_grad():
        at_zero = model(torch.zeros(5, 6), graphs[0].edge_index).item()
    assert explanation.ledger.biases == pytest.approx(at_zero, abs=1e-6)
    assert explanation.ledger.unexplained == pytest.approx(0, abs=1e-5)


@pytest.mark.filterwarnings("ignore:Alone has no finite output for a graph without nodes")
def test_a_model_of_one_graph_is_evaluated():
    model, graphs = started(Alone()), [graph(n) for n in SIZES]
    assert not gx.evaluate(wrapped(model), graphs, ["lrp", "rollout"], steps=3).failures


def test_a_matrix_whose_name_says_nothing_is_named():
    model, data = started(Dense("thing")), graph(5)
    data.thing = random(5, 5)
    with pytest.warns(UserWarning, match="thing: it is treated as a matrix over pairs of nodes"):
        gx.explain(wrapped(model), data, "occlusion")


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = GCNConv(6, 8, normalize=False), nn.Linear(8, 1)

    def forward(self, x, adj_t, batch):
        return self.head(global_mean_pool(self.conv(x, adj_t).tanh(), batch))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_adjacency_loses_rows_and_columns(layout):
    model, graphs = started(Sparse()), []
    for n in SIZES:
        dense = torch.zeros(n, n)
        dense[tuple(graph(n).edge_index)] = 1.0
        graphs.append(Data(x=graph(n).x, adj_t=dense.to_sparse(layout=layout)))

    def output(data, keep):
        kept_adjacency = data.adj_t.to_dense()[keep][:, keep].to_sparse(layout=layout)
        with torch.no_grad():
            return model(data.x[keep], kept_adjacency, torch.zeros(int(keep.sum())).long()).item()

    explanations = gx.explain(wrapped(model), graphs, "occlusion")
    for data, explanation in zip(graphs, explanations, strict=True):
        expected = occluded(lambda keep, d=data: output(d, keep), len(data.x))
        assert np.allclose(explanation.relevance, expected, atol=1e-5)
    as_batch = gx.explain(wrapped(model), Batch.from_data_list(graphs), "occlusion")
    for explanation, of_batch in zip(explanations, as_batch, strict=True):
        assert np.allclose(explanation.relevance, of_batch.relevance, atol=1e-6)
    batch = wrapped(model).collate(graphs)
    with_edges = [graph(n) for n in SIZES]
    for distance, data in zip(batch.distances(), with_edges, strict=True):
        assert np.array_equal(distance, wrapped(model).collate([data]).distances()[0].T)


# -- what belongs to what ----------------------------------------------------------------------


def test_what_belongs_to_the_graph_stays_whole_even_with_one_node_or_edge():
    data = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]), u=torch.ones(1, 4))
    data.y, data.edge_attr = torch.ones(1), torch.ones(1, 2)
    rest = restricted(data, torch.tensor([True, False]))
    assert rest.u.shape == (1, 4)
    assert rest.y.shape == (1,)
    assert rest.edge_attr.shape == (0, 2)
    alone = Data(x=torch.ones(1, 3), edge_index=torch.empty(2, 0).long(), u=torch.ones(1, 4))
    assert restricted(alone, torch.tensor([False])).u.shape == (1, 4)


def test_lengths_in_other_graphs_show_what_one_graph_cannot():
    small, large = graph(4), graph(6)
    for data in (small, large):
        data.weight = torch.ones(data.num_nodes)
    count = small.num_edges
    small.path_index, small.label_of = torch.zeros(2, 4).long(), torch.ones(4)
    large.path_index, large.label_of = torch.zeros(2, 3).long(), torch.ones(3)
    assert count != 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        roles = attribute_roles([small, large])
    assert roles["label_of"].along == "path_index"
    assert roles["weight"].along == "nodes"
    with pytest.warns(UserWarning, match="label_of: as long as nodes and path_index"):
        attribute_roles([small])


def test_an_index_of_edges_follows_the_edges():
    class WithAngles(Data):
        def __inc__(self, key, value, *args, **kwargs):
            if key == "angle_index":
                return self.num_edges
            return super().__inc__(key, value, *args, **kwargs)

    data = WithAngles(x=torch.ones(4, 1), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
    data.edge_attr = torch.arange(4.0)
    data.angle_index = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
    data.angle_value = torch.arange(5.0)
    rest = restricted(data, torch.tensor([False, True, True, True]))  # edges 1 -> 2 and 2 -> 3 stay
    assert rest.edge_index.tolist() == [[0, 1], [1, 2]]
    assert rest.edge_attr.tolist() == [1.0, 2.0]
    assert rest.angle_index.tolist() == [[0], [1]]
    assert rest.angle_value.tolist() == [1.0]


def test_the_columns_of_an_index_lose_the_same_entries():
    data = graph(5)
    data.tail_index, data.head_index = torch.tensor([0, 1, 2]), torch.tensor([1, 4, 3])
    data.pair_kind = torch.tensor([7, 8, 9])
    rest = restricted(data, torch.tensor([True, True, True, True, False]))
    assert rest.tail_index.tolist() == [0, 2]
    assert rest.head_index.tolist() == [1, 3]
    assert rest.pair_kind.tolist() == [7, 9]


def test_numbers_that_may_belong_to_nodes_are_named():
    data = graph(5)
    data.bridges = torch.tensor([[0, 1], [2, 3], [1, 4]])
    with pytest.warns(UserWarning, match="bridges: its numbers may refer to nodes"):
        restricted(data, torch.arange(5) > 0)


def test_an_index_beyond_the_nodes_is_refused():
    data = graph(5)
    data.code_index = torch.tensor([0, 9])
    with pytest.raises(ValueError, match="code_index contains 9, but there are only 5 nodes"):
        restricted(data, torch.arange(5) > 0)


def test_a_node_entry_that_points_to_a_hidden_node_is_named():
    data = graph(4)
    data.parent_index = torch.tensor([0, 0, 1, 2])
    with pytest.warns(UserWarning, match="parent_index has one entry per node"):
        rest = restricted(data, torch.tensor([True, False, True, True]))
    assert rest.parent_index.tolist() == [0, 1, 1]


# -- nothing left ------------------------------------------------------------------------------


class MeanOverNodes(nn.Module):
    """A model whose mean over no nodes is NaN."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x, edge_index, batch):
        h, mask = to_dense_batch(self.embed(x).tanh(), batch)
        return self.head((h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


@pytest.mark.parametrize("method", ["occlusion", "shapley_sampling"])
def test_an_empty_graph_gives_zeros_with_a_warning(method):
    model, graphs = wrapped(started(MeanOverNodes())), [graph(5), graph(1)]
    with pytest.warns(UserWarning, match="were set to zero"):
        together = gx.explain(model, graphs, method)
    with torch.no_grad():
        h = model.module.embed(graphs[1].x).tanh()
        nothing = model.module.embed(torch.zeros(1, 6)).tanh()
        expected = ((h - nothing) @ model.module.head.weight.T).item()
    assert together[1].relevance[0] == pytest.approx(expected, abs=1e-5)
    assert np.isfinite(together[0].relevance).all()


def test_curves_of_a_model_that_is_undefined_on_the_empty_graph():
    model = wrapped(started(MeanOverNodes()))
    for operator in ("mask", "delete"):
        with pytest.warns(UserWarning, match="were set to zero"):
            report = gx.evaluate(model, [graph(5), graph(8)], ["lrp"], operators=operator)
        assert np.isfinite(report.rows["value"]).all()


class OwnMatrix(nn.Module):
    """A model that reads a matrix over pairs of nodes, which PyG cannot batch."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 1)

    def forward(self, x, edge_index, dist, batch):
        return self.head(global_mean_pool((1.0 + dist.float()).softmax(-1) @ x, batch))


def test_matrices_of_single_nodes_keep_them_apart_too():
    model = wrapped(started(OwnMatrix()))
    graphs = [graph(1), graph(1)]
    graphs[1].x = graphs[0].x.flip(1)
    for data in graphs:
        data.dist, data.tag = torch.zeros(1, 1), ["C"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message=".*matrices of pairs.*passes instead of")
        together = gx.explain(model, graphs, "lrp")
        for explanation, data in zip(together, graphs, strict=True):
            wanted = gx.explain(model, data, "lrp")
            assert explanation.output == pytest.approx(wanted.output)
            np.testing.assert_allclose(explanation.relevance, wanted.relevance, rtol=1e-5)


def test_graphs_with_matrices_are_deleted_from_one_at_a_time():
    model, graphs = wrapped(started(OwnMatrix())), [graph(3), graph(4)]
    for data in graphs:
        steps = torch.arange(data.num_nodes)
        data.dist = (steps[:, None] - steps).abs().float()
    keep = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    outputs = outputs_of_parts(model, graphs[0], keep, "delete")
    for row, stays in zip(outputs, keep, strict=True):
        wanted = gx.explain(model, restricted(graphs[0], stays), "gradient_input").output
        assert row.item() == pytest.approx(wanted, rel=1e-5)
    result = gx.evaluate(model, graphs, ["lrp"], operators="delete", progress=False)
    assert {"auac", "au_mse"} <= set(result.rows["metric"])


def test_graphs_may_have_attributes_that_others_lack():
    model = wrapped(started(MeanOverNodes()))
    for labelled in (0, 1):
        graphs = [graph(5), graph(8)]
        graphs[labelled].y = torch.ones(1)
        for explanation, data in zip(gx.explain(model, graphs, "lrp"), graphs, strict=True):
            wanted = gx.explain(model, data, "lrp").relevance
            np.testing.assert_allclose(explanation.relevance, wanted, rtol=1e-4, atol=1e-6)


# -- what a module keeps -----------------------------------------------------------------------


class KeepsItsMean(nn.Module):
    """A module that goes on averaging in eval mode, and keeps a table from its first pass."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head, self.tables = nn.Linear(3, 8), nn.Linear(8, 1), {}
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x, edge_index, batch):
        if "scale" not in self.tables:
            self.tables["scale"] = torch.linspace(0.5, 1.5, 8)
        h = self.embed(x).tanh() * self.tables["scale"]
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * h.mean(0))
        graphs = int(batch.max()) + 1 if len(batch) else 1
        return self.head(h.new_zeros(graphs, 8).index_add(0, batch, h - self.mean))


@pytest.mark.parametrize("method", ["lrp", "occlusion", "shapley_sampling"])
def test_a_graph_without_nodes_leaves_a_running_mean_finite(method):
    torch.manual_seed(0)
    module = KeepsItsMean().eval()
    data = Data(x=torch.randn(4, 3), edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gx.explain(gx.wrap(module, kind="regression"), data, method)
    assert module.mean.isfinite().all()
    assert module(data.x, data.edge_index, torch.zeros(4, dtype=torch.long)).isfinite().all()


def test_after_a_prediction_a_module_that_keeps_tensors_is_explained_and_trained():
    torch.manual_seed(0)
    module = KeepsItsMean().eval()
    data = Data(x=torch.randn(4, 3), edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = gx.wrap(module, kind="regression")
        gx.predict(model, data)
        assert np.isfinite(gx.explain(model, data, "gradient_input").relevance).all()
    module.train()(data.x, data.edge_index, torch.zeros(4, dtype=torch.long)).sum().backward()
    assert module.embed.weight.grad.isfinite().all()


class DenseAttention(nn.Module):
    """Attention over a padded batch, in which a graph without nodes is a row of masked keys."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.query, self.value = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x, edge_index, batch):
        h, mask = to_dense_batch(self.embed(x), batch)
        logits = self.query(h) @ h.transpose(1, 2)
        h = h + logits.masked_fill(~mask[:, None], -torch.inf).softmax(-1) @ self.value(h)
        return self.head(global_mean_pool(h[mask], batch))


@pytest.mark.parametrize("method", ["lrp_ah", "gradient_input", "lrp"])
def test_a_ledger_does_not_depend_on_what_was_explained_before(method):
    """The gradient beside a graph without nodes is not finite, which a list does not show."""
    torch.manual_seed(0)
    graphs = [Data(x=torch.randn(n, 3), edge_index=torch.tensor([[0, 1], [1, 2]])) for n in (4, 6)]
    model = gx.wrap(DenseAttention().eval(), kind="regression")
    in_a_list = gx.explain(model, graphs, method)[0].ledger
    alone = gx.explain(model, graphs[0], method).ledger
    assert alone.biases == pytest.approx(in_a_list.biases, abs=1e-5)
    assert alone.biases != 0
