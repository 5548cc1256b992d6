"""A class, task or molecule is contrasted with another, and pairs worth a contrast are found."""

import csv
import re
from itertools import combinations
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem, DataStructs
from rdkit.Chem import rdFingerprintGenerator, rdFMCS

import graphxai as gx
from graphxai.chemistry.matching import NoCommonPartError, common_part
from graphxai.contract.tasks import Task
from graphxai.datasets.molecules import molecule_graph
from graphxai.visualization.grid import aligned
from graphxai.visualization.layout import laid_out
from graphxai.visualization.text import minus_signs
from toy import random_graphormer

IBUPROFEN = "CC(C)Cc1ccc(cc1)C(C)C(=O)O"
AMIDE = "CC(C)Cc1ccc(cc1)C(C)C(=O)NC"
PYRIDINE = "CC(C)Cc1ccc(nc1)C(C)C(=O)O"
PAIRS = [(IBUPROFEN, AMIDE), (IBUPROFEN, PYRIDINE), ("CCOc1ccccc1", "CCOc1ccccc1Br")]


# --- targets -------------------------------------------------------------------------------------

TASKS = (
    Task("CYP", "binary", ("inactive", "active")),
    Task("hERG", "binary", ("safe", "blocked")),
    Task("shape", "multiclass", ("rod", "disc", "ball")),
    Task("Ki A", "regression", unit="pKi", offset=6.0, scale=1.5),
    Task("Ki B", "regression", unit="pKi", offset=5.0, scale=0.5),
    Task("logS", "regression", unit="log M", offset=-3.0, scale=2.0),
    Task("pIC50 A", "regression", offset=6.0, scale=1.5),
    Task("pIC50 B", "regression", offset=5.0, scale=0.5),
)


@pytest.mark.parametrize(
    ("target", "expected", "label"),
    [
        (("active", "inactive"), lambda o: o[0], "active against inactive"),
        (("disc", "rod"), lambda o: o[3] - o[2], "disc against rod"),
        (("blocked", "safe"), lambda o: o[1], "blocked against safe"),
        (("CYP", "hERG"), lambda o: o[0] - o[1], "active (CYP, logit) against blocked (hERG"),
        (("inactive", "blocked"), lambda o: -o[0] - o[1], "inactive (CYP, logit) against"),
        (
            (("shape", 2), ("hERG", "safe")),
            lambda o: o[4] + o[1],
            "ball (shape, logit) against safe (hERG, logit)",
        ),
        (
            ("Ki A", "Ki B"),
            lambda o: (6 + 1.5 * o[5]) - (5 + 0.5 * o[6]),
            "Ki A (pKi) against Ki B (pKi)",
        ),
        (
            ("pIC50 A", "pIC50 B"),
            lambda o: (6 + 1.5 * o[8]) - (5 + 0.5 * o[9]),
            "pIC50 A against pIC50 B",
        ),
        (
            ("Ki A", "logS"),
            lambda o: o[5] - o[7],
            "Ki A (standardised) against logS (standardised)",
        ),
        (
            ["logS", ["CYP", "active"]],
            lambda o: o[7] - o[0],
            "logS (standardised) against active (CYP, logit)",
        ),
    ],
)
def test_a_pair_of_targets_is_their_difference_in_the_unit_it_names(target, expected, label):
    model = random_graphormer(tasks=TASKS)
    explanation = gx.explain(model, IBUPROFEN, target=target)
    batch = model.collate([model.prepare(IBUPROFEN).data])
    outputs = model(batch)[0].detach()
    assert explanation.target.startswith(label)
    assert explanation.output == pytest.approx(float(expected(outputs)), abs=1e-5)
    assert abs(explanation.ledger.unexplained) < 1e-4


