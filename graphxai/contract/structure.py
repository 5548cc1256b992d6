"""Read the structure of a graph: its shortest paths, and a number for what surrounds each node.

An environment is all that lies within some bonds of an atom. Its number is a hash that does not
depend on the order of the atoms, so that a model can know a group by sight. It is made as the
colours of Weisfeiler and Lehman (1968) are, and the identifiers of extended-connectivity
fingerprints (Rogers 2010): a node's number is hashed with the sum of what its neighbours' numbers
and the bonds to them hash to, once for every bond of the radius.
"""

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
    distance, paths = paths_together(1, n, source, target, np.zeros(len(source), np.int64))
    return distance[0], paths[0]


def paths_together(
    graphs: int, n: int, source: IntArray, target: IntArray, graph: IntArray
) -> tuple[IntArray, FloatArray]:
    """Search G graphs breadth-first from all nodes at once, small ones by multiplying matrices.

    Step d multiplies the path counts of step d - 1 by the adjacency matrices, and keeps the pairs
    that no earlier step has reached.

    Args:
        graphs: the number G of graphs.
        n: the number of nodes of the largest one. The nodes that a graph lacks have no edges.
        source, target, graph: the ends of each edge, and the graph that it is in, (E,).

    Returns:
        What `shortest_paths` returns, (G, n, n) each.
    """
    if graphs == 1 and n > SMALL:
        distances, counts = _by_frontiers(n, source, target)
        return distances[None], counts[None]
    step = np.zeros((graphs, n, n))
    step[graph, source, target] = 1.0
    paths = np.repeat(np.eye(n)[None], graphs, axis=0)
    frontier, unreached = paths, 1.0 - paths
    distance = np.zeros((graphs, n, n))
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
