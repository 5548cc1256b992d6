"""Shortest paths between all nodes of a graph, and the codes of the edges along them.

For every ordered pair of nodes there is one *bag* of weighted codes: the code of its distance,
then the codes of the edges on its shortest paths (see `encoding`). `compiled_paths` makes the same
bags, bit for bit, several times faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphxai.contract.structure import UNREACHABLE, IntArray, paths_together, shortest_paths

PAIRS = 1 << 16  # of nodes, sorted at once: numbers of 16 bits are sorted by their digits
BLOCK = 1 << 20  # (pair, edge) combinations compared at once: 2 MB


@dataclass(frozen=True, eq=False)
class Codes:
    """The numbering of the codes in a bag.

    Distances up to `max_distance` come first, then the code of unreachable pairs, then `num_bonds`
    bonds for each of `num_hops` hops.
    """

    max_distance: int
    num_hops: int
    num_bonds: int

    def of_distances(self, distance: IntArray) -> NDArray[np.int16]:
        """Return the code of each distance."""
        codes = np.minimum(distance, self.max_distance)
        codes[distance == UNREACHABLE] = self.max_distance + 1
        return codes.astype(np.int16)

    def of_bonds(self, hop: IntArray, bond: IntArray) -> NDArray[np.int16]:
        """Return the code of each bond at its hop, counted from 1."""
        return (self.max_distance + 2 + (hop - 1) * self.num_bonds + bond).astype(np.int16)


@dataclass(frozen=True, eq=False)
class Bags:
    """The bags of all pairs: codes and weights (M,) sorted by pair, and sizes (N, N)."""

    codes: NDArray[np.int16]
    weights: NDArray[np.float32]
    sizes: NDArray[np.int16]


def distance_bags(distance: IntArray, codes: Codes) -> Bags:
    """Make bags that hold only the code of the distance (N, N)."""
    distance_codes = codes.of_distances(distance).ravel()
    weights = np.ones(len(distance_codes), np.float32)
    return Bags(distance_codes, weights, np.ones(distance.shape, np.int16))


def averaged_bags(n: int, source: IntArray, target: IntArray, bond: IntArray, codes: Codes) -> Bags:
    """Make the bags of `averaged_bags_together` for one graph."""
    of_edge = np.zeros(len(source), np.int64)
    return averaged_bags_together([n], source, target, bond, of_edge, codes)[0]


def averaged_bags_together(
    sizes: Sequence[int],
    source: IntArray,
    target: IntArray,
    bond: IntArray,
    graph: IntArray,
    codes: Codes,
) -> list[Bags]:
    """Make bags with the edges at hops 1..num_hops, averaged over all shortest paths of a pair.

    Edge (u, v) is hop k of a shortest path from i to j when d(i, u) = k - 1, d(i, v) = k and
    d(i, v) + d(v, j) = d(i, j). It then lies on paths(i, u) * paths(v, j) of the paths(i, j). A bag
    has its edges in their order in the graph.

    One call for 32 molecules of 11 atoms takes a fifth of the time of 32 calls, as most of that is
    Python's. G graphs of similar size waste the least.

    Args:
        sizes: the number of nodes of each graph, (G,).
        source: first node of each edge, numbered in its graph, (E,).
        target: second node of each edge, (E,).
        bond: the number of each edge's features, (E,).
        graph: the graph of each edge, in ascending order, (E,).
        codes: numbering of the codes.
    """
    n, of_graph = max(sizes), np.asarray(sizes)
    distance, paths = paths_together(len(sizes), n, source, target, graph)  # (G, n, n)
    hop = distance[graph, :, target]  # (E, n), from each node to the far end of an edge
    leads_away = (hop == distance[graph, :, source] + 1) & (hop > 0) & (hop <= codes.num_hops)
    edge, i = np.nonzero(leads_away)
    order = np.argsort(graph[edge] * n + i, kind="stable")  # by first node, then by edge
    edge, i = edge[order], i[order]
    hop, g = hop[edge, i].astype(np.int16), graph[edge]
    far = np.where(distance == UNREACHABLE, 2 * n, distance).astype(np.int16).reshape(-1, n)
    row = g * n + i
    entry, count = _by_pairs(far, row, g * n + target[edge], hop)

    within = np.arange(n) < of_graph[:, None]  # (G, n)
    is_pair = within[:, :, None] & within[:, None, :]
    size = count.reshape(distance.shape) + 1
    size_of_pair = size[is_pair]
    is_first = np.zeros(size_of_pair.sum(), bool)
    is_first[np.cumsum(size_of_pair) - size_of_pair] = True
    all_codes = np.empty(len(is_first), np.int16)
    all_codes[is_first] = codes.of_distances(distance[is_pair])
    all_codes[~is_first] = codes.of_bonds(hop, bond[edge])[entry]

    length = np.minimum(np.maximum(distance, 1), codes.num_hops)
    weights = np.repeat((1.0 / length[is_pair]).astype(np.float32), size_of_pair)
    weights[is_first] = 1.0
    is_tied = paths > 1
    pair = np.repeat(np.flatnonzero(is_tied), count[is_tied.ravel()])
    of_tie = entry[np.repeat(is_tied.ravel(), count)]
    u, v, g = source[edge[of_tie]], target[edge[of_tie]], g[of_tie]
    share = paths[g, i[of_tie], u] * paths[g, v, pair % n] / paths.ravel()[pair]
    weights[np.repeat(is_tied[is_pair], size_of_pair) & ~is_first] = share / length.ravel()[pair]
    ends = np.cumsum(np.where(is_pair, size, 0).sum((1, 2)))[:-1]
    of_sizes = [rows[:k, :k].astype(np.int16) for rows, k in zip(size, sizes, strict=True)]
    parts = np.split(all_codes, ends), np.split(weights, ends), of_sizes
    return [Bags(c.copy(), w.copy(), s) for c, w, s in zip(*parts, strict=True)]


def _by_pairs(
    far: NDArray[np.int16], row: IntArray, end: IntArray, hop: IntArray
) -> tuple[NDArray[np.int32], IntArray]:
    """Return the edges on the shortest paths of each pair, and how many there are, (G n n,).

    Args:
        far: the distances of all nodes, (G n, n).
        row: the row in `far` of the node that an edge leads away from, in ascending order, (K,).
        end: the row of the edge's far end, (K,).
        hop: the distance of that end, (K,).
    """
    n, entries, counts = far.shape[1], [], []
    rows = PAIRS // n
    for begin in range(0, len(far), rows):
        part = slice(*np.searchsorted(row, (begin, begin + rows)))
        on_path = np.flatnonzero(far[end[part]] + hop[part, None] == far[row[part]])
        entry, j = np.divmod(on_path.astype(np.int32), np.int32(n))
        pair = ((row[part] - begin) * n).astype(np.int32)[entry] + j
        order = np.argsort(pair.astype(np.uint16), kind="stable")
        entries.append(entry[order] + np.int32(part.start))
        counts.append(np.bincount(pair, minlength=far[begin : begin + rows].size))
    return np.concatenate(entries), np.concatenate(counts)


def continuous_bags(
    n: int, source: IntArray, target: IntArray, values: NDArray[np.float64], codes: Codes
) -> Bags:
    """Make bags whose weights are the numbers of the edges at hops 1..num_hops.

    For each hop and feature, a bag has one code. Its weight is the mean of the feature over all
    shortest paths, divided by min(d, num_hops).

    Args:
        n: number of nodes.
        source: first node of each edge (E,).
        target: second node of each edge (E,).
        values: features of each edge (E, F).
        codes: numbering of the codes.
    """
    distance, paths = shortest_paths(n, source, target)
    means = _hop_means(distance, paths, source, target, values, codes.num_hops)  # (N, N, K, F)
    length = np.minimum(np.maximum(distance, 1), codes.num_hops)
    is_hop = distance[:, :, None] > np.arange(codes.num_hops)  # (N, N, K)
    is_entry = np.ones((n, n, 1 + means[0, 0].size), bool)
    is_entry[:, :, 1:] = np.repeat(is_hop, values.shape[1], axis=2)
    weights = np.ones(is_entry.shape, np.float32)
    weights[:, :, 1:] = (means / length[:, :, None, None]).reshape(n, n, -1)
    hop, feature = np.divmod(np.arange(means[0, 0].size), values.shape[1])
    all_codes = np.empty(is_entry.shape, np.int16)
    all_codes[:, :, 0] = codes.of_distances(distance)
    all_codes[:, :, 1:] = codes.of_bonds(hop + 1, feature)
    return Bags(all_codes[is_entry], weights[is_entry], is_entry.sum(axis=2).astype(np.int16))


def _hop_means(
    distance: IntArray,
    paths: NDArray[np.float64],
    source: IntArray,
    target: IntArray,
    values: NDArray[np.float64],
    num_hops: int,
) -> NDArray[np.float32]:
    """Return the mean of values (E, F) at each hop over all shortest paths, (N, N, K, F).

    Edge (u, v) begins a shortest path from u to j when d(v, j) = d(u, j) - 1. It then begins
    paths(v, j) of the paths(u, j). The rest of such a path has the mean from v to j, one hop
    earlier.
    """
    n, (num_edges, num_features) = len(distance), values.shape
    means = np.zeros((n, n, num_hops, num_features), np.float32)
    if not num_edges:
        return means
    order = np.argsort(source, kind="stable")
    source, target, values = source[order], target[order], values[order]
    nodes, starts = np.unique(source, return_index=True)
    step = max(BLOCK // (num_edges * num_features), 1)
    for first in range(0, n, step):
        ends = slice(first, first + step)
        begins = (distance[source, ends] > 0) & (
            distance[target, ends] == distance[source, ends] - 1
        )
        share = np.where(begins, paths[target, ends] / np.maximum(paths[source, ends], 1), 0.0)
        for hop in range(num_hops):
            following = means[target, ends, hop - 1] if hop else values[:, None]  # (E, J or 1, F)
            means[nodes, ends, hop] = np.add.reduceat(share[:, :, None] * following, starts)
    return means


def floyd_bags(n: int, source: IntArray, target: IntArray, bond: IntArray, codes: Codes) -> Bags:
    """Make bags with the edges at hops 1..num_hops of Floyd-Warshall's path (published Graphormer).

    The path kept from i to j goes through the last k that strictly shortened it, with k in the
    outer loop. Both of its halves are kept paths too.
    """
    num_hops = codes.num_hops
    distance, _ = shortest_paths(n, source, target)
    through = _floyd_intermediate(n, source, target)
    edge = np.zeros((n, n), dtype=np.int64)
    edge[source, target] = bond
    kept = np.zeros((n, n, num_hops), dtype=np.int64)  # bond code of hop t on the kept path
    for d in range(1, int(distance.max(initial=0)) + 1):
        i, j = np.nonzero(distance == d)
        if d == 1:
            kept[i, j, 0] = edge[i, j]
            continue
        k = through[i, j]
        first = distance[i, k]  # hops of the first half
        for t in range(min(d, num_hops)):
            second_half = kept[k, j, np.clip(t - first, 0, num_hops - 1)]
            kept[i, j, t] = np.where(t < first, kept[i, k, t], second_half)
    is_hop = distance[:, :, None] > np.arange(num_hops)  # (N, N, num_hops)
    is_entry = np.concatenate([np.ones((n, n, 1), bool), is_hop], axis=2)
    distances = codes.of_distances(distance)[..., None]
    bonds = codes.of_bonds(np.arange(1, num_hops + 1), kept)
    weights = np.ones(is_entry.shape, np.float32)
    weights[..., 1:] = (1.0 / np.minimum(np.maximum(distance, 1), num_hops))[..., None]
    all_codes = np.concatenate([distances, bonds], axis=2)
    return Bags(all_codes[is_entry], weights[is_entry], is_entry.sum(axis=2).astype(np.int16))


def _floyd_intermediate(n: int, source: IntArray, target: IntArray) -> IntArray:
    """Return the last k through which Floyd-Warshall shortened the path from i to j, (N, N)."""
    length = np.full((n, n), np.inf)
    length[source, target] = 1.0
    np.fill_diagonal(length, 0.0)
    through = np.full((n, n), -1)
    for k in range(n):
        detour = length[:, k, None] + length[None, k, :]
        better = detour < length
        length[better] = detour[better]
        through[better] = k
    return through
