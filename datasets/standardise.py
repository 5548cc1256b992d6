"""Standardise molecules with RDKit's MolStandardize: salts, charges and tautomers."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from rdkit import Chem, rdBase
from rdkit.Chem.MolStandardize import rdMolStandardize

from .molecule_reading import MAX_CHARACTERS

__all__ = ["STEPS", "standardised"]

STEPS = ("Cleanup", "FragmentParent", "Uncharger", "TautomerEnumerator.Canonicalize")
MAX_TRANSFORMS = 200  # of one molecule; RDKit's own limit of 1,000 takes minutes for peptides


def standardised(molecule: str | Chem.Mol) -> str | Chem.Mol:
    """Return the parent of a molecule: clean, neutral, without counter-ions, as one tautomer.

    The steps are those of `STEPS`, in this order. A SMILES gives a canonical SMILES. A molecule
    that RDKit cannot read or standardise is returned unchanged, so that reading it later says what
    is wrong.
    """
    if isinstance(molecule, str):
        return _standardised(molecule) if len(molecule) <= MAX_CHARACTERS else molecule
    return _parent(molecule) or molecule


@lru_cache(maxsize=100_000)
def _standardised(smiles: str) -> str:
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(smiles)
        parent = None if mol is None or not mol.GetNumAtoms() else _parent(mol)
    return smiles if parent is None else Chem.MolToSmiles(parent)


def _parent(mol: Chem.Mol) -> Chem.Mol | None:
    """Return the parent of a molecule, or None if RDKit cannot standardise it."""
    uncharger, tautomers = _tools()
    try:
        with rdBase.BlockLogs():
            parent = rdMolStandardize.FragmentParent(rdMolStandardize.Cleanup(mol))
            return tautomers.Canonicalize(uncharger.uncharge(parent))
    except (ValueError, RuntimeError):
        return None


@cache
def _tools() -> tuple[Any, Any]:
    tautomers = rdMolStandardize.TautomerEnumerator()
    tautomers.SetMaxTransforms(MAX_TRANSFORMS)
    return rdMolStandardize.Uncharger(), tautomers
