"""Small models built as Graphormer, EGT, TokenGT and Uni-Mol were published can be explained.

The reference is the gradient of PyTorch, with the softmax, the gates, the square root of LayerNorm
and the ratio of the activation written out as constants.
"""

import math
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.utils import to_dense_adj, to_dense_batch

import graphxai as gx

DIM, HEADS, CODES = 12, 3, 9


class Functions:
    """The functions that the rules of LRP change, as the models call them."""

    softmax = staticmethod(F.softmax)
    layer_norm = staticmethod(F.layer_norm)
    gelu = staticmethod(F.gelu)
    gate = staticmethod(torch.sigmoid)


@contextmanager
def constants_written_out():
    """Let the models hold constant what LRP holds constant, in plain PyTorch."""

    def layer_norm(x, shape, weight, bias, eps=1e-5):
        deviation = (x.var(-1, unbiased=False, keepdim=True) + eps).sqrt().detach()
        return (x - x.mean(-1, keepdim=True)) / deviation * weight + bias

    before = {name: vars(Functions)[name] for name in ("softmax", "layer_norm", "gelu", "gate")}
    Functions.softmax = staticmethod(lambda x, dim: F.softmax(x, dim).detach())
    Functions.layer_norm = staticmethod(layer_norm)
    Functions.gelu = staticmethod(lambda x: x * (F.gelu(x) / x).detach())
    Functions.gate = staticmethod(lambda x: torch.sigmoid(x).detach())
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(Functions, name, function)


class Norm(nn.LayerNorm):
    def forward(self, x):
        return Functions.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return self.second(Functions.gelu(self.first(x)))


