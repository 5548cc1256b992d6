"""Find matched molecular pairs, which differ in one part at one bond, and activity cliffs.

The bond is acyclic and single. The part has at most 13 heavy atoms and at most half the size of the
shared core, or is hydrogen. Sources: Hussain 2010 (pairs from cuts), Hu 2012 (sizes). Activity
cliffs are pairs of similar molecules whose measured values differ a lot.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple, Self, SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rdkit import Chem, DataStructs, rdBase

from graphxai.datasets.fingerprints import ecfp4_bits
from graphxai.explanation.html import fields_html, table_html
from graphxai.explanation.labelled import LINES, short_text
from graphxai.runtime.notices import warn

if TYPE_CHECKING:
    import pandas as pd

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
    about: dict[str, tuple[int, str]] = {}  # by core, its size and the element at the bond
    for index, mol in enumerate(molecules):
        small = mol.GetNumAtoms() <= LARGEST_MOLECULE
        for core, about[core], part, capped in _cuts(mol, formulas) if small else ():
            parts[core][index] = part
            parts[core].update(dict.fromkeys(by_name.get(capped, ()), HYDROGEN))
    pairs: dict[tuple[int, int], MatchedPair] = {}
    for core in sorted(parts, key=lambda core: (about[core][0], core)):  # the largest wins
        here = parts[core]
        for i, j in combinations(sorted(here)[:MOST_ALIKE], 2):
            if wanted(i, j):
                pairs[i, j] = MatchedPair(core, Exchange(here[i], here[j], about[core][1]))
    largest = max(parts, key=lambda core: len(parts[core]), default="")
    if largest and len(parts[largest]) > MOST_ALIKE:
        warn(
            f"{len(parts[largest]):,} molecules share the core {largest}: matched pairs are those"
            f" of the first {MOST_ALIKE}.",
            stacklevel=3,
        )
    return pairs


def _cuts(
    mol: Chem.Mol, formulas: Collection[bytes]
) -> Iterator[tuple[str, tuple[int, str], str, str]]:
    """Yield every way to cut off one part that is small enough at an acyclic single bond.

    These are the SMILES of the larger piece, the core, with `*` at the bond; its number of heavy
    atoms and the element of its atom at the bond; the SMILES of the part; and that of the core with
    hydrogen at the bond, which is empty if no molecule has the core's formula.
    """
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
            yield (
                Chem.MolFragmentToSmiles(pieces, [*core, dummy[kept]]),
                (len(core), symbol.lower() if atom.GetIsAromatic() else symbol),
                Chem.MolFragmentToSmiles(pieces, [*part, dummy[cut]]),
                capped,
            )


@dataclass(frozen=True)
class Cliff:
    """Two rows of a table that are alike in structure and differ in value.

    Args:
        a: number of the row with the larger value.
        b: number of the row with the smaller value.
        difference: how much larger the value of `a` is.
        similarity: Tanimoto similarity of the two ECFP4 fingerprints.
        core: SMILES of the core that a matched molecular pair shares, with `*` where the exchanged
            part is attached; None if the molecules are similar but not a matched pair.
    """

    a: int
    b: int
    difference: float
    similarity: float
    core: str | None = None

    def __repr__(self) -> str:
        """Show the fields rounded; the stored values are exact."""
        listed = f"difference={self.difference:.3g}, similarity={self.similarity:.2f}"
        return f"Cliff(a={self.a}, b={self.b}, {listed}, core={self.core!r})"

    def _repr_html_(self) -> str:
        return fields_html(asdict(self))


class Cliffs(list[Cliff]):
    """The cliffs of a table, the largest difference first, which notebooks show as a table.

    Args:
        cliffs: the cliffs.
        smiles: the SMILES of all rows.
        values: the values of all rows (n,).
    """

    def __init__(
        self, cliffs: Iterable[Cliff], smiles: Sequence[str], values: NDArray[np.float64]
    ) -> None:
        super().__init__(cliffs)
        self._smiles, self._values = smiles, values

    @overload
    def __getitem__(self, index: SupportsIndex) -> Cliff: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Cliff | Self:
        if isinstance(index, slice):
            return type(self)(super().__getitem__(index), self._smiles, self._values)
        return super().__getitem__(index)

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per cliff: its two molecules with their values, and how near.

        `a` and `b` are the numbers of rows, see `Cliff`.
        """
        import pandas as pd

        return pd.DataFrame([self._cells(cliff) for cliff in self])

    def _cells(self, cliff: Cliff) -> dict[str, Any]:
        a, b = cliff.a, cliff.b
        return {
            "a": a,
            "b": b,
            "smiles_a": self._smiles[a],
            "smiles_b": self._smiles[b],
            "value_a": float(self._values[a]),
            "value_b": float(self._values[b]),
            "difference": cliff.difference,
            "similarity": cliff.similarity,
            "core": cliff.core,
        }

    def __repr__(self) -> str:
        return short_text([f"{len(self)} cliff{'' if len(self) == 1 else 's'}", *map(repr, self)])

    def _repr_html_(self) -> str:
        """Return a table of the first cliffs."""
        rows = [
            [f"{cell:.3g}" if isinstance(cell, float) else cell or "" for cell in cells.values()]
            for cells in map(self._cells, self[:LINES])
        ]
        head = ("a", "b", "SMILES of a", "SMILES of b", "value of a", "value of b")
        table = table_html((*head, "difference", "similarity", "core"), rows) if rows else ""
        hidden = f", {len(self) - LINES} more not shown" if len(self) > LINES else ""
        return f"{table}<p>{len(self)} cliff{'' if len(self) == 1 else 's'}{hidden}</p>"


