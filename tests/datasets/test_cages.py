"""Of the isomers at undrawn centres, only those that can exist count."""

import pytest
from rdkit import Chem
from rdkit.Chem import AllChem
from rdkit.Chem.EnumerateStereoisomers import EnumerateStereoisomers

import graphxai as gx
from graphxai.datasets.isomers import (
    has_undrawn_centres,
    isomers_in_order,
    undrawn_centres,
    undrawn_double_bonds,
)

CAGES = {
    "C1CN2CCC1CC2": 1,  # quinuclidine
    "OC1CN2CCC1CC2": 2,  # quinuclidin-3-ol
    "NC12CC3CC(CC(C3)C1)C2": 1,  # amantadine
    "CC12CC3CC(C)(C1)CC(N)(C3)C2": 1,  # memantine
    "CC(N)C12CC3CC(CC(C3)C1)C2": 2,  # rimantadine
    "NC12CC(C1)(C2)C(=O)O": 1,  # a bicyclo[1.1.1]pentane
    "NC12CCC(CC1)(CC2)C(=O)O": 1,  # a bicyclo[2.2.2]octane
    "OC(=O)C12C3C4C1C5C2C3C45C(O)=O": 1,  # a cubane
    "CC1(C)C2CCC1(C)C(=O)C2": 2,  # camphor
    "CN1C2CCC1CC(C2)OC(=O)c1ccccc1": 2,  # esters of tropine and pseudotropine
    "COC(=O)C1C(OC(=O)c2ccccc2)CC2CCC1N2C": 8,  # cocaine
    "CN1CCC23CCCCC2C1Cc1ccc(O)cc13": 4,  # a morphinan
    "NC1C2CNCC12": 2,  # an amine of 3-azabicyclo[3.1.0]hexane, exo or endo
    "C1CC2CC3CC1CC(C2)C3": 1,  # homoadamantane
    # larger bicycles are cis and trans
    "C1CCC2CCCCC2C1": 2,
    "OC1CC2CCCC2C1": 4,
}


# More centres than isomers are compared: dieldrin, sucrose, testosterone
SAMPLED = [
    "ClC1=C(Cl)C2(Cl)C3C4CC(C5OC45)C3C1(Cl)C2(Cl)Cl",
    "OCC1OC(OC2(CO)OC(CO)C(O)C2O)C(O)C(O)C1O",
    "CC12CCC3C(CCC4=CC(=O)CCC34C)C1CCC2O",
]


def isomers(smiles: str) -> set[str]:
    mol = Chem.MolFromSmiles(smiles)
    listed = isomers_in_order(mol, mol, undrawn_centres(mol))[0] or [mol]
    return set(map(Chem.MolToSmiles, listed))


@pytest.mark.parametrize("smiles", CAGES)
def test_bridgeheads_of_a_cage_have_one_configuration_together(smiles):
    assert len(isomers(smiles)) == CAGES[smiles]
    assert has_undrawn_centres(smiles) == (CAGES[smiles] > 1)


@pytest.mark.parametrize("smiles", [s for s, count in CAGES.items() if count > 1])
def test_the_isomers_are_those_that_a_force_field_can_build(smiles):
    """RDKit finds coordinates for in,out isomers of bicyclo[3.3.1]nonanes, of far higher energy."""
    energies = {}
    for isomer in EnumerateStereoisomers(Chem.MolFromSmiles(smiles)):
        mol = Chem.AddHs(isomer)
        if AllChem.EmbedMolecule(mol, randomSeed=1, maxAttempts=20) == 0:
            [(_, energy)] = AllChem.MMFFOptimizeMoleculeConfs(mol, maxIters=2000)
            energies[Chem.MolToSmiles(isomer)] = energy  # in kcal/mol
    least = min(energies.values())
    assert isomers(smiles) == {name for name, each in energies.items() if each < least + 40}


def test_however_a_molecule_is_written_its_isomers_are_the_same():
    for smiles in (*CAGES, *SAMPLED):
        mol = Chem.MolFromSmiles(smiles)
        for seed in range(3):
            assert isomers(Chem.MolToRandomSmilesVect(mol, 1, seed)[0]) == isomers(smiles)


def test_a_drawn_bridgehead_fixes_the_others():
    """So the mean over the isomers of a camphor with one drawn centre is that of the only one."""
    half, drawn = "CC1(C)C2CC[C@]1(C)C(=O)C2", "CC1(C)[C@H]2CC[C@]1(C)C(=O)C2"
    assert not undrawn_centres(Chem.MolFromSmiles(half)).open
    assert isomers(half) == {Chem.CanonSmiles(drawn)}
    rows = gx.predict(gx.load("solubility", isomers="mean"), [half, drawn])
    of_half, of_drawn = (next(iter(row.values())) for row in rows)
    assert of_half.value == pytest.approx(of_drawn.value, abs=1e-6)


def test_a_sample_says_how_many_of_its_isomers_differ():
    inositol = Chem.MolFromSmiles("OC1C(O)C(O)C(O)C(O)C1O")
    count = isomers_in_order(inositol, inositol, undrawn_centres(inositol))[1]
    assert count == "a sample of 16 of its 64 configurations, 5 different"


def test_what_is_no_smiles_has_no_centres():
    assert not has_undrawn_centres("c1cccc1")


@pytest.mark.parametrize(
    ("smiles", "count"),
    [
        ("CC=CC", 1),
        ("CC(=NO)CC", 1),  # an oxime
        ("CC=NNC(=O)C", 1),  # a hydrazone
        ("C1=CCCCCCCCCCC1", 1),  # cyclododecene
        ("C1=CCCCCCC1", 0),  # cyclooctene
        ("CC=C=CC", 0),  # an allene
        ("CN=[N+]=[N-]", 0),
        ("CN=C=NC", 0),
        ("NC(=N)c1ccccc1", 0),
        ("CN=C(NC)NS(=O)(=O)C", 0),  # a guanidine, whose proton moves
        ("CNC(C)=NC#N", 0),
        ("NC(=[NH+]C)c1ccccc1", 0),
    ],
)
def test_double_bonds_with_two_isomers_can_be_isolated(smiles, count):
    assert len(undrawn_double_bonds(Chem.MolFromSmiles(smiles))) == count


def test_a_cage_without_centres_is_answered_in_one_pass():
    model = gx.load("solubility", isomers="mean")
    amantadine, butanol = "NC12CC3CC(CC(C3)C1)C2", "CCC(C)O"
    rows = gx.predict(model, [amantadine, butanol])
    of_cage, of_alcohol = (next(iter(row.values())).note for row in rows)
    assert "isomers" not in (of_cage or "")
    assert "its 2 isomers" in of_alcohol
