"""A teacher for every target: sources weighted by how well they predict unseen scaffolds.

Forests and Gaussian processes predict each molecule of the training part from the other scaffold
folds. Their weights are the non-negative ones, summing to 1, with the least squared error on these
predictions (Breiman 1996).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import ecfp4
from graphxai.datasets.labels import with_unit
from graphxai.datasets.splits import scaffold_folds
from graphxai.learning.conformal import Unseen, nearest_similarities
from graphxai.learning.scores import METRICS
from graphxai.learning.teachers.forests import Forest, trees_for
from graphxai.learning.teachers.gaussian_process import (
    Kernel,
    Positions,
    Process,
    carriers_of,
    counts_of,
    similarity,
)
from graphxai.learning.teachers.labels import MIN_LABELS, forest_inputs
from graphxai.learning.teachers.minimol import minimol_fingerprints, minimol_installed
from graphxai.runtime.progress import Progress, progress_bar

__all__ = ["SOURCES", "Features", "Stack", "simplex_weights"]

FloatArray = NDArray[np.float64]
SOURCES = {
    "forest": "forest on ECFP4",
    "descriptor_forest": "forest on ECFP4 + descriptors",
    "process": "Tanimoto process",
    "minimol": "process on MiniMol fingerprints",
}
FOLDS = 4
NOISES = (0.05, 0.5)  # ratios of measurement variance to process variance that are tried
LEAST = 0.1  # a source with less weight is not worth its time
MAX_FEATURES = {"forest": 1 / 3, "descriptor_forest": 0.2}


@dataclass(frozen=True, eq=False)
class Features:
    """The features that the sources read; each is computed when it is first needed."""

    smiles: tuple[str, ...]

    @cached_property
    def forest(self) -> NDArray[np.float32]:
        """ECFP4, (n, 2048)."""
        return ecfp4(self.smiles)

    @cached_property
    def descriptor_forest(self) -> NDArray[np.float32]:
        """ECFP4 and descriptors, (n, 2361)."""
        return forest_inputs(self.smiles)

    @cached_property
    def process(self) -> tuple[NDArray[np.uint16], ...]:
        """Counts of environments and of atom pairs, (n, 4096) each."""
        return counts_of(self.smiles)

    @cached_property
    def minimol(self) -> tuple[NDArray[np.float32], ...]:
        """MiniMol fingerprints, (n, 512)."""
        return (minimol_fingerprints(self.smiles),)


@dataclass(frozen=True, eq=False)
class Forests:
    """Forests by position of their task, and their out-of-bag predictions for the training part."""

    source: str
    forests: Mapping[int, Forest]
    left_out: Mapping[int, FloatArray]

    def predict(
        self, features: Features, tasks: Collection[int] | None = None
    ) -> dict[int, FloatArray]:
        """Predict molecules, by position of the task; for all tasks, or for some."""
        chosen = [k for k in self.forests if tasks is None or k in tasks]
        return {k: self.forests[k].predict(getattr(features, self.source)) for k in chosen}


@dataclass(frozen=True, eq=False)
class Processes:
    """A process for the tasks whose columns it has, and the fingerprints (m, F) of its carriers.

    width: length of the kernel of MiniMol's fingerprints.
    """

    source: str
    tasks: Mapping[int, Task]
    process: Process
    carriers: tuple[NDArray[Any], ...]
    width: float = 1.0

    def predict(
        self, features: Features, tasks: Collection[int] | None = None
    ) -> dict[int, FloatArray]:
        """Predict molecules, by position of the task; always for all tasks that it has."""
        kernel = _kernel(self.source, getattr(features, self.source), self.carriers, self.width)
        return _readings(self.tasks, self.process.predict(kernel))

    @property
    def left_out(self) -> dict[int, FloatArray]:
        """Leave-one-out predictions for the training part; NaN for several classes."""
        found = _readings(self.tasks, self.process.left_out)
        return {k: v if v.ndim == 1 else np.full(len(v), np.nan) for k, v in found.items()}


@dataclass(frozen=True, eq=False)
class Stack:
    """The weighted mean of sources, for every task of a table.

    weights: by task, of the sources that have one; None for a task with too few labels.
    out_of_fold: by task, the leading score of every source and of the "stack" for molecules with
    scaffolds that it did not learn from. metrics: by task, the name of that score. unseen: by task,
    the training molecules as predicted then, and how near each is to the other folds.
    """

    tasks: tuple[Task, ...]
    sources: Mapping[str, Forests | Processes]
    weights: tuple[dict[str, float] | None, ...]
    out_of_fold: tuple[dict[str, float], ...]
    metrics: tuple[str, ...]
    unseen: Mapping[str, Unseen] = field(default_factory=dict)

    @classmethod
    def fit(
        cls,
        tasks: Sequence[Task],
        smiles: Sequence[str],
        y: FloatArray,
        *,
        seed: int = 0,
        choose: bool = True,
        show: bool | None = False,
    ) -> Stack:
        """Choose the weights on scaffold folds of the training molecules, then fit to all of them.

        Both forests are fitted for every task, as baselines, whatever their weight.

        Args:
            tasks: the tasks.
            smiles: the training molecules (n,).
            y: their labels (n, tasks), NaN where one is missing.
            seed: seed of the forests.
            choose: False fits the two forests alone, and no task has weights.
            show: as for `progress_bar`.
        """
        features = Features(tuple(smiles))
        enough = [k for k in range(len(tasks)) if choose and _enough(y[:, k])]
        names = [name for name in SOURCES if name != "minimol" or minimol_installed()]
        folds = scaffold_folds(smiles, FOLDS) if enough else []
        steps = 2 * len(tasks) + (len(names) - 2) * (1 + FOLDS * len(NOISES)) + 2 * FOLDS
        with progress_bar("fitting teachers", steps, show=show) as advance:
            fitting = _Fitting(tuple(tasks), features, y, seed, advance)
            by_source = {
                name: fitting.unseen_by_process(name, folds, enough)
                if name not in MAX_FEATURES
                else (fitting.unseen_by_forests(name, folds, enough), {})
                for name in (names if enough else ())
            }
            weights: list[dict[str, float] | None] = [None] * len(tasks)
            scores: list[dict[str, float]] = [{} for _ in tasks]
            unseen: dict[str, Unseen] = {}
            similarity = _nearest_of_others(smiles, folds)
            for k in enough:
                predicted = {name: found[k] for name, (found, _) in by_source.items()}
                weights[k], scores[k], stack = _stacked(tasks[k], predicted, y[:, k])
                unseen[tasks[k].name] = Unseen(stack, y[:, k].copy(), similarity)
            sources: dict[str, Forests | Processes] = {
                name: fitting.forests(name) for name in MAX_FEATURES
            }
            for name, (_, noises) in by_source.items():
                wanted = {k: noises[k] for k in enough if name in (weights[k] or {}) and noises}
                if wanted:
                    sources[name] = fitting.processes(name, wanted)
        metrics = tuple(next(iter(METRICS[task.kind])) for task in tasks)
        return cls(tuple(tasks), sources, tuple(weights), tuple(scores), metrics, unseen)

    def predict(self, features: Features) -> list[FloatArray | None]:
        """Return probabilities or values by task, see `scores.readings`; None without weights."""
        used: dict[str, set[int]] = {}
        for k, weights in enumerate(self.weights):
            for name in weights or ():
                used.setdefault(name, set()).add(k)
        found = {name: self.sources[name].predict(features, tasks) for name, tasks in used.items()}
        return [
            None if weights is None else sum(w * found[name][k] for name, w in weights.items())  # type: ignore[misc]
            for k, weights in enumerate(self.weights)
        ]

    def left_out(self, task: int) -> FloatArray | None:
        """Predict the training molecules without their own label, (n,); NaN where unknown."""
        weights = self.weights[task]
        if weights is None:
            return None
        return sum(w * self.sources[name].left_out[task] for name, w in weights.items())  # type: ignore[return-value]

    @property
    def headings(self) -> tuple[str, ...]:
        """The names of `columns`."""
        return tuple(
            heading
            for task, weights in zip(self.tasks, self.weights, strict=True)
            if weights is not None
            for heading in _headings(task)
        )

    def columns(self, smiles: Sequence[str]) -> dict[str, FloatArray]:
        """Predict molecules (m,), in named columns (m,): a value, or a probability per class."""
        parts = [
            np.stack([1 - found, found], axis=1) if task.kind == "binary" else _flat(found)
            for task, found in zip(self.tasks, self.predict(Features(tuple(smiles))), strict=True)
            if found is not None
        ]
        return dict(zip(self.headings, np.concatenate(parts, axis=1).T, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Weights and scores by task, as plain values for JSON."""
        each = zip(self.tasks, self.weights, self.out_of_fold, self.metrics, strict=True)
        return {
            task.name: {
                "metric": metric,
                "weights": weights,
                "scores": {n: None if np.isnan(score) else score for n, score in scores.items()},
            }
            for task, weights, scores, metric in each
        }

    def lines(self) -> list[str]:
        """Say for every task what its teacher is made of, and what each source scored."""
        found = []
        for task, weights, scores, metric in zip(
            self.tasks, self.weights, self.out_of_fold, self.metrics, strict=True
        ):
            if weights is None:
                found.append(f"teacher of {task.name}: none (too few labels)")
                continue
            taken = " + ".join(f"{weight:.2f} {SOURCES[name]}" for name, weight in weights.items())
            each = ", ".join(
                f"{SOURCES[name]} {score:.3f}" for name, score in scores.items() if name in SOURCES
            )
            found.append(
                f"teacher of {task.name}: {taken}; {metric} on unseen scaffolds"
                f" {scores['stack']:.3f} ({each})"
            )
        return found


