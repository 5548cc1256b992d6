"""Every row of the limits of wrapped models, as `docs/trust.md` lists them, happens as it says."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.explain import Explainer
from torch_geometric.nn import HGTConv, global_add_pool
from torch_geometric.nn.attention import PerformerAttention
from torch_geometric.nn.models import SGFormer
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.utils import to_dense_batch

import graphxai as gx
import graphxai.explainers.pyg as algorithms
from small_graphs import graph, random

PAGE = Path(__file__).resolve().parents[2] / "docs" / "trust.md"
TABLES = ("Patterns in a model, and what happens", "Graphs and batches")
DIM = 6


class Net(nn.Module):
    """A linear layer, a step, a sum over the nodes of each graph and a linear layer."""

    def __init__(self, step=lambda net, h, batch: h, bias=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.other = nn.Linear(DIM, DIM, bias), nn.Linear(DIM, DIM, bias)
        self.out, self.step = nn.Linear(DIM, 1, False), step

    def forward(self, x, edge_index, batch):
        h = self.step(self, self.first(x), batch)
        return self.out(global_add_pool(h, batch))


def wrapped(module, **options):
    return gx.wrap(module.eval(), kind="regression", **options)


def explained(step, method="lrp", data=None):
    return gx.explain(wrapped(Net(step)), data or graph(5), method)


def of_each_node(step):
    """Return what each node adds to the output, if it has its rows to itself (N,)."""
    net, x = Net(step).eval(), graph(5).x
    with torch.no_grad():
        return net.out(step(net, net.first(x), torch.zeros(5).long()))[:, 0].numpy()


def same(step, plain, method="lrp"):
    found, wanted = (explained(each, method).relevance for each in (step, plain))
    assert found == pytest.approx(wanted, abs=1e-5)


def warned_of(match, call):
    with pytest.warns(UserWarning, match=match):
        return call()


# -- patterns in a model ---------------------------------------------------------------------------


def operation_without_a_rule():
    def quotient(net, h, batch):
        return h / (2 + net.other(h).square().sum(-1, keepdim=True))

    ledger = warned_of("no rule covers", lambda: explained(quotient)).ledger
    assert abs(ledger.unexplained) > 1e-3
    assert ledger.total + ledger.unexplained == pytest.approx(ledger.output, abs=1e-5)


def product_of_two_signals():
    def product(net, h, batch):
        return h * net.other(h)

    def by_hand(net, h, batch):
        gate = net.other(h)
        return (h * gate.detach() + h.detach() * gate) / 2

    x = graph(5).x.requires_grad_()
    Net(by_hand)(x, None, torch.zeros(5).long()).sum().backward()
    assert explained(product).relevance == pytest.approx(
        (x * x.grad).sum(1).detach().numpy(), abs=1e-6
    )


def signal_cut_off():
    step = lambda net, h, batch: h + net.other(h.detach())  # noqa: E731
    ledger = warned_of("without their gradient", lambda: explained(step)).ledger
    whole, rest = of_each_node(step).sum(), of_each_node(lambda net, h, batch: h).sum()
    assert ledger.others["cut off"] == pytest.approx(whole - rest, abs=1e-5)
    assert "cut off" not in explained(lambda net, h, batch: h * (h.detach() > 0)).ledger.others


class WithEdges(Net):
    def forward(self, x, edge_index, edge_attr, batch):
        h = self.first(x).index_add(0, edge_index[1], self.other(edge_attr))
        return self.out(global_add_pool(h, batch))


class ScaledByEdges(WithEdges):
    def forward(self, x, edge_index, edge_attr, batch):
        h = self.first(x)
        h = h.index_add(0, edge_index[1], h[edge_index[0]] * edge_attr.sigmoid())
        return self.out(global_add_pool(h, batch))


def other_inputs():
    data = graph(5)
    data.edge_attr = random(data.num_edges, DIM)
    e = gx.explain(wrapped(WithEdges()), data, wrt=("x", "edge_attr"))
    net = WithEdges()
    with torch.no_grad():
        share = net.out(net.other(data.edge_attr))[:, 0].numpy()
    assert e.relevance_of["edge_attr"] == pytest.approx(share, abs=1e-5)
    assert e.ledger.others["edge_attr"] == pytest.approx(share.sum(), abs=1e-5)
    scaled = gx.explain(wrapped(ScaledByEdges()), data)
    assert not scaled.ledger.others
    assert abs(scaled.ledger.unexplained) < 1e-5


def numbers_in_its_code():
    ledger = explained(lambda net, h, batch: h + 0.5).ledger
    share = 5 * 0.5 * float(Net().out.weight.sum())
    assert ledger.others == {"constants": pytest.approx(share, abs=1e-5)}
    assert ledger.biases == 0


class Odd(torch.autograd.Function):
    """Twice the input, with a backward pass that is wrong."""

    @staticmethod
    def forward(ctx, h):
        return 2 * h

    @staticmethod
    def backward(ctx, gradient):
        return -7 * gradient


def custom_autograd_function():
    same(lambda net, h, batch: Odd.apply(h), lambda net, h, batch: 2 * h)


def hooks_of_yours():
    net, kept = Net(lambda net, h, batch: net.other(h).tanh()), []
    net.other.register_forward_hook(lambda module, args, output: kept.append(output))
    e = gx.explain(wrapped(net), graph(5))
    assert kept
    assert e.relevance.any()
    assert all(output.grad is None for output in kept if output.is_leaf)


def equal_entries():
    data = graph(5)
    data.x[3] = data.x[1] = data.x.abs().amax(0)
    step = lambda net, h, batch: h + h.amax(0, keepdim=True)  # noqa: E731
    relevance = explained(step, data=data).relevance
    assert relevance[1] == pytest.approx(relevance[3], abs=1e-6)


def mask_of_the_most_negative_number():
    def attention(fill):
        def step(net, h, batch):
            scores = (h @ h.T).masked_fill(torch.eye(len(h), dtype=torch.bool), fill)
            return scores.softmax(-1) @ net.other(h)

        return step

    lowest, usual = attention(torch.finfo(torch.float32).min), attention(-1e9)
    for method in ("lrp", "attn_lrp", "gradient_input"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            same(lowest, usual, method)


def places_in_an_order():
    def step(net, h, batch):
        return ((h @ h.T).softmax(-1) @ net.other(h)).sort(0).values.cumsum(0)

    warned_of("cannot leave some out", lambda: explained(step, "path_marginals"))
    for method in ("lrp_path", "occlusion"):
        assert np.isfinite(explained(step, method).relevance).all()


def scripted_and_checkpointed_code():
    plain = lambda net, h, batch: F.gelu(net.other(h))  # noqa: E731
    part = torch.jit.script(nn.Sequential(Net().other, nn.GELU()))
    same(lambda net, h, batch: part(h), plain)
    block = lambda net, h, batch: checkpoint(plain, net, h, batch, use_reentrant=False)  # noqa: E731
    same(block, plain)
    same(lambda net, h, batch: torch.vmap(lambda row: F.gelu(net.other(row)))(h), plain)


def sparse_matrices():
    matrix = (graph(5).x @ graph(5).x.T).sigmoid()
    sparse, dense = (
        lambda net, h, batch, a=a: a @ net.other(h) if len(h) == 5 else h
        for a in (matrix.to_sparse(), matrix)
    )
    same(sparse, dense)
    signal = lambda net, h, batch: torch.sparse.softmax(h.to_sparse(), 1).to_dense()  # noqa: E731
    with pytest.raises(ValueError, match="sparse"):
        explained(signal, "lrp_zplus")


def complex_numbers():
    step = lambda net, h, batch: torch.complex(h, net.other(h)).abs()  # noqa: E731
    same(step, lambda net, h, batch: (h.square() + net.other(h).square()).sqrt(), "gradient_input")
    assert explained(step).relevance.any()
    with pytest.raises(ValueError, match=r"relevance cannot be followed through .*complex"):
        explained(step, "lrp_zplus")


def nested_and_masked_tensors():
    nested = lambda net, h, batch: torch.nested.as_nested_tensor(  # noqa: E731
        [h], layout=torch.jagged
    ).values()
    masked = lambda net, h, batch: torch.masked.as_masked_tensor(h, h > 0).to_tensor(0.0)  # noqa: E731
    for step in (nested, masked):
        with pytest.raises(ValueError, match="relevance cannot be followed through"):
            explained(step, "lrp_zplus")
        assert np.isfinite(explained(step, "occlusion").relevance).all()


def integer_weights():
    net = torch.ao.quantization.quantize_dynamic(Net().eval(), {nn.Linear}, torch.qint8)
    model = wrapped(net)
    with pytest.raises(ValueError, match="8-bit integer weights in first"):
        gx.explain(model, graph(5), "lrp")
    assert gx.explain(model, graph(5), "occlusion").relevance.any()


class OfOneGraph(Net):
    def forward(self, x, edge_index):
        return self.out(F.gelu(self.other(self.first(x))).sum(0, keepdim=True))


def exported_modules():
    data, module = graph(5), OfOneGraph().eval()
    exported = torch.export.export(module, (data.x, data.edge_index)).module()
    model = gx.wrap(exported, kind="regression")
    assert gx.explain(model, data).relevance == pytest.approx(
        gx.explain(wrapped(module), data).relevance, abs=1e-5
    )
    with pytest.raises(Exception, match=r"shape|size|dim|Guard"):
        gx.explain(model, graph(8))


def random_numbers():
    step = lambda net, h, batch: F.dropout(h, 0.5, training=True)  # noqa: E731
    warned_of("random", lambda: explained(step))


def training_mode():
    net = Net(lambda net, h, batch: F.dropout(h, 0.5, training=net.training))
    model = gx.wrap(net.train(), kind="regression")
    assert gx.explain(model, graph(5)).relevance == pytest.approx(
        of_each_node(lambda net, h, batch: h), abs=1e-5
    )
    assert net.training


def sgformer_in_double_precision():
    module = SGFormer(DIM, 4, 1).double().eval()
    data = graph(5)
    with pytest.raises(RuntimeError, match=r"dtype|type"):
        module(data.x.double(), data.edge_index, torch.zeros(5).long())
    with pytest.raises((RuntimeError, ValueError), match=r"dtype|type"):
        gx.explain(gx.wrap(module, kind="regression"), data)


# -- graphs and batches ----------------------------------------------------------------------------

GRAPHS = [graph(5), graph(8), graph(3)]
COST = "so 3 graphs take 3 passes instead of one"


def one_at_a_time(step, match):
    together = warned_of(match, lambda: gx.explain(wrapped(Net(step)), GRAPHS))
    for e, data in zip(together, GRAPHS, strict=True):
        alone = gx.explain(wrapped(Net(step)), data)
        assert e.relevance == pytest.approx(alone.relevance, abs=1e-5)


def graphs_that_are_mixed():
    one_at_a_time(
        lambda net, h, batch: (h @ h.T).softmax(-1) @ net.other(h), f"mixes the graphs.*{COST}"
    )


def padding_that_is_counted():
    attention = PerformerAttention(DIM, 1)

    def linear_attention(net, h, batch):
        dense, mask = to_dense_batch(h, batch)
        return attention.eval()(dense, mask)[mask]

    one_at_a_time(linear_attention, f"counts padding.*{COST}")


class Total(Net):
    def forward(self, x, edge_index):
        return self.out(self.first(x).relu().sum(0, keepdim=True))


def without_a_batch_vector():
    module = Total().eval()
    together = warned_of(
        f"without a batch vector.*{COST}",
        lambda: gx.explain(gx.wrap(module, kind="regression"), GRAPHS),
    )
    for e, data in zip(together, GRAPHS, strict=True):
        alone = gx.explain(gx.wrap(module, kind="regression"), data)
        assert e.relevance == pytest.approx(alone.relevance, abs=1e-6)


class Mean(Net):
    def forward(self, x, edge_index):
        h = self.first(x)
        return self.out((h - h.mean(0)).relu().sum(0, keepdim=True))


def explainer_of_pyg_without_batch():
    data, module = graph(5), Mean().eval()
    settings = {"mode": "regression", "task_level": "graph", "return_type": "raw"}
    pyg = Explainer(
        module, algorithms.Occlusion(), explanation_type="model", node_mask_type="object",
        model_config=settings,
    )  # fmt: skip
    found = pyg(data.x, data.edge_index).node_mask[:, 0].numpy()
    wanted = gx.explain(gx.wrap(module, kind="regression"), data, "occlusion").relevance
    assert found == pytest.approx(wanted, abs=1e-5)


class Loop(Net):
    def forward(self, x, edge_index, batch):
        h = self.first(x)
        parts = [h[batch == k] for k in range(int(batch.max()) + 1)]
        attended = [((p @ p.T).softmax(-1) @ self.other(p)).sum(0) for p in parts]
        return self.out(torch.stack(attended))


def attention_in_one_graph_after_another():
    match = f"attention in one graph after another, {COST}"
    together = warned_of(match, lambda: gx.explain(wrapped(Loop()), GRAPHS, "rollout"))
    for e, data in zip(together, GRAPHS, strict=True):
        alone = gx.explain(wrapped(Loop()), data, "rollout")
        assert e.relevance == pytest.approx(alone.relevance, abs=1e-6)


class Typed(nn.Module):
    def __init__(self):
        super().__init__()
        types = (["author", "paper"], [("author", "writes", "paper")])
        self.conv, self.out = HGTConv({"author": 4, "paper": 3}, 8, types), nn.Linear(8, 1)

    def forward(self, x_dict, edge_index_dict, batch_dict):
        papers = self.conv(x_dict, edge_index_dict)["paper"]
        return self.out(global_add_pool(papers, batch_dict["paper"]))


def heterogeneous_graphs():
    data = HeteroData()
    data["author"].x, data["paper"].x = random(2, 4), random(2, 3)
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [0, 1]])
    model = wrapped(Typed())
    assert set(gx.explain(model, data).relevance_of) == {"author", "paper"}
    data["paper"].x = torch.ones(2, 3).long()
    with pytest.raises(ValueError, match="paper"):
        gx.explain(model, data)


class OfNodes(Net):
    def forward(self, x, edge_index):
        h = self.first(x)
        return self.out(h.index_add(0, edge_index[1], h[edge_index[0]]))


def the_chosen_node_is_hidden():
    e = gx.explain(gx.wrap(OfNodes().eval(), kind="regression"), graph(5), "occlusion", node=2)
    assert e.without_nodes == 0
    assert e.relevance[2] == pytest.approx(e.output, abs=1e-5)  # all of it, as nothing is left
    ignores = gx.wrap(
        Net().eval(), kind="regression", forward=lambda m, b: m(b.x, b.edge_index, b.batch)
    )
    with pytest.raises(ValueError, match="pair"):
        gx.explain(ignores, graph(5), pair=(0, 1))


def one_graph_cannot_be_used():
    broken = Data(x=torch.full((3, DIM), torch.nan), edge_index=torch.zeros(2, 0).long())
    model = wrapped(Net())
    results = warned_of("input 1 was left out", lambda: gx.explain(model, [graph(5), broken]))
    assert results[0] is not None
    assert results[1] is None

    def fails(net, h, batch):
        raise RuntimeError("no graph is good enough")

    with pytest.raises(RuntimeError, match="no graph is good enough"):
        gx.explain(wrapped(Net(fails)), GRAPHS)


class AnyWidth(Net):
    def forward(self, x, edge_index, batch, edge_attr=None):
        h = x.sum(1, keepdim=True).expand(-1, DIM) if x.shape[1] != DIM else self.first(x)
        if edge_attr is not None:
            h = h.index_add(0, edge_index[1], self.other(edge_attr))
        return self.out(global_add_pool(h, batch))


def different_attributes():
    graphs = [graph(5), graph(8), graph(3)]
    graphs[0].edge_attr = random(graphs[0].num_edges, DIM)
    graphs[2].x = graphs[2].x[:, :2]
    model = wrapped(AnyWidth())
    for e, data in zip(gx.explain(model, graphs), graphs, strict=True):
        assert e.output == pytest.approx(gx.explain(model, data).output, abs=1e-5)


def output_that_is_no_number():
    for method in ("lrp", "attn_lrp", "occlusion", "saliency", "lrp_path"):
        with pytest.raises(ValueError, match=r"not .*finite|no .*number"):
            explained(lambda net, h, batch: h / 0 * 0, method)


def batch_of_its_own():
    data = graph(5)
    data.batch = torch.tensor([0, 0, 1, 1, 1])
    with pytest.raises(ValueError, match="names 2 graphs"):
        gx.explain(wrapped(Net()), data)


class Codes(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(1, 1)

    def forward(self, x, edge_index, batch):
        return self.out(global_add_pool(x.float(), batch))


def codes_that_nothing_looks_up():
    data = graph(5)
    data.x = torch.arange(5)[:, None]
    model = wrapped(Codes())
    weight = float(model.module.out.weight)
    e = gx.explain(model, data, "occlusion")
    assert e.relevance == pytest.approx([weight * k for k in range(5)], abs=1e-5)
    with pytest.raises(ValueError, match="cannot carry gradients"):
        gx.explain(model, data, "lrp")


class Sums(Net):
    def forward(self, x, adj_t, batch):
        return self.out(global_add_pool(adj_t @ self.first(x), batch))


def batch_with_a_sparse_matrix():
    graphs = [ToSparseTensor(layout=torch.sparse_coo)(graph(n)) for n in (5, 3)]
    model = wrapped(Sums())
    wanted = [gx.explain(model, data).relevance for data in graphs]
    for e, relevance in zip(gx.explain(model, graphs), wanted, strict=True):
        assert e.relevance == pytest.approx(relevance, abs=1e-5)
    for e, relevance in zip(gx.explain(model, Batch.from_data_list(graphs)), wanted, strict=True):
        assert e.relevance == pytest.approx(relevance, abs=1e-5)


ROWS = {
    "an operation without a rule": operation_without_a_rule,
    "a product of two signals": product_of_two_signals,
    "`detach`": signal_cut_off,
    "other inputs": other_inputs,
    "numbers in its code": numbers_in_its_code,
    "a custom autograd function": custom_autograd_function,
    "hooks of yours": hooks_of_yours,
    "entries of `max`": equal_entries,
    "a mask of the most negative number": mask_of_the_most_negative_number,
    "sorting": places_in_an_order,
    "scripted code": scripted_and_checkpointed_code,
    "sparse matrices": sparse_matrices,
    "complex numbers": complex_numbers,
    "nested and masked tensors": nested_and_masked_tensors,
    "8-bit integer weights": integer_weights,
    "modules of `torch.export`": exported_modules,
    "random numbers": random_numbers,
    "training mode": training_mode,
    "PyG's SGFormer": sgformer_in_double_precision,
    "the model mixes": graphs_that_are_mixed,
    "it counts padding": padding_that_is_counted,
    "it has no batch vector": without_a_batch_vector,
    "PyG's `Explainer`": explainer_of_pyg_without_batch,
    "attention is computed": attention_in_one_graph_after_another,
    "heterogeneous graphs": heterogeneous_graphs,
    "the chosen node": the_chosen_node_is_hidden,
    "one graph cannot be used": one_graph_cannot_be_used,
    "graphs have different": different_attributes,
    "the output of a graph": output_that_is_no_number,
    "a graph has a `batch`": batch_of_its_own,
    "nothing is looked up": codes_that_nothing_looks_up,
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of", "ignore:.*quantization")
def test_what_the_page_says_of_a_model_happens(row):
    ROWS[row]()


def test_a_batch_with_sparse_matrices_is_explained_as_its_graphs():
    batch_with_a_sparse_matrix()


def test_every_row_of_the_page_has_a_test():
    page = PAGE.read_text(encoding="utf-8")
    for title in TABLES:
        section = page.split(f"### {title}\n")[1].split("\n#")[0]
        for row in re.findall(r"^\| (.*?) \|", section, re.MULTILINE)[1:]:
            assert any(row.startswith(start) for start in ROWS), row
