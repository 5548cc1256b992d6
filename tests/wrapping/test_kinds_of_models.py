"""Models and inputs are taken as users have them: wrapped, exported, quantised, heterogeneous."""

import pickle
import threading
from functools import partial

import numpy as np
import pytest
import torch
from graphs_with_inputs import DIM, EDGES, graph
from torch import nn
from torch.utils.data import TensorDataset
from torch_geometric.data import HeteroData
from torch_geometric.explain import Explainer as PygExplainer
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, HGTConv, global_add_pool, global_mean_pool

import graphxai as gx
from graphxai.explainers import pyg as algorithms

GRAPHS = [graph(seed) for seed in (1, 2, 3)]


class Pooled(nn.Module):
    """Two layers and a mean, left in training mode with dropout."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.drop, self.head = nn.Linear(DIM, DIM), nn.Dropout(0.5), nn.Linear(DIM, 1)

    def forward(self, x, edge_index, batch):
        h = self.drop(self.first(x).relu())
        h = h.index_add(0, edge_index[1], h[edge_index[0]])
        return self.head(global_mean_pool(h, batch))


def check_as(other, module, **options):
    """Check that `other` has the relevance of `module`, alone and in a batch."""
    expected = gx.explain(gx.wrap(module, kind="regression"), GRAPHS, **options)
    model = gx.wrap(other, kind="regression")
    for data, a, b in zip(GRAPHS, gx.explain(model, GRAPHS, **options), expected, strict=True):
        assert a.relevance == pytest.approx(b.relevance, abs=1e-6)
        assert gx.explain(model, data, **options).relevance == pytest.approx(b.relevance, abs=1e-6)
        assert abs(a.ledger.unexplained) < 1e-5


class Passing(nn.Module):
    """A module that hands its arguments on, as wrappers for logging and timing do."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


class PassingInOrder(Passing):
    def forward(self, *args):
        return self.inner(*args)


@pytest.mark.parametrize(
    "made",
    [
        nn.DataParallel,
        lambda m: torch.compile(nn.DataParallel(m)),
        Passing,
        PassingInOrder,
        lambda m: Passing(PassingInOrder(m)),
    ],
    ids=["DataParallel", "compiled DataParallel", "kwargs", "args", "nested"],
)
def test_what_only_hands_its_arguments_on_is_explained_as_what_is_inside(made):
    module = Pooled().eval()
    check_as(made(module), module)


