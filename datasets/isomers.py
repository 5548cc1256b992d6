"""The isomers that one molecule stands for, over which results are the mean."""

from __future__ import annotations

from collections.abc import Sequence

from rdkit import Chem, rdBase

from .canonical_form import (
    MOST_GROUPS,
    choices,
    chosen_isomer,
    one_perception,
    order_in_smiles,
    relative_groups,
    with_groups_of,
)


def undrawn_centres(mol: Chem.Mol) -> list[int]:
    """Return the tetrahedral centres without a drawn configuration."""
    return [
        place.centeredOn
        for place in Chem.FindPotentialStereo(mol)
        if place.type == Chem.StereoType.Atom_Tetrahedral
        and place.specified == Chem.StereoSpecified.Unspecified
    ]


def isomers_in_order(
    form: Chem.Mol, given: Chem.Mol, undrawn: Sequence[int]
) -> tuple[list[Chem.Mol], str]:
    """Return the isomers that a molecule stands for, and how many, as text; [] for a single one.

    Each has its atoms and bonds in the order of the form. Every choice of configurations counts
    alike, so a meso form comes twice. Of more than `MOST_GROUPS` groups and centres, these are a
    sample.

    Args:
        form: the canonical form of a molecule.
        given: the same atoms, whose groups & and o stand for several isomers.
        undrawn: centres without a drawn configuration that do so, too.
    """
    if not undrawn and not given.GetStereoGroups():
        return [], ""
    bare = Chem.RWMol(with_groups_of(given, form, range(form.GetNumAtoms())))
    groups = [atoms for _, atoms in relative_groups(bare)]
    bare.SetStereoGroups([])
    for index in undrawn:
        if [index] not in groups:
            groups.append([index])
            bare.GetAtomWithIdx(index).SetChiralTag(Chem.CHI_TETRAHEDRAL_CW)
    if not groups:
        return [], ""
    place = {atom: k for k, atom in enumerate(order_in_smiles(form))}  # however it is written
    groups.sort(key=lambda group: sorted(place[atom] for atom in group))
    with one_perception():
        isomers = [chosen_isomer(bare, groups, choice) for choice in choices(len(groups))]
    names = {Chem.MolToSmiles(isomer) for isomer in isomers}
    total, sampled = 2 ** len(groups), len(groups) > MOST_GROUPS
    of = f"a sample of {len(names)} of its {total}" if sampled else f"its {len(names)}"
    return (isomers, of) if len(names) > 1 else ([], "")


def mirror_image(mol: Chem.Mol) -> Chem.Mol:
    """Return the mirror image of a molecule."""
    with one_perception():
        return chosen_isomer(mol, [range(mol.GetNumAtoms())], [True])


def has_undrawn_centres(smiles: str) -> bool:
    """Return whether RDKit reads a SMILES as a molecule with such centres."""
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(smiles)
    return mol is not None and bool(undrawn_centres(mol))
