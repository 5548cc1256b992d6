"""The run of an evaluation: chunks of graphs, measured here or in other processes, and resumed."""

import hashlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType
from typing import Any, Protocol, TypedDict
from urllib.parse import quote

import torch
from torch_geometric.data import Data

from graphxai.contract.batching import batches_for
from graphxai.contract.model import weights_hash
from graphxai.contract.target import Target
from graphxai.datasets.labels import with_unit
from graphxai.explainers.passes import outputs_without_nodes
from graphxai.explanation.compute.models import Model, versions
from graphxai.runtime.device import one_thread, workers_for
from graphxai.runtime.interrupts import Interrupted
from graphxai.runtime.progress import progress_bar, resumed
from graphxai.runtime.workers import LostItem, map_in_processes
from graphxai.wrapping.chosen import chosen_nodes
from graphxai.wrapping.removal import Resampling
from graphxai.wrapping.wrapped import WrappedModel

from .measure import Item, MeasurementPlan, measure, unmeasured
from .report import Report
from .store import Key, Store, Unit
from .targets import TrackedOutput

CHUNK = 16  # how many graphs are explained, measured and written together


class RefitOption(Protocol):
    """What `evaluate` takes as `refit`: `graphxai.evaluation.Refit`."""

    def on(self, model: Any, tracked: TrackedOutput, operators: Sequence[str]) -> Any:
        """Encode the training graphs for a model and an output, see `learning.refit.Refitting`."""


class EvaluationOptions(TypedDict, total=False):
    """How an evaluation runs, and with which models it measures. `evaluate` says what each does."""

    out: str | Path | None
    resume: bool
    progress: bool | None
    workers: int | None
    device: torch.device | str | None
    judge: "Model | None"
    refit: RefitOption | None
    resampling: Resampling | None
    truths: "Sequence[Any] | Mapping[Key, Any] | None"


@dataclass(frozen=True)
class Graphs:
    """The graphs to measure on.

    Args:
        rejected: by key, why an input is left out.
    """

    items: list[Item]
    targets: Mapping[Key, Target]
    rejected: tuple[tuple[Key, str], ...]


@dataclass(frozen=True)
class Run:
    """A measurement of graphs, which goes on where an earlier one in the same folder stopped.

    Args:
        refitting: how judges are trained here, a `learning.refit.Refitting`, or None.
        digests: by graph, a hash by which a later run recognises it.
        code: by method, a hash of the user's functions that it runs; "" for none.
        earlier: the units that an earlier run measured.
    """

    model: Model
    graphs: Graphs
    refitting: Any
    store: Store | None
    settings: dict[str, Any]
    digests: Mapping[Key, str]
    code: Mapping[str, str]
    earlier: list[Unit]

    @classmethod
    def begin(
        cls,
        model: Model,
        plan: MeasurementPlan,
        tracked: TrackedOutput,
        graphs: Graphs,
        refitting: Any,
        options: EvaluationOptions,
    ) -> "Run":
        """Read what an earlier run measured, after checking its settings."""
        settings = _settings(model, plan, tracked)
        if (judge := options.get("judge")) is not None:
            settings["judge"] = checkpoint_name(judge)
        if refitting is not None:
            settings["refit"] = refitting.settings()
        checkpoint, out = checkpoint_name(model), options.get("out")
        store = Store(Path(out)) if out is not None else None
        resume = options.get("resume", False)
        before = store.begin(checkpoint, settings, resume) if store else []
        digests = {key: _digest(item.data) for key, item in graphs.items}
        names = [explainer.name for explainer in plan.explainers]
        forward = _code_of(model.settings.forward) if isinstance(model, WrappedModel) else ""
        code = {e.name: forward + _code_of(getattr(e, "function", None)) for e in plan.explainers}
        earlier = [
            unit
            for unit in before
            if unit.checkpoint == checkpoint
            and unit.method in names
            and unit.digest == digests.get(unit.graph, "") + code[unit.method]
        ]
        notes = {each.name: note for each in plan.explainers if (note := each.traits.note)}
        costs = {explainer.name: explainer.traits.cost for explainer in plan.explainers}
        settings |= {"methods": names, "notes": notes, "costs": costs, "checkpoints": [checkpoint]}
        if (task := tracked.target.task_in(model.config)).kind == "regression":
            settings["value"] = with_unit(task.name, task.unit)
        if {"mask", "delete"} & {*plan.operators} and _zeroes_nodes(model, graphs):
            settings["without_nodes"] = "zeros"
        return cls(model, graphs, refitting, store, settings, digests, code, earlier)

    def with_judges(self, plan: MeasurementPlan, progress: bool | None) -> MeasurementPlan:
        """Train the judges of `f-fidelity`, if they are wanted."""
        if self.refitting is None or self.refitting.is_roar:
            return plan
        with self._training_runs() as folder:
            return replace(plan, judges=self.refitting.judges(plan, folder, progress))

    def measured(self, plan: MeasurementPlan, options: EvaluationOptions) -> Report:
        """Measure what is left, write it as it comes, and report all of it."""
        progress = options.get("progress")
        done = {(unit.graph, unit.method) for unit in self.earlier}
        units = list(self.earlier)
        (checkpoint,) = self.settings["checkpoints"]
        total = len(self.graphs.items) * len(plan.explainers)
        with (
            ExitStack() as stack,
            progress_bar("evaluating", total, show=progress) as advance,
            self.store.writing() if self.store else nullcontext(lambda units: None) as write,
        ):
            advance = resumed(advance, len(done))
            measured = self._units(plan, done, options.get("workers", 1), progress)
            try:
                for graph_units in stack.enter_context(closing(measured)):
                    finished = [
                        replace(
                            unit,
                            checkpoint=checkpoint,
                            digest=self.digests[unit.graph] + self.code[unit.method],
                        )
                        for unit in graph_units
                    ]
                    write(finished)
                    units += finished
                    advance(len(finished))
            except KeyboardInterrupt:
                graphs = len({unit.graph for unit in units})
                how_far = f"after {graphs} of {len(self.graphs.items)} graphs"
                raise Interrupted(how_far, self._report(units)) from None
        return self._report(units)

    def _units(
        self,
        plan: MeasurementPlan,
        done: set[tuple[Key, str]],
        workers: int | None,
        progress: bool | None,
    ) -> Generator[list[Unit], None, None]:
        """Yield the units that are not done."""
        items, targets = self.graphs.items, self.graphs.targets
        if self.refitting is not None and self.refitting.is_roar:
            with self._training_runs() as folder:
                yield from self.refitting.roar_units(plan, items, targets, folder, done, progress)
            return
        work = partial(_measured, self.model, plan, done)
        chunks, count = _chunks(self.model, items, targets), workers_for(self.model, workers)
        with closing(map_in_processes(work, chunks, count, len(items))) as measured:
            for part in chain.from_iterable(measured):
                if isinstance(part.result, LostItem):
                    (key, item), _ = part.items[0]
                    yield unmeasured(plan, key, item, part.result.reason, done)
                else:
                    yield from part.result

    def _report(self, units: list[Unit]) -> Report:
        """Return a report with the graphs and methods in the order in which they were given."""
        order = {key: position for position, (key, _) in enumerate(self.graphs.items)}
        names = self.settings["methods"]
        units.sort(key=lambda unit: (order[unit.graph], names.index(unit.method)))
        return Report(tuple(units), self.settings, self.graphs.rejected)

    @contextmanager
    def _training_runs(self) -> Iterator[Path]:
        """Yield the folder of a checkpoint's training runs, which is temporary without a store."""
        if self.store is not None:
            (checkpoint,) = self.settings["checkpoints"]
            yield self.store.folder / "refit" / quote(checkpoint, safe="")
            return
        with TemporaryDirectory() as folder:
            yield Path(folder)


