"""Measure explainers on a data set, with every method on the same graphs, in resumable runs."""

import hashlib
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import torch
from torch_geometric.data import Data

from graphxai.adapters.chosen import chosen_nodes
from graphxai.adapters.removal import OPERATORS, Operator, Resampling, operators_for
from graphxai.api import KnownTarget, load
from graphxai.contract.batching import batches_for
from graphxai.contract.inputs import as_list, prepare_each
from graphxai.contract.method_names import MEASURED_METHODS
from graphxai.contract.model import weights_hash
from graphxai.contract.target import Target
from graphxai.explainers import Explainer
from graphxai.explainers.registry import Method, each_of, methods_for, seeded_explainer, told_apart
from graphxai.explanation.compute.models import Model, mark_explained_for
from graphxai.runtime.device import on_cpu_by_default, on_device
from graphxai.runtime.interrupts import Interrupted
from graphxai.runtime.progress import progress_bar
from graphxai.runtime.threads import one_thread, workers_for
from graphxai.runtime.workers import LostItem, map_in_processes

from .measure import Item, MeasurementPlan, measure, unmeasured
from .metrics import DEFAULT_METRICS, choose_metrics
from .refit import ROAR, Refit, judges, labelled_items, require_refit, roar_units
from .removal_scores import measure_robustness
from .report import Report
from .store import Key, Store, Unit
from .targets import Labels, in_words, targets_by_graph, tracked_output

CHUNK = 16  # how many graphs are explained, measured and written together


@on_cpu_by_default
def evaluate(
    model: "Model | str | Path",
    inputs: Iterable[Any] | Mapping[Key, Any],
    methods: Sequence[Method] | str = MEASURED_METHODS,
    *,
    labels: Labels | None = None,
    target: KnownTarget = None,
    node: Any = None,
    pair: Any = None,
    metrics: str | Sequence[str] = DEFAULT_METRICS,
    operators: str | Sequence[str] = ("mask",),
    steps: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
    workers: int | None = 1,
    device: torch.device | str | None = None,
    judge: "Model | None" = None,
    refit: Refit | None = None,
    resampling: Resampling | None = None,
) -> Report:
    """Measure the faithfulness of several methods on the same graphs.

    Nodes are added or removed in the order of their relevance, and the metrics measure how the
    output follows. AUAC, for example, is the area under the activation curve, which shows the
    probability of the explained class as nodes are added, the most relevant first. If a method
    fails on a graph, or returns scores that are not finite, its row has a note and no value.
    `Report.rejected` lists inputs that cannot be used.

    Args:
        model: from `load` or `wrap`, or a bundled model's name.
        inputs: inputs as for `explain`, as a list or by key.
        methods: names, explainers or functions `(model, batch, target) -> scores`. "all" means
            every registered method that applies to the model. `random` is always included. One
            method with different options is listed with its options.
        labels: for the target "true", the class of each input by name or number. They are in the
            order of the inputs, or by key.
        target: as for `explain`. It may also be "predicted", for each graph's predicted class, or
            "true", for the class in `labels`, as in Ali 2022.
        node: for models with one output per node, as for `explain`. A single graph with several
            nodes counts as one graph for each of them.
        pair: for models of links, the two nodes of a link, as for `explain`.
        metrics: names in `METRICS`, or "all" for those that fit the task. By default, two measures
            of the order of the nodes (AUAC and SRG) and two of the values (AU-MSE, and the error
            of partial sums).
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
        resampling: how the operator `resample` draws atoms. None takes the masked atoms beside the
            checkpoint, and `seed`.

    Raises:
        KeyboardInterrupt: the measurement was interrupted. The `results` of the exception are the
            report of the graphs until then. With `out`, the same call continues with `resume=True`.
        ValueError: no input remains, a metric does not fit the task, or the target is unknown.
    """
    model = on_device(load(model) if isinstance(model, str | Path) else model, device)
    explainers = _explainers(model, methods, seed)
    tracked = tracked_output(model, target)
    task = tracked.target.task_in(model.config)
    roar = refit is not None and refit.kind == "roar"
    measured_by = (ROAR,) if roar else tuple(choose_metrics(metrics, task.kind))
    plan = MeasurementPlan(
        explainers, measured_by, _operators(model, operators, resampling), steps, seed
    )
    if "resample" in plan.operators:
        plan = replace(plan, resampling=(resampling or Resampling(seed=seed)).of(model))
    if judge is not None and refit is not None:
        raise ValueError("give either judge= or refit= (which trains a judge), not both.")
    judged = judge is not None or refit is not None
    if judged and task.kind == "multiclass" and tracked.target.choice is None:
        # the explained model, not its judge, predicts the class of each graph
        tracked = replace(tracked, class_source=tracked.class_source or "predicted")
    if judge is not None:
        plan = replace(plan, judges=dict.fromkeys(plan.operators, judge))
    training: list[Item] = []
    if refit is not None:
        require_refit(model, plan, refit, task)
        training = labelled_items(model, refit, task)
    prepared, rejected = _prepare(model, _mark_explained(model, inputs, node, pair))
    targets, unlabelled = targets_by_graph(model, prepared, tracked, labels)
    prepared = [item for item in prepared if item[0] in targets]
    if not prepared:
        raise ValueError("there is no graph to evaluate.")
    checkpoint = checkpoint_name(model)
    settings = _settings(model, plan, target)
    if judge is not None:
        settings["judge"] = checkpoint_name(judge)
    if refit is not None:
        settings["refit"] = refit.settings([item.data for _, item in training])
    store = Store(Path(out)) if out is not None else None
    before = store.begin(checkpoint, settings, resume) if store else []
    digests = {key: _digest(item.data) for key, item in prepared}
    names = [explainer.name for explainer in explainers]
    earlier = [
        unit
        for unit in before
        if unit.checkpoint == checkpoint
        and digests.get(unit.graph) == unit.digest
        and unit.method in names
    ]
    done = {(unit.graph, unit.method) for unit in earlier}
    units = list(earlier)
    notes = {explainer.name: explainer.traits.note for explainer in explainers}
    notes = {name: note for name, note in notes.items() if note}
    settings |= {"methods": names, "notes": notes, "checkpoints": [checkpoint]}
    order = {key: position for position, (key, _) in enumerate(prepared)}

    def report_so_far() -> Report:
        units.sort(key=lambda unit: (order[unit.graph], names.index(unit.method)))
        return Report(tuple(units), settings, tuple(rejected + unlabelled))

    with (
        ExitStack() as stack,
        progress_bar("evaluating", len(prepared) * len(explainers), show=progress) as advance,
        store.writing() if store else nullcontext(lambda units: None) as write,
    ):
        advance(len(done))
        runs = stack.enter_context(_training_runs(out, checkpoint))
        if refit is not None and not roar:
            graphs = [item.data for _, item in training]
            plan = replace(plan, judges=judges(model, graphs, refit, plan, runs, progress))
        if roar:
            assert refit is not None
            options = (prepared, targets, training, tracked, refit, runs, done, progress)
            measured = roar_units(model, plan, *options)
        else:
            measured = _in_chunks(_GraphMeasurer(model, plan, done), prepared, targets, workers)
        try:
            for graph_units in stack.enter_context(closing(measured)):
                finished = [
                    replace(unit, checkpoint=checkpoint, digest=digests[unit.graph])
                    for unit in graph_units
                ]
                write(finished)
                units += finished
                advance(len(finished))
        except KeyboardInterrupt:
            how_far = f"after {len({unit.graph for unit in units})} of {len(prepared)} graphs"
            raise Interrupted(how_far, report_so_far()) from None
    if not roar and any(metric.removal for metric in plan.metrics):
        settings["robustness"] = {
            operator: asdict(
                measure_robustness(
                    plan.judges.get(operator, model), prepared, tracked.target, labels, operator,
                    seed, plan.resampling,
                )
            )
            for operator in plan.operators
        }  # fmt: skip
    report = report_so_far()
    _raise_if_nothing_is_measured(report)
    _warn_of_failures(report)
    return report


