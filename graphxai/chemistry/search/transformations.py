"""Make the neighbours of a molecule by transformations of medicinal chemistry.

`transformations.csv` lists them, each with its source. A change keeps the configuration that it
leaves alone, and its new stereocentres and double bonds give isomers.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rdkit import Chem, rdBase
from rdkit.Chem import rdChemReactions

from graphxai.chemistry.matched_pairs import ShrunkenMean
from graphxai.chemistry.matching import unstable_groups
from graphxai.datasets.canonical_form import smiles_in_order, smiles_with_groups, with_groups_of
from graphxai.datasets.isomers import (
    HYDROGEN,
    TAGS,
    UndrawnCentres,
    is_odd_permutation,
    isomers_in_order,
    neighbours_of_tag,
    undrawn_centres,
    undrawn_double_bonds,
    with_bonds_drawn,
)
from graphxai.runtime.reading import packaged_rows
from graphxai.visualization.layout import atoms_of

# name, reaction SMARTS, source
TRANSFORMATIONS = tuple(
    (row["name"], row["smarts"], row["source"])
    for row in packaged_rows("graphxai.chemistry", "transformations.csv")
)
_ORGANIC = {5, 6, 7, 8, 9, 15, 16, 17, 35, 53}  # elements whose hydrogens SMILES leaves out


@dataclass(frozen=True)
class Change:
    """A molecule that is one change away from another.

    Args:
        smiles: canonical SMILES.
        atoms: atoms of the first molecule that are gone, or that have other neighbours, hydrogens
            or charge.
        origin: for each atom, in the order of `smiles`, its index in the first molecule, or -1 for
            a new atom; empty if this is unknown.
        isomers: if the change makes stereocentres, or double bonds that are E or Z, the SMILES of
            all their isomers, which `smiles` leaves open.
    """

    smiles: str
    name: str
    source: str
    atoms: frozenset[int]
    origin: tuple[int, ...] = ()
    isomers: tuple[str, ...] = ()
    expected: Mapping[str, ShrunkenMean] = field(default_factory=dict, hash=False)


def transformed(mol: Chem.Mol, keep: Collection[int] = ()) -> Iterator[Change]:
    """Yield all molecules that one transformation makes of `mol`, each once.

    Products that RDKit cannot sanitise or that fall apart are left out.

    Args:
        keep: atoms that stay as they are. Their hydrogens, and groups attached to them that leave
            as a whole, may be replaced.
    """
    products = NewMolecules(mol, keep)
    open_mol = Chem.Mol(mol)  # bracket atoms lose and gain hydrogens as others do, but for N-H
    for atom in open_mol.GetAtoms():
        if atom.GetAtomicNum() in _ORGANIC and not (atom.GetIsAromatic() and atom.GetTotalNumHs()):
            atom.SetNoImplicit(False)
            atom.SetNumExplicitHs(0)
    open_mol.UpdatePropertyCache()
    with rdBase.BlockLogs():
        for name, smarts, source in TRANSFORMATIONS:
            reaction = _reaction(smarts)
            if mol.HasSubstructMatch(reaction.GetReactantTemplate(0)):
                for (product,) in reaction.RunReactants((open_mol,)):
                    yield from products.of(product, name, source, "react_atom_idx")


class NewMolecules:
    """Tells what a product changed in a molecule, and passes on every new molecule once.

    Products with too many new stereocentres and double bonds to list their isomers are left out,
    and those with a new unstable group.
    """

    def __init__(self, mol: Chem.Mol, keep: Collection[int] = ()) -> None:
        self.mol = mol
        self.keep = frozenset(keep)
        self.undrawn = {index for tags in undrawn_centres(mol).open for index in tags}
        self.undrawn_bonds = {_ends_of(mol, bond) for bond in undrawn_double_bonds(mol)}
        self.unstable = unstable_groups(mol)
        self.states = [_state(atom) for atom in mol.GetAtoms()]
        self.near = [frozenset(a.GetIdx() for a in atom.GetNeighbors()) for atom in mol.GetAtoms()]
        self.seen = {Chem.MolToSmiles(mol)}

    def of(self, product: Chem.Mol, name: str, source: str, origin: str) -> Iterator[Change]:
        """Yield the change that made a product, if it is valid, new, and leaves `keep` alone.

        Args:
            origin: the property of the product's atoms that holds their index before the change.
        """
        came_from = {
            atom.GetIdx(): atom.GetIntProp(origin)
            for atom in atoms_of(product)
            if atom.HasProp(origin)
        }
        written = _sanitised(product, self.mol, came_from)
        if written is None or written[0] in self.seen:
            return
        smiles, order = written
        gone = set(range(len(self.states))) - set(came_from.values())
        atoms, touched = set(gone), gone & self.keep
        for index, old in came_from.items():
            atom = product.GetAtomWithIdx(index)
            near = frozenset(came_from.get(other.GetIdx(), -1) for other in atom.GetNeighbors())
            state = _state(atom)
            if near != self.near[old] or state != self.states[old]:
                atoms.add(old)
            lost = self.near[old] - gone - near
            if old in self.keep and (state[1:] != self.states[old][1:] or lost):
                touched.add(old)
        origins = tuple(came_from.get(index, -1) for index in order)
        isomers: tuple[str, ...] | None = ()
        if origins and not touched:
            after = Chem.MolFromSmiles(smiles)
            undrawn = undrawn_centres(after).open
            new = [tags for tags in undrawn if self.undrawn.isdisjoint(origins[i] for i in tags)]
            bonds = [
                bond
                for bond in undrawn_double_bonds(after)
                if frozenset(origins[k] for k in _ends_of(after, bond)) not in self.undrawn_bonds
            ]
            if 2 ** (len(new) + len(bonds)) > MOST_ISOMERS:
                isomers = None
            elif new or bonds:
                of_centres = isomers_in_order(after, after, UndrawnCentres(new, {}))[0] or [after]
                mols = [each for mol in of_centres for each in with_bonds_drawn(mol, bonds)]
                grouped = [with_groups_of(self.mol, isomer, origins) for isomer in mols]
                names = tuple(dict.fromkeys(map(smiles_with_groups, grouped)))
                isomers = names if len(names) > 1 else ()
            if (drawn := with_groups_of(self.mol, after, origins)) is not after:
                smiles, order = smiles_in_order(drawn)
                origins = tuple(origins[k] for k in order)
        if unstable_groups(product) - self.unstable:
            return
        if not touched and isomers is not None:
            self.seen.add(written[0])
            yield Change(smiles, name, source, frozenset(atoms), origins, isomers)


def _ends_of(mol: Chem.Mol, index: int) -> frozenset[int]:
    """Return the two atoms of a bond."""
    bond = mol.GetBondWithIdx(index)
    return frozenset((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()))


@cache
def _reaction(smarts: str) -> Any:
    reaction = rdChemReactions.ReactionFromSmarts(smarts)
    reaction.Initialize()
    return reaction


def _sanitised(
    product: Chem.Mol, before: Chem.Mol, came_from: Mapping[int, int]
) -> tuple[str, list[int]] | None:
    """Return the canonical SMILES of a product in one piece, and its atoms in that order.

    The result is None if the product is not a valid molecule. The order is empty if hydrogens that
    were atoms are implicit in the SMILES.
    """
    try:
        Chem.SanitizeMol(product)
    except (Chem.MolSanitizeException, ValueError):
        return None
    if any(atom.GetNumRadicalElectrons() for atom in atoms_of(product)):
        return None
    product = keep_configuration(product, before, came_from)
    smiles = Chem.MolToSmiles(product)
    if "." in smiles or (parsed := Chem.MolFromSmiles(smiles)) is None:
        return None
    order = _written_order(product)
    again, new_order = str(Chem.MolToSmiles(parsed)), _written_order(parsed)
    return again, [order[index] for index in new_order] if len(new_order) == len(order) else []


def _written_order(mol: Chem.Mol) -> list[int]:
    """Return the atoms in the order in which the molecule's SMILES was last written."""
    return list(mol.GetPropsAsDict(True, True)["_smilesAtomOutputOrder"])


