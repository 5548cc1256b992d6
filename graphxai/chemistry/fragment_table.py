"""The contribution of each fragment over a set of molecules: mean, spread, interval, examples.

Molecules are added one by one and not kept. Memory grows with the number of distinct fragments,
plus 8 bytes per compound for a hash that recognises duplicates.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rdkit import Chem

from graphxai.explanation.explanation import Explanation

from .fragments import REST, Fragments, Scheme, fragments

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    *("name", "smiles", "mean", "sd", "low", "high"),
    *("atoms", "per_atom", "per_atom_low", "per_atom_high"),
    *("molecules", "count", "examples"),
)
EXAMPLES = 3
BY_STRUCTURE = ("brics",)  # schemes whose fragments are identified by SMILES, not by name
WAYS = 1000  # ways to write one fragment; beyond this, rare ones are dropped


@dataclass(slots=True)
class Running:
    """Statistics of values that come one by one.

    mean, squares: mean, and sum of squared deviations from it (Welford 1962).
    """

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Add one value."""
        self.n += 1
        deviation = value - self.mean
        self.mean += deviation / self.n
        self.squares += deviation * (value - self.mean)

    @property
    def sd(self) -> float:
        """Standard deviation; NaN for a single value."""
        return math.sqrt(self.squares / (self.n - 1)) if self.n > 1 else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean (Student 1908); NaN for a single value.

        mean ± t(n - 1) sd / sqrt(n). A bootstrap would be too narrow for the few molecules that
        most fragments occur in: for two, it spans the distance between them, which holds the mean
        in half of all cases.
        """
        if self.n < 2:
            return math.nan, math.nan
        from scipy.special import stdtrit

        half = float(stdtrit(self.n - 1, 0.975)) * self.sd / math.sqrt(self.n)
        return self.mean - half, self.mean + half


@dataclass(slots=True)
class Tally:
    """Running statistics of one fragment over the molecules that contain it.

    sums, per_atom: of its relevance, and of its relevance divided by its atoms; atoms: how many it
    has, which varies for groups and for "rest"; examples: (-|mean|, position, SMILES), strongest
    first; ways: how often each (name, SMILES) occurs.
    """

    count: int = 0
    sums: Running = field(default_factory=Running)
    per_atom: Running = field(default_factory=Running)
    atoms: Running = field(default_factory=Running)
    examples: list[tuple[float, int, str]] = field(default_factory=list)
    ways: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def molecules(self) -> int:
        """How many molecules contain it."""
        return self.sums.n

    def add(self, found: list[tuple[float, int]], place: int, smiles: str) -> None:
        """Add the fragment's occurrences in one molecule, at position `place` of the set.

        found: relevance and number of atoms of each occurrence.
        """
        number = len(found)
        value = math.fsum(relevance for relevance, _ in found) / number
        self.count += number
        self.sums.add(value)
        self.per_atom.add(math.fsum(relevance / atoms for relevance, atoms in found) / number)
        self.atoms.add(sum(atoms for _, atoms in found) / number)
        example = (-abs(value), place, smiles)
        if len(self.examples) < EXAMPLES or example < self.examples[-1]:
            self.examples = sorted([*self.examples, example])[:EXAMPLES]

    def written(self, way: tuple[str, str]) -> None:
        """Count one way to write the fragment: (name, SMILES)."""
        self.ways[way] = self.ways.get(way, 0) + 1
        if len(self.ways) > WAYS:
            often = sorted(self.ways.items(), key=lambda item: -item[1])[: WAYS // 2]
            self.ways = dict(often)


class FragmentTable:
    """Relevance of every fragment seen so far; see `fragment_table`.

    `molecules`: how many different ones it holds.
    """

    def __init__(self, scheme: Scheme = "brics") -> None:
        self.scheme = scheme
        self.molecules = 0
        self._tallies: dict[str, Tally] = {}
        self._seen: set[int] = set()
        self._explained: tuple[str, str, str] | None = None

    def add(self, explanation: Explanation | Fragments) -> None:
        """Add the fragments of one molecule; one that was added before, however written, is not.

        Raises ValueError for another method, target or scheme than before: their sums do not
        compare.
        """
        if isinstance(explanation, Fragments):
            parts = explanation
        else:
            parts = fragments(explanation, self.scheme)
        explanation = parts.explanation
        explained = (explanation.method, explanation.target, parts.scheme)
        if self._explained not in (None, explained):
            raise ValueError(
                "a table holds one method and target in one scheme; this one holds"
                f" {self._explained} and was given {explained}. Set the target when you explain."
            )
        self._explained = explained
        compound = _fingerprint(explanation)
        if compound in self._seen:
            return
        self._seen.add(compound)
        inside: dict[str, list[tuple[float, int]]] = {}
        for part in parts:
            by_structure = parts.scheme in BY_STRUCTURE or part.name == "scaffold"
            key = part.smiles if by_structure else part.name
            inside.setdefault(key, []).append((part.relevance, len(part.atoms)))
            self._tallies.setdefault(key, Tally()).written((part.name, part.smiles))
        for key, found in inside.items():
            self._tallies[key].add(found, self.molecules, explanation.smiles or "")
        self.molecules += 1

    def to_frame(self, *, minimum: int = 1) -> "pd.DataFrame":
        """The table of all fragments found in at least `minimum` molecules."""
        import pandas as pd

        rows = [_row(tally) for tally in self._tallies.values() if tally.molecules >= minimum]
        frame = pd.DataFrame(rows, columns=list(COLUMNS))
        frame = frame.sort_values(["mean", "smiles"], ascending=[False, True], ignore_index=True)
        frame.attrs["molecules"] = self.molecules
        return frame


def _fingerprint(explanation: Explanation) -> int:
    """A 64-bit hash of the canonical SMILES; any collision in a million has probability 3e-8."""
    written = Chem.MolToSmiles(explanation.molecule)
    return int.from_bytes(hashlib.blake2b(written.encode(), digest_size=8).digest(), "big")


def _row(tally: Tally) -> tuple[object, ...]:
    """The values for one fragment, in the order of `COLUMNS`."""
    name, smiles = max(tally.ways, key=tally.ways.__getitem__)
    examples = " ".join(text for _, _, text in tally.examples)
    figures = tally.sums.mean, tally.sums.sd, *tally.sums.interval
    each = tally.atoms.mean, tally.per_atom.mean, *tally.per_atom.interval
    written = "" if name == REST else smiles
    return name, written, *figures, *each, tally.molecules, tally.count, examples


def fragment_table(
    explanations: Iterable[Explanation | Fragments | None],
    scheme: Scheme = "brics",
    *,
    minimum: int = 1,
) -> "pd.DataFrame":
    """Relevance of each fragment over a set of molecules, from the highest mean to the lowest.

    Columns: name; smiles (how it is most often bound; empty for "rest"); mean and sd over molecules
    (a fragment that occurs twice in a molecule enters with its mean there); low and high (95 %
    interval of the mean by Student's t; empty for a single molecule); atoms (how many it has, on
    average); per_atom (the relevance of one of its atoms, averaged in the same way, as a long chain
    has a large sum even where each atom counts for little), per_atom_low and per_atom_high (its
    interval); molecules; count (of occurrences); examples (SMILES of the molecules in which it is
    strongest, separated by spaces).
    BRICS fragments and scaffolds are identified by structure, all others by name. A compound that
    occurs several times, however its SMILES is written, counts once. Molecules that could not be
    explained (None) are skipped. Explanations are not kept, so a generator can be of any length.

    explanations: explanations, or fragments, such as those with Shapley values; scheme: as for
    `fragments`; minimum: molecules in which a fragment must occur.

    Raises ValueError for explanations by several methods or for several targets, and as
    `fragments` does.
    """
    table = FragmentTable(scheme)
    for explanation in explanations:
        if explanation is not None:
            table.add(explanation)
    return table.to_frame(minimum=minimum)
