"""Measure explainers on a data set, with every method on the same graphs, in resumable runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from graphxai.contract.inputs import as_list, prepare_each
from graphxai.contract.method_names import MEASURED_METHODS
from graphxai.explainers.control import with_controls
from graphxai.explainers.registry import Method, each_of, methods_for, seeded_explainer, told_apart
from graphxai.explanation.api import KnownTarget
from graphxai.explanation.compute.models import Model, loaded, mark_explained_for
from graphxai.runtime.device import on_cpu_by_default, on_device
from graphxai.runtime.notices import warn
from graphxai.runtime.options import listed, with_keywords
from graphxai.wrapping.removal import OPERATORS, Resampling, operators_for

from .ground_truth import check_fit
from .measure import Item, MeasurementPlan
from .metrics import DEFAULT_METRICS, ROAR, MetricNames, choose_metrics
from .report import Report, merged
from .robustness import robustness_of
from .runs import EvaluationOptions, Graphs, Run
from .store import Key
from .targets import Labels, TrackedOutput, targets_by_graph, tracked_output
from .truth_metrics import metrics_for


@with_keywords
@on_cpu_by_default
def evaluate(
    model: "Model | str | Path | Mapping[str, Model | str | Path]",
    inputs: Iterable[Any] | Mapping[Key, Any],
    methods: Sequence[Method] | str = MEASURED_METHODS,
    *,
    labels: Labels | None = None,
    target: KnownTarget = None,
    node: Any = None,
    pair: Any = None,
    metrics: MetricNames = DEFAULT_METRICS,
    operators: str | Sequence[str] = ("mask",),
    steps: int | None = None,
    seed: int = 0,
    **options: Unpack[EvaluationOptions],
) -> Report:
    """Measure the faithfulness of several methods on the same graphs.

    Nodes are added or removed in the order of their relevance, and the metrics measure how the
    output follows. AUAC, for example, is the area under the activation curve, which shows the
    probability of the explained class as nodes are added, the most relevant first. If a method
    fails on a graph, or returns scores that are not finite, its row has a note and no value.
    `Report.rejected` lists inputs that cannot be used.

    Args:
        model: from `load` or `wrap`, or a bundled model's name. Several by name, such as {"seed 0":
            first, "seed 1": second}, give one report with the spread between them. A graph's value
            is the mean over them.
        inputs: inputs as for `explain`, as a list or by key.
        methods: names, explainers or functions `(model, batch, target) -> scores`. "all" means
            every registered method that applies to the model. The controls `random`, `ones` and
            `reverse` (the first method with its sign turned) are always included. One method with
            different options is listed with its options.
        labels: the class of each input by name or number, or for a regression its value. They are
            in the order of the inputs, or by key.
        target: as for `explain`. It may also be "true", for the class in `labels`, as in Ali 2022,
            or "predicted", for each graph's predicted class. By default it is "true" if there are
            labels, and otherwise "predicted".
        node: for models with one output per node, as for `explain`. A single graph with several
            nodes counts as one graph for each of them.
        pair: for models of links, the two nodes of a link, as for `explain`.
        metrics: names in `METRICS`, or "all" for those that fit the task, or functions: of a
            graph's `Series`, or of two arrays, its relevance and its truth. More counts as better,
            unless `metric` in `evaluation.metrics` registers a function otherwise. By default, two
            measures of the order of the nodes (AUAC and SRG) and two of the values (AU-MSE and the
            error of exchanges).
        operators: how nodes are removed. "all" means those that the model can take, with `resample`
            if masked atoms are fitted to it.
        steps: the number of points of a curve. None takes every number of nodes, and 11 is the grid
            of Ali 2022.
        seed: the seed of all random numbers. An explainer that is given as an instance keeps its
            own.
        out: the folder to which every finished graph is written.
        resume: whether to continue an earlier run in `out`.
        progress: as for `explain`.
        workers: the number of processes, as for `explain`. Each takes 16 graphs of similar size at
            a time, and the result is the same for any number.
        device: as for `explain`.
        judge: a model with the same tasks that computes the curves instead. It may have been
            trained on graphs with nodes removed. The explanations are still those of `model`.
        refit: how to train such a judge here, see `Refit`. Training runs are kept in `out`, and
            their seeds follow from `seed`. With "roar" the only metric is `roar`, and one process
            measures.
        truths: what is known to be true of each input, in their order or by key: true nodes (N,) as
            bool, their shares (N,) as float, or true pixels (H, W). The metrics for such a truth
            are those of `truth_metrics`, by name. By default the first is measured (`roc_auc` for
            nodes). Inputs whose truth is None have no value.
        resampling: how the operator `resample` draws atoms. None takes the masked atoms beside the
            checkpoint, and `seed`.

    Raises:
        KeyboardInterrupt: the measurement was interrupted. The `results` of the exception are the
            report of the graphs until then. With `out`, the same call continues with `resume=True`.
        ValueError: no input remains, a metric does not fit the task, the target is unknown, or
            something is given that would not be used.
    """
    inputs = inputs if isinstance(inputs, Mapping) else list(as_list(inputs)[0])
    if isinstance(model, Mapping):
        further = {
            "labels": labels, "target": target, "node": node, "pair": pair, "metrics": metrics,
            "operators": operators, "steps": steps, "seed": seed, **options,
        }  # fmt: skip
        return _of_several(model, inputs, methods, further)
    model = on_device(loaded(model), options.get("device"))
    marked = mark_explained_for(model, inputs, node, pair)
    marked = marked if isinstance(marked, Mapping) else dict(enumerate(as_list(marked)[0]))
    labels = _by_key("labels", labels, marked)
    truths = _truth_arrays(_by_key("truths", options.get("truths"), marked))
    tracked = tracked_output(model, target, labels)
    chosen = methods_for(model) if methods == "all" else each_of(methods)
    given = told_apart(seeded_explainer(method, seed, model=model) for method in chosen)
    plan = MeasurementPlan(tuple(with_controls(given, seed)), (), (), steps, seed, truths=truths)
    plan, refitting = _with_metrics(plan, model, tracked, metrics, operators, options)
    scored = any(metric.removal for metric in plan.metrics) and ROAR not in plan.metrics
    graphs = _prepare(model, marked, tracked, labels, scored)
    plan = replace(plan, truths=_fitting_truths(plan, graphs))
    run = Run.begin(model, plan, tracked, graphs, refitting, options)
    plan = run.with_judges(plan, options.get("progress"))
    report = run.measured(plan, options)
    if scored:
        about = graphs.items, tracked.target, labels
        how: dict[str, Any] = {"seed": seed, "resampling": plan.resampling}
        report.settings["robustness"] = {
            name: asdict(robustness_of(plan.judges.get(name, model), *about, operator=name, **how))
            for name in plan.operators
        }
    _check_failures(report)
    return report


def _of_several(
    models: Mapping[str, Any], inputs: Any, methods: Any, options: dict[str, Any]
) -> Report:
    if not models:
        raise ValueError("there is no model to evaluate.")
    reports = []
    for name, model in models.items():
        report = evaluate(model, inputs, methods, **options)
        units = tuple(replace(unit, checkpoint=name) for unit in report.units)
        reports.append(Report(units, report.settings | {"checkpoints": [name]}, report.rejected))
        options = options | {"resume": True}  # in the folder of the first
    return merged(reports)


def _by_key(name: str, given: Any, inputs: Mapping[Key, Any]) -> Mapping[Key, Any] | None:
    """Return what is given of inputs by their keys, which may be listed in the inputs' order."""
    if given is None or isinstance(given, Mapping):
        return given
    if len(given) != len(inputs):
        raise ValueError(
            f"{name} has {len(given)} entries for {len(inputs)} inputs; give one for each input,"
            " None for those without."
        )
    return dict(zip(inputs, given, strict=True))


