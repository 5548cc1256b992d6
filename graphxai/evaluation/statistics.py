"""Intervals and tests, so that no value comes without its n and no difference without its p."""

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
KEPT = 1000  # resamplings of up to this many graphs stay in memory (32 MB)
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
        difference: the mean of first minus second, with its interval.
        p: the p value of Wilcoxon's signed-rank test.
        p_adjusted: p after Holm's correction over all comparisons made together.
        effect: the effect size d_z, which is the mean difference divided by its standard deviation.
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
        """The outcome as text."""
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
        """Return a table row: methods, n, difference with interval, p, p_holm, effect."""
        d = self.difference
        measured = (d.n, d.mean, d.low, d.high, self.p, self.p_adjusted, self.effect)
        row = (self.first, self.second, *measured, self.significant)
        return dict(zip(COLUMNS, row, strict=True))

    def _repr_html_(self) -> str:
        return Comparisons([self])._repr_html_()


class Comparisons(list[Comparison]):
    """Comparisons that Holm's correction counts together, as a list and a table."""

    def __repr__(self) -> str:
        """Return a text of one line for each comparison, which fills at most a screen."""
        from graphxai.explanation.labelled import short_text

        lines = [f"{c.first} against {c.second}: {c.difference}, {c.verdict}" for c in self]
        return short_text([f"{len(self)} comparison{'' if len(self) == 1 else 's'}", *lines])

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with a row per comparison, with the columns of `Comparison.to_dict`."""
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

    A graph without a value, which has NaN, is skipped and not counted in n.

    Args:
        values: a value for each graph (n,).
        level: the share of the resampled means inside the interval.
        draws: the number of resamplings.
        seed: the seed of the resamplings.

    Raises:
        ValueError: there are no values.
    """
    sample = np.asarray(values, dtype=float)
    if sample.ndim != 1 or not len(sample):
        raise ValueError("an interval needs at least one value.")
    sample = sample[np.isfinite(sample)]
    if not len(sample):
        return Interval(math.nan, math.nan, math.nan, 0)
    drawn = _resampled_indices if len(sample) <= KEPT else _resampled_indices.__wrapped__
    means = sample[drawn(len(sample), draws, seed)].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(sample.mean()), float(low), float(high), len(sample))


@lru_cache(2)
def _resampled_indices(count: int, draws: int, seed: int) -> NDArray[np.int64]:
    """Draw resamplings of `count` graphs, which are the same for every method and pair."""
    return np.random.default_rng(seed).integers(0, count, (draws, count))


def compare_pairs(
    values: Mapping[str, NDArray[np.floating]],
    pairs: list[tuple[str, str]],
    *,
    others: Sequence[tuple[str, str]] = (),
    seed: int = 0,
) -> Comparisons:
    """Test each pair of methods on the same graphs by Wilcoxon's test with Holm's correction.

    Args:
        values: the values (n,) of each method, in the same order of graphs. A graph counts if both
            methods have a value for it.
        pairs: the methods to compare.
        others: further pairs that Holm's correction counts as tested too.
        seed: the seed of the bootstrap intervals.
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
    """Return the p value of Wilcoxon's signed-rank test, which a saved report needs twice."""
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
    """Return Kendall's tau-b of two rankings, 1 if they agree, NaN if either is constant."""
    from scipy.stats import kendalltau

    return float(kendalltau(np.asarray(first, float), np.asarray(second, float)).statistic)


def relative_change(before: NDArray[np.floating], after: NDArray[np.floating]) -> float:
    """Return |after - before| / |before| in the Euclidean norm, or NaN if `before` is all zero."""
    size = float(np.linalg.norm(before))
    return float(np.linalg.norm(after - before)) / size if size else float("nan")
