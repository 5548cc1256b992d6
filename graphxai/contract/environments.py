"""Number the environments of atoms, so that a model can know a group by sight.

An environment is all that lies within some bonds of an atom. Its number is a hash that does not
depend on the order of the atoms. It is made as the colours of Weisfeiler and Lehman (1968) are, and
the identifiers of extended-connectivity fingerprints (Rogers 2010): a node's number is hashed with
the sum of what its neighbours' numbers and the bonds to them hash to, once for every bond of the
radius.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["environment_rows"]

IntArray = NDArray[np.integer]
ODD = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of SplitMix64 (Steele 2014)


def environment_rows(
    features: IntArray,
    source: IntArray,
    target: IntArray,
    bonds: IntArray | None,
    rows: int,
    radius: int,
) -> IntArray:
    """Return the row of a table for each node's environment of 1 to `radius` bonds, (N, radius).

    Args:
        features: codes of the nodes (N, F).
        source: the node that each edge comes from (E,).
        target: the node that it leads to (E,).
        bonds: a number for each edge's features (E,); None for edges without any.
        rows: number of rows of the table. Different environments may share a row.
        radius: the largest number of bonds.
    """
    colour = np.zeros(len(features), dtype=np.uint64)
    for column in np.asarray(features, dtype=np.int64).T.astype(np.uint64):
        colour = _mixed(colour + column)
    edge = np.zeros(len(source), dtype=np.uint64) if bonds is None else bonds.astype(np.uint64)
    codes = np.empty((len(features), radius), dtype=np.int64)
    for step in range(radius):
        around = np.zeros_like(colour)
        # Sums wrap around at 2^64, so they do not depend on the order of the edges.
        np.add.at(
            around, target, _mixed(colour[source] + np.uint64(ODD[0]) * (edge + np.uint64(1)))
        )
        colour = _mixed(_mixed(colour) + around)
        codes[:, step] = (colour % np.uint64(rows)).astype(np.int64)
    return codes


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter numbers over 64 bits, as SplitMix64 does."""
    z = numbers + np.uint64(ODD[0])
    z = (z ^ (z >> np.uint64(30))) * np.uint64(ODD[1])
    z = (z ^ (z >> np.uint64(27))) * np.uint64(ODD[2])
    return z ^ (z >> np.uint64(31))
