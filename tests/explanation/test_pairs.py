"""Relevance of token pairs agrees with a network whose constants are written out."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from rdkit import Chem

import graphxai as gx
from graphxai.contract.tasks import Task
from graphxai.datasets.canonical_form import canonical_form
from graphxai.datasets.samples import digit_paths
from graphxai.explainers.pairs import pair_relevance, walk_relevance
from graphxai.models.graphormer import collate
from graphxai.rules.conservative import Rules, conservative, record
from toy import random_graphormer

ASPIRIN = "CC(=O)Oc1ccccc1C(=O)O"


def batch_of(model, smiles):
    return collate([model.prepare(text).data for text in smiles])


def frozen_pass(
    model,
    batch,
    constants=None,
    switched_off=None,
    *,
    tokens=None,
    entering_state=None,
    states=None,
):
    """Compute one graph's first output by the pre-LN Graphormer's formulas, and its constants.

    With `constants` the attention, the scales of LayerNorm and the ratios of GELU are those of an
    earlier pass. In `switched_off`, (layer, query, key), the attention is zero in all heads, or in
    the head that may follow.
    `tokens` replace the embeddings, and `entering_state`, (layer, token, its state), replaces what
    enters a layer. `states` gets what enters each layer.
    """
    kept, given = [], iter(constants or [])

    def constant(value):
        value = value if constants is None else next(given)
        kept.append(value)
        return value

    def norm(layer, x):
        centred = x - x.mean(-1, keepdim=True)
        scale = constant((x.var(-1, keepdim=True, unbiased=False) + layer.eps).rsqrt())
        return centred * scale * layer.weight + layer.bias

    def affine(layer, x):
        return x @ layer.weight.T + layer.bias

    x, bias = model.embed(batch)[0] if tokens is None else tokens, model.bias(batch)[0]
    heads = model.config.num_heads
    for number, layer in enumerate(model.layers):
        if entering_state is not None and entering_state[0] == number:
            x = x.clone()
            x[entering_state[1]] = entering_state[2]
        if states is not None:
            states.append(x)
        attention, y = layer.attention, norm(layer.attention_norm, x)
        q, k, v = (
            affine(part, y).unflatten(-1, (heads, -1)).transpose(0, 1)
            for part in (attention.query, attention.key, attention.value)
        )
        logits = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]) + bias
        weights = constant(logits.softmax(-1)).clone()
        if switched_off is not None and switched_off[0] == number:
            query, key, *head = switched_off[1:]
            weights[head[0] if head else slice(None), query, key] = 0.0
        x = x + affine(attention.output, (weights @ v).transpose(0, 1).flatten(1))
        wide = affine(layer.ffn.expand, norm(layer.ffn_norm, x))
        ratio = constant(0.5 * (1 + torch.erf(wide / math.sqrt(2))))
        x = x + affine(layer.ffn.contract, wide * ratio)
    return affine(model.head, norm(model.final_norm, x))[0, 0], kept


@torch.no_grad()
def test_a_pair_is_what_the_frozen_network_loses_without_that_attention():
    """With all else constant, the output is affine in every entry of attention."""
    model = random_graphormer().double()
    batch = batch_of(model, ["CC(=O)[O-].[Na+]"])
    pairs = pair_relevance(model, batch, "active")[0][0]  # (L, T, T)
    full, constants = frozen_pass(model, batch)
    torch.testing.assert_close(full, model(batch)[0, 0])
    lost = torch.empty_like(pairs)
    for entry in np.ndindex(*pairs.shape):
        lost[entry] = full - frozen_pass(model, batch, constants, entry)[0]
    torch.testing.assert_close(pairs, lost, atol=1e-12, rtol=1e-9)
    assert pairs.abs().max() > 0.1


@torch.no_grad()
@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_walk_is_what_a_token_of_the_frozen_network_loses_without_where_it_began(num_layers):
    model = random_graphormer(num_layers=3).double()
    batch = batch_of(model, ["CC(=O)[O-].[Na+]"])
    walks = walk_relevance(model, batch, num_layers, "active")[0]  # (T, T)
    full, constants = frozen_pass(model, batch)
    for began in range(len(walks)):
        states = entering(model, batch, constants, began)[num_layers]
        for at in range(len(walks)):
            lost = (
                full
                - frozen_pass(model, batch, constants, entering_state=(num_layers, at, states[at]))[
                    0
                ]
            )
            torch.testing.assert_close(walks[at, began], lost, atol=1e-12, rtol=1e-9)
    assert walks.abs().max() > 0.1


def entering(model, batch, constants, without):
    """Return what enters each layer of the frozen network if one token's embedding is zero."""
    tokens, entering_states = model.embed(batch)[0], []
    tokens[without] = 0
    frozen_pass(model, batch, constants, tokens=tokens, states=entering_states)
    return entering_states