class OneGraph(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(DIM, DIM), nn.Linear(DIM, 1)

    def forward(self, x, edge_index):
        h = self.first(x).relu()
        return self.head(h.index_add(0, edge_index[1], h[edge_index[0]]).mean(0, keepdim=True))


def test_an_exported_model_is_explained_as_the_original():
    module = OneGraph().eval()
    sizes = {0: torch.export.Dim("n", min=2)}, {1: torch.export.Dim("e", min=2)}
    inputs = torch.randn(5, DIM), torch.randint(0, 5, (2, 9))
    exported = torch.export.export(module, inputs, dynamic_shapes=sizes).module()
    check_as(exported, module)


def test_8_bit_integer_weights_are_refused_by_gradients_and_explained_by_hiding():
    quantised = torch.ao.quantization.quantize_dynamic(Pooled().eval(), {nn.Linear})
    model = gx.wrap(quantised, kind="regression")
    for method in ("lrp", "saliency", "gnn_explainer"):
        with pytest.raises(ValueError, match="8-bit integer weights in first, which pass no grad"):
            gx.explain(model, GRAPHS, method)
    explanations = gx.explain(model, GRAPHS, "occlusion")
    with torch.no_grad():
        whole = quantised(GRAPHS[0].x, EDGES, torch.zeros(4, dtype=torch.long))
    assert explanations[0].output == pytest.approx(whole.item(), abs=1e-6)


def test_a_loader_counts_as_the_list_of_its_graphs():
    model = gx.wrap(Pooled().eval(), kind="regression")
    expected = gx.explain(model, GRAPHS)
    for loader in (DataLoader(GRAPHS, batch_size=2), list(DataLoader(GRAPHS, batch_size=2))):
        explanations = gx.explain(model, loader)
        assert len(explanations) == 3
        for a, b in zip(explanations, expected, strict=True):
            assert a.relevance == pytest.approx(b.relevance, abs=1e-7)
    measured = gx.evaluate(model, DataLoader(GRAPHS, batch_size=2), ["lrp"], metrics=["au_mse"])
    of_list = gx.evaluate(model, GRAPHS, ["lrp"], metrics=["au_mse"])
    assert measured.table().equals(of_list.table())


def test_a_loader_of_tensors_counts_as_the_list_of_its_rows():
    class Mean(nn.Linear):
        def forward(self, x):
            return super().forward(x).mean(1)

    model = gx.wrap(Mean(DIM, 1).eval(), kind="regression", inputs="tokens")
    rows = torch.randn(3, 4, DIM)
    loader = torch.utils.data.DataLoader(TensorDataset(rows, torch.zeros(3)), batch_size=2)
    explanations = gx.explain(model, loader)
    expected = gx.explain(model, list(rows))
    assert [len(e) for e in explanations] == [4, 4, 4]
    for a, b in zip(explanations, expected, strict=True):
        assert a.relevance == pytest.approx(b.relevance, abs=1e-7)


# -- one output per node -------------------------------------------------------------------------


class PerNode(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = GCNConv(DIM, DIM), GCNConv(DIM, 2)

    def forward(self, x, edge_index, batch):
        return self.last(self.first(x, edge_index).relu(), edge_index)


def test_the_output_of_a_chosen_node_is_explained():
    module = PerNode().eval()
    model = gx.wrap(module, kind="multiclass", classes=2)
    nodes = [0, 3, 2]
    together = gx.explain(model, GRAPHS, "gradient_input", node=nodes, target="1")
    for data, node, explanation in zip(GRAPHS, nodes, together, strict=True):
        x = data.x.clone().requires_grad_()
        output = module(x, data.edge_index, None)[node, 1]
        (gradient,) = torch.autograd.grad(output, x)
        assert explanation.relevance == pytest.approx(
            (x * gradient).sum(-1).detach().numpy(), abs=1e-6
        )
        assert explanation.output == pytest.approx(output.item(), abs=1e-6)
        alone = gx.explain(model, data, "gradient_input", node=node, target="1")
        assert explanation.relevance == pytest.approx(alone.relevance, abs=1e-6)


def test_hiding_nodes_explains_a_chosen_node_too():
    module = PerNode().eval()
    model, data = gx.wrap(module, kind="multiclass", classes=2), GRAPHS[0]
    explanation = gx.explain(model, data, "occlusion", node=0, target="1")
    keep = torch.tensor([True, False, True, True])
    rest = data.subgraph(keep)
    with torch.no_grad():
        whole, without = (module(d.x, d.edge_index, None)[0, 1] for d in (data, rest))
    assert explanation.relevance[1] == pytest.approx((whole - without).item(), abs=1e-6)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (None, r"one row per node.*: choose the node to explain, such as .*node=0"),
        (9, "there is no node 9: the graph has nodes 0 to 3"),
    ],
)
def test_a_node_must_be_chosen(node, message):
    model = gx.wrap(PerNode().eval(), kind="multiclass", classes=2)
    with pytest.raises(ValueError, match=message):
        gx.explain(model, GRAPHS[0], node=node)


def test_there_must_be_a_node_for_each_graph():
    model = gx.wrap(PerNode().eval(), kind="multiclass", classes=2)
    with pytest.raises(ValueError, match="node= names 2 nodes for 3 inputs"):
        gx.explain(model, GRAPHS, node=[0, 1])


def test_a_model_of_graphs_has_no_node_to_choose():
    with pytest.raises(ValueError, match="node= is for models that return one row per node"):
        gx.explain(gx.wrap(Pooled().eval(), kind="regression"), GRAPHS[0], node=1)


def test_logits_of_several_classes_are_no_binary_task():
    pooled = Pooled().eval()
    model = gx.wrap(
        pooled, kind="binary", forward=lambda m, b: m(b.x, b.edge_index, b.batch)[:, [0, 0]]
    )
    with pytest.raises(ValueError, match="and classes=2, or their names"):
        gx.explain(model, GRAPHS)
    with pytest.raises(ValueError, match="no kind 'classification'; the kinds are 'binary', 'mult"):
        gx.wrap(pooled, kind="classification")


# -- nodes of several types ----------------------------------------------------------------------

KINDS = [("author", "writes", "paper"), ("paper", "rev_writes", "author")]


