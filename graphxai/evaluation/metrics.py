"""Metrics of faithfulness. Each is a function of a graph's `Series`.

In their descriptions, p is the probability of the explained class for the whole graph, p(top k) for
only the k most relevant nodes, and p(rest k) for the graph without them. If a source averages over
a data set, the metric here is the contribution of one graph, so that every mean comes with an
interval.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter, signature
from typing import TypeAlias

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from graphxai.runtime.notices import warn
from graphxai.runtime.options import did_you_mean

from .curves import Curve, Series
from .truth_metrics import NODE_METRICS, PIXEL_METRICS, SHARE_METRICS, SIGNED_METRICS, metrics_for

MetricNames: TypeAlias = "str | Callable[..., float] | Sequence[str | Callable[..., float]]"
OLD = {"partial_sums", "partial_sums_scaled"}  # equal scores may win them
TENTHS = tuple(k / 10 for k in range(1, 10))
DEFAULT_METRICS = ("auac", "au_mse", "srg", "exchange_error")
BINS = (0.01, 0.05, 0.1, 0.2, 0.5)  # DeYoung 2019, section 4
EXPLANATION = 0.25  # the share of the nodes that Agarwal 2023 counts as the explanation


@dataclass(frozen=True)
class Metric:
    """How an explanation is measured.

    Args:
        name: the name of the metric.
        higher_is_better: whether larger values are better.
        source: the paper that defines it.
        summary: what it measures, in one line.
        measure: computes it from a graph's `Series`. It is None if the metric needs more than that,
            see `measure`.
        classes_only: whether it needs probabilities, so that it does not apply to a regression.
        removal: whether it depends on how nodes are removed.
        coalitions: whether it needs the outputs for random coalitions of nodes.
        with_truth: whether it compares relevance with a known truth. `measure` is then a function
            `(relevance, truth) -> float` of two arrays, see `truth_metrics.metrics_for`.
    """

    name: str
    higher_is_better: bool
    source: str
    summary: str
    measure: Callable[..., float] | None
    classes_only: bool = False
    removal: bool = True
    coalitions: bool = False
    with_truth: bool = False

    @property
    def direction(self) -> str:
        """Which way is better, as text."""
        return "higher is better" if self.higher_is_better else "lower is better"


METRICS: dict[str, Metric] = {}


def _of_function(measure: Callable[..., float], higher_is_better: bool, source: str) -> Metric:
    """Return a function as a metric: of a graph's series, or of its relevance and its truth."""
    arguments = [
        parameter
        for parameter in signature(measure).parameters.values()
        if parameter.default is Parameter.empty and parameter.kind != Parameter.VAR_KEYWORD
    ]
    if len(arguments) not in (1, 2):
        raise ValueError(
            f"the metric {measure.__name__} takes {len(arguments)} arguments: it should take a"
            " graph's Series, or its relevance and its truth."
        )
    name, summary = measure.__name__, (measure.__doc__ or "").partition("\n")[0]
    truth = len(arguments) == 2
    return Metric(
        name, higher_is_better, source, summary, measure, removal=not truth, with_truth=truth
    )


def metric(
    higher_is_better: bool,
    source: str,
    *,
    classes_only: bool = False,
    removal: bool = True,
    coalitions: bool = False,
) -> Callable[[Callable[..., float]], Callable[..., float]]:
    """Register a function of a graph's `Series` as a metric under the function's name.

    The first line of its docstring becomes the summary. Arguments are as for `Metric`. A function
    of two arguments gets a graph's relevance and its truth instead.
    """

    def add(measure: Callable[..., float]) -> Callable[..., float]:
        made = _of_function(measure, higher_is_better, source)
        removal_counts = removal and not made.with_truth
        METRICS[made.name] = replace(
            made, classes_only=classes_only, removal=removal_counts, coalitions=coalitions
        )
        return measure

    return add


@metric(True, "Ali 2022, node activation")
def auac(series: Series) -> float:
    """Area under p(top k) against the fraction of nodes."""
    return series.activation.area


@metric(False, "Ali 2022, node pruning")
def au_mse(series: Series) -> float:
    """Area under the squared distance of logits as nodes of small |relevance| are removed."""
    return series.pruning.area


