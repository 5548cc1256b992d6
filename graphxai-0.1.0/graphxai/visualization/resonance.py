"""Find atoms that differ only by the resonance form in which a molecule happens to be drawn.

A nitro group is drawn with one N=O and one N-O(-), yet its oxygens are the same. If a permutation
of the atoms keeps elements, hydrogens and connections, applying it to the drawn form gives another
form of the same molecule. Once charges and bond orders are wiped out, such atoms have the same
symmetry class. So RDKit's classes of that skeleton find them. It is not necessary to enumerate the
forms, which may be exponentially many.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .layout import atoms_of, bonds_of

if TYPE_CHECKING:
    from rdkit.Chem import Mol, QueryAtom


def equivalent_atoms(mol: Mol) -> list[tuple[int, ...]]:
    """Return groups of atoms that are equivalent by resonance, but not in the drawn form.

    Hydrogens, isotopes and stereochemistry tell atoms apart, so tautomers and the arms of a
    cis-trans pair are not equivalent. Atoms that are equivalent as drawn are in no group.

    Args:
        mol: any molecule, sanitised or not.
    """
    from rdkit import Chem

    copy = Chem.Mol(mol)
    copy.UpdatePropertyCache(strict=False)
    Chem.FastFindRings(copy)
    if not _has_other_forms(copy):
        return []
    for atom in atoms_of(copy):
        atom.SetAtomMapNum(0)
    drawn = list(Chem.CanonicalRankAtoms(copy, breakTies=False))
    groups = defaultdict(list)
    for index, rank in enumerate(Chem.CanonicalRankAtoms(_skeleton(copy), breakTies=False)):
        groups[rank].append(index)
    return [tuple(atoms) for atoms in groups.values() if len({drawn[i] for i in atoms}) > 1]


def _has_other_forms(mol: Mol) -> bool:
    """Return whether the molecule may have other drawn forms with hydrogens in the same places.

    Without charges and radicals, each atom's valence says whether it has a multiple bond. Two forms
    can then only differ by a ring in which such bonds alternate, and RDKit draws aromatic rings in
    a single form. An ammonium has no electrons to move.
    """
    charged, radical, multiple_in_ring = _queries()
    for atom in mol.GetAtomsMatchingQuery(charged):
        ammonium = atom.GetFormalCharge() == 1 and atom.GetAtomicNum() == 7
        if not (ammonium and atom.GetTotalDegree() == 4):
            return True
    return bool(mol.GetAtomsMatchingQuery(radical)) or mol.HasSubstructMatch(multiple_in_ring)


@cache
def _queries() -> tuple[QueryAtom, QueryAtom, Mol]:
    """Return queries for charged atoms, radical atoms, and multiple bonds in a ring."""
    from rdkit import Chem
    from rdkit.Chem import rdqueries

    return (
        rdqueries.FormalChargeEqualsQueryAtom(0, negate=True),
        rdqueries.NumRadicalElectronsEqualsQueryAtom(0, negate=True),
        Chem.MolFromSmarts("*!-!:@*"),
    )


def averaged(values: ArrayLike, groups: list[tuple[int, ...]]) -> NDArray[np.float64]:
    """Return a copy of `values` (N, ...) in which the atoms of a group have their mean."""
    means = np.array(values, dtype=np.float64)
    for atoms in map(list, groups):
        means[atoms] = means[atoms].mean(axis=0)
    return means


def _skeleton(mol: Mol) -> Mol:
    """Return a copy without charges and bond orders, with marks for what else tells atoms apart.

    The marks hold hydrogens, the charge and radicals of the whole piece, and double-bond geometry.
    """
    from rdkit import Chem

    bare = Chem.RWMol(mol)
    marks: list[tuple[object, ...]] = [(atom.GetTotalNumHs(),) for atom in atoms_of(mol)]
    for piece in Chem.GetMolFrags(mol):
        atoms = [mol.GetAtomWithIdx(i) for i in piece]
        charge = sum(atom.GetFormalCharge() for atom in atoms)
        radicals = sum(atom.GetNumRadicalElectrons() for atom in atoms)
        for i in piece:
            marks[i] += (charge, radicals)
    for bond in bonds_of(mol):
        if bond.GetStereo() > Chem.BondStereo.STEREOANY:
            for atom in (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()):
                marks[atom] += (str(bond.GetStereo()),)
    numbers = {mark: number for number, mark in enumerate(dict.fromkeys(marks), start=1)}
    for atom, mark in zip(atoms_of(bare), marks, strict=True):
        atom.SetAtomMapNum(numbers[mark])
        atom.SetFormalCharge(0)
        atom.SetNumRadicalElectrons(0)
        atom.SetNumExplicitHs(0)
        atom.SetNoImplicit(True)
        atom.SetIsAromatic(False)
    kinds = Chem.BondType
    for bond in bonds_of(bare):
        if bond.GetBondType() in (kinds.SINGLE, kinds.DOUBLE, kinds.TRIPLE, kinds.AROMATIC):
            bond.SetBondType(kinds.SINGLE)
            bond.SetIsAromatic(False)
            bond.SetStereo(Chem.BondStereo.STEREONONE)
            bond.SetBondDir(Chem.BondDir.NONE)
    bare.UpdatePropertyCache(strict=False)
    Chem.FastFindRings(bare)
    return bare
