"""Compute targets for pre-training from the molecule itself, without measurements.

They are the presence of the most frequent atom environments (chiral Morgan, Rogers 2010) and
whole-molecule descriptors.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from rdkit.Chem import QED, Descriptors, GraphDescriptors, rdFingerprintGenerator, rdMolDescriptors

from .tables.table import open_table

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

LARGEST = 60  # heavy atoms of a molecule that is kept


def collect(
    tables: Sequence[str | os.PathLike[str]],
    *,
    exclude: Iterable[str] = (),
    per_table: int | None = None,
    seed: int = 0,
) -> list[str]:
    """Collect the structures of tables, each once, as canonical SMILES. No label is read.

    Molecules are left out if they cannot be read, have more than 60 atoms, or share their
    connectivity (first block of the InChIKey) with a molecule in `exclude`. So no test molecule is
    seen in pre-training.

    Args:
        tables: files with a column of structures, see `datasets.tables`.
        exclude: SMILES that must not be seen.
        per_table: largest number of rows taken from a table, drawn at random; None takes all.
        seed: seed of the rows that are drawn.

    Raises:
        ValueError: a table has no such column.
    """
    structures: dict[str, None] = {}
    with rdBase.BlockLogs():
        for table in tables:
            rows = _smiles_column(table)
            if per_table is not None and len(rows) > per_table:
                rows = random.Random(seed).sample(rows, per_table)
            for text in rows:
                mol = Chem.MolFromSmiles(text)
                if mol is not None and 0 < mol.GetNumAtoms() <= LARGEST:
                    structures[Chem.MolToSmiles(mol)] = None
    return without(list(structures), exclude)


def without(smiles: Sequence[str], exclude: Iterable[str]) -> list[str]:
    """Leave out molecules that share the first block of their InChIKey with one in `exclude`."""
    with rdBase.BlockLogs():
        hidden = {_connectivity(text) for text in exclude} - {""}
        return [text for text in smiles if not hidden or _connectivity(text) not in hidden]


def _smiles_column(table: str | os.PathLike[str]) -> list[str]:
    """Return the structures of a table."""
    opened = open_table(table)
    name = opened.structures.name
    return [record.cells[name] for record in opened.records((name,))]


def descriptors(smiles: Sequence[str]) -> NDArray[np.float64]:
    """Compute the `DESCRIPTORS` of molecules, (n, 21). Undefined values are 0."""
    with rdBase.BlockLogs():
        values = [
            [function(mol) for function in DESCRIPTORS.values()]
            for mol in map(Chem.MolFromSmiles, smiles)
        ]
    return np.nan_to_num(np.array(values, dtype=np.float64))


def environments(smiles: Sequence[str], count: int) -> NDArray[np.bool_]:
    """Return which of the `count` most frequent atom environments each molecule has, (n, count)."""
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=3, includeChirality=True)
    with rdBase.BlockLogs():
        codes_of = [
            list(generator.GetSparseCountFingerprint(Chem.MolFromSmiles(s)).GetNonzeroElements())
            for s in smiles
        ]
    frequency = Counter(code for codes in codes_of for code in codes)
    column = {code: k for k, (code, _) in enumerate(frequency.most_common(count))}
    present = np.zeros((len(smiles), count), dtype=np.bool_)
    for row, codes in enumerate(codes_of):
        present[row, [column[code] for code in codes if code in column]] = True
    return present


def _connectivity(smiles: str) -> str:
    """Return the first block of a molecule's InChIKey, or "" if it cannot be read."""
    mol = Chem.MolFromSmiles(smiles)
    return "" if mol is None else Chem.MolToInchiKey(mol)[:14]