@metric(True, "Blücher 2024, symmetric relevance gain")
def srg(series: Series) -> float:
    """Area between p(top k) and p(rest k), which depends only on the order of the nodes."""
    fractions, both = series.fractions, series.with_top - series.without_top
    return Curve(fractions, both).area


@metric(False, "Chefer 2021b, positive perturbation", classes_only=True)
def positive_perturbation(series: Series) -> float:
    """Share of k = 10 %, ... 90 % at which the explained class still wins without the top k."""
    return _mean(_winner(series.logits_without_top, series, k) == series.explained for k in TENTHS)


@metric(True, "Chefer 2021b, negative perturbation", classes_only=True)
def negative_perturbation(series: Series) -> float:
    """Share of k = 10 %, ... 90 % at which the explained class still wins without the bottom k."""
    return _mean(_winner(series.logits_with_top, series, 1 - k) == series.explained for k in TENTHS)


@metric(True, "Song 2024, appendix D")
def aopc(series: Series) -> float:
    """Mean of p - p(rest k) over k = 10 %, 20 %, ... 90 % of the nodes."""
    rest = series.without_top
    return _mean(series.full - series.at(rest, k) for k in TENTHS)


@metric(False, "Song 2024, appendix D", classes_only=True)
def lodds(series: Series) -> float:
    """Mean of ln(p(rest k) / p) over k = 10 %, 20 %, ... 90 % of the nodes."""
    tiny, rest, full = 1e-12, series.without_top, max(series.full, 1e-12)
    return _mean(math.log(max(series.at(rest, k), tiny) / full) for k in TENTHS)


@metric(True, "DeYoung 2019, eq. 1 and 3")
def comprehensiveness(series: Series) -> float:
    """Mean of p - p(rest k) over k = 1 %, 5 %, 10 %, 20 %, 50 % of the nodes."""
    rest = series.without_top
    return _mean(series.full - series.at(rest, k) for k in BINS)


@metric(False, "DeYoung 2019, eq. 2 and 3")
def sufficiency(series: Series) -> float:
    """Mean of p - p(top k) over k = 1 %, 5 %, 10 %, 20 %, 50 % of the nodes."""
    top = series.with_top
    return _mean(series.full - series.at(top, k) for k in BINS)


@metric(True, "Amara 2022, fidelity+ (model), hard", classes_only=True)
def fidelity_plus(series: Series) -> float:
    """Share of k = 10 %, ... 90 % at which the predicted class changes without the top k."""
    predicted = _winner(series.logits_with_top, series, 1.0)
    return _mean(_winner(series.logits_without_top, series, k) != predicted for k in TENTHS)


@metric(False, "Amara 2022, fidelity- (model), hard", classes_only=True)
def fidelity_minus(series: Series) -> float:
    """Share of k = 10 %, ... 90 % at which the top k alone give another predicted class."""
    predicted = _winner(series.logits_with_top, series, 1.0)
    return _mean(_winner(series.logits_with_top, series, k) != predicted for k in TENTHS)


@metric(True, "Amara 2022, characterisation score", classes_only=True)
def characterisation(series: Series) -> float:
    """Harmonic mean of fidelity+ and 1 - fidelity-; 0 if both are 0."""
    plus, minus = fidelity_plus(series), fidelity_minus(series)
    total = plus + 1 - minus
    return 2 * plus * (1 - minus) / total if total else 0.0


@metric(False, "Agarwal 2023, graph explanation unfaithfulness", classes_only=True)
def unfaithfulness(series: Series) -> float:
    """1 - exp(-KL(p, p(top 25 %))) over all classes."""
    full = series.logits_with_top[-1].double().log_softmax(-1)
    part = series.logits_with_top[series.step(EXPLANATION)].double().log_softmax(-1)
    divergence = float((full.exp() * (full - part)).sum())
    return 1 - math.exp(-max(divergence, 0.0))


