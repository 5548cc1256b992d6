"""Measure all values for all methods on a chunk of graphs, in shared forward passes.

Two checks change the model instead of the graph, to see that an explanation depends on what it
should:

* `max_sensitivity`: small noise on the node embeddings should change the scores only a little
  (Yeh 2019).
* `model_randomisation`: a model with shuffled weights should get a different explanation
  (Adebayo 2018). Weights are shuffled in stages, from the output to the input.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graphxai.contract.batch import GraphBatch
from graphxai.contract.inputs import Input
from graphxai.contract.target import Target
from graphxai.explainers import Explainer
from graphxai.explainers.control import Reverse
from graphxai.explanation.compute.explaining import explanations_or_errors
from graphxai.explanation.compute.models import Model
from graphxai.explanation.explanation import Explanation
from graphxai.wrapping.eval_replica import copied
from graphxai.wrapping.removal import Operator, Resampling

from .curves import Series, several_series
from .ground_truth import comparable_relevance
from .metrics import Metric, size_share
from .statistics import relative_change
from .store import GRID, NO_REMOVAL, SIZE_SHARE, Key, Unit
from .truth_metrics import rank_correlation

COALITIONS = 64  # drawn for each graph
Item = tuple[Key, Input]
# by graph, the values of checks that change the model, and those of each stage, see `Unit.stages`
Checks = dict[Key, tuple[dict[str, float], dict[str, float]]]


@dataclass(frozen=True)
class MeasurementPlan:
    """What to measure on every graph.

    Args:
        steps: the number of points of a curve. None takes every number of nodes.
        judges: by operator, the model that computes the curves in place of the explained model.
        resampling: how `resample` draws atoms, if it is among the operators.
        truths: by key, what is known to be true of the graphs, see `truth_metrics.metrics_for`.
    """

    explainers: tuple[Explainer, ...]
    metrics: tuple[Metric, ...]
    operators: tuple[Operator, ...]
    steps: int | None
    seed: int
    judges: Mapping[str, Model] = field(default_factory=dict)
    resampling: Resampling | None = None
    truths: Mapping[Key, NDArray[Any]] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Return whether the metric of this name is wanted."""
        return any(metric.name == name for metric in self.metrics)


def measure(
    model: Model,
    plan: MeasurementPlan,
    chunk: Sequence[Item],
    target: Target,
    done: set[tuple[Key, str]],
) -> Iterator[list[Unit]]:
    """Yield the units of each graph of a chunk, except for those already done."""
    explanations: dict[str, dict[Key, Explanation | str]] = {}
    checks: dict[str, Checks] = {}
    seconds: dict[str, float] = {}  # the time of one explanation, by method
    for explainer in plan.explainers:
        left = [item for item in chunk if (item[0], explainer.name) not in done]
        if not left:
            continue
        begun = perf_counter()
        before = _reversed(explainer, plan, explanations, left)
        explained = before or explained_or_reason(model, left, explainer, target)
        explanations[explainer.name] = explained
        seconds[explainer.name] = (perf_counter() - begun) / len(left)
        checks[explainer.name] = _checked(model, plan, left, explainer, target, explained)
    by_graph = {
        key: {name: by_key[key] for name, by_key in explanations.items() if key in by_key}
        for key, _ in chunk
    }
    series = _series(model, plan, chunk, by_graph, target)
    for key, item in chunk:
        units = []
        for unit in _units(plan, key, item, by_graph[key], series.get(key, {})):
            added, stages = checks[unit.method].get(key, ({}, {}))
            others = unit.values.get(NO_REMOVAL, {})
            values = unit.values | ({NO_REMOVAL: others | added} if added else {})
            time = seconds[unit.method]
            units.append(replace(unit, values=values, stages=stages, seconds=time))
        yield units


def _reversed(
    explainer: Explainer,
    plan: MeasurementPlan,
    explanations: Mapping[str, Mapping[Key, Explanation | str]],
    items: Sequence[Item],
) -> dict[Key, Explanation | str]:
    """Turn the sign of explanations that are there already, for the control that does so."""
    if not (isinstance(explainer, Reverse) and explainer.reversed in plan.explainers):
        return {}
    first = explanations.get(explainer.reversed.name, {})
    if any(key not in first for key, _ in items):
        return {}
    return {
        key: e if isinstance(e, str) else replace(e, relevance=-e.relevance, ledger=None)
        for key, e in ((key, first[key]) for key, _ in items)
    }


def explained_or_reason(
    model: Any, items: Sequence[Item], explainer: Explainer, target: Target
) -> dict[Key, Explanation | str]:
    """Return each graph's explanation, or the reason why there is none.

    A user's method may raise any exception. It becomes the note of the row.
    """
    try:
        computed = dict(explanations_or_errors(model, items, explainer, target=target))
    except Exception as error:
        if len(items) == 1:
            return {items[0][0]: f"{type(error).__name__}: {error}"}
        alone = [explained_or_reason(model, [item], explainer, target) for item in items]
        return {key: value for by_key in alone for key, value in by_key.items()}
    not_finite = "the scores are not finite."
    return {
        key: not_finite if isinstance(explanation, Exception) else explanation
        for key, explanation in computed.items()
    }


