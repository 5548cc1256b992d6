"""Lay out the nodes of a graph for its picture, by networkx and one component at a time."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_GAP = 1.1  # the gap between components, in mean edge lengths


@lru_cache(maxsize=64)
def laid_out_graph(
    count: int, edges: tuple[tuple[int, int], ...], aspect: float
) -> NDArray[np.float64]:
    """Return places (N, 2) for nodes 0 to N - 1, where edges have a length of about 1.

    Each component is laid out by Kamada & Kawai (1989), so that distances in the picture follow
    the number of edges between nodes. Components stand in rows, the largest first.

    Args:
        count: the number N of nodes.
        edges: pairs of nodes.
        aspect: the width of the picture divided by its height.
    """
    import networkx as nx  # torch brings it

    graph = nx.Graph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(edges)
    parts = sorted(nx.connected_components(graph), key=lambda part: (-len(part), min(part)))
    members = [sorted(part) for part in parts]
    places = [_component(graph.subgraph(part), part, aspect) for part in members]
    points = np.zeros((count, 2))
    for part, placed in zip(members, _in_rows(places, aspect), strict=True):
        points[part] = placed
    points.setflags(write=False)  # the array is cached
    return points


def _component(graph: Any, members: list[int], aspect: float) -> NDArray[np.float64]:
    """Lay out a connected graph so that its longer side lies along that of the picture."""
    import networkx as nx

    if len(members) == 1:
        return np.zeros((1, 2))
    placed = nx.kamada_kawai_layout(graph)
    points = np.array([placed[node] for node in members])
    points = points - points.mean(0)
    _, _, axes = np.linalg.svd(points, full_matrices=False)  # the principal axes, the longer first
    points = points @ axes.T
    if aspect < 1:
        points = points[:, ::-1]
    index = {node: k for k, node in enumerate(members)}
    ends = np.array([(index[i], index[j]) for i, j in graph.edges])
    length = float(np.linalg.norm(points[ends[:, 0]] - points[ends[:, 1]], axis=1).mean())
    return points / max(length, 1e-9)


def _in_rows(places: list[NDArray[np.float64]], aspect: float) -> list[NDArray[np.float64]]:
    """Put components side by side, in rows that give the picture about the right shape."""
    sizes = [np.ptp(points, axis=0) + _GAP for points in places]
    area = sum(float(size.prod()) for size in sizes)
    widest = max(max(float(size[0]) for size in sizes), (area * aspect) ** 0.5)
    x = y = tallest = 0.0
    moved = []
    for points, (width, height) in zip(places, sizes, strict=True):
        if x and x + width > widest * 1.05:
            x, y, tallest = 0.0, y + tallest, 0.0
        moved.append(points - points.min(0) + (x, y))
        x, tallest = x + float(width), max(tallest, float(height))
    return moved
