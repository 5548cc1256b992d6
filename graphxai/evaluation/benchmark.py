"""Measure explainers on a data set: every method on the same graphs, resumable."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from graphxai.api import Model, explain_prepared, in_batches, load, predict_prepared
from graphxai.explainers import Explainer, get_explainer
from graphxai.explainers.base import Method
from graphxai.explanation import Explanation
from graphxai.inputs import Input, prepare_for
from graphxai.models.graphormer.config import Task
from graphxai.progress import progress_bar
from graphxai.target import Target

from .checks import DRAWS, NoisyModel, relative_change, shuffled_stages
from .curves import Series, several_series
from .metrics import Metric, choose_metrics
from .removal import OPERATORS, Operator
from .report import GRID, Report
from .truth import rank_correlation
from .units import Key, Store, Unit

NO_REMOVAL = "none"  # operator of figures that take no node away
CHUNK = 16  # graphs explained, measured and written at a time
Item = tuple[Key, Input]


@dataclass(frozen=True)
class _Plan:
    """What is measured on every graph."""

    explainers: tuple[Explainer, ...]
    metrics: tuple[Metric, ...]
    operators: tuple[Operator, ...]
    steps: int | None
    seed: int

    def has(self, name: str) -> bool:
        return any(metric.name == name for metric in self.metrics)


def evaluate(
    model: "Model | str | Path",
    inputs: Iterable[Any] | Mapping[Key, Any],
    methods: Sequence[Method] | str = ("lrp", "gradient_input"),
    *,
    labels: Sequence[Any] | Mapping[Key, Any] | None = None,
    target: Any = None,
    metrics: str | Sequence[str] = ("auac", "au_mse"),
    operators: str | Sequence[str] = ("mask",),
    steps: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> Report:
    """Measure the faithfulness of several methods on the same graphs.

    model: from `load` or `wrap`, or a bundled model's name. inputs: what `explain` takes, in a
    list or by key. methods: names, explainers or functions `(model, batch, target) -> scores`;
    "all" takes every registered one; `random` is always among them. target: as for `explain`;
    also "predicted", each graph's predicted class, and "true", the class in `labels` (names or
    numbers, by position or key), as in Ali 2022. metrics: names in `METRICS`, or "all" that fit
    the task. operators: how nodes are removed. steps: points of a curve; None takes every number
    of nodes, 11 is the grid of Ali 2022. out: folder in which every finished graph is kept;
    `resume` goes on there.

    A method that fails on a graph, or gives scores that are not finite, gets a row with a note
    and no figure. Inputs that cannot be used are counted in `Report.rejected`. Raises ValueError
    if no input remains, for a metric that does not fit the task and for a target it does not have.
    """
    model = load(model) if isinstance(model, str | Path) else model
    explainers = _explainers(methods)
    wanted, per_graph = _target(model, target)
    task = wanted.task_in(model.config)
    plan = _Plan(
        explainers, tuple(choose_metrics(metrics, task.kind)), _operators(operators), steps, seed
    )
    prepared, rejected = _prepare(model, inputs)
    targets, unlabelled = _targets(model, task, prepared, wanted, per_graph, labels)
    prepared = [item for item in prepared if item[0] in targets]
    if not prepared:
        raise ValueError("there is no graph to evaluate.")
    checkpoint = checkpoint_name(model)
    settings = _settings(model, plan, target)
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
    with progress_bar("evaluating", len(prepared) * len(explainers), show=progress) as tick:
        tick(len(done))
        for chunk, chosen in _chunks(prepared, targets):
            with_digest = partial(_with_digest, checkpoint=checkpoint, digests=digests)
            for found in _measure(model, plan, chunk, chosen, done):
                finished = [with_digest(unit) for unit in found]
                if store:
                    with store.writing() as write:
                        write(finished)
                units += finished
                tick(len(finished))
    order = {key: position for position, (key, _) in enumerate(prepared)}
    units.sort(key=lambda unit: (order[unit.graph], names.index(unit.method)))
    settings |= {"methods": names, "checkpoints": [checkpoint]}
    return Report(tuple(units), settings, tuple(rejected + unlabelled))


def checkpoint_name(model: Model) -> str:
    """A model's name with the first figures of its weights' hash."""
    return f"{model.origin.name} {weights_hash(model)[:8]}"


def weights_hash(model: Model) -> str:
    """SHA-256 of a checkpoint's file; of the tensors themselves for a model from no file."""
    if model.origin.sha256:
        return model.origin.sha256
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _explainers(methods: Sequence[Method] | str) -> tuple[Explainer, ...]:
    """The explainers by name, `random` among them; raises ValueError if two share a name."""
    if methods == "all":
        from graphxai.explainers import REGISTRY

        methods = list(REGISTRY)
    chosen = [methods] if isinstance(methods, str) or callable(methods) else list(methods)
    explainers = [get_explainer(method) for method in chosen]
    if "random" not in {explainer.name for explainer in explainers}:
        explainers.append(get_explainer("random"))
    names = [explainer.name for explainer in explainers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two methods are called {twice[0]!r}; give one of them another name.")
    return tuple(explainers)


def _operators(operators: Sequence[str] | str) -> tuple[Operator, ...]:
    if operators == "all":
        return OPERATORS
    chosen = [operators] if isinstance(operators, str) else list(operators)
    for name in chosen:
        if name not in OPERATORS:
            raise ValueError(f"unknown operator {name!r}; there are {', '.join(OPERATORS)}.")
    if not chosen:
        raise ValueError(f"no operator is named; there are {', '.join(OPERATORS)}.")
    return tuple(name for name in OPERATORS if name in chosen)


def _target(model: Model, target: Any) -> tuple[Target, str]:
    """The target, and "true" or "predicted" if each graph has its own."""
    wanted = Target.of(target)
    classes = {name for task in model.config.tasks for name in (*task.classes, task.name)}
    per_graph = ""
    if wanted.choice in ("true", "predicted") and wanted.choice not in classes:
        per_graph, wanted = str(wanted.choice), replace(wanted, choice=None)
    task = wanted.task_in(model.config)
    label = wanted.resolve(model.config, torch.zeros(1, model.config.num_outputs)).labels[0]
    if isinstance(wanted.choice, tuple) or not (task.kind == "regression" or label in task.classes):
        raise ValueError(f"an evaluation follows one class, not {label!r}.")
    return wanted, per_graph


def _prepare(
    model: Model, inputs: Iterable[Any] | Mapping[Key, Any]
) -> tuple[list[Item], list[tuple[Key, str]]]:
    pairs = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs)
    prepared: list[Item] = []
    rejected: list[tuple[Key, str]] = []
    for key, value in pairs:
        try:
            prepared.append((key, prepare_for(model, value)))
        except (ValueError, OSError) as error:
            rejected.append((key, str(error)))
    return prepared, rejected


