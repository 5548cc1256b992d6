"""In graphs of one node, the batch vector tells nodes from graphs."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import AttentionalAggregation, GATConv
from torch_geometric.utils import degree, segment, softmax

import graphxai as gx
from other_models import GpsModel, SparseModel, graph_of


def node(seed, loops=0):
    """Return a graph of one node, with edges from it to itself."""
    draw = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(1, 9, generator=draw),
        edge_index=torch.zeros(2, loops, dtype=torch.long),
        edge_attr=torch.zeros(loops, 3),
    )


class Pooled(nn.Module):
    """A model with a read-out by attention over the nodes of each graph."""

    def __init__(self, body):
        super().__init__()
        torch.manual_seed(6)
        self.body, self.head = body, nn.Linear(16, 1)
        self.pool = AttentionalAggregation(nn.Linear(16, 1))

    def rows(self, x, edge_index, edge_attr, batch):
        body = self.body
        if isinstance(body, GpsModel):
            h = body.embed(x)
            for layer in body.layers:
                h = layer(h, edge_index, batch, edge_attr=edge_attr)
            return h
        h = body.norm(body.first(x, edge_index, edge_attr).relu())
        return body.second(h, edge_index, edge_attr)

    def forward(self, x, edge_index, edge_attr, batch):
        return self.head(self.pool(self.rows(x, edge_index, edge_attr, batch), batch))


class PooledByCopies(Pooled):
    """A model that copies the batch vector on the way, and also weighs the edges of each graph."""

    def forward(self, x, edge_index, edge_attr, batch):
        h, groups = self.rows(x, edge_index, edge_attr, batch), batch.clone().to(torch.long)
        pooled = h.new_zeros(int(groups.max()) + 1, 16)
        weights = softmax(self.pool.gate_nn(h), groups)
        pooled = pooled.index_add(0, groups, weights * h)
        source, target = edge_index
        of_edges = groups[target]
        weights = softmax(self.pool.gate_nn(h[source]), of_edges, num_nodes=len(pooled))
        mixed = torch.zeros_like(pooled).index_add(0, of_edges, weights * h[source])
        return self.head(pooled + mixed)


class PooledByItsOwnIndex(Pooled):
    """A model that computes the batch vector again in one of the ways in `INDICES`."""

    def __init__(self, body, index):
        super().__init__(body)
        self.index = index

    def forward(self, x, edge_index, edge_attr, ptr, batch):
        return self.head(self.pool(self.rows(x, edge_index, edge_attr, batch), self.index(ptr)))


def listed(ptr):
    """Return a batch vector of unknown origin."""
    sizes = ptr.diff().tolist()
    return torch.tensor([graph for graph, size in enumerate(sizes) for _ in range(size)])


INDICES = {
    "differences": lambda ptr: torch.repeat_interleave(ptr[1:] - ptr[:-1]),
    "repeated": lambda ptr: torch.arange(len(ptr) - 1).repeat_interleave(ptr.diff()),
    "buckets": lambda ptr: torch.bucketize(torch.arange(int(ptr[-1])), ptr[1:], right=True),
}


class PooledByPointers(Pooled):
    """A model whose softmax goes by the beginnings of the graphs."""

    def forward(self, x, edge_index, edge_attr, ptr, batch):
        h = self.rows(x, edge_index, edge_attr, batch)
        return self.head(segment(softmax(self.pool.gate_nn(h), ptr=ptr) * h, ptr))


class PooledBySizes(Pooled):
    """A model that counts nodes per graph and rebuilds the batch vector from the counts."""

    def forward(self, x, edge_index, edge_attr, batch):
        sizes = degree(batch, dtype=torch.long)
        groups = torch.arange(len(sizes)).repeat_interleave(sizes)
        return self.head(self.pool(self.rows(x, edge_index, edge_attr, batch), groups))


class ReadAtItsFirstNode(Pooled):
    """A model without pooling that reads its output at the first node of each graph."""

    def forward(self, x, edge_index, edge_attr, ptr, batch):
        return self.head(self.rows(x, edge_index, edge_attr, batch)[ptr[:-1]])


MOLECULE = [graph_of("CC(=O)Nc1ccncc1")]
BODIES = {
    "gps": GpsModel,
    "transformer": SparseModel,
    "gat": lambda: SparseModel("gat"),
}
READ_ATTENTION = ["cam", "grad_cam", "partial_lrp", "att_cat", "rollout", "gae", "attention_last"]


def assert_explained_alone_as_with_others(model, loops=1, methods=READ_ATTENTION):
    nodes = [node(seed, loops) for seed in (7, 8)]
    together = nodes + MOLECULE
    for method in methods:
        alone = [gx.explain(model, graph, method).relevance for graph in together]
        mixed = [explanation.relevance for explanation in gx.explain(model, together, method)]
        of_nodes = [explanation.relevance for explanation in gx.explain(model, nodes, method)]
        for explanation, wanted in zip([*mixed, *of_nodes], [*alone, *alone[:2]], strict=True):
            np.testing.assert_allclose(explanation, wanted, rtol=1e-4, atol=1e-6, err_msg=method)


# A read-out follows a body and knows nothing of it, so not every pair of the two is tried.
@pytest.mark.parametrize(
    ("body", "kind", "loops"),
    [
        ("gps", Pooled, 0),
        ("gps", Pooled, 1),
        ("gps", ReadAtItsFirstNode, 1),
        ("transformer", Pooled, 0),
        ("transformer", PooledByCopies, 1),
        ("gat", Pooled, 1),
        ("gat", PooledByCopies, 1),
        ("gat", ReadAtItsFirstNode, 1),
    ],
)
@pytest.mark.usefixtures("only_relevance", "recorded_once")
def test_a_graph_of_one_node_is_explained_the_same_alone_and_with_others(body, kind, loops):
    model = gx.wrap(kind(BODIES[body]()).eval(), kind="regression")
    assert_explained_alone_as_with_others(model, loops)
    nodes = [node(seed, loops) for seed in (7, 8)]
    together = nodes + MOLECULE
    alone, *_ = gx.pairs(model, nodes[:1], "lrp")
    for batch in (nodes, together):
        first, *_ = gx.pairs(model, batch, "lrp")
        np.testing.assert_allclose(first.by_layer, alone.by_layer, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("body", ["gps", "transformer"])
@pytest.mark.parametrize("kind", [PooledByPointers, PooledBySizes, *INDICES])
@pytest.mark.usefixtures("only_relevance", "recorded_once")
def test_a_batch_vector_computed_from_graph_sizes_names_graphs(body, kind):
    inner = BODIES[body]()
    module = PooledByItsOwnIndex(inner, INDICES[kind]) if kind in INDICES else kind(inner)
    model = gx.wrap(module.eval(), kind="regression")
    assert_explained_alone_as_with_others(model, methods=["cam", "partial_lrp", "gae"])


def test_pooling_by_an_index_of_unknown_origin_is_no_attention_where_every_graph_is_one_node():
    module = PooledByItsOwnIndex(GpsModel(), listed).eval()
    usual = Pooled(GpsModel()).eval()
    usual.load_state_dict(module.state_dict())
    with_own_pooling, plain = (gx.wrap(model, kind="regression") for model in (module, usual))
    nodes = [node(seed, 1) for seed in (7, 8)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for method in ("lrp", "lrp_zplus", "grad_cam", "partial_lrp"):
            for graphs in (nodes, nodes + MOLECULE):
                explanations, wanted = (
                    gx.explain(model, graphs, method) for model in (with_own_pooling, plain)
                )
                for explanation, other in zip(explanations, wanted, strict=True):
                    np.testing.assert_allclose(
                        explanation.relevance, other.relevance, rtol=1e-5, atol=1e-7
                    )


def test_attention_of_edges_that_all_end_at_the_first_node_is_not_pooling():
    class Star(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(9)
            self.conv = GATConv(9, 1, add_self_loops=False)

        def forward(self, x, edge_index, ptr):
            return self.conv(x, edge_index)[ptr[:-1]]

    draw = torch.Generator().manual_seed(10)
    x, edges = torch.randn(3, 9, generator=draw), torch.tensor([[0, 1, 2], [0, 0, 0]])
    module = Star().eval()
    with torch.no_grad():
        _, (_, weights) = module.conv(x, edges, return_attention_weights=True)
    model = gx.wrap(module, kind="regression")
    explanation = gx.explain(model, Data(x=x, edge_index=edges), "attention_last")
    np.testing.assert_allclose(
        explanation.relevance, weights[:, 0] / 3, rtol=1e-5
    )  # one row of three