def _series(
    model: Model,
    plan: MeasurementPlan,
    chunk: Sequence[Item],
    explanations: Mapping[Key, Mapping[str, Explanation | str]],
    target: Target,
) -> dict[Key, dict[str, dict[str, Series]]]:
    """Return the series by key, operator and method, for all graphs of a chunk together.

    If no metric removes nodes, two points are enough, and the operator is "none".
    """
    good = {
        key: {n: torch.from_numpy(e.relevance) for n, e in of.items() if isinstance(e, Explanation)}
        for key, of in explanations.items()
    }
    items = [(key, item) for key, item in chunk if good[key]]
    graphs = [item for _, item in items]
    scores = [list(good[key].values()) for key, _ in items]
    series: dict[Key, dict[str, dict[str, Series]]] = {key: {} for key, _ in items}
    removes = any(metric.removal for metric in plan.metrics)
    wanted: list[tuple[str, Operator, int | None]] = [(NO_REMOVAL, "mask", 2)]
    if removes:
        wanted = [(name, name, plan.steps) for name in plan.operators]
    for name, operator, steps in wanted if items else ():
        judge = plan.judges.get(name, model)
        options: dict[str, Any] = {"operator": operator, "resampling": plan.resampling}
        if any(metric.coalitions for metric in plan.metrics):
            options["coalitions"] = COALITIONS
        curves = several_series(judge, graphs, scores, target, steps=steps, **options)
        for (key, _), of_graph in zip(items, curves, strict=True):
            series[key][name] = dict(zip(good[key], of_graph, strict=True))
    return series


def unmeasured(
    plan: MeasurementPlan, key: Key, item: Input, note: str, done: set[tuple[Key, str]]
) -> list[Unit]:
    """Return the units of a graph that could not be measured, with a note that says why."""
    names = [explainer.name for explainer in plan.explainers if (key, explainer.name) not in done]
    return _units(plan, key, item, dict.fromkeys(names, note), {})


def _units(
    plan: MeasurementPlan,
    key: Key,
    item: Input,
    explanations: Mapping[str, Explanation | str],
    series: Mapping[str, Mapping[str, Series]],
) -> list[Unit]:
    """Return one unit for each method on one graph, given its series by operator and method."""
    blank = Unit("", key, "", "", item.num_nodes)
    units = []
    for name, explanation in explanations.items():
        if isinstance(explanation, str):
            undefined: dict[str, dict[str, float]] = {}
            for metric in plan.metrics:
                for operator in plan.operators if metric.removal else (NO_REMOVAL,):
                    undefined.setdefault(operator, {})[metric.name] = float("nan")
            units.append(replace(blank, method=name, values=undefined, note=explanation))
            continue
        series_of_method = {operator: of[name] for operator, of in series.items()}
        ledger = explanation.ledger.to_dict() if explanation.ledger else {}
        units.append(
            replace(
                blank,
                method=name,
                target=explanation.target,
                values=_with_truth(plan, key, explanation, _values(plan, series_of_method)),
                curves={
                    operator: _curves(of_operator)
                    for operator, of_operator in series_of_method.items()
                    if operator != NO_REMOVAL and not of_operator.is_undefined
                },
                ledger={k: v for k, v in ledger.items() if isinstance(v, float)},
            )
        )
    return units


def _values(plan: MeasurementPlan, series: Mapping[str, Series]) -> dict[str, dict[str, float]]:
    """Return all values that follow from the curves. Those of undefined curves are NaN."""
    values: dict[str, dict[str, float]] = {}
    for metric in plan.metrics:
        if metric.measure is None or metric.with_truth:
            continue
        measured = series if metric.removal else {NO_REMOVAL: next(iter(series.values()))}
        for operator, of_operator in measured.items():
            undefined = metric.removal and of_operator.is_undefined
            value = float("nan") if undefined else float(metric.measure(of_operator))
            values.setdefault(operator, {})[metric.name] = value
            if metric.coalitions and not undefined:
                values[operator][SIZE_SHARE] = size_share(of_operator)
    return values


def _with_truth(
    plan: MeasurementPlan, key: Key, explanation: Explanation, values: dict[str, dict[str, float]]
) -> dict[str, dict[str, float]]:
    """Add to a graph's values how its relevance agrees with its truth, NaN if it has none."""
    truth, scores = plan.truths.get(key), {}
    for metric in plan.metrics:
        if metric.with_truth and metric.measure is not None:
            relevance = None if truth is None else comparable_relevance(explanation, truth)
            scores[metric.name] = (
                float("nan") if relevance is None else float(metric.measure(relevance, truth))
            )
    return values | {NO_REMOVAL: values.get(NO_REMOVAL, {}) | scores} if scores else values


