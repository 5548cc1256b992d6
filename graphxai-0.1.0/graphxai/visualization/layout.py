"""Find 2D coordinates for the atoms of a molecule, with few overlaps."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rdkit.Chem import Atom, Bond, Mol

MAX_RING = 28  # atoms; CoordGen takes .1 s for a ring of 30, 3 s for 34, minutes for 37
MAX_UNTANGLED = 200  # atoms; CoordGen takes seconds for larger molecules
_CLOSE = 0.65  # below this part of a bond length, unbonded atoms look like one


def laid_out(mol: Mol, *, keep: bool = False) -> Mol:
    """Return a copy of `mol` with 2D coordinates, and with atoms and bonds in the same order.

    The layout depends only on the molecule, not on preferences set elsewhere in the process.

    Args:
        mol: any molecule, sanitised or not.
        keep: whether to use the 2D coordinates that the molecule has, if there are any.
    """
    from rdkit import Chem
    from rdkit.Chem import rdCoordGen, rdDepictor

    copy = Chem.Mol(mol)
    copy.UpdatePropertyCache(strict=False)
    Chem.FastFindRings(copy)
    if not copy.GetNumAtoms():
        return copy
    for atom in atoms_of(copy):
        if not atom.GetDegree():  # with a tag such as @SP3, RDKit would end the process
            atom.SetChiralTag(Chem.ChiralType.CHI_UNSPECIFIED)
    if keep and copy.GetNumConformers() and not copy.GetConformer().Is3D():
        return copy
    rdDepictor.Compute2DCoords(
        copy, canonOrient=True, clearConfs=True, useRingTemplates=True, forceRDKit=True
    )
    crowding = 0 if layout_note(copy) else flaws(copy)
    if crowding:
        # CoordGen takes ten times as long but untangles macrocycles and crowded chains.
        untangled = Chem.Mol(copy)
        rdCoordGen.AddCoords(untangled)
        if flaws(untangled) < crowding:
            copy = untangled
    rdDepictor.NormalizeDepiction(copy)
    rdDepictor.StraightenDepiction(copy)
    return copy


def layout_note(mol: Mol) -> str:
    """Say why a molecule is drawn with RDKit's own layout alone; empty if it need not be.

    CoordGen untangles a layout better, but it cannot be stopped, and for a large ring it may never
    end.
    """
    if mol.GetNumAtoms() > MAX_UNTANGLED:
        return f"drawn with a plain layout, as it has more than {MAX_UNTANGLED} atoms"
    largest = max(map(len, mol.GetRingInfo().AtomRings()), default=0)
    if largest > MAX_RING:
        return f"drawn with a plain layout, because of a ring of {largest} atoms"
    return ""


def atoms_of(mol: Mol) -> Iterator[Atom]:
    """Return the atoms in order, several times faster than RDKit's iterator."""
    return map(mol.GetAtomWithIdx, range(mol.GetNumAtoms()))


def bonds_of(mol: Mol) -> Iterator[Bond]:
    """Return the bonds in order, several times faster than RDKit's iterator."""
    return map(mol.GetBondWithIdx, range(mol.GetNumBonds()))


def bonded(mol: Mol) -> NDArray[np.int_]:
    """Return the two atoms of every bond (B, 2)."""
    pairs = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds_of(mol)]
    return np.array(pairs, dtype=int).reshape(-1, 2)


def bond_length(ends: NDArray[np.int_], points: NDArray[np.float64]) -> float | None:
    """Return the median length of bonds `ends` (B, 2) between `points` (N, 2), None if B = 0."""
    if not len(ends):
        return None
    along = points[ends[:, 0]] - points[ends[:, 1]]
    return median(np.hypot(*along.T).tolist()) or None


def flaws(mol: Mol) -> int:
    """Count the unbonded atoms that nearly coincide and the bonds that cross."""
    points = np.asarray(mol.GetConformer().GetPositions())[:, :2]
    ends = bonded(mol)
    length = bond_length(ends, points)
    if length is None:
        return 0
    x, y = points.T
    apart = np.hypot(x[:, None] - x, y[:, None] - y)  # (N, N)
    apart[ends[:, 0], ends[:, 1]] = apart[ends[:, 1], ends[:, 0]] = np.inf
    close = (apart < _CLOSE * length).sum() - len(points)  # pairs count twice, each atom once

    (x1, x2), (y1, y2) = x[ends.T], y[ends.T]  # each (B,)
    # The sign of (B, N) says on which side of bond b atom i lies. It is 0 on the bond's line.
    side = np.outer(x2 - x1, y) - np.outer(y2 - y1, x) - ((x2 - x1) * y1 - (y2 - y1) * x1)[:, None]
    side[np.abs(side) < 1e-9] = 0.0  # bonds that share an atom do not cross
    between = side[:, ends[:, 0]] * side[:, ends[:, 1]] < 0  # (B, B)
    # Bond a crosses b if the ends of b lie on opposite sides of a, and vice versa.
    return int(close + (between & between.T).sum()) // 2
