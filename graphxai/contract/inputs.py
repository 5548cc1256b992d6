"""Turn what users pass in into a list of inputs, and let the model encode each of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from graphxai.datasets.graph import Graph, is_batch, is_data, is_from, is_heterogeneous

from .model import require_contract

if TYPE_CHECKING:
    import pandas as pd
    from rdkit.Chem import Mol
    from torch_geometric.data import Data

    from graphxai.datasets.as_given import AsGiven


TABLE_PACKAGES = ("pandas", "pyarrow", "polars", "rdkit")  # whose values may hold many structures
# Files whose names are no SMILES
TABLE_FILES = (".csv", ".tsv", ".txt", ".smi", ".sdf", ".xlsx", ".parquet", ".gz")
GROUP = 64  # how many inputs a model encodes at a time
# Attributes that are added to a user's graph, whose own have no such names.
# The first (n,) has 2 at the node to explain, 1 at other nodes of its type, and 0 elsewhere.
# If one pass answers for several nodes, they have numbers from 2, which `ASKED` holds.
EXPLAINED_NODE, ASKED = "graphxai_explained_node", "graphxai_nodes_asked"
EDGE_GATES = "graphxai_edge_gates"  # is added (E,) to the gates of 1 at messages along `edge_index`
SCHEMA = "graphxai_schema"  # describes the types of a heterogeneous graph


@dataclass(frozen=True)
class NodesAsked:
    """The nodes for which one pass answers, by their numbers in `EXPLAINED_NODE`."""

    codes: tuple[int, ...] = (2,)


class InputError(ValueError):
    """An input cannot be explained. The message says why and what to do."""


@dataclass(frozen=True, eq=False)
class Input:
    """One encoded graph, with what is needed to draw it.

    Args:
        graph: the user's `Data`, or a `Graph` that was made without PyG.
        smiles: the molecule as SMILES. Without `molecule`, the atoms are in RDKit's order for it.
        molecule: the molecule whose atoms are the nodes.
        image: the picture that the graph was made from.
        segments: the number of the node that each pixel of the picture belongs to.
        as_given: the molecule that was given, if the graph is that of its parent.
        read: the form in which the molecule was read, if it is still at hand.
        mirrored: the mirror image of a molecule, if the model takes the mean over both.
        isomers: the further isomers of a molecule, if results are the mean over several.
    """

    graph: "Data | Graph"
    smiles: str | None = None
    molecule: "Mol | None" = None
    image: NDArray[np.floating] | None = None
    segments: NDArray[np.integer] | None = None
    as_given: "AsGiven | None" = None
    read: "Mol | None" = None
    mirrored: "Input | None" = None
    isomers: "tuple[Input, ...]" = ()

    @property  # not cached, for a cycle of references would keep each row of a long table
    def passes(self) -> "tuple[Input, ...]":
        """The inputs over which results are the mean: each isomer, with its mirror image."""
        images = (self,) if self.mirrored is None else (self, self.mirrored)
        return images + tuple(each for isomer in self.isomers for each in isomer.passes)

    @cached_property
    def data(self) -> "Data":
        """The encoded graph as PyG's `Data`."""
        return self.graph.to_data() if isinstance(self.graph, Graph) else self.graph

    @property
    def note(self) -> str:
        """What was done to the molecule that was given, as text; empty if nothing was."""
        return "" if self.as_given is None else self.as_given.sentence

    @property
    def parent(self) -> str:
        """The SMILES of the parent that stands for the molecule given, or "" for that itself."""
        is_other = self.as_given is not None and self.as_given.smiles != self.smiles
        return self.smiles or "" if is_other else ""

    @cached_property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return int(self.graph.num_nodes or 0)

    @property
    def explains_several(self) -> bool:
        """Whether one pass answers for several nodes of the graph."""
        return self.graph.get(ASKED) is not None


def as_list(inputs: Any) -> tuple[list[Any], bool]:
    """Return the inputs as a list, and whether the user passed several.

    Batches in a list, or from a `DataLoader`, count as the graphs in them. Frames, arrays of text,
    RDKit's suppliers and the path of a table count as their structures. An error stands for a
    record that cannot be read.
    """
    if is_batch(inputs):
        return _graphs_of(inputs), True
    if isinstance(inputs, Mapping):
        raise TypeError("inputs is a mapping: pass its values as a list.")
    if isinstance(inputs, str) and inputs.lower().endswith(TABLE_FILES):  # never a SMILES
        inputs = Path(inputs)
    if isinstance(inputs, Path | np.ndarray) or any(is_from(p, inputs) for p in TABLE_PACKAGES):
        from graphxai.datasets.tables.table import structures_in  # loads RDKit

        if (structures := structures_in(inputs)) is not None:
            return structures, True
    kind = type(inputs)
    # going through a frame of another library, such as Dask, would yield the names of its columns
    if hasattr(kind, "columns") and hasattr(kind, "__getitem__"):
        name = kind.__name__
        raise TypeError(f"inputs is a {name} with columns: pass the structures in it as a list.")
    single = isinstance(inputs, str | bytes | Path | np.ndarray | torch.Tensor)
    single = single or is_data(inputs) or is_heterogeneous(inputs)
    if single or not isinstance(inputs, Iterable) or is_pillow(inputs):
        return [inputs], False
    from_loader = isinstance(inputs, DataLoader)
    return [value for entry in inputs for value in _single_inputs(entry, from_loader)], True


