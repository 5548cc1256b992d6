"""Edges get what their messages carry, as in models that are written out with weights of edges."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import (
    FastRGCNConv,
    GATConv,
    GCNConv,
    GINConv,
    HANConv,
    HeteroConv,
    HGTConv,
    RGCNConv,
    SAGEConv,
    global_add_pool,
)
from torch_geometric.utils import to_dense_adj

import graphxai as gx

AUTHOR, PAPER = 3, 4
LINKS = [
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "written by", "author"),
]
NAMES = [" ".join(link) for link in LINKS]
META = (["author", "paper"], LINKS)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def typed_graph(seed=0, authors=AUTHOR, papers=PAPER):
    generator = torch.Generator().manual_seed(seed)
    data, count = HeteroData(), {"author": authors, "paper": papers}
    data["author"].x = random(authors, 4, seed=seed)
    data["paper"].x = random(papers, 3, seed=seed + 1)
    for first, kind, second in LINKS:  # some edges are there twice
        ends = [torch.randint(0, count[end], (5,), generator=generator) for end in (first, second)]
        data[first, kind, second].edge_index = torch.stack(ends)
    return data


def plain_graph(nodes=5, edges=9, seed=0):
    ends = torch.randint(0, nodes, (2, edges), generator=torch.Generator().manual_seed(seed))
    return Data(x=random(nodes, 4, seed=seed), edge_index=ends[:, ends[0] != ends[1]])


class OfPapers(nn.Module):
    """Two layers with a ReLU between, and a sum over the papers of each graph."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second, self.last = first, second, nn.Linear(8, 1)

    def forward(self, x_dict, edge_index_dict, batch_dict):
        h = {kind: x.relu() for kind, x in self.first(x_dict, edge_index_dict).items()}
        return self.last(
            global_add_pool(self.second(h, edge_index_dict)["paper"], batch_dict["paper"])
        )


def hetero(conv):
    torch.manual_seed(0)
    width = {"author": 4, "paper": 3}
    return OfPapers(
        HeteroConv({link: conv((width[link[0]], width[link[2]]), 8) for link in LINKS}),
        HeteroConv({link: conv((8, 8), 8) for link in LINKS}),
    ).eval()


def sage(widths, out):
    return SAGEConv(widths, out)


def gat(widths, out):
    return GATConv(widths, out, heads=2, concat=False, add_self_loops=False)


def transformer(kind):
    torch.manual_seed(0)
    return OfPapers(
        kind({"author": 4, "paper": 3}, 8, META, heads=2),
        kind({"author": 8, "paper": 8}, 8, META, heads=2),
    ).eval()


def explained(module, inputs, method="lrp", wrt=("x", "edge_index")):
    return gx.explain(gx.wrap(module, kind="regression"), inputs, method, wrt=wrt)


def shares_by_hand(output_of, edges):
    """Return the share of each edge and what passes along none, by scaling weights of edges.

    Args:
        output_of: returns the output of the model whose other factors are held constant, given
            the weights (E,) of the edges in the first layer and in the second.
        edges: their number E.
    """
    first, second = (torch.ones(edges, requires_grad=True) for _ in range(2))
    gradients = torch.autograd.grad(output_of(first, second), [first, second])
    ones, zeros = torch.ones(edges), torch.zeros(edges)
    # the output is linear in each layer's weights: of walks along two edges, one, and none
    of_no_edge = output_of(zeros, zeros)
    of_one_edge = output_of(ones, zeros) + output_of(zeros, ones) - 2 * of_no_edge
    return sum(gradients).numpy() / 2, float((of_no_edge + of_one_edge / 2).detach())


def dense_sage(conv, source, target, ends, weights):
    """Compute a `SAGEConv` with the mean over edges by a dense matrix of weights."""
    matrix = torch.zeros(len(target), len(source)).index_put(
        (ends[1], ends[0]), weights, accumulate=True
    )
    counts = torch.bincount(ends[1], minlength=len(target)).clamp(min=1)[:, None]
    return conv.lin_l(matrix @ source / counts) + conv.lin_r(target)


