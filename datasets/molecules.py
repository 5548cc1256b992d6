"""Make molecular graphs of SMILES, RDKit molecules, tables and MoleculeNet's BACE."""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import tee
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import torch
from rdkit import Chem

from graphxai.runtime.download import ROOT_ARGUMENT, data_root, fetch
from graphxai.runtime.workers import checked_workers

from .as_given import AS_DRAWN, Isomers, Standardisation
from .features import MAX_ATOMS as MAX_ATOMS
from .features import Featurised, featurise, featurise_in_workers
from .graph import Graph, shared_by
from .labels import is_missing
from .molecule_reading import MoleculeError as MoleculeError
from .molecule_reading import shortened
from .tables.table import open_table

if TYPE_CHECKING:
    from torch_geometric.data import Data

BACE_URL = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets/bace.csv"
BACE_MD5 = "ba7f8fa3fdf463a811fa7edea8c982c2"
BACE_LABELS = ("Class", "pIC50")

# The graphs that were read so far, by the way of reading and SMILES, see `read_once`.
_READ: ContextVar[dict[Any, Any] | None] = ContextVar("_READ", default=None)

MOST_KEPT = 1024  # graphs that a block of `read_once` keeps, more than a part of a table has
SHARED_ATOMS = 64  # of the largest molecule whose structure is kept, too, which takes 200 kB
MAX_QUOTED = 1000  # characters of a refused cell that are kept


class MoleculeReading(TypedDict, total=False):
    """How molecules are read, see `molecule_to_data`."""

    max_atoms: int
    canonical: bool
    standardise: Standardisation
    isomers: Isomers


@dataclass(frozen=True)
class RejectedRow:
    """A row of a table that was left out, and why. The first row after the header is row 1."""

    row: int
    smiles: str
    reason: str

    def __str__(self) -> str:
        return f"row {self.row}: {self.reason}"


def molecule_to_data(
    molecule: str | Chem.Mol,
    *,
    max_atoms: int = MAX_ATOMS,
    canonical: bool = False,
    standardise: Standardisation = AS_DRAWN,
) -> Data:
    """Make the graph of a molecule, whose nodes are the atoms in the order of the input.

    Hydrogens are nodes only if they are explicit atoms in the input. Salts stay whole unless they
    are standardised: their parts are not connected.

    Args:
        molecule: a SMILES string or an RDKit molecule.
        max_atoms: the largest number of atoms accepted.
        canonical: whether to take chirality from the canonical SMILES, so that every SMILES of a
            molecule gives the same features (see `canonical_chirality`). If not, the features are
            exactly OGB's.
        standardise: "parent" makes the graph of the molecule without counter-ions and solvents,
            neutral where it can be. "tautomers" also takes its canonical tautomer. The graph of a
            molecule that this changes has the atoms in the order of its own `smiles`, and
            `as_given` leads back to the molecule given (see `datasets.as_given.AsGiven`).

    Returns:
        `x` (N, 9) and `edge_attr` (E, 3), OGB's codes (see `graphxai.datasets.features`);
        `edge_index` (2, E), both directions of every bond; `vocabulary` "ogb", the source of the
        codes; `smiles`, the string given. For an RDKit molecule, `smiles` is its canonical SMILES,
        and `mol` keeps the order of the atoms.

    Raises:
        MoleculeError: the molecule cannot be read, has no atoms, has more than `max_atoms`, or is a
            mixture of compounds that has no parent.
    """
    reading = MoleculeReading(max_atoms=max_atoms, canonical=canonical, standardise=standardise)
    return _data(molecule_graph(molecule, **reading))


def molecule_graph(molecule: str | Chem.Mol, **reading: Unpack[MoleculeReading]) -> Graph:
    """Make the graph of a molecule as `molecule_to_data` does, without PyG."""
    (graph,) = molecule_graphs([molecule], **reading)
    if isinstance(graph, MoleculeError):
        raise graph
    return graph


def molecule_graphs(
    molecules: Iterable[str | Chem.Mol], *, workers: int = 1, **reading: Unpack[MoleculeReading]
) -> Generator[Graph | MoleculeError, None, None]:
    """Make the graphs of many molecules as `molecules_to_data` does, without PyG.

    Args:
        molecules, workers: as for `molecules_to_data`.
        reading: as for `molecule_to_data`.
    """
    if workers == 1:
        read = _READ.get()
        if read is None:
            yield from map(_graph, featurise(molecules, **reading))
        else:
            yield from _read_once(read, molecules, reading)
        return
    with closing(featurise_in_workers(molecules, workers, **reading)) as featurised:
        yield from map(_graph, featurised)


