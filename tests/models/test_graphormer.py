"""The network agrees with brute force over structures, in every variant."""

import gzip
import itertools
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from safetensors.torch import load, save_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.data import Data

from graphxai.contract.structure import shortest_paths
from graphxai.contract.tasks import Task
from graphxai.datasets.molecules import molecule_to_data
from graphxai.explainers import get_explainer
from graphxai.learning.fit import molecule_config
from graphxai.models.graphormer import (
    CheckpointError,
    Graphormer,
    GraphormerConfig,
    StructureEncoding,
    collate,
    load_huggingface,
)
from graphxai.rules import conservative as rules
from graphxai.rules.conservative import record
from toy import random_graphormer

REFERENCE = Path(__file__).parents[1] / "data" / "reference"
CAGE = "C1CC2CC1CC2C3=CC4=C(C=C3)C5CCC4C5"  # bridged rings: many tied shortest paths


def brute_force_bias(model: Graphormer, data: Data) -> torch.Tensor:
    """Average equations 6 and 7 of Ying 2021 over all shortest paths, pair by pair: (H, N, N)."""
    config, layer = model.config, model.bias
    graph = nx.DiGraph()
    graph.add_nodes_from(range(data.num_nodes))
    starts = np.cumsum([0, *config.edge_cardinalities[:-1]])
    for (u, v), features in zip(data.edge_index.T.tolist(), data.edge_attr, strict=True):
        graph.add_edge(u, v, encoding=layer.bond[features + torch.tensor(starts)].mean(0))
    bias = torch.zeros(config.num_heads, data.num_nodes, data.num_nodes)
    for i, j in itertools.product(range(data.num_nodes), repeat=2):
        if not nx.has_path(graph, i, j):
            bias[:, i, j] = layer.spatial[-1]
            continue
        paths = list(nx.all_shortest_paths(graph, i, j))
        d = len(paths[0]) - 1
        bias[:, i, j] = layer.spatial[min(d, config.max_distance)]
        for path in paths:
            hops = list(itertools.pairwise(path))[: config.num_hops]
            for k, (u, v) in enumerate(hops):
                encoded = graph.edges[u, v]["encoding"] @ layer.hop[k]
                bias[:, i, j] += encoded / min(d, config.num_hops) / len(paths)
    return bias


def test_before_training_the_structural_bias_hardly_moves_attention():
    """Distances begin at the 0.02 of Ying 2021, and a hop passes on the size of its bond."""
    torch.manual_seed(0)
    bias = Graphormer(replace(random_graphormer().config, num_heads=32)).bias
    assert float(bias.spatial.std()) == pytest.approx(0.02, rel=0.2)
    passed_on = bias.bond @ bias.hop[0]  # (rows, H)
    assert float(passed_on.std()) == pytest.approx(float(bias.bond.std()), rel=0.2)


@pytest.mark.parametrize("smiles", ["C", "CC(=O)[O-].[Na+]", "c1ccccc1O", CAGE])
def test_structural_bias_is_the_mean_over_all_shortest_paths(smiles):
    model = random_graphormer(max_distance=6)
    data = molecule_to_data(smiles)
    batch = collate([StructureEncoding.from_config(model.config)(data)])
    with torch.no_grad():
        bias = model.bias(batch)[0]
        expected = brute_force_bias(model, data)
    torch.testing.assert_close(bias[:, 1:, 1:], expected, atol=2e-6, rtol=1e-5)
    token = model.bias.graph_token.detach()[:, None]
    torch.testing.assert_close(bias[:, 0, :], token.expand_as(bias[:, 0, :]))
    torch.testing.assert_close(bias[:, :, 0], token.expand_as(bias[:, :, 0]))


