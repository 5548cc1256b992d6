"""What each fragment contributes over a set of molecules: mean, spread, interval, examples.

Molecules come one by one and are not kept: memory grows with the number of different fragments,
and by a fingerprint of 8 bytes for each compound, so that one that comes twice counts once.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rdkit import Chem

from graphxai.explanation.explanation import Explanation

from .fragments import REST, Scheme, fragments

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("name", "smiles", "mean", "sd", "low", "high", "molecules", "count", "examples")
EXAMPLES = 3
BY_STRUCTURE = ("brics",)  # schemes whose fragments are told apart by their SMILES, not their name
WAYS = 1000  # ways to write one fragment that are counted; of more, the rare ones are dropped


@dataclass(slots=True)
class Tally:
    """Running statistics of one fragment over the molecules that hold it.

    mean and squares: of the molecules' means, and the sum of their squared deviations (Welford
    1962); examples: (-|mean|, place, SMILES), strongest first; ways: how often each (name,
    SMILES) occurs.
    """

    molecules: int = 0
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    examples: list[tuple[float, int, str]] = field(default_factory=list)
    ways: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, relevance: list[float], place: int, smiles: str) -> None:
        """Add the fragment's occurrences in one molecule, the `place`-th of the set."""
        value = math.fsum(relevance) / len(relevance)
        self.count += len(relevance)
        self.molecules += 1
        deviation = value - self.mean
        self.mean += deviation / self.molecules
        self.squares += deviation * (value - self.mean)
        example = (-abs(value), place, smiles)
        if len(self.examples) < EXAMPLES or example < self.examples[-1]:
            self.examples = sorted([*self.examples, example])[:EXAMPLES]

    def written(self, way: tuple[str, str]) -> None:
        """Count one way, name and SMILES, in which the fragment occurs."""
        self.ways[way] = self.ways.get(way, 0) + 1
        if len(self.ways) > WAYS:
            often = sorted(self.ways.items(), key=lambda item: -item[1])[: WAYS // 2]
            self.ways = dict(often)

    @property
    def sd(self) -> float:
        """Standard deviation over molecules; NaN where there is one."""
        return math.sqrt(self.squares / (self.molecules - 1)) if self.molecules > 1 else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean over molecules (Student 1908); NaN where there is one.

        mean ± t(n - 1) sd / sqrt(n). A bootstrap would be too narrow for the few molecules that
        most fragments occur in: of two, it is the distance between them, which holds the mean in
        half of all cases.
        """
        if self.molecules < 2:
            return math.nan, math.nan
        from scipy.special import stdtrit

        half = float(stdtrit(self.molecules - 1, 0.975)) * self.sd / math.sqrt(self.molecules)
        return self.mean - half, self.mean + half


class FragmentTable:
    """Relevance of every fragment seen so far; see `fragment_table`.

    `molecules`: how many different ones.
    """

    def __init__(self, scheme: Scheme = "brics") -> None:
        self.scheme = scheme
        self.molecules = 0
        self._tallies: dict[str, Tally] = {}
        self._seen: set[int] = set()
        self._explained: tuple[str, str] | None = None

    def add(self, explanation: Explanation) -> None:
        """Add the fragments of one molecule; one that was added before, however written, is not.

        Raises ValueError for another method or target than before: their sums do not compare.
        """
        explained = (explanation.method, explanation.target)
        if self._explained not in (None, explained):
            raise ValueError(
                f"one table has one method and target; this one has {self._explained} and was"
                f" given {explained}. Name the target when you explain."
            )
        parts = fragments(explanation, self.scheme)
        self._explained = explained
        compound = _fingerprint(explanation)
        if compound in self._seen:
            return
        self._seen.add(compound)
        inside: dict[str, list[float]] = {}
        for part in parts:
            by_structure = parts.scheme in BY_STRUCTURE or part.name == "scaffold"
            key = part.smiles if by_structure else part.name
            inside.setdefault(key, []).append(part.relevance)
            self._tallies.setdefault(key, Tally()).written((part.name, part.smiles))
        for key, relevance in inside.items():
            self._tallies[key].add(relevance, self.molecules, explanation.smiles or "")
        self.molecules += 1

    def to_frame(self, *, minimum: int = 1) -> "pd.DataFrame":
        """The table, of fragments in at least `minimum` molecules."""
        import pandas as pd

        rows = [_row(tally) for tally in self._tallies.values() if tally.molecules >= minimum]
        frame = pd.DataFrame(rows, columns=list(COLUMNS))
        frame = frame.sort_values(["mean", "smiles"], ascending=[False, True], ignore_index=True)
        frame.attrs["molecules"] = self.molecules
        return frame


def _fingerprint(explanation: Explanation) -> int:
    """64 bits of the canonical SMILES; in a million, two are equal with a chance of 3e-8."""
    written = Chem.MolToSmiles(explanation.molecule)
    return int.from_bytes(hashlib.blake2b(written.encode(), digest_size=8).digest(), "big")


def _row(tally: Tally) -> tuple[object, ...]:
    """The figures of one fragment, in the order of `COLUMNS`."""
    name, smiles = max(tally.ways, key=tally.ways.__getitem__)
    examples = " ".join(text for _, _, text in tally.examples)
    figures = tally.mean, tally.sd, *tally.interval
    return name, "" if name == REST else smiles, *figures, tally.molecules, tally.count, examples


def fragment_table(
    explanations: Iterable[Explanation | None], scheme: Scheme = "brics", *, minimum: int = 1
) -> "pd.DataFrame":
    """Relevance of each fragment over a set of molecules, from the most for to the most against.

    Columns: name, smiles (the most frequent way it is bound; empty for the rest), mean and sd over
    molecules (of a molecule with several, their mean), low and high (95 % interval of the mean over
    molecules by Student's t, wide for few of them; none where there is one), molecules, count (of
    fragments), examples (SMILES of the molecules where it weighs most, separated by spaces). BRICS
    fragments and scaffolds are told apart by structure, all others by name. A compound that comes
    several times, however its SMILES is written, counts once. Molecules that could not be explained
    (None) are skipped. Explanations are not kept: a generator of them may be of any length.

    scheme: as for `fragments`; minimum: molecules that a fragment must occur in.

    Raises ValueError for explanations of several methods or targets, and as `fragments` does.
    """
    table = FragmentTable(scheme)
    for explanation in explanations:
        if explanation is not None:
            table.add(explanation)
    return table.to_frame(minimum=minimum)