def test_a_difference_of_tasks_is_explained_by_the_difference_of_their_relevance():
    model = random_graphormer(tasks=TASKS)
    first, second, both = gx.Target("Ki A"), gx.Target("Ki B"), gx.Target(("Ki A", "Ki B"))
    a, b, difference = (
        gx.explain(model, IBUPROFEN, target=t).relevance for t in (first, second, both)
    )
    np.testing.assert_allclose(difference, a - b, atol=1e-5)
    assert [t.name for t in both.tasks_in(model.config)] == ["Ki A", "Ki B"]
    assert [t.name for t in first.tasks_in(model.config)] == ["Ki A"]
    explanation = gx.explain(model, IBUPROFEN, target=both)
    values = {p.task: str(p) for p in explanation.predictions}
    ends = (f"{name}: {values[name]}" for name in ("Ki A", "Ki B"))
    assert explanation.headline == minus_signs("; ".join(ends))


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        (("shape", "CYP"), ValueError, "has several classes: name one, as in .'shape', 'rod'"),
        (("active", "round"), ValueError, "no class 'round'"),
        ((("Ki A", "high"), "CYP"), ValueError, "regression and has no classes"),
        (("CYP", "active"), ValueError, "write 'CYP: active'"),
        (("CYP", "CYP"), ValueError, "subtracts something from itself"),
        ((("nothing", 0), "CYP"), ValueError, "no task 'nothing'"),
        (((1, "rod"), "CYP"), TypeError, "an end of a pair"),
    ],
)
def test_a_pair_that_makes_no_sense_is_named(target, error, message):
    with pytest.raises(error, match=message):
        gx.explain(random_graphormer(tasks=TASKS), "CCO", target=target)


# --- corresponding atoms -------------------------------------------------------------------------


def part_of(a, b, **options):
    return common_part(Chem.MolFromSmiles(a), Chem.MolFromSmiles(b), **options)


def test_only_what_was_exchanged_at_one_bond_differs():
    part = part_of(IBUPROFEN, AMIDE)
    acid, amide = Chem.MolFromSmiles(IBUPROFEN), Chem.MolFromSmiles(AMIDE)
    assert len(part.same) == acid.GetNumAtoms() - 1
    for i, j in part.same.tolist():
        assert acid.GetAtomWithIdx(i).GetAtomicNum() == amide.GetAtomWithIdx(j).GetAtomicNum()
    bonded = {frozenset((b.GetBeginAtomIdx(), b.GetEndAtomIdx())) for b in amide.GetBonds()}
    to = dict(part.mapping.tolist())
    for bond in acid.GetBonds():
        i, j = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        if i in to and j in to:
            assert frozenset((to[i], to[j])) in bonded


def test_one_atom_exchanged_in_a_ring_is_one_replaced_atom():
    part = part_of(IBUPROFEN, PYRIDINE)
    assert len(part.same) == 14
    assert len(part.replaced) == 1
    i, j = part.replaced[0].tolist()
    assert Chem.MolFromSmiles(IBUPROFEN).GetAtomWithIdx(i).GetSymbol() == "C"
    assert Chem.MolFromSmiles(PYRIDINE).GetAtomWithIdx(j).GetSymbol() == "N"


def test_a_change_of_charge_is_a_replaced_atom():
    part = part_of("CCCCN(C)C", "CCCC[NH+](C)C")
    assert len(part.same) == 6
    assert part.replaced.tolist() == [[4, 4]]


def test_a_ring_is_not_matched_to_a_chain():
    part = part_of("c1ccccc1CCCC(=O)O", "CCCCCCCCC(=O)O")
    assert len(part.same) == 6  # the chain with its acid; no atom of the ring


def test_the_cheapest_of_symmetric_mappings_is_taken():
    """Toluene lies in meta-cresol's ring in two ways, both of which are tried here."""
    toluene, cresol = Chem.MolFromSmiles("Cc1ccccc1"), Chem.MolFromSmiles("Cc1cccc(O)c1")
    ways = cresol.GetSubstructMatches(toluene, uniquify=False)
    assert len(ways) == 2
    for seed in range(4):
        cost = np.random.default_rng(seed).random((7, 8))
        cheapest = min(ways, key=lambda way: sum(cost[i, j] for i, j in enumerate(way)))
        part = common_part(toluene, cresol, cost=cost)
        assert tuple(part.same[:, 1].tolist()) == cheapest


