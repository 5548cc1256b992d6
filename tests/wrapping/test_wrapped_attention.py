"""The attention of other people's models is recorded where it is, and as they compute it."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, RGATConv, global_mean_pool
from torch_geometric.nn.aggr import GraphMultisetTransformer
from torch_geometric.utils import degree, scatter, softmax, to_dense_adj, to_dense_batch

import graphxai as gx
from graphxai.explainers import head_statistics
from graphxai.explainers.layers import HeadCounts
from graphxai.rules.conservative import record

pytestmark = pytest.mark.usefixtures("only_relevance")

D = 8
READERS = ["rollout", "gae", "attention_last", "partial_lrp", "transformer_attribution"]


def graph(nodes: int) -> Data:
    draw = torch.Generator().manual_seed(100 + nodes)
    linked = torch.rand(nodes, nodes, generator=draw) < 0.4
    linked = linked.triu(1) | torch.ones(nodes, nodes).triu(1).tril(1).bool()
    edges = (linked | linked.T).nonzero().T.contiguous()
    kinds = torch.randint(0, 3, (edges.shape[1],), generator=draw)
    x = torch.randn(nodes, 6, generator=draw)
    return Data(x=x, edge_index=edges, edge_type=kinds)


GRAPHS = [graph(5), graph(8), graph(7)]
ALIKE = [graph(6), graph(6).clone(), graph(6).clone()]
ALIKE[1].x, ALIKE[2].x = -ALIKE[1].x, ALIKE[2].x.flip(0)


def drawn(model: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.3 if parameter.dim() == 1 else 0.0, 0.3)
    return model.eval()


def wrapped(model: nn.Module):
    return gx.wrap(model, kind="regression")


def recorded(model, graphs: list[Data], layer: int = 0) -> list[np.ndarray]:
    """Return the attention (H, N, N) between the nodes of each graph in one recorded layer."""
    batch = model.collate([model.prepare(graph).data for graph in graphs])
    with record() as tape:
        model.encode(model.embed(batch), batch)
    first = tape.attention[layer].detach().numpy()
    return [first[b, :, 1 : 1 + g.num_nodes, 1 : 1 + g.num_nodes] for b, g in enumerate(graphs)]


def assert_alone_as_together(module: nn.Module, graphs: list[Data], methods=READERS):
    of_all, of_one = wrapped(module), wrapped(module)
    for method in methods:
        together = gx.explain(of_all, graphs, method)
        for k in {0, len(graphs) - 1}:
            alone = gx.explain(of_one, graphs[k], method).relevance
            np.testing.assert_allclose(
                together[k].relevance, alone, rtol=1e-4, atol=1e-6, err_msg=method
            )


class Sparse(nn.Module):
    """Attention along edges whose logits have a bias for each edge type."""

    def __init__(self, types: int = 3):
        super().__init__()
        self.qkv, self.bias = nn.Linear(6, 3 * D), nn.Parameter(torch.zeros(types))
        self.head = nn.Linear(D, 1)

    def forward(self, x, edge_index, edge_type, batch):
        (source, target), (q, k, v) = edge_index, self.qkv(x).chunk(3, -1)
        logits = (q[target] * k[source]).sum(-1) + self.bias[edge_type]
        self.weights = softmax(logits, target)
        mixed = scatter(self.weights[:, None] * v[source], target, 0, len(x))
        return self.head(global_mean_pool(mixed, batch))


class Relational(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = RGATConv(6, D, num_relations=3), nn.Linear(D, 1)

    def forward(self, x, edge_index, edge_type, batch):
        return self.head(global_mean_pool(self.conv(x, edge_index, edge_type), batch))


@pytest.mark.parametrize("types", [3, 5])  # as many as there are nodes
def test_edge_types_are_not_edge_ends(types):
    module, data = drawn(Sparse(types)), GRAPHS[0]
    attention = recorded(wrapped(module), [data])[0][0]
    module(data.x, data.edge_index, data.edge_type, torch.zeros(5).long())
    wanted = torch.zeros(5, 5)
    wanted[data.edge_index[1], data.edge_index[0]] = module.weights.detach()
    np.testing.assert_allclose(attention, wanted, rtol=1e-5)


def test_attention_of_rgat_is_what_pyg_returns():
    module, data = drawn(Relational()), GRAPHS[0]
    attention = recorded(wrapped(module), [data])[0][0]
    with torch.no_grad():
        _, (edges, weights) = module.conv(
            data.x, data.edge_index, data.edge_type, return_attention_weights=True
        )
    wanted = torch.zeros(5, 5)
    wanted[edges[1], edges[0]] = weights[:, 0]
    np.testing.assert_allclose(attention, wanted, rtol=1e-5)


class Dense(nn.Module):
    """Two heads of attention over all nodes, in the layout that `how` names."""

    def __init__(self, how: str):
        super().__init__()
        self.how = how
        self.embed, self.qkv = nn.Linear(6, D), nn.Linear(D, 3 * D)
        self.head = nn.Linear(D, 1)

    def forward(self, x, edge_index, batch):
        rows = torch.arange(len(x))
        if "sorted" in self.how:
            rows = torch.argsort(degree(edge_index[1], len(x)) + 1000 * batch, stable=True)
        z, groups = self.embed(x)[rows], batch[rows]
        if self.how == "graph by graph":
            return self.head(torch.cat([self.mixed(h[None]) for h in self.parts(z, groups)]))
        if "mask of graphs" in self.how:
            q, k, v = self.qkv(z).view(len(z), 3, 2, -1).permute(1, 2, 0, 3)
            same = groups[:, None] == groups
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=same, scale=1.0)
            return self.head(global_mean_pool(z + mixed.transpose(0, 1).flatten(1), groups))
        h, mask = to_dense_batch(z, groups)
        if "back" in self.how:  # a second time, in the order of the input
            mixed = h + self.mix(h, mask, None)
            h, _ = to_dense_batch(torch.zeros_like(z).index_copy(0, rows, mixed[mask]), batch)
        mixed = h + self.mix(h, mask, to_dense_adj(edge_index, batch))
        return self.head((mixed * mask[..., None]).sum(1))

    def parts(self, z, groups):
        return [z[groups == graph] for graph in range(int(groups.max()) + 1)]

    def mixed(self, h):
        return (h + self.mix(h, torch.ones(h.shape[:2]).bool(), None)).mean(1)

    def mix(self, h: Tensor, mask: Tensor, adjacency: Tensor | None) -> Tensor:
        q, k, v = (z.unflatten(-1, (2, 4)) for z in self.qkv(h).chunk(3, -1))  # (B, N, H, d)
        if self.how == "heads before graphs on one axis":
            q, k, v = (torch.cat(z.unbind(2)) for z in (q, k, v))  # (H * B, N, d)
            hidden = ~mask.repeat(2, 1)[:, None]
            mixed = (q @ k.mT).masked_fill(hidden, -1e9).softmax(-1) @ v
            return torch.cat(mixed.split(len(h)), -1)
        if self.how == "heads before graphs":
            logits = torch.einsum("bihd,bjhd->hbij", q, k)
            weights = logits.masked_fill(~mask[None, :, None], -1e9).softmax(-1)
            return torch.einsum("hbij,bjhd->bihd", weights, v).flatten(2)
        if self.how == "heads last":
            logits = torch.einsum("bihd,bjhd->bijh", q, k)
            weights = logits.masked_fill(~mask[:, None, :, None], -1e9).softmax(2)
            return torch.einsum("bijh,bjhd->bihd", weights, v).flatten(2)
        if self.how == "keys before queries":
            logits = torch.einsum("bihd,bjhd->bhji", q, k)
            weights = logits.masked_fill(~mask[:, None, :, None], -1e9).softmax(-2)
            return torch.einsum("bhji,bjhd->bihd", weights, v).flatten(2)
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        weights = (q @ k.mT).masked_fill(~mask[:, None, None], -1e9).softmax(-1)
        if self.how == "times the adjacency":
            weights = weights * adjacency[:, None]
        if self.how == "times the adjacency in place":
            weights *= adjacency[:, None]
        if self.how == "filled with zeros":
            weights = weights.masked_fill(adjacency[:, None] == 0, 0.0)
        if self.how == "where there is an edge":
            weights = torch.where(adjacency[:, None] == 0, 0.0, weights)
        if self.how == "times a gate":
            weights = weights * torch.sigmoid(q @ v.mT)
        if self.how == "times another product":
            weights = weights * (q @ v.mT)
        return (weights @ v).transpose(1, 2).flatten(2)

    def true_attention(self, data: Data) -> np.ndarray:
        """Compute the attention (H, N, N) of one graph by loops."""
        with torch.no_grad():
            q, k, v = (z.unflatten(-1, (2, 4)) for z in self.qkv(self.embed(data.x)).chunk(3, -1))
        linked = to_dense_adj(data.edge_index, max_num_nodes=data.num_nodes)[0]
        attention = torch.zeros(2, data.num_nodes, data.num_nodes)
        for head in range(2):
            for i in range(data.num_nodes):
                row = (k[:, head] @ q[i, head]).softmax(0)
                if self.how == "times a gate":
                    row = row * torch.sigmoid(v[:, head] @ q[i, head])
                if self.how == "times another product":
                    row = row * (v[:, head] @ q[i, head])
                if "adjacency" in self.how or self.how in ("filled with zeros", WHERE):
                    row = row * linked[i]
                attention[head, i] = row
        return attention.numpy()


WHERE = "where there is an edge"
LAYOUTS = [
    "graphs, heads, queries, keys",
    "heads before graphs on one axis",
    "heads before graphs",
    "heads last",
    "keys before queries",
    "sorted by degree",
    "all nodes, a mask of graphs",
    "sorted, all nodes, a mask of graphs",
]
BACK = "sorted by degree and put back"  # where a second layer follows
SCALED = [
    "times the adjacency",
    "times the adjacency in place",
    "filled with zeros",
    WHERE,
    "times a gate",
    "times another product",
]


@pytest.mark.parametrize("graphs", [GRAPHS, ALIKE, GRAPHS[1:2]], ids=["sizes", "alike", "one"])
@pytest.mark.parametrize("how", [*LAYOUTS, BACK, *SCALED])
def test_attention_is_recorded_as_a_loop_over_pairs_has_it(how, graphs):
    module = drawn(Dense(how))
    for attention, data in zip(recorded(wrapped(module), graphs), graphs, strict=True):
        np.testing.assert_allclose(attention, module.true_attention(data), rtol=1e-4, atol=1e-6)


def test_restored_nodes_are_where_they_were():
    module, data, seen = drawn(Dense(BACK)), GRAPHS[1], []
    module.qkv.register_forward_hook(lambda _, args, out: seen.append(out[0]))
    model = wrapped(module)
    batch = model.collate([model.prepare(data).data])
    with record() as tape:
        model.encode(model.embed(batch), batch)
    q, k, _ = seen[-1].unflatten(-1, (6, 4)).transpose(0, 1).chunk(3)
    wanted = (q @ k.mT).softmax(-1).detach()
    np.testing.assert_allclose(tape.attention[1][0, :, 1:, 1:].detach(), wanted, rtol=1e-5)


@pytest.mark.parametrize("graphs", [GRAPHS, ALIKE], ids=["sizes", "alike"])
@pytest.mark.parametrize(
    "how", [*LAYOUTS, BACK, "graph by graph", "times the adjacency", "times a gate"]
)
@pytest.mark.usefixtures("recorded_once")
def test_a_graph_is_explained_the_same_alone_and_with_others(how, graphs):
    assert_alone_as_together(drawn(Dense(how)), graphs)


class Lifted(nn.Module):
    """Rows that get an axis for the batch from a constant that has one, or are given it."""

    def __init__(self, by_adding: bool) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(6, 3 * D), nn.Linear(D, 1)
        self.by_adding = by_adding

    def forward(self, x, edge_index):
        words = x.detach().view(torch.float64)  # the same memory as numbers of another size
        x = x + torch.ones(1, len(x), 1) if self.by_adding else (x + 1)[None]
        q, k, v = self.qkv(x.transpose(0, 1)).transpose(0, 1).chunk(3, -1)  # (1, n, D)
        q, k, v = (t.view(len(t), -1, 2, D // 2).transpose(1, 2) for t in (q, k, v))
        mixed = (q @ k.mT).softmax(-1) @ v
        return self.head(mixed.transpose(1, 2).flatten(2)).mean(1) + 0 * words.sum()


@pytest.mark.parametrize("method", READERS)
def test_rows_that_a_constant_gives_another_axis_are_still_those_of_the_nodes(method):
    added, given = (wrapped(drawn(Lifted(by_adding))) for by_adding in (True, False))
    for graph in GRAPHS:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*without their gradient")
            relevance, expected = (gx.explain(m, graph, method).relevance for m in (added, given))
        assert abs(expected).max() > 1e-4
        np.testing.assert_allclose(relevance, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("how", [*LAYOUTS, "times the adjacency", "times another product"])
def test_a_gradient_by_attention_is_the_slope_of_the_output(how):
    """The reference changes each entry of the recorded matrix and compares the output."""
    module, data = drawn(Dense(how)).double(), GRAPHS[0].clone()
    data.x = data.x.double()
    model = wrapped(module)
    batch = model.collate([model.prepare(data).data])
    with record() as tape:
        out = model.encode(model.embed(batch), batch)
    (slope,) = torch.autograd.grad(out.sum(), tape.attention)
    with torch.no_grad():
        z = module.embed(data.x)
        v = module.qkv(z).chunk(3, -1)[2].unflatten(-1, (2, 4))  # (N, H, d)
        last = module.head.weight[0].unflatten(0, (2, 4))  # (H, d)
        of_key = torch.einsum("jhd,hd->hj", v, last)
        share = 5 if "mask of graphs" in how else 1  # the mean over the nodes, or their sum
        wanted = of_key[:, None].expand(2, 5, 5) / share
    np.testing.assert_allclose(slope[0, :, 1:, 1:], wanted, rtol=1e-6)


@pytest.mark.parametrize("how", ["heads last", "heads before graphs on one axis", "graph by graph"])
def test_pairs_and_heads_of_a_graph_are_those_of_the_usual_layout(how):
    usual, other = wrapped(drawn(Dense(LAYOUTS[0]))), drawn(Dense(how))
    if how == "graph by graph":  # which takes the mean over the nodes
        other.head.weight.data *= GRAPHS[1].num_nodes
    pairs, wanted = gx.pairs(wrapped(other), GRAPHS, "lrp"), gx.pairs(usual, GRAPHS, "lrp")
    np.testing.assert_allclose(pairs[1].by_layer, wanted[1].by_layer, rtol=1e-4, atol=1e-6)
    statistics = [head_statistics(model, GRAPHS) for model in (wrapped(other), usual)]
    np.testing.assert_allclose(statistics[0].distances, statistics[1].distances)


@pytest.mark.parametrize("head", [0, 1])
def test_masked_lrp_goes_through_the_same_heads_in_every_layout(head, monkeypatch):
    def important(counts):
        chosen = np.zeros(counts.distances.shape[:3], dtype=bool)
        chosen[..., head] = True
        return chosen, chosen & (np.arange(len(chosen)) == 1)[:, None, None]

    monkeypatch.setattr(HeadCounts, "important", important)
    usual, *rest = [wrapped(drawn(Dense(how))) for how in LAYOUTS[:-2]]
    wanted = gx.explain(usual, GRAPHS, "masked_lrp")
    for model in rest:
        for explanation, usual_explanation in zip(
            gx.explain(model, GRAPHS, "masked_lrp"), wanted, strict=True
        ):
            np.testing.assert_allclose(
                explanation.relevance, usual_explanation.relevance, rtol=1e-5
            )


class Latents(nn.Module):
    """A model that reads nodes into 8 latents, which attend to each other."""

    def __init__(self):
        super().__init__()
        self.gat, self.latents = GATConv(6, D), nn.Parameter(torch.zeros(8, D))
        self.read = nn.MultiheadAttention(D, 2, batch_first=True)
        self.between = nn.TransformerEncoderLayer(D, 2, 16, batch_first=True)
        self.head = nn.Linear(D, 1)

    def forward(self, x, edge_index, batch):
        h, mask = to_dense_batch(self.gat(x, edge_index), batch)
        z = self.latents.expand(len(h), -1, -1)
        z = z + self.read(z, h, h, key_padding_mask=~mask)[0]
        return self.head(self.between(z).mean(1))


class Multiset(Latents):
    def __init__(self):
        super().__init__()
        self.pool = GraphMultisetTransformer(D, k=8, heads=2)

    def forward(self, x, edge_index, batch):
        return self.head(self.pool(self.gat(x, edge_index), batch))


class Clusters(Latents):
    def __init__(self):
        super().__init__()
        self.assign = nn.Linear(D, 8)

    def forward(self, x, edge_index, batch):
        h, mask = to_dense_batch(self.gat(x, edge_index), batch)
        shares = self.assign(h).softmax(-1) * mask[..., None]
        return self.head(F.gelu(shares.mT @ h).mean(1))


@pytest.mark.parametrize("kind", [Latents, Multiset, Clusters])
@pytest.mark.parametrize("graphs", [[graph(8)], [graph(5), graph(8)], [graph(7), graph(8)]])
def test_latents_are_not_nodes_even_if_there_are_as_many(kind, graphs):
    module = drawn(kind())
    model = wrapped(module)
    with pytest.warns(UserWarning, match=f"{kind.__name__} weights values in a way that is not"):
        gx.explain(model, graphs, "rollout")
    batch = model.collate([model.prepare(data).data for data in graphs])
    with record() as tape:
        model.encode(model.embed(batch), batch)
    assert len(tape.attention) == 1  # of the layer along edges


class Beside(nn.Module):
    """Attention along edges, followed by another kind of attention."""

    def __init__(self, how: str):
        super().__init__()
        self.how = how
        self.gat, self.qkv, self.head = GATConv(6, D), nn.Linear(D, 3 * D), nn.Linear(D, 1)
        self.start = nn.Parameter(torch.zeros(1, 1, D))
        self.layer = nn.TransformerEncoderLayer(D, 2, 16, batch_first=True)

    def forward(self, x, edge_index, batch):
        h = self.gat(x, edge_index)
        if self.how == "two tokens of its own":
            z, mask = to_dense_batch(h, batch)
            z = torch.cat([z, *[self.start.expand(len(z), -1, -1)] * 2], 1)
            return self.head(self.layer(z, src_key_padding_mask=F.pad(~mask, (0, 2)))[:, -1])
        q, k, v = self.qkv(h).chunk(3, -1)
        source, target = edge_index
        scores = torch.exp((q[target] * k[source]).sum(-1, keepdim=True).clamp(-5, 5))
        above = scatter(scores * v[source], target, 0, len(h))
        h = h + above / (scatter(scores, target, 0, len(h)) + 1e-6)
        return self.head(global_mean_pool(h, batch))


def test_attention_that_is_summed_before_it_is_divided_is_read():
    """As in Exphormer's own code, every node's row sums to one, but for the 1e-6."""
    (attention,) = recorded(wrapped(drawn(Beside("summed first"))), [GRAPHS[0]], layer=1)
    source, target = GRAPHS[0].edge_index.numpy()
    no_edge = np.ones(attention.shape[1:], dtype=bool)
    no_edge[target, source] = False
    assert not attention[:, no_edge].any()
    np.testing.assert_allclose(attention[:, np.unique(target)].sum(-1), 1.0, rtol=1e-4)


@pytest.mark.parametrize(("how", "place"), [("two tokens of its own", r"layer\.self_attn")])
def test_attention_that_is_not_recorded_is_named(how, place):
    model = wrapped(drawn(Beside(how)))
    for method in READERS:
        for _ in range(2):
            with pytest.warns(
                UserWarning, match=f"methods that read attention leave it out: {place}"
            ):
                gx.explain(model, GRAPHS, method)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        gx.explain(model, GRAPHS, "lrp")  # reads no attention
        gx.explain(model, GRAPHS, "lrp_zplus")
    assert not any("leave it out" in str(warning.message) for warning in seen)


def test_reading_attention_leaves_random_numbers_and_predictions_as_they_are():
    module = drawn(Dense("heads before graphs"))
    batch = Batch.from_data_list(GRAPHS)
    torch.manual_seed(5)
    before, next_draw = module(batch.x, batch.edge_index, batch.batch), torch.rand(1)
    torch.manual_seed(5)
    explanations = gx.explain(wrapped(module), GRAPHS, "rollout")
    assert torch.rand(1) == next_draw
    for explanation, output in zip(explanations, before, strict=True):
        assert explanation.output == pytest.approx(output.item(), rel=1e-5)


class RowsOfTokens(nn.Module):
    """A model with heads and inputs on one axis, for inputs of one length, so without padding."""

    def __init__(self):
        super().__init__()
        self.qkv, self.head = nn.Linear(D, 3 * D), nn.Linear(D, 1)

    def forward(self, x):
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (z.unflatten(-1, (2, 4)).transpose(1, 2).flatten(0, 1) for z in parts)
        mixed = ((q @ k.mT).softmax(-1) @ v).unflatten(0, (-1, 2))
        return self.head(mixed.transpose(1, 2).flatten(2).mean(1))


def test_heads_and_inputs_on_one_axis_are_told_apart():
    model = gx.wrap(drawn(RowsOfTokens()), kind="regression", inputs="tokens")
    rows = list(torch.randn(3, 5, D, generator=torch.Generator().manual_seed(4)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        together = gx.explain(model, rows, "rollout")
        alone = [gx.explain(model, row, "rollout") for row in rows]
    for explanation, wanted in zip(together, alone, strict=True):
        np.testing.assert_allclose(explanation.relevance, wanted.relevance, rtol=1e-5)


class HeadsBeforeTokens(RowsOfTokens):
    """A model whose heads have their own axis, before that of the inputs."""

    def forward(self, x):
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (z.unflatten(-1, (2, 4)).permute(2, 0, 1, 3) for z in parts)  # (H, B, N, d)
        mixed = (q @ k.mT).softmax(-1) @ v
        return self.head(mixed.permute(1, 2, 0, 3).flatten(2).mean(1))


def test_as_many_inputs_as_heads_are_distinguished_from_them():
    model = gx.wrap(drawn(HeadsBeforeTokens()), kind="regression", inputs="tokens")
    rows = list(torch.randn(2, 5, D, generator=torch.Generator().manual_seed(4)))
    for method in ("rollout", "gae", "transformer_attribution"):
        together = gx.explain(model, rows, method)
        for explanation, row in zip(together, rows, strict=True):
            wanted = gx.explain(model, row, method)
            np.testing.assert_allclose(
                explanation.relevance, wanted.relevance, rtol=1e-4, atol=1e-7
            )


class FirstReads(nn.Module):
    """The first node of each graph reads all nodes, of which those of other graphs are hidden."""

    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.head = nn.Linear(6, D), nn.Linear(D, 3 * D), nn.Linear(D, 1)

    def forward(self, x, edge_index, batch):
        q, k, v = (z.unflatten(-1, (2, 4)) for z in self.qkv(self.embed(x)).chunk(3, -1))
        first = torch.cat([batch.new_ones(1, dtype=torch.bool), batch[1:] != batch[:-1]])
        graphs = int(first.sum())
        k, v = (z.transpose(0, 1).repeat(graphs, 1, 1) for z in (k, v))  # (B * H, nodes, d)
        hidden = (torch.arange(graphs)[:, None] != batch).repeat_interleave(2, 0)[:, None]
        logits = q[first].flatten(0, 1)[:, None] @ k.mT
        mixed = logits.masked_fill(hidden, -1e9).softmax(-1) @ v
        return self.head(mixed.view(graphs, -1))


@pytest.mark.parametrize("graphs", [GRAPHS, ALIKE], ids=["sizes", "alike"])
def test_heads_on_the_axis_of_graphs_that_read_the_same_keys_are_told_apart(graphs):
    module = drawn(FirstReads())
    for attention, data in zip(recorded(wrapped(module), graphs), graphs, strict=True):
        with torch.no_grad():
            q, k, _ = module.qkv(module.embed(data.x)).unflatten(-1, (3, 2, 4)).unbind(1)
        expected = np.stack([(k[:, head] @ q[0, head]).softmax(0) for head in range(2)])
        np.testing.assert_allclose(attention[:, 0], expected, rtol=1e-4, atol=1e-6)
        assert not attention[:, 1:].any()


def test_a_choice_of_experts_is_not_attention():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gat, self.choose = GATConv(6, D), nn.Linear(D, 4)
            self.experts, self.head = nn.Linear(D, 4 * D), nn.Linear(D, 1)

        def forward(self, x, edge_index, batch):
            h = self.gat(x, edge_index)
            of_each = self.experts(h).unflatten(-1, (4, D))  # (n, experts, D)
            h = torch.einsum("ne,ned->nd", self.choose(h).softmax(-1), of_each)
            return self.head(global_mean_pool(h, batch))

    model = wrapped(drawn(Experts()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gx.explain(model, GRAPHS, "rollout")
