"""What each fragment contributes over a set of molecules: mean, spread, interval, examples."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from graphxai.evaluation.statistics import bootstrap
from graphxai.explanation import Explanation
from graphxai.fragmentation import Scheme, fragments

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("name", "smiles", "mean", "sd", "low", "high", "molecules", "count", "examples")
EXAMPLES = 3
DRAWS = 20_000_000  # numbers that the bootstrap of one fragment may draw
BY_STRUCTURE = ("brics",)  # schemes whose fragments are told apart by their SMILES, not their name


class FragmentTable:
    """Relevance of every fragment seen so far, molecule by molecule; see `fragment_table`."""

    def __init__(self, scheme: Scheme = "brics") -> None:
        self.scheme = scheme
        self.molecules: list[str] = []
        self._found: dict[str, dict[int, list[float]]] = {}  # fragment, molecule, relevance
        self._written: dict[str, Counter[tuple[str, str]]] = {}  # fragment, (name, smiles)
        self._explained: tuple[str, str] | None = None

    def add(self, explanation: Explanation) -> None:
        """Add the fragments of one molecule.

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
        for part in parts:
            key = part.smiles if parts.scheme in BY_STRUCTURE else part.name
            if part.name == "scaffold":
                key = part.smiles
            by_molecule = self._found.setdefault(key, {})
            by_molecule.setdefault(len(self.molecules), []).append(part.relevance)
            self._written.setdefault(key, Counter())[part.name, part.smiles] += 1
        self.molecules.append(explanation.smiles or "")

    def to_frame(self, *, minimum: int = 1) -> "pd.DataFrame":
        """The table, of fragments in at least `minimum` molecules."""
        import pandas as pd

        rows = [
            self._row(key, by_molecule)
            for key, by_molecule in self._found.items()
            if len(by_molecule) >= minimum
        ]
        frame = pd.DataFrame(rows, columns=list(COLUMNS))
        frame = frame.sort_values(["mean", "smiles"], ascending=[False, True], ignore_index=True)
        frame.attrs["molecules"] = len(self.molecules)
        return frame

    def _row(self, key: str, by_molecule: dict[int, list[float]]) -> tuple[object, ...]:
        means = np.array([math.fsum(values) / len(values) for values in by_molecule.values()])
        n = len(means)
        interval = bootstrap(means, draws=max(200, min(4000, DRAWS // n)))
        low, high = (interval.low, interval.high) if n > 1 else (math.nan, math.nan)
        (name, smiles), _ = self._written[key].most_common(1)[0]
        order = np.argsort(-np.abs(means), kind="stable")[:EXAMPLES]
        indices = list(by_molecule)
        examples = " ".join(self.molecules[indices[i]] for i in order)
        count = sum(map(len, by_molecule.values()))
        spread = float(means.std(ddof=1)) if n > 1 else math.nan
        return name, smiles, interval.mean, spread, low, high, n, count, examples


def fragment_table(
    explanations: Iterable[Explanation | None], scheme: Scheme = "brics", *, minimum: int = 1
) -> "pd.DataFrame":
    """Relevance of each fragment over a set of molecules, from the most for to the most against.

    Columns: name, smiles (the most frequent way it is bound), mean and sd over molecules (of a
    molecule with several, their mean), low and high (95 % bootstrap interval of the mean over
    molecules; none where there is one), molecules, count (of fragments), examples (SMILES of the
    molecules where it weighs most, separated by spaces). BRICS fragments and scaffolds are told
    apart by structure, all others by name. Molecules that could not be explained (None) are
    skipped.

    scheme: as for `fragments`; minimum: molecules that a fragment must occur in.

    Raises ValueError for explanations of several methods or targets, and as `fragments` does.
    """
    table = FragmentTable(scheme)
    for explanation in explanations:
        if explanation is not None:
            table.add(explanation)
    return table.to_frame(minimum=minimum)