def test_molecules_without_a_common_part_are_refused():
    with pytest.raises(NoCommonPartError, match="fewer than 3 connected atoms in common"):
        part_of("CCO", "c1ccccc1")
    with pytest.raises(ValueError, match="shared scaffold"):
        gx.contrast(random_graphormer(), "[Na+].[Cl-]", "CCO")


def test_a_search_that_ran_out_of_time_is_reported(monkeypatch):
    search = SimpleNamespace(canceled=True, smartsString="[#6]-[#6]-[#6]")
    monkeypatch.setattr(rdFMCS, "FindMCS", lambda *args, **options: search)
    contrast = gx.contrast(random_graphormer(), "CCCO", "CCCN")
    assert not contrast.part.complete
    assert "may be larger" in contrast.caption


def test_titles_have_minus_signs_before_numbers_and_hyphens_in_names():
    contrast = gx.contrast("bace", *PAIRS[0], method="gradient_input", target="pIC50")
    shown = (contrast.headline, contrast.caption, contrast.a.headline, contrast.a.caption)
    assert not any(re.search(r"-\.?\d", text) for text in shown)
    assert contrast.a.headline.startswith("pIC50: ")
    assert gx.explain("bace", PAIRS[0][0]).headline.startswith("BACE-1 inhibition: ")
    assert gx.explain("bace", PAIRS[0][0], "gae_rollout").caption.startswith("Gradient-weighted")
    both = gx.contrast("bace", *PAIRS[0], target=("active", "pIC50"))
    assert "BACE-1 inhibition" in both.headline


# --- contrast ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), PAIRS)
@pytest.mark.parametrize("target", [None, "pIC50"])
def test_the_account_of_lrp_closes(a, b, target):
    contrast = gx.contrast("bace", a, b, target=target)
    account = contrast.account
    outputs = [gx.explain("bace", s, target=target).output for s in (a, b)]
    assert account.output == pytest.approx(outputs[0] - outputs[1], abs=1e-5)
    changed = account.changed_a - account.changed_b
    terms = account.common + changed + account.graph_token + account.biases
    assert terms == pytest.approx(account.output, abs=1e-5)


def test_the_terms_are_sums_over_the_atoms_of_two_explanations():
    model = random_graphormer()
    contrast = gx.contrast(model, IBUPROFEN, PYRIDINE)
    r_a, r_b = (gx.explain(model, s).relevance for s in (IBUPROFEN, PYRIDINE))
    in_a, in_b = contrast.part.same.T
    account = contrast.account
    assert account.common == pytest.approx(sum(r_a[in_a]) - sum(r_b[in_b]), abs=1e-5)
    assert account.changed_a == pytest.approx(r_a.sum() - r_a[in_a].sum(), abs=1e-5)
    assert account.changed_b == pytest.approx(r_b.sum() - r_b[in_b].sum(), abs=1e-5)
    np.testing.assert_allclose(contrast.difference, r_a[in_a] - r_b[in_b], atol=1e-6)


def test_the_account_as_a_table_adds_up_to_the_output():
    terms = gx.contrast(random_graphormer(), IBUPROFEN, AMIDE, "gradient_input").account.to_dict()
    output, total, gap = (terms.pop(name) for name in ("output", "total", "unexplained"))
    terms["changed_b"] *= -1
    assert sum(terms.values()) == pytest.approx(total)
    assert total + gap == pytest.approx(output)


def test_other_rules_leave_a_residual_that_is_shown():
    contrast = gx.contrast(random_graphormer(), IBUPROFEN, AMIDE, "gradient_input")
    account = contrast.account
    parts = account.common + account.changed_a - account.changed_b
    gap = account.output - parts - account.graph_token - account.biases - account.structure
    assert abs(gap) > 0.01
    assert account.unexplained == pytest.approx(gap)
    assert "unexplained" in contrast.caption
    scores = gx.contrast(random_graphormer(), IBUPROFEN, AMIDE, "rollout")
    assert "not shares of the output" in scores.caption


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_swapping_the_molecules_flips_the_sign(a, b):
    model = random_graphormer()
    forth, back = gx.contrast(model, a, b).account, gx.contrast(model, b, a).account
    assert forth.output == pytest.approx(-back.output, abs=1e-5)
    assert forth.common == pytest.approx(-back.common, abs=1e-4)
    assert forth.changed_a == pytest.approx(back.changed_b, abs=1e-4)


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_the_account_does_not_depend_on_the_order_of_the_atoms(a, b):
    model = random_graphormer()
    mol = Chem.MolFromSmiles(b)
    order = np.random.default_rng(1).permutation(mol.GetNumAtoms()).tolist()
    given = gx.contrast(model, a, b).account
    moved = gx.contrast(model, a, Chem.RenumberAtoms(mol, order)).account
    assert vars(moved) == pytest.approx(vars(given), abs=1e-4)


