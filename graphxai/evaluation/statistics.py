"""Intervals and tests, so that no value comes without its n and no difference without its p."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from graphxai.explanation.labelled import short_text
from graphxai.explanation.result import table_html

if TYPE_CHECKING:
    import pandas as pd

_MEASURED = ("n", "difference", "low", "high", "p", "p_holm", "effect")
KEPT = 1000  # resamplings of up to this many graphs stay in memory (32 MB)
STEPS, RIDGE = 60, 1e-9  # of Newton's method
SURENESS = 0.25  # standard deviation of 1 - b, see `GroupTest`
FARTHEST = 30.0  # log-odds beyond which a probability is 0 or 1 in print
FloatArray = NDArray[np.float64]
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
        lines = [f"{c.first} against {c.second}: {c.difference}, {c.verdict}" for c in self]
        return short_text([f"{len(self)} comparison{'' if len(self) == 1 else 's'}", *lines])

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with a row per comparison, with the columns of `Comparison.to_dict`."""
        import pandas as pd

        return pd.DataFrame([c.to_dict() for c in self], columns=list(COLUMNS))

    def _repr_html_(self) -> str:
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


class GroupTest:
    """Test whether a model's outputs treat a group of objects as their labels do.

    The log-odds of the label, or the value, are `a + b f` for the output f of an object. A model
    that is too sure of itself has b below 1, which is no bias. Below 1, b has a normal prior around
    it, as a bias that dominates the output would otherwise pass for such a model.

    Two alternatives are fitted for each group. The first adds a constant to objects with the group,
    and its likelihood-ratio test has one degree of freedom (Wilks 1938, with the sample reduced by
    the number of weights). The second is `a + b (f - t r)` with t from 0 to 1, where r is the share
    of the group in the output. Groups that occur with a culprit fit the first almost as well, but
    not the second.

    Args:
        output: the output f of each object (n,).
        labelled: 0 or 1, or the measured value, of each object (n,).
        binary: whether labels are 0 or 1.
    """

    def __init__(self, output: FloatArray, labelled: FloatArray, *, binary: bool) -> None:
        self._output, self._labelled, self._binary = output, labelled, binary
        self._allowed: list[FloatArray] = []
        self._null, (_, slope) = self._fitted(output)
        self.slope = float(slope)

    def allow(self, group: NDArray[np.bool_], share: FloatArray) -> None:
        """Let later tests take for granted a constant and another share (n,) of this group (n,)."""
        self._allowed += [group.astype(float), share]
        self._null, _ = self._fitted(self._output)

    def __call__(self, group: NDArray[np.bool_], share: FloatArray) -> tuple[float, float, float]:
        """Test the objects with a group (n,), given its shares in the output (n,).

        Returns:
            The constant, the p that it is zero, and the log-likelihood that both alternatives gain.
        """
        from scipy.stats import chi2

        likelihood, weights = self._fitted(self._output, group.astype(float))
        shift = max(likelihood - self._null, 0.0)
        either, (_, slope, weight, *_) = self._fitted(self._output, share)
        without, _ = self._fitted(self._output - share)
        gains = [0.0, without - self._null]
        gains += [either - self._null] if -slope < weight < 0 else []
        reduced = 1 - len(weights) / len(group)
        return float(weights[2]), float(chi2.sf(2 * shift * reduced, 1)), shift + max(gains)

    def _fitted(self, output: FloatArray, *columns: FloatArray) -> tuple[float, FloatArray]:
        """Return the largest log-likelihood, and the weights of 1, of the output and of columns.

        It is found by Newton's method, with the variance of values at its likeliest.
        """
        design = np.stack([np.ones_like(output), output, *columns, *self._allowed], axis=1)
        weights = np.zeros(design.shape[1])
        reached = self._likelihood(design, weights)
        for _ in range(STEPS):
            fitted = design @ weights
            if self._binary:
                mean = 1 / (1 + np.exp(-fitted.clip(-FARTHEST, FARTHEST)))
                curvature, slope = (design.T * (mean * (1 - mean))) @ design, self._labelled - mean
            else:
                variance = max(float(np.mean((self._labelled - fitted) ** 2)), 1e-300)
                curvature = design.T @ design / variance
                slope = (self._labelled - fitted) / variance
            gradient = design.T @ slope
            if weights[1] < 1:
                curvature[1, 1] += 1 / SURENESS**2
                gradient[1] += (1 - weights[1]) / SURENESS**2
            step = np.linalg.solve(curvature + RIDGE * np.eye(len(weights)), gradient)
            while (after := self._likelihood(design, weights + step)) < reached:
                step = step / 2
                if np.abs(step).max() < 1e-9:
                    return reached, weights
            weights, gained, reached = weights + step, after - reached, after
            if gained < 1e-9:
                break
        return reached, weights

    def _likelihood(self, design: FloatArray, weights: FloatArray) -> float:
        """Return the log-likelihood of the labels with the prior of b, up to a constant."""
        fitted = design @ weights
        prior = -((max(1 - weights[1], 0.0) / SURENESS) ** 2) / 2
        if self._binary:
            fitted = fitted.clip(-FARTHEST, FARTHEST)
            return float((self._labelled * fitted - np.logaddexp(0, fitted)).sum()) + prior
        rest = max(float(np.mean((self._labelled - fitted) ** 2)), 1e-300)
        return -len(fitted) / 2 * math.log(rest) + prior
