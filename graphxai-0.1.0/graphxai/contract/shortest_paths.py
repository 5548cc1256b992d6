"""Find how long the shortest paths between all nodes of a graph are, and how many there are."""

import numpy as np
from numpy.typing import NDArray

UNREACHABLE = -1  # the distance of a pair without a path
IntArray = NDArray[np.integer]
FloatArray = NDArray[np.float64]

SMALL = 96  # up to this many nodes, products of dense matrices are faster


def shortest_paths(n: int, source: IntArray, target: IntArray) -> tuple[IntArray, FloatArray]:
    """Return the distances (N, N) in edges, and how many shortest paths there are (N, N).

    A distance is -1 if there is no path.
    """
    return (_by_matrices if n <= SMALL else _by_frontiers)(n, source, target)


def _by_matrices(n: int, source: IntArray, target: IntArray) -> tuple[IntArray, FloatArray]:
    """Search breadth-first from all nodes at once by multiplying matrices.

    Step d multiplies the path counts of step d - 1 by the adjacency matrix, and keeps the pairs
    that no earlier step has reached.
    """
    step = np.zeros((n, n))
    step[source, target] = 1.0
    paths = np.eye(n)
    frontier, unreached = paths, 1.0 - paths
    distance = np.zeros((n, n))
    for _ in range(n):
        distance += unreached  # a pair's distance is the number of steps that miss it
        frontier = (frontier @ step) * unreached
        if not frontier.any():
            break
        unreached *= frontier == 0
        paths = paths + frontier
    distance[unreached > 0] = UNREACHABLE
    return distance.astype(np.int64), paths


def _by_frontiers(n: int, source: IntArray, target: IntArray) -> tuple[IntArray, FloatArray]:
    """Search breadth-first from all nodes at once, along the edges of the pairs last reached.

    Every pair is visited once, so the time is n (n + E), whatever the longest distance.
    """
    neighbour = target[np.argsort(source, kind="stable")]
    degree = np.bincount(source, minlength=n)
    first = np.cumsum(degree) - degree
    distance, paths = np.full(n * n, UNREACHABLE), np.zeros(n * n)
    latest = np.empty(n * n, dtype=np.int64)
    end = np.arange(n)  # the second node of each pair reached in the last step
    pair = end * (n + 1)
    distance[pair], paths[pair] = 0, 1.0
    for d in range(1, n):
        edges = degree[end]
        before = np.repeat(np.arange(len(end)), edges)
        shift = first[end] - np.cumsum(edges) + edges
        through = neighbour[np.arange(len(before)) + np.repeat(shift, edges)]
        reached = (pair - end)[before] + through
        new = distance[reached] == UNREACHABLE
        reached, before, through = reached[new], before[new], through[new]
        if not len(reached):
            break
        np.add.at(paths, reached, paths[pair[before]])
        latest[reached] = np.arange(len(reached))  # keeps one of several paths to the same pair
        chosen = latest[reached] == np.arange(len(reached))
        pair, end = reached[chosen], through[chosen]
        distance[pair] = d
    return distance.reshape(n, n), paths.reshape(n, n)
