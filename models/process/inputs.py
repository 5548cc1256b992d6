"""Encode molecules for a process: which atoms each counted structure covers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from graphxai.contract.inputs import Input, InputError, each_or_error
from graphxai.datasets.as_given import Standardisation
from graphxai.datasets.graph import Graph, is_data, is_from, recall, remember, shared_by

if TYPE_CHECKING:
    from torch_geometric.data import Data


COUNTS = ("count_columns", "count_sizes", "count_atoms")  # what is added to a molecule's graph


@dataclass(frozen=True, eq=False)
class ProcessBatch:
    """B molecules of at most N atoms, and the occurrences of their counted structures.

    Args:
        x: OGB's features of the atoms (B, N, 9), which the process does not read.
        mask: True at atoms and False at padding (B, N).
        num_nodes: the number of atoms of each molecule (B,).
        atoms: the atoms that each occurrence covers, one occurrence after another, each as
            molecule * N + atom.
        first_atom: where the atoms of each occurrence begin (O,).
        columns: the column of each count of each molecule, ascending for each molecule (P,).
        first_occurrence: where the occurrences of each count begin (P,).
        bounds: where the counts of each molecule begin, and P.
    """

    x: Tensor
    mask: Tensor
    num_nodes: Tensor
    atoms: Tensor
    first_atom: Tensor
    columns: Tensor
    first_occurrence: Tensor
    bounds: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.mask)

    @property
    def size(self) -> int:
        """What a variant of the batch takes, where a network has pairs of tokens."""
        return self.mask.numel()

    def to(self, device: torch.device | str) -> ProcessBatch:
        """Return the batch with every tensor on `device`."""
        tensors: dict[str, Any] = {n: v for n, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})

    def counts(self, presence: Tensor, keep: Tensor | None) -> Tensor:
        """Return the counts (P, K) of K variants of the batch.

        An occurrence counts as much as its atoms are present on average, and not at all if one of
        them is hidden.

        Args:
            presence: how far each atom is present (K * B, N).
            keep: False where an atom is hidden (K * B, N).
        """

        def by_atom(values: Tensor) -> Tensor:
            return values.reshape(-1, self.mask.numel()).T  # (B * N, K)

        bags = self.atoms, self.first_atom
        occurrences = F.embedding_bag(bags[0], by_atom(presence), bags[1], mode="mean")  # (O, K)
        if keep is not None:
            hidden = by_atom((~keep).to(presence))
            is_whole = F.embedding_bag(bags[0], hidden, bags[1], mode="sum") == 0
            occurrences = occurrences * is_whole
        every = torch.arange(len(occurrences), device=occurrences.device)
        return F.embedding_bag(every, occurrences, self.first_occurrence, mode="sum")


def prepare_group(standardise: Standardisation, values: list[Any]) -> Iterator[Input | Exception]:
    """Encode molecules, featurising all of them together. An unusable one gives its error."""
    from graphxai.datasets.molecules import molecule_graphs

    molecules = {k: v for k, v in enumerate(values) if isinstance(v, str) or is_from("rdkit", v)}
    read = molecule_graphs(molecules.values(), canonical=True, standardise=standardise)
    graphs = dict(zip(molecules, read, strict=True))
    return each_or_error(values, lambda position, value: encoded(value, graphs.get(position)))


def encoded(value: Any, graph: Any) -> Input:
    """Encode one input, given the graph of a molecule, or its error. A graph is its own."""
    if isinstance(graph, Exception):
        raise graph
    graph = value if graph is None and (isinstance(value, Graph) or is_data(value)) else graph
    if graph is None or graph.get("smiles") is None or graph.get("vocabulary") is None:
        raise InputError(f"a process takes SMILES or RDKit molecules, not {type(value).__name__}.")
    if graph.get("count_columns") is not None:
        return Input(graph, graph.smiles, graph.get("mol"))
    content = dict(vars(graph)) if isinstance(graph, Graph) else graph.to_dict()
    as_given = content.pop("as_given", None)  # what lies on a graph must be alike on all
    encoded_graph = Graph(**content)
    encoded_graph.shared = shared_by(graph)
    if not recall(encoded_graph, "counts"):
        mol = graph.get("read") or read_again(graph.get("mol") or graph.smiles)
        vars(encoded_graph).update(counts_of(mol))
        remember(encoded_graph, "counts", COUNTS)
    return Input(
        encoded_graph,
        graph.smiles,
        graph.get("mol"),
        as_given=as_given,
        read=graph.get("read"),
    )


def counts_of(mol: Any) -> dict[str, Tensor]:
    """Return the counts of the structures of a molecule, by their names on a graph."""
    from graphxai.datasets.fingerprints import structure_occurrences

    return dict(zip(COUNTS, map(torch.from_numpy, structure_occurrences(mol)), strict=True))


def read_again(molecule: Any) -> Any:
    """Return the canonical form of a SMILES or RDKit molecule that has been read before."""
    from graphxai.datasets.molecule_reading import read_molecules
    from graphxai.datasets.molecules import MAX_ATOMS

    (read,) = read_molecules([molecule], MAX_ATOMS, canonical=True)
    if isinstance(read, Exception):
        raise read
    return read.form


def collate(graphs: Sequence[Data | Graph], pad_to: int | None = None) -> ProcessBatch:
    """Collate encoded molecules into one batch, padded to at least `pad_to` atoms."""
    if not graphs:
        raise ValueError("cannot make a batch of no graphs.")
    num_nodes = torch.tensor([int(graph.num_nodes or 0) for graph in graphs])
    n = max(int(num_nodes.max()), pad_to or 0)
    x = F.pad(pad_sequence([graph.x for graph in graphs], batch_first=True), (0, 0, 0, n))[:, :n]
    sizes = torch.cat([graph.count_sizes for graph in graphs])
    columns, occurrences, bounds = [], [], [0]
    for graph in graphs:
        each, times = graph.count_columns.unique_consecutive(return_counts=True)
        columns.append(each)
        occurrences.append(times)
        bounds.append(bounds[-1] + len(each))
    return ProcessBatch(
        x=x,
        mask=torch.arange(n) < num_nodes[:, None],
        num_nodes=num_nodes,
        atoms=torch.cat([graph.count_atoms + row * n for row, graph in enumerate(graphs)]),
        first_atom=sizes.cumsum(0) - sizes,
        columns=torch.cat(columns),
        first_occurrence=(times := torch.cat(occurrences)).cumsum(0) - times,
        bounds=tuple(bounds),
    )


def renumbered(graphs: Sequence[Data], orders: Sequence[Tensor]) -> list[Data]:
    """Reorder atoms so that atom k is atom `order[k]`."""
    moved = []
    for graph, order in zip(graphs, orders, strict=True):
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        copy = graph.clone()
        copy.x, copy.edge_index = graph.x[order], place[graph.edge_index]
        copy.count_atoms = place[graph.count_atoms]
        moved.append(copy)
    return moved