def test_a_molecule_does_not_differ_from_itself():
    contrast = gx.contrast(random_graphormer(), IBUPROFEN, "OC(=O)C(C)c1ccc(CC(C)C)cc1")
    assert len(contrast.changed_a) == len(contrast.changed_b) == 0
    np.testing.assert_allclose(contrast.difference, 0, atol=1e-4)
    assert abs(contrast.account.output) < 1e-4


SHAPES = ("CCCO", "CCC[NH3+]", "CCCBr", "CCC(=O)[O-]", "CCCc1ccccc1", "CCCN(CCC)CCC", "CCCS(=O)=O")


def test_one_class_is_explained_in_both_molecules():
    model = random_graphormer(tasks=(Task("shape", "multiclass", ("rod", "disc", "ball")),))
    classes = {s: gx.explain(model, s).target for s in SHAPES}
    a, b = next((a, b) for a, b in combinations(classes, 2) if classes[a] != classes[b])
    contrast = gx.contrast(model, a, b)
    assert contrast.a.target == contrast.b.target == classes[a]


def test_graphs_without_a_molecule_are_refused():
    model = random_graphormer()
    graph = model.prepare("CCO").data
    del graph.smiles
    with pytest.raises(ValueError, match="needs two molecules"):
        gx.contrast(model, graph, "CCO")


def test_the_table_has_every_atom_of_both_once():
    contrast = gx.contrast(random_graphormer(), IBUPROFEN, PYRIDINE)
    frame = contrast.to_frame()
    assert sorted(frame.atom_a.dropna()) == list(range(len(contrast.a)))
    assert sorted(frame.atom_b.dropna()) == list(range(len(contrast.b)))
    assert frame.difference.sum() == pytest.approx(contrast.account.common, abs=1e-5)
    assert frame.part.value_counts().to_dict() == {
        "common": 14,
        "changed in a": 1,
        "changed in b": 1,
    }


# --- picture -------------------------------------------------------------------------------------


def discs(svg, attribute):
    """Return where the circles with this attribute are in their panel: (panel, atom) to (x, y)."""
    root, places = ElementTree.fromstring(svg), {}
    panels = [e for e in root if any(part.get("data-atom") for part in e.iter())]
    for number, panel in enumerate(panels):
        for e in panel.iter():
            if e.get(attribute) is not None:
                at = float(e.get("cx")), float(e.get("cy"))
                places[number, int(e.get(attribute))] = at
    return places


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_corresponding_atoms_are_at_the_same_place_in_both_panels(a, b):
    contrast = gx.contrast(random_graphormer(), a, b)
    at = discs(contrast.svg(), "data-atom")
    for i, j in contrast.part.mapping.tolist():
        assert at[0, i] == pytest.approx(at[1, j], abs=0.1)  # pixels


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_what_the_other_molecule_lacks_is_outlined(a, b):
    contrast = gx.contrast(random_graphormer(), a, b)
    outlined = discs(contrast.svg(), "data-outlined")
    expected = {(0, int(i)) for i in contrast.changed_a} | {(1, int(j)) for j in contrast.changed_b}
    assert set(outlined) == expected


def colours(svg):
    return [e.get("fill") for e in ElementTree.fromstring(svg).iter() if e.get("data-atom")]


