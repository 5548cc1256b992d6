"""Intervals and tests: no figure without its n, no difference without its p."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Interval:
    """A mean over n graphs with its bootstrap interval."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Comparison:
    """Two methods on the same graphs: mean difference, Wilcoxon's p, effect size d_z.

    `p_adjusted` is Holm's, over all comparisons made together.
    """

    first: str
    second: str
    difference: Interval
    p: float
    p_adjusted: float
    effect: float

    @property
    def significant(self) -> bool:
        """Whether the difference holds at 5 %, after Holm's correction."""
        return self.p_adjusted < 0.05


def bootstrap(
    values: ArrayLike, *, level: float = 0.95, draws: int = 4000, seed: int = 0
) -> Interval:
    """Mean of values (n,) with the percentile interval over `draws` resamplings of the graphs."""
    sample = np.asarray(values, dtype=float)
    if sample.ndim != 1 or not len(sample):
        raise ValueError("an interval needs at least one value.")
    picks = np.random.default_rng(seed).integers(0, len(sample), (draws, len(sample)))
    low, high = np.quantile(sample[picks].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(sample.mean()), float(low), float(high), len(sample))


def compare_pairs(
    values: dict[str, NDArray[np.floating]], pairs: list[tuple[str, str]], *, seed: int = 0
) -> list[Comparison]:
    """Wilcoxon's signed-rank test of each pair of methods on the same graphs, Holm-corrected.

    values: one array (n,) a method, in the same order of graphs.
    """
    from scipy.stats import wilcoxon

    tested = []
    for first, second in pairs:
        difference = np.asarray(values[first], float) - np.asarray(values[second], float)
        p = float(wilcoxon(difference).pvalue) if np.any(difference) else 1.0
        spread = difference.std(ddof=1) if len(difference) > 1 else 0.0
        effect = float(difference.mean() / spread) if spread > 0 else 0.0
        tested.append((first, second, bootstrap(difference, seed=seed), p, effect))
    adjusted = holm([p for *_, p, _ in tested])
    return [
        Comparison(first, second, interval, p, adjusted[k], effect)
        for k, (first, second, interval, p, effect) in enumerate(tested)
    ]


def holm(p_values: list[float]) -> list[float]:
    """Holm's step-down adjustment (Holm 1979), in the order given."""
    count, adjusted, running = len(p_values), [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        running = max(running, min(1.0, (count - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted
