"""Molecules are changed by transformations, exchanged fragments and SELFIES."""

import pytest
from rdkit import Chem

import graphxai as gx
from graphxai.chemistry.search.neighbours import exchanged, fragments_for, mutated
from graphxai.chemistry.search.transformations import TRANSFORMATIONS, transformed

# together they have a place for every transformation
MOLECULES = """
FC(F)(F)c1ccc(O)c(N(C)C)c1 CS(=O)(=O)c1ccc(OC(F)(F)F)cc1 CC(C)(C)c1ccccc1C1CC1 CCC(C)C
OCC1CCC(=O)CC1 COCC(F)(F)C=C C#CC c1ccccc1CNC CN(C)CCN CC(=O)NCC NC(=O)c1ccccc1 COC(=O)CC
OC(=O)Cc1c[nH]c2ccccc12 Cn1cccc1 Cc1cccs1 N#CCC C1CCSCC1 C1CCCCC1C N#Cc1ccc(N)cc1
Oc1ccc(OC(F)F)cc1 CSC CS(=O)C CS(=O)(=O)C CS(=O)(=O)NC C1CCNCC1 C1CCOCC1 COc1ccccc1OC c1ccoc1
Fc1ccc(Cl)cc1 CC(=O)OCC CC(F)C Cc1ccc(C)cc1 NC(=O)NCC NC(=O)c1ccc(C#N)cc1 Cc1cccnc1 Cc1nccs1
Cn1ccnc1 CCCO c1ccncc1 CC(O)C CCc1ccccc1 CC(F)(F)C
CC1CNc2ccccc21 CN1CCc2ccccc21 Cc1ccc2ncccc2c1 CCc1ccccc1N Cc1ccc2ccccc2c1 c1ccc2[nH]ccc2c1
"""
AMIDE = "CC(=O)Nc1ccc(OC)c(C(=O)O)c1"


def test_every_transformation_makes_a_valid_molecule_of_some_other():
    names = [name for name, _, _ in TRANSFORMATIONS]
    assert len(names) == len(set(names)) >= 80
    made = {}
    for smiles in MOLECULES.split():
        mol, start = Chem.MolFromSmiles(smiles), Chem.CanonSmiles(smiles)
        for change in transformed(mol):
            assert change.atoms
            assert change.source
            assert change.smiles == Chem.CanonSmiles(change.smiles) != start
            made[change.name] = change
    assert set(names) == set(made)


@pytest.mark.parametrize(
    ("smiles", "name", "product"),
    [
        ("Fc1ccccc1", "aromatic F to Cl", "Clc1ccccc1"),
        ("CC(=O)NC1CC1", "amide reversed", "CNC(=O)C1CC1"),
        ("CCC(=O)O", "acid to tetrazole", "CCc1nnn[nH]1"),
        ("Cc1ccccn1", "aromatic N walks", "Cc1cccnc1"),
        ("CN(C)CC", "dimethylamine to morpholine", "CCN1CCOCC1"),
        ("C1CCNCC1", "ring smaller by CH2", "C1CCNC1"),
        ("C1CCNC1", "ring larger by CH2", "C1CCNCC1"),
        ("COc1ccccc1OC", "catechol ether to methylenedioxy", "c1ccc2c(c1)OCO2"),
        ("Cc1ccncc1", "pyridine ring fused", "Cc1ccnc2cccnc12"),
        ("Cc1cc[nH]c1", "benzene ring fused to a five-membered ring", "Cc1c[nH]c2ccccc12"),
        ("Cc1ccccc1", "pyrrole ring fused", "Cc1ccc2[nH]ccc2c1"),
        ("Cc1ccc2[nH]ccc2c1", "fused five-membered ring removed", "Cc1ccccc1"),
        ("NCCc1c[nH]c2ccccc12", "fused six-membered ring removed", "NCCc1cc[nH]c1"),
        ("NCCc1ccccc1", "phenyl to 3-indolyl", "NCCc1c[nH]c2ccccc12"),
        ("NCCc1c[nH]c2ccccc12", "pyrrole NH to S", "NCCc1csc2ccccc12"),
        ("NCCc1coc2ccccc12", "furan O to NH", "NCCc1c[nH]c2ccccc12"),
        ("NCCc1c[nH]c2ccccc12", "indole to quinoline", "NCCc1cnc2ccccc2c1"),
        ("NCCc1cnc2ccccc2c1", "quinoline to indole", "NCCc1c[nH]c2ccccc12"),
        ("NCCc1c[nH]c2ccccc12", "indole to indoline", "NCCC1CNc2ccccc21"),
        ("CN1CC(CCN)c2ccccc21", "N-substituted indoline to indole", "NCCc1cn(C)c2ccccc12"),
        ("NCCc1cccc(O)c1", "phenol to indole", "NCCc1ccc2cc[nH]c2c1"),
        ("NCCc1c[nH]c2ccccc12", "indole opened to 2-alkylaniline", "NCCCc1ccccc1N"),
        ("NCCCc1ccccc1N", "2-alkylaniline closed to indole", "NCCc1c[nH]c2ccccc12"),
        ("C[C@H](N)CC", "aliphatic H to OH", "C[C@](N)(O)CC"),  # is not made: its carbon has N
    ],
)
def test_a_transformation_makes_the_molecule_that_a_chemist_would_draw(smiles, name, product):
    made = {c.smiles for c in transformed(Chem.MolFromSmiles(smiles)) if c.name == name}
    assert (Chem.CanonSmiles(product) in made) == (smiles != "C[C@H](N)CC")


