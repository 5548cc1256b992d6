"""Rules have known true atoms; they choose molecules, strokes of digits, and train models."""

from pathlib import Path

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import Crippen

from graphxai.datasets.molecules import molecule_to_data
from graphxai.datasets.rule_molecules import local_smiles, rule_dataset
from graphxai.datasets.rules import RULES, crippen_shares, get_rule, pattern_rule
from graphxai.datasets.samples import MOLECULES, digit_paths
from graphxai.datasets.superpixels import (
    SuperpixelError,
    image_to_data,
)
from graphxai.evaluation.ground_truth import model_score
from graphxai.models.graphormer import load_checkpoint, locate
from ground_truth_tasks import stroke_pixels, stroke_segments

QUINONE = "O=C1C=CC(=O)C=C1"


def true_atoms(rule: str, smiles: str) -> set[int]:
    return set(np.flatnonzero(RULES[rule].truth(smiles)).tolist())


# rule, SMILES, atoms counted by hand along the SMILES
CASES = [
    ("indole", "Cc1ccc2[nH]ccc2c1", {1, 2, 3, 4, 5, 6, 7, 8, 9}),
    ("indole", "Cn1ccc2ccccc21", {1, 2, 3, 4, 5, 6, 7, 8, 9}),
    ("indole", "c1ccc2[nH]cnc2c1", set()),  # benzimidazole
    ("indole", "c1ccc2occc2c1", set()),  # benzofuran
    ("indole", "C", set()),
    ("halogen", "FC(Cl)(Br)I", {0, 2, 3, 4}),
    ("halogen", "[Na+].[Cl-]", {1}),
    ("halogen", "CCO", set()),
    ("phosphorus", "COP(=O)(O)OP(O)(O)=O", {2, 6}),
    ("phosphorus", "CSC", set()),
    ("boron", "OB(O)c1ccccc1", {1}),
    ("boron", "Brc1ccccc1", set()),
    ("pains", QUINONE, set(range(8))),
    ("pains", "CCO", set()),
    ("large-ring", "CC1CCCCCC1", {1, 2, 3, 4, 5, 6, 7}),
    ("large-ring", "C1CCCCCC1.C1CCCCCC1", set(range(14))),  # equally large: either will do
    ("large-ring", "C1CCCCCC1.C1CCCCCCC1", set(range(7, 15))),
    ("large-ring", "C1CCCCC1", set()),
    ("large-ring", "CCCCCCCC", set()),
    ("rings", ".".join(["C1CC1"] * 4), set()),
    ("rings", ".".join(["CC1CC1"] * 5), {k for k in range(20) if k % 4}),
    ("rings", "CC(=O)[O-].[Na+]", set()),
]


@pytest.mark.parametrize(("rule", "smiles", "atoms"), CASES)
def test_a_rule_marks_the_atoms_that_make_the_answer_yes(
    rule: str, smiles: str, atoms: set[int]
) -> None:
    assert true_atoms(rule, smiles) == atoms
    assert RULES[rule].label(smiles) is bool(atoms)


@pytest.mark.parametrize(
    ("rule", "smiles", "bonds"),
    [
        ("indole", "Cc1ccc2[nH]ccc2c1", 10),  # all but the methyl's
        ("halogen", "FC(Cl)Br", 0),
        ("large-ring", "C1CCCCCC1C1CCCCCC1", 14),  # not the bond between the rings
        ("rings", ".".join(["CC1CC1"] * 5), 15),
        ("pains", f"CC.{QUINONE}", 8),
        ("indole", "CCO", 0),
    ],
)
def test_true_bonds_lie_within_one_match_or_ring(rule: str, smiles: str, bonds: int) -> None:
    mol = Chem.MolFromSmiles(smiles)
    true, atoms = RULES[rule].true_bonds(mol), true_atoms(rule, smiles)
    assert true.shape == (mol.GetNumBonds(),)
    assert true.sum() == bonds
    for bond in np.flatnonzero(true).tolist():
        true_bond = mol.GetBondWithIdx(bond)
        assert {true_bond.GetBeginAtomIdx(), true_bond.GetEndAtomIdx()} <= atoms


def test_a_rule_of_shares_says_nothing_about_bonds() -> None:
    with pytest.raises(ValueError, match="'logp' says nothing about bonds"):
        RULES["logp"].true_bonds("CCO")


def test_every_match_of_an_alert_counts() -> None:
    assert true_atoms("pains", f"{QUINONE}.{QUINONE}") == set(range(16))