def _curves(series: Series) -> dict[str, list[float]]:
    """Return activation and pruning on the common grid of fractions."""
    curves = {"activation": series.activation, "pruning": series.pruning}
    return {
        name: np.interp(GRID, curve.fractions.numpy(), curve.values.numpy()).tolist()
        for name, curve in curves.items()
    }


def _checked(
    model: Model,
    plan: MeasurementPlan,
    items: Sequence[Item],
    explainer: Explainer,
    target: Target,
    explained: Mapping[Key, Explanation | str],
) -> Checks:
    """Compare each graph's scores with those for changed models, see the top of this file."""
    before = {key: e.relevance for key, e in explained.items() if isinstance(e, Explanation)}
    again = [item for item in items if item[0] in before]
    checks: Checks = {key: ({}, {}) for key in before}

    def compared(changed: Any, compare: Any) -> Iterator[tuple[Key, str, float]]:
        for name, other in changed if again else ():
            for key, after in explained_or_reason(other, again, explainer, target).items():
                if isinstance(after, Explanation):
                    yield key, name, compare(before[key], after.relevance)
                else:
                    yield key, name, float("nan")

    if plan.has("max_sensitivity"):
        first = plan.seed * DRAWS
        noisy = ((str(k), NoisyModel(model, first + k)) for k in range(DRAWS))
        for key, _, change in compared(noisy, relative_change):
            values = checks[key][0]  # of the largest change, which is undefined if any is
            largest = np.maximum(values.get("max_sensitivity", change), change)
            values["max_sensitivity"] = float(largest)
    if plan.has("model_randomisation"):
        shuffled = shuffled_stages(model, plan.seed)
        for key, block, correlation in compared(shuffled, rank_correlation):
            values, stages = checks[key]
            values["model_randomisation"] = stages[block] = abs(correlation)
    return checks


NOISE = 0.05  # standard deviation, as a share of the root mean square of a graph's embeddings
DRAWS = 4  # how often noise is drawn


class NoisyModel:
    """A model with seeded Gaussian noise on its node embeddings, and otherwise unchanged.

    The noise for a graph depends only on the seed and on its number of nodes, so it is the same for
    every method and in every batch.
    """

    def __init__(self, model: Any, seed: int) -> None:
        self._model = model
        self._seed = seed

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # a copy looks these up before it has a model
            raise AttributeError(name)
        return getattr(self._model, name)

    def __call__(self, batch: GraphBatch) -> Tensor:
        """Return the outputs (B, num_outputs) with noise on the nodes."""
        return self.encode(self.embed(batch), batch)

    def embed(self, batch: GraphBatch) -> Tensor:
        """Return the tokens (B, T, D) of the model, with noise on the nodes."""
        tokens: Tensor = self._model.embed(batch)
        noisy = tokens.clone()
        for b, n in enumerate(batch.num_nodes.tolist()):
            nodes = tokens[b, 1 : n + 1]
            generator = torch.Generator().manual_seed(self._seed * 100_003 + n)
            draw = torch.randn(nodes.shape, generator=generator, dtype=torch.float).to(nodes)
            size = nodes.detach().square().mean().sqrt()
            noisy[b, 1 : n + 1] = nodes + NOISE * size * draw
        return noisy

    def encode(self, tokens: Tensor, batch: GraphBatch, *args: Any, **options: Any) -> Tensor:
        """Return the outputs of the model."""
        return self._model.encode(tokens, batch, *args, **options)

    def split_by_feature(self, batch: GraphBatch, gradient: Tensor) -> Tensor | None:
        """Return None, because with noise an embedding is no longer the sum of its features."""
        return None


def shuffled_stages(model: Any, seed: int = 0) -> Iterator[tuple[str, Any]]:
    """Shuffle more and more weights in a copy of the model, from the output to the input.

    Yields the name of the block that was shuffled last, and the model. The entries of each
    parameter are permuted, so their distribution stays the same. All stages yield the same copy,
    and the original model does not change.
    """
    shuffled = copied(model)
    generator = torch.Generator().manual_seed(seed)
    for name, parameters in reversed(_blocks(getattr(shuffled, "module", shuffled)).items()):
        with torch.no_grad():
            for parameter in parameters:
                order = torch.randperm(parameter.numel(), generator=generator)
                parameter.copy_(parameter.flatten()[order.to(parameter.device)].view_as(parameter))
        yield name, shuffled


def _blocks(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return the parameters by block in the model's order: `layers.0`, `layers.1`, ..., `head`."""
    blocks: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        first, *rest = name.split(".")
        block = f"{first}.{rest[0]}" if rest and rest[0].isdigit() else first
        blocks.setdefault(block, []).append(parameter)
    return blocks