def test_walks_sum_to_the_relevance_of_where_they_began(smiles):
    model = random_graphormer(num_layers=3)
    for walks, e in zip(
        gx.pairs(model, smiles, num_layers=2), gx.explain(model, smiles), strict=True
    ):
        np.testing.assert_allclose(walks.matrix.sum(0)[1:], e.relevance, atol=1e-5)
        assert walks.matrix.sum(0)[0] == pytest.approx(e.ledger.graph_token, abs=1e-5)
        assert "walks of 2 layers" in repr(walks)
    assert "walks of 2 layers" in walks.svg()
    assert walks.figure().axes[0].get_legend_handles_labels()[1] == ["after layer 2"]


@pytest.mark.parametrize("num_layers", [0, 2, -1])
def test_walks_need_a_layer_before_and_after(num_layers):
    with pytest.raises(ValueError, match="num_layers must be from 1 to 1"):
        gx.pairs(random_graphormer(num_layers=2), "CCO", num_layers=num_layers)


@pytest.mark.parametrize("pre", [True, False])
def test_pairs_of_a_layer_sum_to_the_relevance_that_passes_its_attention(pre):
    """This is `sum_i y_i . d f / d y_i` at y = A v, which the output projection receives."""
    model = random_graphormer(pre_layernorm=pre).double()
    batch = batch_of(model, [ASPIRIN, "CCO"])
    mixed = []
    hooks = [
        layer.attention.output.register_forward_pre_hook(lambda _, x: mixed.append(x[0]))
        for layer in model.layers
    ]
    with conservative(activation="ratio"):
        outputs = model(batch)
    for hook in hooks:
        hook.remove()
    gradients = torch.autograd.grad(outputs[:, 0].sum(), mixed)
    passed = [(y * g).flatten(1).sum(-1) for y, g in zip(mixed, gradients, strict=True)]
    pairs = pair_relevance(model, batch, "active")[0]
    torch.testing.assert_close(pairs.sum((2, 3)), torch.stack(passed, 1).detach())


def test_relevance_passes_through_attention_or_around_it():
    """What enters the first layer, and its biases, leave it through pairs or the residual path."""
    model = random_graphormer(num_layers=1, ffn_dim=1).double()
    with torch.no_grad():  # a feed-forward that says nothing: attention and residual alone are left
        model.layers[0].ffn.contract.weight.zero_()
        model.layers[0].ffn.contract.bias.zero_()
    batch = batch_of(model, [ASPIRIN])
    with conservative(activation="ratio"), record() as tape:
        tokens = model.embed(batch).detach().requires_grad_()
        outputs = model.encode(tokens, batch)
    after = tape.hidden[1]
    (slope,) = torch.autograd.grad(outputs[0, 0], after)
    leaving = (after * slope).sum()
    beside = (tokens[:, :1] * slope).sum()
    projected = (model.layers[0].attention.output.bias * slope).sum()
    num_layers = pair_relevance(model, batch, "active")[0].sum()
    torch.testing.assert_close(num_layers, (leaving - beside - projected).detach())


def test_nothing_reads_the_last_layers_nodes():
    model = random_graphormer()
    last = pair_relevance(model, batch_of(model, [ASPIRIN]))[0][0, -1]
    assert (last[0] != 0).all()
    assert (last[1:] == 0).all()


def test_a_graph_alone_is_as_in_a_batch(smiles):
    model = random_graphormer()
    together = gx.pairs(model, smiles)
    for text, pairs in zip(smiles, together, strict=True):
        alone = gx.pairs(model, text)
        assert pairs.by_layer.shape == (3, len(alone.distances) + 1, len(alone.distances) + 1)
        np.testing.assert_allclose(
            pairs.by_layer, alone.by_layer, atol=1e-4 * np.abs(alone.by_layer).max()
        )


def test_renumbered_atoms_permute_rows_and_columns(smiles):
    model = random_graphormer()
    for text in smiles:
        mol = canonical_form(Chem.MolFromSmiles(text)).mol
        order = np.random.default_rng(0).permutation(mol.GetNumAtoms())
        moved = gx.pairs(model, Chem.RenumberAtoms(mol, order.tolist()))
        given = gx.pairs(model, mol)
        at = np.concatenate([[0], order + 1])
        expected = given.by_layer[:, at][:, :, at]
        np.testing.assert_allclose(moved.by_layer, expected, atol=1e-4 * np.abs(expected).max())
        np.testing.assert_array_equal(moved.distances, given.distances[order][:, order])
        assert moved.profile() == pytest.approx(given.profile(), abs=1e-3)


