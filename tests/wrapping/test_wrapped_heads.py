"""Statistics of heads in other people's models agree with loops over the attention they report."""

import numpy as np
import pytest
import torch
from rdkit import Chem
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATv2Conv, global_mean_pool

import graphxai as gx
from graphxai.explainers import HeadStatistics, get_explainer, head_statistics
from graphxai.explainers.heads import RELATIONS, relations_of
from graphxai.explainers.layers import FARTHEST, count
from other_models import GpsModel, SparseModel, molecules

pytestmark = pytest.mark.usefixtures("only_relevance", "recorded_once")

GRAPHS = [g for g in molecules() if g.num_nodes < 20]  # sodium has no edge


def wrapped(model: nn.Module, **options):
    return gx.wrap(model.eval(), kind="regression", **options)


def model_named(name: str) -> nn.Module:
    torch.manual_seed(0)
    return (GpsModel("layer_norm") if name == "gps" else SparseModel(name)).eval()


def reported_attention(model: nn.Module, graph: Data) -> list[np.ndarray]:
    """Return the attention (H, N, N) of each layer, as the layers themselves report it."""
    n, inputs = int(graph.num_nodes), []
    layers = [p.attn for p in model.layers] if isinstance(model, GpsModel) else model.children()
    layers = [
        layer for layer in layers if hasattr(layer, "in_proj_weight") or hasattr(layer, "heads")
    ]
    hooks = [m.register_forward_pre_hook(lambda _, args: inputs.append(args)) for m in layers]
    with torch.no_grad():
        model(graph.x, graph.edge_index, graph.edge_attr, torch.zeros(n).long())
    for hook in hooks:
        hook.remove()
    matrices = []
    for layer, args in zip(layers, inputs, strict=True):
        if isinstance(layer, nn.MultiheadAttention):
            matrices.append(layer(*[args[0]] * 3, average_attn_weights=False)[1][0])
            continue
        _, (edges, alpha) = layer(*args, return_attention_weights=True)
        matrices.append(torch.zeros(alpha.shape[1], n, n))
        matrices[-1][:, edges[1], edges[0]] = alpha.T
    return [attention.detach().double().numpy() for attention in matrices]


@pytest.mark.parametrize("name", ["transformer", "gat", "gps"])
def test_statistics_equal_a_loop_over_all_rows(name):
    model = model_named(name)
    kinds = len(RELATIONS)
    distances, related = np.zeros((2, 2, 40)), np.zeros((2, 2, kinds))
    chance = np.zeros((kinds, 40))
    rows, far = 0, 0
    for graph in GRAPHS:
        molecule = Chem.MolFromSmiles(graph.smiles)
        between = Chem.GetDistanceMatrix(molecule)  # 1e8 between parts of a salt
        relations = relations_of(molecule)
        rows += len(between)
        for i, d in np.ndindex(len(between), 40):
            there = between[i] == d
            chance[:, d] += relations[:, i, there].sum(-1) / max(there.sum(), 1)
        for layer, heads in enumerate(reported_attention(model, graph)):
            for head, i in np.ndindex(*heads.shape[:2]):
                best = np.flatnonzero(heads[head, i] > heads[head, i].max() * (1 - 1e-5))
                for j in best:
                    at = -2 if between[i, j] > 1e6 else int(between[i, j])
                    far = max(far, at)
                    distances[layer, head, at] += 1 / len(best)
                    related[layer, head] += relations[:, i, j] / len(best)
                if not len(best):  # no edge leads to the node
                    distances[layer, head, -2] += 1
    statistics = head_statistics(wrapped(model), GRAPHS)
    assert (statistics.rows, statistics.relations) == (rows, RELATIONS)
    expected = np.concatenate([distances[..., : far + 1], distances[..., -2:]], -1) / rows
    np.testing.assert_allclose(statistics.distances, expected, atol=1e-12)
    np.testing.assert_allclose(statistics.related, related / rows, atol=1e-12)
    np.testing.assert_allclose(statistics.base_rates, chance.max(-1) / rows, atol=1e-12)
    assert statistics.distances.shape[-1] == (4 if name != "gps" else far + 3)
    assert far > 3 or name != "gps"
    assert distances[0, 0, -2] >= (name == "transformer")  # sodium; GAT gives it a self-loop


@pytest.mark.parametrize("name", ["transformer", "gps"])
def test_counts_of_a_graph_are_the_same_in_a_batch(name):
    model = wrapped(model_named(name))
    together = count(model, model.collate([model.prepare(g).data for g in GRAPHS]))
    for row, graph in enumerate(GRAPHS):
        alone = count(model, model.collate([model.prepare(graph).data]))
        for field in ("distances", "related", "chance", "rows"):
            both = getattr(together, field)[row], getattr(alone, field)[0]
            np.testing.assert_allclose(*both, atol=1e-9)
        for kinds, kinds_alone in zip(together.important(), alone.important(), strict=True):
            np.testing.assert_array_equal(kinds[row], kinds_alone[0])


def test_statistics_of_wrapped_models_survive_the_file(tmp_path):
    statistics = head_statistics(wrapped(model_named("gat")), GRAPHS, data="drugs")
    statistics.save(tmp_path)
    again = HeadStatistics.load(tmp_path)
    np.testing.assert_allclose(again.distances, statistics.distances, atol=1e-6)
    assert (again.mask() == statistics.mask()).all()
    assert (again.relations, again.data, again.sha256) == (RELATIONS, "drugs", "")