@dataclass(frozen=True, eq=False)
class _Fitting:
    """What all sources for a table share."""

    tasks: tuple[Task, ...]
    features: Features
    y: FloatArray
    seed: int
    advance: Progress

    def unseen_by_forests(
        self, name: str, folds: Sequence[Positions], enough: Sequence[int]
    ) -> dict[int, FloatArray]:
        """Predict each molecule from the other folds with fewer trees, by position of the task."""
        inputs = getattr(self.features, name)
        found = {k: _gaps(self.tasks[k], len(self.y)) for k in enough}
        for fold in folds:
            for k in enough:
                rest = _known(self.y[:, k], fold)
                if len(np.unique(self.y[rest, k])) > 1:
                    forest = self._forest(name, k, rest, share=0.25)
                    found[k][fold] = forest.predict(inputs[fold])
            self.advance(1)
        return found

    def forests(self, name: str) -> Forests:
        """Learn every task that has labels."""
        forests, left_out = {}, {}
        for k, column in enumerate(self.y.T):
            known = _known(column)
            if len(known):
                forests[k] = self._forest(name, k, known, out_of_bag=_enough(column))
                left_out[k] = np.full(len(column), np.nan)
                left_out[k][known] = forests[k].out_of_bag
            self.advance(1)
        return Forests(name, forests, left_out)

    def _forest(
        self, name: str, k: int, rows: Positions, share: float = 1.0, out_of_bag: bool = False
    ) -> Forest:
        """Learn a task from some rows, with a share of the trees."""
        return Forest.fit(
            self.tasks[k],
            getattr(self.features, name)[rows],
            self.y[rows, k],
            trees=max(1, round(share * trees_for(self.tasks[k].kind, len(self.tasks)))),
            max_features=MAX_FEATURES[name],
            out_of_bag=out_of_bag,
            seed=self.seed,
        )

    def unseen_by_process(
        self, name: str, folds: Sequence[Positions], enough: Sequence[int]
    ) -> tuple[dict[int, FloatArray], dict[int, float]]:
        """Predict each molecule from the other folds; return that and the noise, both by task."""
        tasks = {k: self.tasks[k] for k in enough}
        labels, kernel, carriers = _labels(tasks, self.y), *self._own(name)[:2]
        best: dict[int, FloatArray] = {}
        noises: dict[int, float] = {}
        errors = dict.fromkeys(enough, np.inf)
        for noise in NOISES:
            predicted = np.full(labels.shape, np.nan)
            for fold in folds:
                rest = labels.copy()
                rest[fold] = np.nan
                process = Process.fit(kernel, carriers, rest, noise, left_out=False)
                predicted[fold] = process.predict(kernel[fold])
                self.advance(1)
            for k, readings in _readings(tasks, predicted).items():
                error = _squared_error(readings, self.y[:, k])
                if k not in best or error < errors[k]:
                    best[k], noises[k], errors[k] = readings, noise, error
        return best, noises

    def processes(self, name: str, noises: Mapping[int, float]) -> Processes:
        """Learn the tasks that have a noise."""
        tasks = {k: self.tasks[k] for k in noises}
        kernel, carriers, width = self._own(name)
        each = [noises[k] for k, task in tasks.items() for _ in range(task.num_outputs)]
        process = Process.fit(kernel, carriers, _labels(tasks, self.y), each)
        self.advance(1)
        fingerprints = tuple(part[carriers] for part in getattr(self.features, name))
        return Processes(name, tasks, process, fingerprints, width)

    @cached_property
    def _kernels(self) -> dict[str, tuple[Kernel, Positions, float]]:
        return {}

    def _own(self, name: str) -> tuple[Kernel, Positions, float]:
        """Return the similarity of the training molecules to the carriers, these, and the width."""
        if name not in self._kernels:
            fingerprints = getattr(self.features, name)
            carriers = carriers_of(len(self.y), self.seed)
            chosen = tuple(part[carriers] for part in fingerprints)
            width = _width(chosen[0]) if name == "minimol" else 1.0
            self._kernels[name] = _kernel(name, fingerprints, chosen, width), carriers, width
        return self._kernels[name]


