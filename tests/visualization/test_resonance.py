"""Atoms that differ only by the resonance form drawn agree with RDKit's enumerated forms."""

import time
from xml.etree import ElementTree

import numpy as np
import pytest
from rdkit import Chem

import graphxai as gx
from graphxai.visualization.layout import averaged, equivalent_atoms

NITROBENZENE, BENZOATE, GUANIDINIUM = "O=[N+]([O-])c1ccccc1", "[O-]C(=O)c1ccccc1", "NC(N)=[NH2+]"


def by_enumeration(mol: Chem.Mol) -> set[frozenset[int]]:
    """Return which atoms correspond between the form drawn and an identical resonance form."""
    flags = Chem.KEKULE_ALL | Chem.ALLOW_CHARGE_SEPARATION
    flags |= Chem.UNCONSTRAINED_CATIONS | Chem.UNCONSTRAINED_ANIONS
    drawn, written = list(Chem.CanonicalRankAtoms(mol, breakTies=False)), Chem.MolToSmiles(mol)
    same = [{i} for i in range(mol.GetNumAtoms())]
    for form in map(Chem.Mol, Chem.ResonanceMolSupplier(mol, flags, 500)):
        Chem.SanitizeMol(form, catchErrors=True)
        if Chem.MolToSmiles(form) != written:
            continue
        ranks = list(Chem.CanonicalRankAtoms(form, breakTies=False))
        for i, j in zip(*np.nonzero(np.equal.outer(drawn, ranks)), strict=True):
            joined = same[i] | same[j]
            for k in joined:
                same[k] = joined
    return {frozenset(s) for s in same if len({drawn[i] for i in s}) > 1}


@pytest.mark.parametrize(
    "smiles",
    [
        NITROBENZENE, BENZOATE, GUANIDINIUM, "NC(=[NH2+])c1ccccc1", "C=C[CH2+]",
        "[CH-]1C=CC=C1", "[Na+].CC(=O)[O-]", "CN(C)C=CC=CC=[N+](C)C",
        "O=[N+]([O-])c1ccc(cc1)C(=O)[O-]", "O=[N+]([O-])c1cc([N+](=O)[O-])ccc1C",
        "NC(=N)c1ccccc1", "CC(=O)O", "CC(=O)OC", "Cc1ccccc1O", "CN=[N+]=[N-]", "C1=CNC=N1",
        "[O-][n+]1ccccc1", "C/C=C/CCC/C=C\\C", "C[C@H](O)[C@@H](C)O", "[Fe+2].[Fe+3]",
        "CN1C(=N)N[C@](C)(CS1(=O)=O)c1cc(NC(=O)c2ccc(F)cn2)ccc1F",
    ],
)  # fmt: skip
def test_classes_are_those_of_the_enumerated_forms(smiles):
    mol = Chem.MolFromSmiles(smiles)
    assert set(map(frozenset, equivalent_atoms(mol))) == by_enumeration(mol)


def test_the_order_of_the_atoms_does_not_matter_and_nothing_is_changed():
    mol = Chem.MolFromSmiles("O=[N+]([O-])c1ccc(cc1)C(=O)[O-]")
    before = mol.ToBinary()
    order = np.random.default_rng(0).permutation(mol.GetNumAtoms()).tolist()
    moved = equivalent_atoms(Chem.RenumberAtoms(mol, order))
    named = {frozenset(order[i] for i in group) for group in moved}
    assert named == set(map(frozenset, equivalent_atoms(mol)))
    assert mol.ToBinary() == before


def test_forms_are_not_enumerated():
    """Forty nitro groups have 2^40 forms."""
    mol = Chem.MolFromSmiles("C" + "C([N+](=O)[O-])" * 40 + "F")
    start = time.process_time()
    assert len(equivalent_atoms(mol)) == 40
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("smiles", "group"),
    [(NITROBENZENE, "O0, O2"), (BENZOATE, "O0, O2"), (GUANIDINIUM, "N0, N2, N3")],
)
@pytest.mark.parametrize("method", ["lrp", "saliency"])
def test_a_picture_shows_their_mean_and_says_so(smiles, group, method):
    e = gx.explain(gx.load("bace", as_drawn=True), smiles, method)
    atoms = [int(name[1:]) for name in group.split(", ")]
    assert np.ptp(e.relevance[atoms]) > 1e-3
    svg = e.svg()
    fills = [c.get("fill") for c in ElementTree.fromstring(svg).iter() if c.get("data-atom")]
    assert len({fills[i] for i in atoms}) == 1
    shown = averaged(e.relevance, e.equivalent)
    assert shown.sum() == pytest.approx(e.ledger.nodes if e.additive else e.relevance.sum())
    assert fills == e.scale().hex(shown)
    assert f"mean over atoms equivalent by resonance: {group}" in svg
    assert e.to_frame().relevance.tolist() == e.relevance.tolist()  # numbers are as drawn
    plain = e.svg(as_drawn=True)
    fills = [c.get("fill") for c in ElementTree.fromstring(plain).iter() if c.get("data-atom")]
    assert fills == e.scale().hex(e.relevance)
    assert "resonance" not in plain


def test_a_molecule_without_such_atoms_has_no_note():
    assert "resonance" not in gx.explain("bace", "CC(=O)Oc1ccccc1C(=O)O").svg()
