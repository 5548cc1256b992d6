"""Fill in labels of which only a bound is known, so that a teacher can learn from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from graphxai.contract.tasks import Task
from graphxai.learning.teachers.forests import Forest

__all__ = ["expected_within", "filled_column", "filled_labels"]

FloatArray = NDArray[np.float64]
ROUNDS = 3
TREES = 100


def filled_labels(
    tasks: Sequence[Task], inputs: NDArray[Any], y: FloatArray, bounds: FloatArray, seed: int
) -> FloatArray:
    """Fill in the labels of regressions that are bounded, see `filled_column`.

    Args:
        tasks: the tasks.
        inputs: the features of the molecules (n, F).
        y: their labels (n, tasks), NaN where none was measured.
        bounds: the lowest and highest possible values (n, tasks, 2), infinite where nothing is
            known.
        seed: the seed of the forests.
    """
    columns = [
        filled_column(task, inputs, y[:, k], bounds[:, k], seed)
        if task.kind == "regression"
        else y[:, k]
        for k, task in enumerate(tasks)
    ]
    return np.stack(columns, axis=1)


def filled_column(
    task: Task, inputs: NDArray[Any], y: FloatArray, bounds: FloatArray, seed: int
) -> FloatArray:
    """Fill in labels that are bounded by what a forest expects within their bounds.

    A forest is fitted to the measured labels and to the expected ones, anew for every round, as
    regressions are fitted to censored values (Schmee and Hahn 1979). Its error on labels that a
    tree has not seen is the spread around its predictions.

    Args:
        task: the task.
        inputs: the features of the molecules (n, F).
        y: their labels (n,), NaN where none was measured.
        bounds: the lowest and highest possible values (n, 2), infinite where nothing is known.
        seed: the seed of the forests.

    Returns:
        The labels (n,), still NaN where there is neither a label nor a bound.
    """
    measured = ~np.isnan(y)
    censored = ~measured & np.isfinite(bounds).any(axis=1)
    if not censored.any() or measured.sum() < 2:
        return y
    filled = y.copy()
    for _ in range(ROUNDS):
        labelled = ~np.isnan(filled)
        forest = Forest.fit(
            task, inputs[labelled], filled[labelled], trees=TREES, out_of_bag=True, seed=seed
        )
        errors = forest.out_of_bag[measured[labelled]] - y[measured]
        spread = float(np.sqrt(np.nanmean(errors**2)))
        predicted = forest.predict(inputs[censored])
        if labelled[censored].all():  # the trees have seen these labels from the second round on
            predicted = forest.out_of_bag[censored[labelled]]
        filled[censored] = expected_within(predicted, spread, bounds[censored])
    return filled


def expected_within(predicted: FloatArray, spread: float, bounds: FloatArray) -> FloatArray:
    """Return the mean of a normal distribution (n,) that is cut off at bounds (n, 2).

    It is mu + s (phi(a) - phi(b)) / (Phi(b) - Phi(a)), where a and b are the bounds, standardised
    with the mean mu and the spread s. Far outside the bounds it is the nearer one.
    """
    low, high = bounds.T
    a, b = (low - predicted) / spread, (high - predicted) / spread
    # on the side of the tail where both probabilities are small, not near 1
    mirrored = a > 0
    left, right = np.where(mirrored, -b, a), np.where(mirrored, -a, b)
    mass = norm.cdf(right) - norm.cdf(left)
    with np.errstate(invalid="ignore", divide="ignore"):
        shift = (norm.pdf(a) - norm.pdf(b)) / mass
    expected = predicted + spread * np.where(mass > 1e-12, shift, 0.0)
    return np.clip(expected, low, high)
