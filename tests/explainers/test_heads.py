"""What heads attend to agrees with brute force and RDKit, and masked LRP with NumPy."""

import json
from itertools import combinations

import numpy as np
import pytest
import torch
from rdkit import Chem

import graphxai
from graphxai.datasets.samples import MOLECULES, digit_paths
from graphxai.evaluation.testing import check_batching, check_renumbering
from graphxai.explainers import HeadStatistics, get_explainer, head_statistics
from graphxai.explainers.heads import RELATING_GROUPS, RELATIONS, HeadCounts, count, relations_of
from graphxai.models.graphormer import collate, locate
from graphxai.rules.conservative import record
from positive_reference import Reference, rolled_out
from toy import random_graphormer


def statistics_of(positional, relational):
    """Return statistics that lead to exactly these masks (L, H)."""
    positional, relational = np.array(positional), np.array(relational)
    distances = np.zeros((*positional.shape, 5))
    distances[..., 1] = np.where(positional, 0.9, 0.5)
    distances[..., 4] = 1 - distances[..., 1]
    related = np.where(relational, 0.5, 0.1)[..., None]
    return HeadStatistics(distances, ("bonded",), related, np.array([0.1]), rows=10)


# --- measuring -----------------------------------------------------------------------------------


def test_statistics_equal_a_loop_over_all_rows(smiles):
    molecules = smiles[1:6]
    model = random_graphormer().double()
    statistics = head_statistics(model, molecules)
    layers, heads = model.config.num_layers, model.config.num_heads
    far, token = model.config.max_distance + 1, model.config.max_distance + 2
    distances = np.zeros((layers, heads, token + 1))
    related, chance, rows = (
        np.zeros((layers, heads, len(RELATIONS))),
        np.zeros((len(RELATIONS), far)),
        0,
    )
    for text in molecules:
        prepared = model.prepare(text)
        molecule = Chem.MolFromSmiles(prepared.smiles)  # heavy water is read as water
        between = Chem.GetDistanceMatrix(molecule)  # 1e8 between parts of a salt
        relations = relations_of(molecule)
        n = molecule.GetNumAtoms()
        with record(all_queries=True) as tape, torch.no_grad():
            model(collate([prepared.data]))
        for i in range(n):
            rows += 1
            for d in range(far):
                there = between[i] == d
                chance[:, d] += relations[:, i, there].sum(-1) / max(there.sum(), 1)
            for layer, head in np.ndindex(layers, heads):
                row = tape.attention[layer][0, head, 1 + i].numpy()
                best = [t for t in range(n + 1) if row[t] > row.max() * (1 - 1e-5)]
                for t in best:
                    at = token if t == 0 else far if between[i, t - 1] > n else between[i, t - 1]
                    distances[layer, head, int(at)] += 1 / len(best)
                    if t > 0:
                        related[layer, head] += relations[:, i, t - 1] / len(best)
    assert statistics.rows == rows
    assert statistics.relations == RELATIONS
    np.testing.assert_allclose(statistics.distances, distances / rows, atol=1e-12)
    np.testing.assert_allclose(statistics.related, related / rows, atol=1e-12)
    np.testing.assert_allclose(statistics.base_rates, chance.max(-1) / rows, atol=1e-12)


def test_heads_built_to_look_at_one_distance_are_positional():
    """Heads 1 to 4 look at the query itself, its neighbours, their neighbours, the graph token."""
    model = random_graphormer()
    with torch.no_grad():
        for layer in model.layers:
            layer.attention.query.weight.zero_()
            layer.attention.query.bias.zero_()
        for parameter in (model.bias.bond, model.bias.spatial, model.bias.graph_token):
            parameter.zero_()
        for head in range(3):
            model.bias.spatial[head, head] = 20.0
        model.bias.graph_token[3] = 20.0
    statistics = head_statistics(model, ["CCCC", "CCCCCC"])
    for head, distance in enumerate([0, 1, 2, statistics.distances.shape[-1] - 1]):
        np.testing.assert_allclose(statistics.distances[:, head, distance], 1.0)
    assert statistics.positional.tolist() == [[True, True, True, False]] * 3
    assert (
        not statistics.relational.any()
    )  # distance 1 explains "bonded" (Song 2024, max(lambda_k))
    assert statistics.mask().tolist() == [[1, 1, 1, 0]] * 3
    assert statistics.related[0, 1, 0] == pytest.approx(1.0)