@contextmanager
def read_once() -> Iterator[None]:
    """Within the block, read each SMILES once for all models that read it in the same way."""
    token = _READ.set({})
    try:
        yield
    finally:
        _READ.reset(token)


def _read_once(
    read: dict[Any, Graph | MoleculeError], molecules: Iterable[str | Chem.Mol], reading: Any
) -> Iterator[Graph | MoleculeError]:
    """Yield copies of the graphs that were read, to which every model adds what it needs."""
    given, ways = list(molecules), {"isomers": "one"} | reading
    # without groups, which "|" begins, no SMILES stands for several isomers
    plain = ways | ({"isomers": "one"} if ways["isomers"] == "groups" else {})
    way, plain_way = (tuple(sorted(each.items())) for each in (ways, plain))
    # only plain text says all of a molecule
    keys = [
        (way if "|" in each else plain_way, each) if type(each) is str else (way, id(each), k)
        for k, each in enumerate(given)
    ]
    missing = {key: each for key, each in zip(keys, given, strict=True) if key not in read}
    made = dict(zip(missing, map(_graph, featurise(missing.values(), **reading)), strict=True))
    if len(read) < MOST_KEPT:
        read |= {key: graph for key, graph in made.items() if type(missing[key]) is str}
        for key, graph in made.items():
            if key in read and isinstance(graph, Graph) and len(graph.x) <= SHARED_ATOMS:
                graph.shared = {}
    for key in keys:
        graph = made[key] if key in made else read[key]
        if isinstance(graph, Graph):
            graph, original = Graph(**vars(graph)), graph
            graph.read = original.read
            graph.shared = shared_by(original)
        yield graph


def molecules_to_data(
    molecules: Iterable[str | Chem.Mol], *, workers: int = 1, **reading: Unpack[MoleculeReading]
) -> Generator[Data | MoleculeError, None, None]:
    """Make the graphs of many molecules one by one, as `molecule_to_data` does, but faster.

    A molecule that cannot become a graph gives its error instead. Up to 32 molecules are taken
    from the source before the first graph comes out; with workers, up to 384 for each.

    Args:
        molecules: SMILES strings or RDKit molecules.
        reading: as for `molecule_to_data`.
        workers: 1, or the number of extra processes that read and featurise SMILES, with the same
            result. It takes a few thousand molecules to make up for their start. RDKit molecules
            are featurised in this process. The workers import neither the script nor torch, so
            the script needs no guard ``if __name__ == "__main__":``. They end with the generator,
            also if it is closed or abandoned early. A worker that dies is replaced, and a SMILES
            that ends its worker twice gives an error.

    Raises:
        ValueError: `workers` is not a whole number of at least 1.
    """
    workers = checked_workers(workers)
    return _as_data(molecule_graphs(molecules, workers=workers, **reading))


def require_graphs(
    molecules: Iterable[str | Chem.Mol], **reading: Unpack[MoleculeReading]
) -> list[Data]:
    """Make the graphs of molecules as `molecules_to_data` does, and fail on the first bad one.

    Raises:
        MoleculeError: the error of the first molecule that cannot become a graph.
    """
    graphs: list[Data] = []
    for data in molecules_to_data(molecules, **reading):
        if isinstance(data, MoleculeError):
            raise data
        graphs.append(data)
    return graphs


def iter_table(
    path: str | os.PathLike[str],
    smiles_column: str | None = None,
    label_columns: Sequence[str] = (),
    *,
    workers: int = 1,
    **reading: Unpack[MoleculeReading],
) -> Iterator[Data | RejectedRow]:
    """Read the rows of a table one by one, as graphs or rejected rows, in the file's order.

    Each graph has `row` (the first row after the header is 1) and, with `label_columns`, `y`
    (1, labels), float32, NaN where the cell is empty or says NA. `datasets.tables` reads the file:
    CSV in any usual dialect, a list of SMILES, an SD file, a workbook or Parquet. Without a
    `smiles_column`, the structures are in the column with a usual name, or in the only one whose
    cells can be read as SMILES. A rejected row keeps at most 1,000 characters of its SMILES.

    `reading` is as for `molecule_to_data`, and `workers` as for `molecules_to_data`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no table, a column is missing (the message lists the existing ones), a
            quote is not closed, or `workers` is not a whole number of at least 1.
    """
    table = open_table(path, smiles_column)
    structures = table.structures.name
    records, again = tee(table.records((structures, *label_columns)))
    texts = (record.cells[structures] for record in again)
    graphs = molecule_graphs(texts, workers=checked_workers(workers), **reading)
    with closing(graphs):
        for graph, (number, cells, problem) in zip(graphs, records, strict=True):
            try:
                if problem:
                    raise MoleculeError(problem)
                if isinstance(graph, MoleculeError):
                    raise graph
                if label_columns:
                    values = [_number(name, cells[name]) for name in label_columns]
                    graph.y = torch.tensor([values], dtype=torch.float32)
            except MoleculeError as error:
                yield RejectedRow(number, shortened(cells[structures], MAX_QUOTED), str(error))
                continue
            graph.row = number
            yield _data(graph)


