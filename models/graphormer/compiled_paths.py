"""Make the bags of `paths.averaged_bags` by compiled code (Numba, extra `fast`), bit for bit.

Loading the compiled code takes about as long as it saves on several hundred drug molecules, so
`encoding` decides when to import this file. Numba keeps the compiled code beside this file, or in
the user's cache folder.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from graphxai.contract.structure import FloatArray, IntArray

from .paths import Bags, Codes


def averaged_bags(n: int, source: IntArray, target: IntArray, bond: IntArray, codes: Codes) -> Bags:
    """Make bags with the edges at hops 1..num_hops, averaged over all shortest paths of a pair."""
    limits = codes.max_distance, codes.num_hops, codes.num_bonds
    return Bags(*_bags(n, source, target, bond, *limits))


@njit(cache=True)
def _shortest_paths(n: int, source: IntArray, target: IntArray) -> tuple[IntArray, FloatArray]:
    """Return distances and path counts (N, N), searched breadth-first from each node."""
    first = np.zeros(n + 1, np.int64)
    for u in source:
        first[u + 1] += 1
    first = np.cumsum(first)
    place = first.copy()
    neighbour = np.empty(len(source), np.int64)
    for e in range(len(source)):
        neighbour[place[source[e]]] = target[e]
        place[source[e]] += 1
    distance = np.full((n, n), -1, np.int32)
    paths = np.zeros((n, n))
    queue = np.empty(n, np.int64)
    for i in range(n):
        away, ways = distance[i], paths[i]
        away[i], ways[i], queue[0] = 0, 1.0, i
        head, tail = 0, 1
        while head < tail:
            u = queue[head]
            head += 1
            for k in range(first[u], first[u + 1]):
                v = neighbour[k]
                if away[v] < 0:
                    away[v] = away[u] + 1
                    queue[tail] = v
                    tail += 1
                if away[v] == away[u] + 1:
                    ways[v] += ways[u]
    return distance, paths


@njit(cache=True)
def _bags(
    n: int,
    source: IntArray,
    target: IntArray,
    bond: IntArray,
    max_distance: int,
    num_hops: int,
    num_bonds: int,
) -> tuple[NDArray[np.int16], NDArray[np.float32], NDArray[np.int16]]:
    distance, paths = _shortest_paths(n, source, target)
    sizes = np.ones((n, n), np.int16)
    total = n * n
    for i in range(n):
        for e in range(len(bond)):
            hop = distance[i, target[e]]
            if 0 < hop <= num_hops and hop == distance[i, source[e]] + 1:
                onward = distance[target[e]]
                for j in range(n):
                    is_on_path = (onward[j] >= 0) & (hop + onward[j] == distance[i, j])
                    sizes[i, j] += is_on_path
                    total += is_on_path
    codes = np.empty(total, np.int16)
    weights = np.empty(total, np.float32)
    place = np.empty(n, np.int64)  # where the next edge of each bag is written
    start = 0
    for i in range(n):
        for j in range(n):
            d = distance[i, j]
            codes[start] = max_distance + 1 if d < 0 else min(d, max_distance)
            weights[start] = 1.0
            place[j] = start + 1
            start += sizes[i, j]
        for e in range(len(bond)):
            u, v = source[e], target[e]
            hop = distance[i, v]
            if 0 < hop <= num_hops and hop == distance[i, u] + 1:
                code = max_distance + 2 + (hop - 1) * num_bonds + bond[e]
                for j in range(n):
                    if distance[v, j] >= 0 and hop + distance[v, j] == distance[i, j]:
                        share = 1.0
                        if paths[i, j] > 1.0:
                            share = paths[i, u] * paths[v, j] / paths[i, j]
                        codes[place[j]] = code
                        weights[place[j]] = share / min(distance[i, j], num_hops)
                        place[j] += 1
    return codes, weights, sizes
