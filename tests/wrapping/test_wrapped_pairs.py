"""Pairs of other people's models agree with passes that leave a pair unread, constants frozen."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rdkit import Chem
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import AttentionalAggregation, global_mean_pool

import graphxai as gx
from graphxai.datasets.molecules import molecule_to_data
from graphxai.explainers.pairs import pair_relevance
from other_models import Bert, GpsModel, OwnLayer, SparseModel, encoder, molecules, trained

pytestmark = pytest.mark.usefixtures("only_relevance")

SMILES = ["CC(=O)[O-].[Na+]", "C1CC1O", "CCO", "O"]
NAMES = ["transformer", "gat", "gps"]


class Probe:
    """Zeros that a hook adds to a value, whose gradient is therefore that of the value."""

    def added_to(self, value: Tensor) -> Tensor:
        self.value = value.detach()
        self.zeros = torch.zeros_like(self.value).requires_grad_()
        return value + self.zeros

    def relevance(self, output: Tensor) -> Tensor:
        """Return value times gradient."""
        return self.value * torch.autograd.grad(output, self.zeros)[0]


def graph_of(smiles: str) -> Data:
    data = molecule_to_data(smiles)
    return Data(
        x=data.x.double() / 5,
        edge_index=data.edge_index,
        edge_attr=data.edge_attr.double(),
        smiles=smiles,
    )


@pytest.fixture(scope="module")
def models() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    untrained = {name: SparseModel(name) for name in NAMES[:2]} | {"gps": GpsModel()}
    return {name: trained(model, molecules(), 10).double() for name, model in untrained.items()}


class Frozen:
    """A record of the constants of a first pass, which are put into later ones.

    `unread` is the (layer, query, key) for which all heads of a later pass have zero attention.
    """

    def __init__(self) -> None:
        self.kept: list[Tensor] = []
        self.unread: tuple[int, int, int] | None = None
        self.given: list[Tensor] | None = None

    def constant(self, value: Tensor) -> Tensor:
        if self.given is None:
            self.kept.append(value)
            return value
        return self.given.pop(0)

    def attention(self, layer: int, weights: Tensor) -> Tensor:
        """Return the weights (H, N, N), which are the first constant of each layer's attention."""
        weights = self.constant(weights).clone()
        if self.unread is not None and self.unread[0] == layer:
            weights[:, self.unread[1], self.unread[2]] = 0.0
        return weights

    def ratio(self, f: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
        return z * self.constant(f(z) / z)

    def norm(self, layer: nn.LayerNorm, x: Tensor) -> Tensor:
        scale = self.constant((x.var(-1, keepdim=True, correction=0) + layer.eps).rsqrt())
        return (x - x.mean(-1, keepdim=True)) * scale * layer.weight + layer.bias

    def lost(self, run: Callable[["Frozen"], Tensor], layers: int, tokens: int) -> Tensor:
        """Return what the output loses without each pair, (L, T, T)."""
        full = run(self)
        lost = torch.zeros(layers, tokens, tokens, dtype=full.dtype)
        for entry in np.ndindex(*lost.shape):
            self.given, self.unread = list(self.kept), entry
            lost[entry] = full - run(self)
        return lost


def sparse_by_hand(model: SparseModel, graph: Data, frozen: Frozen) -> Tensor:
    n, edges = int(graph.num_nodes), graph.edge_attr.new_zeros(*[int(graph.num_nodes)] * 2, 2, 8)

    def conv(layer: int, m: nn.Module, h: Tensor) -> Tensor:
        _, (index, alpha) = m(h, graph.edge_index, graph.edge_attr, return_attention_weights=True)
        weights = alpha.new_zeros(2, n, n)
        weights[:, index[1], index[0]] = alpha.T
        weights = frozen.attention(layer, weights)
        if hasattr(m, "lin_value"):
            source, target = graph.edge_index
            edges[target, source] = m.lin_edge(graph.edge_attr).view(-1, 2, 8)
            read = m.lin_value(h).view(1, n, 2, 8) + edges
            return torch.einsum("hij,ijhd->ihd", weights, read).flatten(1) + m.lin_skip(h)
        return torch.einsum("hij,jhd->ihd", weights, m.lin_l(h).view(n, 2, 8)).flatten(1) + m.bias

    h = frozen.norm(model.norm, frozen.ratio(F.elu, conv(0, model.first, graph.x)))
    return model.head(frozen.ratio(F.elu, conv(1, model.second, h)).mean(0))[0]


def gps_by_hand(model: GpsModel, graph: Data, frozen: Frozen) -> Tensor:
    """Run attention over all nodes beside GINE's messages, with BatchNorm."""
    source, target = graph.edge_index
    h = model.embed(graph.x)
    for number, layer in enumerate(model.layers):
        first, _, second = layer.conv.nn
        messages = (h[source] + layer.conv.lin(graph.edge_attr)).relu()
        local = h + torch.zeros_like(h).index_add(0, target, messages)
        local = layer.norm1(second(frozen.ratio(F.silu, first(local))) + h)
        weights = layer.attn(h, h, h, average_attn_weights=False)[1]
        weights = frozen.attention(number, weights)
        value = F.linear(h, layer.attn.in_proj_weight[32:], layer.attn.in_proj_bias[32:])
        mixed = torch.einsum("hij,jhd->ihd", weights, value.view(-1, 2, 8)).flatten(1)
        h = local + layer.norm2(layer.attn.out_proj(mixed) + h)
        h = layer.norm3(h + layer.mlp[3](frozen.ratio(F.gelu, layer.mlp[0](h))))
    return model.head(h.mean(0))[0]


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_a_pair_is_what_the_frozen_model_loses_without_its_attention(models, name):
    """This holds alone and in a batch with padding."""
    model, by_hand = models[name], gps_by_hand if name == "gps" else sparse_by_hand
    graphs = [graph_of(text) for text in SMILES]
    wrapped = gx.wrap(model, kind="regression")
    together = pair_relevance(wrapped, wrapped.collate(graphs))[0]
    for row, graph in enumerate(graphs):
        n, zeros = int(graph.num_nodes), torch.zeros(int(graph.num_nodes)).long()
        plain = model(graph.x, graph.edge_index, graph.edge_attr, zeros)[0, 0]
        torch.testing.assert_close(by_hand(model, graph, Frozen()), plain)
        lost = Frozen().lost(lambda f, g=graph: by_hand(model, g, f), 2, n)
        alone = pair_relevance(wrapped, wrapped.collate([graph]))[0][0]
        torch.testing.assert_close(alone[:, 1:, 1:], lost, atol=1e-10, rtol=1e-8)
        assert not alone[:, 0].any()
        assert not alone[:, :, 0].any()
        torch.testing.assert_close(together[row, :, : n + 1, : n + 1], alone)
        assert torch.isclose(together[row].sum(), alone.sum())  # nothing at padding
    assert together.abs().max() > 0.01


class Pooled(nn.Module):
    """Two encoder layers in one of the spellings of attention, the mean, and a linear head."""

    def __init__(self, spelling: str):
        super().__init__()
        self.layers = encoder()
        if spelling != "encoder":
            self.layers = nn.Sequential(*(OwnLayer(x, spelling) for x in self.layers.layers))
        self.head = nn.Linear(16, 1, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean(1))


def encoder_by_hand(model: nn.TransformerEncoder, head: nn.Linear, x: Tensor, frozen: Frozen):
    for number, layer in enumerate(model.layers):
        attn = layer.self_attn
        weights = attn(x[None], x[None], x[None], average_attn_weights=False)[1][0]
        weights = frozen.attention(number, weights)
        value = F.linear(x, attn.in_proj_weight[32:], attn.in_proj_bias[32:])
        mixed = torch.einsum("hij,jhd->ihd", weights, value.view(-1, 4, 4)).flatten(1)
        x = frozen.norm(layer.norm1, x + attn.out_proj(mixed))
        wide = frozen.ratio(F.gelu, layer.linear1(x))
        x = frozen.norm(layer.norm2, x + layer.linear2(wide))
    return head(x.mean(0))[0]


@torch.no_grad()
@pytest.mark.parametrize("spelling", ["encoder", "functional", "softmax", "module"])
@pytest.mark.parametrize("frozen_weights", [False, True])
def test_pairs_of_tokens_in_every_spelling_of_attention(spelling, frozen_weights):
    torch.manual_seed(0)
    model = Pooled(spelling).eval().requires_grad_(not frozen_weights)
    x = torch.randn(4, 16, dtype=torch.float64)
    wrapped = gx.wrap(model, kind="regression", inputs="tokens")
    lost = Frozen().lost(lambda f: encoder_by_hand(encoder(), model.head, x, f), 2, 4)
    between = pair_relevance(wrapped, wrapped.collate([wrapped.prepare(x).data]))[0][0]
    torch.testing.assert_close(between[:, 1:, 1:], lost, atol=1e-10, rtol=1e-8)
    pairs = gx.pairs(wrapped, x)
    np.testing.assert_allclose(pairs.by_layer, between)
    places = np.arange(4)
    np.testing.assert_array_equal(pairs.distances, np.abs(places[:, None] - places))


def test_a_class_token_has_its_own_row_and_column():
    """The relevance that passes BERT's last attention passes through the row of its class token."""
    model = Bert().eval()
    wrapped = gx.wrap(
        model,
        kind="multiclass",
        classes=3,
        inputs="tokens",
        embedding="embeddings",
        graph_token=True,
    )
    ids = torch.tensor([0, 5, 3, 7])
    mixed = Probe()
    batch = wrapped.collate([wrapped.prepare(ids).data])
    tokens = wrapped.embed(batch)
    hook = model.dense[1].register_forward_pre_hook(lambda _, args: mixed.added_to(args[0]))
    with gx.conservative(activation="ratio"):
        out = wrapped.encode(tokens, batch)
    hook.remove()
    expected = mixed.relevance(out[0, 2]).sum().item()
    pairs = gx.pairs(wrapped, ids, target=2)
    assert pairs.graph_token
    assert pairs.by_layer.shape == (2, 4, 4)
    assert pairs.by_layer[1, 0].sum() == pytest.approx(expected, rel=1e-5)
    assert not pairs.by_layer[1, 1:].any()
    assert "graph token reads" in pairs.profile()


def test_the_profile_without_a_graph_token_has_rdkits_distances(models, tmp_path):
    wrapped = gx.wrap(models["gps"], kind="regression")
    for pairs, text in zip(gx.pairs(wrapped, [graph_of(s) for s in SMILES]), SMILES, strict=True):
        between = Chem.GetDistanceMatrix(Chem.MolFromSmiles(text))  # 1e8 between parts of a salt
        profile, nodes = pairs.profile(), pairs.matrix[1:, 1:]
        assert sum(profile.values()) == pytest.approx(pairs.matrix.sum())
        for key, value in profile.items():
            at = between > 1e6 if key == "unreachable" else between == key
            assert value == pytest.approx(nodes[at].sum(), abs=1e-9)
        assert "rings" not in pairs.svg()
        assert pairs.save(tmp_path / "pairs.svg").stat().st_size > 500
        assert len(pairs.figure().axes) == 2 if len(between) > 1 else 1


def test_parallel_edges_count_as_one_pair(models):
    """Two edges from one node to another are two keys with one relevance, the sum of both."""
    model, graph = copy.deepcopy(models["transformer"]), graph_of("CCO")
    twice = graph.clone()
    twice.edge_index = torch.cat([graph.edge_index, torch.tensor([[0], [1]])], dim=1)
    twice.edge_attr = torch.cat([graph.edge_attr, graph.edge_attr[:1] + 1])
    messages = Probe()  # (E, H, d)
    hook = model.second.register_message_forward_hook(lambda _, __, m: messages.added_to(m))
    wrapped = gx.wrap(model, kind="regression")
    with gx.conservative(activation="ratio", model=model):
        out = model(twice.x, twice.edge_index, twice.edge_attr, torch.zeros(3).long())
    hook.remove()
    by_edge = messages.relevance(out.sum()).sum((1, 2))
    expected = torch.zeros(3, 3, dtype=torch.float64)
    expected.index_put_((twice.edge_index[1], twice.edge_index[0]), by_edge, accumulate=True)
    by_layer = gx.pairs(wrapped, twice).by_layer[1, 1:, 1:]
    np.testing.assert_allclose(by_layer, expected, atol=1e-12)


def test_a_model_without_attention_between_nodes_has_no_pairs():
    pool = AttentionalAggregation(nn.Linear(9, 1), nn.Linear(9, 1)).double()
    model = gx.wrap(pool, kind="regression", forward=lambda m, b: m(b.x, b.batch))
    with pytest.raises(ValueError, match="no attention between nodes"):
        gx.pairs(model, graph_of("CCO"))
    linear = gx.wrap(
        nn.Linear(9, 1), kind="regression", forward=lambda m, b: global_mean_pool(m(b.x), b.batch)
    )
    with pytest.raises(ValueError, match="no attention between nodes"):
        gx.pairs(linear, graph_of("CCO"))


def test_a_pooling_with_weights_keeps_its_relevance_apart_from_attention(models):
    """Its softmax is not recorded but is still held constant."""

    class Weighted(SparseModel):
        def __init__(self) -> None:
            super().__init__()
            self.pool = AttentionalAggregation(nn.Linear(16, 1))

        def forward(self, x, edge_index, edge_attr, batch):
            h = F.elu(self.second(F.elu(self.first(x, edge_index, edge_attr)), edge_index))
            return self.head(self.pool(h, batch))

    torch.manual_seed(0)
    model = Weighted().double().eval()
    model.second = type(model.second)(16, 8, heads=2).double()
    graph, messages = graph_of("C1CC1O"), Probe()
    with gx.conservative(activation="ratio", model=model):
        hook = model.second.register_message_forward_hook(lambda _, __, m: messages.added_to(m))
        out = model(graph.x, graph.edge_index, graph.edge_attr, torch.zeros(4).long())
        hook.remove()
    expected = messages.relevance(out.sum()).sum().item()
    pairs = gx.pairs(gx.wrap(model, kind="regression"), graph)
    assert pairs.by_layer[1].sum() == pytest.approx(expected, rel=1e-8)
