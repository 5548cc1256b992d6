"""Marginals by presence gates, against removing one node at a coalition."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import (
    GATConv,
    GCNConv,
    GINConv,
    GINEConv,
    GPSConv,
    MessagePassing,
    PNAConv,
    ResGatedGraphConv,
    SAGEConv,
    TopKPooling,
    TransformerConv,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)
from torch_geometric.nn.aggr import AttentionalAggregation
from torch_geometric.nn.norm import GraphNorm
from torch_geometric.utils import softmax, to_dense_adj

import graphxai as gx
from graphxai.contract.target import ResolvedTarget, Target
from graphxai.evaluation.testing import check_batching, check_renumbering
from graphxai.wrapping.chosen import mark_explained
from graphxai.wrapping.presence import NotGated, PresencePass, presence_pass

DIM = 6
RING = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 0, 3, 4], [1, 0, 2, 1, 3, 2, 0, 3, 4, 3]])


def graph(nodes: int, seed: int) -> Data:
    """Return a ring of four nodes with a tail."""
    generator = torch.Generator().manual_seed(seed)
    tail = torch.arange(4, nodes - 1)
    edges = torch.cat([RING, torch.stack([tail, tail + 1]), torch.stack([tail + 1, tail])], dim=1)
    x = torch.randn(nodes, DIM, generator=generator)
    attributes = torch.randn(edges.shape[1], DIM, generator=generator)
    return Data(x=x, edge_index=edges, edge_attr=attributes)


GRAPHS = [graph(5, 0), graph(7, 1)]


class Sums(MessagePassing):
    """A model that sums over neighbours by PyG, or written out with `index_add`."""

    def __init__(self, aggr: str) -> None:
        super().__init__(aggr="add" if aggr == "index_add" else aggr)
        self.by_hand = aggr == "index_add"

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        if self.by_hand:
            return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        return self.propagate(edge_index, x=x)


class JoinedHeads(MessagePassing):
    """Attention of two heads, whose messages join heads and channels before they are summed."""

    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.score, self.value = nn.Linear(DIM, 2), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor) -> Tensor:
        attention = softmax(self.score(x_i * x_j), index)  # (E, 2)
        return (attention[..., None] * self.value(x_j).view(-1, 2, DIM // 2)).view(-1, DIM)


class Messages(nn.Module):
    """One message from every node to its neighbours, then the first node's row of each graph.

    The first node is never removed.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(DIM, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.layer(x, edge_index)
        first = torch.cat([batch.new_ones(1, dtype=torch.bool), batch[1:] != batch[:-1]])
        return self.head(h[first])


class Adjacency(nn.Module):
    """A product with the adjacency matrix of one graph, dense or sparse."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.sparse, self.head = sparse, nn.Linear(DIM, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        n = len(x)
        if self.sparse:
            ones = x.new_ones(edge_index.shape[1])
            matrix = torch.sparse_coo_tensor(edge_index.flip(0), ones, (n, n))
            return self.head(torch.sparse.mm(matrix, x)[:1])
        return self.head((to_dense_adj(edge_index, max_num_nodes=n)[0].T.to(x) @ x)[:1])


class Pool(nn.Module):
    def __init__(self, pool: str) -> None:
        super().__init__()
        self.pool, self.head = pool, nn.Linear(DIM, 1)
        self.attention = AttentionalAggregation(nn.Linear(DIM, 1))

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        if self.pool == "attention":
            return self.head(self.attention(x, batch))
        by_name = {"mean": global_mean_pool, "sum": global_add_pool, "max": global_max_pool}
        return self.head(by_name[self.pool](x, batch))


class SinglePool(nn.Module):
    """Pooling of one graph by PyTorch's own reductions."""

    def __init__(self, pool: str) -> None:
        super().__init__()
        self.pool, self.head, self.query = pool, nn.Linear(DIM, 1), nn.Linear(DIM, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.pool == "softmax":
            return self.head(self.query(x).softmax(0).T @ x)
        if self.pool == "dot":
            return (self.query(x).flatten() @ self.head(x).flatten()).view(1, 1)
        if self.pool == "max":
            return self.head(x.max(0, keepdim=True).values)
        return self.head(getattr(x, self.pool)(0, keepdim=True))


class Attends(nn.Module):
    """Attention of every node to all nodes of its graph; the first node is read."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, 2, batch_first=True)
        self.head = nn.Linear(DIM, 1)

    def forward(self, x: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        h, _ = self.attention(x, x, x, key_padding_mask=src_key_padding_mask)
        return self.head(h[:, 0])


class Network(nn.Module):
    """Several layers, a normalisation over the nodes perhaps, and a pooling."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        degrees = torch.tensor([0, 4, 6, 2])
        pna = lambda: PNAConv(  # noqa: E731
            DIM, DIM, ["mean", "max", "sum"], ["identity", "amplification"], degrees, edge_dim=DIM
        )
        layer = {
            "gcn": lambda: GCNConv(DIM, DIM),
            "sage": lambda: SAGEConv(DIM, DIM),
            "gat": lambda: GATConv(DIM, 3, heads=2, edge_dim=DIM),
            "transformer": lambda: TransformerConv(DIM, 3, heads=2, edge_dim=DIM),
            "gated": lambda: ResGatedGraphConv(DIM, DIM, edge_dim=DIM),
            "pna": pna,
            "graph_norm": lambda: GCNConv(DIM, DIM),
            "gps": lambda: GPSConv(DIM, GINEConv(nn.Linear(DIM, DIM)), heads=2),
        }[kind]
        self.kind, self.layers = kind, nn.ModuleList(layer() for _ in range(2))
        self.norm, self.head = GraphNorm(DIM), nn.Linear(DIM, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        for layer in self.layers:
            if self.kind == "gps":
                x = layer(x, edge_index, batch, edge_attr=edge_attr)
            elif self.kind in ("gcn", "sage", "graph_norm"):
                x = layer(x, edge_index)
            else:
                x = layer(x, edge_index, edge_attr)
            x = torch.tanh(self.norm(x, batch) if self.kind == "graph_norm" else x)
        return self.head(global_mean_pool(x, batch))


def gated(
    module: nn.Module, graphs: list, std: float = 0.3, **settings: object
) -> tuple[gx.wrapping.WrappedModel, object, PresencePass, ResolvedTarget]:
    torch.manual_seed(3)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    model = gx.wrap(module.eval().double(), kind="regression", **settings)
    batch = model.collate([model.prepare(value).data for value in graphs])
    resolved = Target.of(None).resolve(model.config, model(batch))
    return model, batch, presence_pass(model, batch, model.embed(batch)), resolved


def coalition(mask: Tensor, seed: int) -> Tensor:
    present = mask & (torch.rand(mask.shape, generator=torch.Generator().manual_seed(seed)) < 0.6)
    present[:, 0] = True
    return present


def removed(model: object, batch: object, present: Tensor, target: ResolvedTarget) -> Tensor:
    """Return what each node adds at a coalition, by a pass without it or with it."""
    tokens = model.embed(batch)

    def value(keep: Tensor) -> Tensor:
        with torch.no_grad():
            return target.log_odds(model.encode(tokens, batch, keep))

    marginals = torch.zeros(present.shape, dtype=torch.double)
    for node in range(1, present.shape[1]):
        other = present.clone()
        other[:, node] ^= batch.mask[:, node]
        change = value(present) - value(other)
        marginals[:, node] = torch.where(present[:, node], change, -change)
    return marginals


def compared(module: nn.Module, graphs: list, seed: int, **settings: object) -> tuple:
    model, batch, run, target = gated(module, graphs, **settings)
    present = coalition(batch.mask, seed)
    with torch.no_grad():
        wanted = model.encode(model.embed(batch), batch, present)
    torch.testing.assert_close(run.outputs(present), wanted)
    marginals = run.marginals(present, target.log_odds)
    return marginals[:, 1:], removed(model, batch, present, target)[:, 1:]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("way", ["add", "index_add", "mean", "max"])
def test_the_marginal_through_messages_is_what_removing_the_node_changes(way, seed):
    marginals, expected = compared(Messages(Sums(way)), GRAPHS, seed)
    torch.testing.assert_close(marginals, expected)
    assert bool(expected.any())


@pytest.mark.parametrize("seed", range(6))  # in one of them a node has no neighbours present
@pytest.mark.parametrize("layer", ["gat", "transformer", "joined heads"])
def test_the_marginal_through_a_softmax_over_neighbours_is_exact(layer, seed):
    conv = {
        "gat": lambda: GATConv(DIM, 3, heads=2),
        "transformer": lambda: TransformerConv(DIM, 3, heads=2),
        "joined heads": JoinedHeads,
    }[layer]()
    marginals, expected = compared(Messages(conv), GRAPHS, seed)
    torch.testing.assert_close(marginals, expected)


@pytest.mark.parametrize("sparse", [False, True])
def test_the_marginal_through_an_adjacency_matrix_is_exact(sparse):
    marginals, expected = compared(Adjacency(sparse), GRAPHS[:1], 0)
    torch.testing.assert_close(marginals, expected)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pool", ["mean", "sum", "max", "attention"])
def test_the_marginal_through_a_pooling_is_exact(pool, seed):
    marginals, expected = compared(Pool(pool), GRAPHS, seed)
    torch.testing.assert_close(marginals, expected)


@pytest.mark.parametrize("pool", ["mean", "sum", "max", "amax", "softmax", "dot"])
def test_so_it_is_through_a_reduction_of_one_graph(pool):
    marginals, expected = compared(SinglePool(pool), GRAPHS[:1], 2)
    torch.testing.assert_close(marginals, expected)


class VirtualNode(nn.Module):
    """Products of the ends of edges, also of those to a row of each graph, which sums its nodes.

    The first node of each graph is read, and is never removed.
    """

    def __init__(self, of_sender_first: bool) -> None:
        super().__init__()
        self.head, self.of_sender_first = nn.Linear(DIM, 1), of_sender_first

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        rows = torch.cat([x, global_add_pool(x, batch)])
        to_graphs = torch.stack([torch.arange(len(x)), len(x) + batch])
        sender, receiver = torch.cat([edge_index, to_graphs, to_graphs.flip(0)], dim=1)
        ends = (sender, receiver) if self.of_sender_first else (receiver, sender)
        messages = rows[ends[0]] * rows[ends[1]]
        h = torch.zeros_like(rows).index_add(0, receiver, messages)
        first = torch.cat([batch.new_ones(1, dtype=torch.bool), batch[1:] != batch[:-1]])
        return self.head(h[: len(x)][first])


@pytest.mark.parametrize("of_sender_first", [False, True])
def test_the_marginal_through_a_virtual_node_beside_the_edges_is_exact(of_sender_first):
    marginals, expected = compared(VirtualNode(of_sender_first), GRAPHS, 2)
    torch.testing.assert_close(marginals, expected)
    assert bool(expected.any())


def test_the_marginal_through_attention_to_all_nodes_is_exact():
    rows = [torch.randn(5, DIM), torch.randn(7, DIM)]
    marginals, expected = compared(Attends(), rows, 0, inputs="tokens")
    torch.testing.assert_close(marginals, expected)


@pytest.mark.parametrize(
    "kind", ["gcn", "sage", "gat", "transformer", "gated", "pna", "graph_norm", "gps"]
)
def test_a_deep_model_gives_what_it_gives_without_the_nodes(kind):
    """Marginals between layers are of first order, so they only correlate with differences."""
    marginals, expected = compared(Network(kind), GRAPHS, 1, std=0.1)
    together = torch.stack([marginals.flatten(), expected.flatten()])
    assert float(torch.corrcoef(together)[0, 1]) > 0.8


def test_a_model_that_selects_nodes_is_refused_by_name():
    class Selects(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool, self.head = TopKPooling(DIM, 0.5), nn.Linear(DIM, 1)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            x, _, _, batch, _, _ = self.pool(x, edge_index, batch=batch)
            return self.head(global_mean_pool(x, batch))

    with pytest.raises(NotGated, match="Selects"):
        compared(Selects(), GRAPHS, 1)


class Largest(nn.Module):
    """One layer and a maximum, whose values for nodes with the same neighbours are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = GCNConv(DIM, DIM), nn.Linear(DIM, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.head(global_max_pool(self.layer(x, edge_index).tanh(), batch))


@pytest.mark.parametrize("seed", range(3))
def test_rounding_does_not_choose_among_nodes_with_the_same_neighbours(seed):
    torch.manual_seed(seed)
    model = gx.wrap(Largest().eval(), kind="regression")
    both = torch.tensor([[0, 0, 0, 1, 1, 2, 3], [1, 2, 3, 2, 3, 4, 4]])
    square = Data(x=torch.randn(5, DIM), edge_index=torch.cat([both, both.flip(0)], 1))
    check_renumbering(model, [square, GRAPHS[0]], "path_marginals", seed=seed)
    check_batching(model, [square, GRAPHS[0]], "path_marginals")


class Drops(nn.Module):
    """A pooling that drops nodes, between two layers."""

    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.pool, self.second = layer(), TopKPooling(DIM, 0.6), layer()
        self.head = nn.Linear(DIM, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.first(x, edge_index).relu()
        x, edge_index, _, batch, _, _ = self.pool(x, edge_index, batch=batch)
        return self.head(global_mean_pool(self.second(x, edge_index).relu(), batch))


def test_a_pooling_between_layers_is_named_with_methods_that_work():
    for layer in (lambda: GATConv(DIM, DIM), lambda: GINConv(nn.Linear(DIM, DIM))):
        _, batch, run, target = gated(Drops(layer), GRAPHS)
        with pytest.raises(NotGated, match=r"drops nodes .*'order_marginals', 'occlusion'"):
            run.marginals(coalition(batch.mask, 4), target.log_odds)
    model, *_ = gated(Drops(lambda: GATConv(DIM, DIM)), GRAPHS)
    with pytest.warns(UserWarning, match=r"cannot leave some out.*measures attention alone"):
        explanations = gx.explain(model, GRAPHS, "path_marginals")
    assert all(np.isfinite(e.relevance).all() for e in explanations)


def test_the_middle_of_the_sorted_nodes_is_refused_by_name():
    class Middle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(DIM, DIM), nn.Linear(DIM, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.inner(x).median(0, keepdim=True).values + x.mean(0))

    with pytest.raises(NotGated, match=r"median"):
        compared(Middle(), GRAPHS[:1], 1)


def test_graphs_of_a_batch_do_not_see_each_other():
    model, batch, run, target = gated(Network("gps"), GRAPHS)
    present = coalition(batch.mask, 4)
    together = run.marginals(present, target.log_odds)
    for row, data in enumerate(GRAPHS):
        single = model.collate([model.prepare(data).data])
        alone = presence_pass(model, single, model.embed(single))
        n = len(data.x)
        rows = slice(row, row + 1)
        of_row = replace(target, weights=target.weights[rows], offset=target.offset[rows])
        of_graph = alone.marginals(present[row : row + 1, :n], of_row.log_odds)
        torch.testing.assert_close(of_graph, together[row : row + 1, :n])


class Rows(nn.Module):
    """One message from every node to its neighbours, and an answer for every node or a pair."""

    def __init__(self, pairs: bool) -> None:
        super().__init__()
        self.pairs, self.layer, self.head = pairs, GATConv(DIM, DIM), nn.Linear(DIM, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor = None) -> Tensor:
        h = self.layer(x, edge_index)
        return self.head(h[edge_label_index].sum(0) if self.pairs else h)


@pytest.mark.parametrize("pairs", [False, True])
def test_without_the_node_that_is_explained_nothing_is_left(pairs):
    graphs = mark_explained(GRAPHS, **({"pair": (0, 2)} if pairs else {"node": 2}))
    module = Rows(pairs)
    marginals, expected = compared(module, graphs, 1)  # node 2 is present
    torch.testing.assert_close(marginals, expected)
    assert bool((expected[:, 1] != 0).all())

    model, batch, run, target = gated(module, graphs)
    present = batch.mask.clone()
    present[:, 2] = False
    with torch.no_grad():
        wanted = model.encode(model.embed(batch), batch, present)
    assert not bool(wanted.any())
    torch.testing.assert_close(run.outputs(present), wanted)
    joining = run.marginals(present, target.log_odds)[:, 2]
    torch.testing.assert_close(joining, target.log_odds(run.whole).detach())


def test_path_marginals_of_one_node_need_no_attention(recwarn):
    torch.manual_seed(0)
    model = gx.wrap(Rows(pairs=False).eval(), kind="regression")
    for node in range(5):
        scores = gx.explain(model, GRAPHS[0], "path_marginals", node=node).relevance
        near = set(RING[0, RING[1] == node].tolist()) | {node}
        assert {k for k, score in enumerate(scores.tolist()) if score} <= near
    assert not [w for w in recwarn if "leave some out" in str(w.message)]


def test_a_coalition_without_edges_has_no_attention_and_no_marginals():
    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = GATConv(DIM, DIM, add_self_loops=False), nn.Linear(DIM, 1)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.head(self.layer(x, edge_index).sort(0).values[-2:].sum(0, keepdim=True))

    torch.manual_seed(0)
    model = gx.wrap(Sorted().eval(), kind="regression")
    with pytest.warns(UserWarning, match="leave some out"):
        scores = gx.explain(model, GRAPHS[1], "path_marginals").relevance
    assert bool(torch.as_tensor(scores).isfinite().all())
