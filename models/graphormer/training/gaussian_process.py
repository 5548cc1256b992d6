"""A Gaussian process on fingerprints: similar molecules have similar values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from graphxai.datasets.fingerprints import atom_pair_counts, ecfp6_counts

__all__ = ["TanimotoProcess", "tanimoto"]

FloatArray = NDArray[np.float64]
Counts = tuple[NDArray[np.float32], ...]
NOISE = 0.05  # ratio of measurement variance to process variance


def tanimoto(a: NDArray[np.float32], b: NDArray[np.float32]) -> FloatArray:
    """Return the similarity (n, m) of counts a (n, bits) and b (m, bits).

    The min-max kernel of Ralaivola 2005: sum of minima over sum of maxima. For bits it is the
    Tanimoto coefficient.
    """
    columns, sizes = np.ascontiguousarray(b.T), b.sum(1)
    rows = []
    for row in a:
        present = np.flatnonzero(row)
        shared = np.minimum(row[present, None], columns[present]).sum(0)  # (m,)
        rows.append(shared / np.maximum(row.sum() + sizes - shared, 1))
    return np.array(rows, dtype=np.float64).reshape(len(a), len(b))


class TanimotoProcess:
    """The posterior mean of a Gaussian process on fingerprints, for every column of a table.

    The kernel is the mean of two similarities, of ECFP6 counts (atom environments) and of atom-pair
    counts (Carhart 1985: which atoms are how far apart), both without stereo. Classes 0 and 1 are
    regressed like values (Rasmussen 2006, section 6.5), so a prediction may lie outside 0 to 1.

    Args:
        smiles: the training molecules (n,).
        y: their labels (n, tasks), NaN where one is missing.

    Attributes:
        left_out: (n, tasks), leave-one-out predictions for the training molecules (eq. 5.12); NaN
            where the label is missing.
    """

    def __init__(self, smiles: Sequence[str], y: NDArray[np.floating]) -> None:
        self._counts = _counts(smiles)
        kernel = _similarity(self._counts, self._counts)
        self._weights = np.zeros(y.shape)
        self._means = np.zeros(y.shape[1])
        self.left_out = np.full(y.shape, np.nan)
        for k, column in enumerate(y.T):
            known = np.flatnonzero(~np.isnan(column))
            if not len(known):
                continue
            self._means[k] = column[known].mean()
            inverse = np.linalg.inv(kernel[np.ix_(known, known)] + NOISE * np.eye(len(known)))
            weights = inverse @ (column[known] - self._means[k])
            self._weights[known, k] = weights
            self.left_out[known, k] = column[known] - weights / np.diag(inverse)

    def predict(self, smiles: Sequence[str]) -> FloatArray:
        """Predict molecules, (n, tasks) (eq. 2.25)."""
        return _similarity(_counts(smiles), self._counts) @ self._weights + self._means


def _counts(smiles: Sequence[str]) -> Counts:
    return ecfp6_counts(smiles, stereo=False), atom_pair_counts(smiles)


def _similarity(a: Counts, b: Counts) -> FloatArray:
    """Return the kernel (n, m) of molecules with counts a and b, one array per fingerprint."""
    return np.mean([tanimoto(*pair) for pair in zip(a, b, strict=True)], axis=0)