def _targets(
    model: Model,
    task: Task,
    prepared: Sequence[Item],
    wanted: Target,
    per_graph: str,
    labels: Sequence[Any] | Mapping[Key, Any] | None,
) -> tuple[dict[Key, Target], list[tuple[Key, str]]]:
    """The target of each graph; graphs without a label, with the reason."""
    if per_graph == "true" and labels is None:
        raise ValueError("target 'true' needs the labels of the graphs.")
    if not per_graph or task.kind == "regression":
        return {key: wanted for key, _ in prepared}, []
    classes: dict[Key, Any]
    if per_graph == "predicted":
        found = dict(predict_prepared(model, prepared))
        position = [t.name for t in model.config.tasks].index(task.name)
        classes = {key: predictions[position].label for key, predictions in found.items()}
    else:
        known: Mapping[Any, Any]
        known = labels if isinstance(labels, Mapping) else dict(enumerate(labels or ()))
        classes = {key: _class_name(task, known.get(key)) for key, _ in prepared}
    missing = [key for key, name in classes.items() if name is None]
    targets = {key: Target(name, task.name) for key, name in classes.items() if name is not None}
    return targets, [(key, f"no label of task {task.name!r}.") for key in missing]


def _class_name(task: Task, label: Any) -> str | None:
    """A label, as a class name or its number, as the class's name; None if there is none."""
    if label is None or label != label:
        return None
    if isinstance(label, str):
        if label not in task.classes:
            raise ValueError(
                f"task {task.name!r} has no class {label!r}; it has {', '.join(task.classes)}."
            )
        return label
    if f"{label:g}" in task.classes:  # classes that are named by numbers
        return f"{label:g}"
    if float(label) != int(label) or not 0 <= int(label) < len(task.classes):
        raise ValueError(f"label {label!r} is not the number of a class of task {task.name!r}.")
    return task.classes[int(label)]


def _chunks(
    prepared: Sequence[Item], targets: Mapping[Key, Target]
) -> Iterator[tuple[list[Item], Target]]:
    """Graphs of one target and like size; what an interruption can lose is one chunk."""
    for target in dict.fromkeys(targets[key] for key, _ in prepared):
        chosen = [item for item in prepared if targets[item[0]] == target]
        for batch in in_batches(chosen):
            for start in range(0, len(batch), CHUNK):
                yield batch[start : start + CHUNK], target