def test_colours_show_what_differs_on_one_scale():
    contrast = gx.contrast(random_graphormer(), IBUPROFEN, AMIDE)
    relevance_a, relevance_b = contrast.a.relevance.copy(), contrast.b.relevance.copy()
    for i, j in contrast.part.same.tolist():
        relevance_a[i], relevance_b[j] = (
            relevance_a[i] - relevance_b[j],
            relevance_b[j] - relevance_a[i],
        )
    both = np.concatenate([relevance_a, relevance_b])
    assert colours(contrast.svg()) == gx.visualization.Scale.fit(both).hex(both)
    assert "higher than in the other molecule" in contrast.svg()
    assert relevance_a.sum() == pytest.approx(
        contrast.account.common + contrast.account.changed_a, abs=1e-5
    )
    itself = gx.contrast(random_graphormer(), IBUPROFEN, IBUPROFEN)
    assert set(colours(itself.svg())) == {"#ffffff"}


def test_relevance_itself_can_be_shown_on_one_scale():
    contrast = gx.contrast(random_graphormer(), IBUPROFEN, AMIDE)
    scale = gx.visualization.Scale.fit(contrast.a.relevance, contrast.b.relevance)
    expected = scale.hex(np.concatenate([contrast.a.relevance, contrast.b.relevance]))
    assert colours(contrast.svg(difference=False)) == expected


def test_a_difference_of_scores_without_sign_has_a_sign():
    contrast = gx.contrast(random_graphormer(), IBUPROFEN, AMIDE, "saliency")
    assert "lower than in the other molecule" in contrast.svg()
    alone = contrast.svg(difference=False)
    assert "sensitive to" in alone
    assert "against" not in re.sub("<title.*?</title>", "", alone).split("</desc>")[-1]


def test_a_layout_that_would_crowd_is_turned_rather_than_bent():
    """A molecule keeps its own distances; the corresponding atoms share a centre."""
    a, b = Chem.MolFromSmiles("CCCCCCC"), Chem.MolFromSmiles("C(C)(C)(C)CC(C(C)(C)C)(C(C)(C)C)CC")
    reference = laid_out(a)
    mapping = np.array([(2, 0), (3, 4), (4, 5)])
    free_layout, moved = laid_out(b), aligned(b, reference, mapping)
    between = [Chem.Get3DDistanceMatrix(m) for m in (free_layout, moved)]
    np.testing.assert_allclose(between[0], between[1], atol=1e-9)
    points, there = (m.GetConformer().GetPositions()[:, :2] for m in (moved, reference))
    gap = points[mapping[:, 1]] - there[mapping[:, 0]]
    np.testing.assert_allclose(gap.mean(0), 0, atol=1e-9)


def test_pictures_and_tables_are_saved_by_suffix(tmp_path):
    contrast = gx.contrast(random_graphormer(), IBUPROFEN, AMIDE)
    for name in ("c.svg", "c.png", "c.csv", "c.parquet"):
        assert contrast.save(tmp_path / name).stat().st_size > 500
    columns = pd.read_parquet(tmp_path / "c.parquet").columns
    assert list(columns) == list(pd.read_csv(tmp_path / "c.csv").columns)
    assert contrast._repr_svg_().startswith("<svg")
    assert contrast.png(zoom=1.0).startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"cannot write .\.gif.; use .*\.csv"):
        contrast.save(tmp_path / "c.gif")


# --- activity cliffs -----------------------------------------------------------------------------


def test_cliffs_of_a_table_are_those_of_a_loop_over_all_pairs(data_folder):
    with open(data_folder / "bace" / "raw" / "bace.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[::8]
    smiles, values = [r["mol"] for r in rows], [float(r["pIC50"]) for r in rows]
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    forms = [molecule_graph(s, canonical=True, standardise="parent").read for s in smiles]
    prints = [generator.GetFingerprint(form) for form in forms]
    expected = {}
    for i, j in combinations(range(len(rows)), 2):
        alike = DataStructs.TanimotoSimilarity(prints[i], prints[j])
        if alike >= 0.7 and abs(values[i] - values[j]) >= 1:
            expected[(i, j) if values[i] > values[j] else (j, i)] = alike
    cliffs = gx.activity_cliffs(smiles, values, matched=False)
    assert f"difference={cliffs[0].difference:.3g}, " in repr(cliffs[0])
    assert {(c.a, c.b): c.similarity for c in cliffs} == pytest.approx(expected)
    gaps = [cliff.difference for cliff in cliffs]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] == pytest.approx(values[cliffs[0].a] - values[cliffs[0].b])
    more = gx.activity_cliffs(smiles, values)
    assert {(c.a, c.b) for c in cliffs} < {(c.a, c.b) for c in more}
    for cliff in more:
        if cliff.core is not None:
            core = Chem.MolFromSmarts(cliff.core.replace("*", ""))
            for row in (cliff.a, cliff.b):
                assert forms[row].HasSubstructMatch(core)


