"""What a graph carries, and how a model takes it, is decided at one door."""

import math

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool
from torch_geometric.utils import to_dense_batch

import graphxai as gx
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


class ReadsAll(Model):
    """A model that reads every optional attribute of a graph."""

    def __init__(self):
        super().__init__()
        self.bond, self.place = nn.Linear(2, DIM), nn.Linear(3, DIM)

    def forward(self, x, edge_index, batch, batch_size, edge_attr=None, pos=None, charge=None):
        h = self.first(x)
        h = h if pos is None else h + self.place(pos)
        messages = h[edge_index[0]].tanh()
        messages = messages if edge_attr is None else messages * self.bond(edge_attr).sigmoid()
        h = h.index_add(0, edge_index[1], messages)
        outputs = self.out(global_add_pool(nn.functional.gelu(h), batch, size=batch_size))
        return outputs if charge is None else outputs + charge[:, None]


ROWS = {  # the same numbers, lying otherwise in memory or of another type
    "as they are": lambda x: x,
    "transposed": lambda x: x.T.contiguous().T,
    "a slice": lambda x: torch.stack([x, -x], 1)[:, 0],
    "backwards": lambda x: x.flip(0).flip(0),
    "a parameter": lambda x: nn.Parameter(x),
    "double": lambda x: x.double(),
    "half": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
}
EDGES = {
    "as they are": lambda e: e,
    "transposed": lambda e: e.T.contiguous().T,
    "32 bits": lambda e: e.int(),
    "none": lambda e: e[:, :0],
    "one, to itself": lambda e: e[:1, :1].expand(2, 1),
}


@pytest.mark.parametrize("seed", range(40))
def test_whatever_graphs_carry_their_outputs_are_those_of_the_models_own_call(seed):
    """Graphs of one list carry different things, in different types and orders of memory."""
    draw = torch.Generator().manual_seed(seed)

    def any_of(values):
        values = list(values)
        return values[int(torch.randint(len(values), (), generator=draw))]

    module, graphs, wanted = ReadsAll().eval(), [], []
    rows, edges = ROWS[any_of(ROWS)], EDGES[any_of(EDGES)]
    carried = {name for name in ("edge_attr", "pos", "charge", "batch") if any_of((True, False))}
    for nodes in (any_of((1, 2, 4)), 5, any_of((3, 9))):
        graph = ring(max(nodes, 2))
        graph.x, graph.edge_index = rows(graph.x[:nodes]), edges(graph.edge_index % nodes)
        count = graph.edge_index.shape[1]
        further = {
            "edge_attr": rows(torch.randn(count, 2, generator=draw)),
            "pos": torch.randn(nodes, 3, generator=draw),
            "charge": torch.randn(1, generator=draw),
        }
        further = {name: value for name, value in further.items() if name in carried}
        for name, value in further.items():
            graph[name] = value
        if "batch" in carried:
            graph.batch, graph.ptr = torch.zeros(nodes).long(), torch.tensor([0, nodes])
        graph.y, graph.name = torch.tensor([1]), "unread"
        graphs.append(graph)
        with torch.no_grad():
            own = {name: value.float() for name, value in further.items()}
            place = torch.zeros(nodes).long()
            wanted.append(module(graph.x.float(), graph.edge_index, place, 1, **own).item())
    model = gx.wrap(module, kind="regression")
    for method in ("gradient_input", "occlusion"):
        for e, output in zip(gx.explain(model, graphs, method), wanted, strict=True):
            assert e.prediction.value == pytest.approx(output, abs=1e-5)
    for answer, output in zip(gx.predict(model, graphs), wanted, strict=True):
        assert answer["output"].value == pytest.approx(output, abs=1e-5)


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


class Words(nn.Module):
    """An encoder of tokens, whose kernel for inference fails under autocast."""

    def __init__(self, half):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.encoder, self.last, self.half = nn.TransformerEncoder(layer, 1), nn.Linear(4, 1), half

    def forward(self, x, mask):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            h = self.encoder(x, src_key_padding_mask=~mask).float()
        return self.last((h * mask[..., None]).sum(1))


@pytest.mark.parametrize("method", ["lrp", "integrated_gradients", "occlusion"])
def test_autocast_may_surround_an_encoder_of_tokens(method):
    tokens = [torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) for n in (5, 3)]
    half, single = (
        gx.explain(
            gx.wrap(
                Words(half).eval(),
                kind="regression",
                inputs="tokens",
                forward=lambda model, tokens: model(tokens.x, tokens.mask),
            ),
            tokens,
            method,
        )
        for half in (True, False)
    )
    for e, wanted in zip(half, single, strict=True):
        assert e.relevance == pytest.approx(wanted.relevance, abs=0.05)


