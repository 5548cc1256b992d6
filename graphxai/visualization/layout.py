"""Find 2D coordinates for the atoms of a molecule, with few overlaps, and atoms drawn by chance.

Some atoms differ only by the resonance form in which a molecule happens to be drawn. A nitro group
is drawn with one N=O and one N-O(-), yet its oxygens are the same. If a permutation of the atoms
keeps elements, hydrogens and connections, applying it to the drawn form gives another form of the
same molecule. Once charges and bond orders are wiped out, such atoms have the same symmetry class.
So RDKit's classes of that skeleton find them. It is not necessary to enumerate the forms, which may
be exponentially many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache, lru_cache
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from rdkit.Chem import Atom, Bond, Mol, QueryAtom

FloatArray = NDArray[np.float64]
MAX_RING = 28  # atoms; CoordGen takes .1 s for a ring of 30, 3 s for 34, minutes for 37
MAX_UNTANGLED = 200  # atoms; CoordGen takes seconds for larger molecules
_BOND = 1.5  # the length of a bond in RDKit's layouts, in Angstrom
_ALIKE = 0.1  # bonds that differ by less than this part are not scaled
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
    if keep and has_layout(copy):
        return _scaled(copy)
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
    if copy.GetNumHeavyAtoms():  # RDKit normalises by them, and hydrogen would get no places
        rdDepictor.NormalizeDepiction(copy)
        rdDepictor.StraightenDepiction(copy)
    return copy


def has_layout(mol: Mol) -> bool:
    """Return whether a molecule has 2D coordinates that can be drawn: flat, and not all alike."""
    if not mol.GetNumConformers():
        return False
    points = np.asarray(mol.GetConformer().GetPositions())
    is_flat = np.isfinite(points).all() and not points[:, 2].any()
    return bool(is_flat) and (len(points) < 2 or bool(bond_length(bonded(mol), points[:, :2])))


def _scaled(mol: Mol) -> Mol:
    """Bring 2D coordinates to the bond length of RDKit."""
    conformer = mol.GetConformer()
    points = np.asarray(conformer.GetPositions())
    length = bond_length(bonded(mol), points[:, :2]) or _BOND
    conformer.Set3D(False)
    if abs(length / _BOND - 1) > _ALIKE:
        conformer.SetPositions(points * _BOND / length)
    return mol


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


def bond_length(ends: NDArray[np.int_], points: FloatArray) -> float | None:
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


def shows_double_bonds(mol: Mol) -> bool:
    """Return whether the coordinates show each double bond as the isomer that it is, E or Z."""
    from rdkit import Chem

    points = np.asarray(mol.GetConformer().GetPositions())[:, :2]
    z = (Chem.BondStereo.STEREOZ, Chem.BondStereo.STEREOCIS)
    for bond in mol.GetBonds():
        near = list(bond.GetStereoAtoms())
        if bond.GetStereo() <= Chem.BondStereo.STEREOANY or len(near) != 2:
            continue
        start, end, *sides = points[[bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), *near]]
        across = np.array([start[1] - end[1], end[0] - start[0]])  # perpendicular to the bond
        first, last = (float((side - start) @ across) for side in sides)
        if (first * last > 0) != (bond.GetStereo() in z):
            return False
    return True


_GAP = 1.1  # the gap between components, in mean edge lengths


@lru_cache(maxsize=64)
def laid_out_graph(count: int, edges: tuple[tuple[int, int], ...], aspect: float) -> FloatArray:
    """Return places (N, 2) for nodes 0 to N - 1, where edges have a length of about 1.

    Each component is laid out by Kamada & Kawai (1989), so that distances in the picture follow
    the number of edges between nodes. Components stand in rows, the largest first.

    `aspect` is the width of the picture divided by its height.
    """
    import networkx as nx  # torch brings it

    graph = nx.Graph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(edges)
    parts = sorted(nx.connected_components(graph), key=lambda part: (-len(part), min(part)))
    members = [sorted(part) for part in parts]
    places = [_component(graph.subgraph(part), part, aspect) for part in members]
    points = np.zeros((count, 2))
    for part, placed in zip(members, _in_rows(places, aspect), strict=True):
        points[part] = placed
    points.setflags(write=False)  # the array is cached
    return points


def _component(graph: Any, members: list[int], aspect: float) -> FloatArray:
    """Lay out a connected graph so that its longer side lies along that of the picture."""
    import networkx as nx

    if len(members) == 1:
        return np.zeros((1, 2))
    placed = nx.kamada_kawai_layout(graph)
    points = np.array([placed[node] for node in members])
    points = points - points.mean(0)
    _, _, axes = np.linalg.svd(points, full_matrices=False)  # the principal axes, the longer first
    points = points @ axes.T
    if aspect < 1:
        points = points[:, ::-1]
    index = {node: k for k, node in enumerate(members)}
    ends = np.array([(index[i], index[j]) for i, j in graph.edges])
    length = float(np.linalg.norm(points[ends[:, 0]] - points[ends[:, 1]], axis=1).mean())
    return points / max(length, 1e-9)


def _in_rows(places: list[FloatArray], aspect: float) -> list[FloatArray]:
    """Put components side by side, in rows that give the picture about the right shape."""
    sizes = [np.ptp(points, axis=0) + _GAP for points in places]
    area = sum(float(size.prod()) for size in sizes)
    widest = max(max(float(size[0]) for size in sizes), (area * aspect) ** 0.5)
    x = y = tallest = 0.0
    moved = []
    for points, (width, height) in zip(places, sizes, strict=True):
        if x and x + width > widest * 1.05:
            x, y, tallest = 0.0, y + tallest, 0.0
        moved.append(points - points.min(0) + (x, y))
        x, tallest = x + float(width), max(tallest, float(height))
    return moved


def equivalent_atoms(mol: Mol) -> list[tuple[int, ...]]:
    """Return groups of atoms that are equivalent by resonance, but not in the drawn form.

    Hydrogens, isotopes and stereochemistry tell atoms apart, so tautomers and the arms of a
    cis-trans pair are not equivalent. Atoms that are equivalent as drawn are in no group.

    `mol` is any molecule, sanitised or not.
    """
    from rdkit import Chem

    copy = Chem.Mol(mol)
    copy.UpdatePropertyCache(strict=False)
    Chem.FastFindRings(copy)
    if not _has_other_forms(copy):
        return []
    for atom in atoms_of(copy):
        atom.SetAtomMapNum(0)
    drawn = list(Chem.CanonicalRankAtoms(copy, breakTies=False))
    groups = defaultdict(list)
    for index, rank in enumerate(Chem.CanonicalRankAtoms(_skeleton(copy), breakTies=False)):
        groups[rank].append(index)
    return [tuple(atoms) for atoms in groups.values() if len({drawn[i] for i in atoms}) > 1]


def _has_other_forms(mol: Mol) -> bool:
    """Return whether the molecule may have other drawn forms with hydrogens in the same places.

    Without charges and radicals, each atom's valence says whether it has a multiple bond. Two forms
    can then only differ by a ring in which such bonds alternate, and RDKit draws aromatic rings in
    a single form. An ammonium has no electrons to move.
    """
    charged, radical, multiple_in_ring = _queries()
    for atom in mol.GetAtomsMatchingQuery(charged):
        ammonium = atom.GetFormalCharge() == 1 and atom.GetAtomicNum() == 7
        if not (ammonium and atom.GetTotalDegree() == 4):
            return True
    return bool(mol.GetAtomsMatchingQuery(radical)) or mol.HasSubstructMatch(multiple_in_ring)


@cache
def _queries() -> tuple[QueryAtom, QueryAtom, Mol]:
    """Return queries for charged atoms, radical atoms, and multiple bonds in a ring."""
    from rdkit import Chem
    from rdkit.Chem import rdqueries

    return (
        rdqueries.FormalChargeEqualsQueryAtom(0, negate=True),
        rdqueries.NumRadicalElectronsEqualsQueryAtom(0, negate=True),
        Chem.MolFromSmarts("*!-!:@*"),
    )


def averaged(values: ArrayLike, groups: list[tuple[int, ...]]) -> FloatArray:
    """Return a copy of `values` (N, ...) in which the atoms of a group have their mean."""
    means = np.array(values, dtype=np.float64)
    for atoms in map(list, groups):
        means[atoms] = means[atoms].mean(axis=0)
    return means


def _skeleton(mol: Mol) -> Mol:
    """Return a copy without charges and bond orders, with marks for what else tells atoms apart.

    The marks hold hydrogens, the charge and radicals of the whole piece, and double-bond geometry.
    """
    from rdkit import Chem

    bare = Chem.RWMol(mol)
    marks: list[tuple[object, ...]] = [(atom.GetTotalNumHs(),) for atom in atoms_of(mol)]
    for piece in Chem.GetMolFrags(mol):
        atoms = [mol.GetAtomWithIdx(i) for i in piece]
        charge = sum(atom.GetFormalCharge() for atom in atoms)
        radicals = sum(atom.GetNumRadicalElectrons() for atom in atoms)
        for i in piece:
            marks[i] += (charge, radicals)
    for bond in bonds_of(mol):
        if bond.GetStereo() > Chem.BondStereo.STEREOANY:
            for atom in (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()):
                marks[atom] += (str(bond.GetStereo()),)
    numbers = {mark: number for number, mark in enumerate(dict.fromkeys(marks), start=1)}
    for atom, mark in zip(atoms_of(bare), marks, strict=True):
        atom.SetAtomMapNum(numbers[mark])
        atom.SetFormalCharge(0)
        atom.SetNumRadicalElectrons(0)
        atom.SetNumExplicitHs(0)
        atom.SetNoImplicit(True)
        atom.SetIsAromatic(False)
    kinds = Chem.BondType
    for bond in bonds_of(bare):
        if bond.GetBondType() in (kinds.SINGLE, kinds.DOUBLE, kinds.TRIPLE, kinds.AROMATIC):
            bond.SetBondType(kinds.SINGLE)
            bond.SetIsAromatic(False)
            bond.SetStereo(Chem.BondStereo.STEREONONE)
            bond.SetBondDir(Chem.BondDir.NONE)
    bare.UpdatePropertyCache(strict=False)
    Chem.FastFindRings(bare)
    return bare


def free_place(
    fragment_points: FloatArray,
    centres: list[FloatArray],
    taken: FloatArray,
    bond_px: float,
    room: tuple[float, float],
    margin: float,
) -> FloatArray:
    """Return the place farthest from all that is drawn, in a ring's centre or around an atom."""
    angles = np.arange(16) * np.pi / 8
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1) * max(0.62 * bond_px, 20.0)
    around = (fragment_points[:, None] + circle).reshape(-1, 2)
    candidates = np.vstack([*(centre[None] for centre in centres), around])
    low, high = np.array([margin, margin]), np.array(room) - margin
    clearance = np.linalg.norm(candidates[:, None] - taken, axis=-1).min(1)
    clearance = np.where(((candidates < low) | (candidates > high)).any(1), -1, clearance)
    enough = np.minimum(clearance, 0.8 * bond_px)  # with this much room, a ring's centre wins
    return candidates[int(enough.argmax())]
