"""Find activity cliffs, and say what was measured for a change, and what measured pairs suggest.

Activity cliffs are pairs of similar molecules whose measured values differ a lot.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self, SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rdkit import Chem, DataStructs, rdBase

from graphxai.datasets.features import MAX_ATOMS
from graphxai.datasets.fingerprints import ecfp4_bits
from graphxai.datasets.matched_pairs import Exchange as Exchange
from graphxai.datasets.matched_pairs import MatchedPair, matched_pairs
from graphxai.datasets.molecule_reading import ReadMolecule, read_molecules
from graphxai.explanation.labelled import LINES, short_text
from graphxai.explanation.result import fields_html, table_html
from graphxai.runtime.notices import warn

if TYPE_CHECKING:
    import pandas as pd

NINE_IN_TEN = 1.645  # standard deviations on each side of a normal mean


class ShrunkenMean(NamedTuple):
    """The change that measured pairs of an exchange at one kind of atom suggest.

    Args:
        mean: the mean change, drawn towards 0.
        low, high: the interval that should contain nine in ten of further changes.
        pairs: how many pairs were measured.
    """

    mean: float
    low: float
    high: float
    pairs: int

    @classmethod
    def of(cls, changes: NDArray[np.float64], prior: float, noise: float) -> "ShrunkenMean":
        """Return it for changes (n,), and the variances of means and of changes around a mean."""
        share = len(changes) * prior / (len(changes) * prior + noise)
        mean = float(share * changes.mean())
        half = NINE_IN_TEN * math.sqrt((1 - share) * prior + noise)
        return cls(mean, mean - half, mean + half, len(changes))

    def __str__(self) -> str:
        pairs = "1 pair" if self.pairs == 1 else f"{self.pairs} pairs"
        return f"{self.mean:+.2f} (90 %: {self.low:+.2f} to {self.high:+.2f}; {pairs})"


def both_ways(changes: Iterable[tuple[Exchange, float]]) -> dict[Exchange, list[float]]:
    """Return the changes of every exchange, each also as that of the exchange back."""
    of: dict[Exchange, list[float]] = defaultdict(list)
    for exchange, change in changes:
        of[exchange].append(change)
        of[exchange.reversed].append(-change)
    return dict(of)


def variances(groups: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """Return the variance of the means of groups around 0, and that within groups.

    Where no group has two changes, each gets half of the mean square.
    """
    total = sum(map(len, groups))
    square = sum(float((each**2).sum()) for each in groups) / max(total, 1)
    spare = total - len(groups)
    if not spare:
        return square / 2 or 1.0, square / 2 or 1.0
    noise = sum(float(((each - each.mean()) ** 2).sum()) for each in groups) / spare
    between = sum(len(each) * float(each.mean()) ** 2 for each in groups) - len(groups) * noise
    return max(between / total, 0.01 * square) or 1.0, max(noise, 0.01 * square) or 1.0


@dataclass(frozen=True)
class Measured:
    """What was measured for a change from one molecule to another.

    Args:
        name: name of the measured value.
        before, after: the two measured values, None for a molecule that is not in the table.
        exchange: the part that was exchanged, None if the two molecules are not a matched pair.
        changes: measured changes of the pairs in the table that have the same exchange at the same
            kind of atom, this pair among them.
        bound: what is known of a molecule after the change that has only bounds, such as ">10".
        bound_before: the same of the molecule before it.
        varies: whether any pair in the table exchanges the part before for another one.
        judged: how many pairs with this exchange the model did not learn from, None without one.
        right: in how many of these it predicts the sign of the measured change.
    """

    name: str
    before: float | None
    after: float | None
    exchange: Exchange | None
    changes: tuple[float, ...] = ()
    bound: str = ""
    varies: bool = True
    judged: int | None = None
    right: int = 0
    bound_before: str = ""

    @property
    def mean(self) -> float | None:
        """The mean of the changes, or None without pairs."""
        return float(np.mean(self.changes)) if self.changes else None

    @property
    def sd(self) -> float | None:
        """The standard deviation of the changes, or None for fewer than two."""
        return float(np.std(self.changes, ddof=1)) if len(self.changes) > 1 else None

    @property
    def columns(self) -> dict[str, Any]:
        """The cells of its row in a table, by column."""
        return {
            "measured": self.after,
            "measured_bound": self.bound,
            "measured_before": self.before,
            "measured_bound_before": self.bound_before,
            "exchange": "" if self.exchange is None else str(self.exchange),
            "measured_pairs": len(self.changes),
            "measured_mean_change": self.mean,
            "measured_sd_of_changes": self.sd,
            "measured_pairs_judged": self.judged,
            "measured_pairs_right": None if self.judged is None else self.right,
        }

    @property
    def sentence(self) -> str:
        """The measured values as text."""
        parts = []
        after = self.bound if self.after is None else f"{self.after:.4g}"
        if after:
            before = self.bound_before if self.before is None else f"{self.before:.4g}"
            was = f" (before {before})" if before else ""
            parts.append(f"measured {self.name} {after}{was}")
        if self.exchange is None:
            parts.append("no exchange at one bond")
        elif self.mean is None:
            parts.append("exchange never measured")
            if not self.varies:
                parts.append(f"{self.exchange.old} never varies in the table: tested by no pair")
        else:
            spread = "" if self.sd is None else f" (sd {self.sd:.2f})"
            pairs = "1 pair" if len(self.changes) == 1 else f"{len(self.changes)} pairs"
            parts.append(f"{self.name} {self.mean:+.2f}{spread} in {pairs}")
        if self.changes and self.judged is not None:
            of = "1 measured pair" if self.judged == 1 else f"{self.judged} measured pairs"
            parts.append(
                f"the model had this exchange right in {self.right} of {of}"
                if self.judged
                else "tested by no pair that the model did not learn from"
            )
        return "; ".join(parts)


def sentence_about(measured: Mapping[str, Measured]) -> str:
    """Put what was measured of several properties into words, or return "" without any."""
    known = [m.sentence for m in measured.values() if m.after is not None or m.bound or m.changes]
    if known or not measured:
        return "; ".join(known)
    return next(iter(measured.values())).sentence  # the same for all


COLUMNS = (  # of a table of cliffs
    *("a", "b", "smiles_a", "smiles_b", "value_a", "value_b"),
    *("difference", "similarity", "core"),
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

        return pd.DataFrame([self._cells(cliff) for cliff in self], columns=list(COLUMNS))

    def _cells(self, cliff: Cliff) -> dict[str, Any]:
        rows = {"a": cliff.a, "b": cliff.b}
        smiles = {f"smiles_{end}": self._smiles[row] for end, row in rows.items()}
        values = {f"value_{end}": float(self._values[row]) for end, row in rows.items()}
        return rows | smiles | values | asdict(cliff)

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
    2, 2,048 bits, no chirality) is at least `similarity`. They are compared in the form in which
    models read them. Two rows with the same molecule are not a cliff, but two stereoisomers can be.

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
    given = list(smiles)
    try:
        measured = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"values must be numbers, and NaN where nothing but a bound is known: {error}."
        ) from error
    if measured.shape != (len(given),):
        raise ValueError(f"{len(given)} molecules, but values of shape {measured.shape}.")
    if not (0 < similarity <= 1 and difference > 0):
        raise ValueError("similarity must lie in (0, 1] and difference above 0.")
    used = np.flatnonzero(np.isfinite(measured)).tolist()
    with rdBase.BlockLogs():
        forms = read_molecules([given[row] for row in used], MAX_ATOMS, "parent", canonical=True)
    read = dict(zip(used, forms, strict=True))
    molecules = {row: each.form for row, each in read.items() if isinstance(each, ReadMolecule)}
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
