"""Look up the nine atom and three bond features of the Open Graph Benchmark in tables.

Every value is a position in OGB's vocabulary (``ogb.utils.features``, Hu 2020), the input that
Graphormer was published with. The tables lead from RDKit's values to these positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem
from rdkit.Chem import rdqueries

from graphxai.runtime.ogb import import_ogb

from .molecule_reading import AS_WRITTEN

ATOM_FEATURE_NAMES = (
    "atomic number",
    "chirality",
    "degree",
    "formal charge",
    "hydrogens",
    "radical electrons",
    "hybridization",
    "aromatic",
    "in ring",
)
BOND_FEATURE_NAMES = ("bond type", "bond stereo", "conjugated")


class _Vocabulary(dict[Any, int]):
    """The position of each value. Any other value has the position after them (OGB's "misc")."""

    def __init__(self, values: Iterable[Any]) -> None:
        super().__init__((value, position) for position, value in enumerate(values))

    def __missing__(self, value: Any) -> int:
        return len(self)


_ALLOWED = import_ogb("ogb.utils.features").allowable_features


def _vocabulary(name: str, enumeration: Any = None) -> _Vocabulary:
    """Return one of OGB's vocabularies, whose values may be names in an enumeration of RDKit."""
    *values, _ = _ALLOWED[f"possible_{name}_list"]
    return _Vocabulary(
        values if enumeration is None else map(enumeration.names.__getitem__, values)
    )


_ATOMIC_NUMBER = _vocabulary("atomic_num")
_CHIRALITY = _vocabulary("chirality", Chem.ChiralType)
_DEGREE = _vocabulary("degree")
_CHARGE = _vocabulary("formal_charge")
_HYDROGENS = _vocabulary("numH")
_RADICALS = _vocabulary("number_radical_e")
_HYBRIDIZATION = _vocabulary("hybridization", Chem.HybridizationType)
_BOND_TYPE = _vocabulary("bond_type", Chem.BondType)
# OGB has no position for another stereo.
_BOND_STEREO = {
    Chem.BondStereo.names[name]: position
    for position, name in enumerate(_ALLOWED["possible_bond_stereo_list"])
}
_ATOM_VOCABULARIES = (
    _ATOMIC_NUMBER, _CHIRALITY, _DEGREE, _CHARGE, _HYDROGENS, _RADICALS, _HYBRIDIZATION
)  # fmt: skip
# Aromatic, in ring and conjugated are yes or no.
ATOM_CARDINALITIES = (*(len(each) + 1 for each in _ATOM_VOCABULARIES), 2, 2)
BOND_CARDINALITIES = (len(_BOND_TYPE) + 1, len(_BOND_STEREO), 2)
_NO_STEREO = _BOND_STEREO[Chem.BondStereo.STEREONONE]
_DOUBLE = _BOND_TYPE[Chem.BondType.DOUBLE]


# Reading one of RDKit's enumerations from Python takes four times as long as reading a number.
# So compiled queries find the common values, and only the rest are read.
_TAGGED = Chem.RWMol()
_TAGGED.AddAtom(rdqueries.HasChiralTagQueryAtom())
_SP2 = Chem.MolFromSmarts("[^2]")
_NEITHER_SP2_NOR_SP3 = Chem.MolFromSmarts("[!^2!^3]")


def atom_features(mol: Chem.Mol) -> NDArray[np.int64]:
    """Return the atoms of a molecule as positions in OGB's vocabularies, (N, 9).

    Column ``j`` is `ATOM_FEATURE_NAMES` ``[j]``, below `ATOM_CARDINALITIES` ``[j]``. An element,
    charge or count outside a vocabulary gets its "misc" position, as in OGB.
    """
    n = mol.GetNumAtoms()
    atoms = list(map(mol.GetAtomWithIdx, range(n)))
    chirality = [_CHIRALITY[Chem.ChiralType.CHI_UNSPECIFIED]] * n
    for (i,) in mol.GetSubstructMatches(_TAGGED, maxMatches=n):
        chirality[i] = _CHIRALITY[atoms[i].GetChiralTag()]
    hybridization = [_HYBRIDIZATION[Chem.HybridizationType.SP3]] * n
    for (i,) in mol.GetSubstructMatches(_SP2, maxMatches=n):
        hybridization[i] = _HYBRIDIZATION[Chem.HybridizationType.SP2]
    for (i,) in mol.GetSubstructMatches(_NEITHER_SP2_NOR_SP3, maxMatches=n):
        hybridization[i] = _HYBRIDIZATION[atoms[i].GetHybridization()]
    columns = [
        list(map(_ATOMIC_NUMBER.__getitem__, map(Chem.Atom.GetAtomicNum, atoms))),
        chirality,
        list(map(_DEGREE.__getitem__, map(Chem.Atom.GetTotalDegree, atoms))),
        list(map(_CHARGE.__getitem__, map(Chem.Atom.GetFormalCharge, atoms))),
        list(map(_HYDROGENS.__getitem__, map(Chem.Atom.GetTotalNumHs, atoms))),
        list(map(_RADICALS.__getitem__, map(Chem.Atom.GetNumRadicalElectrons, atoms))),
        hybridization,
        list(map(Chem.Atom.GetIsAromatic, atoms)),
        list(map(Chem.Atom.IsInRing, atoms)),
    ]
    return np.ascontiguousarray(np.array(columns, dtype=np.int64).T)


def canonical_chirality(mol: Chem.Mol) -> NDArray[np.int64] | None:
    """Return chirality codes (N,) that do not depend on how the molecule is written.

    RDKit's tag, and so OGB's feature, is relative to the order of an atom's bonds: two SMILES of
    the same molecule can have opposite tags. These codes are those of the canonical SMILES, mapped
    back to the molecule's atom order. A molecule without tags has None.

    Args:
        mol: in its canonical form.
    """
    if not mol.HasSubstructMatch(_TAGGED):
        return None
    smiles = Chem.MolToSmiles(mol)
    order = list(mol.GetPropsAsDict(True, True, False)["_smilesAtomOutputOrder"])
    # the canonical SMILES of a sanitised molecule has tags at stereocentres only
    canonical = Chem.MolFromSmiles(smiles, AS_WRITTEN)
    if canonical is None or canonical.GetNumAtoms() != len(order):
        return None  # RDKit cannot read back what it wrote: keep the molecule's tags
    codes = np.full(len(order), _CHIRALITY[Chem.ChiralType.CHI_UNSPECIFIED])
    for (i,) in canonical.GetSubstructMatches(_TAGGED, maxMatches=len(order)):
        codes[order[i]] = _CHIRALITY[canonical.GetAtomWithIdx(i).GetChiralTag()]
    return codes


def bond_features(mol: Chem.Mol) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return both directions of every bond: ends (2, 2 * bonds) and features (2 * bonds, 3).

    Each bond from ``i`` to ``j`` is followed by the same bond from ``j`` to ``i``, as in OGB. The
    axis of an atropisomer, which OGB rejects, counts as a bond without stereo.
    """
    bonds = list(map(mol.GetBondWithIdx, range(mol.GetNumBonds())))
    kinds = list(map(_BOND_TYPE.__getitem__, map(Chem.Bond.GetBondType, bonds)))
    features = [
        kinds,
        # only a double bond has a stereo in OGB's vocabulary, and reading it is slow
        [
            _BOND_STEREO.get(bond.GetStereo(), _NO_STEREO) if kind == _DOUBLE else _NO_STEREO
            for bond, kind in zip(bonds, kinds, strict=True)
        ],
        list(map(Chem.Bond.GetIsConjugated, bonds)),
    ]
    starts = list(map(Chem.Bond.GetBeginAtomIdx, bonds))
    stops = list(map(Chem.Bond.GetEndAtomIdx, bonds))
    ends = np.array([[starts, stops], [stops, starts]], dtype=np.int64)  # i->j, then j->i
    both = np.repeat(np.array(features, dtype=np.int64), 2, axis=1)
    return ends.transpose(0, 2, 1).reshape(2, -1), np.ascontiguousarray(both.T)