class Looking(nn.Module):
    """Attention by position, in which head h reads the token `offsets[h]` positions before."""

    def __init__(self, offsets: tuple[int, ...]):
        super().__init__()
        self.offsets, self.lin = offsets, nn.Linear(4, 1)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        place = torch.arange(x.shape[1], dtype=x.dtype)
        wanted = torch.stack([(place - k).clamp(min=0) for k in self.offsets])  # (H, N)
        scores = -20 * (wanted[..., None] - place).abs() + 0 * (x @ x.mT)[:, None]
        weights = scores.softmax(-1)
        return self.lin((weights @ x[:, None]).mean(1)).mean(1)


def test_distances_in_rows_of_tokens_are_between_places():
    model = wrapped(Looking((0, 1, 3)), inputs="tokens")
    statistics = head_statistics(model, [torch.randn(n, 4) for n in (10, 7, 10)])
    assert statistics.relations == ("bonded",)  # here: the neighbours in the row
    np.testing.assert_allclose(statistics.distances[0, 0], [1, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(statistics.distances[0, 1, :2], [3 / 27, 24 / 27])
    np.testing.assert_allclose(statistics.distances[0, 2, :4], [3 / 27, 3 / 27, 3 / 27, 18 / 27])
    assert statistics.positional.tolist() == [[True, True, False]]
    np.testing.assert_allclose(statistics.related[0, :, 0], [0, 24 / 27, 3 / 27])
    assert statistics.base_rates[0] == pytest.approx(1)  # every place has a neighbour


class Parsing(nn.Module):
    """Attention of two heads, which read the word that feature 0 or feature 1 of a word names."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 1)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        place = torch.arange(x.shape[1], dtype=x.dtype)
        wanted = x[..., :2].mT[..., None]  # (B, 2, N, 1)
        scores = -20 * (wanted - place).abs() + 0 * (x @ x.mT)[:, None]
        return self.lin((scores.softmax(-1) @ x[:, None]).mean(1)).mean(1)


def test_heads_that_follow_the_dependencies_of_sentences_are_relational():
    lengths = (9, 6, 12)
    generator = torch.Generator().manual_seed(0)
    governors = [torch.randint(n, (n,), generator=generator) for n in lengths]
    others = [torch.randint(n, (n,), generator=generator) for n in lengths]
    sentences = [
        torch.cat([torch.stack(pair, 1).float(), torch.zeros(n, 2)], 1)
        for n, *pair in zip(lengths, governors, others, strict=True)
    ]
    parses = [list(enumerate(of_words.tolist())) for of_words in governors]
    model = wrapped(Parsing(), inputs="tokens")
    relations = {"dependency": parses, "never": [[], [], []]}
    statistics = head_statistics(model, sentences, relations=relations)
    same = torch.cat(governors) == torch.cat(others)
    assert statistics.relations == ("dependency", "never")
    np.testing.assert_allclose(
        statistics.related[0], [[1, 0], [float(same.double().mean()), 0]], atol=1e-12
    )
    base_rate = [  # of a head that always looks at one distance, at a random word there
        np.mean([
            np.mean([j == heads[i] for j in (i - d, i + d) if 0 <= j < len(heads)] or [0])
            for heads in (of_words.tolist() for of_words in governors) for i in range(len(heads))
        ])
        for d in range(max(lengths))
    ]  # fmt: skip
    np.testing.assert_allclose(statistics.base_rates, [max(base_rate), 0], atol=1e-12)
    assert statistics.relational.tolist() == [[True, False]]
    e = gx.explain(model, sentences[0], get_explainer("masked_lrp", statistics=statistics))
    assert np.abs(e.relevance).sum() > 0
    for wrong, word in (
        ({}, "no relation"),
        ({"a": [[]]}, "1 inputs"),
        ({"a": [[(0, 9)], [], []]}, "0 to 8"),
    ):
        with pytest.raises(ValueError, match=word):
            head_statistics(model, sentences, relations=wrong)


def test_keys_farther_than_is_counted_are_not_at_one_distance():
    model = wrapped(Looking((FARTHEST, FARTHEST + 1)), inputs="tokens")
    statistics = head_statistics(model, [torch.randn(1000, 4)])
    assert statistics.distances.shape[-1] == FARTHEST + 3
    assert statistics.distances[0, 0, FARTHEST] == pytest.approx(0.9)
    assert statistics.distances[0, 1, -2] == pytest.approx(1 - (FARTHEST + 1) / 1000)
    assert statistics.positional.tolist() == [[True, False]]


class Directed(nn.Module):
    """A model of two layers, with three heads and with one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = GATv2Conv(3, 4, heads=3, add_self_loops=False)
        self.second = GATv2Conv(12, 4, add_self_loops=False)
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.second(self.first(x, edge_index).relu(), edge_index)
        return self.head(global_mean_pool(h, batch))


def test_a_directed_edge_is_read_at_distance_one_and_missing_heads_look_nowhere():
    """In a line of nodes, each reads the one before it, so the first of five reads none."""
    torch.manual_seed(0)
    line = Data(x=torch.randn(5, 3), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]))
    statistics = head_statistics(wrapped(Directed()), [line])
    np.testing.assert_allclose(statistics.distances[0], [[0, 0.8, 0.2, 0]] * 3)
    np.testing.assert_allclose(statistics.distances[1], [[0, 0.8, 0.2, 0]] + [[0, 0, 1, 0]] * 2)
    np.testing.assert_allclose(statistics.related[..., 0], [[0.8] * 3, [0.8, 0, 0]])
    assert statistics.base_rates[0] == pytest.approx(4 / 5)  # the first reads none
    assert not statistics.relational.any()


def test_a_model_without_attention_has_no_heads():
    model = wrapped(nn.Linear(9, 1), forward=lambda m, b: global_mean_pool(m(b.x), b.batch))
    with pytest.raises(ValueError, match="no attention between nodes"):
        head_statistics(model, GRAPHS)