def test_statistics_do_not_depend_on_how_a_molecule_is_written_or_batched(smiles):
    model = random_graphormer()
    statistics = head_statistics(model, smiles)
    backwards = [
        Chem.MolToSmiles(m, rootedAtAtom=m.GetNumAtoms() - 1, canonical=False)
        for m in map(Chem.MolFromSmiles, reversed(smiles))
    ]
    other = head_statistics(model, backwards)
    np.testing.assert_allclose(statistics.distances, other.distances, atol=1e-9)
    np.testing.assert_allclose(statistics.related, other.related, atol=1e-9)
    np.testing.assert_allclose(statistics.base_rates, other.base_rates, atol=1e-9)
    one_by_one = [count(model, collate([model.prepare(s).data])) for s in smiles]
    total = one_by_one[0]
    for counts in one_by_one[1:]:
        total = total + counts
    np.testing.assert_allclose(statistics.distances, total.shares()[0][0], atol=1e-9)


def test_image_graphs_have_bonds_alone():
    model = graphxai.load("mnist-superpixels")
    statistics = head_statistics(model, list(digit_paths())[:2])
    assert statistics.relations == ("bonded",)
    sizes = [int(model.prepare(path).data.num_nodes) for path in list(digit_paths())[:2]]
    assert statistics.rows == sum(sizes)
    assert statistics.base_rates[0] == pytest.approx(1)  # every superpixel has a neighbour
    assert not statistics.relational.any()


def test_no_inputs_are_an_error():
    with pytest.raises(ValueError, match="at least one input"):
        head_statistics(random_graphormer(), [])


# --- relations -----------------------------------------------------------------------------------


def test_relations_of_paracetamol_worked_out_by_hand():
    """Atom 0 is the methyl carbon, 1 to 3 are C, O and N of the amide, 8 is the phenol's oxygen."""
    related = relations_of(Chem.MolFromSmiles("CC(=O)Nc1ccc(O)cc1"))
    bonds = [(0, 1), (1, 2), (1, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8), (7, 9), (9, 10)]
    bonds += [(4, 10)]
    expected = {
        "bonded": set(bonds),
        "same ring": set(combinations([4, 5, 6, 7, 9, 10], 2)),
        "same functional group": {(1, 2), (1, 3), (2, 3), (7, 8)},
        "conjugated": set(combinations(range(1, 11), 2)),
        "bonded, one a hetero atom": {(1, 2), (1, 3), (3, 4), (7, 8)},
    }
    fragments = [(0, 1, 2), (4, 5, 6, 7, 8, 9, 10)]  # BRICS cuts both bonds of the nitrogen
    expected["same fragment"] = {pair for part in fragments for pair in combinations(part, 2)}
    for name in ("same ring", "conjugated", "same fragment"):
        expected[f"{name}, not bonded"] = expected[name] - expected["bonded"]
    for name, matrix in zip(RELATIONS, related, strict=True):
        related_pairs = {tuple(sorted(pair)) for pair in np.argwhere(matrix).tolist()}
        assert related_pairs == expected[name], name


def test_relations_are_symmetric_and_never_with_oneself():
    for text in MOLECULES.values():
        for relation in relations_of(Chem.MolFromSmiles(text)):
            assert (relation == relation.T).all()
            assert not relation.diagonal().any()


def test_atoms_of_two_conjugated_systems_are_not_conjugated():
    """Diphenylmethane has two rings with a saturated carbon between them."""
    molecule = Chem.MolFromSmiles("c1ccccc1Cc1ccccc1")
    conjugated = relations_of(molecule)[3]
    assert conjugated[0, 5]
    assert conjugated[7, 12]
    assert not conjugated[0, 7]
    assert not conjugated[6].any()


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("CC(=O)O", "carboxylic acid or carboxylate"),
        ("CC(=O)OC", "ester"),
        ("Cn1c(=O)cccc1", "amide"),
        ("CS(=O)(=O)N", "sulfone or sulfonamide"),
        ("CC#N", "nitrile"),
        ("NC(=N)N", "guanidine"),
        ("FC(F)(F)C", "trifluoromethyl"),
        ("C[N+](=O)[O-]", "nitro, charged"),
    ],
)
def test_functional_groups_are_found(text, group):
    pattern = Chem.MolFromSmarts(RELATING_GROUPS[group])
    assert Chem.MolFromSmiles(text).HasSubstructMatch(pattern)


