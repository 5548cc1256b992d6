"""The canonical form of a molecule: the one that features, fingerprints and names are read from.

RDKit keeps stereochemistry on its objects in several ways, which depend on where a molecule comes
from and on the mode of perception. A canonical SMILES has one. So the form of a molecule is what
its canonical SMILES is read as, in the mode of perception that the bundled models learned with,
with the atoms in the order given. Atom numbers, isotopes, explicit hydrogens and bonds of which
the configuration is marked as unknown are set aside before, as the features of atoms and bonds do
not tell them apart.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from contextlib import _GeneratorContextManager, suppress
from functools import cache, partial
from itertools import compress, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from rdkit.Chem import rdqueries

from graphxai.runtime.scope import shared_block

from .as_given import CENTRE_OPEN, ISOMER_STANDS

ISOTOPE_UNSEEN = "isotope not seen by the model"
HYDROGENS_IMPLICIT = "hydrogens made implicit"
GEOMETRY_UNSEEN = "geometry at a metal not seen by the model"
MOST_GROUPS = 4  # of centres, of which all 16 isomers are compared; of more, 16 are drawn

# An isotope, a hydrogen, an atom number or the number of a ring, an extension like `|w:3.2|`, or a
# geometry like `@SP1`
_LABELLED = re.compile(r"\[(?:\d|H\]|#1\b)|:\d|\||@[A-Z]{2}\d")
# OGB has one code for all others, which no training compound has: RDKit finds them in coordinates.
_TETRAHEDRAL = (
    Chem.ChiralType.CHI_UNSPECIFIED,
    Chem.ChiralType.CHI_TETRAHEDRAL_CW,
    Chem.ChiralType.CHI_TETRAHEDRAL_CCW,
)
# Hydrogens that are atoms, and in an extension such as |(0,0,;1.3,.7,),wD:1.2,&1:1| its drawing
_HYDROGEN = re.compile(r"\[(?:\d*H\]|#1\b)")
_COORDINATES = re.compile(r"\|\([^)|]*\),?")
_WEDGES = re.compile(r"w[UD]:\d+\.\d+(?:,\d+\.\d+)*,?")
_NUMBER = "_number given"  # a property of atoms
_UNDEFINED = (Chem.BondDir.EITHERDOUBLE, Chem.BondDir.UNKNOWN)


class StandIn(NamedTuple):
    """A molecule that stands for the one given: its canonical form, or its parent.

    Args:
        mol: the molecule, sanitised, whose atoms are in the order given.
        atoms: for each of its atoms, the number of the same atom in the molecule given.
        changes: what was set aside or done that a user should know about, as text.
    """

    mol: Chem.Mol
    atoms: tuple[int, ...]
    changes: tuple[str, ...]


def one_perception() -> _GeneratorContextManager[None]:
    """Let RDKit perceive stereochemistry in one mode, whichever the process has chosen.

    The mode belongs to the whole process. So other threads have it, too, meanwhile.
    """
    return shared_block("perception", _perceiving_as_learned)


def _perceiving_as_learned() -> Callable[[], None]:
    """Set the mode, and return what restores that of the process."""
    own_mode = Chem.GetUseLegacyStereoPerception()
    Chem.SetUseLegacyStereoPerception(True)
    return partial(Chem.SetUseLegacyStereoPerception, own_mode)


def perceive(mol: Chem.Mol) -> None:
    """Perceive the configurations of a molecule anew, from its tags and directions of bonds."""
    if any(bond.GetStereo() > Chem.BondStereo.STEREOANY for bond in mol.GetBonds()):
        Chem.SetDoubleBondNeighborDirections(mol)  # which a molecule from JSON does not have
    Chem.AssignStereochemistry(mol, cleanIt=True, force=True)


def is_labelled(smiles: str) -> bool:
    """Whether a SMILES may differ from its canonical form in more than the order of atoms."""
    return _LABELLED.search(smiles) is not None


def canonical_form(mol: Chem.Mol) -> StandIn:
    """Return the canonical form of a sanitised molecule, which is not changed.

    Raises:
        ValueError: RDKit cannot read the SMILES that it writes for the molecule.
    """
    with one_perception(), rdBase.BlockLogs():
        bare, changes = _without_labels(mol)
        smiles = Chem.MolToSmiles(bare)
        order = list(bare.GetPropsAsDict(True, True)["_smilesAtomOutputOrder"])
        read = Chem.MolFromSmiles(smiles)
        if read is None or read.GetNumAtoms() != len(order):
            raise ValueError(f"RDKit cannot read {smiles}, which it writes for this molecule")
        place = {atom: k for k, atom in enumerate(order)}  # of each atom in the SMILES
        form = Chem.RenumberAtoms(read, [place[k] for k in range(len(order))])
    return StandIn(form, tuple(atom.GetIntProp(_NUMBER) for atom in bare.GetAtoms()), changes)


def with_coordinates(mol: Chem.Mol, given: Chem.Mol, atoms: Sequence[int]) -> Chem.Mol:
    """Return the molecule with the coordinates that its atoms have in the molecule given."""
    mol = Chem.Mol(mol)
    mol.RemoveAllConformers()
    for conformer in given.GetConformers():
        placed = Chem.Conformer(len(atoms))
        placed.Set3D(conformer.Is3D())
        placed.SetPositions(conformer.GetPositions()[list(atoms)])
        mol.AddConformer(placed, assignId=True)
    return mol


def with_groups_of(given: Chem.Mol, mol: Chem.Mol, atoms: Sequence[int]) -> Chem.Mol:
    """Return a molecule with the groups & and o of the one given, or itself if that has none.

    Args:
        given: the molecule with groups.
        mol: what stands for it, in its canonical form.
        atoms: for each atom of `mol`, the number of the same atom in the molecule given.
    """
    if not (groups_given := relative_groups(given)):
        return mol
    place, written = {atom: k for k, atom in enumerate(atoms)}, Chem.RWMol(mol)
    groups = []
    for kind, members in groups_given:
        left = [place[atom] for atom in members if atom in place]
        if len(members) == 1 and left:  # either image stands for both
            written.GetAtomWithIdx(left[0]).SetChiralTag(Chem.ChiralType.CHI_TETRAHEDRAL_CW)
        groups += [Chem.CreateStereoGroup(kind, written, left)] if left else []
    if not groups:
        return mol
    written.SetStereoGroups(groups)
    perceive(written)
    Chem.CanonicalizeEnhancedStereo(written)
    return written.GetMol()


def form_with_groups(mol: Chem.Mol) -> Chem.Mol:
    """Return a molecule without isotopes and atom numbers, which keeps its groups & and o."""
    form = without_labels(mol)
    return with_groups_of(mol, form, range(mol.GetNumAtoms()))


def choices(groups: int) -> list[tuple[bool, ...]]:
    """Return which groups are inverted in each isomer: all ways, or a seeded sample of 16.

    In the sample each choice comes with its inverse. So every group is inverted in one half.
    """
    if groups <= MOST_GROUPS:
        return list(product((False, True), repeat=groups))
    drawn = random.Random(0).sample(range(2 ** (groups - 1)), 2 ** (MOST_GROUPS - 1))
    chosen = [tuple(bool(number >> k & 1) for k in range(groups)) for number in drawn]
    return [*chosen, *(tuple(not each for each in choice) for choice in chosen)]


def chosen_isomer(
    mol: Chem.Mol, groups: Sequence[Sequence[int]], choice: Sequence[bool]
) -> Chem.Mol:
    """Return a molecule in which the chosen groups of centres are inverted."""
    isomer = Chem.RWMol(mol)
    for group in compress(groups, choice):
        for index in group:
            isomer.GetAtomWithIdx(index).InvertChirality()
    perceive(isomer)
    return isomer.GetMol()


def relative_groups(mol: Chem.Mol) -> list[tuple[Chem.StereoGroupType, list[int]]]:
    """Return the groups & and o of a molecule, each with its atoms."""
    return [
        (group.GetGroupType(), [atom.GetIdx() for atom in group.GetAtoms()])
        for group in mol.GetStereoGroups()
        if group.GetGroupType() != Chem.StereoGroupType.STEREO_ABSOLUTE
    ]


def smiles_with_groups(mol: Chem.Mol) -> str:
    """Return the canonical SMILES, with an extension if centres form groups such as racemates.

    A group of absolute centres alone says no more than the SMILES.
    """
    if not relative_groups(mol):
        return str(Chem.MolToSmiles(mol))
    fields = Chem.CXSmilesFields.CX_ENHANCEDSTEREO
    return str(Chem.MolToCXSmiles(mol, Chem.SmilesWriteParams(), fields))


def smiles_in_order(mol: Chem.Mol) -> tuple[str, list[int]]:
    """Return the SMILES of `smiles_with_groups`, and the atoms in its order."""
    smiles = smiles_with_groups(mol)
    if " |" not in smiles:
        order = mol.GetProp("_smilesAtomOutputOrder")  # such as [1,0,2]
        return smiles, [*map(int, order.strip("[,]").split(","))]
    numbered = Chem.Mol(mol)
    for atom in numbered.GetAtoms():
        atom.SetProp("number", str(atom.GetIdx()))
    fields = Chem.CXSmilesFields.CX_ENHANCEDSTEREO | Chem.CXSmilesFields.CX_ATOM_PROPS
    text = Chem.MolToCXSmiles(numbered, Chem.SmilesWriteParams(), fields)
    return smiles, [int(atom.GetProp("number")) for atom in Chem.MolFromSmiles(text).GetAtoms()]


class DrawnSmiles(str):
    """A SMILES with the 2D coordinates of its atoms, in their order (N, 2), if it has any."""

    points: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, mol: Chem.Mol) -> DrawnSmiles:
        """Write the canonical SMILES of a molecule, with its coordinates unless they are 3D."""
        text, order = smiles_in_order(mol)
        smiles = cls(text)
        if mol.GetNumConformers() and not mol.GetConformer().Is3D():
            smiles.points = mol.GetConformer().GetPositions()[order, :2]
        return smiles

    def strip(self, chars: str | None = None, /) -> DrawnSmiles:
        """Return the SMILES itself, which has no white space at its ends."""
        return self

    def placed(self, mol: Chem.Mol) -> Chem.Mol:
        """Return the molecule that was read from the SMILES, with its coordinates."""
        if self.points is None or len(self.points) != mol.GetNumAtoms():
            return mol
        placed, conformer = Chem.Mol(mol), Chem.Conformer(len(self.points))
        conformer.Set3D(False)
        conformer.SetPositions(np.pad(self.points, ((0, 0), (0, 1))))
        placed.AddConformer(conformer)
        return placed


def canonical_smiles(molecule: str | Chem.Mol) -> str:
    """Return the canonical SMILES of what the features of atoms and bonds tell apart.

    Of a molecule without a canonical form, return the SMILES that RDKit writes.

    Args:
        molecule: a SMILES that RDKit can read, or a sanitised molecule.
    """
    with one_perception(), rdBase.BlockLogs():
        if isinstance(molecule, str) and not is_labelled(molecule):
            return smiles_as_read(Chem.MolFromSmiles(molecule))
        mol: Any = read_smiles(molecule) if isinstance(molecule, str) else molecule
        with suppress(ValueError):
            mol = canonical_form(mol).mol
        return str(Chem.MolToSmiles(mol))


def smiles_as_read(mol: Chem.Mol) -> str:
    """Return the canonical SMILES of a molecule that is in its canonical form."""
    with one_perception():
        return str(Chem.MolToSmiles(mol))


def read_smiles(smiles: str) -> Chem.Mol | None:
    """Read a SMILES as `Chem.MolFromSmiles` does, without the configurations that RDKit loses.

    RDKit removes a hydrogen beside a direction of a bond without turning that around, so that
    `[H]/C1=C/CC/C=C/CC/C([H])=C\\CC1` loses one. From wedges and coordinates of an extension it
    perceives all anew, and loses a double bond beside a wedge; but the SMILES itself has them all.
    """
    mol = Chem.MolFromSmiles(smiles)
    if mol is None:
        return mol
    if _HYDROGEN.search(smiles):
        as_atoms = Chem.SmilesParserParams()
        as_atoms.removeHs = False  # type: ignore[assignment]
        return without_hydrogens(Chem.MolFromSmiles(smiles, as_atoms))
    if _WEDGES.search(smiles):
        bare = Chem.MolFromSmiles(_WEDGES.sub("", _COORDINATES.sub("|", smiles)))
        return mol if bare is None else with_coordinates(bare, mol, range(mol.GetNumAtoms()))
    return mol


def quietly_read(smiles: str) -> Chem.Mol | None:
    """Return the molecule of a SMILES, or None without a word of RDKit's if it cannot read it."""
    with rdBase.BlockLogs():
        return read_smiles(smiles)


