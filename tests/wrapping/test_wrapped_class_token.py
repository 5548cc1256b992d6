"""Class tokens that models add, padding by a loop, and other kernels than softmax in attention.

The reference is the same model of rows of tokens, whose first row is the class token.
"""

import functools
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.utils import to_dense_batch

import graphxai as gx
from graphxai.rules.conservative import record

pytestmark = pytest.mark.usefixtures("only_relevance")

DIM = 8
METHODS = [
    "attention_last", "rollout", "attention_flow", "gae", "gae_rollout", "partial_lrp", "cam",
    "transformer_attribution", "masked_lrp", "att_cat", "grad_cam", "lrp_zplus", "lrp", "attn_lrp",
]  # fmt: skip
KERNELS = {
    "softmax": lambda scores: scores.softmax(-1),
    "sigmoid": lambda scores: scores.sigmoid(),
    "relu": lambda scores: scores.relu(),
}


class Layer(nn.Module):
    """One head of attention by a kernel, with a residual connection."""

    def __init__(self, kernel: str):
        super().__init__()
        self.kernel = kernel
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))

    def forward(self, rows, mask):
        scores = self.q(rows) @ self.k(rows).mT
        low = -torch.inf if self.kernel != "relu" else 0.0
        weights = KERNELS[self.kernel](scores.masked_fill(~mask[:, None], low))
        return rows + weights @ self.v(rows)


class OfTokens(nn.Module):
    """Two layers over rows with a mask, read at the first row."""

    def __init__(self, kernel: str):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(kernel) for _ in range(2))
        self.token, self.last = nn.Parameter(torch.randn(1, 1, DIM)), nn.Linear(DIM, 1)

    def forward(self, x, key_padding_mask):
        for layer in self.layers:
            x = layer(x, ~key_padding_mask)
        return self.last(x[:, 0])


class OfGraphs(OfTokens):
    """The same with a class token that is put before or behind the nodes of each graph."""

    def __init__(self, kernel: str, padding: str):
        super().__init__(kernel)
        self.padding = padding

    def forward(self, x, edge_index, batch, ptr):
        rows, mask, place = getattr(self, self.padding)(x, batch, ptr)
        for layer in self.layers:
            rows = layer(rows, mask)
        return self.last(rows[:, place])

    def before(self, x, batch, ptr):
        rows, mask = to_dense_batch(x, batch)
        token = self.token.expand(len(rows), -1, -1)
        mask = torch.cat([mask.new_ones(len(mask), 1), mask], 1)
        return torch.cat([token, rows], 1), mask, 0

    def behind(self, x, batch, ptr):
        rows, mask = to_dense_batch(x, batch)
        token = self.token.expand(len(rows), -1, -1)
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        return torch.cat([rows, token], 1), mask, -1

    def by_a_loop(self, x, batch, ptr):
        """Pad as SAT does, `out[i, :n] = x[ptr[i]:ptr[i + 1]]`."""
        longest = int((ptr[1:] - ptr[:-1]).max())
        rows = x.new_zeros(len(ptr) - 1, longest + 1, DIM)
        mask = torch.zeros(len(ptr) - 1, longest + 1, dtype=torch.bool)
        for graph in range(len(ptr) - 1):
            n = int(ptr[graph + 1] - ptr[graph])
            rows[graph, 1 : n + 1] = x[ptr[graph] : ptr[graph + 1]]
            mask[graph, : n + 1] = True
        rows[:, 0] = self.token[0]
        return rows, mask, 0

    def from_the_left(self, x, batch, ptr):
        """Pad as GraphTrans does, whose axes are nodes by graphs, with the token at the end."""
        counts = batch.bincount()
        longest = int(counts.max())
        rows = x.data.new(longest, len(counts), DIM).fill_(0)
        padding = x.data.new(len(counts), longest).fill_(0).bool()
        for graph, n in enumerate(counts):
            rows[-n:, graph] = x[batch.eq(graph)]
            padding[graph, : longest - n] = True
        rows = torch.cat([rows, self.token.expand(1, len(counts), -1)], 0).transpose(0, 1)
        return rows, ~torch.cat([padding, padding.new_zeros(len(counts), 1)], 1), -1


PADDINGS = ["before", "behind", "by_a_loop", "from_the_left"]


def graph(nodes: int) -> Data:
    draw = torch.Generator().manual_seed(nodes)
    edges = torch.tensor([[0, 1], [1, 0]])
    return Data(x=torch.randn(nodes, DIM, generator=draw), edge_index=edges)