def dense_typed(module, data, active=None):
    """Return the module as a function of the weights of all edges in each layer."""
    counts = [data[link].edge_index.shape[1] for link in LINKS]

    def layer(hetero_conv, x, weights):
        out = dict.fromkeys(x, 0)
        for link, of_edges in zip(LINKS, weights.split(counts), strict=True):
            first, _, second = link
            conv = hetero_conv.convs[link]
            out[second] = out[second] + dense_sage(
                conv, x[first], x[second], data[link].edge_index, of_edges
            )
        return out

    def run(first, second):
        h = layer(module.first, data.x_dict, first)
        shown = {kind: (x > 0).float() for kind, x in h.items()} if active is None else active
        h = {kind: x * shown[kind] for kind, x in h.items()}
        output = module.last(layer(module.second, h, second)["paper"].sum(0))[0]
        return (output, shown) if active is None else output

    return run, sum(counts)


def test_edges_of_types_have_the_shares_of_a_dense_model_with_weights_of_edges():
    module, data = hetero(sage), typed_graph()
    run, edges = dense_typed(module, data)
    output, active = run(torch.ones(edges), torch.ones(edges))
    of_edges, not_along = shares_by_hand(dense_typed(module, data, active)[0], edges)
    for method in ("lrp", "gradient_input"):
        e = explained(module, data, method)
        assert e.output == pytest.approx(output.item(), abs=1e-6)
        assert e.relevance_of["edge_index"] == pytest.approx(of_edges, abs=1e-6)
        assert np.concatenate([e.relevance_of[n] for n in NAMES]) == pytest.approx(
            of_edges, abs=1e-6
        )
        assert e.ledger.along_edges == pytest.approx(of_edges.sum(), abs=1e-6)
        assert e.ledger.not_along_edges == pytest.approx(not_along, abs=1e-6)


