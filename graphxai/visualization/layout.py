"""Where the atoms of a molecule are drawn: 2D coordinates with few overlaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rdkit.Chem import Mol

_CLOSE = 0.65  # of a bond length: unbonded atoms closer than this look like one


def laid_out(mol: Mol, *, keep: bool = False) -> Mol:
    """Return a copy of ``mol`` with 2D coordinates, with atoms and bonds in the same order.

    The layout depends only on the molecule, not on preferences set elsewhere in the process.

    Args:
        mol: any molecule, sanitised or not.
        keep: use existing 2D coordinates, if there are any.
    """
    from rdkit import Chem
    from rdkit.Chem import rdCoordGen, rdDepictor

    copy = Chem.Mol(mol)
    copy.UpdatePropertyCache(strict=False)
    Chem.FastFindRings(copy)
    if not copy.GetNumAtoms():
        return copy
    if keep and copy.GetNumConformers() and not copy.GetConformer().Is3D():
        return copy
    rdDepictor.Compute2DCoords(
        copy, canonOrient=True, clearConfs=True, useRingTemplates=True, forceRDKit=True
    )
    found = flaws(copy)
    if found:
        # CoordGen takes ten times as long but untangles macrocycles and crowded chains.
        other = Chem.Mol(copy)
        rdCoordGen.AddCoords(other)
        if flaws(other) < found:
            copy = other
    rdDepictor.NormalizeDepiction(copy)
    rdDepictor.StraightenDepiction(copy)
    return copy


def bond_length(mol: Mol, points: NDArray[np.float64]) -> float | None:
    """Return the median length of the bonds between ``points`` (N, 2); None without bonds."""
    ends = _ends(mol)
    if not len(ends):
        return None
    lengths = np.linalg.norm(points[ends[:, 0]] - points[ends[:, 1]], axis=1)
    return float(np.median(lengths)) or None


def _ends(mol: Mol) -> NDArray[np.int_]:
    pairs = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in mol.GetBonds()]
    return np.array(pairs, dtype=int).reshape(-1, 2)


def flaws(mol: Mol) -> int:
    """Return how many unbonded atoms nearly coincide and how many bonds cross."""
    points = np.asarray(mol.GetConformer().GetPositions())[:, :2]
    ends = _ends(mol)
    length = bond_length(mol, points)
    if length is None:
        return 0
    distance = np.linalg.norm(points[:, None] - points, axis=-1) / length  # (N, N)
    distance[ends[:, 0], ends[:, 1]] = distance[ends[:, 1], ends[:, 0]] = np.inf
    close = np.triu(distance < _CLOSE, k=1).sum()

    start, end = points[ends[:, 0]], points[ends[:, 1]]  # (B, 2)
    sides = _side(start[:, None], end[:, None], start) * _side(start[:, None], end[:, None], end)
    # Bond a crosses b if the ends of b lie on opposite sides of a, and vice versa.
    crossing = np.triu((sides < 0) & (sides.T < 0), k=1).sum()
    return int(close + crossing)


def _side(
    start: NDArray[np.float64], end: NDArray[np.float64], point: NDArray[np.float64]
) -> NDArray[np.float64]:
    along, to = end - start, point - start
    cross = along[..., 0] * to[..., 1] - along[..., 1] * to[..., 0]
    return np.where(np.abs(cross) < 1e-9, 0.0, cross)  # bonds that share an atom do not cross