SERIES = {
    "phenyl": "CC(=O)Nc1ccc(-c2ccccc2)cc1CCO",
    "methyl": "CC(=O)Nc1ccc(C)cc1CCO",
    "hydrogen": "CC(=O)Nc1ccccc1CCO",
    "other": "CCCCCCCCN",
}


def cliffs_of(values, **options):
    names = list(SERIES)
    cliffs = gx.activity_cliffs(list(SERIES.values()), values, similarity=1.0, **options)
    return {frozenset((names[c.a], names[c.b])): c.core for c in cliffs}


def test_matched_pairs_exchange_one_part_or_a_hydrogen():
    core_by_pair = cliffs_of([9.0, 7.5, 6.0, 1.0])
    pairs = {("phenyl", "methyl"), ("phenyl", "hydrogen"), ("methyl", "hydrogen")}
    assert set(core_by_pair) == {frozenset(pair) for pair in pairs}
    core = Chem.CanonSmiles("CC(=O)Nc1ccc(*)cc1CCO")
    assert {Chem.CanonSmiles(c) for c in core_by_pair.values()} == {core}
    assert cliffs_of([9.0, 7.5, 6.0, 1.0], matched=False) == {}


def test_only_large_differences_are_cliffs():
    assert set(cliffs_of([9.0, 8.5, 6.0, 1.0])) == {
        frozenset(("phenyl", "hydrogen")),
        frozenset(("methyl", "hydrogen")),
    }
    assert cliffs_of([9.0, 8.5, 6.0, 1.0], difference=3.5) == {}


def test_one_molecule_measured_twice_is_not_a_cliff_but_its_enantiomer_is():
    smiles = ["C[C@H](N)C(=O)Nc1ccccc1", "O=C(Nc1ccccc1)[C@H](C)N", "C[C@@H](N)C(=O)Nc1ccccc1"]
    cliffs = gx.activity_cliffs(smiles, [5.0, 7.0, 9.0])
    same = {Chem.CanonSmiles(s) for s in smiles[:2]}
    assert len(same) == 1
    assert {(c.a, c.b) for c in cliffs} == {(2, 0), (2, 1)}
    assert all(c.similarity == 1.0 for c in cliffs)


def test_rows_without_a_value_or_a_molecule_are_ignored():
    smiles = [IBUPROFEN, AMIDE, "not a molecule", PYRIDINE]
    with pytest.warns(UserWarning, match="1 SMILES cannot be read: row 2."):
        cliffs = gx.activity_cliffs(smiles, [5.0, np.nan, 7.0, 8.0], similarity=0.3)
    assert [(c.a, c.b) for c in cliffs] == [(3, 0)]
    assert gx.activity_cliffs([], []) == []
    with pytest.raises(ValueError, match="2 molecules, but values of shape"):
        gx.activity_cliffs(["C", "CC"], [1.0])
    with pytest.raises(ValueError, match=r"NaN where nothing but a bound is known: .*'>4'"):
        gx.activity_cliffs(["C", "CC"], [1.0, ">4"])
    with pytest.raises(ValueError, match="similarity must lie in"):
        gx.activity_cliffs(["C"], [1.0], similarity=0.0)


def test_columns_of_a_part_of_a_frame_are_counted_from_its_first_row():
    frame = pd.DataFrame({"smiles": ["CCO", "Cc1ccccc1", "Clc1ccccc1"], "value": [0.0, 4.0, 7.0]})
    part = frame[1:]  # whose first row pandas calls 1
    (cliff,) = gx.activity_cliffs(part.smiles, part.value, similarity=0.1)
    assert (cliff.a, cliff.b, cliff.difference) == (1, 0, 3.0)