def _state(atom: Chem.Atom) -> tuple[Any, ...]:
    """Return the properties of an atom that a change may alter, the number of hydrogens first."""
    return (
        atom.GetTotalNumHs(),
        atom.GetAtomicNum(),
        atom.GetFormalCharge(),
        atom.GetIsAromatic(),
        atom.GetHybridization(),
    )


MOST_ISOMERS = 8  # of one product; nobody makes one with four new stereocentres as a next step


def keep_configuration(product: Chem.Mol, before: Chem.Mol, origin: Mapping[int, int]) -> Chem.Mol:
    """Return the product with every configuration of the molecule before that it still has.

    A stereocentre keeps it if its neighbours are the same, or if one of them was replaced: the new
    neighbour, or hydrogen, is where the old one was. RDKit turns a centre round whose hydrogen is
    replaced. It keeps double bonds whose neighbours are the same, and loses those of which one was
    replaced.

    Args:
        product: sanitised.
        before: the molecule before, with its configuration assigned.
        origin: for atoms of the product, the atom that each was before.
    """
    product = Chem.RWMol(product)
    for new, old in origin.items():
        if before.GetAtomWithIdx(old).GetChiralTag() in TAGS:
            tag = _tag(product, new, before, old, origin)
            if tag is not None:
                product.GetAtomWithIdx(new).SetChiralTag(tag)
    _keep_double_bonds(product, before, origin)
    Chem.AssignStereochemistry(product, cleanIt=True, force=True)
    return product.GetMol()


