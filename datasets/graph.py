"""The tensors of one graph without PyG, and the only place where PyG's own graphs are made.

Importing PyG takes longer than importing torch: it loads torch's compiler and all of PyG's data
sets. Explaining a molecule needs none of that. PyG is imported when a user gets one of its graphs.
A user who passes one in has imported PyG already.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Batch, Data, HeteroData


class Graph(SimpleNamespace):
    """A graph with the attributes of PyG's `Data` that the library reads. See `to_data`.

    x (N, F); edge_index (2, E); edge_attr (E, F); pos (N, 2).

    Args:
        y: labels, any shape.
    """

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


def is_data(value: object) -> TypeGuard[Data]:
    """Whether a value is a PyG `Data`."""
    pyg = sys.modules.get("torch_geometric.data")
    return pyg is not None and isinstance(value, pyg.Data)


def is_heterogeneous(value: object) -> TypeGuard[HeteroData]:
    """Whether a value is a PyG `HeteroData`."""
    pyg = sys.modules.get("torch_geometric.data")
    return pyg is not None and isinstance(value, pyg.HeteroData)


def is_batch(value: object) -> TypeGuard[Batch]:
    """Whether a value is a PyG `Batch`."""
    pyg = sys.modules.get("torch_geometric.data")
    return pyg is not None and isinstance(value, pyg.Batch)
