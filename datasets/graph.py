"""Hold the tensors of one graph without PyG, and make PyG's own graphs of them, only here.

Importing PyG takes longer than importing torch, because it loads torch's compiler and all of PyG's
data sets. Explaining a molecule needs none of that. PyG is imported when a user gets one of its
graphs. A user who passes one in has imported PyG already.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Batch, Data, HeteroData


class Graph(SimpleNamespace):
    """A graph with the attributes of PyG's `Data` that the library reads. See `to_data`.

    Args:
        x: node features (N, F).
        edge_index: positions of the two nodes of each edge (2, E).
        edge_attr: edge features (E, F).
        pos: positions in the plane (N, 2).
        y: labels of any shape.

    Attributes:
        read: the RDKit molecule that a SMILES was read as. Copies do not have it.
        shared: by name, the attributes that models have added to copies that
            `molecules.read_once` made of this graph. Other copies do not have it.
    """

    __slots__ = ("read", "shared")
    read: Any
    shared: dict[str, dict[str, Any]]
    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor | None = None
    pos: Tensor | None = None
    y: Tensor | None = None

    @property
    def num_nodes(self) -> int:
        """The number of nodes, N."""
        return len(self.x)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the attribute of this name, or the default."""
        return getattr(self, name, default)

    def clone(self) -> Graph:
        """Return a copy with tensors of its own."""
        values = vars(self).items()
        return Graph(**{k: v.clone() if hasattr(v, "new_empty") else v for k, v in values})

    def to_data(self) -> Data:
        """Return this graph as PyG's `Data`."""
        from torch_geometric.data import Data

        data = Data()  # keys are set four times faster than the constructor sets attributes
        for name, value in vars(self).items():
            data[name] = value
        return data


def recall(graph: Graph | Data, key: str) -> bool:
    """Add the attributes that a model has added to a copy of a graph, and return if one has."""
    known = shared_by(graph).get(key)
    if known is not None:
        vars(graph).update(known)
    return known is not None


def remember(graph: Graph | Data, key: str, names: Iterable[str]) -> None:
    """Let other models have the attributes that one has added, if they read the graph, too."""
    shared_by(graph)[key] = {name: getattr(graph, name) for name in names}


def shared_by(graph: Graph | Data) -> dict[str, dict[str, Any]]:
    """Return `Graph.shared`, or an empty dict that is nobody else's."""
    shared: dict[str, dict[str, Any]] = getattr(graph, "shared", {})
    return shared if isinstance(graph, Graph) else {}


def is_data(value: object) -> TypeGuard[Data]:
    """Return whether a value is a PyG `Data`."""
    pyg = sys.modules.get("torch_geometric.data")
    return pyg is not None and isinstance(value, pyg.Data)


def is_from(package: str, value: object) -> bool:
    """Return whether a value's class, or one that it extends, is from a package."""
    return any(kind.__module__.partition(".")[0] == package for kind in type(value).__mro__)


def is_heterogeneous(value: object) -> TypeGuard[HeteroData]:
    """Return whether a value is a PyG `HeteroData`."""
    pyg = sys.modules.get("torch_geometric.data")
    return pyg is not None and isinstance(value, pyg.HeteroData)


def is_batch(value: object) -> TypeGuard[Batch]:
    """Return whether a value is a PyG `Batch`."""
    pyg = sys.modules.get("torch_geometric.data")
    return pyg is not None and isinstance(value, pyg.Batch)
