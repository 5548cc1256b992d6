"""Write any PyG graphs to a folder, and read them, or OGB's layout, without unpickling.

A folder has `graphs.safetensors`. Tensors with a row for every node, edge or graph are joined over
all graphs. Their names begin with "node:", "edge:" or "graph:". `num_nodes` and `num_edges` (G,)
say where each graph ends. A tensor `split` (G,) of 0, 1 and 2 may name the graphs to train,
validate and test.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save
from torch import Tensor

from graphxai.runtime.reading import regular_file
from graphxai.runtime.writing import folder_at, write_whole

from .graph import Graph
from .splits import Split

if TYPE_CHECKING:
    from torch_geometric.data import Data

FILE, FORMAT = "graphs.safetensors", "graphxai-graphs"
OGB_EDGES = "raw/edge.csv.gz"
PARTS = ("train", "valid", "test")


class GraphFolderError(ValueError):
    """A folder of graphs cannot be written or read. The message says why."""


@dataclass(frozen=True, eq=False)
class StoredGraphs:
    """The graphs of a folder, and the split that it names, if there is one."""

    graphs: list[Data]
    split: Split | None = None


def save_graphs(graphs: Iterable[Data], folder: str | Path, split: Split | None = None) -> Path:
    """Write PyG graphs to a folder, in the format that this module describes.

    Attributes that are tensors are kept if all graphs have them.

    Args:
        graphs: the graphs.
        folder: folder to write to.
        split: positions of the training, validation and test graphs.

    Returns:
        The folder.

    Raises:
        GraphFolderError: there are no graphs, or an attribute has another shape in each graph.
    """
    listed = list(graphs)
    if not listed:
        raise GraphFolderError("there are no graphs to write.")
    tensors = {
        "num_nodes": torch.tensor([int(graph.num_nodes or 0) for graph in listed]),
        "num_edges": torch.tensor([_num_edges(graph) for graph in listed]),
    }
    if split is not None:
        tensors["split"] = torch.full((len(listed),), -1)
        for number, part in enumerate((split.train, split.valid, split.test)):
            tensors["split"][list(part)] = number
    for name in listed[0].to_dict():
        values = [graph.get(name) for graph in listed]
        if name not in ("num_nodes", "num_edges") and all(isinstance(v, Tensor) for v in values):
            key, joined = _joined(name, listed, values)
            tensors[key] = joined.contiguous()
    folder = folder_at(folder)
    write_whole(folder / FILE, save(tensors, metadata={"format": FORMAT}))
    return folder


def holds_graphs(folder: str | Path) -> bool:
    """Return whether a folder has graphs that `load_graphs` reads."""
    return (Path(folder) / FILE).is_file() or (Path(folder) / OGB_EDGES).is_file()


def load_graphs(folder: str | Path) -> StoredGraphs:
    """Read the graphs that `save_graphs` wrote, or a folder in the layout of OGB's data sets.

    Raises:
        GraphFolderError: the folder has no graphs, or its files do not fit each other.
    """
    folder = Path(folder)
    if (folder / FILE).is_file():
        return _load_tensors(folder / FILE)
    if (folder / OGB_EDGES).is_file():
        return _load_ogb(folder)
    if not os.path.isdir(folder):
        raise GraphFolderError(f"{folder} is no folder. (`train_table` learns from a table.)")
    raise GraphFolderError(
        f"{folder} has neither {FILE} (see graphxai.datasets.graph_folders.save_graphs) nor OGB's"
        f" {OGB_EDGES}."
    )


def _num_edges(graph: Data) -> int:
    return 0 if graph.edge_index is None else int(graph.edge_index.shape[1])


def _joined(name: str, graphs: list[Data], values: list[Any]) -> tuple[str, Tensor]:
    """Return the key of an attribute and its values for all graphs."""
    if name == "edge_index":
        return "edge:edge_index", torch.cat([value.T for value in values])
    rows = [len(value) if value.dim() else -1 for value in values]
    sizes = [int(graph.num_nodes or 0) for graph in graphs]
    try:
        if rows == sizes and (name != "y" or max(sizes) > 1):  # otherwise y is of the graphs
            return f"node:{name}", torch.cat(values)
        if name != "y" and rows == [_num_edges(graph) for graph in graphs]:
            return f"edge:{name}", torch.cat(values)
        return f"graph:{name}", torch.stack([value.reshape(-1) for value in values])
    except RuntimeError as error:
        what = "node" if name == "y" else "node or edge"
        raise GraphFolderError(
            f"{name} has another shape in each graph: give it the same number of values in all"
            f" graphs, or in all a row for each {what}."
        ) from error


def _load_tensors(path: Path) -> StoredGraphs:
    try:
        tensors = load_tensors(regular_file(path).read_bytes())
    except (OSError, SafetensorError) as error:
        raise GraphFolderError(f"{path}: cannot be read: {error}") from error
    sizes = {name: tensors.pop(f"num_{name}s", None) for name in ("node", "edge")}
    if any(size is None or size.dim() != 1 or size.is_floating_point() for size in sizes.values()):
        raise GraphFolderError(f"{path}: num_nodes and num_edges must hold whole numbers (G,).")
    counts = {name: size.tolist() for name, size in sizes.items() if size is not None}
    counts["graph"] = [1] * len(counts["node"])
    numbers, split = tensors.pop("split", None), None
    if numbers is not None:
        if numbers.dim() != 1 or not set(numbers.tolist()) <= {-1, 0, 1, 2}:
            raise GraphFolderError(f"{path}: split must hold 0, 1 and 2 for each graph.")
        train, valid, test = (tuple((numbers == k).nonzero()[:, 0].tolist()) for k in range(3))
        split = Split(train, valid, test)
    graphs: list[dict[str, Tensor]] = [{} for _ in counts["node"]]
    for key, values in tensors.items():
        kind, _, name = key.partition(":")
        rows = counts.get(kind)
        is_usable = name.isidentifier() and name != "num_nodes"
        if not is_usable or rows is None or min(rows, default=0) < 0:
            raise GraphFolderError(f"{path}: {key!r} is no tensor of nodes, edges or graphs.")
        if len(rows) != len(graphs) or sum(rows) != len(values):
            raise GraphFolderError(f"{path}: {key!r} has {len(values)} rows, not {sum(rows)}.")
        for graph, part in zip(graphs, values.split(rows), strict=True):
            graph[name] = part.T if key == "edge:edge_index" else part
    return StoredGraphs(list(map(_to_data, graphs, counts["node"])), split)


def _to_data(values: dict[str, Tensor], num_nodes: int) -> Data:
    data = Graph(**values).to_data()
    if "x" not in values:
        data.num_nodes = num_nodes
    return data


def _load_ogb(folder: Path) -> StoredGraphs:
    """Read the CSV files of one of OGB's data sets for predicting properties of graphs.

    OGB stores undirected edges once. If no edge is stored both ways, the way back is added.
    """
    nodes = _numbers(folder / "raw/num-node-list.csv.gz").reshape(-1).astype(np.int64)
    edges = _numbers(folder / "raw/num-edge-list.csv.gz").reshape(-1).astype(np.int64)
    ends = torch.from_numpy(_numbers(folder / OGB_EDGES).astype(np.int64))
    by_name = {"edge_index": _split_rows(ends, edges, OGB_EDGES)}
    for name, file, counts in (
        ("x", "node-feat", nodes),
        ("edge_attr", "edge-feat", edges),
        ("y", "graph-label", np.ones_like(nodes)),
    ):
        path = folder / "raw" / f"{file}.csv.gz"
        if path.is_file():
            rows = _numbers(path)
            is_whole = bool((rows == np.floor(rows)).all())
            tensor = torch.from_numpy(rows).to(torch.int64 if is_whole else torch.float32)
            by_name[name] = _split_rows(tensor, counts, path.name)
    one_way = not any(_has_both_ways(part) for part in by_name["edge_index"])
    graphs = []
    for k, count in enumerate(nodes.tolist()):
        values = {name: parts[k] for name, parts in by_name.items()}
        values["edge_index"] = values["edge_index"].T
        if one_way:
            pair = values["edge_index"]
            values["edge_index"] = torch.stack([pair, pair.flip(0)], dim=2).reshape(2, -1)
            if "edge_attr" in values:
                values["edge_attr"] = values["edge_attr"].repeat_interleave(2, dim=0)
        graphs.append(_to_data(values, count))
    return StoredGraphs(graphs, ogb_split(folder))


def _split_rows(values: Tensor, counts: np.ndarray, file: str) -> tuple[Tensor, ...]:
    if counts.min(initial=0) < 0 or counts.sum() != len(values):
        raise GraphFolderError(f"{file} has {len(values)} rows, not {counts.sum()}.")
    return values.split(counts.tolist())


def _has_both_ways(edges: Tensor) -> bool:
    """Return whether one of the edges (E, 2) is the reverse of another, so that both are stored."""
    pairs = {(a, b) for a, b in edges.tolist() if a != b}
    return any((b, a) in pairs for a, b in pairs)


def ogb_split(folder: Path, kind: str = "*") -> Split | None:
    """Return the official split of one of OGB's data sets, or the first if it has several kinds."""
    for place in sorted(path.parent for path in folder.glob(f"split/{kind}/train.csv.gz")):
        train, valid, test = (
            tuple(_numbers(place / f"{name}.csv.gz").astype(int).reshape(-1).tolist())
            for name in PARTS
        )
        return Split(train, valid, test)
    return None