def test_the_profile_counts_every_pair_once_by_rdkits_distance(smiles):
    model = random_graphormer()
    for pairs, text in zip(gx.pairs(model, smiles), smiles, strict=True):
        read = canonical_form(Chem.MolFromSmiles(text)).mol
        between = Chem.GetDistanceMatrix(read)  # 1e8 between parts of a salt
        for layer in (None, 0):
            relevance = pairs.matrix if layer is None else pairs.by_layer[layer]
            profile = pairs.profile(layer)
            assert sum(profile.values()) == pytest.approx(relevance.sum(), abs=1e-4)
            nodes = relevance[1:, 1:]
            for key, value in profile.items():
                if isinstance(key, int):
                    assert value == pytest.approx(nodes[between == key].sum(), abs=1e-4)
            apart = nodes[between > 1e6].sum()
            assert profile.get("unreachable", 0.0) == pytest.approx(apart, abs=1e-4)


def test_bond_types_share_the_pairs_at_distance_one():
    pairs = gx.pairs(random_graphormer(), ASPIRIN)
    by_bond = pairs.by_bond()
    assert set(by_bond) == {"single", "double", "aromatic"}
    assert sum(by_bond.values()) == pytest.approx(pairs.profile()[1], abs=1e-4)
    nodes = pairs.matrix[1:, 1:]
    double = nodes[1, 2] + nodes[2, 1] + nodes[10, 11] + nodes[11, 10]
    assert by_bond["double"] == pytest.approx(double, abs=1e-5)


def test_the_strongest_pairs_come_first_with_both_directions():
    pairs = gx.pairs(random_graphormer(), ASPIRIN)
    both = pairs.matrix[1:, 1:] + pairs.matrix[1:, 1:].T
    i, j, value = pairs.strongest(5)[0]
    assert i < j
    assert value == pytest.approx(both[i, j])
    assert abs(value) == pytest.approx(np.abs(np.triu(both, 1)).max())
    assert len(pairs.strongest(5)) == 5


@pytest.mark.parametrize("method", ["gradient_input", "attn_lrp", "rollout"])
def test_methods_that_do_not_hold_attention_constant_are_refused(method):
    with pytest.raises(ValueError, match="holds attention constant"):
        gx.pairs(random_graphormer(), "CCO", method)


@pytest.mark.parametrize("method", ["lrp_ah", "lrp_ah_ln"])
def test_the_rules_are_the_methods_own(method):
    model = random_graphormer().double()
    rules = Rules(attention=True, layernorm=method == "lrp_ah_ln")
    pairs = gx.pairs(model, "CCO", method)
    expected = pair_relevance(model, batch_of(model, ["CCO"]), rules=rules)[0][0]
    np.testing.assert_allclose(pairs.by_layer, expected)
    assert pairs.explanation.method == method


def test_a_bad_input_among_several_is_left_out_with_a_warning():
    with pytest.warns(UserWarning, match="input 1 was left out"):
        first, second = gx.pairs(random_graphormer(), ["CCO", "not a molecule"])
    assert second is None
    assert len(first.distances) == 3


def test_lines_and_rings_have_the_colour_of_their_relevance(tmp_path):
    pairs = gx.pairs(random_graphormer(), ASPIRIN)
    root = ElementTree.fromstring(pairs.svg(count=4))
    lines = [e for e in root.iter() if e.get("data-pair")]
    drawn = {tuple(map(int, e.get("data-pair").split())): e for e in lines}
    strongest = pairs.strongest(4, directed=True)
    assert set(drawn) == {(i, j) for i, j, _ in strongest}
    scale = gx.visualization.Scale(abs(strongest[0][2]))
    for i, j, value in strongest:
        assert drawn[i, j].get("stroke") == scale.hex(value)[0]
    widths = [float(drawn[i, j][0].get("stroke-width")) for i, j, _ in strongest]
    assert widths == sorted(widths, reverse=True)
    for name in ("pairs.svg", "pairs.png", "pairs.csv"):
        assert pairs.save(tmp_path / name).stat().st_size > 500


def test_arrows_point_to_the_reader_and_stay_off_the_rings():
    pairs = gx.pairs(random_graphormer(), ASPIRIN)
    root = ElementTree.fromstring(pairs.svg(count=20))
    rings = [e for e in root.iter() if e.get("data-read")]
    centre = {int(e.get("data-read")): [float(e.get(c)) for c in ("cx", "cy")] for e in rings}
    outer = {int(e.get("data-read")): float(e.get("r")) for e in rings}
    checked = 0
    for arrow in (e for e in root.iter() if e.get("data-pair")):
        reader, read = map(int, arrow.get("data-pair").split())
        if not {reader, read} <= set(centre):
            continue
        shaft, head = (
            np.array([float(n) for n in re.findall(r"-?[\d.]+", part.get("d"))]).reshape(-1, 2)
            for part in list(arrow)[:2]
        )
        tip, tail = head[0], shaft[0]
        near, far = (np.linalg.norm(tip - centre[atom]) for atom in (reader, read))
        assert outer[reader] < near < far
        assert np.linalg.norm(tail - centre[read]) > outer[read]
        checked += 1
    assert checked > 5
    order = [("pair" if e.get("data-pair") else "read") for e in root.iter() if _drawn(e)]
    assert order == sorted(order)  # rings lie on top


