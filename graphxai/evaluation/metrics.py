"""Faithfulness metrics: each is one function of a graph's `Series`.

p is the probability of the class explained for the whole graph, p(top k) that of the k most
relevant nodes alone, p(rest k) that without them.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .curves import Series

TENTHS = tuple(k / 10 for k in range(1, 10))
BINS = (0.01, 0.05, 0.1, 0.2, 0.5)  # DeYoung 2019, section 4


@dataclass(frozen=True)
class Metric:
    """A figure of merit: its name, which way is better, its source, its function."""

    name: str
    higher_is_better: bool
    source: str
    measure: Callable[[Series], float]
    probabilities_only: bool = False

    @property
    def direction(self) -> str:
        """Which way is better, in words."""
        return "higher is better" if self.higher_is_better else "lower is better"


METRICS: dict[str, Metric] = {}


def _metric(
    higher_is_better: bool, source: str, probabilities_only: bool = False
) -> Callable[[Callable[[Series], float]], Callable[[Series], float]]:
    def add(measure: Callable[[Series], float]) -> Callable[[Series], float]:
        name = measure.__name__
        METRICS[name] = Metric(name, higher_is_better, source, measure, probabilities_only)
        return measure

    return add


@_metric(True, "Ali 2022, node activation")
def auac(series: Series) -> float:
    """Area under p(top k) over the fraction of nodes."""
    return series.activation.area


@_metric(False, "Ali 2022, node pruning")
def au_mse(series: Series) -> float:
    """Area under the squared distance of logits as nodes of small |relevance| go."""
    return series.pruning.area


@_metric(True, "Song 2024, appendix D")
def aopc(series: Series) -> float:
    """Mean of p - p(rest k) over k = 10 %, 20 %, ... 90 % of the nodes."""
    return _mean(series.full - series.at(series.without_top, k) for k in TENTHS)


@_metric(False, "Song 2024, appendix D", probabilities_only=True)
def lodds(series: Series) -> float:
    """Mean of ln(p(rest k) / p) over k = 10 %, 20 %, ... 90 % of the nodes."""
    tiny = 1e-12
    return _mean(
        math.log(max(series.at(series.without_top, k), tiny) / max(series.full, tiny))
        for k in TENTHS
    )


@_metric(True, "DeYoung 2019, eq. 1 and 3")
def comprehensiveness(series: Series) -> float:
    """Mean of p - p(rest k) over k = 1 %, 5 %, 10 %, 20 %, 50 % of the nodes."""
    return _mean(series.full - series.at(series.without_top, k) for k in BINS)


@_metric(False, "DeYoung 2019, eq. 2 and 3")
def sufficiency(series: Series) -> float:
    """Mean of p - p(top k) over k = 1 %, 5 %, 10 %, 20 %, 50 % of the nodes."""
    return _mean(series.full - series.at(series.with_top, k) for k in BINS)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
