"""Pre-training targets that are computed from the molecule itself, without measurements.

They are the presence of the most frequent atom environments (chiral Morgan, Rogers 2010) and
whole-molecule descriptors, in addition to any labels in the tables.
"""

from __future__ import annotations

import csv
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from rdkit.Chem import QED, Descriptors, GraphDescriptors, rdFingerprintGenerator, rdMolDescriptors

__all__ = ["DESCRIPTORS", "Collection", "collect", "descriptors", "environments"]

DESCRIPTORS: dict[str, Callable[[Chem.Mol], float]] = {
    "molecular weight": Descriptors.MolWt,  # type: ignore[attr-defined]
    "logP (Crippen)": lambda mol: rdMolDescriptors.CalcCrippenDescriptors(mol)[0],
    "polar surface area": rdMolDescriptors.CalcTPSA,
    "hydrogen-bond donors": rdMolDescriptors.CalcNumHBD,
    "hydrogen-bond acceptors": rdMolDescriptors.CalcNumHBA,
    "rotatable bonds": rdMolDescriptors.CalcNumRotatableBonds,
    "rings": rdMolDescriptors.CalcNumRings,
    "aromatic rings": rdMolDescriptors.CalcNumAromaticRings,
    "sp3 fraction of carbons": rdMolDescriptors.CalcFractionCSP3,
    "molar refractivity": lambda mol: rdMolDescriptors.CalcCrippenDescriptors(mol)[1],
    "Labute surface area": rdMolDescriptors.CalcLabuteASA,
    "heteroatoms": rdMolDescriptors.CalcNumHeteroatoms,
    "amide bonds": rdMolDescriptors.CalcNumAmideBonds,
    "spiro atoms": rdMolDescriptors.CalcNumSpiroAtoms,
    "QED": QED.qed,
    "Bertz complexity": GraphDescriptors.BertzCT,
    "Hall-Kier alpha": rdMolDescriptors.CalcHallKierAlpha,
    "kappa 2": rdMolDescriptors.CalcKappa2,
    "kappa 3": rdMolDescriptors.CalcKappa3,
    "formal charge": Chem.GetFormalCharge,
    "stereocentres": rdMolDescriptors.CalcNumAtomStereoCenters,
}


@dataclass(frozen=True)
class Collection:
    """Distinct molecules of several tables: canonical SMILES, label names, labels (n, names)."""

    smiles: list[str]
    names: tuple[str, ...]
    labels: NDArray[np.float32]


def collect(
    tables: Sequence[str | os.PathLike[str]],
    *,
    smiles_column: str = "smiles",
    exclude: Iterable[str] = (),
    max_atoms: int = 60,
) -> Collection:
    """Collect the molecules of CSV tables, each once; every other column is a label, NaN if empty.

    Left out are molecules that cannot be read, have more than `max_atoms` atoms, or share their
    connectivity (first block of the InChIKey) with one in `exclude`, so that no test molecule is
    seen in pre-training.
    """
    rows: dict[str, dict[str, float]] = {}
    names: dict[str, None] = {}
    with rdBase.BlockLogs():
        for table in tables:
            with open(table, encoding="utf-8-sig", newline="") as file:
                reader = csv.DictReader(file)
                columns = [c for c in reader.fieldnames or [] if c != smiles_column]
                names.update(dict.fromkeys(columns))
                for record in reader:
                    mol = Chem.MolFromSmiles(record.get(smiles_column) or "")
                    if mol is None or not 0 < mol.GetNumAtoms() <= max_atoms:
                        continue
                    row = rows.setdefault(Chem.MolToSmiles(mol), {})
                    row.update({c: float(record[c]) for c in columns if record[c]})
        hidden = {_connectivity(smiles) for smiles in exclude} - {""}
        kept = [smiles for smiles in rows if _connectivity(smiles) not in hidden]
    labels = [[rows[smiles].get(name, math.nan) for name in names] for smiles in kept]
    return Collection(
        kept, tuple(names), np.array(labels, dtype=np.float32).reshape(len(kept), len(names))
    )


def descriptors(smiles: Sequence[str]) -> NDArray[np.float64]:
    """Compute `DESCRIPTORS` of molecules, (n, 21); undefined values are 0."""
    with rdBase.BlockLogs():
        values = [
            [function(mol) for function in DESCRIPTORS.values()]
            for mol in map(Chem.MolFromSmiles, smiles)
        ]
    return np.nan_to_num(np.array(values, dtype=np.float64))


def environments(smiles: Sequence[str], count: int, radius: int = 3) -> NDArray[np.bool_]:
    """Which of the `count` most frequent atom environments each molecule contains, (n, count)."""
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=radius, includeChirality=True)
    with rdBase.BlockLogs():
        found = [
            list(generator.GetSparseCountFingerprint(Chem.MolFromSmiles(s)).GetNonzeroElements())
            for s in smiles
        ]
    frequency = Counter(code for codes in found for code in codes)
    column = {code: k for k, (code, _) in enumerate(frequency.most_common(count))}
    present = np.zeros((len(smiles), count), dtype=np.bool_)
    for row, codes in enumerate(found):
        present[row, [column[code] for code in codes if code in column]] = True
    return present


def _connectivity(smiles: str) -> str:
    mol = Chem.MolFromSmiles(smiles)
    return "" if mol is None else Chem.MolToInchiKey(mol)[:14]
