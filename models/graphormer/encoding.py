"""Encode a graph's structure as tensors: degrees, shortest-path distances, edges along the paths.

`StructureEncoding` (a PyG transform) adds to each graph what Graphormer's structural bias needs.
For every ordered pair of nodes it makes one *bag* of weighted codes; the bias of the pair is the
weighted sum of the table rows with these codes (see `layers.StructuralBias`):

* one code for the shortest-path distance d, weight 1 (Ying 2021, eq. 6);
* for each of the first `num_hops` edges on the shortest path a code for (hop, bond), weight
  1 / min(d, num_hops) (Ying 2021, eq. 7).

If several paths are equally short, `ties="average"` averages over all of them, which makes the
encoding independent of the node order; `ties="floyd"` keeps the path that the published
Floyd-Warshall code keeps. No Python loop runs over nodes or pairs.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphxai.datasets.graph import Graph

from .config import GraphormerConfig

if TYPE_CHECKING:
    from torch_geometric.data import Data

AnyGraph = TypeVar("AnyGraph", "Data", Graph)

UNREACHABLE = -1
IntArray = NDArray[np.integer]
FloatArray = NDArray[np.float64]


class StructureEncoding:
    """Add `in_degree`, `out_degree` (N,), `bag_codes`, `bag_weights` (M,), `bag_sizes` (N, N).

    `edge_cardinalities`: number of values of each categorical edge feature in `edge_attr`
    (E, F). If it is empty, edges have no features and bags contain only the distance. A graph that
    already has an encoding with the same settings (`structure`) is returned unchanged.
    """

    def __init__(
        self,
        edge_cardinalities: tuple[int, ...] = (),
        max_distance: int = 30,
        num_hops: int = 5,
        ties: Literal["average", "floyd"] = "average",
    ) -> None:
        self.edge_cardinalities = tuple(edge_cardinalities)
        self.max_distance = max_distance
        self.num_hops = num_hops
        self.ties = ties
        sizes = "x".join(map(str, self.edge_cardinalities))
        self.settings = f"{ties} {num_hops} of {sizes or 'none'} to {max_distance}"

    @classmethod
    def from_config(cls, config: GraphormerConfig) -> "StructureEncoding":
        """Return the encoding for a model with this configuration."""
        return cls(config.edge_cardinalities, config.max_distance, config.num_hops, config.ties)

    def __repr__(self) -> str:
        return f"StructureEncoding({self.settings})"

    def __call__(self, data: AnyGraph) -> AnyGraph:
        """Return the encoded graph; the given one is left as it is."""
        return self.forward(copy(data))

    def forward(self, data: AnyGraph) -> AnyGraph:
        """Encode one graph."""
        if data.get("structure") == self.settings:
            return data
        n = int(data.num_nodes or 0)
        source, target = data.edge_index.numpy()
        if len(np.unique(source * n + target)) < len(source):
            raise ValueError("edge_index has an edge twice: use torch_geometric's coalesce.")
        data.out_degree = torch.from_numpy(np.bincount(source, minlength=n))
        data.in_degree = torch.from_numpy(np.bincount(target, minlength=n))
        bags = self._bags(n, source, target, self._bond_codes(data))
        data.bag_codes = torch.from_numpy(bags.codes)
        data.bag_weights = torch.from_numpy(bags.weights)
        data.bag_sizes = torch.from_numpy(bags.sizes)
        data.structure = self.settings
        return data

    def _bond_codes(self, data: "Data | Graph") -> IntArray | None:
        """Return one number per edge for its combination of feature values, (E,)."""
        if not self.edge_cardinalities:
            return None
        if data.edge_attr is None or data.edge_attr.shape[-1] != len(self.edge_cardinalities):
            found = None if data.edge_attr is None else tuple(data.edge_attr.shape)
            raise ValueError(
                f"edge_attr must have shape (E, {len(self.edge_cardinalities)}); found {found}."
            )
        values = data.edge_attr.numpy().reshape(-1, len(self.edge_cardinalities))
        limits = np.array(self.edge_cardinalities)
        if ((values < 0) | (values >= limits)).any():
            raise ValueError(f"edge_attr has a value outside the cardinalities {limits}.")
        return np.ravel_multi_index(tuple(values.T), self.edge_cardinalities)

    def _bags(self, n: int, source: IntArray, target: IntArray, bond: IntArray | None) -> "Bags":
        distance, paths = shortest_paths(n, source, target)
        far = self.max_distance + 1
        codes = np.where(distance == UNREACHABLE, far, np.minimum(distance, self.max_distance))
        if bond is None or not len(bond):
            return _sort_into_bags(n, codes.ravel(), None)
        if self.ties == "average":
            hops = averaged_hops(distance, paths, source, target, bond, self.num_hops)
        else:
            hops = floyd_hops(distance, source, target, bond, self.num_hops)
        # in the table, hop codes follow the distances and the row of unreachable pairs
        num_bonds = int(np.prod(self.edge_cardinalities))
        bonds = self.max_distance + 2 + hops.hop * num_bonds + hops.bond
        return _sort_into_bags(n, codes.ravel(), replace(hops, bond=bonds))


@dataclass(frozen=True, eq=False)
class Hops:
    """Edges on shortest paths: pair = i * n + j, hop from 0, bond code, weight; all (M,)."""

    pair: IntArray
    hop: IntArray
    bond: IntArray
    weight: FloatArray


@dataclass(frozen=True, eq=False)
class Bags:
    """Entries sorted by pair: codes, weights (M,), and the number of entries per pair (N, N)."""

    codes: IntArray
    weights: NDArray[np.float32]
    sizes: IntArray


def shortest_paths(n: int, source: IntArray, target: IntArray) -> tuple[IntArray, FloatArray]:
    """Return distances (N, N) in edges, -1 if unreachable, and shortest-path counts (N, N).

    Breadth-first from all nodes at once: step d multiplies the path counts of step d - 1 by the
    adjacency matrix and keeps the pairs not reached before.
    """
    adjacency = np.zeros((n, n))
    adjacency[source, target] = 1.0
    step: Any = adjacency
    if n > 96:  # dense products win for small graphs, which need no SciPy
        from scipy.sparse import csr_array

        step = csr_array(adjacency)
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


def averaged_hops(
    distance: IntArray,
    paths: FloatArray,
    source: IntArray,
    target: IntArray,
    bond: IntArray,
    num_hops: int,
) -> Hops:
    """Return the edges at hops 1..num_hops, averaged over all shortest paths of a pair.

    Edge (u, v) is hop k of a shortest path from i to j when d(i, u) = k - 1, d(i, v) = k and
    d(i, v) + d(v, j) = d(i, j); it lies on paths(i, u) * paths(v, j) of the paths(i, j).
    """
    n = len(distance)
    hop = distance[:, target]  # (N, E)
    onward = (hop == distance[:, source] + 1) & (hop <= num_hops) & (hop > 0)
    i, e = np.nonzero(onward)
    k, u, v = hop[i, e], source[e], target[e]
    row, j = np.nonzero((distance[v] + k[:, None] == distance[i]) & (distance[v] >= 0))
    start, through, end = i[row], u[row], v[row]
    share = paths[start, through] * paths[end, j] / paths[start, j]
    weight = share / np.minimum(distance[start, j], num_hops)
    return Hops(start * n + j, k[row] - 1, bond[e[row]], weight)


def floyd_hops(
    distance: IntArray, source: IntArray, target: IntArray, bond: IntArray, num_hops: int
) -> Hops:
    """Return the edges at hops 1..num_hops of Floyd-Warshall's path (published Graphormer).

    The path kept from i to j goes through the last k that strictly shortened it, with k in the
    outer loop; both of its halves are kept paths too.
    """
    n = len(distance)
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
    start, end, hop = np.nonzero(distance[:, :, None] > np.arange(num_hops))
    weight = 1.0 / np.minimum(distance[start, end], num_hops)
    return Hops(start * n + end, hop, kept[start, end, hop], weight)


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


def _sort_into_bags(n: int, distance_codes: IntArray, hops: Hops | None) -> Bags:
    """Make one bag per pair, in the order of the pairs: distance code first, then the hops."""
    pair, codes, weights = np.arange(n * n), distance_codes, np.ones(n * n)
    if hops is not None:
        pair = np.concatenate([pair, hops.pair])
        # NumPy sorts 16-bit integers in linear time
        order = np.argsort(pair.astype(np.uint16) if n <= 256 else pair, kind="stable")
        codes = np.concatenate([codes, hops.bond])[order]
        weights = np.concatenate([weights, hops.weight])[order]
    sizes = np.bincount(pair, minlength=n * n).reshape(n, n)
    return Bags(codes.astype(np.int16), weights.astype(np.float32), sizes.astype(np.int16))


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """Graphs padded to one size: B graphs of at most N nodes; T = N + 1 tokens.

    x (B, N, F); pos (B, N, 2) or None; mask (B, N), True at nodes; in_degree, out_degree (B, N);
    bag_codes, bag_weights (M,) and bag_offsets (B * N * N,) over all ordered pairs (empty for
    padding); num_nodes (B,); y (B, number of tasks) or None, NaN where a label is missing.
    """

    x: Tensor
    pos: Tensor | None
    mask: Tensor
    in_degree: Tensor
    out_degree: Tensor
    bag_codes: Tensor
    bag_weights: Tensor
    bag_offsets: Tensor
    num_nodes: Tensor
    y: Tensor | None = None

    @property
    def distance_codes(self) -> Tensor:
        """The table row of every pair's distance (B, N, N), the first code of its bag.

        Arbitrary where there is padding.
        """
        first = self.bag_offsets.clamp(max=len(self.bag_codes) - 1).long()
        b, n = self.mask.shape
        return self.bag_codes[first].reshape(b, n, n)

    def __len__(self) -> int:
        return self.x.shape[0]

    def to(self, device: torch.device | str) -> "GraphBatch":
        """Return the batch with every tensor on `device`."""
        moved = {name: value.to(device) for name, value in vars(self).items() if value is not None}
        return replace(self, **moved)

    def pin_memory(self) -> "GraphBatch":
        """Return the batch in page-locked memory."""
        pinned = {
            name: value.pin_memory() for name, value in vars(self).items() if value is not None
        }
        return replace(self, **pinned)


def collate(graphs: "Sequence[Data | Graph]", pad_to: int | None = None) -> GraphBatch:
    """Pad encoded graphs (see `StructureEncoding`) to one dense batch.

    `pad_to`: number of nodes to pad to, if more than the largest graph has.
    """
    if not graphs:
        raise ValueError("cannot make a batch from an empty list of graphs.")
    num_nodes = torch.tensor([int(g.num_nodes) for g in graphs])
    n = max(int(num_nodes.max()), pad_to or 0)

    def pad(name: str) -> Tensor:
        first = getattr(graphs[0], name)
        first = first[:, None] if first.dim() == 1 and name in ("x", "pos") else first
        out = first.new_zeros((len(graphs), n, *first.shape[1:]))
        for b, graph in enumerate(graphs):
            value = getattr(graph, name)
            out[b, : len(value)] = value.reshape(len(value), *first.shape[1:])
        return out

    sizes = torch.zeros((len(graphs), n, n), dtype=torch.int32)
    for b, graph in enumerate(graphs):
        k = int(num_nodes[b])
        sizes[b, :k, :k] = graph.bag_sizes
    ends = sizes.flatten().cumsum(0, dtype=torch.int32)
    labels = [g.y for g in graphs if isinstance(g.y, Tensor)]
    has_pos = getattr(graphs[0], "pos", None) is not None
    return GraphBatch(
        x=pad("x"),
        pos=pad("pos") if has_pos else None,
        mask=torch.arange(n) < num_nodes[:, None],
        in_degree=pad("in_degree"),
        out_degree=pad("out_degree"),
        bag_codes=torch.cat([g.bag_codes for g in graphs]).to(torch.int32),
        bag_weights=torch.cat([g.bag_weights for g in graphs]),
        bag_offsets=ends - sizes.flatten(),
        num_nodes=num_nodes,
        y=_stack_labels(labels) if len(labels) == len(graphs) else None,
    )


def _stack_labels(labels: list[Tensor]) -> Tensor:
    return torch.stack([label.reshape(-1).float() for label in labels])
