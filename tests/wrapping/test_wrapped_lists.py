"""If one graph of a list cannot be used, the others keep their results."""

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, global_mean_pool

import graphxai as gx
from graphxai.contract.inputs import InputError
from graphxai.explanation.pairs import Pairs

EDGES = torch.tensor([[0, 1, 2], [1, 0, 0]])


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attention, self.last = GATConv(8, 3), nn.Linear(3, 1)

    def forward(self, x, edge_index, batch, edge_attr=None):
        h = self.attention(x, edge_index).relu()
        if edge_attr is not None:
            h = h + edge_attr.sum()
        return self.last(global_mean_pool(h, batch))


def good(nodes: int) -> Data:
    draw = torch.Generator().manual_seed(nodes)
    return Data(x=torch.randn(nodes, 8, generator=draw), edge_index=EDGES)


def infinite() -> Data:
    graph = good(5)
    graph.x[2, 3] = torch.inf
    return graph


BAD = {
    "another width": (lambda: Data(x=torch.ones(5, 6), edge_index=EDGES), "6 columns"),
    "no edges": (lambda: Data(x=torch.ones(5, 8)), "needs 'edge_index', which the graph does not"),
    "one axis": (lambda: Data(x=torch.ones(5), edge_index=EDGES), r"shape \(5,\); it needs"),
    "more nodes": (lambda: Data(x=torch.ones(5, 8), edge_index=EDGES, num_nodes=7), "5 rows for"),
    "fewer nodes": (lambda: Data(x=torch.ones(5, 8), edge_index=EDGES, num_nodes=3), "5 rows for"),
    "infinite": (infinite, "not finite"),
    "a batch of its own": (
        lambda: Data(x=torch.ones(5, 8), edge_index=EDGES, batch=torch.tensor([0, 0, 1, 1, 1])),
        "its attribute `batch` names 2 graphs",
    ),
    "sparse": (lambda: Data(x=torch.ones(5, 8).to_sparse(), edge_index=EDGES), "to_dense"),
}
CALLS = {
    "explain": lambda model, graphs, **options: gx.explain(model, graphs, **options),
    "occlusion": lambda model, graphs, **options: gx.explain(model, graphs, "occlusion", **options),
    "predict": lambda model, graphs, **options: gx.predict(model, graphs, **options),
    "pairs": lambda model, graphs, **options: gx.pairs(model, graphs, **options),
}


def numbers(result) -> list[float]:
    if isinstance(result, dict):
        return [result["output"].value]
    if isinstance(result, Pairs):
        return result.matrix.ravel().tolist()
    return list(result.relevance)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("call", CALLS)
def test_a_graph_that_cannot_be_used_costs_only_its_own_result(call, bad):
    model = gx.wrap(Pooled().eval(), kind="regression")
    make, message = BAD[bad]
    with pytest.warns(UserWarning, match=f"input 1 was left out: .*{message}"):
        results = CALLS[call](model, [good(4), make(), good(6)])
    assert results[1] is None
    for k, nodes in ((0, 4), (2, 6)):
        alone = CALLS[call](model, good(nodes))
        assert numbers(results[k]) == pytest.approx(numbers(alone), abs=1e-6)


@pytest.mark.parametrize("call", CALLS)
def test_a_list_that_must_be_whole_raises_the_error(call):
    model = gx.wrap(Pooled().eval(), kind="regression")
    graphs = [good(4), Data(x=torch.ones(5, 6), edge_index=EDGES)]
    with pytest.raises(InputError, match="6 columns, and Pooled takes 8"):
        CALLS[call](model, graphs, on_error="raise")


def test_a_graph_with_a_batch_of_its_own_is_not_taken_for_one_by_any_door():
    model = gx.wrap(Pooled().eval(), kind="regression")
    several, _ = BAD["a batch of its own"]
    for call in (*CALLS.values(), gx.evaluate):
        with pytest.raises(ValueError, match="its attribute `batch` names 2 graphs"):
            call(model, several() if call is not gx.evaluate else [several()])
    one = good(5)
    one.batch = torch.ones(5, dtype=torch.long)
    assert gx.predict(model, one) == gx.predict(model, good(5))


def test_an_error_of_every_graph_is_raised():
    model = gx.wrap(Pooled().eval(), kind="regression")
    with pytest.raises(ValueError, match="no class"):
        gx.explain(model, [good(4), good(5)], target="toxic")


def test_a_counterfactual_search_leaves_out_a_graph_that_cannot_be_used():
    model = gx.wrap(Pooled().eval(), kind="binary")
    bad = Data(x=torch.ones(5, 6), edge_index=EDGES)
    with pytest.warns(UserWarning, match="input 1 was left out: x of the input has 6 columns"):
        first, second, third = gx.counterfactual_set(model, [good(4), bad, good(6)])
    assert second is None
    assert first.members == gx.counterfactual_set(model, good(4)).members
    assert third.members == gx.counterfactual_set(model, good(6)).members


def test_a_graph_without_features_of_edges_takes_them_from_no_other():
    model = gx.wrap(Pooled().eval(), kind="regression")
    with_features = good(4)
    with_features.edge_attr = torch.ones(3, 2)
    together = gx.predict(model, [with_features, good(6)])
    alone = [gx.predict(model, graph) for graph in (with_features, good(6))]
    assert [r["output"].value for r in together] == pytest.approx(
        [r["output"].value for r in alone], abs=1e-6
    )