def test_the_truth_follows_the_atoms_when_they_are_renumbered() -> None:
    order = np.random.default_rng(0).permutation(12).tolist()
    mol = Chem.MolFromSmiles("Cc1c[nH]c2cc(CCl)ccc12")
    shuffled = Chem.RenumberAtoms(mol, order)
    for name in ("indole", "halogen", "logp"):
        np.testing.assert_allclose(RULES[name].truth(shuffled), RULES[name].truth(mol)[order])


@pytest.mark.parametrize("smiles", [*MOLECULES.values(), "C", "[H][H]", "[2H]O[2H]", "[Na+].[Cl-]"])
def test_shares_of_the_atoms_sum_to_crippens_logp(smiles: str) -> None:
    mol = Chem.MolFromSmiles(smiles)
    shares = crippen_shares(mol)
    assert shares.shape == (mol.GetNumAtoms(),)
    assert shares.sum() == pytest.approx(Crippen.MolLogP(mol), abs=1e-9)  # type: ignore[attr-defined]
    assert RULES["logp"].label(mol) == pytest.approx(shares.sum())


def test_hydrogens_count_towards_their_heavy_atom() -> None:
    # Wildman and Crippen 1999, Table 1: C1 (methane) 0.1441, H1 (on carbon) 0.1230.
    np.testing.assert_allclose(crippen_shares(Chem.MolFromSmiles("C")), [0.1441 + 4 * 0.1230])


def test_your_own_rule_is_a_pattern() -> None:
    rule = pattern_rule("acid", "Is there a carboxylic acid?", "C(=O)[OH]")
    assert set(np.flatnonzero(rule.truth("CCC(=O)O"))) == {2, 3, 4}
    assert not rule.label("CCC(=O)OC")
    assert get_rule(rule) is rule


def test_what_cannot_be_read_is_named() -> None:
    with pytest.raises(ValueError, match="C1CC"):
        RULES["indole"].truth("C1CC")
    with pytest.raises(ValueError, match=r"\(\(\("):
        pattern_rule("x", "?", "(((")
    with pytest.raises(ValueError, match="indole"):
        get_rule("no such rule")


ALKANES = ["C" * n for n in range(1, 41)]
CHLORIDES = ["C" * n + "Cl" for n in range(1, 21)]


def test_classes_are_balanced_and_every_molecule_occurs_once() -> None:
    noise = ["not a SMILES", "", "CC", "C(C)", "ClC"]  # the last three are repeats
    dataset = rule_dataset(noise + ALKANES + CHLORIDES, "halogen", size=60)
    assert len(dataset.smiles) == len(set(dataset.smiles)) == 40  # 20 chlorides, so 20 alkanes
    assert dataset.labels.sum() == 20
    assert dataset.unreadable == 2
    for smiles, label, truth in zip(dataset.smiles, dataset.labels, dataset.truths, strict=True):
        assert ("Cl" in smiles) == label
        assert truth.tolist() == RULES["halogen"].truth(smiles).tolist()
    split = dataset.split
    assert sorted([*split.train, *split.valid, *split.test]) == list(range(40))


def test_another_balance_holds_too() -> None:
    dataset = rule_dataset(ALKANES + CHLORIDES, "halogen", size=40, balance=0.25)
    assert (len(dataset.labels), dataset.labels.sum()) == (40, 10)
    for one_class in (0, 1):
        with pytest.raises(ValueError, match="balance must lie between 0 and 1"):
            rule_dataset(ALKANES + CHLORIDES, "halogen", size=40, balance=one_class)


def test_the_seed_decides_what_is_chosen() -> None:
    a, b, c = (
        rule_dataset(ALKANES + CHLORIDES, "halogen", size=20, seed=seed) for seed in (0, 0, 1)
    )
    assert (a.smiles, a.split) == (b.smiles, b.split)
    assert a.smiles != c.smiles


def test_only_positives_have_atoms_to_compare_with() -> None:
    dataset = rule_dataset(ALKANES + CHLORIDES, "halogen", size=40, fractions=(0.5, 0.0, 0.5))
    chosen = dataset.scored()
    assert set(chosen) <= set(dataset.split.test)
    assert all(dataset.labels[k] == 1 for k in chosen)
    assert len(chosen) == sum(dataset.labels[list(dataset.split.test)])
    all_true = rule_dataset([*ALKANES, *(f"C1{'C' * n}C1" for n in range(5, 25))], "large-ring")
    assert all_true.labels.sum() == 20
    assert all_true.scored(range(40)) == []  # every atom lies in the ring: nothing to tell apart
    additive = rule_dataset(ALKANES, "logp", size=20)
    assert additive.scored(range(20)) == list(range(20))
    assert additive.scored(range(20), limit=3) == [0, 1, 2]


