"""What a graph carries, and how a model takes it, is decided at one door."""

import math

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool
from torch_geometric.utils import to_dense_batch

import graphxai as gx
from graphxai.contract.checkpoint_files import CheckpointError
from graphxai.contract.inputs import InputError

pytestmark = pytest.mark.usefixtures("only_relevance")

DIM = 4
METHODS = ["lrp", "attn_lrp", "lrp_path", "integrated_gradients", "occlusion", "shapley_sampling"]


def ring(nodes: int, **attributes) -> Data:
    """Make a ring with random features, and further attributes."""
    order = torch.arange(nodes)
    edges = torch.stack([order, order.roll(1)])
    x = torch.randn(nodes, DIM, generator=torch.Generator().manual_seed(nodes))
    graph = Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], 1))
    for name, value in attributes.items():
        graph[name] = value
    return graph


GRAPHS = [ring(4), ring(6), ring(3)]


class Model(nn.Module):
    """A layer, what a subclass does to the nodes, and a sum over those of each graph."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, 1)

    def mix(self, h, batch):
        return h

    def forward(self, x, edge_index, batch, batch_size):
        h = self.mix(self.first(x), batch)
        h = h.index_add(0, edge_index[1], h[edge_index[0]].tanh())
        return self.out(global_add_pool(nn.functional.gelu(h), batch, size=batch_size))


def own_output(module, graph):
    batch = torch.zeros(len(graph.x), dtype=torch.long)
    return module(graph.x, graph.edge_index, batch, 1).item()


def relevance(module, graphs, method, **options):
    torch.manual_seed(0)
    model = gx.wrap(module.eval(), kind="regression", **options)
    return [e.relevance for e in gx.explain(model, graphs, method, on_error="raise")]


def agree(found, wanted):
    for scores, expected in zip(found, wanted, strict=True):
        assert scores == pytest.approx(expected, abs=1e-5)


# -- what a graph carries --------------------------------------------------------------------------

ACCEPTED = {
    "its own batch": {"batch": torch.full((4,), 7)},
    "a batch of floats": {"batch": torch.zeros(4)},
    "a batch of other length": {"batch": torch.zeros(3, dtype=torch.long)},
    "ends of graphs": {"ptr": torch.tensor([0, 2, 4])},
    "a number of graphs": {"batch_size": 7, "num_graphs": 2},
    "numbers of nodes as a tensor": {"num_nodes": torch.tensor(4)},
    "text and objects": {"name": "benzene", "source": object(), "notes": {"a": 1}},
    "sparse tensors of four layouts": {
        "coo": torch.eye(4).to_sparse(), "csr": torch.eye(4).to_sparse_csr(),
        "csc": torch.eye(4).to_sparse_csc(), "bsr": torch.eye(4).to_sparse_bsr((2, 2)),
    },
    "nested tensors": {
        "strided": torch.nested.nested_tensor([torch.randn(2), torch.randn(3)]),
        "jagged": torch.nested.nested_tensor([torch.randn(2)] * 2, layout=torch.jagged),
    },
    "complex numbers": {"phase": torch.randn(3).cfloat()},
    "features that require a gradient": {"x": ring(4).x.clone().requires_grad_()},
    "features in another order of memory": {"x": ring(4).x.T.contiguous().T},
}  # fmt: skip


@pytest.mark.parametrize("carries", ACCEPTED)
@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested")
def test_an_accepted_graph_has_the_output_of_the_models_own_call(carries):
    graph, module = ring(4, **ACCEPTED[carries]), Model().eval()
    model = gx.wrap(module, kind="regression")
    alone, together = gx.explain(model, graph), gx.explain(model, [ring(6), graph])[1]
    for e in (alone, together):
        assert e.prediction.value == pytest.approx(own_output(module, graph), abs=1e-6)
    wanted = relevance(module, [ring(4)], "lrp")
    agree(relevance(module, [graph], "lrp"), wanted)


REFUSED = {
    "two graphs": (ring(4, batch=torch.tensor([0, 0, 1, 1])), "names 2 graphs"),
    "more nodes than rows": (ring(4, num_nodes=9), "4 rows for the 9 nodes"),
    "fewer nodes than rows": (ring(4, num_nodes=2), "4 rows for the 2 nodes"),
    "infinite features": (ring(4, x=torch.full((4, DIM), math.inf)), "not finite"),
    "features of NumPy": (ring(4, x=ring(4).x.numpy()), r"pass torch\.as_tensor\(x\)"),
    "edges of NumPy": (ring(4, edge_index=ring(4).edge_index.numpy()), "is a ndarray: pass torch"),
    "nested features": (ring(4, x=torch.nested.nested_tensor([torch.ones(DIM)] * 4)), "nested"),
    "sparse features": (ring(4, x=torch.eye(4).to_sparse()), r"pass x\.to_dense"),
    "whole numbers for a linear layer": (ring(4, x=torch.ones(4, DIM).long()), r"pass x\.float"),
    "nothing": (Data(), "needs node features"),
}


@pytest.mark.parametrize("carries", REFUSED)
@pytest.mark.parametrize("method", ["lrp", "occlusion"])
@pytest.mark.filterwarnings("error:Unable to accurately infer", "ignore:The PyTorch API of nested")
def test_a_graph_that_cannot_be_used_is_refused_by_name(carries, method):
    graph, message = REFUSED[carries]
    with pytest.raises(InputError, match=message):
        gx.explain(gx.wrap(Model().eval(), kind="regression"), graph, method)


# -- how a model takes it --------------------------------------------------------------------------


class WholeBatch(Model):
    def forward(self, batched_data):
        g = batched_data
        return super().forward(g.x, g.edge_index, g.batch, g.num_graphs)


class PassesOn(Model):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


@pytest.mark.parametrize("kind", [WholeBatch, PassesOn])
@pytest.mark.parametrize("method", METHODS)
def test_a_batch_by_another_name_and_arguments_of_a_base_class_are_found(kind, method):
    agree(relevance(kind(), GRAPHS, method), relevance(Model(), GRAPHS, method))


@pytest.mark.parametrize("method", METHODS)
def test_a_forward_may_take_one_graph_at_a_time(method):
    def forward(model, graph):
        size = len(graph.x)
        return model(graph.x, graph.edge_index, torch.zeros(size, dtype=torch.long), 1)[0]

    found = relevance(Model(), GRAPHS, method, forward=forward, one_at_a_time=True)
    agree(found, relevance(Model(), GRAPHS, method))


class BatchFirst(Model):
    """An encoder of PyTorch on padded nodes."""

    batch_first = True

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            DIM, 2, 8, 0.0, activation="gelu", batch_first=self.batch_first
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def encoded(self, h, mask):
        return self.encoder(h, src_key_padding_mask=~mask)

    def mix(self, h, batch):
        dense, mask = to_dense_batch(h, batch)
        return self.encoded(dense, mask)[mask]


class TimeFirst(BatchFirst):
    batch_first = False

    def encoded(self, h, mask):
        return self.encoder(h.transpose(0, 1), src_key_padding_mask=~mask).transpose(0, 1)


@pytest.mark.parametrize("method", METHODS)
def test_layers_with_time_first_are_explained_like_those_with_the_batch_first(method):
    agree(relevance(TimeFirst(), GRAPHS, method), relevance(BatchFirst(), GRAPHS, method))


class HalfPrecision(BatchFirst):
    def encoded(self, h, mask):
        with torch.autocast("cpu", torch.bfloat16):
            return super().encoded(h, mask).float()


@pytest.mark.parametrize("method", METHODS)
def test_autocast_may_surround_an_encoder(method):
    found = relevance(HalfPrecision(), GRAPHS, method)
    for scores, wanted in zip(found, relevance(BatchFirst(), GRAPHS, method), strict=True):
        assert scores == pytest.approx(wanted, abs=0.05)  # bfloat16 has three digits


def test_shapley_values_take_features_of_half_precision():
    half = ring(4)
    half.x = half.x.bfloat16()
    scores, single = (
        relevance(Model(), [ring(4, x=x)], "shapley_sampling") for x in (half.x, half.x.float())
    )
    assert scores[0].sum() == pytest.approx(single[0].sum(), abs=1e-4)


# -- errors of what is no model, metric or file ----------------------------------------------------


def test_errors_name_what_was_passed():
    model = gx.wrap(Model().eval(), kind="regression")
    e = gx.explain(model, GRAPHS[0])
    with pytest.raises(TypeError, match="int cannot be explained"):
        gx.trust(5, e)
    with pytest.raises(TypeError, match="a metric is a name or a function, not int"):
        gx.evaluate(model, GRAPHS, ["lrp"], metrics=[5])
    with pytest.raises(CheckpointError, match="neither a folder nor the name"):
        gx.load("C" * 5000)