def _truth_arrays(truths: Mapping[Key, Any] | None) -> dict[Key, NDArray[Any]]:
    """Return what is true of each input that has a truth."""
    if truths is None:
        return {}
    arrays = {k: np.asarray(truth) for k, truth in truths.items() if truth is not None}
    if not arrays:
        raise ValueError("truths has no truth: leave it out.")
    if len({tuple(metrics_for(truth)) for truth in arrays.values()}) > 1:
        raise ValueError("truths are of several kinds (nodes, shares, pixels); give one kind.")
    return arrays


def _fitting_truths(plan: MeasurementPlan, graphs: Graphs) -> dict[Key, NDArray[Any]]:
    """Return the truths of the graphs, those of molecules for the atoms of their parents."""
    truths: dict[Key, NDArray[Any]] = {}
    for key, item in graphs.items:
        if (truth := plan.truths.get(key)) is None:
            continue
        if item.as_given is not None and truth.shape == (item.as_given.size,):
            truth = truth[list(item.as_given.atoms)]
        check_fit(item, truth, key)
        truths[key] = truth
    return truths


def _with_metrics(
    plan: MeasurementPlan,
    model: Model,
    tracked: TrackedOutput,
    metrics: MetricNames,
    operators: str | Sequence[str],
    options: EvaluationOptions,
) -> tuple[MeasurementPlan, Any]:
    """Add to a plan what is measured, how nodes are removed, and by which model if by another."""
    judge, refit = options.get("judge"), options.get("refit")
    if judge is not None and refit is not None:
        raise ValueError("give either judge= or refit= (which trains a judge), not both.")
    resampling = options.get("resampling")
    if operators == "all":
        removed_by = operators_for(model, resampling)
    else:
        named = listed(operators, "operators")
        for name in named or ("",):
            if name not in OPERATORS:
                what = f"unknown operator {name!r}" if name else "no operator given"
                raise ValueError(f"{what}; choose from {', '.join(OPERATORS)}.")
        removed_by = tuple(name for name in OPERATORS if name in named)
    if "resample" in removed_by:
        resampling = (resampling or Resampling(seed=plan.seed)).of(model)
    elif resampling is not None:
        raise ValueError("resampling= is for the operator 'resample', which is not measured here.")
    refitting = None if refit is None else refit.on(model, tracked, removed_by)
    kind = tracked.target.task_in(model.config).kind
    roar = refitting is not None and refitting.is_roar
    chosen = (ROAR,) if roar else tuple(choose_metrics(metrics, kind, list(plan.truths.values())))
    judges: dict[str, Model] = {} if judge is None else dict.fromkeys(removed_by, judge)
    plan = replace(plan, metrics=chosen, operators=removed_by, resampling=resampling)
    return replace(plan, judges=judges), refitting