@metric(False, "Yeh 2019, infidelity, with coalitions of one size exchanged", coalitions=True)
def exchange_error(series: Series) -> float:
    """Error of what sums of relevance say when nodes are exchanged for others; 1 if all are equal.

    Coalitions are compared in pairs of one size: the difference d of the explained values with the
    difference s of the sums of relevance. The error is mean((d - a s)^2) / mean(d^2), with the best
    factor a that is not negative. It is 0 for the terms of an additive model, 1 for equal scores,
    and NaN if no exchange changes the value.
    """
    if series.coalitions is None or series.logits_of_coalitions is None:
        return float("nan")
    moved = _exchanged(series.explained_value(series.logits_of_coalitions))
    predicted = _exchanged(series.coalitions.double() @ series.relevance.double())
    factor = max(float(predicted @ moved) / max(float(predicted @ predicted), 1e-300), 0.0)
    size = float(moved.square().sum())
    return float((moved - factor * predicted).square().sum()) / size if size else float("nan")


def size_share(series: Series) -> float:
    """Return the share of the variance of values over coalitions that follows from their size.

    The rest is half of the mean squared difference in pairs of one size. The share depends on the
    model and the graph, and on no method. It is NaN if the value is constant.
    """
    if series.logits_of_coalitions is None:
        return float("nan")
    value = series.explained_value(series.logits_of_coalitions)
    variance = float(value.var())
    within = float(_exchanged(value).square().mean()) / 2
    return 1 - within / variance if variance else float("nan")