def _in_chunks(
    work: "_GraphMeasurer",
    prepared: Sequence[Item],
    targets: Mapping[Key, Target],
    workers: int | None,
) -> Generator[list[Unit], None, None]:
    """Yield the units of one graph after another, measured here or by other processes."""
    chunks = _chunks(work.model, prepared, targets)
    count = workers_for(work.model, workers)
    with closing(map_in_processes(work, chunks, count, len(prepared))) as measured:
        for part in chain.from_iterable(measured):
            if isinstance(part.result, LostItem):
                yield work.lost(part.items[0], part.result.reason)
            else:
                yield from part.result


@contextmanager
def _training_runs(out: str | Path | None, checkpoint: str) -> Iterator[Path]:
    """Yield the folder of a checkpoint's training runs, which is temporary without `out`."""
    if out is not None:
        yield Path(out) / "refit" / quote(checkpoint, safe="")
        return
    with TemporaryDirectory() as folder:
        yield Path(folder)


def _raise_if_nothing_is_measured(report: Report) -> None:
    """Raise ValueError if every method failed on every graph for the same reason."""
    failures = [reason for failed in report.failures.values() for _, reason in failed]
    measured = {(unit.graph, unit.method) for unit in report.units}
    if len(failures) == len(measured) and len(set(failures)) == 1:
        raise ValueError(f"no graph could be explained: {failures[0]}")


def _warn_of_failures(report: Report) -> None:
    """Issue one warning for each method that gave no scores on some graphs."""
    total = len({unit.graph for unit in report.units})
    for method, failed in report.failures.items():
        key, reason = failed[0]
        warnings.warn(
            f"{method} gave no scores for {len(failed)} of {total} graphs (see Report.failures);"
            f" graph {key!r}: {reason}",
            stacklevel=4,
        )


