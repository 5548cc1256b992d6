"""The isomers that a molecule stands for, at centres that are not drawn or form groups & and o.

RDKit takes each bridgehead of adamantane or quinuclidine for a centre of its own. But the bridges
of a small bicycle leave one choice for both: what is not a bridge points outwards at either end,
so that one bridgehead is the mirror image of the other. An isomer in which one points inwards is
known from bicyclo[4.4.1]undecane on (ingenol; Alder and East 1996), which has 9 atoms in bridges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import NamedTuple

from rdkit import Chem

from .canonical_form import (
    MOST_GROUPS,
    choices,
    chosen_isomer,
    one_perception,
    perceive,
    quietly_read,
    relative_groups,
    smiles_in_order,
    with_groups_of,
)

TAGS = (Chem.ChiralType.CHI_TETRAHEDRAL_CW, Chem.ChiralType.CHI_TETRAHEDRAL_CCW)
HYDROGEN = -2  # in a list of neighbours; -1 is an atom that was not there before
# Of bicycles with 8 atoms in bridges, such as bicyclo[4.3.1]decane, in,out isomers lie at least
# 28 kcal/mol higher (MMFF94), and of bicyclo[4.4.1]undecane 19.
MOST_BRIDGED = 8
MOST_FUSED = 4  # atoms in two bridges if a bond is the third, as in bicyclo[3.1.0]hexane
SMALLEST_RING = 10  # atoms of a ring in which a double bond may be E


class UndrawnCentres(NamedTuple):
    """The tetrahedral centres without a drawn configuration.

    Args:
        open: for each choice, the centres that it decides, with tags that can be theirs together.
        fixed: the tags of centres that drawn ones decide.
    """

    open: list[dict[int, Chem.ChiralType]]
    fixed: dict[int, Chem.ChiralType]


def undrawn_places(mol: Chem.Mol, kind: Chem.StereoType) -> list[int]:
    """Return the atoms or bonds that may have a configuration of this kind, and none is drawn."""
    places = (place for place in Chem.FindPotentialStereo(mol) if place.type == kind)
    return [p.centeredOn for p in places if p.specified == Chem.StereoSpecified.Unspecified]


def undrawn_centres(mol: Chem.Mol) -> UndrawnCentres:
    """Return the centres of a molecule without a drawn configuration, however it is written."""
    undrawn = undrawn_places(mol, Chem.StereoType.Atom_Tetrahedral)
    centres, seen = UndrawnCentres([], {}), set[int]()
    if not undrawn:
        return centres
    places = _places(mol)
    same_tag = _bridgeheads(mol, undrawn)
    drawn = {index for pair in same_tag for index in pair}.difference(undrawn)
    for start in sorted({*drawn, *undrawn}, key=lambda index: (index not in drawn, places[index])):
        if start not in seen:
            tag = mol.GetAtomWithIdx(start).GetChiralTag()
            first = tag if start in drawn else _canonical_tag(mol, start, places)
            tags = _tags_from(start, first, same_tag)
            seen |= tags.keys()
            if start in drawn:  # nobody draws a bridgehead N beside drawn carbons
                carbons = [k for k in tags if mol.GetAtomWithIdx(k).GetAtomicNum() != 7]
                centres.fixed.update((k, tags[k]) for k in carbons if k not in drawn)
            else:
                centres.open.append(tags)
    return centres


def _places(mol: Chem.Mol) -> dict[int, int]:
    """Return the place of each atom in the canonical SMILES, with a hydrogen before them."""
    with one_perception():
        return {HYDROGEN: -1} | {atom: k for k, atom in enumerate(smiles_in_order(mol)[1])}


def _canonical_tag(mol: Chem.Mol, index: int, places: Mapping[int, int]) -> Chem.ChiralType:
    """Return the tag with which the neighbours are clockwise in the order of their places."""
    neighbours = neighbours_of_tag(mol, index)
    return TAGS[is_odd_permutation(sorted(neighbours, key=places.__getitem__), neighbours)]


def _tags_from(
    start: int, tag: Chem.ChiralType, same_tag: Mapping[tuple[int, int], bool]
) -> dict[int, Chem.ChiralType]:
    """Return the tags that follow from that of a centre.

    Args:
        same_tag: the pairs of bridgeheads, and whether both have the same tag.
    """
    tags, waiting = {start: tag}, [start]
    while waiting:
        at = waiting.pop()
        for pair, is_same in same_tag.items():
            other = sum(pair) - at
            if at in pair and other not in tags:
                tags[other] = tags[at] if is_same else TAGS[1 - TAGS.index(tags[at])]
                waiting.append(other)
    return tags


def _bridgeheads(mol: Chem.Mol, undrawn: Sequence[int]) -> dict[tuple[int, int], bool]:
    """Return the pairs of bridgeheads of small bicycles, and whether both have the same tag.

    Seen from outside, the bridges are clockwise at one bridgehead and anticlockwise at the other.
    """
    drawn = [atom.GetIdx() for atom in mol.GetAtoms() if atom.GetChiralTag() in TAGS]
    rings = mol.GetRingInfo()
    heads = [index for index in sorted({*undrawn, *drawn}) if rings.NumAtomRings(index) > 1]
    same_tag = {}
    for pair in combinations(heads, 2):
        if not set(pair).isdisjoint(undrawn) and (bridges := _bridges(mol, *pair)):
            is_odd = []
            for head, end in zip(pair, (0, -1), strict=True):
                neighbours, bridged = neighbours_of_tag(mol, head), [path[end] for path in bridges]
                outside = [index for index in neighbours if index not in bridged]
                is_odd.append(is_odd_permutation([*outside, *bridged], neighbours))
            same_tag[pair] = is_odd[0] != is_odd[1]
    return same_tag


def _bridges(mol: Chem.Mol, start: int, end: int) -> list[list[int]]:
    """Return the three shortest bridges between two atoms, if they make a small bicycle.

    Each is the list of its atoms: the neighbour of `start` comes first, and that of `end` last. So
    a bond between both, as a bridge, is [end, start].
    """
    is_fused = mol.GetBondBetweenAtoms(start, end) is not None
    most = MOST_FUSED if is_fused else MOST_BRIDGED
    paths = sorted(_paths(mol, [start], end, most - (1 if is_fused else 2)), key=len)
    triples = [
        triple
        for triple in combinations(paths, 2 if is_fused else 3)
        if sum(map(len, triple)) <= most and len(set().union(*triple)) == sum(map(len, triple))
    ]
    if not triples:
        return []
    shortest = min(triples, key=lambda triple: sum(map(len, triple)))
    return [*([[end, start]] if is_fused else []), *shortest]


def _paths(mol: Chem.Mol, path: list[int], end: int, most: int) -> Iterator[list[int]]:
    """Yield the paths in rings from the last atom of a path to another, with 1 to `most` atoms."""
    for bond in mol.GetAtomWithIdx(path[-1]).GetBonds():
        index = bond.GetOtherAtomIdx(path[-1])
        if index == end and len(path) > 1:
            yield path[1:]
        elif index not in (end, *path) and bond.IsInRing() and len(path) <= most:
            yield from _paths(mol, [*path, index], end, most)


def neighbours_of_tag(mol: Chem.Mol, index: int) -> list[int]:
    """Return the neighbours in the order that a chiral tag refers to, an implicit hydrogen last.

    RDKit reads the tag of an atom with an implicit hydrogen as if that came last, up to an even
    permutation of all four.
    """
    atom = mol.GetAtomWithIdx(index)
    listed = [bond.GetOtherAtomIdx(index) for bond in atom.GetBonds()]
    return [*listed, HYDROGEN] if len(listed) == 3 else listed


def is_odd_permutation(items: Sequence[int], reference: Sequence[int]) -> bool:
    """Return whether an odd number of swaps leads from one order of distinct items to another."""
    order = [reference.index(item) for item in items]
    return sum(a > b for k, a in enumerate(order) for b in order[k + 1 :]) % 2 == 1


def isomers_in_order(
    form: Chem.Mol, given: Chem.Mol, undrawn: UndrawnCentres | None = None
) -> tuple[list[Chem.Mol], str]:
    """Return the isomers that a molecule stands for, and how many, as text; [] for itself.

    Each has its atoms and bonds in the order of the form. Every choice of configurations counts
    alike, so a meso form comes twice. Of more than `MOST_GROUPS` groups and centres, these are a
    sample. A single isomer has the centres that drawn ones fix, and no text.

    Args:
        form: the canonical form of a molecule.
        given: the same atoms, whose groups & and o stand for several isomers.
        undrawn: centres without a drawn configuration that do so, too.
    """
    undrawn = undrawn or UndrawnCentres([], {})
    if not any(undrawn) and not given.GetStereoGroups():
        return [], ""
    bare = Chem.RWMol(with_groups_of(given, form, range(form.GetNumAtoms())))
    groups = [atoms for _, atoms in relative_groups(bare)]
    bare.SetStereoGroups([])
    new = [tags for tags in undrawn.open if list(tags) not in groups]
    groups += map(list, new)
    for tags in (undrawn.fixed, *new):
        for index, tag in tags.items():
            bare.GetAtomWithIdx(index).SetChiralTag(tag)
    if not groups and not undrawn.fixed:
        return [], ""
    places = _places(form)
    groups.sort(key=lambda group: sorted(places[atom] for atom in group))
    with one_perception():
        isomers = [chosen_isomer(bare, groups, choice) for choice in choices(len(groups))]
    names = {Chem.MolToSmiles(isomer) for isomer in isomers}
    if len(names) == 1:
        return (isomers[:1] if undrawn.fixed else []), ""
    if len(groups) <= MOST_GROUPS:
        return isomers, f"its {len(names)}"
    total = f"a sample of {len(isomers)} of its {2 ** len(groups)}"
    different = f" configurations, {len(names)} different"
    return isomers, total if len(names) == len(isomers) else total + different


def undrawn_double_bonds(mol: Chem.Mol) -> list[int]:
    """Return the double bonds of which it is not drawn whether they are E or Z."""
    places = undrawn_places(mol, Chem.StereoType.Bond_Double)
    return [place for place in places if _has_two_isomers(mol.GetBondWithIdx(place))]


def _has_two_isomers(bond: Chem.Bond) -> bool:
    """Return whether both isomers of a double bond can be isolated.

    Small rings have one, linear groups such as allenes and azides none, and a proton that moves to
    the nitrogen of C=N, as in amidines, lets it turn.
    """
    ends = _ends(bond)
    rings = bond.GetOwningMol().GetRingInfo()
    if rings.NumBondRings(bond.GetIdx()) and rings.MinBondRingSize(bond.GetIdx()) < SMALLEST_RING:
        return False
    for end, other in (ends, ends[::-1]):
        bonds = [each for each in end.GetBonds() if each.GetIdx() != bond.GetIdx()]
        if not bonds or any(each.GetBondTypeAsDouble() > 1.5 for each in bonds):
            return False
        if end.GetAtomicNum() == 7 and (end.GetTotalNumHs() or _has_amine(other)):
            return False
    return True


def _has_amine(atom: Chem.Atom) -> bool:
    """Return whether an atom has a neighbour N-H."""
    return any(each.GetAtomicNum() == 7 and each.GetTotalNumHs() for each in atom.GetNeighbors())


def with_bonds_drawn(mol: Chem.Mol, bonds: Sequence[int]) -> list[Chem.Mol]:
    """Return a molecule with each choice of E and Z at some of its double bonds."""
    isomers = []
    for choice in product(
        (Chem.BondStereo.STEREOCIS, Chem.BondStereo.STEREOTRANS), repeat=len(bonds)
    ):
        isomer = Chem.RWMol(mol)
        for index, stereo in zip(bonds, choice, strict=True):
            bond = isomer.GetBondWithIdx(index)
            first, last = _ends(bond)
            near, far = (
                next(
                    each.GetIdx() for each in end.GetNeighbors() if each.GetIdx() != other.GetIdx()
                )
                for end, other in ((first, last), (last, first))
            )
            bond.SetStereoAtoms(near, far)
            bond.SetStereo(stereo)
        if bonds:
            perceive(isomer)
        isomers.append(isomer.GetMol())
    return isomers


def _ends(bond: Chem.Bond) -> tuple[Chem.Atom, Chem.Atom]:
    return bond.GetBeginAtom(), bond.GetEndAtom()


def has_undrawn_centres(smiles: str) -> bool:
    """Return whether RDKit reads a SMILES as a molecule that stands for several isomers."""
    mol = quietly_read(smiles)
    if mol is None:
        return False
    undrawn = undrawn_centres(mol)
    is_certain = any(len(tags) == 1 for tags in undrawn.open)
    return is_certain or len(isomers_in_order(mol, mol, undrawn)[0]) > 1