def without_labels(mol: Chem.Mol) -> Chem.Mol:
    """Return a molecule without isotopes, atom numbers, explicit hydrogens and groups & and o.

    That is the molecule itself if it has none, and else its canonical form.
    """
    if mol.GetStereoGroups() or mol.HasSubstructMatch(_labelled_atom()):
        with suppress(ValueError):
            return canonical_form(mol).mol
    return mol


@cache
def _labelled_atom() -> Chem.Mol:
    """Match an atom that the canonical form does not have, or not as it is."""
    atom = Chem.MolFromSmarts("[#1]").GetAtomWithIdx(0)
    for query in (
        rdqueries.IsotopeGreaterQueryAtom(0),
        rdqueries.HasPropQueryAtom("molAtomMapNumber"),
    ):
        atom.ExpandQuery(query, how=Chem.CompositeQueryType.COMPOSITE_OR)
    query = Chem.RWMol()
    query.AddAtom(atom)
    return query.GetMol()


def _without_labels(mol: Chem.Mol) -> tuple[Chem.Mol, tuple[str, ...]]:
    """Return a copy without what no feature tells apart, and what a user should know of it."""
    copy = Chem.RWMol(mol)
    has_isotopes = has_hydrogens = has_geometry = False
    for atom in copy.GetAtoms():
        number = atom.GetAtomicNum()
        has_hydrogens = has_hydrogens or number == 1
        if atom.GetIsotope():
            has_isotopes = has_isotopes or number > 0  # that of a dummy atom is a label
            atom.SetIsotope(0)
        if atom.GetChiralTag() not in _TETRAHEDRAL:
            has_geometry = True
            atom.SetChiralTag(Chem.ChiralType.CHI_UNSPECIFIED)
        atom.SetAtomMapNum(0)
        atom.SetIntProp(_NUMBER, atom.GetIdx())
    for bond in copy.GetBonds():
        if bond.GetBondDir() in _UNDEFINED:
            bond.SetBondDir(Chem.BondDir.NONE)
        if bond.GetStereo() == Chem.BondStereo.STEREOANY:
            bond.SetStereo(Chem.BondStereo.STEREONONE)
    if has_hydrogens:
        # RDKit keeps a hydrogen as in `[2H]/C=C/C` as an atom, and with it the configuration of
        # double bonds to an atom with two hydrogens.
        for bond in copy.GetBonds():
            hydrogen, other = bond.GetBeginAtom(), bond.GetEndAtom()
            if hydrogen.GetAtomicNum() != 1:
                hydrogen, other = other, hydrogen
            if hydrogen.GetAtomicNum() == 1 and other.GetTotalNumHs(includeNeighbors=True) > 1:
                bond.SetBondDir(Chem.BondDir.NONE)
                for beside in other.GetBonds():
                    beside.SetStereo(Chem.BondStereo.STEREONONE)
    of_groups = _resolve_groups(copy) if mol.GetStereoGroups() else []
    bare = without_hydrogens(copy) if has_hydrogens else copy.GetMol()
    changes = [*of_groups, *[ISOTOPE_UNSEEN] * has_isotopes, *[GEOMETRY_UNSEEN] * has_geometry]
    if bare.GetNumAtoms() < mol.GetNumAtoms() and not has_isotopes:
        changes.append(HYDROGENS_IMPLICIT)
    return bare, tuple(changes)