def _measure(
    model: Model,
    plan: _Plan,
    chunk: Sequence[Item],
    target: Target,
    done: set[tuple[Key, str]],
) -> Iterator[list[Unit]]:
    """Units of each graph of a chunk, but for those that are done."""
    found: dict[str, dict[Key, Explanation | str]] = {}
    stability: dict[str, dict[Key, float]] = {}
    stages: dict[str, dict[Key, dict[str, float]]] = {}
    for explainer in plan.explainers:
        left = [item for item in chunk if (item[0], explainer.name) not in done]
        if not left:
            continue
        found[explainer.name] = _explained(model, left, explainer, target)
        usable = {k: e for k, e in found[explainer.name].items() if isinstance(e, Explanation)}
        again = [item for item in left if item[0] in usable]
        if plan.has("max_sensitivity"):
            stability[explainer.name] = _sensitivity(model, plan, again, explainer, target, usable)
        if plan.has("model_randomisation"):
            stages[explainer.name] = _randomised(model, plan, again, explainer, target, usable)
    by_graph = {
        key: {name: by_key[key] for name, by_key in found.items() if key in by_key}
        for key, _ in chunk
    }
    series = _series(model, plan, chunk, by_graph, target)
    for key, item in chunk:
        units = _units(plan, key, item, by_graph[key], series.get(key, {}))
        yield [
            _with_checks(
                unit,
                stability.get(unit.method, {}).get(key),
                stages.get(unit.method, {}).get(key),
            )
            for unit in units
        ]


def _explained(
    model: Any, items: Sequence[Item], explainer: Explainer, target: Target
) -> dict[Key, Explanation | str]:
    """Each graph's explanation, or the reason why there is none.

    Only a method of the user's is expected to fail; whatever it raises belongs to its row.
    """
    try:
        found = dict(explain_prepared(model, items, explainer, target=target))
    except Exception as error:
        if len(items) == 1:
            return {items[0][0]: f"{type(error).__name__}: {error}"}
        alone = [_explained(model, [item], explainer, target) for item in items]
        return {key: value for one in alone for key, value in one.items()}
    return {
        key: e if np.isfinite(e.relevance).all() else "the scores are not finite."
        for key, e in found.items()
    }


def _series(
    model: Model,
    plan: _Plan,
    chunk: Sequence[Item],
    found: Mapping[Key, Mapping[str, Explanation | str]],
    target: Target,
) -> dict[Key, dict[str, dict[str, Series]]]:
    """Key, operator and method to its series, all graphs of a chunk together.

    Without a metric that removes nodes two points are enough, under the operator "none".
    """
    good = {
        key: {n: torch.from_numpy(e.relevance) for n, e in of.items() if isinstance(e, Explanation)}
        for key, of in found.items()
    }
    items = [(key, item.data) for key, item in chunk if good[key]]
    graphs = [data for _, data in items]
    scores = [list(good[key].values()) for key, _ in items]
    series: dict[Key, dict[str, dict[str, Series]]] = {key: {} for key, _ in items}
    removes = any(metric.removal for metric in plan.metrics)
    wanted: list[tuple[str, Operator, int | None]] = [(NO_REMOVAL, "mask", 2)]
    if removes:
        wanted = [(name, name, plan.steps) for name in plan.operators]
    for name, operator, steps in wanted if items else ():
        curves = several_series(model, graphs, scores, target, operator=operator, steps=steps)
        for (key, _), of_graph in zip(items, curves, strict=True):
            series[key][name] = dict(zip(good[key], of_graph, strict=True))
    return series


def _units(
    plan: _Plan,
    key: Key,
    item: Input,
    found: Mapping[str, Explanation | str],
    series: Mapping[str, Mapping[str, Series]],
) -> list[Unit]:
    """One unit a method for one graph; series: operator and method to its series."""
    blank = Unit("", key, "", "", int(item.data.num_nodes))
    units = []
    for name, explanation in found.items():
        if isinstance(explanation, str):
            values = _undefined(plan)
            units.append(replace(blank, method=name, values=values, note=explanation))
            continue
        own = {operator: of[name] for operator, of in series.items()}
        ledger = explanation.ledger.to_dict() if explanation.additive else {}
        units.append(
            replace(
                blank,
                method=name,
                target=explanation.target,
                values=_values(plan, own),
                curves={o: _curves(s) for o, s in own.items() if o != NO_REMOVAL},
                ledger={k: v for k, v in ledger.items() if isinstance(v, float)},
            )
        )
    return units