def simplex_weights(predictions: Sequence[FloatArray], y: FloatArray) -> FloatArray:
    """Find weights (S,), not negative and summing to 1, with the least squared error.

    Predictions are readings (n,) or (n, C) for labels y (n,), NaN where missing.
    """
    known = ~np.isnan(y) & ~np.any([np.isnan(_flat(p)).any(1) for p in predictions], axis=0)
    if not known.any():
        return np.full(len(predictions), 1 / len(predictions))
    # With weights that sum to 1, the error of the mean is the mean of the errors.
    errors = np.stack([_errors(p[known], y[known]).ravel() for p in predictions], axis=1)
    triangle = np.linalg.qr(errors, mode="r")  # the same squares in few rows
    bound = 1e4 * max(float(np.abs(triangle).max()), 1e-12)  # the last row makes the sum 1
    rows = np.vstack([triangle, np.full(len(predictions), bound)])
    weights, _ = nnls(rows, np.append(np.zeros(len(triangle)), bound))
    return weights / weights.sum()


def _nearest_of_others(smiles: Sequence[str], folds: Sequence[Positions]) -> FloatArray:
    """Return the similarity of each molecule to the nearest one of the other folds, (n,)."""
    found = np.zeros(len(smiles))
    for fold in folds:
        own, others = [smiles[k] for k in fold], np.setdiff1d(np.arange(len(smiles)), fold)
        if len(others):
            found[fold] = nearest_similarities(own, [smiles[k] for k in others])
    return found