MODELS = {
    "SAGE": lambda: hetero(sage),
    "GAT": lambda: hetero(gat),
    "HGT": lambda: transformer(HGTConv),
    "HAN": lambda: transformer(HANConv),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:.*mixes the graphs")
def test_shares_close_alone_and_in_lists_and_leave_those_of_nodes_as_they_are(name):
    module, graphs = MODELS[name](), [typed_graph(), typed_graph(2, 2, 6)]
    together, nodes = (explained(module, graphs, wrt=wrt) for wrt in ("edge_index", None))
    for e, of_nodes, data in zip(together, nodes, graphs, strict=True):
        alone = explained(module, data).relevance_of
        shares = [e.relevance_of[kind] for kind in NAMES]
        assert [len(share) for share in shares] == [5, 5, 5]
        total = sum(share.sum() for share in shares) + e.ledger.not_along_edges
        assert total == pytest.approx(e.output, abs=1e-6)
        assert abs(e.ledger.unexplained) < 1e-6
        assert e.relevance_of["edge_index"] == pytest.approx(alone["edge_index"], abs=1e-6)
        assert e.relevance == pytest.approx(of_nodes.relevance, abs=1e-6)
        assert np.abs(shares[1]).max() > 1e-3


def test_without_paths_of_their_own_nodes_send_everything_along_edges():
    e = explained(hetero(gat), typed_graph())
    assert e.ledger.along_edges == pytest.approx(e.ledger.nodes, abs=1e-6)
    assert e.ledger.not_along_edges == pytest.approx(e.ledger.biases, abs=1e-6)


class Plain(nn.Module):
    """Two layers of one kind with a ReLU between, and a sum over the nodes of each graph."""

    def __init__(self, conv):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = conv(4, 8), conv(8, 8), nn.Linear(8, 1)

    def forward(self, x, edge_index, batch):
        h = self.second(self.first(x, edge_index).relu(), edge_index)
        return self.last(global_add_pool(h, batch))


def gcn(conv, x, ends, weights):
    """Compute a `GCNConv`, whose self loops are of no edge."""
    n = len(x)
    degree = 1 + torch.bincount(ends[1], minlength=n)
    scale = degree[:, None] ** -0.5 * degree**-0.5
    matrix = torch.eye(n).index_put((ends[1], ends[0]), weights, accumulate=True)
    return (scale * matrix) @ conv.lin(x) + conv.bias


def gin(conv, x, ends, weights):
    matrix = torch.eye(len(x)).index_put((ends[1], ends[0]), weights, accumulate=True)
    return conv.nn(matrix @ x)


def isomorphism(width, out):
    return GINConv(nn.Linear(width, out))


@pytest.mark.parametrize(("conv", "dense"), [(GCNConv, gcn), (isomorphism, gin)])
def test_edges_of_one_type_have_the_shares_of_a_dense_model(conv, dense):
    module, graphs = Plain(conv).eval(), [plain_graph(), plain_graph(4, 7, seed=1)]
    for e, data in zip(explained(module, graphs), graphs, strict=True):

        def frozen(first, second, data=data):
            ends = data.edge_index
            active = dense(module.first, data.x, ends, torch.ones(len(first))) > 0
            h = dense(module.first, data.x, ends, first) * active
            return module.last(dense(module.second, h, ends, second).sum(0))[0]

        of_edges, not_along = shares_by_hand(frozen, data.edge_index.shape[1])
        assert e.relevance_of["edge_index"] == pytest.approx(of_edges, abs=1e-6)
        assert e.ledger.not_along_edges == pytest.approx(not_along, abs=1e-6)


class Related(nn.Module):
    def __init__(self, conv):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.last = conv(4, 8, 2), nn.Linear(8, 1)

    def forward(self, x, edge_index, edge_type, batch):
        return self.last(global_add_pool(self.conv(x, edge_index, edge_type), batch))


@pytest.mark.parametrize("conv", [RGCNConv, FastRGCNConv])
def test_two_edges_between_the_same_nodes_have_the_shares_of_their_relations(conv):
    module, data = Related(conv).eval(), plain_graph()
    data.edge_index = torch.tensor([[0, 0, 1, 1, 2], [1, 1, 2, 2, 0]])
    data.edge_type = torch.tensor([0, 1, 1, 0, 0])
    layer, e = module.conv, explained(module, data)
    with torch.no_grad():
        messages = torch.stack(  # each is the only one of its relation at its node
            [
                data.x[j] @ layer.weight[k]
                for j, k in zip(data.edge_index[0], data.edge_type, strict=True)
            ]
        )
        wanted = (messages @ module.last.weight[0]).numpy()
    assert e.relevance_of["edge_index"] == pytest.approx(wanted, abs=1e-6)


def test_saliency_is_the_length_of_the_gradient_along_gates():
    module, data = Plain(GCNConv).eval(), plain_graph()
    lengths = explained(module, data, "saliency").relevance_of["edge_index"]
    by_gate = explained(module, data, "gradient_input").relevance_of["edge_index"]
    assert lengths == pytest.approx(2 * np.abs(by_gate), abs=1e-6)


class Scattered(nn.Module):
    """A sum over neighbours by `index_add`, without a layer of PyG."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 1)

    def forward(self, x, edge_index, batch):
        h = x.index_add(0, edge_index[1], x[edge_index[0]])
        return self.last(global_add_pool(h, batch))


class Found(nn.Module):
    """A layer whose edges are those that an adjacency matrix has."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = SAGEConv(4, 8), nn.Linear(8, 1)

    def forward(self, x, edge_index, batch):
        edges = to_dense_adj(edge_index, max_num_nodes=len(x))[0].nonzero().T
        return self.last(global_add_pool(self.conv(x, edges), batch))


def test_edges_that_cannot_be_followed_are_refused_by_name():
    with pytest.raises(ValueError, match=r"(?s)no layer of Scattered .*edge_shapley"):
        explained(Scattered(), plain_graph())
    with pytest.raises(ValueError, match=r"SAGEConv in Found cannot be followed"):
        explained(Found(), plain_graph())
    with pytest.raises(ValueError, match="edges have no such input"):
        explained(Plain(GCNConv), plain_graph(), "integrated_gradients")
    with pytest.raises(ValueError, match="no edge_index"):
        explained(Plain(GCNConv), Data(x=torch.ones(2, 4)))
    with pytest.raises(ValueError, match="explains the nodes' features x only, not edge_index"):
        explained(Plain(GCNConv), plain_graph(), "occlusion")