def _resolve_groups(mol: Chem.RWMol) -> list[str]:
    """Give the centres of relative groups one configuration, and say what was done.

    A racemate with one centre becomes a centre without configuration, which is how tables draw
    racemates, and so what models learned from. The centres of a larger group keep their relative
    configuration: of all isomers, the one with the first SMILES stands for them.
    """
    groups = [atoms for _, atoms in relative_groups(mol)]
    mol.SetStereoGroups([])
    single = [group[0] for group in groups if len(group) == 1]
    for index in single:
        mol.GetAtomWithIdx(index).SetChiralTag(Chem.ChiralType.CHI_UNSPECIFIED)
    perceive(mol)
    several = [group for group in groups if len(group) > 1]
    isomers: dict[str, Chem.Mol] = {}
    for choice in choices(len(several)):
        isomer = chosen_isomer(mol, several, choice)
        isomers.setdefault(Chem.CanonSmiles(Chem.MolToSmiles(isomer)), isomer)
    first = isomers[min(isomers)]
    for atom in mol.GetAtoms():
        atom.SetChiralTag(first.GetAtomWithIdx(atom.GetIdx()).GetChiralTag())
    return [CENTRE_OPEN] * bool(single) + [ISOMER_STANDS] * bool(several)


def without_hydrogens(mol: Chem.Mol) -> Chem.Mol:
    """Return a molecule without its explicit hydrogens, except those that RDKit keeps."""
    bare = Chem.RemoveHs(mol)
    perceive(bare)
    return bare


def mirror_image(mol: Chem.Mol) -> Chem.Mol:
    """Return the mirror image of a molecule."""
    with one_perception():
        return chosen_isomer(mol, [range(mol.GetNumAtoms())], [True])