def _check_failures(report: Report) -> None:
    """Warn of each method that failed on some graphs; ValueError if all did for one reason."""
    failures = [reason for failed in report.failures.values() for _, reason in failed]
    measured = {(unit.graph, unit.method) for unit in report.units}
    if len(failures) == len(measured) and len(set(failures)) == 1:
        raise ValueError(f"no graph could be explained: {failures[0]}")
    total = len({unit.graph for unit in report.units})
    for method, failed in report.failures.items():
        key, reason = failed[0]
        warn(
            f"{method} gave no scores for {len(failed)} of {total} graphs (see Report.failures);"
            f" graph {key!r}: {reason}",
            stacklevel=5,  # of the call of `evaluate`, beneath its two decorators
        )


def _prepare(
    model: Model,
    inputs: Mapping[Key, Any],
    tracked: TrackedOutput,
    labels: Mapping[Key, Any] | None,
    scored: bool,
) -> Graphs:
    """Encode the inputs and give each its target."""
    if labels is not None and tracked.class_source != "true" and not scored:
        raise ValueError(
            "the labels would not be used: they serve for the target 'true', and to score the"
            " model with nodes removed. Leave out labels= or the target."
        )
    prepared: list[Item] = []
    rejected: list[tuple[Key, str]] = []
    for key, encoded in zip(inputs, prepare_each(model, inputs.values()), strict=True):
        if isinstance(encoded, Exception):
            rejected.append((key, str(encoded)))
        else:
            prepared.append((key, encoded))
    targets, unlabelled = targets_by_graph(model, prepared, tracked, labels)
    items = [item for item in prepared if item[0] in targets]
    if not items:
        reason = f": {rejected[0][1]}" if rejected else "."
        raise ValueError(f"there is no graph to evaluate{reason}")
    return Graphs(items, targets, tuple(rejected + unlabelled))