def test_distances_and_path_counts_of_a_large_grid_equal_networkx():
    grid = nx.convert_node_labels_to_integers(nx.grid_2d_graph(12, 11))
    edges = np.array(grid.to_directed().edges).T
    distance, paths = shortest_paths(grid.number_of_nodes(), *edges)
    expected = dict(nx.all_pairs_shortest_path_length(grid))
    for i, j in [(0, 131), (5, 77), (60, 61), (130, 2)]:
        assert distance[i, j] == expected[i][j]
    assert paths[0, 131] == math.comb(21, 10)  # lattice paths from corner to corner


def test_encoding_of_unusual_graphs_runs():
    model = random_graphormer()
    encode = StructureEncoding.from_config(model.config)
    single = molecule_to_data("[Na+]")
    assert model(collate([encode(single)])).shape == (1, 2)
    with pytest.raises(ValueError, match="an empty list of graphs"):
        collate([])


def test_encoding_names_a_wrong_edge_attribute():
    encode = StructureEncoding((5, 6, 2))
    data = molecule_to_data("CCO")
    data.edge_attr = data.edge_attr[:, :2]
    with pytest.raises(ValueError, match=r"edge_attr must have shape \(E, 3\)"):
        encode(data)
    data = molecule_to_data("CCO")
    data.edge_attr = data.edge_attr + 9
    with pytest.raises(ValueError, match="outside the cardinalities"):
        encode(data)


@pytest.mark.parametrize("pre_layernorm", [True, False])
@pytest.mark.parametrize("head", ["linear", "transform"])
def test_last_layer_of_one_query_equals_the_full_layer(pre_layernorm, head, smiles):
    model = random_graphormer(pre_layernorm=pre_layernorm, head=head)
    encode = StructureEncoding.from_config(model.config)
    batch = collate([encode(molecule_to_data(s)) for s in smiles])
    with torch.no_grad():
        short = model(batch)
        with record(all_queries=True):
            full = model(batch)
    torch.testing.assert_close(short, full, atol=1e-6, rtol=1e-5)


def test_a_hidden_node_has_no_influence(smiles):
    model = random_graphormer()
    batch = collate([StructureEncoding.from_config(model.config)(molecule_to_data(smiles[-1]))])
    keep = torch.ones_like(batch.mask)
    keep[0, 3] = False
    with torch.no_grad():
        tokens = model.embed(batch)
        hidden = model.encode(tokens, batch, keep)
        tokens[0, 4] = 100.0  # token 4 is node 3
        assert torch.equal(hidden, model.encode(tokens, batch, keep))
        assert not torch.allclose(hidden, model.encode(tokens, batch))
        everything = model.encode(model.embed(batch), batch, torch.ones_like(batch.mask))
        assert torch.equal(everything, model(batch))