def _keep_double_bonds(product: Chem.RWMol, before: Chem.Mol, origin: Mapping[int, int]) -> None:
    """Give double bonds that have lost their configuration that of the molecule before."""
    places, undrawn = {old: new for new, old in origin.items()}, Chem.BondStereo.STEREOANY
    for bond in before.GetBonds():
        ends = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        if bond.GetStereo() <= undrawn or not places.keys() >= {*ends}:
            continue
        after = product.GetBondBetweenAtoms(*(places[end] for end in ends))
        if after is None or after.GetBondType() != bond.GetBondType():
            continue
        if after.GetStereo() > undrawn:  # RDKit has kept it
            continue
        first, second = (
            _in_place_of(
                near, before.GetAtomWithIdx(end), product.GetAtomWithIdx(places[end]), origin
            )
            for end, near in zip(ends, bond.GetStereoAtoms(), strict=True)
        )
        if first is not None and second is not None:
            after.SetStereoAtoms(first, second)
            is_cis = bond.GetStereo() in (Chem.BondStereo.STEREOZ, Chem.BondStereo.STEREOCIS)
            after.SetStereo(Chem.BondStereo.STEREOCIS if is_cis else Chem.BondStereo.STEREOTRANS)
    Chem.SetDoubleBondNeighborDirections(product)


def _in_place_of(
    neighbour: int, old: Chem.Atom, new: Chem.Atom, origin: Mapping[int, int]
) -> int | None:
    """Return what is, or alone replaces, a neighbour of an atom; None if it cannot be told.

    Args:
        neighbour: the neighbour of the atom before.
        old, new: the atom before, and in the product.
    """
    was = {each.GetIdx() for each in old.GetNeighbors()}
    now = {each.GetIdx(): origin.get(each.GetIdx(), -1) for each in new.GetNeighbors()}
    stays = [index for index, index_before in now.items() if index_before == neighbour]
    came = [index for index, index_before in now.items() if index_before not in was]
    return (stays or came)[0] if stays or len(came) == 1 else None


def _tag(
    product: Chem.Mol, new: int, before: Chem.Mol, old: int, origin: Mapping[int, int]
) -> Chem.ChiralType | None:
    """Return the tag with which an atom keeps its configuration; None if it cannot be told."""
    was = neighbours_of_tag(before, old)
    now = [origin.get(i, -1) if i != HYDROGEN else i for i in neighbours_of_tag(product, new)]
    gone = [i for i in was if i not in now]
    came = [k for k, i in enumerate(now) if i not in was]
    if len(was) != len(now) or len(set(was)) != len(was) or len(gone) > 1 or len(came) != len(gone):
        return None
    for k in came:
        now[k] = gone[0]
    tag = before.GetAtomWithIdx(old).GetChiralTag()
    return TAGS[1 - TAGS.index(tag)] if is_odd_permutation(now, was) else tag