def _graphs_of(batch: Any) -> list[Any]:
    """Return the graphs of a batch. PyG cannot split sparse tensors, whose blocks are cut here."""
    values = {} if is_heterogeneous(batch) else batch.to_dict()
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    sparse = {name: value for name, value in tensors.items() if value.layout != torch.strided}
    if not sparse:
        return list(batch.to_data_list())
    dense = copy(batch)
    for name in sparse:
        del dense[name]
    graphs = list(dense.to_data_list())
    for name, value in sparse.items():
        ends = batch._slice_dict[name].tolist()  # of rows and columns, as PyG has put them
        for graph, starts, stops in zip(graphs, ends, ends[1:], strict=False):
            block = value.to_sparse_coo()
            for axis, (start, stop) in enumerate(zip(starts, stops, strict=True)):
                block = block.index_select(axis, torch.arange(start, stop, device=value.device))
            graph[name] = block.coalesce().to_sparse(layout=value.layout)
    return graphs


def row_index(inputs: Any) -> "pd.Index | None":
    """Return the index of a pandas frame or column, or None for other inputs."""
    return inputs.index if is_from("pandas", inputs) and hasattr(inputs, "index") else None


def _single_inputs(entry: Any, from_loader: bool) -> list[Any]:
    """Return the graphs of a batch, the rows of a loader's tensor, or the entry itself."""
    if is_batch(entry):
        return _graphs_of(entry)
    if from_loader and isinstance(entry, tuple | list) and entry:
        entry = entry[0]  # labels follow it
    return list(entry) if from_loader and isinstance(entry, torch.Tensor) else [entry]


def prepare_for(model: Any, value: Any) -> Input:
    """Let a model encode one input.

    Raises TypeError for a model that cannot be explained, InputError for tensors without values.
    """
    (encoded,) = prepare_all(model, [value])
    return encoded


def prepare_all(model: Any, values: Iterable[Any]) -> list[Input]:
    """Let a model encode inputs, many at a time where it can, and raise the first error."""
    return [item for item in prepare_each(model, values, ()) if isinstance(item, Input)]


def prepare_each(
    model: Any,
    values: Iterable[Any],
    refused: type[Exception] | tuple[type[Exception], ...] = (ValueError, OSError),
) -> Iterator[Input | Exception]:
    """Let a model encode inputs, many at a time where it has a `prepare_group`, in their order.

    If an input cannot be used and its error is one of `refused`, the error is yielded in its place.
    Other errors are raised. Up to `GROUP` values are read before the first input is yielded.
    """
    if not hasattr(model, "prepare"):
        require_contract(model)
    prepare_group = getattr(model, "prepare_group", None)
    remaining = iter(values)
    while group := list(islice(remaining, GROUP)):
        # a value may already be an error, see `as_list`
        usable = [each for each in group if not isinstance(each, Exception)]
        if prepare_group is None:
            encoded = each_or_error(usable, lambda _, value: model.prepare(value))
        else:
            encoded = prepare_group(usable)
        for value in group:
            item = value if isinstance(value, Exception) else next(encoded)
            if isinstance(item, Exception) and not isinstance(item, refused):
                raise item
            yield item


def each_or_error(
    values: Iterable[Any], encode: Callable[[int, Any], Input]
) -> Iterator[Input | Exception]:
    """Yield what `encode` makes of each position and value, or the error that it raises."""
    for position, value in enumerate(values):
        try:
            require_values(value)
            encoded: Input | Exception = encode(position, value)
        except Exception as error:
            encoded = error
        yield encoded


def require_values(value: Any) -> None:
    """Raise InputError for a tensor on PyTorch's device 'meta', or a graph with such a tensor."""
    tensors = value.to_dict().values() if is_data(value) else (value,)
    if any(isinstance(item, torch.Tensor) and item.is_meta for item in tensors):
        raise InputError("it is on the device 'meta', where tensors hold no values.")


def is_pillow(value: Any) -> bool:
    """Return whether a value is an image from Pillow, which need not be installed."""
    return type(value).__module__.split(".")[0] == "PIL"


def check_one_graph(batch: Any) -> None:
    """Raise an InputError if an attribute `batch` of nodes names more than one graph."""
    if isinstance(batch, torch.Tensor) and len(graphs := batch.unique()) > 1:
        raise InputError(
            f"its attribute `batch` names {len(graphs)} graphs: pass them as a list of graphs, or"
            " as PyG's Batch.from_data_list([...]), which knows where each begins."
        )


def check_graph(data: "Data") -> None:
    """Raise an InputError for edges that do not fit the graph, or a `batch` of several graphs."""
    check_one_graph(data.get("batch"))
    edges, features = data.edge_index, data.edge_attr
    if not isinstance(edges, torch.Tensor):
        if isinstance(edges, np.ndarray | list | tuple):
            raise InputError(
                f"edge_index is a {type(edges).__name__}: pass torch.as_tensor(edge_index)."
            )
        return
    whole = not (edges.is_floating_point() or edges.is_complex() or edges.dtype == torch.bool)
    if edges.dim() != 2 or len(edges) != 2 or not whole:
        raise InputError(
            f"edge_index must hold whole numbers in the shape (2, E); it has"
            f" {edges.dtype} in the shape {tuple(edges.shape)}."
        )
    nodes = data.num_nodes  # PyG counts them at every call
    if edges.numel() and nodes:
        low, high = map(int, edges.aminmax())
        if low < 0 or high >= nodes:
            raise InputError(
                f"edge_index refers to node {high if low >= 0 else low}; the graph has"
                f" {nodes} nodes, counted from 0."
            )
    if isinstance(features, torch.Tensor):
        rows = len(features) if features.dim() else 0
        if rows != edges.shape[1]:
            raise InputError(
                f"edge_attr has {rows} rows for the {edges.shape[1]} edges in edge_index."
            )