def test_charges_and_stereocentres_do_not_hide_a_place():
    amine = {c.name for c in transformed(Chem.MolFromSmiles("C[NH2+]CC"))}
    assert "methyl removed" in amine
    centre = {c.smiles for c in transformed(Chem.MolFromSmiles("C[C@H](F)CC"))}
    assert Chem.CanonSmiles("CC(F)(F)CC") in centre


def test_the_atoms_of_a_change_are_those_that_left_or_have_other_neighbours():
    mol = Chem.MolFromSmiles(AMIDE)
    by_name = {c.name: c for c in transformed(mol)}
    assert by_name["aromatic OCH3 to F"].atoms == {7, 8, 9}
    assert by_name["amide N-methylated"].atoms == {3}
    assert by_name["amide reversed"].atoms == {0, 1, 3, 4}


def test_kept_atoms_stay_as_they_are():
    mol = Chem.MolFromSmiles(AMIDE)
    acid = Chem.MolFromSmarts("[CX3](=O)[OH]")
    kept = mol.GetSubstructMatch(acid)
    for change in (*transformed(mol, kept), *exchanged(mol, {"3": ["[1*]OCC"]}, kept)):
        assert Chem.MolFromSmiles(change.smiles).HasSubstructMatch(acid), change
    assert not any(
        "amide" in c.name for c in transformed(mol, [1, 2]) if "to" in c.name.split()[:1]
    )


def test_a_fragment_is_exchanged_for_others_at_the_same_kind_of_bond():
    training = gx.TrainingSet(("COc1ccccc1", "CCOc1ccccc1", "CCOc1ccncc1"))
    mol = Chem.MolFromSmiles("COc1ccccc1")
    fragments = fragments_for(mol, training)
    assert fragments["3"][:2] == ("[1*]OCC", "[1*]OC")  # in two compounds and in one
    made = {c.smiles: c for c in exchanged(mol, fragments)}
    assert "CCOc1ccccc1" in made
    assert made["CCOc1ccccc1"].atoms == {0, 1, 2}
    assert not any("*" in smiles for smiles in made)


def test_changes_of_selfies_are_reproducible_and_keep_a_substructure():
    pytest.importorskip("selfies")
    mol = Chem.MolFromSmiles(AMIDE)
    changes, again = (list(mutated(mol, 80, 3, keep=[1, 2, 3])) for _ in range(2))
    assert changes
    assert changes == again
    amide = Chem.MolFromSmarts("C(=O)N")
    assert all(Chem.MolFromSmiles(c.smiles).HasSubstructMatch(amide) for c in changes)


@pytest.mark.parametrize("smiles", [AMIDE, "C[C@H](N)CC", "c1ccc2c(c1)OCO2", "c1ccc2[nH]ccc2c1"])
def test_a_change_says_which_atom_every_atom_was(smiles):
    mol = Chem.MolFromSmiles(smiles)
    changes = [*transformed(mol), *exchanged(mol, {"7": ["[1*]c1ccccn1", "[1*]CC"]})]
    for change in changes:
        new = Chem.MolFromSmiles(change.smiles)
        assert len(change.origin) == new.GetNumAtoms()
        old = [atom for atom in change.origin if atom >= 0]
        assert len(set(old)) == len(old)
        for atom, was in zip(new.GetAtoms(), change.origin, strict=True):
            if was >= 0 and was not in change.atoms:  # nothing about it changed
                before = mol.GetAtomWithIdx(was)
                assert atom.GetSymbol() == before.GetSymbol()
                near = {change.origin[other.GetIdx()] for other in atom.GetNeighbors()}
                assert near == {other.GetIdx() for other in before.GetNeighbors()}