def test_too_few_molecules_are_an_error() -> None:
    with pytest.raises(ValueError, match="0 positives"):
        rule_dataset(ALKANES, "boron", size=20)


def test_local_tables_are_read_or_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="GRAPHXAI_DATA"):
        local_smiles(tmp_path)
    folder = tmp_path / "molecules"
    folder.mkdir()
    (folder / "b.csv").write_text("smiles,y\nCC,1\n", encoding="utf-8")
    (folder / "a.csv").write_text("id,smiles\n1,CCO\n2,C\n", encoding="utf-8-sig")
    assert local_smiles(tmp_path) == ["CCO", "C", "CC"]
    (folder / "c.csv").write_text("mol\nC\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"c\.csv"):
        local_smiles(tmp_path)


def test_a_stroke_is_what_is_brighter_than_half_of_full_ink() -> None:
    image = np.array([[0.0, 1.0, 0.5], [0.0, 0.9, 0.2]])
    segments = np.array([[0, 1, 2], [0, 1, 2]])
    assert stroke_pixels(image).tolist() == [[False, True, False], [False, True, False]]
    assert stroke_segments(image, segments).tolist() == [False, True, False]
    assert stroke_segments(image, segments, threshold=0.3).tolist() == [False, True, True]
    exactly_half = np.array([[0.25, 1.0], [0.75, 1.0]])
    assert stroke_segments(exactly_half, np.array([[0, 1], [0, 1]])).tolist() == [False, True]
    with pytest.raises(SuperpixelError, match="shape"):
        stroke_segments(image, segments[:1])
    with pytest.raises(SuperpixelError, match="no pixel"):
        stroke_segments(image, segments * 2)


def test_stroke_superpixels_are_those_of_bright_nodes() -> None:
    data = image_to_data(np.asarray(plain_digit(3)))
    image, segments = data.image[0].numpy(), data.segments[0].numpy()
    marked = stroke_segments(image, segments)
    np.testing.assert_array_equal(marked, data.x[:, 0].numpy() > 0.5)
    inside = stroke_pixels(image)[marked[segments]].mean()
    assert inside > stroke_pixels(image)[~marked[segments]].mean()


def plain_digit(digit: int) -> np.ndarray:
    from graphxai.datasets.mnist import read_digit

    return read_digit(digit_paths()[digit])


def test_a_trained_model_reports_its_score_on_the_test_molecules(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    from graphxai.learning.recipes.rules import train_rule

    smiles = ALKANES[:30] + CHLORIDES + ["C" * n + "Br" for n in range(1, 11)]
    folder = train_rule(
        tmp_path,
        "halogen",
        molecules=smiles,
        size=60,
        epochs=3,
        accelerator="cpu",
        progress=False,
    )
    model = load_checkpoint(folder)
    assert model.config.tasks[0].classes == ("no", "yes")
    assert "Is there a halogen atom?" in (folder / "README.md").read_text(encoding="utf-8")
    text = model.origin.metadata
    again = rule_dataset(smiles, text["rule"], size=text["size"], seed=text["seed"])
    test = list(again.split.test)
    expected = model_score(model, [again.smiles[k] for k in test], again.labels[test])
    assert text["score"]["n"] == len(test) == 6
    assert (text["score"]["metric"], text["score"]["value"]) == expected


def test_a_rule_may_start_from_the_bundled_weights(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    from graphxai.learning.recipes.rules import train_rule

    folder = train_rule(
        tmp_path,
        "logp",
        molecules=ALKANES[:20],
        size=20,
        init_weights="molecules",
        epochs=1,
        accelerator="cpu",
        progress=False,
    )
    model = load_checkpoint(folder)
    assert model.config.hidden_dim == load_checkpoint(locate("molecules")).config.hidden_dim
    assert model.origin.metadata["score"]["metric"] == "R2"


def test_graphs_of_a_rule_have_the_atoms_of_its_truths() -> None:
    dataset = rule_dataset([*MOLECULES.values(), *CHLORIDES], "logp", size=20)
    sizes = [molecule_to_data(smiles).num_nodes for smiles in dataset.smiles]
    assert sizes == [len(truth) for truth in dataset.truths]