# --- the file ------------------------------------------------------------------------------------


def test_statistics_survive_the_file(tmp_path, smiles):
    statistics = head_statistics(random_graphormer(), smiles, data="seven molecules")
    statistics.save(tmp_path)
    again = HeadStatistics.load(tmp_path)
    for name in ("distances", "related", "base_rates"):
        np.testing.assert_allclose(getattr(again, name), getattr(statistics, name), atol=1e-6)
    assert (again.positional == statistics.positional).all()
    assert (again.relational == statistics.relational).all()
    assert (again.rows, again.data, again.relations) == (
        statistics.rows,
        statistics.data,
        statistics.relations,
    )


def broken(**changes):
    good = {
        "format": "graphxai-heads",
        "distances": [[[0.5, 0.25, 0.25]]],
        "relations": ["bonded"],
        "related": [[[0.5]]],
        "base_rates": [0.1],
        "rows": 4,
    }
    return json.dumps({k: v for k, v in (good | changes).items() if v is not None})


def test_the_file_broken_below_is_otherwise_good(tmp_path):
    (tmp_path / "heads.json").write_text(broken())
    assert HeadStatistics.load(tmp_path).rows == 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        "\0",
        broken(format="other"),
        broken(distances=None),
        broken(distances=[[[0.5, 0.25, float("nan")]]]),
        broken(distances=[[[2.0, -1.0, 0.0]]]),
        broken(distances=[[[0.5, 0.25, 0.0]]]),
        broken(distances=[[[0.5, 0.5]]]),
        broken(distances=[[[0.5, 0.25], [0.1]]]),
        broken(distances=[]),
        broken(distances="many"),
        broken(distances=[[["0.5", "0.25", "0.25"]]]),
        broken(distances=[[[10**400, 0, 0]]]),
        broken(related=[[0.5]]),
        broken(related=[[[True]]]),
        broken(relations="bonded"),
        broken(relations=[1]),
        broken(relations=["a", "b"]),
        broken(base_rates=[float("inf")]),
        broken(base_rates=[]),
        broken(base_rates=[0.1, 0.1]),
        broken(rows=0),
        broken(rows=True),
        broken(rows="4"),
        broken(data=["x"]),
        broken(sha256=7),
    ],
)
def test_a_broken_file_is_an_error_that_names_it(tmp_path, text):
    path = tmp_path / "heads.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"heads\.json: cannot be read"):
        HeadStatistics.load(tmp_path)


def test_a_missing_or_oversized_file_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"head_statistics\(model, inputs\)\.save"):
        HeadStatistics.load(tmp_path)
    with (tmp_path / "heads.json").open("wb") as file:
        file.truncate(1 << 25)
    with pytest.raises(ValueError, match="larger than"):
        get_explainer("masked_lrp", statistics=tmp_path)


# --- masked LRP ----------------------------------------------------------------------------------


def numpy_scores(model, text, kinds):
    batch = collate([model.prepare(text).data])
    with record() as tape:
        tokens = model.embed(batch).detach().requires_grad_()
        output = model.encode(tokens, batch)[0, 0]
    gradients = [g[0].numpy() for g in torch.autograd.grad(output, tape.attention)]
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    reference = Reference(state, model.config, model.bias(batch)[0].detach().numpy())
    tokens = tokens[0].detach().numpy()
    _, matrices = reference.relevance(tokens, np.array([1.0, 0.0]), "chefer", kinds)
    return batch, rolled_out(matrices, gradients)


