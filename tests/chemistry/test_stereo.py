"""A change keeps the configuration that it leaves alone, and its new stereocentres are listed."""

from itertools import islice

import pytest
from rdkit import Chem

import graphxai as gx
from graphxai.chemistry.search.counterfactuals import search
from graphxai.chemistry.search.neighbours import exchanged, fragments_for
from graphxai.chemistry.search.transformations import transformed
from graphxai.datasets.isomers import has_undrawn_centres, undrawn_double_bonds

VERUBECESTAT = "CN1C(=N)N[C@](C)(CS1(=O)=O)c1cc(NC(=O)c2ccc(F)cn2)ccc1F"
RING = Chem.MolFromSmiles("CN1C(=N)N[C@](C)(CS1(=O)=O)c1ccccc1")
DIPEPTIDE = "C[C@H](N)C(=O)N[C@@H](Cc1ccccc1)C(=O)O"
ALKENE = "C/C=C/c1ccc(OC)cc1"


@pytest.fixture(scope="module", params=[VERUBECESTAT, DIPEPTIDE, ALKENE])
def changes(request):
    mol = Chem.MolFromSmiles(request.param)
    return [*transformed(mol), *exchanged(mol, fragments_for(mol, None))]


def test_no_product_has_a_centre_that_is_not_drawn_or_listed(changes):
    for change in changes:
        drawn = change.isomers or (change.smiles,)
        assert not any(map(has_undrawn_centres, drawn))
        assert not any(undrawn_double_bonds(Chem.MolFromSmiles(smiles)) for smiles in drawn)


def test_of_a_double_bond_that_a_change_makes_both_isomers_are_listed():
    """An exchange at an alkene makes a new one. A bond that was open before stays open."""
    cinnamide = Chem.MolFromSmiles("CNC(=O)/C=C/c1ccccc1")
    of_acid = [
        change.isomers
        for change in exchanged(cinnamide, fragments_for(cinnamide, None))
        if change.smiles == "O=C(O)C=Cc1ccccc1"
    ]
    assert of_acid == [("O=C(O)/C=C\\c1ccccc1", "O=C(O)/C=C/c1ccccc1")]
    of_open_bond = list(transformed(Chem.MolFromSmiles("CC=CCc1ccccc1")))
    assert any("C=C" in change.smiles for change in of_open_bond)
    assert not any("/" in "".join(change.isomers) for change in of_open_bond)


def test_an_untouched_ring_has_the_same_configuration_in_every_product():
    """RDKit's search for substructures compares configurations by itself."""
    seen = 0
    for change in transformed(Chem.MolFromSmiles(VERUBECESTAT)):
        mol = Chem.MolFromSmiles(change.smiles)
        if mol.HasSubstructMatch(RING):
            seen += 1
            assert mol.HasSubstructMatch(RING, useChirality=True), change
    assert seen > 50


@pytest.mark.parametrize("alkene", ["C/C=C/c1ccc(OC)cc1", r"C/C=C\c1ccc(OC)cc1"])
def test_a_double_bond_that_a_change_leaves_alone_has_the_same_configuration(alkene):
    """RDKit's reactions keep it, and so does its joining of parts."""
    mol = Chem.MolFromSmiles(alkene)
    styrene = Chem.MolFromSmiles(alkene.replace("(OC)", ""))
    by_source = {}
    for make in (transformed(mol), exchanged(mol, fragments_for(mol, None))):
        for change in make:
            product = Chem.MolFromSmiles(change.smiles)
            if change.atoms.isdisjoint({0, 1, 2, 3}) and product.HasSubstructMatch(styrene):
                by_source.setdefault(change.source == "BRICS exchange", []).append(change)
                assert product.HasSubstructMatch(styrene, useChirality=True), change
    assert all(len(by_source[is_exchange]) > 5 for is_exchange in (False, True))


@pytest.mark.parametrize(
    ("before", "name", "after"),
    [
        # a neighbour of the centre is replaced, and the new one is where the old one was
        ("C[C@](N)(F)CC", "aliphatic F to H", "C[C@](N)([H])CC"),
        ("CC[C@H](O)Cl", "aliphatic OH to F", "CC[C@H](F)Cl"),
        ("C/C=C/COC", "aliphatic OCH3 to OH", "C/C=C/CO"),
        # likewise at a double bond, also where the priorities of its neighbours change
        ("CNC(=O)/C=C/c1ccccc1", "phenyl to 2-thienyl", "CNC(=O)/C=C/c1cccs1"),
        (r"C/C=C\C(=O)NC", "amide to sulfonamide", r"C/C=C\S(=O)(=O)NC"),
        ("CC/C(C)=C/C(=O)NC", "amide reversed", "CC/C(C)=C/NC(C)=O"),
        (r"ClC/C(C)=C\C(=O)NC", "amide reversed", r"ClC/C(C)=C\NC(C)=O"),
    ],
)
def test_a_new_neighbour_is_where_the_old_one_was(before, name, after):
    products = [c.smiles for c in transformed(Chem.MolFromSmiles(before)) if c.name == name]
    assert products == [Chem.CanonSmiles(after)]


def test_of_a_new_centre_each_isomer_is_predicted_and_the_worst_counts():
    model = gx.load("bace")
    changes = gx.counterfactuals(
        model, "O=C(Nc1ccc(CC)cc1)c1ccccn1", "pIC50: >6", n=200, predictions=250, steps=1
    )
    several = [change for change in changes if change.isomers]
    assert several
    for change in several:
        smiles = [text for text, _ in change.isomers]
        values = [each["pIC50"].value for each in gx.predict(model, smiles)]
        assert change.prediction.value == pytest.approx(min(values), abs=1e-4)
        assert change.smiles == smiles[values.index(min(values))]
        assert len({Chem.CanonSmiles(text) for text in smiles}) == len(smiles) > 1
        assert (
            len({Chem.MolToSmiles(Chem.MolFromSmiles(s), isomericSmiles=False) for s in smiles})
            == 1
        )
        assert all(text in change.columns["isomers"] for text in smiles)


def test_the_best_of_each_site_come_before_a_second_of_any():
    changes = gx.counterfactuals(
        gx.load("bace"), VERUBECESTAT, "pIC50: <6.8", n=12, predictions=300, steps=1
    )
    sites = [change.atoms for change in changes]
    repeated = [
        k
        for k, site in enumerate(sites)
        if any(2 * len(site & other) >= len(site | other) for other in sites[:k])
    ]
    first = repeated[0] if repeated else len(sites)
    assert first >= 5
    assert repeated == list(range(first, len(sites)))


def test_the_first_suggestions_come_before_all_neighbours_are_made():
    steps = search(gx.load("bace"), VERUBECESTAT, "pIC50: <6.5", predictions=100, steps=1)
    predicted = [count for count, _ in islice(steps, 3)]
    assert predicted[:2] == [0, 8]
    assert predicted[2] > 8
