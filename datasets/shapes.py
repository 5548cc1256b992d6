"""Make random graphs with planted shapes, so that the nodes and edges behind a label are known.

The graphs are made as in ShapeGGen (Agarwal et al. 2023): a random tree grows by preferential
attachment (Barabasi and Albert 1999), and shapes are joined to it, each by one edge. So the tree's
edges and the joints lie on no cycle, every shape is a biconnected component, and none arises by
chance. All nodes look alike, so only the structure tells the shapes apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from .graph import Graph
from .splits import FRACTIONS, Split, random_split

if TYPE_CHECKING:
    from torch_geometric.data import Data

Edges = tuple[tuple[int, int], ...]


def _ring(n: int) -> Edges:
    return tuple((k, (k + 1) % n) for k in range(n))


SHAPES: dict[str, Edges] = {
    "house": (*_ring(5), (0, 3)),  # a square with a roof
    "hexagon": _ring(6),
    "wheel": (*_ring(5), *((k, 5) for k in range(5))),
    "clique": tuple(combinations(range(4), 2)),
}
# Shapes that no label is about, so that "there is some ring" answers nothing.
DECOYS: dict[str, Edges] = {"square": _ring(4)}


@dataclass(frozen=True, eq=False)
class ShapeGraph:
    """A graph, and the shapes that are planted in it.

    Args:
        edges (M, 2): each edge once.
        shape_of_node (N,), shape_of_edge (M,): the name of the shape that a node or an edge
            belongs to, "" for the tree and the joints.
    """

    edges: NDArray[np.int64]
    shape_of_node: NDArray[np.str_]
    shape_of_edge: NDArray[np.str_]

    @property
    def shapes(self) -> frozenset[str]:
        """The shapes in the graph, decoys included."""
        return frozenset(self.shape_of_node.tolist()) - {""}

    def true_nodes(self, shape: str) -> NDArray[np.bool_]:
        """Return the nodes (N,) of this shape, bool."""
        return np.asarray(self.shape_of_node == shape, dtype=np.bool_)

    def true_edges(self, shape: str) -> NDArray[np.bool_]:
        """Return the edges (M,) of this shape, bool."""
        return np.asarray(self.shape_of_edge == shape, dtype=np.bool_)

    def to_data(self) -> Data:
        """Return a PyG graph with a constant feature x (N, 1), and its shapes as y (1, shapes)."""
        both = np.concatenate([self.edges, self.edges[:, ::-1]])
        both = both[np.lexsort(both.T[::-1])]
        return Graph(
            x=torch.zeros(len(self.shape_of_node), 1, dtype=torch.long),
            edge_index=torch.from_numpy(both.T.copy()),
            y=torch.tensor([[float(name in self.shapes) for name in SHAPES]]),
        ).to_data()


@dataclass(frozen=True, eq=False)
class ShapeDataset:
    """Graphs with planted shapes, and a split. A graph without any shape is a plain tree."""

    graphs: tuple[ShapeGraph, ...]
    split: Split

    def with_shape(self, shape: str, limit: int | None = None) -> list[ShapeGraph]:
        """Return test graphs, at most `limit`, with this shape."""
        test = (self.graphs[k] for k in self.split.test)
        return [graph for graph in test if shape in graph.shapes][:limit]

    def null(self, limit: int | None = None) -> list[ShapeGraph]:
        """Return test graphs, at most `limit`, without a shape. Nothing in them is relevant."""
        test = (self.graphs[k] for k in self.split.test)
        return [graph for graph in test if not graph.shapes][:limit]


def shape_graph(shapes: Sequence[str], seed: int, tree: int = 12) -> ShapeGraph:
    """Return a tree of `tree` nodes with the shapes joined to it, and its nodes in random order.

    Raises ValueError for an unknown name or an empty tree.

    Args:
        shapes: names in `SHAPES` or `DECOYS`.
    """
    available = SHAPES | DECOYS
    if unknown := [name for name in shapes if name not in available]:
        raise ValueError(f"unknown shape {unknown[0]!r}; the shapes are {', '.join(available)}.")
    if tree < 1:
        raise ValueError(f"a tree has at least one node, not {tree}.")
    chance = np.random.default_rng(seed)
    edges: list[tuple[int, int]] = []
    for node in range(1, tree):  # an end of a random edge is drawn in proportion to its degree
        ends = [end for edge in edges for end in edge] or [0]
        edges.append((int(chance.choice(ends)), node))
    nodes, edge_shapes, size = [""] * tree, [""] * len(edges), tree
    for name in shapes:
        shape = available[name]
        edges += [(size + a, size + b) for a, b in shape]
        edge_shapes += [name] * len(shape)
        corners = 1 + max(map(max, shape))
        edges.append((int(chance.integers(tree)), size + int(chance.integers(corners))))
        edge_shapes.append("")
        nodes += [name] * corners
        size += corners
    place = chance.permutation(size)  # the new number of every node
    node_shapes = np.empty(size, dtype=object)
    node_shapes[place] = nodes
    return ShapeGraph(
        np.array([(place[a], place[b]) for a, b in edges], dtype=np.int64).reshape(-1, 2),
        node_shapes.astype(np.str_),
        np.array(edge_shapes, dtype=np.str_),
    )


def shape_dataset(
    size: int = 6000, *, seed: int = 0, planted: float = 0.3, fractions: Sequence[float] = FRACTIONS
) -> ShapeDataset:
    """Return `size` graphs in which each shape and the decoy is planted with a probability.

    A tenth of the graphs, the null set, gets no shape. Trees have 6 to 12 nodes. The same seed
    gives the same graphs and split.

    Args:
        planted: the probability of each shape, which is planted at most once.
    """
    if not 0 < planted < 1:
        raise ValueError(f"planted is a probability between 0 and 1, not {planted:g}.")
    chance = np.random.default_rng(seed)
    names = (*SHAPES, *DECOYS)
    graphs = []
    for k in range(size):
        drawn = chance.random(len(names)) < planted
        tree, graph_seed = int(chance.integers(6, 13)), int(chance.integers(2**31))
        shapes = [name for name, is_drawn in zip(names, drawn, strict=True) if is_drawn]
        graphs.append(shape_graph([] if k % 10 == 0 else shapes, graph_seed, tree))
    return ShapeDataset(tuple(graphs), random_split(size, seed, fractions))
