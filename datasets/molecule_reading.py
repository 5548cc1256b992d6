"""A molecule as users hand it over becomes a sanitised RDKit molecule or is refused with words."""

from __future__ import annotations

import re
import warnings
from typing import NamedTuple

from rdkit import Chem

__all__ = ["MoleculeError", "ReadMolecule", "read_molecule"]


class MoleculeError(ValueError):
    """A molecule that cannot become a graph; the message says which, why, and what to do."""


class ReadMolecule(NamedTuple):
    """A sanitised molecule and its SMILES."""

    mol: Chem.Mol
    text: str
    is_given: bool  # as an RDKit molecule, not as a SMILES


def read_molecule(molecule: str | Chem.Mol, max_atoms: int) -> ReadMolecule:
    """The molecule of a SMILES, or a copy of an RDKit molecule, sanitised and with stereo assigned.

    Raises:
        MoleculeError: not readable, no atoms, or more than `max_atoms`.
    """
    if isinstance(molecule, str):
        mol, text, is_given = _parse(molecule), molecule.strip(), False
    else:
        mol = _prepared(molecule)
        text, is_given = Chem.MolToSmiles(mol), True
    size = mol.GetNumAtoms()
    if size == 0:
        raise MoleculeError(f"{_shown(text)} has no atoms: remove it from the input.")
    if size > max_atoms:
        raise MoleculeError(
            f"{_shown(text)} has {size} atoms, more than the limit of {max_atoms}: raise "
            "max_atoms if it is no mistake (time and memory grow with the square of the size)."
        )
    return ReadMolecule(mol, text, is_given)


def _parse(smiles: str) -> Chem.Mol:
    """An RDKit molecule, sanitised."""
    text = smiles.strip()
    if not text:
        raise MoleculeError("the SMILES is empty: fill it in or remove the row.")
    head, *rest = text.split(maxsplit=1)
    if rest and not rest[0].startswith("|"):  # "|...|" is ChemAxon's extension
        raise MoleculeError(
            f"{_shown(text)} has text after the SMILES {_shown(head)}: give the SMILES alone."
        )
    if ">" in head and "->" not in head:
        raise MoleculeError(f"{_shown(text)} is a reaction: give one molecule.")
    mol = Chem.MolFromSmiles(text) if text.isascii() else None  # RDKit skips other characters
    if mol is not None:
        return mol
    relaxed = Chem.SmilesParserParams()
    relaxed.sanitize = False  # type: ignore[assignment]
    raw = Chem.MolFromSmiles(text, relaxed) if text.isascii() else None
    reason = _syntax_problem(text) if raw is None else _chemistry_problem(raw)
    raise MoleculeError(f"{_shown(text)} cannot be read: {reason}. Correct it or remove it.")


def _prepared(mol: Chem.Mol) -> Chem.Mol:
    """A copy of the molecule in the state in which a SMILES is read: sanitised, stereo assigned."""
    if not isinstance(mol, Chem.Mol):
        raise MoleculeError(f"a molecule must be a SMILES string or an RDKit Mol, not {mol!r}.")
    copy = Chem.Mol(mol)
    try:
        Chem.SanitizeMol(copy)
    except ValueError as error:
        raise MoleculeError(f"the RDKit molecule cannot be sanitised: {error}") from error
    Chem.AssignStereochemistry(copy, cleanIt=True, force=True)
    if sum(_is_plain_hydrogen(atom) for atom in copy.GetAtoms()) * 4 > copy.GetNumAtoms():
        warnings.warn(
            "the molecule's hydrogens are atoms, and so become nodes; models trained on SMILES"
            " expect them implicit: use Chem.RemoveHs.",
            stacklevel=5,
        )
    return copy


def _is_plain_hydrogen(atom: Chem.Atom) -> bool:
    return atom.GetAtomicNum() == 1 and atom.GetIsotope() == 0 and atom.GetDegree() == 1


def _chemistry_problem(raw: Chem.Mol) -> str:
    problems = [problem.Message() for problem in Chem.DetectChemistryProblems(raw)]
    return problems[0].strip().rstrip(".") if problems else "RDKit refuses its chemistry"


def _syntax_problem(smiles: str) -> str:
    """Words for what is most likely wrong; RDKit tells its own only to the process's stderr."""
    for opening, closing in ("()", "[]"):
        missing = smiles.count(opening) - smiles.count(closing)
        if missing:
            return f"{abs(missing)} {opening if missing < 0 else closing!r} too few"
    foreign = re.search(r"[^A-Za-z0-9@+\-\[\]()=#$:/\\.%*~<>{}|,;&!^?\s]", smiles)
    if foreign:
        return f"{foreign.group()!r} at position {foreign.start() + 1} is not SMILES"
    outside = re.sub(r"\[[^\]]*\]", "", smiles)
    labels = re.findall(r"%\(\d+\)|%\d\d|\d", outside)
    unclosed = sorted({label for label in labels if labels.count(label) % 2})
    if unclosed:
        return f"ring {unclosed[0]} is opened and not closed"
    unknown = re.search(r"[^BCNOPSFIbcnosplr0-9@+\-\[\]()=#$:/\\.%*~<>{}|,;&!^?\s]", outside)
    if unknown:
        return f"{unknown.group()!r} is no element that may stand outside of brackets"
    return "it is not SMILES"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
