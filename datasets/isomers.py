"""The isomers that a molecule stands for, at centres that are not drawn or form groups & and o.

RDKit takes each bridgehead of adamantane or quinuclidine for a centre of its own. But the bridges
of a small bicycle leave one choice for both: what is not a bridge points outwards at either end,
so that one bridgehead is the mirror image of the other. An isomer in which one points inwards is
known from bicyclo[4.4.1]undecane on (ingenol; Alder and East 1996), which has 9 atoms in bridges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product

from rdkit import Chem, rdBase

from .canonical_form import (
    MOST_GROUPS,
    choices,
    chosen_isomer,
    one_perception,
    order_in_smiles,
    perceive,
    relative_groups,
    with_groups_of,
)

TAGS = (Chem.ChiralType.CHI_TETRAHEDRAL_CW, Chem.ChiralType.CHI_TETRAHEDRAL_CCW)
HYDROGEN = -2  # in a list of neighbours; -1 is an atom that was not there before
MOST_BRIDGED = 7  # atoms in the three bridges of a bicycle, as in bicyclo[3.3.1]nonane
MOST_FUSED = 4  # atoms in its two bridges if a bond is the third, as in bicyclo[3.1.0]hexane


def undrawn_centres(mol: Chem.Mol) -> list[dict[int, Chem.ChiralType]]:
    """Return the tetrahedral centres without a drawn configuration, with tags that can be theirs.

    Centres of which one fixes the others are together. Those that a drawn centre fixes are not
    open, and left out.
    """
    undrawn = [
        place.centeredOn
        for place in Chem.FindPotentialStereo(mol)
        if place.type == Chem.StereoType.Atom_Tetrahedral
        and place.specified == Chem.StereoSpecified.Unspecified
    ]
    same_tag = _bridgeheads(mol, undrawn)
    groups: list[dict[int, Chem.ChiralType]] = []
    seen: set[int] = set()
    for centre in undrawn:
        if centre in seen:
            continue
        tags, waiting = {centre: TAGS[0]}, [centre]
        while waiting:
            at = waiting.pop()
            for pair, is_same in same_tag.items():
                other = sum(pair) - at
                if at in pair and other not in tags:
                    tags[other] = tags[at] if is_same else TAGS[1 - TAGS.index(tags[at])]
                    waiting.append(other)
        seen |= tags.keys()
        if tags.keys() <= set(undrawn):
            groups.append(tags)
    return groups


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

    Each bridge is the list of its atoms as seen from either end: the neighbour of `start` is the
    first and that of `end` the last. A bond is a bridge [end, start].
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
    form: Chem.Mol, given: Chem.Mol, undrawn: Sequence[dict[int, Chem.ChiralType]]
) -> tuple[list[Chem.Mol], str]:
    """Return the isomers that a molecule stands for, and how many, as text; [] for a single one.

    Each has its atoms and bonds in the order of the form. Every choice of configurations counts
    alike, so a meso form comes twice. Of more than `MOST_GROUPS` groups and centres, these are a
    sample.

    Args:
        form: the canonical form of a molecule.
        given: the same atoms, whose groups & and o stand for several isomers.
        undrawn: centres without a drawn configuration that do so, too, see `undrawn_centres`.
    """
    if not undrawn and not given.GetStereoGroups():
        return [], ""
    bare = Chem.RWMol(with_groups_of(given, form, range(form.GetNumAtoms())))
    groups = [atoms for _, atoms in relative_groups(bare)]
    bare.SetStereoGroups([])
    for tags in undrawn:
        if list(tags) not in groups:
            groups.append(list(tags))
            for index, tag in tags.items():
                bare.GetAtomWithIdx(index).SetChiralTag(tag)
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


def undrawn_double_bonds(mol: Chem.Mol) -> list[int]:
    """Return the double bonds of which it is not drawn whether they are E or Z.

    A nitrogen with a hydrogen, as in amidines, keeps no configuration, so that its bond is none.
    """
    return [
        place.centeredOn
        for place in Chem.FindPotentialStereo(mol)
        if place.type == Chem.StereoType.Bond_Double
        and place.specified == Chem.StereoSpecified.Unspecified
        and all(len(end.GetNeighbors()) > 1 for end in _ends(mol.GetBondWithIdx(place.centeredOn)))
    ]


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
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(smiles)
    undrawn = undrawn_centres(mol) if mol is not None else []
    is_certain = any(len(tags) == 1 for tags in undrawn)
    return is_certain or bool(isomers_in_order(mol, mol, undrawn)[0])