def heads_of(x):
    """Split rows (B, T, D) into heads (B, H, T, D / H)."""
    return x.unflatten(-1, (HEADS, DIM // HEADS)).transpose(1, 2)


class BiasedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x, bias, padding):
        q, k, v = map(heads_of, self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(DIM // HEADS) + bias
        scores = scores.masked_fill(padding[:, None, None], -math.inf)
        values = Functions.softmax(scores, -1) @ v
        return self.out(values.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed_forward = BiasedAttention(), FeedForward()
        self.norm1, self.norm2 = Norm(DIM), Norm(DIM)

    def forward(self, x, bias, padding):
        x = x + self.attention(self.norm1(x), bias, padding)
        return x + self.feed_forward(self.norm2(x))


class MicrosoftGraphormer(nn.Module):
    """The Graphormer of Ying 2021, which adds atoms and degrees after a graph token."""

    def __init__(self):
        super().__init__()
        self.atom_encoder = nn.Embedding(CODES + 1, DIM, padding_idx=0)
        self.in_degree_encoder = nn.Embedding(8, DIM, padding_idx=0)
        self.out_degree_encoder = nn.Embedding(8, DIM, padding_idx=0)
        self.graph_token = nn.Embedding(1, DIM)
        self.spatial_pos_encoder = nn.Embedding(6, HEADS, padding_idx=0)
        self.graph_token_virtual_distance = nn.Embedding(1, HEADS)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.final_norm, self.out = Norm(DIM), nn.Linear(DIM, 1)

    def forward(self, batched):
        x, degree, distance = batched["x"], batched["in_degree"], batched["spatial_pos"]
        graphs, nodes = x.shape[:2]
        features = self.atom_encoder(x).sum(dim=-2)
        features = features + self.in_degree_encoder(degree) + self.out_degree_encoder(degree)
        token = self.graph_token.weight.unsqueeze(0).repeat(graphs, 1, 1)
        h = torch.cat([token, features], dim=1)
        bias = torch.zeros(graphs, HEADS, nodes + 1, nodes + 1)
        bias[:, :, 1:, 1:] = self.spatial_pos_encoder(distance).permute(0, 3, 1, 2)
        virtual = self.graph_token_virtual_distance.weight.view(1, HEADS, 1)
        bias[:, :, 1:, 0] = bias[:, :, 1:, 0] + virtual
        bias[:, :, 0, :] = bias[:, :, 0, :] + virtual
        padding = torch.cat([torch.zeros(graphs, 1, dtype=torch.bool), x[:, :, 0].eq(0)], dim=1)
        for layer in self.layers:
            h = layer(h, bias, padding)
        return self.out(self.final_norm(h)[:, 0])


class EGT(nn.Module):
    """The EGT of Hussain 2022, in which channels of edges bias and gate the attention of nodes."""

    def __init__(self):
        super().__init__()
        self.nodef_embed = nn.Embedding(CODES + 1, DIM, padding_idx=0)
        self.dist_embed = nn.Embedding(6, DIM)
        self.norm_edge, self.lin_e, self.lin_g = (
            Norm(DIM),
            nn.Linear(DIM, HEADS),
            nn.Linear(DIM, HEADS),
        )
        self.norm, self.lin_qkv, self.lin_out = (
            Norm(DIM),
            nn.Linear(DIM, 3 * DIM),
            nn.Linear(DIM, DIM),
        )
        self.norm_ff, self.feed_forward = Norm(DIM), FeedForward()
        self.virtual_node = nn.Parameter(torch.randn(1, DIM))
        self.virtual_edge = nn.Parameter(torch.randn(1, DIM))
        self.final_norm, self.out = Norm(DIM), nn.Linear(DIM, 1)

    def forward(self, batched):
        x, distance = batched["x"], batched["spatial_pos"]
        graphs, nodes = x.shape[:2]
        h = self.nodef_embed(x).sum(dim=2)
        h = torch.cat([self.virtual_node.expand(graphs, 1, DIM), h], dim=1)
        edges = F.pad(self.dist_embed(distance), (0, 0, 1, 0, 1, 0))
        edges = (
            edges
            + F.pad(torch.zeros(nodes, nodes), (1, 0, 1, 0), value=1)[..., None] * self.virtual_edge
        )
        mask = F.pad(x[:, :, 0].ne(0), (1, 0), value=True)
        q, k, v = map(heads_of, self.lin_qkv(self.norm(h)).chunk(3, -1))
        e = self.norm_edge(edges)
        scores = (q @ k.transpose(-1, -2) * (DIM // HEADS) ** -0.5).clamp(-5, 5)
        scores = scores + self.lin_e(e).permute(0, 3, 1, 2)
        hidden = torch.where(mask, 0.0, -1e9)[:, None, None]
        gates = Functions.gate(self.lin_g(e).permute(0, 3, 1, 2) + hidden)
        attention = Functions.softmax(scores + hidden, -1) * gates
        h = h + self.lin_out((attention @ v).transpose(1, 2).flatten(2))
        h = h + self.feed_forward(self.norm_ff(h))
        return self.out(self.final_norm(h)[:, 0])


class TokenGT(nn.Module):
    """The TokenGT of Kim 2022: a graph token, a null token, and one for each node and edge."""

    def __init__(self):
        super().__init__()
        self.atom_encoder = nn.Embedding(CODES + 1, DIM, padding_idx=0)
        self.edge_encoder = nn.Embedding(4, DIM, padding_idx=0)
        self.graph_token, self.null_token = nn.Embedding(1, DIM), nn.Embedding(1, DIM)
        self.lap_encoder = nn.Linear(4, DIM, bias=False)
        self.order_encoder = nn.Embedding(2, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.final_norm, self.out = Norm(DIM), nn.Linear(DIM, 1)

    def forward(self, batched):
        node_feature = self.atom_encoder(batched["node_data"]).sum(-2)  # (sum of n, D)
        edge_feature = self.edge_encoder(batched["edge_data"]).sum(-2)  # (sum of E, D)
        edge_index, counts, edge_counts = (
            batched["edge_index"],
            batched["node_num"],
            batched["edge_num"],
        )
        graphs, longest = len(counts), max(n + e for n, e in zip(counts, edge_counts, strict=True))
        number = torch.arange(longest)[None].expand(graphs, longest)
        n, e = torch.tensor(counts)[:, None], torch.tensor(edge_counts)[:, None]
        is_node, is_edge = number < n, (number >= n) & (number < n + e)
        index = torch.zeros(graphs, longest, 2, dtype=torch.long)
        index[is_node] = number[is_node][:, None].expand(-1, 2)
        index[is_edge] = edge_index.T
        h = torch.zeros(graphs, longest, DIM)
        h[is_node] = node_feature
        h[is_edge] = edge_feature
        pe = torch.stack([batched["pe"][g][index[g]] for g in range(graphs)])  # (B, T, 2, 2)
        h = h + self.lap_encoder(pe.flatten(2))
        h = h + self.order_encoder(torch.eq(index[..., 0], index[..., 1]).long())
        padding = ~(is_node | is_edge)
        h = h.masked_fill(padding[..., None], 0.0)
        special = torch.cat([self.graph_token.weight, self.null_token.weight])
        h = torch.cat([special.expand(graphs, 2, DIM), h], dim=1)
        padding = F.pad(padding, (2, 0), value=False)
        for layer in self.layers:
            h = layer(h, torch.zeros(()), padding)
        return self.out(self.final_norm(h)[:, 0])


class UniMol(nn.Module):
    """The Uni-Mol of Zhou 2023, with a bias of pairs that takes in every layer's scores."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(CODES + 3, DIM, padding_idx=0)
        self.gbf_proj = nn.Linear(4, HEADS)
        self.emb_norm, self.final_norm = Norm(DIM), Norm(DIM)
        self.qkv, self.out_proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.norms = nn.ModuleList(Norm(DIM) for _ in range(4))
        self.feed_forwards = nn.ModuleList(FeedForward() for _ in range(2))
        self.classification_head = nn.Linear(DIM, 1)

    def forward(self, src_tokens, src_distance):
        padding = src_tokens.eq(0)
        h = self.emb_norm(self.embed_tokens(src_tokens))
        h = h * (1 - padding.unsqueeze(-1).type_as(h))
        means = torch.linspace(0, 4, 4)
        pairs = self.gbf_proj(torch.exp(-0.5 * (src_distance[..., None] - means) ** 2))
        bias = pairs.permute(0, 3, 1, 2).masked_fill(padding[:, None, None], -math.inf)
        for first, second, feed_forward in zip(
            self.norms[::2], self.norms[1::2], self.feed_forwards, strict=True
        ):
            q, k, v = map(heads_of, self.qkv(first(h)).chunk(3, -1))
            bias = q @ k.transpose(-1, -2) * (DIM // HEADS) ** -0.5 + bias
            values = Functions.softmax(bias, -1) @ v
            h = h + self.out_proj(values.transpose(1, 2).flatten(2))
            h = h + feed_forward(second(h))
        return self.classification_head(self.final_norm(h)[:, 0])


# -- how their authors make batches ----------------------------------------------------------------


def distances(graph: Data) -> torch.Tensor:
    n = int(graph.num_nodes)
    steps = torch.full((n, n), 4)
    reached, step = torch.eye(n, dtype=torch.bool), 0
    adjacency = to_dense_adj(graph.edge_index, max_num_nodes=n)[0] > 0
    while step < 4:
        steps[reached & (steps == 4)] = step
        reached, step = reached | (reached.float() @ adjacency.float() > 0), step + 1
    return steps


def padded(batch) -> dict:
    """Return x, degrees and distances plus 1, with zeros at padding, as Graphormer does."""
    graphs = batch.to_data_list()
    x, mask = to_dense_batch(batch.x + 1, batch.batch)
    degree = torch.zeros(mask.shape, dtype=torch.long)
    spatial_pos = torch.zeros(*mask.shape, mask.shape[1], dtype=torch.long)
    for k, graph in enumerate(graphs):
        n = int(graph.num_nodes)
        degree[k, :n] = graph.degree + 1
        spatial_pos[k, :n, :n] = distances(graph) + 1
    return {"x": x, "in_degree": degree, "spatial_pos": spatial_pos}


def as_tokens(batch) -> dict:
    graphs = batch.to_data_list()
    return {
        "node_data": batch.x + 1,
        "edge_data": batch.edge_attr + 1,
        "edge_index": torch.cat([graph.edge_index for graph in graphs], dim=1),
        "node_num": [int(graph.num_nodes) for graph in graphs],
        "edge_num": [graph.edge_index.shape[1] for graph in graphs],
        "pe": [graph.pe for graph in graphs],
    }


def run_uni_mol(model, batch):
    graphs = batch.to_data_list()
    longest = max(int(graph.num_nodes) for graph in graphs) + 2
    tokens = torch.zeros(len(graphs), longest, dtype=torch.long)
    away = torch.zeros(len(graphs), longest, longest)
    for k, graph in enumerate(graphs):
        n = int(graph.num_nodes)
        tokens[k, 0], tokens[k, n + 1] = 1, 2
        tokens[k, 1 : n + 1] = graph.x[:, 0] + 3
        away[k, 1 : n + 1, 1 : n + 1] = distances(graph).float()
    return model(tokens, away)


MODELS = {
    "graphormer": (MicrosoftGraphormer, lambda model, batch: model(padded(batch))),
    "egt": (EGT, lambda model, batch: model(padded(batch))),
    "tokengt": (TokenGT, lambda model, batch: model(as_tokens(batch))),
    "unimol": (UniMol, run_uni_mol),
}
LOOKUPS = {
    "graphormer": ("atom_encoder", "in_degree_encoder", "out_degree_encoder"),
    "egt": ("nodef_embed",),
    "tokengt": ("atom_encoder",),
    "unimol": ("embed_tokens",),
}


def molecule(nodes: int) -> Data:
    """Return a chain with a ring, whose nodes have three codes; Uni-Mol reads the first."""
    draw = torch.Generator().manual_seed(nodes)
    chain = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)])
    edge_index = torch.cat([chain, chain.flip(0)], dim=1)
    return Data(
        x=torch.randint(CODES, (nodes, 3), generator=draw),
        edge_index=edge_index,
        edge_attr=torch.randint(3, (edge_index.shape[1], 2), generator=draw),
        degree=edge_index[0].bincount(minlength=nodes),
        pe=torch.randn(nodes, 2, generator=draw),
    )


GRAPHS = [molecule(4), molecule(7), molecule(1), molecule(2)]


def by_hand(name: str, module: nn.Module, graph: Data, rules: bool) -> torch.Tensor:
    """Compute the relevance (N,) of the nodes: the sum of what is looked up times its gradient."""
    _, run = MODELS[name]
    looked_up, handles = [], []
    for path in LOOKUPS[name]:

        def keep(part, args, output):
            looked_up.append(output.detach().requires_grad_())
            return looked_up[-1]

        handles.append(module.get_submodule(path).register_forward_hook(keep))
    batch = Batch.from_data_list([graph])
    if rules:
        with constants_written_out():
            output = run(module, batch)
    else:
        output = run(module, batch)
    for handle in handles:
        handle.remove()
    gradients = torch.autograd.grad(output.sum(), looked_up)
    n = int(graph.num_nodes)
    relevance = torch.zeros(n)
    for values, gradient in zip(looked_up, gradients, strict=True):
        shares = values * gradient
        if name == "tokengt":  # a row per node
            relevance += shares.flatten(1).sum(1)
        else:  # padded, in Uni-Mol after [CLS]
            first = 1 if name == "unimol" else 0
            relevance += shares[0, first : first + n].flatten(1).sum(1)
    return relevance.detach()


@pytest.fixture(scope="module")
def modules():
    built = {}
    for name, (kind, _) in MODELS.items():
        torch.manual_seed(1)
        built[name] = kind().eval()
    return built


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("method", "rules"), [("gradient_input", False), ("lrp", True)])
def test_published_models_get_the_relevance_written_out_by_hand(modules, name, method, rules):
    model = gx.wrap(modules[name], kind="regression", forward=MODELS[name][1])
    explanations = gx.explain(model, GRAPHS, method, on_error="raise")
    assert model.settings.embedding == LOOKUPS[name]
    by_hooks = rules and name in ("graphormer", "egt")  # the others compute codes
    assert model.tier == ("hooks" if by_hooks else "recording")
    for graph, explanation in zip(GRAPHS, explanations, strict=True):
        expected = by_hand(name, modules[name], graph, rules)
        assert explanation.relevance == pytest.approx(expected.numpy(), abs=1e-5)
        if rules or name in ("graphormer", "tokengt"):  # without rules, a norm lets nothing pass
            assert float(expected.abs().max()) > 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_naming_the_embeddings_changes_nothing(modules, name):
    options = {"kind": "regression", "forward": MODELS[name][1]}
    explanations = gx.explain(gx.wrap(modules[name], **options), GRAPHS)
    named = gx.explain(gx.wrap(modules[name], embedding=LOOKUPS[name], **options), GRAPHS)
    for a, b in zip(explanations, named, strict=True):
        assert a.relevance == pytest.approx(b.relevance, abs=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_hiding_an_atom_of_a_published_model_runs_it_without_the_atom(modules, name):
    model = gx.wrap(modules[name], kind="regression", forward=MODELS[name][1])
    graph = molecule(6)
    explanation = gx.explain(model, graph, "occlusion")

    def output(part: Data) -> float:
        with torch.no_grad():
            return MODELS[name][1](modules[name], Batch.from_data_list([part])).item()

    drops = [output(graph) - output(graph.subgraph(torch.arange(6) != node)) for node in range(6)]
    assert explanation.relevance == pytest.approx(drops, abs=1e-5)
