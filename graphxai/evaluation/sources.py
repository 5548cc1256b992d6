"""Find the graphs for a benchmark with their labels, in a test set by name or in a table."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from graphxai.contract.tasks import Task
from graphxai.datasets.cell_numbers import parsed_numbers
from graphxai.datasets.graph_folders import digest_of, load_graphs, plain, starts_of
from graphxai.datasets.molecule_reading import MoleculeError
from graphxai.datasets.molecules import load_bace, molecule_to_data
from graphxai.datasets.open_graph_benchmark import load_ogb
from graphxai.datasets.tables.table import open_table
from graphxai.explanation.compute.models import Model
from graphxai.runtime.extras import is_ogb_name
from graphxai.wrapping.chosen import mark_explained

from .store import Key


@dataclass(frozen=True)
class BenchmarkSource:
    """The graphs of a benchmark, their labels and the true nodes of some, by key."""

    title: str
    inputs: Mapping[Key, Any]
    labels: Mapping[Key, Any] = field(default_factory=dict)
    truths: Mapping[Key, Any] = field(default_factory=dict)

    def sample(self, limit: int | None, seed: int = 0) -> "BenchmarkSource":
        """Return at most `limit` graphs, drawn with the seed, in their original order."""
        if limit is None or limit >= len(self.inputs):
            return self
        if limit < 1:
            raise ValueError(f"a benchmark needs at least one graph, not {limit}.")
        keys = list(self.inputs)
        chosen = set(random.Random(seed).sample(range(len(keys)), limit))
        kept = {key: self.inputs[key] for k, key in enumerate(keys) if k in chosen}
        return replace(self, inputs=kept)

    def labelled(self) -> "BenchmarkSource":
        """Return the graphs that have a label."""
        kept = {key: value for key, value in self.inputs.items() if key in self.labels}
        return replace(self, inputs=kept)


def bace_part(model: Model, part: str = "test", root: str | Path | None = None) -> BenchmarkSource:
    """Return the BACE compounds in a part of the model's split, by their positions in the file.

    Args:
        model: the model whose metadata hold the split.
        part: "train", "valid" or "test".
    """
    split = model.origin.metadata.get("split")
    chosen = split.get(part) if isinstance(split, dict) else None
    graphs = load_bace(root)
    if not isinstance(chosen, list) or not all(
        isinstance(k, int) and 0 <= k < len(graphs) for k in chosen
    ):
        raise ValueError(
            f"{model.origin.name!r} does not record which BACE compounds are its {part} set; give a"
            " table of compounds instead."
        )
    inputs: dict[Key, Any] = {k: graphs[k].smiles for k in chosen}
    labels: dict[Key, Any] = {k: int(graphs[k].y[0, 0]) for k in chosen}
    return BenchmarkSource(f"BACE, {part} part of the model's split", inputs, labels)


def ogb_part(
    model: Model,
    name: str,
    part: Literal["train", "valid", "test"] = "test",
    root: str | Path | None = None,
    task: str | None = None,
) -> BenchmarkSource:
    """Return the molecules in a part of the official split of a data set of OGB, by position.

    Args:
        name: such as "ogbg-molbace".
        task: the task of the model that the labels are for, by default its first. The data set must
            have it, or a single task.

    Raises ValueError if there is no such data set, or it does not have the task.
    """
    dataset = load_ogb(name, root)
    chosen, _ = model.config.task_columns(task or model.config.tasks[0].name)
    if len(dataset.tasks) > 1 and chosen.name not in dataset.tasks:
        raise ValueError(
            f"{name} has no task {chosen.name!r} of model {model.origin.name!r}; its tasks are"
            f" {', '.join(dataset.tasks)}."
        )
    column = dataset.tasks.index(chosen.name) if chosen.name in dataset.tasks else 0
    positions = dataset.positions(part)
    labels: dict[Key, Any] = {}
    if chosen.classes and dataset.kind == "classification":
        values = dataset.labels[positions, column].tolist()
        labels = {k: int(v) for k, v in zip(positions, values, strict=True) if not math.isnan(v)}
    inputs: dict[Key, Any] = {k: dataset.smiles[k] for k in positions}
    return BenchmarkSource(f"{name}, {part} part of the official split", inputs, labels)


def mnist_part(
    part: Literal["train", "test"] = "test", root: str | Path | None = None
) -> BenchmarkSource:
    """Return the 60,000 official training images of MNIST, or its 10,000 test images."""
    from graphxai.datasets.mnist import load_mnist  # needs scikit-image

    images, labels = load_mnist(root, part)
    title = f"MNIST, official {'test' if part == 'test' else 'training'} set"
    return BenchmarkSource(title, dict(enumerate(images)), dict(enumerate(labels.tolist())))


def graph_part(
    model: Model, part: str, folder: str | Path, truths: str | None = None
) -> BenchmarkSource:
    """Return the graphs of a folder by their positions, with labels for the first task.

    If the model was trained on these graphs, only those in a part of its split are returned. For a
    model of nodes, each node is an input, with the key "graph/node".

    Args:
        model: the model whose metadata hold the split.
        part: "train", "valid" or "test".
        folder: see `graphxai.datasets.graph_folders`.
        truths: the attribute of a graph that is true at its true nodes (N,), if there is one.

    Raises ValueError if there is no such attribute, or single nodes are explained.
    """
    as_stored = load_graphs(folder).graphs
    graphs = [plain(graph) for graph in as_stored]
    metadata = model.origin.metadata
    split, name = metadata.get("split"), Path(folder).name
    level = getattr(model.config, "level", "graph")  # wrapped models have none
    chosen, title = None, f"{name}, all {level}s"
    if isinstance(split, dict) and metadata.get("sha256") == digest_of(graphs):
        chosen = list(map(int, split[part]))
        title = f"{name}, {part} part of the model's split"
    if level == "node":
        if truths:
            raise ValueError("truths are for models that answer for graphs, not for nodes.")
        return _node_part(model, graphs, chosen, title)
    chosen = list(range(len(graphs))) if chosen is None else chosen
    inputs: dict[Key, Any] = {k: graphs[k] for k in chosen}
    labels: dict[Key, Any] = {}
    if model.config.tasks[0].classes:
        first = {k: float(graphs[k].y.reshape(-1)[0]) for k in chosen if graphs[k].y is not None}
        labels = {k: int(label) for k, label in first.items() if not math.isnan(label)}
    return BenchmarkSource(title, inputs, labels, _true_nodes(as_stored, chosen, truths, name))


def _true_nodes(
    graphs: Sequence[Any], chosen: Sequence[int], attribute: str | None, folder: str
) -> dict[Key, Any]:
    """Return the true nodes (N,) of the graphs that have this attribute."""
    if attribute is None:
        return {}
    truths: dict[Key, Any] = {
        k: np.asarray(graphs[k][attribute], dtype=bool).reshape(-1)
        for k in chosen
        if attribute in graphs[k]
    }
    if not truths:
        raise ValueError(f"no graph of {folder} has an attribute {attribute!r} with true nodes.")
    return truths


def _node_part(
    model: Model, graphs: list[Any], chosen: list[int] | None, title: str
) -> BenchmarkSource:
    """Return all nodes, or those of the chosen numbers, as inputs. Each graph is encoded once."""
    starts = starts_of(graphs)
    numbers = np.arange(starts[-1]) if chosen is None else np.array(chosen, dtype=int)
    owners = np.searchsorted(starts, numbers, side="right") - 1
    encoded = {k: model.prepare(graphs[k]).data for k in dict.fromkeys(owners.tolist())}
    inputs: dict[Key, Any] = {}
    labels: dict[Key, Any] = {}
    for k, node in zip(owners.tolist(), (numbers - starts[owners]).tolist(), strict=True):
        key = f"{k}/{node}"
        inputs[key] = mark_explained(encoded[k], node)
        y = graphs[k].y
        if model.config.tasks[0].classes and y is not None:
            label = float(y.reshape(len(y), -1)[node, 0])
            labels |= {} if math.isnan(label) else {key: int(label)}
    return BenchmarkSource(title, inputs, labels)


def table(
    path: str | Path,
    smiles_column: str | None = None,
    label_column: str | None = None,
    tasks: Sequence[Task] = (),
    truths: str | None = None,
) -> BenchmarkSource:
    """Return the molecules of a table by row number, with labels from a column.

    Labels are those of one of the `tasks`, see `Table.measured`. A bound is no label. The column
    `truths` lists the numbers of the true atoms, counted from 0 and separated by spaces.

    Raises:
        ValueError: a column is not in the table. The message names it.
    """
    inputs: dict[Key, Any] = {}
    labels: Mapping[Key, Any] = {}
    opened = open_table(path, smiles_column)
    structures = opened.structures.name
    true_atoms: dict[Key, Any] = {}
    for row, cells, problem in opened.records((structures, *filter(None, [truths]))):
        inputs[row] = MoleculeError(problem) if problem else cells[structures]
        if truths and not problem and cells[truths].strip():
            true_atoms[row] = _listed_atoms(cells[structures], cells[truths], row)
    if label_column:
        records, plain = opened.measured(label_column, [task.name for task in tasks])
        bounds = {bound.position for bound in parsed_numbers(plain.cells).bounds}
        numbered = enumerate(zip(records, plain.cells, strict=True))
        labels = {r.number: _label(c) for k, (r, c) in numbered if c and k not in bounds}
    return BenchmarkSource(Path(path).name, inputs, labels, true_atoms)


def _listed_atoms(smiles: str, cell: str, row: int) -> Any:
    """Return whether each atom (N,) is among those that a cell lists."""
    try:
        count = int(molecule_to_data(smiles).num_nodes or 0)
    except MoleculeError:  # the row is rejected with its reason
        return np.zeros(0, dtype=bool)
    numbers = cell.replace(",", " ").split()
    if not all(n.isdecimal() and int(n) < count for n in numbers):
        raise ValueError(
            f"row {row}: {cell!r} does not list true atoms: write numbers from 0 to {count - 1},"
            " separated by spaces."
        )
    return np.isin(np.arange(count), [int(n) for n in numbers])


def _label(cell: str) -> Any:
    """Return a cell as the name of a class, or its number as a float."""
    try:
        return float(cell)
    except ValueError:
        return cell


def source(
    model: Model,
    name: str,
    part: Literal["train", "test"] = "test",
    *,
    data: str | Path | None = None,
    smiles_column: str | None = None,
    label_column: str | None = None,
    task: str | None = None,
    truths: str | None = None,
) -> BenchmarkSource:
    """Return the source called `name`: "bace", "mnist-superpixels", a data set of OGB, or a path.

    A path leads to a table of molecules, which has no parts, or to a folder of graphs (see
    `graph_part`).

    Args:
        data: folder of the data sets that have names.
        task: task whose labels a data set of OGB gives, by default the model's first.
        truths: the column of a table, or attribute of graphs in a folder, with the true nodes.

    Raises:
        ValueError: the model does not read such inputs.
    """
    is_folder = Path(name).is_dir()
    offered = "digits" if name == "mnist-superpixels" else "graphs" if is_folder else "molecules"
    reads = model.config.reads
    if reads != offered and not (is_folder and reads == "molecules"):
        raise ValueError(f"model {model.origin.name!r} reads {reads}, but {name!r} has none.")
    if is_folder:
        return graph_part(model, part, name, truths)
    if name == "bace":
        return bace_part(model, part, data)
    if name == "mnist-superpixels":
        return mnist_part(part, data)
    if is_ogb_name(name):
        return ogb_part(model, name, part, data, task)
    return table(name, smiles_column, label_column, model.config.tasks, truths)