def typed(seed: int) -> HeteroData:
    draw = torch.Generator().manual_seed(seed)
    data = HeteroData()
    data["author"].x = torch.randn(3 + seed % 2, 5, generator=draw)
    data["paper"].x = torch.randn(4, DIM, generator=draw)
    writes = torch.tensor([[0, 1, 2, 2], [0, 1, 2, 3]])
    data[KINDS[0]].edge_index, data[KINDS[1]].edge_index = writes, writes.flip(0)
    return data


class Hgt(nn.Module):
    """PyG's example of HGT, with an output for each author or for each graph."""

    def __init__(self, pooled: bool):
        super().__init__()
        torch.manual_seed(0)
        self.inside = nn.ModuleDict({"author": nn.Linear(5, DIM), "paper": nn.Linear(DIM, DIM)})
        self.convs = nn.ModuleList(
            HGTConv(DIM, DIM, (["author", "paper"], KINDS), heads=2) for _ in range(2)
        )
        self.head, self.pooled = nn.Linear(DIM, 1), pooled

    def forward(self, x_dict, edge_index_dict, batch_dict=None):
        h = {kind: self.inside[kind](x).relu() for kind, x in x_dict.items()}
        for conv in self.convs:
            h = conv(h, edge_index_dict)
        if not self.pooled:
            return self.head(h["author"])
        return self.head(global_add_pool(h["author"], batch_dict["author"]))


@pytest.mark.parametrize("pooled", [True, False], ids=["per graph", "per author"])
def test_relevance_of_a_heterogeneous_graph_is_by_type(pooled):
    module = Hgt(pooled).eval()
    model, graphs = gx.wrap(module, kind="regression"), [typed(0), typed(1)]
    node = {} if pooled else {"node": ("author", 2)}
    together = gx.explain(model, graphs, "gradient_input", **node)
    for data, explanation in zip(graphs, together, strict=True):
        xs = {kind: data[kind].x.clone().requires_grad_() for kind in ("author", "paper")}
        batch = {kind: torch.zeros(len(x), dtype=torch.long) for kind, x in xs.items()}
        output = module(xs, data.edge_index_dict, batch)
        output = output[0, 0] if pooled else output[2, 0]
        gradients = torch.autograd.grad(output, list(xs.values()))
        assert list(explanation.relevance_of) == ["author", "paper"]
        for (kind, x), gradient in zip(xs.items(), gradients, strict=True):
            expected = (x * gradient).sum(-1).detach().numpy()
            assert explanation.relevance_of[kind] == pytest.approx(expected, abs=1e-6)
        assert explanation.output == pytest.approx(output.item(), abs=1e-6)
        alone = gx.explain(model, data, "gradient_input", **node)
        assert explanation.relevance == pytest.approx(alone.relevance, abs=1e-6)
        lrp = gx.explain(model, data, **node)
        assert abs(lrp.ledger.unexplained) < 1e-5
        assert sum(map(np.sum, lrp.relevance_of.values())) == pytest.approx(
            lrp.ledger.nodes, abs=1e-5
        )


def test_what_a_heterogeneous_graph_lacks_is_named():
    model, data = gx.wrap(Hgt(False).eval(), kind="regression"), typed(0)
    with pytest.raises(ValueError, match=r"choose the node to explain, .*node=\('author', 0\)"):
        gx.explain(model, data)
    with pytest.raises(ValueError, match="is a type and a number"):
        gx.explain(model, data, node=3)
    data["paper"].batch = torch.tensor([0, 0, 0, 1])
    with pytest.raises(ValueError, match="its attribute `batch` names 2 graphs"):
        gx.explain(model, data, node=("author", 0))
    del data["paper"].x, data["paper"].batch
    data["paper"].num_nodes = 4
    with pytest.raises(ValueError, match="nodes of type 'paper' need float features"):
        gx.explain(model, data, node=("author", 0))


# -- as a module, and beside training ------------------------------------------------------------


def test_a_wrapped_model_can_be_used_as_its_module():
    module = Pooled()
    model = gx.wrap(module, kind="regression")
    assert model.state_dict().keys() == module.state_dict().keys()
    assert model.to(torch.float64) is model
    assert next(model.parameters()).dtype == torch.float64
    assert model.device == torch.device("cpu")
    assert model.load_state_dict(Pooled().state_dict()).missing_keys == []
    assert not model.eval().training
    assert not module.drop.training
    assert model.train().training
    assert module.drop.training


