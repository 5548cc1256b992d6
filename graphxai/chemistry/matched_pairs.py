"""Find matched molecular pairs, which differ in one part at one acyclic single bond.

The part has at most 13 heavy atoms and at most half the size of the shared core, or is hydrogen.
Sources: Hussain 2010 (pairs from cuts), Hu 2012 (sizes).
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from rdkit import Chem

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
    def reversed(self) -> "Exchange":
        """The exchange back from new to old."""
        return Exchange(self.new, self.old, self.at)

    def __str__(self) -> str:
        return f"{self.old} to {self.new} at {self.at}"


class MatchedPair(NamedTuple):
    """Two molecules that differ in one part.

    Args:
        core: SMILES of the core that both share, with `*` at the bond.
        exchange: exchange of the first molecule's part for the second's.
    """

    core: str
    exchange: Exchange


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
    parts: dict[str, dict[int, str]] = defaultdict(dict)  # by core, the part of each molecule
    by_name: dict[str, list[int]] = defaultdict(list)
    for index, mol in enumerate(molecules):
        by_name[Chem.MolToSmiles(mol)].append(index)
    formulas = {np.bincount([a.GetAtomicNum() for a in m.GetAtoms()]).tobytes() for m in molecules}
    cuts: dict[str, _CoreAndPart] = {}
    for index, mol in enumerate(molecules):
        for cut in _cuts(mol, formulas) if mol.GetNumAtoms() <= LARGEST_MOLECULE else ():
            cuts[cut.core] = cut
            parts[cut.core][index] = cut.part
            parts[cut.core].update(dict.fromkeys(by_name.get(cut.capped, ()), HYDROGEN))
    pairs: dict[tuple[int, int], MatchedPair] = {}
    for core in sorted(parts, key=lambda core: (cuts[core].size, core)):  # the largest wins
        here = parts[core]
        for i, j in combinations(sorted(here)[:MOST_ALIKE], 2):
            if wanted(i, j):
                pairs[i, j] = MatchedPair(core, Exchange(here[i], here[j], cuts[core].at))
    largest = max(parts, key=lambda core: len(parts[core]), default="")
    if largest and len(parts[largest]) > MOST_ALIKE:
        warnings.warn(
            f"{len(parts[largest]):,} molecules share the core {largest}: matched pairs are those"
            f" of the first {MOST_ALIKE}.",
            stacklevel=3,
        )
    return pairs


class _CoreAndPart(NamedTuple):
    """A molecule cut in two at an acyclic single bond.

    Args:
        core: SMILES of the larger piece, with `*` at the bond.
        size: how many heavy atoms the core has.
        at: element of the core's atom at the bond.
        part: SMILES of the smaller piece, with `*` at the bond.
        capped: SMILES of the core with hydrogen at the bond; empty if no molecule has the core's
            formula.
    """

    core: str
    size: int
    at: str
    part: str
    capped: str


def _cuts(mol: Chem.Mol, formulas: Collection[bytes]) -> Iterator[_CoreAndPart]:
    """Yield every way to cut off one part that is small enough."""
    distance = Chem.GetDistanceMatrix(mol)
    numbers = np.array([atom.GetAtomicNum() for atom in mol.GetAtoms()])
    for begin, end in mol.GetSubstructMatches(_ACYCLIC_BOND):
        bond = [mol.GetBondBetweenAtoms(begin, end).GetIdx()]
        for kept, cut in ((begin, end), (end, begin)):
            # an acyclic bond splits the atoms: each is nearer to one of its ends
            core = np.flatnonzero(distance[kept] < distance[cut]).tolist()
            part = np.flatnonzero(distance[cut] < distance[kept]).tolist()
            if len(part) > LARGEST_VARIABLE or len(core) < CORE_RATIO * len(part):
                continue
            pieces = Chem.FragmentOnBonds(mol, bond, dummyLabels=[(0, 0)])
            dummy = {
                pieces.GetAtomWithIdx(i).GetNeighbors()[0].GetIdx(): i
                for i in range(len(numbers), pieces.GetNumAtoms())
            }
            capped = ""
            if np.bincount(numbers[core]).tobytes() in formulas:
                whole = Chem.FragmentOnBonds(mol, bond, addDummies=False)
                capped = Chem.MolFragmentToSmiles(whole, core)
            atom = mol.GetAtomWithIdx(kept)
            symbol = atom.GetSymbol()
            yield _CoreAndPart(
                Chem.MolFragmentToSmiles(pieces, [*core, dummy[kept]]),
                len(core),
                symbol.lower() if atom.GetIsAromatic() else symbol,
                Chem.MolFragmentToSmiles(pieces, [*part, dummy[cut]]),
                capped,
            )