def published(variant: str, folder: Path, changes=None, rename=None, config=None) -> Path:
    """Write a published checkpoint, with tensors added, renamed, or settings changed."""
    source = REFERENCE / variant
    tensors = load(gzip.decompress((source / "model.safetensors.gz").read_bytes()))
    tensors |= changes or {}
    tensors = {(rename or {}).get(key, key): value for key, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    text = (source / "config.json").read_text()
    for old, new in (config or {}).items():
        assert old in text
        text = text.replace(old, new)
    (folder / "config.json").write_text(text)
    return folder


@pytest.mark.parametrize("variant", ["postln", "preln"])
def test_layernorm_after_the_embedding_loads_and_runs(variant, tmp_path):
    norm = {
        "encoder.graph_encoder.emb_layer_norm.weight": torch.linspace(0.5, 1.5, 32),
        "encoder.graph_encoder.emb_layer_norm.bias": torch.linspace(-1, 1, 32),
    }
    model = load_huggingface(published(variant, tmp_path, norm))
    assert model.config.embedding_layernorm
    batch = collate([StructureEncoding.from_config(model.config)(molecule_to_data("CCO"))])
    tokens = model.embed(batch)
    plain = torch.cat([model.graph_token.expand(1, 1, -1), model.node_embedding(batch)], dim=1)
    expected = torch.nn.functional.layer_norm(
        plain,
        (32,),
        norm["encoder.graph_encoder.emb_layer_norm.weight"],
        norm["encoder.graph_encoder.emb_layer_norm.bias"],
    )
    torch.testing.assert_close(tokens, expected)
    attribution = get_explainer("gradient_input").attribute(model, batch)
    assert attribution.relevance.abs().max() > 1e-3  # taken after the LayerNorm, it does not vanish
    assert get_explainer("lrp").attribute(model, batch).unexplained.abs().max() < 1e-5


def test_unused_tensors_are_named(tmp_path):
    with pytest.warns(UserWarning, match="unused keys 'encoder.second_head.weight'"):
        load_huggingface(
            published("postln", tmp_path, {"encoder.second_head.weight": torch.ones(2)})
        )


@pytest.mark.parametrize("variant", ["postln", "preln", "ms_v1"])
def test_every_damaged_tensor_of_a_published_checkpoint_is_named(variant, tmp_path):
    """It is named by the file's key, not ours. Unused tensors do no harm.

    Layers are read in one loop, so a missing tensor of each is tried. Every other tensor of the
    first has a wrong shape too, and those between them a NaN: both are named as missing ones are.
    """
    folder = published(variant, tmp_path)
    whole = load((folder / "model.safetensors").read_bytes())
    unread = set()
    for place, (key, value) in enumerate(whole.items()):
        rest = {name: tensor for name, tensor in whole.items() if name != key}
        damaged = [rest]
        if not re.search(r"layers\.[1-9]", key):
            harm = torch.zeros(3, 3) if place % 2 else value.float() * torch.nan
            damaged += [rest | {key: harm}]
        text = []
        for tensors in damaged:
            save_file(tensors, folder / "model.safetensors")
            try:
                load_huggingface(folder)
            except CheckpointError as error:
                text.append(str(error))
        if not text:
            unread.add(key.rsplit(".", 1)[0].rsplit(".", 1)[-1])
            continue
        assert len(text) == len(damaged), key
        assert all("model.safetensors: " in line and repr(key) in line for line in text), text
    # with pre-LN, fairseq's encoder has a last LayerNorm that nothing calls
    assert unread <= {"masked_lm_pooler", "final_layer_norm"}, unread


@pytest.mark.parametrize(
    ("variant", "config"),
    [
        ("postln", {'"multi_hop_max_dist": 5': '"multi_hop_max_dist": -1'}),
        ("postln", {'"multi_hop_max_dist": 5': '"multi_hop_max_dist": 999'}),
        ("postln", {'"multi_hop_max_dist": 5': '"multi_hop_max_dist": 0'}),
        ("postln", {'"multi_hop_max_dist": 5': '"multi_hop_max_dist": 1.5'}),
        ("postln", {'"spatial_pos_max": 1024': '"spatial_pos_max": -1'}),
        ("postln", {'"num_hidden_layers": 3': '"num_hidden_layers": 1'}),
        ("postln", {'"pre_layernorm": false': '"pre_layernorm": "no"'}),
        ("postln", {'"pre_layernorm": false': '"pre_layernorm": true'}),
        ("preln", {'"pre_layernorm": true': '"pre_layernorm": false'}),
        ("ms_v1", {'"n_layers": 3': '"n_layers": 2'}),
        ("preln", {'"num_attention_heads": 8': '"num_attention_heads": 4'}),
        ("ms_v1", {'"num_heads": 8': '"num_heads": 16'}),
    ],
)
def test_a_published_configuration_that_does_not_fit_is_reported(variant, config, tmp_path):
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        load_huggingface(published(variant, tmp_path, config=config))


def test_fairseq_names_of_the_read_out_are_understood(tmp_path):
    rename = {
        "classifier.classifier.weight": "encoder.embed_out.weight",
        "classifier.lm_output_learned_bias": "encoder.lm_output_learned_bias",
    }
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    plain = load_huggingface(published("postln", tmp_path / "a"))
    renamed = load_huggingface(published("postln", tmp_path / "b", rename=rename))
    batch = collate([StructureEncoding.from_config(plain.config)(molecule_to_data("CCO"))])
    assert torch.equal(plain(batch), renamed(batch))


def test_atom_offset_chooses_the_rows(tmp_path):
    folder = published("postln", tmp_path)
    tensors = load((folder / "model.safetensors").read_bytes())
    table = tensors["encoder.graph_encoder.graph_node_feature.atom_encoder.weight"]
    model = load_huggingface(folder, atom_offset=2)
    torch.testing.assert_close(model.node_embedding.table[5], table[5 + 2])
    torch.testing.assert_close(load_huggingface(folder).node_embedding.table[5], table[5 + 3])


def test_hops_after_the_end_of_a_path_keep_the_padding_rows_share(tmp_path):
    """Since v1.0 leaves row 0 of its edge table non-zero, every missing hop adds a constant."""
    source = load(gzip.decompress((REFERENCE / "ms_v1/model.safetensors.gz").read_bytes()))
    row = torch.linspace(-0.3, 0.4, 8)
    edges = source["edge_encoder.weight"].clone()
    edges[0] = row
    (tmp_path / "zero").mkdir()
    (tmp_path / "row").mkdir()
    without = load_huggingface(published("ms_v1", tmp_path / "zero"))
    model = load_huggingface(published("ms_v1", tmp_path / "row", {"edge_encoder.weight": edges}))
    added = (model.bias.spatial - without.bias.spatial).detach()
    hops = source["edge_dis_encoder.weight"].reshape(-1, 8, 8)[:5]
    for distance, missing in {0: range(5), 1: range(1, 5), 3: range(3, 5), 5: ()}.items():
        expected = sum((row @ hops[k] for k in missing), torch.zeros(8)) / max(distance, 1)
        torch.testing.assert_close(added[distance], expected, atol=1e-6, rtol=1e-5)
    expected = sum(row @ hops[k] for k in range(5)) / 5
    torch.testing.assert_close(added[-1], expected, atol=1e-6, rtol=1e-5)


def test_pairs_beyond_the_limit_of_the_published_collator_do_not_attend(tmp_path):
    """Its `spatial_pos_max` is 20 whatever the configuration says, here 1024."""
    model = load_huggingface(published("postln", tmp_path))
    assert model.config.mask_distance == 19
    chain = collate([StructureEncoding.from_config(model.config)(molecule_to_data("C" * 22))])
    apart = (torch.arange(22)[:, None] - torch.arange(22)).abs()
    masked = model.bias(chain)[0, 0, 1:, 1:].isinf()
    assert torch.equal(masked, apart >= 19)
    salt = collate([StructureEncoding.from_config(model.config)(molecule_to_data("[Na+].[Cl-]"))])
    apart = ~torch.eye(2, dtype=torch.bool)
    assert torch.equal(model.bias(salt)[0, 0, 1:, 1:].isinf(), apart)


@pytest.mark.parametrize("options", [{"spatial_pos_max": 1024}, {"atom_offset": 2}])
def test_models_of_microsofts_own_code_attend_to_all_pairs(options, tmp_path):
    model = load_huggingface(published("postln", tmp_path), **options)
    salt = collate([StructureEncoding.from_config(model.config)(molecule_to_data("[Na+].[Cl-]"))])
    assert model.bias(salt).isfinite().all()


def test_an_encoding_for_another_model_is_recomputed():
    ours, published_like = random_graphormer(), random_graphormer(ties="floyd", max_distance=509)
    first = StructureEncoding.from_config(ours.config)(molecule_to_data(CAGE))
    encode = StructureEncoding.from_config(published_like.config)
    again, fresh = encode(first.clone()), encode(molecule_to_data(CAGE))
    assert torch.equal(again.bag_codes, fresh.bag_codes)
    assert not torch.equal(again.bag_codes, first.bag_codes)


def test_a_duplicate_edge_is_refused():
    data = molecule_to_data("CCO")
    data.edge_index = torch.cat([data.edge_index, data.edge_index], dim=1)
    data.edge_attr = torch.cat([data.edge_attr, data.edge_attr])
    with pytest.raises(ValueError, match="has an edge twice"):
        StructureEncoding((5, 6, 2))(data)


def test_tasks_lay_out_the_output_columns():
    config = GraphormerConfig(
        tasks=(
            Task("a", "binary", ("no", "yes")),
            Task("b", "multiclass", ("x", "y", "z")),
            Task("c", "regression"),
        ),
        node_cardinalities=(4,),
    )
    assert config.num_outputs == 5
    assert config.task_columns("b") == (config.tasks[1], slice(1, 4))
    assert GraphormerConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ValueError, match="no task 'd'; it has 'a', 'b', 'c'"):
        config.task_columns("d")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_dim": 33}, "multiple of num_heads"),
        ({"num_layers": 0}, "at least 1"),
        ({"node_cardinalities": ()}, "either node_cardinalities or num_node_features"),
        ({"ties": "first"}, "ties must be"),
        ({"layernorm_eps": "x"}, "layernorm_eps is 'x'"),
        ({"mask_distance": "a"}, "mask_distance is 'a'"),
        ({"num_heads": "8"}, "num_heads is '8'"),
        ({"pre_layernorm": 1}, "pre_layernorm is 1"),
        ({"node_feature_names": ("a", "b")}, "2 names for 1 features"),
        ({"head": "mlp"}, "head must be"),
    ],
)
def test_configuration_refuses_what_cannot_be_built(changes, message):
    settings = {"tasks": (Task("a", "regression"),), "node_cardinalities": (4,)}
    with pytest.raises(ValueError, match=message):
        GraphormerConfig(**(settings | changes))