def activity_cliffs(
    smiles: Sequence[str],
    values: ArrayLike,
    *,
    similarity: float = 0.7,
    difference: float = 1.0,
    matched: bool = True,
) -> Cliffs:
    """Find pairs of similar molecules whose values differ a lot, the largest difference first.

    Two molecules are similar if the Tanimoto similarity of their ECFP4 fingerprints (Morgan, radius
    2, 2,048 bits, no chirality) is at least `similarity`. Two rows with the same molecule are not a
    cliff, but two stereoisomers can be.

    Args:
        smiles: the molecules. A warning lists those that cannot be read; they are skipped.
        values: one value per molecule, in log units. Rows without a value are skipped.
        similarity: the smallest similarity of a pair, in (0, 1].
        difference: the smallest difference between the values of a pair, above 0.
        matched: also take matched molecular pairs. Their molecules differ only in the part attached
            to one acyclic single bond. The part has at most 13 heavy atoms and at most half the
            size of the core, or it is hydrogen.

    Raises:
        ValueError: if the lengths differ, or `similarity` or `difference` is out of range.

    Source: Maggiora 2006 (cliffs), Hussain 2010 (matched pairs), Hu 2012 (sizes).
    """
    given, measured = list(smiles), np.asarray(values, dtype=np.float64)
    if measured.shape != (len(given),):
        raise ValueError(f"{len(given)} molecules, but values of shape {measured.shape}.")
    if not (0 < similarity <= 1 and difference > 0):
        raise ValueError("similarity must lie in (0, 1] and difference above 0.")
    with rdBase.BlockLogs():
        used = np.flatnonzero(np.isfinite(measured)).tolist()
        read = {row: Chem.MolFromSmiles(given[row]) for row in used}
    molecules = {row: mol for row, mol in read.items() if mol is not None}
    if unreadable := [row for row in read if row not in molecules]:
        listed = ", ".join(map(str, unreadable[:5])) + (", ..." if len(unreadable) > 5 else "")
        which = f"{'row' if len(unreadable) == 1 else 'rows'} {listed}"
        warn(f"{len(unreadable)} SMILES cannot be read: {which}.", stacklevel=2)
    rows = np.array(list(molecules), dtype=int)
    logs = measured[rows]
    mols = list(molecules.values())
    names = np.array([Chem.MolToSmiles(mol) for mol in mols], dtype=object)
    prints = [ecfp4_bits(mol) for mol in mols]
    pairs: dict[tuple[int, int], MatchedPair] = {}
    if matched:
        pairs = matched_pairs(mols, lambda i, j: abs(logs[i] - logs[j]) >= difference)
    cliffs = []
    for j in range(1, len(rows)):
        alike = np.array(DataStructs.BulkTanimotoSimilarity(prints[j], prints[:j]))
        gap = logs[j] - logs[:j]
        far = (np.abs(gap) >= difference) & (names[:j] != names[j])
        shared = [i for i in np.flatnonzero(far) if (int(i), j) in pairs]
        near = np.union1d(np.flatnonzero(far & (alike >= similarity)), shared).astype(int)
        for i in near.tolist():
            high, low = (j, i) if gap[i] > 0 else (i, j)
            cliffs.append(
                Cliff(
                    int(rows[high]),
                    int(rows[low]),
                    abs(float(gap[i])),
                    float(alike[i]),
                    pairs[i, j].core if (i, j) in pairs else None,
                )
            )
    cliffs.sort(key=lambda cliff: (-cliff.difference, -cliff.similarity, cliff.a, cliff.b))
    return Cliffs(cliffs, given, measured)