def _drawn(element):
    return element.get("data-pair") or element.get("data-read")


def test_each_direction_of_a_pair_is_its_own():
    pairs = gx.pairs(random_graphormer(), ASPIRIN)
    between = pairs.matrix[1:, 1:]
    i, j, value = pairs.strongest(1, directed=True)[0]
    assert value == between[i, j]
    assert abs(value) == np.abs(between - np.diag(np.diag(between))).max()


def test_the_table_has_every_pair_of_nodes():
    pairs = gx.pairs(random_graphormer(), "CCO")
    frame = pairs.to_frame()
    assert len(frame) == 3 * 3 * 3
    row = frame[(frame.layer == 0) & (frame["query"] == 2) & (frame.key == 1)].iloc[0]
    assert row.relevance == pairs.by_layer[0, 3, 2]
    assert (row.distance, row.bond) == (1, "single")


def test_images_have_a_profile_but_no_lines():
    pairs = gx.pairs("mnist-superpixels", digit_paths()[0])
    assert pairs.by_bond() == {}
    assert len(pairs.figure().axes) == 1
    assert pairs._repr_svg_() is None
    with pytest.raises(ValueError, match="drawn on molecules"):
        pairs.svg()


def test_bars_are_the_profile_of_each_layer():
    pairs = gx.pairs(random_graphormer(), ASPIRIN, target="pIC50")
    axes, bonds = pairs.figure().axes
    heights = [bar.get_height() for bar in axes.containers[1]]
    assert heights == pytest.approx(list(pairs.profile(1).values()))
    assert [bar.get_height() for bar in bonds.patches] == pytest.approx(
        list(pairs.by_bond().values())
    )


def test_bars_of_the_layers_stand_side_by_side_around_their_distance():
    axes, _ = gx.pairs(random_graphormer(), ASPIRIN, target="pIC50").figure().axes
    for tick, bars in zip(axes.get_xticks(), zip(*axes.containers, strict=True), strict=True):
        ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars]
        assert [right for _, right in ends[:-1]] == pytest.approx([left for left, _ in ends[1:]])
        assert (ends[0][0] + ends[-1][1]) / 2 == pytest.approx(tick)
        assert ends[-1][1] - ends[0][0] < 1  # a gap is left to the next distance


def test_a_pair_of_tasks_is_the_difference_of_their_pairs():
    model = random_graphormer(tasks=(Task("A", "regression"), Task("B", "regression")))
    first, second, both = (
        gx.pairs(model, ASPIRIN, target=target).by_layer for target in ("A", "B", ("A", "B"))
    )
    np.testing.assert_allclose(both, first - second, atol=1e-5)


def test_the_explanation_of_pairs_knows_the_training_set():
    pairs = gx.pairs("bace", "CCO").explanation
    assert pairs.nearness == gx.explain("bace", "CCO").nearness
    assert pairs.nearness.word == "far"


@torch.no_grad()
def test_a_head_is_what_the_frozen_network_loses_without_it():
    """The heads of a layer sum to what passed through its attention."""
    model = random_graphormer().double()
    batch, every = batch_of(model, ["CC(=O)[O-].[Na+]"]), slice(None)
    of_pairs, of_heads = pair_relevance(model, batch, "active")  # (1, L, T, T), (1, L, H)
    torch.testing.assert_close(of_heads.sum(-1), of_pairs.sum((2, 3)))
    full, constants = frozen_pass(model, batch)
    for layer, head in np.ndindex(*of_heads.shape[1:]):
        without = frozen_pass(model, batch, constants, (layer, every, every, head))[0]
        torch.testing.assert_close(of_heads[0, layer, head], full - without)


def test_results_have_the_heads_and_a_map_of_them():
    pairs = gx.pairs("bace", ASPIRIN)
    assert pairs.by_head.shape == (4, 8)
    np.testing.assert_allclose(pairs.by_head.sum(1), pairs.by_layer.sum((1, 2)), atol=1e-5)
    axes = pairs.heads_figure().axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), pairs.by_head)
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        f"layer {k + 1} ({total:+.2f})" for k, total in enumerate(pairs.by_head.sum(1))
    ]
    with pytest.raises(ValueError, match="not divided by head"):
        gx.pairs("bace", ASPIRIN, num_layers=2).heads_figure()