class CountedOperations(TorchDispatchMode):
    """Count the operations of the block by name, and note the columns of each softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.widths: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[name := func.overloadpacket.__name__] += 1
        if name == "_softmax":
            self.widths.append(args[0].shape[-1])
        return func(*args, **(kwargs or {}))


def test_the_bias_learns_by_the_gradient_of_its_look_up_without_sorting():
    torch.manual_seed(0)
    model = Graphormer(molecule_config([Task("y", "regression")], num_layers=1))
    graphs = [molecule_to_data(smiles) for smiles in ("CCO", "c1ccccc1C(=O)N", "C")]
    batch = collate(list(map(StructureEncoding.from_config(model.config), graphs)))
    gradients, counts = {}, {}
    for learning in (True, False):
        model.bias.train(learning)
        bias = model.bias(batch).masked_fill(~batch.mask.any(), 0.0)[:, :, :2, :2]
        weights = torch.arange(bias.numel()).reshape(bias.shape).cos()
        with CountedOperations() as operations:
            gradients[learning] = torch.autograd.grad((bias * weights).sum(), model.bias.spatial)
        counts[learning] = operations.counts
    assert gradients[True][0].any()
    torch.testing.assert_close(gradients[True], gradients[False], rtol=1e-5, atol=1e-6)
    assert counts[True]["_embedding_bag_backward"] + counts[True]["sort"] == 0
    assert counts[False]["_embedding_bag_backward"] + counts[False]["sort"] > 0


@pytest.mark.parametrize("keys", [2, 10, 15, 16, 20])
def test_attention_that_learns_has_no_softmax_of_short_rows(keys):
    torch.manual_seed(0)
    q, k = (torch.randn(3, 2, keys, 4, requires_grad=True) for _ in "qk")
    bias = torch.zeros(3, 1, 1, keys)
    bias[0, ..., -1] = -torch.inf
    with CountedOperations() as operations:
        attention = rules.softmax_attention(q, k, bias)
    assert operations.widths == [max(keys, rules.ROWS)]
    expected = torch.softmax(q @ k.mT + bias, -1)
    torch.testing.assert_close(attention, expected)
    aim = torch.randn_like(expected)
    each = [torch.autograd.grad((weights * aim).sum(), q)[0] for weights in (attention, expected)]
    torch.testing.assert_close(*each)
