"""Choose a table's teacher: weigh its sources by how well they predict molecules left out.

Forests and Gaussian processes predict each molecule of the training part from the other folds,
which are of scaffolds unless the split is random. Their weights are the non-negative ones, summing
to 1, with the least squared error on these predictions (Breiman 1996).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from graphxai.contract.prediction_metrics import FloatArray
from graphxai.contract.tasks import Task, TaskSet
from graphxai.datasets.fingerprints import similarity
from graphxai.datasets.splits import scaffold_folds
from graphxai.learning.conformal import Unseen, comparable, nearest_of_other_folds
from graphxai.learning.scores import METRICS
from graphxai.learning.teachers.forests import Forest, filled_labels, trees_for
from graphxai.learning.teachers.gaussian_process import (
    Positions,
    Process,
    carriers_of,
    one_hot,
    process_columns,
    process_readings,
)
from graphxai.learning.teachers.stacking import (
    FOLDS,
    MIN_LABELS,
    SOURCES,
    FoldPredictions,
    ForestSource,
    MoleculeFeatures,
    ProcessSource,
    Stack,
    Teacher,
    leading_metric,
)
from graphxai.runtime.progress import Progress, progress_bar

NOISES = (0.05, 0.5)  # ratios of measurement variance to process variance that are tried
LEAST = 0.25  # a source with less weight is not worth its time
FEWEST_TREES = 50  # of a forest that predicts a fold
MAX_FEATURES = {"forest": 1 / 3, "descriptor_forest": 0.2}


def choose_teacher(
    tasks: Sequence[Task],
    smiles: Sequence[str],
    y: FloatArray,
    *,
    folds: Sequence[Positions] | None = None,
    bounds: FloatArray | None = None,
    fitted: Mapping[str, ForestSource | ProcessSource] | None = None,
    seed: int = 0,
    show: bool | None = False,
) -> Teacher:
    """Choose the weights on scaffold folds of the training molecules, then fit to all of them.

    Both forests and the process are fitted for every task, as baselines, whatever their weight.

    Args:
        smiles: the training molecules (n,).
        y: their labels (n, tasks), NaN where one is missing.
        folds: positions of the molecules to predict together without having learned from them; by
            default four folds of scaffolds. Without any, the result teaches no task and has only
            the two forests.
        bounds: the lowest and highest possible values (n, tasks, 2) where a bound is all that is
            known. What a forest expects within them is learned from, but judges nothing.
        fitted: sources that were already fitted to these labels and folds from this seed, by name.
        show: as for `progress_bar`.
    """
    folds = scaffold_folds(smiles, FOLDS) if folds is None else folds
    enough = [k for k in range(len(tasks)) if len(folds) and _has_enough_labels(y[:, k])]
    folds = folds if enough else []
    nearest = nearest_of_other_folds(smiles, folds)
    known = fitted or {}
    process = known.get("process")
    steps = len(MAX_FEATURES.keys() - known.keys()) * len(tasks) + len(MAX_FEATURES) * len(folds)
    if enough and process is None:
        steps += 1 + len(folds) * len(NOISES)
    title = "fitting teachers" if enough else "fitting forests"
    with progress_bar(title, steps, show=show) as advance:
        features = MoleculeFeatures(tuple(smiles))
        filled = y if bounds is None else filled_labels(tasks, features.forest, y, bounds, seed)
        fitter = _SourceFitter(tuple(tasks), features, filled, seed, advance)
        readings = {name: fitter.unseen_by_forests(name, folds, enough) for name in MAX_FEATURES}
        # fitted to every task, as baselines, whatever their weight
        sources: dict[str, ForestSource | ProcessSource] = {
            name: known.get(name) or fitter.fit_forests(name) for name in MAX_FEATURES
        }
        if enough and process is None:
            process = fitter.fit_process(folds, enough)
        if isinstance(process, ProcessSource):
            sources["process"] = process
            readings["process"] = {k: each.readings for k, each in process.of_folds.items()}
    stacks = {
        k: _stacked(tasks[k], {name: readings[name][k] for name in SOURCES}, y[:, k], nearest)
        for k in enough
    }
    return Teacher(tuple(tasks), sources, tuple(map(stacks.get, range(len(tasks)))))


def choose_process(
    tasks: Sequence[Task],
    smiles: Sequence[str],
    y: FloatArray,
    folds: Sequence[Positions],
    *,
    bounds: FloatArray,
    seed: int = 0,
    show: bool | None = False,
) -> tuple[ProcessSource, dict[str, ForestSource]]:
    """Fit a process to all tasks, and forests to compare with. See `choose_teacher`.

    Returns:
        The process, with the noise that predicts the folds best; and the forests, by name.
    """
    steps = len(NOISES) * len(folds) + 1 + len(MAX_FEATURES) * len(tasks)
    with progress_bar("fitting a process and forests", steps, show=show) as advance:
        features = MoleculeFeatures(tuple(smiles))
        filled = filled_labels(tasks, features.forest, y, bounds, seed)
        fitter = _SourceFitter(tuple(tasks), features, filled, seed, advance)
        process = fitter.fit_process(folds, range(len(tasks)))
        return process, {name: fitter.fit_forests(name) for name in MAX_FEATURES}


@dataclass(frozen=True, eq=False)
class _SourceFitter:
    """Fits the sources of a teacher to training molecules with labels y (n, tasks).

    `advance` is called with 1 for every step done.
    """

    tasks: tuple[Task, ...]
    features: MoleculeFeatures
    y: FloatArray
    seed: int
    advance: Progress

    def unseen_by_forests(
        self, name: str, folds: Sequence[Positions], enough: Sequence[int]
    ) -> dict[int, FloatArray]:
        """Predict each molecule from the other folds, by position of the tasks with enough labels.

        The predictions are (n,), or (n, classes).
        """
        inputs, readings = getattr(self.features, name), {}
        for k in enough:
            task, n = self.tasks[k], len(self.y)
            shape = (n, len(task.classes)) if task.kind == "multiclass" else (n,)
            readings[k] = np.full(shape, np.nan)
        for fold in folds:
            for k in enough:
                rest = _labelled(self.y[:, k], fold)
                if len(np.unique(self.y[rest, k])) > 1:
                    forest = self._forest(name, k, rest, share=0.25)  # of the trees
                    readings[k][fold] = forest.predict(inputs[fold])
            self.advance(1)
        return readings

    def fit_forests(self, name: str) -> ForestSource:
        """Fit a forest to every task that has labels."""
        forests, left_out = {}, {}
        for k, column in enumerate(self.y.T):
            rows = _labelled(column)
            if len(rows):
                forests[k] = self._forest(name, k, rows, out_of_bag=_has_enough_labels(column))
                left_out[k] = np.full(len(column), np.nan)
                left_out[k][rows] = forests[k].out_of_bag
            self.advance(1)
        return ForestSource(name, forests, left_out)

    def _forest(
        self, name: str, k: int, rows: Positions, share: float = 1.0, out_of_bag: bool = False
    ) -> Forest:
        """Fit a forest with a share of the usual trees, but at least 50, to some rows of a task."""
        every = trees_for(self.tasks[k].kind, len(self.tasks))
        return Forest.fit(
            self.tasks[k],
            getattr(self.features, name)[rows],
            self.y[rows, k],
            trees=min(every, max(FEWEST_TREES, round(share * every))),
            max_features=MAX_FEATURES[name],
            out_of_bag=out_of_bag,
            seed=self.seed,
        )

    def fit_process(self, folds: Sequence[Positions], enough: Sequence[int]) -> ProcessSource:
        """Fit a process to the tasks with enough labels, with noises that suit the folds best."""
        tasks = {k: self.tasks[k] for k in enough}
        labels, carriers = process_columns(tasks, self.y), carriers_of(len(self.y), self.seed)
        carried = tuple(part[carriers] for part in self.features.process)
        kernel = similarity(self.features.process, carried)
        columns = dict(zip(enough, TaskSet(tuple(tasks.values())).columns, strict=True))
        of_folds: dict[int, FoldPredictions] = {}
        for noise in NOISES:
            predicted, processes = np.full(labels.shape, np.nan), []
            for fold in folds:
                rest = labels.copy()
                rest[fold] = np.nan
                process = Process.fit(kernel, carriers, rest, noise, left_out=False)
                processes.append(process)
                predicted[fold] = process.predict(kernel[fold])
                self.advance(1)
            for k, readings in process_readings(tasks, predicted).items():
                labelled, part = _labelled(self.y[:, k]), columns[k]
                error = float((_errors(readings[labelled], self.y[labelled, k]) ** 2).mean())
                if k not in of_folds or error < of_folds[k].error:
                    of_task = [
                        replace(each, weights=each.weights[:, part], means=each.means[part])
                        for each in processes
                    ]
                    of_folds[k] = FoldPredictions(
                        error, noise, readings, predicted[:, part], of_task
                    )
        noises = [of_folds[k].noise for k, task in tasks.items() for _ in range(task.num_outputs)]
        process = Process.fit(kernel, carriers, labels, noises)
        self.advance(1)
        return ProcessSource(tasks, process, carried, of_folds)


def simplex_weights(predictions: Sequence[FloatArray], y: FloatArray) -> FloatArray:
    """Find weights (S,), not negative and summing to 1, with the least squared error.

    Predictions are readings (n,) or (n, C) for labels y (n,), NaN where missing.
    """
    complete = _complete(predictions, y)
    if not complete.any():
        return np.full(len(predictions), 1 / len(predictions))
    # With weights that sum to 1, the error of the mean is the mean of the errors.
    errors = np.stack([_errors(p[complete], y[complete]).ravel() for p in predictions], axis=1)
    triangle = np.linalg.qr(errors, mode="r")  # the same squares in few rows
    bound = 1e4 * max(float(np.abs(triangle).max()), 1e-12)  # the last row makes the sum 1
    rows = np.vstack([triangle, np.full(len(predictions), bound)])
    weights, _ = nnls(rows, np.append(np.zeros(len(triangle)), bound))
    return weights / weights.sum()


def _stacked(
    task: Task, predicted: Mapping[str, FloatArray], y: FloatArray, nearest: FloatArray
) -> Stack:
    """Weigh a task's sources by their out-of-fold predictions (n,) or (n, classes)."""
    kept = dict(predicted)
    weights = dict(zip(kept, simplex_weights(list(kept.values()), y).tolist(), strict=True))
    while min(weights.values()) < LEAST:
        kept = {name: kept[name] for name, weight in weights.items() if weight >= LEAST}
        weights = dict(zip(kept, simplex_weights(list(kept.values()), y).tolist(), strict=True))
    stack: FloatArray = sum(w * predicted[name] for name, w in weights.items())
    score = METRICS[task.kind][leading_metric(task)]
    judged = {**predicted, "stack": stack}
    complete = _complete(list(judged.values()), y)
    scores = {
        name: float(score(readings[complete], y[complete])) if complete.any() else np.nan
        for name, readings in judged.items()
    }
    return Stack(weights, scores, Unseen(stack, y.copy(), nearest))


def _complete(predictions: Sequence[FloatArray], y: FloatArray) -> NDArray[np.bool_]:
    """Return which molecules (n,) have a label y (n,) and all predictions."""
    return np.all([comparable(each, y) for each in predictions], axis=0)


def _has_enough_labels(y: FloatArray) -> bool:
    """Return whether labels y (n,) are enough to choose a teacher."""
    labels = y[~np.isnan(y)]
    return len(labels) >= MIN_LABELS and len(np.unique(labels)) > 1


def _labelled(y: FloatArray, without: Positions | None = None) -> Positions:
    """Return the positions of labels y (n,), except those in `without`."""
    present = ~np.isnan(y)
    if without is not None:
        present[without] = False
    return np.flatnonzero(present)


def _errors(readings: FloatArray, y: FloatArray) -> FloatArray:
    """Return readings (n,) or (n, C) minus labels y (n,), none of them missing."""
    return readings - (y if readings.ndim == 1 else one_hot(y, readings.shape[1]))