def _stacked(
    task: Task, predicted: Mapping[str, FloatArray], y: FloatArray
) -> tuple[dict[str, float], dict[str, float], FloatArray]:
    """Return weights of a task's sources, scores of out-of-fold predictions, and their mean."""
    kept = dict(predicted)
    weights = dict(zip(kept, simplex_weights(list(kept.values()), y).tolist(), strict=True))
    while min(weights.values()) < LEAST:
        kept = {name: kept[name] for name, weight in weights.items() if weight >= LEAST}
        weights = dict(zip(kept, simplex_weights(list(kept.values()), y).tolist(), strict=True))
    stack: FloatArray = sum(w * predicted[name] for name, w in weights.items())
    score = next(iter(METRICS[task.kind].values()))
    judged = {**predicted, "stack": stack}
    known = ~np.isnan(y) & ~np.any([np.isnan(_flat(p)).any(1) for p in judged.values()], axis=0)
    scores = {
        n: float(score(p[known], y[known])) if known.any() else np.nan for n, p in judged.items()
    }
    return weights, scores, stack


def _headings(task: Task) -> list[str]:
    if task.kind == "regression":
        return [with_unit(f"{task.name}: teacher", task.unit)]
    return [f"{task.name}: teacher: {name}" for name in task.classes]


def _enough(y: FloatArray) -> bool:
    known = y[~np.isnan(y)]
    return len(known) >= MIN_LABELS and len(np.unique(known)) > 1


