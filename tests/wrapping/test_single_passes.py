"""Where the graphs of a list take a pass each, a warning says why and what that costs, once."""

import warnings

import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, global_add_pool
from torch_geometric.nn.attention import PerformerAttention
from torch_geometric.utils import to_dense_batch

import graphxai as gx
from small_graphs import graph, started, wrapped

GRAPHS = [graph(n) for n in (5, 8, 3)]


class Apart(nn.Module):
    """Attention along edges, then a sum over the nodes of each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = GATConv(6, 8), nn.Linear(8, 1)

    def forward(self, x, edge_index, batch):
        return self.head(global_add_pool(self.first(x, edge_index), batch))


class Mixing(Apart):
    """A mean over the whole batch."""

    def forward(self, x, edge_index, batch):
        h = self.first(x, edge_index)
        return self.head(global_add_pool(h - h.mean(0), batch))


class WithoutBatch(Apart):
    """A sum over all nodes, whatever graph they are of."""

    def forward(self, x, edge_index):
        return self.head(self.first(x, edge_index).sum(0, keepdim=True))


class WithMatrix(Apart):
    """A dense matrix of pairs of nodes, of one graph."""

    def forward(self, x, edge_index, pairs, batch):
        return self.head(global_add_pool(pairs @ self.first(x, edge_index), batch))


class CountsPadding(Apart):
    """Linear attention over padded nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = PerformerAttention(8, 1)

    def forward(self, x, edge_index, batch):
        h, mask = to_dense_batch(self.first(x, edge_index), batch)
        return self.head(global_add_pool(self.attention(h, mask)[mask], batch))


class Loops(nn.Module):
    """Looks codes up in a named table, in a loop over the graphs, and attends in the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 8), nn.Linear(8, 1)

    def forward(self, x, edge_index, batch):
        sums = []
        for k in range(int(batch.max()) + 1):
            h = self.table(x[batch == k])
            sums.append(((h @ h.T).softmax(-1) @ h).sum(0))
        return self.head(torch.stack(sums))


class FailsTogether(WithoutBatch):
    """Refuses more than one graph, although it takes a batch vector."""

    def forward(self, x, edge_index, batch):
        if int(batch.max()):
            raise RuntimeError("one graph only")
        return super().forward(x, edge_index)


def with_matrices():
    graphs = [graph(n) for n in (5, 8, 3)]
    for data in graphs:
        data.pairs = torch.eye(len(data.x))
    return graphs


def with_codes():
    graphs = [graph(n) for n in (5, 8, 3)]
    for data in graphs:
        data.x = torch.arange(len(data.x))
    return graphs


COST = "so 3 graphs take 3 passes instead of one"
CASES = {
    "mixed graphs": (Mixing, GRAPHS, {}, f"Mixing mixes the graphs of a batch in .*, {COST}"),
    "no batch vector": (WithoutBatch, GRAPHS, {}, f"without a batch vector, {COST}"),
    "matrices of pairs": (WithMatrix, with_matrices(), {}, f"matrices of pairs.*, {COST}"),
    "padding": (CountsPadding, GRAPHS, {}, f"counts padding, .*, {COST}"),
    "a loop over a named table": (
        Loops, with_codes(), {"embedding": "table"}, f"in parts, as in a loop over .*, {COST}"
    ),
    "a model of one graph": (FailsTogether, GRAPHS, {}, f"raises an error for sev.*, {COST}"),
}  # fmt: skip


def warnings_of(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in caught if "passes instead of" in str(w.message)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", ["lrp", "integrated_gradients", "occlusion"])
def test_the_cost_of_single_passes_is_said_once(case, method):
    module, graphs, options, message = CASES[case]
    model = wrapped(started(module()), **options)
    with pytest.warns(UserWarning, match=message):
        explained = gx.explain(model, graphs, method)
    assert all(e is not None for e in explained)
    assert warnings_of(lambda: gx.explain(model, graphs, method)) == []


@pytest.mark.parametrize("case", CASES)
def test_predictions_say_it_too(case):
    module, graphs, options, message = CASES[case]
    if case == "a loop over a named table":
        return  # a prediction replaces no look-ups, so its graphs share a pass
    with pytest.warns(UserWarning, match=message):
        gx.predict(wrapped(started(module()), **options), graphs)


def test_attention_that_is_computed_in_a_loop_is_read_in_a_pass_for_each_graph():
    class LoopsOverRows(Loops):
        def forward(self, x, edge_index, batch):
            h = x @ self.table.weight[:6]
            parts = [h[batch == k] for k in range(int(batch.max()) + 1)]
            return self.head(torch.stack([((p @ p.T).softmax(-1) @ p).sum(0) for p in parts]))

    model = wrapped(started(LoopsOverRows()))
    assert warnings_of(lambda: gx.explain(model, GRAPHS, "lrp")) == []
    with pytest.warns(UserWarning, match=f"attention in one graph after another, {COST}"):
        gx.explain(model, GRAPHS, "rollout")


class FailsForThree(Apart):
    """Takes two graphs, but not three."""

    def forward(self, x, edge_index, batch):
        if int(batch.max()) > 1:
            raise RuntimeError("two graphs at most")
        return super().forward(x, edge_index, batch)


@pytest.mark.parametrize("call", [gx.explain, gx.predict])
def test_inputs_that_fail_together_and_run_alone_are_not_run_alone_in_silence(call):
    message = (
        r"3 inputs take 3 passes .*: together they failed \(RuntimeError: two graphs at most\)"
    )
    with pytest.warns(UserWarning, match=message):
        assert None not in call(wrapped(started(FailsForThree())), GRAPHS)


def test_a_long_list_says_how_many_passes_there_would_be():
    graphs = [graph(3 + k % 4) for k in range(70)]
    with pytest.warns(UserWarning, match="so 70 graphs take 70 passes instead of 2"):
        gx.predict(wrapped(started(WithoutBatch())), graphs)


class DividesByRows(CountsPadding):
    """Divides by the number of rows of the batch, which a graph of the same size changes, too."""

    def forward(self, x, edge_index, batch):
        return super().forward(x, edge_index, batch) / len(x)


@pytest.mark.parametrize(("kind", "passes"), [(CountsPadding, 3), (DividesByRows, 7)])
@pytest.mark.parametrize("method", ["lrp", "gradient_input", "occlusion", "rollout"])
def test_graphs_of_one_size_share_a_pass_of_a_model_that_counts_padding(kind, passes, method):
    graphs = [graph(n) for n in (5, 8, 5, 3, 8, 5, 3)]
    for k, each in enumerate(graphs):
        each.x = each.x + k
    module = started(kind())
    with pytest.warns(UserWarning, match=f"so 7 graphs take {passes} passes instead of one"):
        together = gx.explain(wrapped(module), graphs, method)
    for explanation, alone in zip(together, graphs, strict=True):
        by_itself = gx.explain(wrapped(module), alone, method)
        assert explanation.relevance == pytest.approx(by_itself.relevance, rel=1e-4, abs=1e-5)
        assert explanation.output == pytest.approx(by_itself.output, rel=1e-5)


def test_graphs_that_share_a_pass_or_were_to_go_alone_are_not_warned_of():
    alone = {"forward": lambda model, g: model(g.x, g.edge_index, g.x.new_zeros(len(g.x)).long())}
    for options in ({}, {"one_at_a_time": True, **alone}):
        model = wrapped(started(Apart()), **options)
        assert warnings_of(lambda m=model: gx.explain(m, GRAPHS, "lrp")) == []
        assert warnings_of(lambda m=model: gx.explain(m, GRAPHS, "occlusion")) == []
