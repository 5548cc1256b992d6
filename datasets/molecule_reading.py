"""Turn a user's molecule into a sanitised RDKit molecule, or say why it cannot be used."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

from rdkit import Chem

from graphxai.runtime.notices import warn

from .as_given import AS_DRAWN, AsGiven, MixtureError, Standardisation
from .as_given import MoleculeError as MoleculeError
from .canonical_form import (
    DrawnSmiles,
    canonical_form,
    is_labelled,
    one_perception,
    perceive,
    read_smiles,
    smiles_in_order,
    smiles_with_groups,
    with_coordinates,
    with_groups_of,
)
from .standardise import may_change, parent_of
from .tautomer_form import has_moving_protons

# RDKit takes 1 kB and more for each character, and its time grows with the square of the length.
# This leaves 40 characters for each of 500 atoms, enough for isotopes, charges and coordinates.
MAX_CHARACTERS = 20_000


# Parse a SMILES into a molecule with exactly the atoms, hydrogens and tags written in it.
AS_WRITTEN = Chem.SmilesParserParams()
AS_WRITTEN.sanitize = False  # type: ignore[assignment]
AS_WRITTEN.removeHs = False  # type: ignore[assignment]
AS_WRITTEN.allowCXSMILES = False  # type: ignore[assignment]
AS_WRITTEN.parseName = False  # type: ignore[assignment]

# Text after the SMILES, reactions and dative bonds, and explicit hydrogen atoms (to be removed).
_NOT_PLAIN = re.compile(r"[\s>]|\[\d*(?:H|#1)")

# Read as an atom with its own features, unlike the hydrogen that it stands for.
_HEAVY_HYDROGEN = re.compile(r"\[0*[23](?:H|#1\b)")
READ_AS_DRAWN = "read as drawn"  # as the model's own code reads it
_HEAVY_HYDROGEN_READ = "deuterium or tritium is read as drawn, as an atom of its own"
_CHARGED = "the {} is kept, as no proton can remove its charge"
_NOT_STANDARDISED = "read as drawn, as it could not be brought to its parent"

# No whitespace: for terminals, and what turns the direction of the text around it.
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069]")

# The second block ends in S or N (standard or not) and A (version 1); no SMILES has an A there.
_INCHI_KEY = re.compile(r"[A-Z]{14}-[A-Z]{8}[SN]A-[A-Z]")


class ReadMolecule(NamedTuple):
    """A sanitised molecule and its SMILES.

    Args:
        text: its SMILES, with the atoms in the same order if the input was a SMILES.
        is_given: whether the input was an RDKit molecule, not a SMILES.
        as_given: the molecule that was given, if `mol` is its parent or there is a remark on it.
        form: the canonical form of `mol`, with the same order of atoms; `mol` itself if molecules
            are read in no such form.
    """

    mol: Chem.Mol
    text: str
    is_given: bool
    as_given: AsGiven | None
    form: Chem.Mol

    @property
    def is_drawn(self) -> bool:
        """Whether the molecule has coordinates."""
        return self.mol.GetNumConformers() > 0

    @property
    def shown(self) -> Chem.Mol | None:
        """The molecule to draw, or None if the SMILES says all of it."""
        return self.mol if self.is_given or self.is_drawn else None


def is_inchi(text: str) -> bool:
    """Return whether a text is an InChI instead of a SMILES."""
    return text.startswith("InChI=")


def read_molecules(
    molecules: Sequence[str | Chem.Mol],
    max_atoms: int,
    standardisation: Standardisation = AS_DRAWN,
    canonical: bool = False,
) -> list[ReadMolecule | MoleculeError]:
    """Parse SMILES and copy RDKit molecules, sanitised and with stereo assigned.

    A molecule that cannot be read, has no atoms, has more than `max_atoms`, or is a mixture while
    parents are wanted, gives an error in its place.

    Args:
        molecules: SMILES and RDKit molecules.
        max_atoms: the largest number of atoms accepted.
        standardisation: what stands for each molecule, see `molecules.molecule_to_data`.
        canonical: whether each molecule is brought to its canonical form first.
    """
    with one_perception() if canonical else nullcontext():
        plain = READ_AS_DRAWN if standardisation == AS_DRAWN else ""
        as_read = _in_canonical_form if canonical else partial(_as_drawn, plain)
        return [
            _changed(as_read(_placed(item, given)), standardisation)
            if isinstance(item, ReadMolecule)
            else item
            for item, given in zip(
                _read_as_drawn(molecules, max_atoms, canonical), molecules, strict=True
            )
        ]


def _placed(read: ReadMolecule, given: str | Chem.Mol) -> ReadMolecule:
    """Return what was read, with the coordinates that come with its SMILES, if any."""
    return read._replace(mol=given.placed(read.mol)) if isinstance(given, DrawnSmiles) else read


def _as_drawn(plain: str, read: ReadMolecule) -> ReadMolecule:
    """Return what was read, with a remark on heavy hydrogens, or else the plain one, if any."""
    remark = _HEAVY_HYDROGEN_READ if _HEAVY_HYDROGEN.search(read.text) else plain
    return _with_remark(read, remark) if remark else read


def _with_remark(read: ReadMolecule, remark: str) -> ReadMolecule:
    """Return the molecule with something to say of how it was read, after what was changed."""
    given = read.as_given or AsGiven.of(read.text, read.mol.GetNumAtoms())
    return read._replace(as_given=given._replace(changes=(*given.changes, remark)))


def _in_canonical_form(read: ReadMolecule) -> ReadMolecule:
    """Return the molecule with its canonical form, which most SMILES are read as already."""
    if not read.is_given and not is_labelled(read.text):
        return read
    try:
        form = canonical_form(read.mol)
    except (ValueError, RuntimeError) as error:
        return _with_remark(read, f"read as drawn: {_reason(error)}")
    if len(form.atoms) < read.mol.GetNumAtoms():
        return _in_place_of(read, *form)
    read = read._replace(form=form.mol)
    for change in form.changes:
        read = _with_remark(read, change)
    return read


def _changed(read: ReadMolecule, standardisation: Standardisation) -> ReadMolecule | MoleculeError:
    """Return the parent of a molecule, or itself with a remark if RDKit cannot standardise it."""
    is_parent = not may_change(read.text) and not has_moving_protons(read.form)
    if standardisation == AS_DRAWN or (is_parent and standardisation == "parent"):
        return read
    try:
        parent = parent_of(read.form, standardisation)
    except MixtureError as error:
        return MixtureError(
            f"{_shown(read.text)} is {error}: give one of them, or take the mixture as it is drawn"
            " (--as-drawn; in Python graphxai.load(..., as_drawn=True))."
        )
    except (ValueError, RuntimeError) as error:
        return _with_remark(read, f"{_NOT_STANDARDISED}: {_reason(error)}")
    if parent is not None:
        read = _in_place_of(read, *parent)
    charge = Chem.GetFormalCharge(read.form)
    ion = "cation" if charge > 0 else "anion"
    return _with_remark(read, _CHARGED.format(ion)) if charge else read


def _in_place_of(
    read: ReadMolecule, mol: Chem.Mol, atoms: Sequence[int], changes: Sequence[str]
) -> ReadMolecule:
    """Return another molecule that stands for the one that was read.

    A SMILES becomes the SMILES of this molecule, with the atoms in its order. `atoms` has, for each
    of its atoms, the number of the same atom in what was read.
    """
    drawn, given = with_groups_of(read.mol, mol, atoms), read.as_given
    smiles, order = smiles_in_order(drawn)
    in_order = _in_order(drawn, order, smiles)
    if in_order is None or in_order.GetNumAtoms() != len(order):
        return _with_remark(read, f"{_NOT_STANDARDISED}: its parent {_shown(smiles)} is unreadable")
    form = in_order if drawn is mol else canonical_form(in_order).mol
    if read.is_given:
        back = sorted(range(len(order)), key=order.__getitem__)
        form, mol = Chem.RenumberAtoms(form, back), with_coordinates(drawn, read.mol, atoms)
    else:
        atoms = [atoms[index] for index in order]
        mol = with_coordinates(in_order, read.mol, atoms) if read.is_drawn else in_order
    given = given or AsGiven.of(read.text, read.mol.GetNumAtoms())
    numbers = tuple(given.atoms[number] for number in atoms)
    given = given._replace(atoms=numbers, changes=(*given.changes, *changes))
    return ReadMolecule(mol, smiles, read.is_given, given, form)


def _reason(error: Exception) -> str:
    return shortened(" ".join(str(error).split()) or type(error).__name__)


def _in_order(mol: Chem.Mol, order: list[int], smiles: str) -> Chem.Mol | None:
    """Return a sanitised molecule as it is read from its canonical SMILES, in the order of that.

    Renumbering its atoms takes a quarter of the time of reading. But the tag of a stereocentre is
    relative to the order of its bonds, which renumbering does not change.
    """
    if "@" in smiles:
        return Chem.MolFromSmiles(smiles)
    return Chem.RenumberAtoms(mol, order)


def _read_as_drawn(
    molecules: Sequence[str | Chem.Mol], max_atoms: int, canonical: bool
) -> list[ReadMolecule | MoleculeError]:
    # Each step runs over all molecules before the next: the steps evict each other from the
    # processor's caches.
    texts = [item.strip() if isinstance(item, str) else "" for item in molecules]
    # RDKit's parser and three further steps are faster than `MolFromSmiles`, which also marks
    # unassigned stereocentres and ranks the atoms of every molecule for that.
    parsed = [
        None
        if len(text) > MAX_CHARACTERS or not text.isascii() or _NOT_PLAIN.search(text)
        else Chem.MolFromSmiles(text, AS_WRITTEN)
        for text in texts
    ]
    plain = [
        None if mol is None or mol.GetNumAtoms() > max_atoms else _sanitised(mol) for mol in parsed
    ]
    for mol in plain:
        if mol is not None:
            Chem.AssignStereochemistry(mol, True)  # removes tags where there is no stereocentre
    return [
        ReadMolecule(mol, text, False, None, mol)
        if mol is not None and 0 < mol.GetNumAtoms() <= max_atoms
        else _read_or_error(molecule, max_atoms, canonical)
        for molecule, text, mol in zip(molecules, texts, plain, strict=True)
    ]


def _sanitised(mol: Chem.Mol) -> Chem.Mol | None:
    """Sanitise a molecule in place and return it, or return None if RDKit refuses it."""
    try:
        Chem.SanitizeMol(mol)
    except ValueError:
        return None
    return mol


def _read_or_error(
    molecule: str | Chem.Mol, max_atoms: int, canonical: bool
) -> ReadMolecule | MoleculeError:
    try:
        return _read(molecule, max_atoms, canonical)
    except MoleculeError as error:
        return error


def _read(molecule: str | Chem.Mol, max_atoms: int, canonical: bool) -> ReadMolecule:
    """Read one molecule, or raise a MoleculeError that says what is wrong with it."""
    if isinstance(molecule, str):
        mol, text, is_given = _parse(molecule, max_atoms, canonical), molecule.strip(), False
    else:
        mol = _prepared(molecule)
        atoms = () if canonical else mol.GetAtoms()
        plain = [a for a in atoms if a.GetAtomicNum() == 1 and not a.GetIsotope()]
        if sum(atom.GetDegree() == 1 for atom in plain) * 4 > mol.GetNumAtoms():
            frame, levels = sys._getframe(), 1  # a warning names the user's line
            while frame.f_back and frame.f_globals["__name__"].startswith("graphxai."):
                frame, levels = frame.f_back, levels + 1
            warn(
                "the molecule's hydrogens are explicit atoms and become nodes; models trained on"
                " SMILES expect implicit hydrogens: use Chem.RemoveHs.",
                stacklevel=levels,
            )
        text, is_given = smiles_with_groups(mol), True
    size = mol.GetNumAtoms()
    if size == 0:
        raise MoleculeError(f"{_shown(text)} has no atoms: remove it from the input.")
    _require_size(text, size, max_atoms)
    return ReadMolecule(mol, text, is_given, None, mol)


def _require_size(text: str, size: int, max_atoms: int) -> None:
    if size > max_atoms:
        raise MoleculeError(
            f"{_shown(text)} has {size} atoms, more than the limit of {max_atoms} (time and memory "
            "grow with the square of the size): split it, or make its graph in Python with "
            "graphxai.datasets.molecules.molecule_to_data(..., max_atoms=...)."
        )


def _parse(smiles: str, max_atoms: int, canonical: bool) -> Chem.Mol:
    """Return the sanitised RDKit molecule of a SMILES."""
    text = smiles.strip()
    if not text:
        raise MoleculeError("the SMILES is empty: fill it in or remove the row.")
    if len(text) > MAX_CHARACTERS:
        raise MoleculeError(
            f"{_shown(text)} has {len(text):,} characters, more than the limit of"
            f" {MAX_CHARACTERS:,}: give one molecule, or in Python an RDKit molecule."
        )
    if CONTROL.search(text):
        raise MoleculeError(f"{_shown(text)} has a control character: remove it.")
    head, *rest = text.split(maxsplit=1)
    if is_inchi(head):
        raise MoleculeError(
            f"{_shown(text)} is an InChI, not a SMILES: convert it, for example in Python with"
            " rdkit.Chem.MolToSmiles(rdkit.Chem.MolFromInchi(...))."
        )
    if _INCHI_KEY.fullmatch(head):
        raise MoleculeError(
            f"{_shown(text)} is an InChIKey, not a SMILES: it is a hash without the structure, so"
            " look up the SMILES, for example in PubChem."
        )
    if rest and not rest[0].startswith("|"):  # "|...|" is ChemAxon's extension
        raise MoleculeError(
            f"{_shown(text)} has text after the SMILES {_shown(head)}: give the SMILES alone."
        )
    if ">" in head and "->" not in head:
        raise MoleculeError(f"{_shown(text)} is a reaction: give one molecule.")
    relaxed = Chem.SmilesParserParams()
    relaxed.sanitize = False  # type: ignore[assignment]
    relaxed.removeHs = False  # type: ignore[assignment]  # without rings, RDKit may crash in it
    # RDKit skips characters that are not ASCII
    raw = Chem.MolFromSmiles(text, relaxed) if text.isascii() else None
    if raw is not None:
        # before the rings are found, which takes minutes for the largest
        _require_size(text, sum(a.GetAtomicNum() != 1 for a in raw.GetAtoms()), max_atoms)
        mol = read_smiles(text) if canonical else Chem.MolFromSmiles(text)
        if mol is not None:
            return mol
    reason = _syntax_problem(text) if raw is None else _chemistry_problem(raw)
    raise MoleculeError(f"{_shown(text)} cannot be read: {reason}. Correct it or remove it.")


def _prepared(mol: Chem.Mol) -> Chem.Mol:
    """Return a sanitised copy of the molecule with stereo assigned, as if read from a SMILES."""
    if not isinstance(mol, Chem.Mol):
        raise MoleculeError(f"a molecule must be a SMILES string or an RDKit Mol, not {mol!r}.")
    copy = Chem.Mol(mol)
    try:
        Chem.SanitizeMol(copy)
    except ValueError as error:
        raise MoleculeError(f"the RDKit molecule cannot be sanitised: {error}") from error
    perceive(copy)
    return copy


def _chemistry_problem(raw: Chem.Mol) -> str:
    """Say why RDKit refuses the chemistry of a molecule that it could parse."""
    problems = [problem.Message() for problem in Chem.DetectChemistryProblems(raw)]
    return problems[0].strip().rstrip(".") if problems else "RDKit refuses its chemistry"


def _syntax_problem(smiles: str) -> str:
    """Say what is most likely wrong. RDKit writes its reason only to the process's stderr."""
    for opening, closing in ("()", "[]"):
        missing = smiles.count(opening) - smiles.count(closing)
        if missing:
            return f"{abs(missing)} {opening if missing < 0 else closing!r} missing"
    foreign = re.search(r"[^A-Za-z0-9@+\-\[\]()=#$:/\\.%*~<>{}|,;&!^?\s]", smiles)
    if foreign:
        return f"{foreign.group()!r} at position {foreign.start() + 1} is not SMILES"
    outside = re.sub(r"\[[^\]]*\]", "", smiles)
    labels = re.findall(r"%\(\d+\)|%\d\d|\d", outside)
    unclosed = sorted({label for label in labels if labels.count(label) % 2})
    if unclosed:
        return f"ring {unclosed[0]} is opened but never closed"
    unknown = re.search(r"[^BCNOPSFIbcnosplr0-9@+\-\[\]()=#$:/\\.%*~<>{}|,;&!^?\s]", outside)
    if unknown:
        return f"{unknown.group()!r} is not an element allowed outside brackets"
    return "it is not SMILES"


def _shown(text: str) -> str:
    return repr(shortened(text))


def shortened(text: str, length: int = 80) -> str:
    """Return a text to quote, with its end cut off if it is longer than `length`."""
    return text if len(text) <= length else text[: length - 3] + "..."
