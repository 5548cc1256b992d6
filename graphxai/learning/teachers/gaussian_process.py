"""A Gaussian process on fingerprints: similar molecules have similar values.

scikit-learn's `GaussianProcessRegressor` finds the same weights, to the last digit. With 1,200 and
4,000 molecules it takes 2.2 and 2.5 times as long, because it also computes the likelihood. It has
no leave-one-out predictions and no way to carry a process by some of the molecules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, lapack, solve_triangular

from graphxai.contract.prediction_metrics import FloatArray
from graphxai.contract.tasks import Task, TaskSet
from graphxai.datasets.fingerprints import Kernel

Positions = NDArray[np.intp]
NOISE = 0.05  # ratio of measurement variance to process variance
EXACT = 10_000  # molecules; the matrix for that many, and its factor, take 1.2 GB
CARRIERS = 2_000  # molecules that carry a process on more than that
JITTER = 1e-4  # keeps the carriers' matrix positive definite if two have the same fingerprint


def carriers_of(n: int, seed: int = 0) -> Positions:
    """Return positions of the molecules that carry a process: all n, or 2,000 of over 10,000."""
    if n <= EXACT:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, CARRIERS, replace=False))


@dataclass(frozen=True, eq=False)
class Process:
    """The posterior mean of a Gaussian process for every column of labels (Rasmussen 2006).

    Args:
        weights: weights of the similarities to the molecules that carry the process, (m, columns).
        means: means of the labels (columns,).
        left_out: leave-one-out predictions for the training molecules (eq. 5.12), (n, columns).
            They are NaN where the label is missing, and everywhere if they were not requested.
    """

    weights: FloatArray
    means: FloatArray
    left_out: FloatArray

    @classmethod
    def fit(
        cls,
        kernel: Kernel,
        carriers: Positions,
        y: NDArray[np.floating],
        noise: float | Sequence[float] = NOISE,
        *,
        left_out: bool = True,
    ) -> Process:
        """Learn labels y (n, columns), NaN where one is missing.

        Classes 0 and 1 are regressed like values (section 6.5), so a prediction may lie outside 0
        to 1. If only some of the molecules carry the process, a regression on Nyström's features
        takes its place. The variance that these features lack is then added to each molecule's
        noise (FITC, Snelson 2006). The kernel's diagonal must be 1.

        Args:
            kernel: similarity of the training molecules to the carriers, (n, m).
            carriers: positions of the carriers among the training molecules, (m,).
            noise: ratio of measurement variance to process variance, for all columns or for each.
            left_out: whether to predict each molecule without its label, in twice the time.
        """
        weights, means = np.zeros((len(carriers), y.shape[1])), np.zeros(y.shape[1])
        predictions = np.full(y.shape, np.nan)
        # Columns with labels in the same rows, and with the same noise, share a factor.
        groups = defaultdict(list)
        for k, ratio in enumerate(np.broadcast_to(noise, y.shape[1]).tolist()):
            groups[np.isnan(y[:, k]).tobytes(), ratio].append(k)
        solve = _exact if len(carriers) == len(kernel) else _projected
        for (_, ratio), group in groups.items():
            columns = np.array(group)
            labelled = np.flatnonzero(~np.isnan(y[:, group[0]]))
            if not len(labelled):
                continue
            labels = y[np.ix_(labelled, columns)].astype(np.float64)
            means[columns] = labels.mean(0)
            weights[:, columns], residuals = solve(
                kernel, carriers, labelled, labels - labels.mean(0), ratio, left_out
            )
            predictions[np.ix_(labelled, columns)] = labels - residuals
        return cls(weights, means, predictions)

    def predict(self, kernel: Kernel) -> FloatArray:
        """Predict molecules with similarities (q, m) to the carriers, (q, columns) (eq. 2.25)."""
        return kernel @ self.weights + self.means


def process_columns(tasks: Mapping[int, Task], y: FloatArray) -> FloatArray:
    """Return the columns that a process learns, (n, columns): a task of C classes has C."""
    columns = [
        one_hot(y[:, k], len(task.classes)) if task.kind == "multiclass" else y[:, k, None]
        for k, task in tasks.items()
    ]
    return np.concatenate(columns, axis=1)


def one_hot(y: FloatArray, classes: int) -> FloatArray:
    """Return 1 for the class y (n,) of each molecule and 0 for others, (n, classes); NaN stays."""
    return np.where(np.isnan(y)[:, None], np.nan, y[:, None] == np.arange(classes))


def process_readings(tasks: Mapping[int, Task], values: FloatArray) -> dict[int, FloatArray]:
    """Turn a process's columns (n, columns) into probabilities and values, by task."""
    readings = {}
    for (k, task), part in zip(tasks.items(), TaskSet(tuple(tasks.values())).columns, strict=True):
        columns = values[:, part]
        if task.kind == "multiclass":
            positive = columns.clip(1e-6, 1)
            readings[k] = positive / positive.sum(1, keepdims=True)
        else:
            readings[k] = columns[:, 0].clip(0, 1) if task.kind == "binary" else columns[:, 0]
    return readings


def _exact(
    kernel: Kernel,
    carriers: Positions,
    labelled: Positions,
    y: FloatArray,
    noise: float,
    left_out: bool,
) -> tuple[FloatArray, FloatArray]:
    """Return weights (n, columns) and leave-one-out residuals (labelled, columns) of centred y."""
    covariance = kernel[np.ix_(labelled, labelled)].astype(np.float64, order="F")
    covariance[np.diag_indices_from(covariance)] += noise
    factor = cholesky(covariance, lower=True, overwrite_a=True, check_finite=False)
    solved = cho_solve((factor, True), y, check_finite=False)
    weights = np.zeros((len(carriers), y.shape[1]))
    weights[labelled] = solved
    if not left_out:
        return weights, np.full(y.shape, np.nan)
    inverse, _ = lapack.dpotri(factor, lower=1, overwrite_c=1)
    return weights, solved / np.diag(inverse)[:, None]


def _projected(
    kernel: Kernel,
    carriers: Positions,
    labelled: Positions,
    y: FloatArray,
    noise: float,
    left_out: bool,
) -> tuple[FloatArray, FloatArray]:
    """Return what `_exact` does, with carriers (m,) that are fewer than the molecules."""
    among_carriers = kernel[carriers].astype(np.float64)  # (m, m)
    identity = np.eye(len(carriers))
    root = cholesky(among_carriers + JITTER * identity, lower=True, check_finite=False)
    features = solve_triangular(root, kernel[labelled].T, lower=True).T  # (labelled, m)
    # A molecule's noise is raised by the variance that its features lack, (labelled,).
    variance = noise + (1 - (features**2).sum(1)).clip(0)
    scaled = features / variance[:, None]
    covariance = scaled.T @ features + identity
    factor = cholesky(covariance, lower=True, overwrite_a=True, check_finite=False), True
    slopes = cho_solve(factor, scaled.T @ y, check_finite=False)  # (m, columns)
    weights = solve_triangular(root, slopes, lower=True, trans="T")
    if not left_out:
        return weights, np.full(y.shape, np.nan)
    leverage = np.einsum("km,mk->k", features, cho_solve(factor, scaled.T, check_finite=False))
    return weights, (y - features @ slopes) / (1 - leverage)[:, None]