def _measured(
    model: Model,
    plan: MeasurementPlan,
    done: set[tuple[Key, str]],
    chunk: Sequence[tuple[Item, Target]],
) -> list[list[Unit]]:
    """Measure the graphs of a chunk, here or in another process, and return the units of each."""
    items, target = [item for item, _ in chunk], chunk[0][1]
    with one_thread():
        return list(measure(model, plan, items, target, done))


def checkpoint_name(model: Model) -> str:
    """Return a model's name with the first digits of the hash of its weights."""
    return f"{model.origin.name} {weights_hash(model)[:8]}"


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


def _code_of(function: Any) -> str:
    """Return a short hash of what a function does, wherever it stands; "" for none in Python."""
    if function is None:
        return ""
    called = function if hasattr(function, "__code__") else type(function).__call__
    code = getattr(called, "__code__", None)
    return "" if code is None else hashlib.sha256(_instructions(code)).hexdigest()[:12]


def _instructions(code: CodeType) -> bytes:
    """Return the instructions of a function and of those inside it, with names and constants."""
    parts = [code.co_code, repr(code.co_names).encode()]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            parts.append(_instructions(constant))
        else:  # a set has another order in each process
            each = sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant
            parts.append(repr(each).encode())
    return b"|".join(parts)


def _zeroes_nodes(model: Model, graphs: Graphs) -> bool:
    """Return whether nodes of zeros stand for no nodes, as for the first graph that has any."""
    whole = [item.data for _, item in graphs.items if item.data.num_nodes]
    if not (isinstance(model, WrappedModel) and whole):
        return False
    outputs = outputs_without_nodes(model, model.collate(whole[:1]).to(model.device))
    return outputs is None or not bool(outputs.isfinite().all())


def _settings(model: Model, plan: MeasurementPlan, tracked: TrackedOutput) -> dict[str, Any]:
    """Return what is needed to reproduce the values, as JSON values."""
    version_of = versions()
    of_draws: dict[str, Any] = {}
    if plan.resampling is not None:
        of_draws["resampling"] = plan.resampling.settings()
    if plan.truths:
        content = hashlib.sha256()
        for key, truth in plan.truths.items():
            content.update(f"{key}{truth.shape}".encode() + truth.tobytes())
        of_draws["truths"] = content.hexdigest()[:12]
    return of_draws | {
        "model": model.origin.name,
        "sha256": weights_hash(model),
        "target": tracked.text,
        "metrics": [metric.name for metric in plan.metrics],
        "operators": list(plan.operators),
        "steps": plan.steps,
        "seed": plan.seed,
        "graphxai": version_of["graphxai"],
        "versions": version_of,
    }
