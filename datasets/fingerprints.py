"""Fingerprints of molecules: ECFP (Rogers 2010) and atom pairs (Carhart 1985)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from rdkit.Chem import rdFingerprintGenerator

if TYPE_CHECKING:
    from rdkit.DataStructs import ExplicitBitVect

__all__ = ["atom_pair_counts", "ecfp4", "ecfp4_bits", "ecfp6_counts"]

FloatArray = NDArray[np.float32]
BITS = 2048


@cache
def _ecfp4(bits: int) -> Any:
    return rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=bits)


def ecfp4_bits(mol: Chem.Mol) -> ExplicitBitVect:
    """ECFP4 of one molecule, 2,048 bits, in the form that RDKit compares."""
    return _ecfp4(BITS).GetFingerprint(mol)


def ecfp4(smiles: Sequence[str], bits: int = BITS) -> FloatArray:
    """ECFP4 as zeros and ones, (n, bits)."""
    return _rows(_ecfp4(bits).GetFingerprintAsNumPy, smiles)


def ecfp6_counts(smiles: Sequence[str], bits: int = 4096, *, stereo: bool = True) -> FloatArray:
    """ECFP6 counts, (n, bits); stereo: whether chirality is included."""
    generator = rdFingerprintGenerator.GetMorganGenerator(
        radius=3, fpSize=bits, includeChirality=stereo
    )
    return _rows(generator.GetCountFingerprintAsNumPy, smiles)


def atom_pair_counts(smiles: Sequence[str], bits: int = 4096) -> FloatArray:
    """Counts of atom pairs with the number of bonds between them, (n, bits)."""
    generator = rdFingerprintGenerator.GetAtomPairGenerator(fpSize=bits)
    return _rows(generator.GetCountFingerprintAsNumPy, smiles)


def _rows(fingerprint: Any, smiles: Sequence[str]) -> FloatArray:
    with rdBase.BlockLogs():
        return np.stack([fingerprint(Chem.MolFromSmiles(s)) for s in smiles]).astype(np.float32)