GRAPHS = [graph(5), graph(7), graph(3)]


def explained(model, data, method):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="(?s).*jit.script")
        warnings.filterwarnings("ignore", message=".*parts that no")  # rules of relu attention
        return gx.explain(model, data, method, on_error="raise")


@functools.cache
def relevance_of_rows(kernel: str) -> dict[str, list[np.ndarray]]:
    """Return what each method says of the model of rows, for each of `GRAPHS`."""
    module = OfTokens(kernel).eval()
    model = gx.wrap(module, kind="regression", inputs="tokens", graph_token=True)
    rows = [torch.cat([module.token[0].detach(), data.x]) for data in GRAPHS]
    return {
        method: [explanation.relevance for explanation in explained(model, rows, method)]
        for method in METHODS
    }


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.usefixtures("recorded_once")
def test_an_added_class_token_is_the_graph_token_of_attention(kernel, padding):
    model = gx.wrap(OfGraphs(kernel, padding).eval(), kind="regression")
    for method, expected in relevance_of_rows(kernel).items():
        sizes = [1e-5 * max(1.0, float(abs(wanted).max())) for wanted in expected]
        together = explained(model, GRAPHS, method)
        for explanation, wanted, size in zip(together, expected, sizes, strict=True):
            assert explanation.relevance == pytest.approx(wanted, abs=size), method
        alone = explained(model, GRAPHS[2], method).relevance  # the one with most padding
        assert alone == pytest.approx(expected[2], abs=sizes[2]), method


@pytest.mark.parametrize("padding", PADDINGS)
def test_the_attention_of_a_class_token_is_that_of_the_model(padding):
    module = OfGraphs("softmax", padding).eval()
    model = gx.wrap(module, kind="regression")
    batch = model.collate([model.prepare(data).data for data in GRAPHS])
    with record() as tape:
        model.encode(model.embed(batch), batch)
    for row, data in enumerate(GRAPHS):
        rows = torch.cat([module.token[0], data.x])
        for layer, attention in zip(module.layers, tape.attention, strict=True):
            weights = (layer.q(rows) @ layer.k(rows).T).softmax(-1)
            of_graph = attention[row, 0, : len(rows), : len(rows)].detach()
            np.testing.assert_allclose(of_graph, weights.detach(), atol=1e-5)
            rows = rows + weights @ layer.v(rows)


class MeanOfAll(OfGraphs):
    """Read the mean over the nodes and the class token."""

    def forward(self, x, edge_index, batch, ptr):
        rows, mask, _ = self.before(x, batch, ptr)
        for layer in self.layers:
            rows = layer(rows, mask)
        return self.last((rows * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def test_methods_start_from_the_nodes_if_these_are_read():
    model = gx.wrap(MeanOfAll("softmax", "before").eval(), kind="regression")
    first, *_ = explained(model, GRAPHS, "attention_last")
    batch = model.collate([model.prepare(data).data for data in GRAPHS])
    with record() as tape:
        model.encode(model.embed(batch), batch)
    expected = tape.attention[-1][0, 0, 1:6, 1:6].mean(0).detach()
    assert first.relevance == pytest.approx(expected.numpy(), abs=1e-6)
    assert not model.reads_class_token


def test_pairs_show_what_the_class_token_reads():
    model = gx.wrap(OfGraphs("softmax", "behind").eval(), kind="regression")
    read = gx.pairs(model, GRAPHS[0])
    assert read.graph_token
    assert abs(read.by_layer[-1][0, 1:]).min() > 0  # the last layer is read at the token alone
    assert not read.by_layer[-1][1:].any()


def test_zeros_that_pad_are_no_class_token():
    class Padded(OfGraphs):
        def forward(self, x, edge_index, batch, ptr):
            rows, mask = to_dense_batch(x, batch)
            rows = torch.cat([rows, rows.new_zeros(len(rows), 1, DIM)], 1)
            mask = torch.cat([mask, mask.new_zeros(len(mask), 1)], 1)
            for layer in self.layers:
                rows = layer(rows, mask)
            return self.last((rows * mask[..., None]).sum(1))

    model = gx.wrap(Padded("softmax", "before").eval(), kind="regression")
    batch = model.collate([model.prepare(data).data for data in GRAPHS])
    with record() as tape:
        model.encode(model.embed(batch), batch)
    assert not any(attention[..., 0].any() for attention in tape.attention)