def _values(plan: _Plan, series: Mapping[str, Series]) -> dict[str, dict[str, float]]:
    """Every figure that one pass over the curves gives."""
    values: dict[str, dict[str, float]] = {}
    for metric in plan.metrics:
        if metric.measure is None:
            continue
        if metric.removal:
            for operator, one in series.items():
                values.setdefault(operator, {})[metric.name] = float(metric.measure(one))
        else:
            one = next(iter(series.values()))
            values.setdefault(NO_REMOVAL, {})[metric.name] = float(metric.measure(one))
    return values


def _undefined(plan: _Plan) -> dict[str, dict[str, float]]:
    values: dict[str, dict[str, float]] = {}
    for metric in plan.metrics:
        for operator in plan.operators if metric.removal else (NO_REMOVAL,):
            values.setdefault(operator, {})[metric.name] = float("nan")
    return values


def _curves(series: Series) -> dict[str, list[float]]:
    """Activation and pruning on the common grid of fractions."""
    curves = {"activation": series.activation, "pruning": series.pruning}
    return {
        name: np.interp(GRID, curve.fractions.numpy(), curve.values.numpy()).tolist()
        for name, curve in curves.items()
    }


def _sensitivity(
    model: Model,
    plan: _Plan,
    items: Sequence[Item],
    explainer: Explainer,
    target: Target,
    before: Mapping[Key, Explanation],
) -> dict[Key, float]:
    """Largest relative change of each graph's scores over a few draws of noise."""
    largest: dict[Key, float] = {}
    for draw in range(DRAWS if items else 0):
        noisy = NoisyModel(model, plan.seed * DRAWS + draw)
        for key, after in _explained(noisy, items, explainer, target).items():
            if isinstance(after, Explanation):
                change = relative_change(before[key].relevance, after.relevance)
                largest[key] = max(largest.get(key, change), change)
    return largest


def _randomised(
    model: Model,
    plan: _Plan,
    items: Sequence[Item],
    explainer: Explainer,
    target: Target,
    before: Mapping[Key, Explanation],
) -> dict[Key, dict[str, float]]:
    """|Rank correlation| of each graph's scores with those after each stage of shuffling."""
    stages: dict[Key, dict[str, float]] = {key: {} for key, _ in items}
    for block, shuffled in shuffled_stages(model, plan.seed) if items else ():
        for key, after in _explained(shuffled, items, explainer, target).items():
            if isinstance(after, Explanation):
                rho = rank_correlation(before[key].relevance, after.relevance)
                stages[key][block] = abs(rho)
    return stages


def _with_checks(unit: Unit, sensitivity: float | None, stages: Mapping[str, float] | None) -> Unit:
    """The unit with the figures of the checks that were made."""
    added = {}
    if sensitivity is not None:
        added["max_sensitivity"] = sensitivity
    if stages:
        added["model_randomisation"] = list(stages.values())[-1]
    if not added:
        return unit
    others = unit.values.get(NO_REMOVAL, {})
    values = unit.values | {NO_REMOVAL: others | added}
    return replace(unit, values=values, stages=dict(stages or {}))


def _with_digest(unit: Unit, *, checkpoint: str, digests: Mapping[Key, str]) -> Unit:
    return replace(unit, checkpoint=checkpoint, digest=digests[unit.graph])


def _digest(data: Data) -> str:
    """Short hash of a graph's nodes and edges: a resumed run must mean the same graph."""
    content = hashlib.sha256(data.x.contiguous().numpy().tobytes())
    content.update(data.edge_index.contiguous().numpy().tobytes())
    return content.hexdigest()[:12]


def _told(target: Any) -> str | None:
    """A target in words, for the record."""
    wanted = Target.of(target)
    words = [wanted.task, None if wanted.choice is None else str(wanted.choice)]
    return ": ".join(word for word in words if word) or None


def _settings(model: Model, plan: _Plan, target: Any) -> dict[str, Any]:
    """What makes the figures reproducible, as JSON values."""
    from graphxai import __version__
    from graphxai.api import versions

    return {
        "model": model.origin.name,
        "sha256": weights_hash(model),
        "target": _told(target),
        "metrics": [metric.name for metric in plan.metrics],
        "operators": list(plan.operators),
        "steps": plan.steps,
        "seed": plan.seed,
        "graphxai": __version__,
        "versions": versions(),
    }
