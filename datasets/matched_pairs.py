"""Find matched molecular pairs, which differ in one part at one bond.

The bond is acyclic and single. The part has at most 13 heavy atoms and at most half the size of the
shared core, or is hydrogen. Sources: Hussain 2010 (pairs from cuts), Hu 2012 (sizes).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from rdkit import Chem

from graphxai.runtime.notices import warn

LARGEST_VARIABLE = 13  # heavy atoms in the exchanged part (Hu 2012)
CORE_RATIO = 2  # the shared core is at least this many times larger
HYDROGEN = "*[H]"
LARGEST_MOLECULE = 150  # atoms of a molecule that is compared; the time grows with their square
MOST_ALIKE = 300  # molecules of one core that are compared, all with each other

_ACYCLIC_BOND = Chem.MolFromSmarts("[!#1]-!@[!#1]")  # acyclic single bonds


@dataclass(frozen=True)
class Exchange:
    """One part in place of another, and the kind of atom that carries it.

    Args:
        old: SMILES of the part before, with `*` at the bond.
        new: SMILES of the part after, with `*` at the bond.
        at: element of the atom that carries the part, in lower case if it is aromatic.
    """

    old: str
    new: str
    at: str

    @property
    def reversed(self) -> Exchange:
        """The exchange back from new to old."""
        return Exchange(self.new, self.old, self.at)

    def __str__(self) -> str:
        return f"{self.old} to {self.new} at {self.at}"


class MatchedPair(NamedTuple):
    """Two molecules that differ in one part.

    Args:
        core: SMILES of the core that both share, with `*` at the bond.
        exchange: exchange of the first molecule's part for the second's.
        environment: the atom of the core at the bond with its neighbours, see `environment_of`.
    """

    core: str
    exchange: Exchange
    environment: str = ""


def matched_pairs(
    molecules: Sequence[Chem.Mol], wanted: Callable[[int, int], bool] = lambda i, j: True
) -> dict[tuple[int, int], MatchedPair]:
    """Return the matched pairs (i, j), i < j, among molecules, each with its largest core.

    Molecules of more than `LARGEST_MOLECULE` atoms are left out. Of a core that more than
    `MOST_ALIKE` molecules share, the first ones are compared, and a warning says so.

    Args:
        molecules: any molecules.
        wanted: whether the pair (i, j) is of interest.
    """
    # by core, how the part of each molecule is cut off, None for hydrogen
    parts: dict[str, dict[int, SingleBondCut | None]] = defaultdict(dict)
    by_name: dict[str, list[int]] = defaultdict(list)
    for index, mol in enumerate(molecules):
        by_name[Chem.MolToSmiles(mol)].append(index)
    about: dict[str, tuple[int, SingleBondCut]] = {}  # by core, a molecule that has it, and where
    for index, cut, is_whole in _cuts_of_shared_cores(molecules):
        core = cut.core_smiles(molecules[index])
        about[core] = index, cut
        parts[core][index] = cut
        if is_whole:
            capped = cut.capped_core_smiles(molecules[index])
            parts[core].update(dict.fromkeys(by_name.get(capped, ()), None))

    def part(index: int, cut: SingleBondCut | None) -> str:
        return HYDROGEN if cut is None else cut.part_smiles(molecules[index])

    pairs: dict[tuple[int, int], MatchedPair] = {}
    shared = [core for core, cut_of in parts.items() if len(cut_of) > 1]
    # the largest wins
    for core in sorted(shared, key=lambda core: (len(about[core][1].core), core)):
        cut_of = parts[core]
        chosen = [ij for ij in combinations(sorted(cut_of)[:MOST_ALIKE], 2) if wanted(*ij)]
        if not chosen:
            continue
        used = {index: part(index, cut_of[index]) for index in {k for ij in chosen for k in ij}}
        index, cut = about[core]
        atom = molecules[index].GetAtomWithIdx(cut.kept)
        symbol, around = symbol_of(atom), environment_of(atom, cut.cut)
        for i, j in chosen:
            pairs[i, j] = MatchedPair(core, Exchange(used[i], used[j], symbol), around)
    largest = max(parts, key=lambda core: len(parts[core]), default="")
    if largest and len(parts[largest]) > MOST_ALIKE:
        warn(
            f"{len(parts[largest]):,} molecules share the core {largest}: matched pairs are those"
            f" of the first {MOST_ALIKE}.",
            stacklevel=3,
        )
    return pairs


class SingleBondCut(NamedTuple):
    """An acyclic single bond of a molecule, with the atoms on both sides (heavy atoms).

    Args:
        kept: the atom at the bond on the side of the core.
        cut: the atom at the bond on the side of the part.
        core: the atoms of the core, at least `CORE_RATIO` times as many as of the part.
        part: the atoms of the part, at most `LARGEST_VARIABLE`.
    """

    kept: int
    cut: int
    core: tuple[int, ...]
    part: tuple[int, ...]

    def core_smiles(self, mol: Chem.Mol) -> str:
        """Return the SMILES of the core, with `*` at the bond."""
        return self._piece(mol, self.core, self.kept)

    def capped_core_smiles(self, mol: Chem.Mol) -> str:
        """Return the SMILES of the core, with hydrogen at the bond."""
        bond = [mol.GetBondBetweenAtoms(self.kept, self.cut).GetIdx()]
        whole = Chem.FragmentOnBonds(mol, bond, addDummies=False)
        return str(Chem.MolFragmentToSmiles(whole, self.core))

    def part_smiles(self, mol: Chem.Mol) -> str:
        """Return the SMILES of the part, with `*` at the bond."""
        return self._piece(mol, self.part, self.cut)

    def _piece(self, mol: Chem.Mol, atoms: tuple[int, ...], end: int) -> str:
        """Return the SMILES of the piece with the atom `end` of the bond, and `*` beyond it."""
        bond = [mol.GetBondBetweenAtoms(self.kept, self.cut).GetIdx()]
        pieces = Chem.FragmentOnBonds(mol, bond, dummyLabels=[(0, 0)])
        added = range(mol.GetNumAtoms(), pieces.GetNumAtoms())
        beyond = next(k for k in added if pieces.GetBondBetweenAtoms(end, k))
        return str(Chem.MolFragmentToSmiles(pieces, [*atoms, beyond]))


def single_bond_cuts(mol: Chem.Mol) -> Iterator[SingleBondCut]:
    """Yield every way to cut off one part that is small enough at an acyclic single bond."""
    distance = Chem.GetDistanceMatrix(mol)
    for begin, end in mol.GetSubstructMatches(_ACYCLIC_BOND):
        for kept, cut in ((begin, end), (end, begin)):
            # an acyclic bond splits the atoms: each is nearer to one of its ends
            core = np.flatnonzero(distance[kept] < distance[cut]).tolist()
            part = np.flatnonzero(distance[cut] < distance[kept]).tolist()
            if len(part) <= LARGEST_VARIABLE and len(core) >= CORE_RATIO * len(part):
                yield SingleBondCut(kept, cut, tuple(core), tuple(part))


def symbol_of(atom: Chem.Atom) -> str:
    """Return the element of an atom, in lower case if it is aromatic."""
    return str(atom.GetSymbol().lower() if atom.GetIsAromatic() else atom.GetSymbol())


def environment_of(atom: Chem.Atom, without: int | None = None) -> str:
    """Return what an atom is and what it is bonded to, apart from hydrogen and atom `without`.

    Elements are in lower case if aromatic. `r` is an atom of a saturated ring, `=` one with a
    double or triple bond, and signs are charges: "N(C=)" is the nitrogen of an amide.
    """
    near = (other for other in atom.GetNeighbors() if other.GetIdx() != without)
    return _kind(atom) + "".join(sorted(f"({_kind(o)})" for o in near if o.GetAtomicNum() != 1))


def _kind(atom: Chem.Atom) -> str:
    if atom.GetIsAromatic():
        return f"{symbol_of(atom)}{atom.GetFormalCharge() or ''}"
    multiple = any(bond.GetBondTypeAsDouble() > 1 for bond in atom.GetBonds())
    ring = "r" if atom.IsInRing() else ""
    return f"{atom.GetSymbol()}{atom.GetFormalCharge() or ''}{ring}{'=' if multiple else ''}"


def _cuts_of_shared_cores(
    molecules: Sequence[Chem.Mol],
) -> Iterator[tuple[int, SingleBondCut, bool]]:
    """Yield the cuts whose core another molecule may have: the molecule, and the cut.

    Cores with different atoms, counted with their bonds and hydrogens, are different; this is much
    faster than to write their SMILES. The last value says whether the core with hydrogen at the
    bond may be one of the molecules.
    """
    wholes, cuts = set[int](), list[tuple[int, SingleBondCut, int, int]]()
    with_core: dict[int, set[int]] = defaultdict(set)
    for index, mol in enumerate(molecules):
        of_atoms = [_hash_of(atom) for atom in mol.GetAtoms()]
        wholes.add(sum(of_atoms))
        for cut in single_bond_cuts(mol) if mol.GetNumAtoms() <= LARGEST_MOLECULE else ():
            core = sum(of_atoms[k] for k in cut.core)
            capped = core - of_atoms[cut.kept] + _hash_of(mol.GetAtomWithIdx(cut.kept), capped=1)
            with_core[core].add(index)
            cuts.append((index, cut, core, capped))
    for index, cut, core, capped in cuts:
        if capped in wholes or len(with_core[core]) > 1:
            yield index, cut, capped in wholes


def _hash_of(atom: Chem.Atom, capped: int = 0) -> int:
    """Return a hash of what an atom is, with so many of its bonds replaced by hydrogens."""
    bonds, hydrogens = atom.GetDegree() - capped, atom.GetTotalNumHs() + capped
    return hash((atom.GetAtomicNum(), bonds, hydrogens, atom.GetIsAromatic(), atom.IsInRing()))