def checkpoint_name(model: Model) -> str:
    """Return a model's name with the first digits of the hash of its weights."""
    return f"{model.origin.name} {weights_hash(model)[:8]}"


def _explainers(model: Model, methods: Sequence[Method] | str, seed: int) -> tuple[Explainer, ...]:
    """Return the explainers, including `random`, with names that differ (see `told_apart`)."""
    if methods == "all":
        methods = methods_for(model)
    explainers = [seeded_explainer(method, seed, model=model) for method in each_of(methods)]
    if "random" not in {explainer.name for explainer in explainers}:
        explainers.append(seeded_explainer("random", seed))
    return tuple(told_apart(explainers))


def _operators(
    model: Model, operators: Sequence[str] | str, resampling: Resampling | None
) -> tuple[Operator, ...]:
    if operators == "all":
        return operators_for(model, resampling)
    chosen = [operators] if isinstance(operators, str) else list(operators)
    for name in chosen:
        if name not in OPERATORS:
            raise ValueError(f"unknown operator {name!r}; choose from {', '.join(OPERATORS)}.")
    if not chosen:
        raise ValueError(f"no operator given; choose from {', '.join(OPERATORS)}.")
    return tuple(name for name in OPERATORS if name in chosen)


def _mark_explained(
    model: Model, inputs: Iterable[Any] | Mapping[Key, Any], node: Any, pair: Any
) -> Iterable[Any] | Mapping[Key, Any]:
    """Note in each input which node or pair is explained. A mapping keeps its keys."""
    if not isinstance(inputs, Mapping):
        return mark_explained_for(model, inputs, node, pair)
    graphs = mark_explained_for(model, list(inputs.values()), node, pair)
    if len(graphs) != len(inputs):
        raise ValueError("node= or pair= must name one for each graph with a key, or pass a list.")
    return dict(zip(inputs, graphs, strict=True))


def _prepare(
    model: Model, inputs: Iterable[Any] | Mapping[Key, Any]
) -> tuple[list[Item], list[tuple[Key, str]]]:
    pairs = inputs if isinstance(inputs, Mapping) else dict(enumerate(as_list(inputs)[0]))
    prepared: list[Item] = []
    rejected: list[tuple[Key, str]] = []
    for key, encoded in zip(pairs, prepare_each(model, pairs.values()), strict=True):
        if isinstance(encoded, Exception):
            rejected.append((key, str(encoded)))
        else:
            prepared.append((key, encoded))
    return prepared, rejected


@dataclass(frozen=True)
class _GraphMeasurer:
    """The measurement of graphs with one target, which can run in another process.

    Args:
        model: the explained model.
        plan: what to measure.
        done: the (graph, method) pairs that an earlier run measured.
    """

    model: Model
    plan: MeasurementPlan
    done: set[tuple[Key, str]]

    def __call__(self, chunk: Sequence[tuple[Item, Target]]) -> list[list[Unit]]:
        """Measure the graphs of a chunk, and return the units of each graph."""
        items, target = [item for item, _ in chunk], chunk[0][1]
        with one_thread():
            return list(measure(self.model, self.plan, items, target, self.done))

    def lost(self, item_and_target: tuple[Item, Target], reason: str) -> list[Unit]:
        """Return the units of a graph that ended the process in which it was measured."""
        (key, item), _ = item_and_target
        return unmeasured(self.plan, key, item, reason, self.done)


def _chunks(
    model: Model, prepared: Sequence[Item], targets: Mapping[Key, Target]
) -> Iterator[list[tuple[Item, Target]]]:
    """Yield chunks of graphs with one target and similar size.

    An interrupted run loses one chunk at most.
    """
    for target in dict.fromkeys(targets[key] for key, _ in prepared):
        chosen = [item for item in prepared if targets[item[0]] == target]
        for batch in batches_for(model, chosen):
            for start in range(0, len(batch), CHUNK):
                yield [(item, target) for item in batch[start : start + CHUNK]]


def _digest(data: Data) -> str:
    """Return a short hash of a graph's nodes and edges, so that a resumed run recognises it."""
    content = hashlib.sha256(data.x.contiguous().numpy().tobytes())
    if data.edge_index is not None:  # plain rows of tokens have no edges
        content.update(data.edge_index.contiguous().numpy().tobytes())
    if chosen := chosen_nodes(data):
        content.update(repr(chosen).encode())
    return content.hexdigest()[:12]


def _settings(model: Model, plan: MeasurementPlan, target: Any) -> dict[str, Any]:
    """Return what is needed to reproduce the values, as JSON values."""
    from graphxai.explanation.compute.models import versions

    version_of = versions()
    of_draws = {} if plan.resampling is None else {"resampling": plan.resampling.settings()}
    return of_draws | {
        "model": model.origin.name,
        "sha256": weights_hash(model),
        "target": in_words(target),
        "metrics": [metric.name for metric in plan.metrics],
        "operators": list(plan.operators),
        "steps": plan.steps,
        "seed": plan.seed,
        "graphxai": version_of["graphxai"],
        "versions": version_of,
    }
