"""Condensed formulas have all atoms of a fragment, and read as chemists write them."""

import re
from collections import Counter

import pytest
from rdkit import Chem
from rdkit.Chem import BRICS

from graphxai.chemistry.names import condensed_formula, cut_smiles
from graphxai.chemistry.substituents import fragment_name
from graphxai.datasets.samples import MOLECULES

WRITTEN = [
    ("*CC(*)C(O)C*", "CH2CHCH(OH)CH2"),
    ("*N(*)C", "N(CH3)"),
    ("*C(=O)C(*)CC(C)C", "C(=O)CH(CH2CH(CH3)2)"),
    ("*CC(=O)O", "CH2C(=O)OH"),
    ("*CC(*)C(F)(F)F", "CH2CH(CF3)"),
    ("*C=CC(*)=O", "CH=CHC(=O)"),
    ("*C#CC", "C#CCH3"),
    ("*OP(=O)(O)O", "OP(=O)(OH)2"),
    ("*[C@H](C)NC", "CH(CH3)NHCH3"),
    ("*=CCC(F)F", "=CHCH2CHF2"),
    ("*CC(=*)C", "CH2C(CH3)="),
    ("*CC(=*)C*", "CH2C(=)CH2"),
    ("*CC(C=*)C*", "=CHCH(CH2)CH2"),
]


def counted(formula):
    """Count the atoms of a condensed formula by element, with its brackets multiplied out."""
    counts = Counter()
    while inner := re.search(r"\(([^()]*)\)(\d*)", formula):
        part = inner[1] * int(inner[2] or 1)
        formula = formula[: inner.start()] + part + formula[inner.end() :]
    for element, count in re.findall(r"([A-Z][a-z]?)(\d*)", formula):
        counts[element] += int(count or 1)
    return counts


@pytest.mark.parametrize(("smiles", "formula"), WRITTEN)
def test_a_chain_is_written_from_cut_to_cut_with_its_branches(smiles, formula):
    assert condensed_formula(Chem.MolFromSmiles(smiles)) == formula


def test_every_atom_is_in_the_formula_whatever_the_order_of_the_atoms():
    written = 0
    for smiles in MOLECULES.values():
        mol = Chem.MolFromSmiles(smiles)
        bonds = [mol.GetBondBetweenAtoms(*ends).GetIdx() for ends, _ in BRICS.FindBRICSBonds(mol)]
        for _, part in cut_smiles(mol, bonds):
            fragment = Chem.MolFromSmiles(part)
            formula = condensed_formula(fragment)
            if formula is not None:
                whole = Chem.AddHs(fragment)
                atoms = Counter(a.GetSymbol() for a in whole.GetAtoms() if a.GetAtomicNum())
                assert counted(formula) == atoms, part
                turned = Chem.RenumberAtoms(fragment, list(range(fragment.GetNumAtoms()))[::-1])
                assert condensed_formula(turned) == formula
                written += 1
    assert written > 5


@pytest.mark.parametrize("smiles", ["*c1ccccc1", "*CCCCCCCCCCC", "*CC.*CC", "*[CH]C"])
def test_rings_long_chains_pieces_and_radicals_have_no_condensed_formula(smiles):
    assert condensed_formula(Chem.MolFromSmiles(smiles)) is None


@pytest.mark.parametrize(
    ("smiles", "name"),
    [
        ("*c1ccc(F)cc1", "4-fluorophenyl"),
        ("*c1cccnc1", "pyridin-3-yl"),
        ("*C(=O)O", "carboxyl"),
        ("*c1cccc(*)c1", "benzene ring"),
        ("*CC(*)=O", "CH2C(=O)"),
    ],
)
def test_a_fragment_has_the_name_of_the_substituent(smiles, name):
    assert fragment_name(Chem.CanonSmiles(smiles)) == name