def read_table(
    path: str | os.PathLike[str],
    smiles_column: str | None = None,
    label_columns: Sequence[str] = (),
    *,
    workers: int = 1,
    **reading: Unpack[MoleculeReading],
) -> tuple[list[Data], list[RejectedRow]]:
    """Read all rows of a table as `iter_table` does, into graphs and rows that were left out."""
    graphs: list[Data] = []
    rejected: list[RejectedRow] = []
    for item in iter_table(path, smiles_column, label_columns, workers=workers, **reading):
        if isinstance(item, RejectedRow):
            rejected.append(item)
        else:
            graphs.append(item)
    return graphs, rejected


def load_bace(
    root: str | os.PathLike[str] | None = None,
    download: bool = True,
    *,
    canonical: bool = False,
    standardise: Standardisation = AS_DRAWN,
) -> list[Data]:
    """Load MoleculeNet's BACE (Subramanian 2016, Wu 2018), 1,513 inhibitors of beta-secretase 1.

    Each graph has `y` (1, 2): its class, which is 1 (active) for a pIC50 of 7 or above, and its
    pIC50. The file is where `torch_geometric.datasets.MoleculeNet(root, "BACE")` puts it,
    `root/bace/raw/bace.csv`.

    Args:
        root: data folder; None means `$GRAPHXAI_DATA`, else `~/.cache/graphxai`.
        download: fetch the official file if it is missing.
        canonical, standardise: as for `molecule_to_data`.

    Raises:
        DownloadError: the file cannot be downloaded, or the one there is not the official one.
        FileNotFoundError: the file is missing and `download` is False.
    """
    path = data_root(root) / "bace" / "raw" / "bace.csv"
    if not download and not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: allow the download, put the file from {BACE_URL} there, or "
            f"give the folder that contains bace/raw/bace.csv ({ROOT_ARGUMENT} or GRAPHXAI_DATA)."
        )
    fetch(BACE_URL, path, md5=BACE_MD5)
    reading: MoleculeReading = {"canonical": canonical, "standardise": standardise}
    graphs, rejected = read_table(path, "mol", BACE_LABELS, **reading)
    if rejected:
        raise MoleculeError(f"{path}, {rejected[0]}")
    for graph in graphs:
        graph.pop("as_given", None)  # PyG puts only graphs with the same attributes into a batch
    return graphs


def _as_data(
    graphs: Generator[Graph | MoleculeError, None, None],
) -> Generator[Data | MoleculeError, None, None]:
    """Yield the graphs as PyG's `Data`, and everything else unchanged."""
    with closing(graphs):
        for graph in graphs:
            yield _data(graph) if isinstance(graph, Graph) else graph


def _data(graph: Graph) -> Data:
    """Return PyG's `Data`, with `as_given` only if the molecule was changed.

    PyG puts only graphs with the same attributes into a batch.
    """
    as_given = graph.get("as_given")
    if as_given is not None and as_given.smiles == graph.smiles:
        del graph.as_given
    return graph.to_data()


def _graph(featurised: Featurised | MoleculeError) -> Graph | MoleculeError:
    """Return the graph of a featurised molecule, or the error in its place."""
    if isinstance(featurised, MoleculeError):
        return featurised
    text, mol, *arrays, as_given, read, isomers = featurised
    x, edge_index, edge_attr = map(torch.from_numpy, arrays)
    graph = Graph(x=x, edge_index=edge_index, edge_attr=edge_attr, smiles=text, vocabulary="ogb")
    if mol is not None:
        graph.mol = mol
    if as_given is not None:
        graph.as_given = as_given
    graph.read = read
    if isomers:
        graph.isomers = tuple(map(_graph, isomers))
    return graph


def _number(column: str, cell: str | None) -> float:
    """Return the number in a cell, or NaN if nothing was measured. Words raise a MoleculeError."""
    text = (cell or "").strip()
    if is_missing(text):
        return math.nan
    try:
        return float(text)
    except ValueError:
        raise MoleculeError(
            f"column {column!r} has {shortened(text)!r}, which is not a number: leave the cell"
            " empty if the value was not measured."
        ) from None