def _numbers(path: Path) -> np.ndarray:
    """Return the rows of a CSV file of numbers without a header, with NaN for empty cells."""
    try:
        return np.genfromtxt(path, delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise GraphFolderError(f"{path}: cannot be read as numbers: {error}") from error


def starts_of(graphs: Sequence[Data]) -> NDArray[np.int_]:
    """Return the number of each graph's first node, counted over all graphs, and of all nodes."""
    return np.cumsum([0, *(int(graph.num_nodes or 0) for graph in graphs)])


KEPT = ("x", "edge_index", "edge_attr", "y", "smiles")


def plain(graph: Data) -> Data:
    """Return a graph with only features, edges, labels and SMILES, and vectors as columns."""
    from torch_geometric.data import Data  # slow to import

    copy = Data(**{name: graph[name] for name in KEPT if graph.get(name) is not None})
    for name in ("x", "edge_attr"):
        if (values := copy.get(name)) is not None and values.dim() == 1:
            copy[name] = values[:, None]
    if copy.x is None:
        copy.num_nodes = graph.num_nodes
    return copy


def digest_of(graphs: Sequence[Data]) -> str:
    """Return the SHA-256 of the features and edges of graphs as from `plain`."""
    digest = hashlib.sha256()
    for graph in graphs:
        for name in ("x", "edge_index", "edge_attr"):
            value = graph.get(name)
            if isinstance(value, torch.Tensor):
                digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
                digest.update(value.contiguous().numpy().tobytes())
    return digest.hexdigest()
