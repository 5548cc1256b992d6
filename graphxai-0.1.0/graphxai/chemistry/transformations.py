"""Make the neighbours of a molecule by transformations of medicinal chemistry."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from rdkit import Chem, rdBase
from rdkit.Chem import rdChemReactions

from .stereo import isomers_of_new_centres, keep_configuration, undrawn_centres
from .transformation_table import TRANSFORMATIONS

_ORGANIC = {5, 6, 7, 8, 9, 15, 16, 17, 35, 53}  # elements whose hydrogens SMILES leaves out


@dataclass(frozen=True)
class Change:
    """A molecule that is one change away from another.

    Args:
        smiles: canonical SMILES.
        name: the change in words.
        source: where the change comes from.
        atoms: atoms of the first molecule that are gone, or that have other neighbours, hydrogens
            or charge.
        origin: for each atom, in the order of `smiles`, its index in the first molecule, or -1 for
            a new atom; empty if this is unknown.
        isomers: if the change makes stereocentres, the SMILES of all their isomers, which `smiles`
            leaves open.
    """

    smiles: str
    name: str
    source: str
    atoms: frozenset[int]
    origin: tuple[int, ...] = ()
    isomers: tuple[str, ...] = ()


def transformed(mol: Chem.Mol, keep: Collection[int] = ()) -> Iterator[Change]:
    """Yield all molecules that one transformation makes of `mol`, each once.

    Products that RDKit cannot sanitise or that fall apart are left out.

    Args:
        mol: the molecule to change.
        keep: atoms that stay as they are. Their hydrogens, and groups attached to them that leave
            as a whole, may be replaced.
    """
    products = NewMolecules(mol, keep)
    open_mol = _with_free_valences(mol)
    with rdBase.BlockLogs():
        for name, smarts, source in TRANSFORMATIONS:
            reaction = _reaction(smarts)
            if mol.HasSubstructMatch(reaction.GetReactantTemplate(0)):
                for (product,) in reaction.RunReactants((open_mol,)):
                    yield from products.of(product, name, source, "react_atom_idx")


class NewMolecules:
    """Tells what a product changed in a molecule, and passes on every new molecule once.

    Products with too many new stereocentres to list their isomers are left out.
    """

    def __init__(self, mol: Chem.Mol, keep: Collection[int] = ()) -> None:
        self.mol = mol
        self.keep = frozenset(keep)
        self.undrawn = frozenset(undrawn_centres(mol))
        self.states = [_state(atom) for atom in mol.GetAtoms()]
        self.near = [frozenset(a.GetIdx() for a in atom.GetNeighbors()) for atom in mol.GetAtoms()]
        self.seen = {Chem.MolToSmiles(mol)}

    def of(self, product: Chem.Mol, name: str, source: str, origin: str) -> Iterator[Change]:
        """Yield the change that made a product, if it is valid, new, and leaves `keep` alone.

        Args:
            product: the molecule that came out.
            name: the change in words.
            source: where the change comes from.
            origin: the property of the product's atoms that holds their index before the change.
        """
        came_from = {
            atom.GetIdx(): atom.GetIntProp(origin)
            for atom in _atoms(product)
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
            isomers = isomers_of_new_centres(after, origins, self.undrawn)
        if not touched and isomers is not None:
            self.seen.add(smiles)
            yield Change(smiles, name, source, frozenset(atoms), origins, isomers)


@cache
def _reaction(smarts: str) -> Any:
    reaction = rdChemReactions.ReactionFromSmarts(smarts)
    reaction.Initialize()
    return reaction


def _with_free_valences(mol: Chem.Mol) -> Chem.Mol:
    """Return a copy whose bracket atoms lose and gain hydrogens as other atoms do.

    Aromatic N-H stays.
    """
    mol = Chem.Mol(mol)
    for atom in mol.GetAtoms():
        if atom.GetAtomicNum() in _ORGANIC and not (atom.GetIsAromatic() and atom.GetTotalNumHs()):
            atom.SetNoImplicit(False)
            atom.SetNumExplicitHs(0)
    mol.UpdatePropertyCache()
    return mol


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
    if any(atom.GetNumRadicalElectrons() for atom in _atoms(product)):
        return None
    product = keep_configuration(product, before, came_from)
    smiles = Chem.MolToSmiles(product)
    if "." in smiles or (parsed := Chem.MolFromSmiles(smiles)) is None:
        return None
    order = _written_order(product)
    again, new_order = str(Chem.MolToSmiles(parsed)), _written_order(parsed)
    return again, [order[index] for index in new_order] if len(new_order) == len(order) else []


def _atoms(mol: Chem.Mol) -> list[Chem.Atom]:
    """Return the atoms, several times faster than RDKit's iterator."""
    return [mol.GetAtomWithIdx(index) for index in range(mol.GetNumAtoms())]


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
