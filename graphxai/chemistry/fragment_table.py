"""Compare fragments over a set of molecules: mean, spread, interval and examples.

Molecules are added one by one and not kept. Memory grows with the number of distinct fragments,
plus 8 bytes per compound for a hash that recognises duplicates.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rdkit import Chem

from graphxai.explanation.explanation import Explanation

from .fragments import REST, Fragments, fragments
from .schemes import AUTO, Scheme

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    *("name", "smiles", "mean", "sd", "low", "high"),
    *("atoms", "per_atom", "per_atom_low", "per_atom_high"),
    *("molecules", "count", "examples"),
)
EXAMPLES = 3
BY_STRUCTURE = ("brics", "components", "protac")  # schemes whose fragments are known by SMILES
WAYS = 1000  # ways to write one fragment; beyond this, rare ones are dropped


@dataclass(slots=True)
class RunningStatistics:
    """Statistics of values that come one by one (Welford 1962).

    `mean` is the mean so far, and `squares` the sum of squared deviations from it.
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
        """The standard deviation; NaN for a single value."""
        return math.sqrt(self.squares / (self.n - 1)) if self.n > 1 else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean (Student 1908); NaN for a single value.

        It is mean ± t(n - 1) sd / sqrt(n). A bootstrap would be too narrow for the few molecules
        that most fragments occur in. For two molecules it spans the distance between them, which
        holds the mean in only half of all cases.
        """
        if self.n < 2:
            return math.nan, math.nan
        from scipy.special import stdtrit

        half = float(stdtrit(self.n - 1, 0.975)) * self.sd / math.sqrt(self.n)
        return self.mean - half, self.mean + half


@dataclass(slots=True)
class Tally:
    """Running statistics of one fragment over the molecules that contain it.

    Args:
        count: how often the fragment occurs.
        per_atom: statistics of its relevance divided by its number of atoms.
        atoms: statistics of its number of atoms, which varies for groups and for "rest".
        examples: (-|mean|, position, SMILES) of molecules, those where it is strongest first.
        ways: how often each (name, SMILES) of the fragment occurs.
    """

    count: int = 0
    sums: RunningStatistics = field(default_factory=RunningStatistics)
    per_atom: RunningStatistics = field(default_factory=RunningStatistics)
    atoms: RunningStatistics = field(default_factory=RunningStatistics)
    examples: list[tuple[float, int, str]] = field(default_factory=list)
    ways: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def molecules(self) -> int:
        """How many molecules contain the fragment."""
        return self.sums.n

    @property
    def row(self) -> tuple[object, ...]:
        """The values for the fragment, in the order of `COLUMNS`."""
        ((name, smiles), _), *_ = self.ways.most_common(1)
        figures = self.sums.mean, self.sums.sd, *self.sums.interval
        each = self.atoms.mean, self.per_atom.mean, *self.per_atom.interval
        examples = " ".join(text for _, _, text in self.examples)
        counts = self.molecules, self.count, examples
        return name, "" if name == REST else smiles, *figures, *each, *counts

    def add(self, occurrences: list[tuple[float, int]], place: int, smiles: str) -> None:
        """Add the fragment's occurrences in one molecule.

        Args:
            occurrences: relevance and number of atoms of each.
            place: position of the molecule in the set.
        """
        number = len(occurrences)
        value = math.fsum(relevance for relevance, _ in occurrences) / number
        self.count += number
        self.sums.add(value)
        self.per_atom.add(math.fsum(relevance / atoms for relevance, atoms in occurrences) / number)
        self.atoms.add(sum(atoms for _, atoms in occurrences) / number)
        example = (-abs(value), place, smiles)
        if len(self.examples) < EXAMPLES or example < self.examples[-1]:
            self.examples = sorted([*self.examples, example])[:EXAMPLES]

    def written(self, way: tuple[str, str]) -> None:
        """Count one way to write the fragment: its name and SMILES."""
        self.ways[way] += 1
        if len(self.ways) > WAYS:
            self.ways = Counter(dict(self.ways.most_common(WAYS // 2)))


class FragmentTable:
    """The relevance of every fragment over the molecules added so far, see `fragment_table`.

    `molecules` is the number of different molecules that were added, and `schemes` says how many of
    them were divided by each scheme: "auto" chooses for each molecule.
    """

    def __init__(self, scheme: Scheme = AUTO) -> None:
        self.scheme = scheme
        self.molecules = 0
        self.schemes: Counter[str] = Counter()
        self._tallies: dict[str, Tally] = {}
        self._seen: set[int] = set()
        self._explained: tuple[str, str, str] | None = None

    def add(self, explanation: Explanation | Fragments, example: str = "") -> dict[str, float]:
        """Add the fragments of one molecule, unless the same molecule was added before.

        How its SMILES is written makes no difference. Each graph that is no molecule is added.

        Args:
            example: what the molecule is called among the examples, by default its SMILES.

        Returns:
            The summed relevance of each fragment, by what identifies it in `by_key`. It is empty if
            the same molecule was added before.

        Raises:
            ValueError: for another method, target or scheme than before, because their sums do not
                compare.
        """
        if isinstance(explanation, Fragments):
            parts = explanation
        else:
            parts = fragments(explanation, self.scheme)
        explanation = parts.explanation
        scheme = AUTO if self.scheme == AUTO else parts.scheme
        explained = (explanation.method, explanation.target, scheme)
        if self._explained not in (None, explained):
            raise ValueError(
                "a table holds one method and target in one scheme; this one holds"
                f" {self._explained} and was given {explained}. Set the target when you explain."
            )
        self._explained = explained
        molecule = explanation.molecule
        if molecule is not None:
            # 64 bits: in a million molecules, the probability that any two collide is 3e-8
            written = Chem.MolToSmiles(molecule).encode()
            compound = int.from_bytes(hashlib.blake2b(written, digest_size=8).digest(), "big")
            if compound in self._seen:
                return {}
            self._seen.add(compound)
        inside: dict[str, list[tuple[float, int]]] = {}
        for part in parts:
            by_structure = parts.scheme in BY_STRUCTURE or part.name == "scaffold"
            key = part.smiles if by_structure and part.smiles else part.name
            inside.setdefault(key, []).append((part.relevance, len(part.atoms)))
            self._tallies.setdefault(key, Tally()).written((part.name, part.smiles))
        example = example or explanation.smiles or ""
        for key, occurrences in inside.items():
            self._tallies[key].add(occurrences, self.molecules, example)
        self.molecules += 1
        self.schemes[parts.scheme] += 1
        return {key: math.fsum(value for value, _ in each) for key, each in inside.items()}

    def to_frame(self, *, minimum: int = 1) -> "pd.DataFrame":
        """Return the table of all fragments that occur in at least `minimum` molecules."""
        return self.by_key(minimum).reset_index(drop=True)

    def by_key(self, minimum: int = 1) -> "pd.DataFrame":
        """Return the table of `to_frame`, with what identifies each fragment as its index."""
        import pandas as pd

        tallies = {key: t for key, t in self._tallies.items() if t.molecules >= minimum}
        rows = [tally.row for tally in tallies.values()]
        frame = pd.DataFrame(rows, index=list(tallies), columns=list(COLUMNS))
        shared = frame.name.duplicated(keep=False)  # one name, bound in several ways
        frame.loc[shared, "name"] += " " + frame.smiles[shared]
        frame = frame.sort_values(["mean", "smiles"], ascending=[False, True])
        frame.attrs["molecules"] = self.molecules
        return frame


def fragment_table(
    explanations: Iterable[Explanation | Fragments | None],
    scheme: Scheme = AUTO,
    *,
    minimum: int = 1,
) -> "pd.DataFrame":
    """Return the relevance of each fragment over a set of molecules, from the highest mean down.

    BRICS fragments and scaffolds are identified by structure, all others by name. A compound that
    occurs several times counts once, however its SMILES is written. The table has these columns:

    - name.
    - smiles: how the fragment is most often bound; empty for "rest".
    - mean and sd: over molecules. A fragment that occurs twice in a molecule enters with its mean
      there.
    - low and high: the 95 % interval of the mean by Student's t; empty for a single molecule.
    - atoms: how many the fragment has, on average.
    - per_atom: the relevance of one of its atoms, averaged in the same way. A long chain has a
      large sum even where each atom counts for little.
    - per_atom_low and per_atom_high: the interval of per_atom.
    - molecules: how many contain the fragment.
    - count: how often it occurs.
    - examples: SMILES of the molecules in which it is strongest, separated by spaces.

    Args:
        explanations: explanations, or fragments, such as those with Shapley values. Molecules that
            could not be explained (None) are skipped. Explanations are not kept, so a generator can
            be of any length.
        scheme: as for `fragments`.
        minimum: how many molecules a fragment must occur in.

    Raises:
        ValueError: for explanations by several methods or for several targets, and as `fragments`
            does.
    """
    table = FragmentTable(scheme)
    for explanation in explanations:
        if explanation is not None:
            table.add(explanation)
    return table.to_frame(minimum=minimum)