def test_pyg_algorithms_can_be_pickled():
    algorithm = pickle.loads(pickle.dumps(algorithms.LRP()))
    data, module = GRAPHS[0], Pooled().eval()
    explanation = PygExplainer(
        module, algorithm, explanation_type="model", node_mask_type="object",
        model_config={"mode": "regression", "task_level": "graph", "return_type": "raw"},
    )(data.x, data.edge_index, batch=torch.zeros(4, dtype=torch.long))  # fmt: skip
    expected = gx.explain(gx.wrap(module, kind="regression"), data)
    assert explanation.node_mask[:, 0].numpy() == pytest.approx(expected.relevance, abs=1e-6)
    pickle.loads(pickle.dumps(algorithm))


class Watched(Pooled):
    """A model that waits within its pass until another thread has looked at the modes."""

    def forward(self, x, edge_index, batch):
        if watching.is_set():
            looked.clear()
            looked.wait(5)
        return super().forward(x, edge_index, batch)


watching, looked = threading.Event(), threading.Event()


@pytest.mark.parametrize("method", ["lrp", "saliency", "occlusion", "integrated_gradients"])
def test_other_threads_never_see_the_model_in_another_mode(method):
    module = Watched()
    module.first.eval()
    modes, seen, stop = [m.training for m in module.modules()], set(), threading.Event()

    def look():
        while not stop.is_set():
            seen.add(tuple(m.training for m in module.modules()))
            looked.set()

    model = gx.wrap(module, kind="regression")
    thread = threading.Thread(target=look)
    thread.start()
    watching.set()
    try:
        options = {"steps": 2} if method == "integrated_gradients" else {}
        explanations = gx.explain(model, GRAPHS, method, **options)
    finally:
        watching.clear()
        stop.set()
        thread.join()
    assert seen == {tuple(modes)}
    expected = gx.explain(gx.wrap(Pooled().eval(), kind="regression"), GRAPHS, method, **options)
    for a, b in zip(explanations, expected, strict=True):
        assert a.relevance == pytest.approx(b.relevance, abs=1e-6)


def by_attribute(m: Pooled) -> None:
    m.parts = [m.drop]
    m.forward = lambda x, edge_index, batch: Pooled.forward(m, m.parts[0](x), edge_index, batch)


def by_method(m: Pooled) -> None:
    m.first.forward = torch.no_grad()(m.drop.forward)


def by_partial(m: Pooled) -> None:
    m.head.forward = partial(lambda drop, x: nn.Linear.forward(m.head, drop(x)), m.drop)


@pytest.mark.parametrize("refer", [by_attribute, by_method, by_partial])
@pytest.mark.filterwarnings("ignore:.*without their gradient")
def test_references_past_the_tree_lead_to_eval_mode_too(refer):
    module = Pooled()
    refer(module)
    model = gx.wrap(module, kind="regression")
    explanation = gx.explain(model, GRAPHS[0], "gradient_input")
    assert module.drop.training
    expected = gx.explain(gx.wrap(module.eval(), kind="regression"), GRAPHS[0], "gradient_input")
    assert np.array_equal(explanation.relevance, expected.relevance)


def test_hooks_tied_weights_and_later_changes_are_those_of_the_module():
    module, seen = Pooled(), []
    module.head.weight = nn.Parameter(module.first.weight[:1].detach())
    model = gx.wrap(module, kind="regression")
    module.first.register_forward_hook(lambda m, args, out: seen.append(m.training))
    gx.explain(model, GRAPHS[0])
    assert seen
    assert not any(seen)
    with torch.no_grad():
        module.head.weight.mul_(2)
    module.drop = nn.Identity()
    doubled = gx.explain(model, GRAPHS[0]).relevance
    expected = gx.explain(gx.wrap(module.eval(), kind="regression"), GRAPHS[0]).relevance
    assert np.array_equal(doubled, expected)


def test_a_model_without_a_replica_says_that_its_mode_is_switched():
    class Helper:
        def __init__(self, module):
            self.module = module

    module = Pooled()
    module.helper = Helper(module)
    model = gx.wrap(module, kind="regression")
    with pytest.warns(UserWarning, match="is in eval mode while it is explained, in other threads"):
        explanation = gx.explain(model, GRAPHS[0])
    assert module.training
    assert module.drop.training
    expected = gx.explain(gx.wrap(Pooled().eval(), kind="regression"), GRAPHS[0])
    assert np.array_equal(explanation.relevance, expected.relevance)