def _exchanged(of_coalitions: Tensor) -> Tensor:
    """Return the difference (S // 2,) in each pair of coalitions of one size, from figures (S,)."""
    first, second = of_coalitions[: len(of_coalitions) // 2 * 2].view(-1, 2).T
    return first - second


@metric(False, "Yeh 2019, infidelity, with coalitions as perturbations", coalitions=True)
def partial_sums(series: Series) -> float:
    """Old: error of the sums of relevance over coalitions, which equal scores may win."""
    return _error_of_sums(series, scaled=False)


@metric(False, "Yeh 2019, infidelity, with coalitions as perturbations", coalitions=True)
def partial_sums_scaled(series: Series) -> float:
    """Old: `partial_sums` of relevance scaled by the best factor, which equal scores may win."""
    return _error_of_sums(series, scaled=True)


def _error_of_sums(series: Series, scaled: bool) -> float:
    """Compute the mean of (v(S) - v(none) - sum of R over S)^2 over coalitions, over v's variance.

    v is the explained logit, the difference of two if they are one logit's, or the value. The error
    is 0 for the terms of an additive model, and NaN if v is constant. Where v follows from how many
    nodes are there, a score of one for every node has a small error.
    """
    if series.coalitions is None or series.logits_of_coalitions is None:
        return float("nan")
    value = series.explained_value(series.logits_of_coalitions)
    gain = value - series.explained_value(series.logits_with_top[:1])
    sums = series.coalitions.double() @ series.relevance.double()
    if scaled:
        sums = sums * float(sums @ gain) / max(float(sums @ sums), 1e-300)
    variance = float(value.var(correction=0))
    return float((gain - sums).square().mean()) / variance if variance else float("nan")


@metric(True, "Chalasani 2020, Gini index", removal=False)
def sparsity(series: Series) -> float:
    """Gini index of |relevance|: 0 if all nodes are equal, near 1 if one node has it all."""
    size = series.relevance.double().abs().sort().values
    n, total = len(size), float(size.sum())
    if not total:
        return float("nan")
    rank = torch.arange(1, n + 1, dtype=torch.double)
    return float((size * (2 * rank - n - 1)).sum() / (n * total))


@metric(False, "Bhatt 2020, complexity", removal=False)
def complexity(series: Series) -> float:
    """Entropy (nats) of each node's share of the sum of |relevance|."""
    size = series.relevance.double().abs()
    if not float(size.sum()):
        return float("nan")
    return float(torch.special.entr(size / size.sum()).sum())


for _name, _source, _summary in (  # of checks that change the model, see `measure`
    ("max_sensitivity", "Yeh 2019, max-sensitivity", "Largest relative change of the scores under"
     " small noise on the node embeddings."),
    ("model_randomisation", "Adebayo 2018, cascading randomisation", "|Spearman correlation| of the"
     " scores with those of the model after shuffling weights."),
):  # fmt: skip
    METRICS[_name] = Metric(_name, False, _source, _summary, None, removal=False)

# Measured by models that are trained anew, and not from curves (see `learning.refit`).
_summary = "p minus p of models trained without the top share of the nodes, mean over shares."
ROAR = Metric("roar", True, "Hooker 2019; Amara 2023", _summary, measure=None, classes_only=True)

# Of a known truth. They are measured where `evaluate` is given truths.
TRUTH_METRICS: dict[str, Metric] = {
    name: replace(_of_function(measure, True, "known truth"), name=name)
    for of_kind in (NODE_METRICS, SHARE_METRICS, SIGNED_METRICS, PIXEL_METRICS)
    for name, measure in of_kind.items()
}


def known_metric(name: str) -> Metric | None:
    """Return the metric of this name, or None for a name that is not registered."""
    return METRICS.get(name) or TRUTH_METRICS.get(name)


def higher_is_better(name: str) -> bool:
    """Return whether larger values of a metric are better, as those of functions of a user are."""
    return bool(getattr(known_metric(name), "higher_is_better", True))


def choose_metrics(
    names: "MetricNames", kind: str, truths: Sequence[ArrayLike] = ()
) -> list[Metric]:
    """Return metrics for a kind of task, where "all" means those that fit it, without old ones.

    A function that is not registered counts as a metric of which more is better. With truths, the
    first metric that fits them is added if none of them is among the names.

    Raises ValueError if a metric is unknown, does not fit the task, or needs truths.
    """
    fitting = [TRUTH_METRICS[name] for name in metrics_for(truths[0])] if truths else []
    if isinstance(names, str) and names == "all":
        every = (m for n, m in METRICS.items() if n not in OLD and (truths or not m.with_truth))
        return [m for m in every if not (m.classes_only and kind == "regression")] + fitting
    given = [names] if isinstance(names, str) or callable(names) else list(dict.fromkeys(names))
    chosen = [_chosen(each) for each in given]
    for old in {each.name for each in chosen} & OLD:
        warn(
            f"the metric {old!r} will be removed: scores that grow with the number of nodes win"
            " it, even equal ones. Take 'exchange_error', which compares sets of one size.",
            FutureWarning,
            stacklevel=6,  # of the call of `evaluate`, beneath its two decorators
        )
    if not chosen:
        raise ValueError(f"no metric given; choose from {', '.join(METRICS)}.")
    for each in chosen:
        if each.classes_only and kind == "regression":
            raise ValueError(f"metric {each.name!r} needs probabilities, which a regression lacks.")
        if each.with_truth and not truths:
            raise ValueError(f"metric {each.name!r} compares with a truth: give truths=.")
        if each.name in TRUTH_METRICS and each not in fitting:
            listed = ", ".join(metric.name for metric in fitting)
            raise ValueError(f"metric {each.name!r} does not fit the truths; {listed} do.")
    return chosen if any(each.with_truth for each in chosen) else chosen + fitting[:1]


def _chosen(given: "str | Callable[..., float]") -> Metric:
    """Return a metric by its name, or that of a function."""
    if not (isinstance(given, str) or callable(given)):
        raise TypeError(f"a metric is a name or a function, not {type(given).__name__}.")
    if not isinstance(given, str):
        made = _of_function(given, True, "a function of the user")
        registered = known_metric(made.name)
        if registered is not None and registered.measure is not given:
            raise ValueError(f"there is a metric {made.name!r} already: rename the function.")
        return registered or made
    if (registered := known_metric(given)) is None:
        hint = did_you_mean(given, (*METRICS, *TRUTH_METRICS))
        raise ValueError(f"unknown metric {given!r}; choose from {', '.join(METRICS)}.{hint}")
    return registered


def _winner(logits: torch.Tensor, series: Series, fraction: float) -> int:
    """Return the class with the largest logit at a fraction of the nodes."""
    return int(logits[series.step(fraction)].argmax())


def _mean(values: Iterable[float]) -> float:
    figures = list(values)
    return sum(figures) / len(figures)