def test_shapley_values_take_features_of_half_precision():
    half = ring(4)
    half.x = half.x.bfloat16()
    scores, single = (
        relevance(Model(), [ring(4, x=x)], "shapley_sampling") for x in (half.x, half.x.float())
    )
    assert scores[0].sum() == pytest.approx(single[0].sum(), abs=1e-4)


# -- errors of what is no model, metric or file ----------------------------------------------------


MODEL = gx.wrap(Model().eval(), kind="regression")
WRONG = {
    "text that is no path": (lambda: gx.load("C" * 5000), "neither a folder nor the name"),
    "a long name of a file": (lambda: gx.load("C" * 5000 + ".pt"), "no such file"),
    "no name": (lambda: gx.load(""), "neither a folder nor the name"),
    "a number to load": (lambda: gx.load(5), "the name or path of a model, not int"),
    "a list to load": (lambda: gx.load(["bace"]), "the name or path of a model, not list"),
    "a task by its name": (lambda: gx.wrap(Model(), tasks="logP"), "takes gx.Task.* not 'logP'"),
    "classes": (lambda: gx.wrap(Model(), kind="binary", classes=2.5), "classes is a name or a"),
    "forward": (lambda: gx.wrap(Model(), kind="binary", forward="f"), "forward is a function, not"),
    "featurize": (
        lambda: gx.wrap(Model(), kind="binary", featurize="ecfp"), "featurize is a function"
    ),
    "transform": (lambda: gx.wrap(Model(), kind="binary", transform=5), "transform is a function"),
    "embedding": (lambda: gx.wrap(Model(), kind="binary", embedding=5), "embedding is a name or"),
    "features": (lambda: gx.wrap(Model(), kind="binary", features=5), "features is a name or a"),
    "rules": (lambda: gx.wrap(Model(), kind="binary", rules=[1]), "rules= takes a dict"),
    "a rule": (
        lambda: gx.wrap(Model(), kind="binary", rules={torch.ops.aten.relu: 5}),
        "the rule for aten.relu is a function, not 5",
    ),
    "wrt": (lambda: gx.explain(MODEL, GRAPHS[0], wrt=5), "wrt is a name or a list of names"),
    "on_error": (lambda: gx.explain(MODEL, GRAPHS, on_error="ignore"), "on_error is 'warn' or"),
    "an option": (
        lambda: gx.explain(MODEL, GRAPHS[0], "integrated_gradients", steps="a"),
        "method 'integrated_gradients' cannot take {'steps': 'a'}",
    ),
    "operators": (
        lambda: gx.evaluate(MODEL, GRAPHS, ["lrp"], operators=5), "operators is a name or a list"
    ),
    "a metric": (
        lambda: gx.evaluate(MODEL, GRAPHS, ["lrp"], metrics=[5]),
        "a metric is a name or a function, not int",
    ),
    "methods": (lambda: gx.compare(MODEL, GRAPHS[0], 5), "methods is a name or a list of names"),
    "nothing to check": (lambda: gx.check(MODEL, []), "there is no graph to check"),
    "no graph to check": (lambda: gx.check(MODEL, None), "takes PyG Data, not NoneType"),
    "a model to trust": (
        lambda: gx.trust(5, gx.explain(MODEL, GRAPHS[0])), "int cannot be explained"
    ),
    "nothing to learn from": (lambda: gx.train(None), "a list of graphs or a folder, not NoneType"),
    "a table that does not exist": (lambda: gx.train("none.csv"), "none.csv is no folder"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_errors_name_what_was_passed(wrong):
    call, message = WRONG[wrong]
    with pytest.raises((TypeError, ValueError), match=message):
        call()


@pytest.mark.parametrize("kind", [RuntimeError, AssertionError, IndexError, ZeroDivisionError])
@pytest.mark.parametrize("end", ["", "."])
def test_a_model_that_needs_all_nodes_is_named_as_such(kind, end):
    class NeedsAll(Model):
        def mix(self, h, batch):
            if batch.bincount().min() < 4:
                raise kind(f"four nodes at least{end}")
            return h

    model = gx.wrap(NeedsAll().eval(), kind="regression")
    says = r"not on those that Occlusion makes: four nodes at least\. Let it run"
    with pytest.raises(ValueError, match=says):
        gx.explain(model, ring(4), "occlusion")
    assert gx.explain(model, ring(4), "lrp").output == pytest.approx(
        own_output(model.module, ring(4)), abs=1e-5
    )
