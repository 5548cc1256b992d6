"""Describe a molecule for the page to draw, with coordinates, labels and bonds as JSON values."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem
from rdkit.Chem import Atom, BondDir, BondStereo, BondType, Mol

from graphxai.datasets.canonical_form import quietly_read
from graphxai.visualization.layout import atoms_of, bond_length, bonded, bonds_of, laid_out

UNIT = 100  # coordinates are in hundredths of a bond length

# The sides on which hydrogens can be written, with their angles. The first free side is taken.
_SIDES = (("E", 0.0), ("W", np.pi), ("N", np.pi / 2), ("S", -np.pi / 2))
_FREE = np.pi / 3  # a side is free if no bond is closer than this


def drawing(mol: Mol) -> dict[str, Any]:
    """Return the drawing of a molecule, with atoms and bonds in the molecule's order.

    The result has these keys:

    * `x`, `y`: the coordinates in hundredths of a bond length from the upper left corner, with y
      downwards.
    * `e`: the symbols of all atoms.
    * `a`: the labels of the atoms that have one, as `{index: [symbol, hydrogens, charge, isotope,
      radicals, side]}`.
    * `b`: the bonds, as `[begin, end, kind, side]`. The kind is 1, 2, 3, "a" (aromatic), "w"
      (wedge), "h" (hashed wedge), "u" (undefined), "d" (dative) or "0" (zero order). The side says
      where the second line of a double bond lies, seen from begin to end: 1 is left, -1 is right,
      and 0 is both.
    * `g`: the stereocentres in a group, as `{index: "and1"}`, if there are any.

    `mol` is the molecule. Its 2D coordinates are kept, if it has any.
    """
    copy = _ready(mol)
    points = np.asarray(copy.GetConformer().GetPositions())[:, :2].reshape(-1, 2)
    # in bond lengths, with y downwards
    points = points * (1, -1) / (bond_length(bonded(copy), points) or 1.5)
    labels = {str(a.GetIdx()): label for a in atoms_of(copy) if (label := _label(a, points))}
    corner = points.min(axis=0) if len(points) else 0
    placed = np.rint((points - corner) * UNIT).astype(int)
    return {
        "x": placed[:, 0].tolist(),
        "y": placed[:, 1].tolist(),
        "e": [atom.GetSymbol() for atom in atoms_of(copy)],
        "a": labels,
        "b": _bonds(copy, points),
        **({"g": groups} if (groups := _groups(copy)) else {}),
    }


def drawing_of(smiles: str) -> dict[str, Any] | None:
    """Return the drawing of a SMILES, or None if RDKit cannot read it."""
    mol = quietly_read(smiles)
    return None if mol is None else drawing(mol)


def _groups(mol: Mol) -> dict[str, str]:
    """Return the group of each stereocentre that is in one, such as "and1" of a racemate."""
    groups: dict[str, str] = {}
    for kind in ("and", "or"):
        alike = [
            g for g in mol.GetStereoGroups() if g.GetGroupType().name == f"STEREO_{kind.upper()}"
        ]
        for number, group in enumerate(alike, start=1):
            groups |= {str(atom.GetIdx()): f"{kind}{number}" for atom in group.GetAtoms()}
    return groups


def _ready(mol: Mol) -> Mol:
    """Return a copy with 2D coordinates, alternating double bonds and wedges."""
    copy = laid_out(mol, keep=True)
    Chem.GetSymmSSSR(copy)
    try:
        Chem.Kekulize(copy, clearAromaticFlags=True)
    except ValueError:  # an odd aromatic ring stays dashed
        copy = laid_out(mol, keep=True)
        Chem.GetSymmSSSR(copy)
    Chem.WedgeMolBonds(copy, copy.GetConformer())
    return copy


def _label(atom: Atom, points: NDArray[np.float64]) -> list[Any] | None:
    """Return the label of an atom, or None for a carbon of the skeleton."""
    hydrogens = atom.GetTotalNumHs()
    charge, isotope = atom.GetFormalCharge(), atom.GetIsotope()
    radicals = atom.GetNumRadicalElectrons()
    bare = atom.GetSymbol() == "C" and atom.GetDegree() > 0
    if bare and not (charge or isotope or radicals):
        straight = atom.GetDegree() == 2 and hydrogens == 0 and _is_straight(atom, points)
        if not straight:
            return None
    side = _free_side(atom, points) if hydrogens else "E"
    symbol = atom.GetSymbol()
    if symbol == "*" and atom.GetAtomMapNum():  # the place of an R-group in a core
        symbol = f"R{atom.GetAtomMapNum()}"
    if symbol == "H" and isotope in (2, 3):
        symbol, isotope = {2: "D", 3: "T"}[isotope], 0
    return [symbol, hydrogens, charge, isotope, radicals, side]


def _is_straight(atom: Atom, points: NDArray[np.float64]) -> bool:
    """Return whether a carbon sits between two collinear double bonds, as in an allene.

    Without a label it would be invisible.
    """
    if any(bond.GetBondTypeAsDouble() != 2 for bond in atom.GetBonds()):
        return False
    left, right = (points[other.GetIdx()] - points[atom.GetIdx()] for other in atom.GetNeighbors())
    return bool(left @ right < -0.95 * np.linalg.norm(left) * np.linalg.norm(right))


def _free_side(atom: Atom, points: NDArray[np.float64]) -> str:
    """Return the first free side, or else the side that is farthest from every bond."""
    neighbours = [other.GetIdx() for other in atom.GetNeighbors()]
    if not neighbours:
        return "E"
    along = points[neighbours] - points[atom.GetIdx()]  # (neighbours, 2)
    angles = np.arctan2(-along[:, 1], along[:, 0])
    gaps = {}
    for side, angle in _SIDES:
        turn = np.abs(np.angle(np.exp(1j * (angles - angle))))
        gaps[side] = float(turn.min())
        if gaps[side] > _FREE:
            return side
    return max(gaps, key=gaps.__getitem__)


def _bonds(mol: Mol, points: NDArray[np.float64]) -> list[list[Any]]:
    kinds: dict[Any, Any] = {
        BondType.SINGLE: 1,
        BondType.DOUBLE: 2,
        BondType.TRIPLE: 3,
        BondType.AROMATIC: "a",
        BondType.DATIVE: "d",
        BondType.ZERO: "0",
    }
    wedges = {BondDir.BEGINWEDGE: "w", BondDir.BEGINDASH: "h", BondDir.UNKNOWN: "u"}
    rings = [tuple(ring) for ring in mol.GetRingInfo().AtomRings()]
    open_centres = {
        atoms[0].GetIdx()
        for group in mol.GetStereoGroups()
        if len(atoms := group.GetAtoms()) == 1 and group.GetGroupType().name != "STEREO_ABSOLUTE"
    }
    bonds = []
    for bond in bonds_of(mol):
        i, j = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        kind = kinds.get(bond.GetBondType(), 1)
        if kind == 1:
            kind = wedges.get(bond.GetBondDir(), 1)
            kind = "u" if kind != 1 and i in open_centres else kind
        either = bond.GetStereo() == BondStereo.STEREOANY
        side = _inner_side(bond, rings, points) if kind in (2, "a") and not either else 0
        bonds.append([i, j, kind, side])
    return bonds


def _inner_side(bond: Any, rings: list[tuple[int, ...]], points: NDArray[np.float64]) -> int:
    """Return the side for the second line of a double bond, which faces its ring or neighbours."""
    i, j = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
    of_bond = [ring for ring in rings if i in ring and j in ring]
    if of_bond:
        aromatic = min(of_bond, key=lambda ring: (abs(len(ring) - 6), len(ring)))
        others = [index for index in aromatic if index not in (i, j)]
    else:
        ends = (bond.GetBeginAtom(), bond.GetEndAtom())
        if min(end.GetDegree() for end in ends) == 1 and max(e.GetDegree() for e in ends) != 2:
            return 0  # C=O, and a =CH2 between two bonds
        others = [
            o.GetIdx() for end in ends for o in end.GetNeighbors() if o.GetIdx() not in (i, j)
        ]
    if not others:
        return 0
    along = points[j] - points[i]
    across = points[others] - points[i]  # (others, 2)
    # As y points down, a positive cross product means right, seen from begin to end.
    turn = float(np.sign(along[0] * across[:, 1] - along[1] * across[:, 0]).sum())
    return -int(np.sign(turn))