@pytest.mark.parametrize("pre_layernorm", [True, False])
def test_masked_lrp_equals_its_formulas_in_numpy(pre_layernorm):
    model = random_graphormer(
        num_layers=2, hidden_dim=8, ffn_dim=10, num_heads=4, pre_layernorm=pre_layernorm
    ).double()
    positional, relational = [[1, 0, 0, 0], [0, 0, 1, 0]], [[1, 0, 1, 0], [0, 0, 0, 1]]
    batch, expected = numpy_scores(model, "CCO", np.array([positional, relational]))
    explainer = get_explainer("masked_lrp", statistics=statistics_of(positional, relational))
    attribution = explainer.attribute(model, batch)
    np.testing.assert_allclose(attribution.relevance[0], expected[1:], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(attribution.graph_token[0], expected[0], rtol=1e-8, atol=1e-12)


def test_with_every_head_masked_lrp_is_transformer_attribution(smiles):
    model = random_graphormer()
    batch = collate([model.prepare(s).data for s in smiles])
    every, none = np.ones((3, 4)), np.zeros((3, 4))
    expected = get_explainer("transformer_attribution").attribute(model, batch).relevance
    masked = get_explainer("masked_lrp", statistics=statistics_of(every, none))
    torch.testing.assert_close(masked.attribute(model, batch).relevance, expected)
    nothing = get_explainer("masked_lrp", statistics=statistics_of(none, none))
    assert (nothing.attribute(model, batch).relevance == 0).all()


def test_masked_lrp_of_a_graph_depends_on_nothing_else(unlike):
    """This also holds with each graph's own statistics, used if a model has none."""
    half = [[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]]
    for pre_layernorm in (True, False):
        model = random_graphormer(pre_layernorm=pre_layernorm)
        for statistics in (None, statistics_of(half, np.zeros((3, 4)))):
            explainer = get_explainer("masked_lrp", statistics=statistics)
            check_batching(model, unlike[1:3], explainer, tolerance=1e-5)
            check_renumbering(model, unlike[1:3], explainer, tolerance=1e-5)


def test_a_graphs_own_statistics_are_those_of_a_data_set_of_one(smiles):
    model = random_graphormer()
    verubecestat = model.prepare(smiles[-1])
    measured = head_statistics(model, [verubecestat.data])
    bonds = HeadStatistics(
        measured.distances,
        ("bonded",),
        measured.related[..., :1],
        measured.base_rates[:1],
        measured.rows,
    )
    batch = collate([verubecestat.data])
    with_own_statistics = get_explainer("masked_lrp").attribute(model, batch)
    given = get_explainer("masked_lrp", statistics=bonds).attribute(model, batch)
    torch.testing.assert_close(with_own_statistics.relevance, given.relevance)
    assert isinstance(count(model, batch), HeadCounts)


def test_bundled_statistics_belong_to_the_bundled_weights():
    for name in ("bace", "mnist-superpixels"):
        model = graphxai.load(name)
        statistics = HeadStatistics.load(locate(name))
        assert statistics.sha256 == model.origin.sha256
        value = "CC(=O)Nc1ccc(O)cc1" if name == "bace" else digit_paths()[3]
        by_default = graphxai.explain(model, value, "masked_lrp").relevance
        given = graphxai.explain(model, value, "masked_lrp", statistics=statistics).relevance
        np.testing.assert_array_equal(by_default, given)
    with pytest.raises(ValueError, match="for 3 layers with 8 heads; the model has 4 with 8"):
        graphxai.explain("bace", "CCO", "masked_lrp", statistics=statistics)


def test_statistics_of_other_weights_are_refused():
    bundled = HeadStatistics.load(locate("bace"))
    fields = {**vars(bundled), "sha256": "0" * 64}
    with pytest.raises(ValueError, match="other weights"):
        graphxai.explain("bace", "CCO", "masked_lrp", statistics=HeadStatistics(**fields))


def test_a_table_says_what_each_head_looks_at():
    frame = statistics_of([[True, False]], [[False, True]]).to_frame()
    assert frame[["layer", "head"]].to_numpy().tolist() == [[0, 0], [0, 1]]
    assert frame.key[0] == "1"
    assert frame.share.tolist() == pytest.approx([0.9, 0.5])
    assert frame.relation.tolist() == ["bonded"] * 2
    assert frame.excess.tolist() == pytest.approx([0.0, 0.4])
    assert frame.positional.tolist() == [True, False]
    assert frame.relational.tolist() == [False, True]


@pytest.mark.parametrize("pre_layernorm", [True, False])
def test_a_given_mask_acts_as_statistics_that_lead_to_it(pre_layernorm):
    model = random_graphormer(num_layers=2, num_heads=4, pre_layernorm=pre_layernorm)
    positional, relational = [[1, 0, 0, 0], [0, 0, 1, 0]], [[1, 0, 0, 0], [0, 0, 1, 0]]
    statistics = statistics_of(positional, relational)
    batch = collate([model.prepare("CCO").data])
    given = get_explainer("masked_lrp", heads=statistics.mask()).attribute(model, batch)
    expected = get_explainer("masked_lrp", statistics=statistics).attribute(model, batch)
    torch.testing.assert_close(given.relevance, expected.relevance)
