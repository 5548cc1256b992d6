"""Encode a graph's structure as tensors: degrees, shortest-path distances, edges along the paths.

`StructureEncoding` (a PyG transform) adds to each graph what Graphormer's structural bias needs.
For every ordered pair of nodes it makes one *bag* of weighted codes. The bias of the pair is the
weighted sum of the table rows with these codes (see `layers.StructuralBias`):

* one code for the shortest-path distance d, weight 1 (Ying 2021, eq. 6);
* for each of the first `num_hops` edges on the shortest path a code for (hop, bond), weight
  1 / min(d, num_hops) (Ying 2021, eq. 7). If edges have continuous features, there is a code for
  each (hop, feature), and its weight is multiplied by the feature's value.

If several paths are equally short, `ties="average"` averages over all of them, which makes the
encoding independent of the node order; `ties="floyd"` keeps the path that the published
Floyd-Warshall code keeps.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.inputs import ASKED, EXPLAINED_NODE, NodesAsked
from graphxai.contract.structure import IntArray, environment_rows, shortest_paths
from graphxai.datasets.graph import Graph, recall, remember

from .config import GraphormerConfig
from .paths import (
    Bags,
    Codes,
    averaged_bags,
    averaged_bags_together,
    continuous_bags,
    distance_bags,
    floyd_bags,
)

if TYPE_CHECKING:
    from torch_geometric.data import Data

AnyGraph = TypeVar("AnyGraph", "Data", Graph)

# Compiled code pays after so many node pairs in one process. Loading it took 1 s on a machine where
# it saved 2.2 ms on a drug molecule of 1,200 pairs.
COMPILED_FROM = 600_000

# In NumPy, small molecules take 0.4 (11 atoms) to 0.65 (22 atoms) of the time if made together.
LARGEST_TOGETHER, FEWEST_TOGETHER, MOST_TOGETHER = 32, 4, 16  # atoms, and molecules

# what `StructureEncoding` adds to a graph, besides environments
STRUCTURE = ("in_degree", "out_degree", "bag_codes", "bag_weights", "bag_sizes", "structure")
NODE_LABELS = "node_y"  # an attribute (N, tasks) of graphs whose nodes have labels
MAX_NODES = 4_000  # attention between them takes some 5 GB

_encoded = 0  # node pairs so far


@dataclass(eq=False, repr=False)
class StructureEncoding:
    """Add `in_degree`, `out_degree` (N,), `bag_codes`, `bag_weights` (M,), `bag_sizes` (N, N).

    Args:
        edge_cardinalities: number of values of each categorical edge feature in `edge_attr` (E,
            F).
        max_distance: longer shortest paths share the code of this distance.
        num_hops: number of edges of a shortest path that have codes.
        ties: which of several equally short paths count, see above.
        num_edge_features: number of continuous edge features in `edge_attr` instead. Without
            either kind, edges have no features and bags contain only the distance.
        edge_offsets: numbers that are subtracted from continuous features.
        edge_scales: numbers by which they are then divided.
        environments: number of rows that the nodes' environments are dealt to, see
            `contract.structure`; 0 for none.
        environment_radius: the largest number of bonds from a node in its environments.

    A graph that already has an encoding with the same settings (`structure`) is returned unchanged.
    """

    edge_cardinalities: tuple[int, ...] = ()
    max_distance: int = 30
    num_hops: int = 5
    ties: Literal["average", "floyd"] = "average"
    num_edge_features: int = 0
    edge_offsets: tuple[float, ...] = ()
    edge_scales: tuple[float, ...] = ()
    environments: int = 0
    environment_radius: int = 3

    def __post_init__(self) -> None:
        self.edge_cardinalities = tuple(self.edge_cardinalities)
        sizes = "x".join(map(str, self.edge_cardinalities))
        if self.num_edge_features:
            sizes = f"{self.num_edge_features} numbers {self.edge_offsets} {self.edge_scales}"
        num_bonds = self.num_edge_features or math.prod(self.edge_cardinalities)
        self.codes = Codes(self.max_distance, self.num_hops, num_bonds)
        self.settings = f"{self.ties} {self.num_hops} of {sizes or 'none'} to {self.max_distance}"

    @classmethod
    def from_config(cls, config: GraphormerConfig) -> "StructureEncoding":
        """Return the encoding for a model with this configuration."""
        return cls(**{each.name: getattr(config, each.name) for each in fields(cls)})

    def __repr__(self) -> str:
        return f"StructureEncoding({self.settings})"

    def __call__(self, data: AnyGraph) -> AnyGraph:
        """Return the encoded graph, and leave the given one as it is."""
        return self.forward(copy(data))

    def forward(self, data: AnyGraph) -> AnyGraph:
        """Encode one graph in place."""
        self._encode([data])
        return data

    def each(self, graphs: Iterable[AnyGraph]) -> list[AnyGraph]:
        """Return the encoded graphs, and leave the given ones as they are."""
        encoded = list(map(copy, graphs))
        self._encode(encoded)
        return encoded

    def _encode(self, graphs: Sequence[AnyGraph]) -> None:
        for data in graphs:
            if data.get("structure") != self.settings and not recall(data, self.settings):
                self._add_structure(data)
                remember(data, self.settings, STRUCTURE)
        self.add_environments(graphs)

    def _add_structure(self, data: AnyGraph) -> None:
        n = int(data.num_nodes or 0)
        if n > MAX_NODES:
            raise ValueError(
                f"the graph has {n:,} nodes, more than the limit of {MAX_NODES:,}: time and memory"
                " grow with the square of the size, so explain a part of it."
            )
        source, target = data.edge_index.numpy()
        pairs = np.sort(source * n + target)
        if (pairs[1:] == pairs[:-1]).any():
            raise ValueError("edge_index has an edge twice: use torch_geometric's coalesce.")
        if self.num_edge_features:
            bags = continuous_bags(n, source, target, self._edge_values(data), self.codes)
        else:
            bags = self._bags(n, source, target, self._bond_codes(data))
        self._set_structure(data, bags)

    def _set_structure(self, data: "Data | Graph", bags: Bags) -> None:
        n = len(bags.sizes)
        source, target = data.edge_index.numpy()
        data.out_degree = torch.from_numpy(np.bincount(source, minlength=n))
        data.in_degree = torch.from_numpy(np.bincount(target, minlength=n))
        data.bag_codes = torch.from_numpy(bags.codes)
        data.bag_weights = torch.from_numpy(bags.weights)
        data.bag_sizes = torch.from_numpy(bags.sizes)
        data.structure = self.settings

    def add_structures(self, molecules: "Sequence[Data | Graph]") -> None:
        """Add degrees and bags to small molecules in place, many of similar size together.

        Those that are left out get theirs in `forward`: large ones, single atoms, and all once
        compiled code, which is faster, is in use.
        """
        if self.ties == "floyd" or self.num_edge_features or not self.edge_cardinalities:
            return
        lacking = [
            graph
            for graph in sorted(molecules, key=lambda graph: len(graph.x))
            if len(graph.x) <= LARGEST_TOGETHER
            and graph.edge_index.shape[1]
            and graph.get("structure") != self.settings
            and not recall(graph, self.settings)
        ]
        for first in range(0, len(lacking) - FEWEST_TOGETHER + 1, MOST_TOGETHER):
            part = lacking[first : first + MOST_TOGETHER]
            sizes = [len(graph.x) for graph in part]
            if _averaged_bags(sum(size * size for size in sizes)) is not averaged_bags:
                return
            try:
                bonds: Any = [self._bond_codes(graph) for graph in part]
            except ValueError:
                return  # `forward` raises it for the molecule that it is about
            source, target = np.concatenate([graph.edge_index.numpy() for graph in part], axis=1)
            of_edge = np.repeat(np.arange(len(part)), [len(codes) for codes in bonds])
            bond = np.concatenate(bonds)
            bags = averaged_bags_together(sizes, source, target, bond, of_edge, self.codes)
            for graph, of_graph in zip(part, bags, strict=True):
                self._set_structure(graph, of_graph)
                remember(graph, self.settings, STRUCTURE)

    def add_environments(self, graphs: "Sequence[Data | Graph]") -> None:
        """Add `environments` (N, radius), the rows of the nodes' environments, to graphs in place.

        Doing it for many molecules together takes a tenth of the time.
        """
        settings = f"{self.environments} to {self.environment_radius}"
        lacking = [
            graph
            for graph in (graphs if self.environments else ())
            if graph.get("environment_settings") != settings and not recall(graph, settings)
        ]
        if not lacking:
            return
        sizes = [len(graph.x) for graph in lacking]
        starts = np.cumsum([0, *sizes])  # as if all were one graph of many parts
        ends = [graph.edge_index.numpy() + k for graph, k in zip(lacking, starts, strict=False)]
        bonds = [codes for graph in lacking if (codes := self._bond_codes(graph)) is not None]
        source, target = np.concatenate(ends, axis=1)
        rows = environment_rows(
            np.concatenate([graph.x.numpy() for graph in lacking]),
            source,
            target,
            np.concatenate(bonds) if bonds else None,
            self.environments,
            self.environment_radius,
        )
        for graph, first, size in zip(lacking, starts, sizes, strict=False):
            graph.environments = torch.from_numpy(rows[first : first + size].copy())
            graph.environment_settings = settings
            remember(graph, settings, ("environments", "environment_settings"))

    def _bond_codes(self, data: "Data | Graph") -> IntArray | None:
        """Return one number per edge for its combination of feature values, (E,)."""
        if not self.edge_cardinalities:
            return None
        if data.edge_attr is None or data.edge_attr.shape[-1] != len(self.edge_cardinalities):
            shape = None if data.edge_attr is None else tuple(data.edge_attr.shape)
            raise ValueError(
                f"edge_attr must have shape (E, {len(self.edge_cardinalities)}); it has {shape}."
            )
        if data.edge_attr.is_floating_point() or data.edge_attr.dtype == torch.bool:
            raise ValueError(
                f"edge_attr must hold integers, which are codes, not {data.edge_attr.dtype}."
            )
        values = data.edge_attr.numpy().reshape(-1, len(self.edge_cardinalities))
        try:
            return np.ravel_multi_index(tuple(values.T), self.edge_cardinalities)
        except ValueError:
            limits = np.array(self.edge_cardinalities)
            raise ValueError(f"edge_attr has a value outside the cardinalities {limits}.") from None

    def _edge_values(self, data: "Data | Graph") -> NDArray[np.float64]:
        """Return the standardised continuous features of the edges, (E, F)."""
        width, attr = self.num_edge_features, data.edge_attr
        if not isinstance(attr, Tensor) or attr.dim() != 2 or attr.shape[1] != width:
            shape = tuple(attr.shape) if isinstance(attr, Tensor) else None
            raise ValueError(f"edge_attr must have shape (E, {width}); it has {shape}.")
        values = attr.double().numpy()
        if not np.isfinite(values).all():
            raise ValueError("edge_attr contains values that are not finite.")
        if self.edge_offsets:
            values = values - self.edge_offsets
        return values / self.edge_scales if self.edge_scales else values

    def _bags(self, n: int, source: IntArray, target: IntArray, bond: IntArray | None) -> Bags:
        if bond is None or not len(bond):
            return distance_bags(shortest_paths(n, source, target)[0], self.codes)
        make = floyd_bags if self.ties == "floyd" else _averaged_bags(n * n)
        return make(n, source, target, bond, self.codes)


def _averaged_bags(pairs: int) -> Callable[..., Bags]:
    """Return the function for a graph with this many node pairs, compiled as soon as that pays."""
    global _encoded
    _encoded += pairs
    return compiled_bags() if _encoded >= COMPILED_FROM else averaged_bags


@cache
def compiled_bags() -> Callable[..., Bags]:
    """Return the compiled function, or without Numba the one in NumPy."""
    try:
        import numba

        from . import compiled_paths
    except (ImportError, RuntimeError):  # not installed; no folder to keep compiled code in
        return averaged_bags
    interpreted = numba.config.DISABLE_JIT  # type: ignore[attr-defined]
    return averaged_bags if interpreted else compiled_paths.averaged_bags


def collate(graphs: "Sequence[Data | Graph]", pad_to: int | None = None) -> GraphBatch:
    """Pad encoded graphs (see `StructureEncoding`) to one dense batch.

    Args:
        graphs: the encoded graphs.
        pad_to: number of nodes to pad to, if more than the largest graph has.
    """
    if not graphs:
        raise ValueError("cannot make a batch from an empty list of graphs.")
    num_nodes = torch.tensor([len(g.in_degree) for g in graphs])
    n = max(int(num_nodes.max()), pad_to or 0)
    mask = torch.arange(n) < num_nodes[:, None]

    def pad(name: str) -> Tensor:
        first = getattr(graphs[0], name)
        shape = (1,) if first.dim() == 1 and name in ("x", "pos") else first.shape[1:]
        if len(graphs) == 1 and len(first) == n:
            return first.clone().reshape(1, n, *shape)
        out = first.new_zeros((len(graphs), n, *shape))
        out[mask] = torch.cat([getattr(graph, name).reshape(-1, *shape) for graph in graphs])
        return out

    sizes = torch.zeros((len(graphs), n, n), dtype=torch.int32)
    for b, graph in enumerate(graphs):
        k = len(graph.bag_sizes)
        sizes[b, :k, :k] = graph.bag_sizes
    sizes = sizes.flatten()
    ends = sizes.cumsum(0, dtype=torch.int32)
    of_nodes = [g.get(NODE_LABELS) for g in graphs]
    labels = [y for y in (g.get("y") for g in graphs) if isinstance(y, Tensor)]
    y = torch.stack([y.reshape(-1).float() for y in labels]) if len(labels) == len(graphs) else None
    chosen = [g.get(EXPLAINED_NODE) for g in graphs]
    has_pos = graphs[0].get("pos") is not None
    has_environments = all(graph.get("environments") is not None for graph in graphs)
    return GraphBatch(
        x=pad("x"),
        pos=pad("pos") if has_pos else None,
        mask=mask,
        in_degree=pad("in_degree"),
        out_degree=pad("out_degree"),
        environments=pad("environments") if has_environments else None,
        bag_codes=_joined([g.bag_codes for g in graphs]).to(torch.int32),
        bag_weights=_joined([g.bag_weights for g in graphs]),
        bag_offsets=ends - sizes,
        num_nodes=num_nodes,
        y=torch.cat(of_nodes).float() if _are_tensors(of_nodes) else y,
        explained=_explained(graphs[0].get(ASKED), chosen) if _are_tensors(chosen) else None,
        bounds=_stack_bounds([graph.get("bounds") for graph in graphs]),
    )


def _explained(asked: NodesAsked | None, chosen: list[Tensor]) -> Tensor:
    """Return the explained node of each graph (B,), or those that one graph asks for (1, k)."""
    if asked is None:
        return torch.stack([codes.argmax() for codes in chosen])
    (codes,) = chosen
    return torch.stack([(codes == code).int().argmax() for code in asked.codes])[None]


def _are_tensors(values: list[Any]) -> TypeGuard[list[Tensor]]:
    """Whether every graph has the attribute that these are the values of."""
    return all(isinstance(value, Tensor) for value in values)


def _joined(parts: list[Tensor]) -> Tensor:
    """Concatenate the parts. A single part, which may be large, is not copied."""
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _stack_bounds(bounds: list[Tensor | None]) -> Tensor | None:
    """Return the bounds of labels (B, tasks, 2), which are infinite for graphs without any."""
    present = [each for each in bounds if each is not None]
    if not present:
        return None
    unknown = torch.tensor([-torch.inf, torch.inf]).expand(present[0].shape[-2], 2)
    return torch.stack([unknown if each is None else each.reshape(-1, 2) for each in bounds])
