"""The nine atom and three bond features of the Open Graph Benchmark, by table look-up.

Every value is the position in OGB's own vocabulary (``ogb.utils.features``, Hu 2020), the input
that Graphormer was published with. The vocabularies are read from the installed ``ogb``; here they
are only turned into tables from RDKit's values to positions.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem

__all__ = [
    "ATOM_CARDINALITIES",
    "ATOM_FEATURE_NAMES",
    "BOND_CARDINALITIES",
    "BOND_FEATURE_NAMES",
    "atom_features",
    "bond_features",
]

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


def _ogb_features() -> Any:
    """``ogb.utils.features``, imported without the version check that goes to the network.

    ``import ogb`` asks the package index for a newer release, by the package ``outdated``. A
    stand-in for that package answers "no" during the import and is gone afterwards.
    """
    if "ogb" in sys.modules:
        return importlib.import_module("ogb.utils.features")
    silent = types.ModuleType("outdated")
    silent.check_outdated = lambda package, version: (False, version)  # type: ignore[attr-defined]
    before = {name: sys.modules[name] for name in _outdated_modules()}
    sys.modules["outdated"] = silent
    try:
        return importlib.import_module("ogb.utils.features")
    finally:
        del sys.modules["outdated"]
        sys.modules.update(before)


def _outdated_modules() -> list[str]:
    return [name for name in sys.modules if name.split(".")[0] == "outdated"]


_OGB = _ogb_features()
ATOM_CARDINALITIES: tuple[int, ...] = tuple(_OGB.get_atom_feature_dims())
BOND_CARDINALITIES: tuple[int, ...] = tuple(_OGB.get_bond_feature_dims())


class _Table(dict[Any, int]):
    """Value to position; a value outside the vocabulary gets the last one (OGB's "misc")."""

    def __init__(self, name: str, vocabulary: Sequence[Any], values: Sequence[Any]) -> None:
        self.last = len(vocabulary) - 1
        self.closed = vocabulary[-1] != "misc"
        self.feature = name
        super().__init__(
            (value, vocabulary.index(key))
            for value, key in zip(values, map(_vocabulary_key, values), strict=True)
            if key in vocabulary
        )

    def __missing__(self, value: Any) -> int:
        if self.closed:
            raise ValueError(f"{self.feature} {value} is not in the vocabulary of OGB")
        self[value] = self.last
        return self.last


def _vocabulary_key(value: Any) -> Any:
    """OGB names RDKit's enumerations in words and everything else by its value."""
    return value if type(value) in (int, bool) else str(value)


def _table(name: str, values: Sequence[Any] | None = None) -> _Table:
    vocabulary = _OGB.allowable_features[f"possible_{name}_list"]
    entries = [v for v in vocabulary if v != "misc"] if values is None else values
    return _Table(name.replace("_", " "), vocabulary, entries)


_ATOMIC_NUMBER = _table("atomic_num")
_CHIRALITY = _table("chirality", list(Chem.ChiralType.values.values()))
_DEGREE = _table("degree")
_CHARGE = _table("formal_charge")
_HYDROGENS = _table("numH")
_RADICALS = _table("number_radical_e")
_HYBRIDIZATION = _table("hybridization", list(Chem.HybridizationType.values.values()))
_BOND_TYPE = _table("bond_type", list(Chem.BondType.values.values()))
_BOND_STEREO = _table("bond_stereo", list(Chem.BondStereo.values.values()))


def atom_features(mol: Chem.Mol) -> NDArray[np.int64]:
    """The atoms of a molecule as positions in OGB's vocabularies, (N, 9).

    Column ``j`` is `ATOM_FEATURE_NAMES` ``[j]``, below `ATOM_CARDINALITIES` ``[j]``. An element,
    charge or count outside a vocabulary gets its "misc" position, as in OGB.
    """
    flat = [
        code
        for atom in mol.GetAtoms()
        for code in (
            _ATOMIC_NUMBER[atom.GetAtomicNum()],
            _CHIRALITY[atom.GetChiralTag()],
            _DEGREE[atom.GetTotalDegree()],
            _CHARGE[atom.GetFormalCharge()],
            _HYDROGENS[atom.GetTotalNumHs()],
            _RADICALS[atom.GetNumRadicalElectrons()],
            _HYBRIDIZATION[atom.GetHybridization()],
            atom.GetIsAromatic(),
            atom.IsInRing(),
        )
    ]
    return np.array(flat, dtype=np.int64).reshape(-1, len(ATOM_FEATURE_NAMES))


def bond_features(mol: Chem.Mol) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both directions of every bond: ends (2, 2 * bonds) and features (2 * bonds, 3).

    A bond from ``i`` to ``j`` is followed by the same bond from ``j`` to ``i``, as in OGB.

    Raises:
        ValueError: a bond's stereo tag is not in OGB's vocabulary (atropisomers).
    """
    flat = [
        code
        for bond in mol.GetBonds()
        for code in (
            bond.GetBeginAtomIdx(),
            bond.GetEndAtomIdx(),
            _BOND_TYPE[bond.GetBondType()],
            _BOND_STEREO[bond.GetStereo()],
            bond.GetIsConjugated(),
        )
    ]
    table = np.array(flat, dtype=np.int64).reshape(-1, 5)
    ends = np.stack([table[:, :2], table[:, 1::-1]], axis=1).reshape(-1, 2)  # i->j, then j->i
    return np.ascontiguousarray(ends.T), np.repeat(table[:, 2:], 2, axis=0)
