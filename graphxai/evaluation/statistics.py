"""Intervals and tests: no value without its n, no difference without its p."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import pandas as pd

_MEASURED = ("n", "difference", "low", "high", "p", "p_holm", "effect")
KEPT = 1000  # resamplings of up to so many graphs stay in memory, 32 MB
COLUMNS = ("first", "second", *_MEASURED, "significant")


@dataclass(frozen=True)
class Interval:
    """A mean over n graphs with its bootstrap interval."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if not self.n:
            return "undefined"
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Comparison:
    """Two methods compared on the same graphs.

    Args:
        first, second: the methods.
        difference: mean of first minus second, with its interval.
        p: of Wilcoxon's signed-rank test.
        p_adjusted: p, Holm-corrected over all comparisons made together.
        effect: the effect size d_z, the mean difference divided by its standard deviation.
    """

    first: str
    second: str
    difference: Interval
    p: float
    p_adjusted: float
    effect: float

    @property
    def significant(self) -> bool:
        """Whether the difference is significant at 5 % after Holm's correction."""
        return self.p_adjusted < 0.05

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        if not self.significant:
            return "not significant"
        return f"{self.first} {'higher' if self.difference.mean > 0 else 'lower'}"

    def __str__(self) -> str:
        graphs = f"{self.difference.n} graphs"
        return (
            f"{self.first} against {self.second}: {self.difference} over {graphs},"
            f" p = {self.p_adjusted:.2g} (Holm), d_z = {self.effect:+.2f}: {self.verdict}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a row of a table: methods, n, mean difference with interval, p, p_holm, effect."""
        d = self.difference
        measured = (d.n, d.mean, d.low, d.high, self.p, self.p_adjusted, self.effect)
        row = (self.first, self.second, *measured, self.significant)
        return dict(zip(COLUMNS, row, strict=True))

    def _repr_html_(self) -> str:
        return Comparisons([self])._repr_html_()


class Comparisons(list[Comparison]):
    """Comparisons made together (the family for Holm's correction), as a list and a table."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with a row per comparison; its columns are as in `Comparison.to_dict`."""
        import pandas as pd

        return pd.DataFrame([c.to_dict() for c in self], columns=list(COLUMNS))

    def _repr_html_(self) -> str:
        from graphxai.explanation.html import table_html

        head = ("first", "second", "n", "difference [95 %]", "p (Holm)", "effect d_z", "verdict")
        rows = []
        for c in self:
            measured = (c.difference.n, c.difference, f"{c.p_adjusted:.2g}", f"{c.effect:+.2f}")
            rows.append((c.first, c.second, *measured, c.verdict))
        return table_html(head, rows)


def bootstrap(
    values: ArrayLike, *, level: float = 0.95, draws: int = 4000, seed: int = 0
) -> Interval:
    """Return the mean of values (n,) with its percentile interval over resamplings of the graphs.

    NaN (a graph without a value) is skipped and not counted in n.

    Args:
        values: one per graph, (n,).
        level: share of the resampled means inside the interval.
        draws: how many resamplings.
        seed: of the resamplings.

    Raises:
        ValueError: if there are no values.
    """
    sample = np.asarray(values, dtype=float)
    if sample.ndim != 1 or not len(sample):
        raise ValueError("an interval needs at least one value.")
    sample = sample[np.isfinite(sample)]
    if not len(sample):
        return Interval(math.nan, math.nan, math.nan, 0)
    drawn = _drawn if len(sample) <= KEPT else _drawn.__wrapped__
    means = sample[drawn(len(sample), draws, seed)].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(sample.mean()), float(low), float(high), len(sample))


@lru_cache(2)
def _drawn(count: int, draws: int, seed: int) -> NDArray[np.int64]:
    """Draw the resamplings of so many graphs, which are the same for every method and pair."""
    return np.random.default_rng(seed).integers(0, count, (draws, count))


def compare_pairs(
    values: Mapping[str, NDArray[np.floating]],
    pairs: list[tuple[str, str]],
    *,
    others: Sequence[tuple[str, str]] = (),
    seed: int = 0,
) -> Comparisons:
    """Test each pair of methods on the same graphs by Wilcoxon's signed-rank test, Holm-corrected.

    Args:
        values: of each method, (n,), in the same order of graphs; a graph counts if both methods
            have a value for it.
        pairs: the methods to compare.
        others: further pairs that Holm's correction counts as tested too.
        seed: of the bootstrap intervals.
    """
    differences = []
    for first, second in (*pairs, *others):
        difference = np.asarray(values[first], float) - np.asarray(values[second], float)
        differences.append(difference[np.isfinite(difference)])
    p_values = [_signed_rank(d.tobytes()) if np.any(d) else 1.0 for d in differences]
    adjusted = holm(p_values)
    comparisons = Comparisons()
    for k, (first, second) in enumerate(pairs):
        difference = differences[k]
        spread = difference.std(ddof=1) if len(difference) > 1 else 0.0
        effect = float(difference.mean() / spread) if spread > 0 else 0.0
        interval = bootstrap(difference if len(difference) else [math.nan], seed=seed)
        comparisons.append(Comparison(first, second, interval, p_values[k], adjusted[k], effect))
    return comparisons


@lru_cache(4096)
def _signed_rank(differences: bytes) -> float:
    """Return the p value of Wilcoxon's signed-rank test; a saved report needs it twice."""
    from scipy.stats import wilcoxon

    return float(wilcoxon(np.frombuffer(differences)).pvalue)


def holm(p_values: list[float]) -> list[float]:
    """Return p values after Holm's step-down adjustment (Holm 1979), in their original order."""
    count, adjusted, running = len(p_values), [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        running = max(running, min(1.0, (count - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def kendall_tau(first: ArrayLike, second: ArrayLike) -> float:
    """Return Kendall's tau-b of two rankings, 1 if they agree; NaN if either is constant."""
    from scipy.stats import kendalltau

    return float(kendalltau(np.asarray(first, float), np.asarray(second, float)).statistic)
