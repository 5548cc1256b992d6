"""Divide a graph that is no molecule into parts: by communities, components or the user's names."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .schemes import Part, Scheme

if TYPE_CHECKING:
    from graphxai.visualization import PlainGraph

GRAPH_SCHEME_TITLES = {"communities": "communities", "components": "components"}
_NAMED = 3  # how many nodes of a part its name lists


def parts_of_graph(graph: "PlainGraph", count: int, scheme: Scheme) -> tuple[str, list[Part]]:
    """Return the scheme's name and the parts of a graph of `count` nodes.

    Raises:
        ValueError: the scheme is for molecules, or a part has a node twice or that does not exist.
    """
    if isinstance(scheme, Mapping):
        return "parts", _named_parts(scheme, count)
    if not isinstance(scheme, str) or scheme not in _SCHEMES:
        raise ValueError(
            f"{scheme!r} divides molecules: a graph is divided by 'communities', 'components', or"
            " your parts, as {name: numbers of nodes}."
        )
    parts = sorted((sorted(part) for part in _SCHEMES[scheme](_networkx(graph, count))), key=min)
    return scheme, [(_name(graph, part), tuple(part)) for part in parts]


def _named_parts(scheme: Mapping[str, Any], count: int) -> list[Part]:
    """Return the user's parts, or raise ValueError if a node is in two of them or in no graph."""
    parts: list[Part] = []
    taken: set[int] = set()
    for name, members in scheme.items():
        nodes = np.atleast_1d(np.asarray(members))
        if nodes.dtype.kind not in "iu" or nodes.ndim != 1:
            raise ValueError(f"part {name!r} needs numbers of nodes, not {members!r}.")
        numbers = sorted(map(int, nodes))
        if numbers and not 0 <= numbers[0] <= numbers[-1] < count:
            raise ValueError(f"part {name!r} has nodes beyond 0 to {count - 1}.")
        if len({*numbers}) < len(numbers) or not taken.isdisjoint(numbers):
            raise ValueError(f"part {name!r} has a node that is in a part already.")
        taken.update(numbers)
        if numbers:
            parts.append((str(name), tuple(numbers)))
    return parts


def _networkx(graph: "PlainGraph", count: int) -> Any:
    """Return a graph as networkx takes it."""
    import networkx as nx  # torch brings it

    undirected = nx.Graph()
    undirected.add_nodes_from(range(count))
    undirected.add_edges_from(graph.edges.T.tolist())
    return undirected


def _communities(graph: Any) -> Iterable[Iterable[int]]:
    """Return the communities that greedy search for modularity finds (Clauset 2004)."""
    import networkx as nx

    if not graph.number_of_edges():
        return _components(graph)
    communities: Iterable[Iterable[int]] = nx.community.greedy_modularity_communities(graph)
    return communities


def _components(graph: Any) -> Iterable[Iterable[int]]:
    """Return the connected components."""
    import networkx as nx

    components: Iterable[Iterable[int]] = nx.connected_components(graph)
    return components


_SCHEMES: dict[str, Callable[[Any], Iterable[Iterable[int]]]] = {
    "communities": _communities,
    "components": _components,
}


def _name(graph: "PlainGraph", nodes: list[int]) -> str:
    """Name a part by the labels of its first nodes."""
    labels = [graph.labels[node] if graph.labels else str(node) for node in nodes[:_NAMED]]
    further = len(nodes) - len(labels)
    return ", ".join(labels) + (f" and {further} more" if further else "")