def _known(y: FloatArray, without: Positions | None = None) -> Positions:
    """Return the positions of labels y (n,), except those in `without`."""
    present = ~np.isnan(y)
    if without is not None:
        present[without] = False
    return np.flatnonzero(present)


def _gaps(task: Task, n: int) -> FloatArray:
    return np.full((n, len(task.classes)) if task.kind == "multiclass" else n, np.nan)


def _flat(readings: FloatArray) -> FloatArray:
    return readings.reshape(len(readings), -1)


def _errors(readings: FloatArray, y: FloatArray) -> FloatArray:
    """Return readings (n,) or (n, C) minus labels y (n,), none of them missing."""
    return readings - (y if readings.ndim == 1 else np.eye(readings.shape[1])[y.astype(int)])


def _squared_error(readings: FloatArray, y: FloatArray) -> float:
    known = ~np.isnan(y)
    return float((_errors(readings[known], y[known]) ** 2).mean())


def _labels(tasks: Mapping[int, Task], y: FloatArray) -> FloatArray:
    """Return the columns that a process learns, (n, columns): a task of C classes has C."""
    columns = []
    for k, task in tasks.items():
        if task.kind == "multiclass":
            numbers = np.arange(len(task.classes), dtype=np.float64)
            one_hot = (y[:, k, None] == numbers).astype(np.float64)
            columns.append(np.where(np.isnan(y[:, k, None]), np.nan, one_hot))
        else:
            columns.append(y[:, k, None])
    return np.concatenate(columns, axis=1)


def _readings(tasks: Mapping[int, Task], values: FloatArray) -> dict[int, FloatArray]:
    """Turn a process's columns (n, columns) into probabilities and values, by task."""
    found, start = {}, 0
    for k, task in tasks.items():
        own = values[:, start : start + task.num_outputs]
        start += task.num_outputs
        if task.kind == "multiclass":
            own = own.clip(1e-6, 1)
            found[k] = own / own.sum(1, keepdims=True)
        else:
            found[k] = own[:, 0].clip(0, 1) if task.kind == "binary" else own[:, 0]
    return found


def _kernel(
    name: str, own: tuple[NDArray[Any], ...], carriers: tuple[NDArray[Any], ...], width: float
) -> Kernel:
    """Return the similarity (n, m) of molecules to carriers, from their fingerprints."""
    if name == "process":
        return similarity(own, carriers)
    squares = _squared_distances(own[0], carriers[0])
    return np.exp(-squares / (2 * width**2)).astype(np.float32)


def _width(fingerprints: NDArray[np.float32]) -> float:
    """Return the median distance between fingerprints, of the first thousand."""
    squares = _squared_distances(fingerprints[:1000], fingerprints[:1000])
    return float(np.sqrt(np.median(squares))) or 1.0


def _squared_distances(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    return np.maximum(squares, 0)
