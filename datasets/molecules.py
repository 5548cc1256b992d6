"""Molecules as graphs: from SMILES, RDKit molecules, CSV tables and MoleculeNet's BACE."""

from __future__ import annotations

import codecs
import csv
import math
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, tee
from pathlib import Path

import torch
from rdkit import Chem
from torch_geometric.data import Data

from .download import data_root, fetch
from .featurising import TURN, Featurised, featurise
from .featurising_workers import checked_workers, featurise_in_workers
from .molecule_reading import MoleculeError

__all__ = [
    "BACE_LABELS",
    "BACE_MD5",
    "BACE_URL",
    "MoleculeError",
    "RejectedRow",
    "iter_table",
    "load_bace",
    "molecule_to_data",
    "molecules_to_data",
    "read_table",
    "require_graphs",
]

BACE_URL = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets/bace.csv"
BACE_MD5 = "ba7f8fa3fdf463a811fa7edea8c982c2"
BACE_LABELS = ("Class", "pIC50")

MAX_CELL = 1 << 24  # characters
csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL))

_MISSING = {"", "na", "n/a", "nan", "none", "null"}


@dataclass(frozen=True)
class RejectedRow:
    """A row of a table that was left out: its number (the first after the header is 1) and why."""

    row: int
    smiles: str
    reason: str

    def __str__(self) -> str:
        return f"row {self.row}: {self.reason}"


def molecule_to_data(
    molecule: str | Chem.Mol, *, max_atoms: int = 500, canonical: bool = False
) -> Data:
    """The graph of a molecule; its nodes are the atoms in the order of the input.

    Hydrogens are nodes only where the input names them as atoms. Salts stay whole: their parts
    are not connected.

    Args:
        molecule: a SMILES string or an RDKit molecule.
        max_atoms: the largest number of atoms accepted.
        canonical: chirality as in the canonical SMILES, so that every way to write a molecule
            gives the same features (see `canonical_chirality`); otherwise exactly OGB's.

    Returns:
        `x` (N, 9) and `edge_attr` (E, 3), OGB's codes (see `graphxai.datasets.features`);
        `edge_index` (2, E), both directions of every bond; `vocabulary` "ogb", which says whose
        codes these are; `smiles`, the string given or, for an
        RDKit molecule, its canonical SMILES, beside which `mol` keeps the order of the atoms.

    Raises:
        MoleculeError: not readable, no atoms, or more than `max_atoms`.
    """
    (data,) = map(_graph, featurise([molecule], max_atoms, canonical))
    if isinstance(data, MoleculeError):
        raise data
    return data


def molecules_to_data(
    molecules: Iterable[str | Chem.Mol],
    *,
    max_atoms: int = 500,
    canonical: bool = False,
    workers: int = 1,
) -> Generator[Data | MoleculeError, None, None]:
    """The graphs of many molecules one by one, each as from `molecule_to_data`, in less time.

    In place of a molecule that cannot become a graph comes its error. Up to 31 molecules are taken
    from the source before the graph of the first one comes, with workers up to 384 for each.

    Args:
        molecules: SMILES strings or RDKit molecules.
        max_atoms: as for `molecule_to_data`.
        canonical: as for `molecule_to_data`.
        workers: 1, or how many further processes read and featurise SMILES; the result is the
            same. They need a few thousand molecules to make up for their start. RDKit molecules
            are featurised in this process. The processes import neither the script nor torch, so
            the script needs no guard ``if __name__ == "__main__":``; they end with the generator,
            also where it is closed or left early.

    Raises:
        ValueError: `workers` is no number from 1 up.
        RuntimeError: a process ended before its time, such as one that is killed for want of
            memory.
    """
    if checked_workers(workers) == 1:
        return _graphs(molecules, max_atoms, canonical)
    return _graphs_from_workers(molecules, max_atoms, canonical, workers)


def require_graphs(
    molecules: Iterable[str | Chem.Mol], *, max_atoms: int = 500, canonical: bool = False
) -> list[Data]:
    """The graphs of molecules that must all become one, as from `molecules_to_data`.

    Raises:
        MoleculeError: of the first molecule that cannot.
    """
    graphs: list[Data] = []
    for data in molecules_to_data(molecules, max_atoms=max_atoms, canonical=canonical):
        if isinstance(data, MoleculeError):
            raise data
        graphs.append(data)
    return graphs


def iter_table(
    path: str | os.PathLike[str],
    smiles_column: str = "smiles",
    label_columns: Sequence[str] = (),
    *,
    max_atoms: int = 500,
    canonical: bool = False,
    workers: int = 1,
) -> Iterator[Data | RejectedRow]:
    """The rows of a CSV file one by one, as graphs or as rejected rows, in the file's order.

    Each graph has `row` (the first row after the header is 1) and, with `label_columns`, `y`
    (1, labels), float32, NaN where the cell is empty or says NA. Byte-order marks, Windows line
    ends, and semicolons or tabs as separators are understood.

    `max_atoms` and `canonical` are as for `molecule_to_data`, `workers` is as for
    `molecules_to_data`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a column is missing (the message lists those there), a quote is not closed, or
            `workers` is no number from 1 up.
    """
    records, again = tee(iter_records(path, (smiles_column, *label_columns)))
    texts = (record[smiles_column] for _, record in again)
    graphs = molecules_to_data(texts, max_atoms=max_atoms, canonical=canonical, workers=workers)
    with closing(graphs):
        for data, (number, record) in zip(graphs, records, strict=True):
            try:
                if isinstance(data, MoleculeError):
                    raise data
                if label_columns:
                    values = [_number(name, record[name]) for name in label_columns]
                    data.y = torch.tensor([values], dtype=torch.float32)
            except MoleculeError as error:
                yield RejectedRow(number, record[smiles_column], str(error))
                continue
            data.row = number
            yield data


def iter_records(
    path: str | os.PathLike[str], columns: Sequence[str]
) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file one by one: number (the first after the header is 1), cells by column.

    The first of `columns` tells the separator. A missing cell is empty. Encoding, line ends and
    errors are those of `iter_table`.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file.")
    with path.open(encoding=_encoding(path), errors="replace", newline="") as file:
        header = file.readline()
        file.seek(0)
        lines = _Lines(file)
        reader = csv.reader(lines, delimiter=_delimiter(header, columns[0]))
        named = [name.strip() for name in next(reader, [])]
        lines.of_row.clear()
        for wanted in columns:
            if wanted not in named:
                there = ", ".join(repr(name) for name in named) or "none: the file is empty"
                raise ValueError(f"{path} has no column {wanted!r}; its columns: {there}.")
            if named.count(wanted) > 1:
                raise ValueError(f"{path} has the column {wanted!r} more than once.")
        for number, cells in enumerate(_records(lines, reader, path), start=1):
            record = dict(zip(named, cells, strict=False))
            yield number, {name: record.get(name, "").strip() for name in columns}


def read_table(
    path: str | os.PathLike[str],
    smiles_column: str = "smiles",
    label_columns: Sequence[str] = (),
    *,
    max_atoms: int = 500,
    canonical: bool = False,
    workers: int = 1,
) -> tuple[list[Data], list[RejectedRow]]:
    """All rows of a CSV file: the graphs, and the rows left out. See `iter_table`."""
    graphs: list[Data] = []
    rejected: list[RejectedRow] = []
    for item in iter_table(
        path,
        smiles_column,
        label_columns,
        max_atoms=max_atoms,
        canonical=canonical,
        workers=workers,
    ):
        if isinstance(item, RejectedRow):
            rejected.append(item)
        else:
            graphs.append(item)
    return graphs, rejected


def load_bace(
    root: str | os.PathLike[str] | None = None, download: bool = True, *, canonical: bool = False
) -> list[Data]:
    """MoleculeNet's BACE (Subramanian 2016, Wu 2018): 1,513 inhibitors of beta-secretase 1.

    Each graph has `y` (1, 2): class (1 active: pIC50 of 7 or above) and pIC50. The file lies
    where `torch_geometric.datasets.MoleculeNet(root, "BACE")` puts it: `root/bace/raw/bace.csv`.

    Args:
        root: folder of the data sets; None means `$GRAPHXAI_DATA`, else `~/.cache/graphxai`.
        download: fetch the official file where it is missing.
        canonical: as for `molecule_to_data`.

    Raises:
        DownloadError: it cannot be downloaded, or the file there is not the official one.
        FileNotFoundError: it is not there and `download` is False.
    """
    path = data_root(root) / "bace" / "raw" / "bace.csv"
    if not download and not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: allow the download, put the file of {BACE_URL} there, or "
            "name the folder that holds bace/raw/bace.csv (root=... or GRAPHXAI_DATA)."
        )
    fetch(BACE_URL, path, md5=BACE_MD5)
    graphs, rejected = read_table(path, "mol", BACE_LABELS, canonical=canonical)
    if rejected:
        raise MoleculeError(f"{path}, {rejected[0]}")
    return graphs


def _graphs(
    molecules: Iterable[str | Chem.Mol], max_atoms: int, canonical: bool
) -> Generator[Data | MoleculeError, None, None]:
    """In turns of so many molecules as take least time."""
    remaining = iter(molecules)
    while group := list(islice(remaining, TURN)):
        yield from [_graph(one) for one in featurise(group, max_atoms, canonical)]


def _graphs_from_workers(
    molecules: Iterable[str | Chem.Mol], max_atoms: int, canonical: bool, workers: int
) -> Generator[Data | MoleculeError, None, None]:
    with closing(featurise_in_workers(molecules, max_atoms, canonical, workers)) as found:
        for one in found:
            yield _graph(one)


def _graph(found: Featurised | MoleculeError) -> Data | MoleculeError:
    if isinstance(found, MoleculeError):
        return found
    text, mol, *arrays = found
    data = Data()  # keys are set four times faster than the constructor sets attributes
    data["x"], data["edge_index"], data["edge_attr"] = map(torch.from_numpy, arrays)
    data["smiles"], data["vocabulary"] = text, "ogb"
    if mol is not None:
        data.mol = mol
    return data


def _number(column: str, cell: str | None) -> float:
    text = (cell or "").strip()
    if text.lower() in _MISSING:
        return math.nan
    try:
        return float(text)
    except ValueError:
        raise MoleculeError(
            f"column {column!r} holds {text!r}, which is no number: leave the cell empty if it "
            "was not measured."
        ) from None


class _Lines:
    """Lines of a file, of which those since the last row are kept."""

    def __init__(self, file: Iterable[str]) -> None:
        self._file = iter(file)
        self.of_row: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._file)
        self.of_row.append(line)
        return line


def _records(lines: _Lines, reader: Iterator[list[str]], path: Path) -> Iterator[list[str]]:
    """Rows that hold anything; a ValueError that names the place for what is no CSV."""
    number, last = 1, ""
    try:
        for cells in reader:
            last = "".join(lines.of_row)
            lines.of_row.clear()
            number += last.count("\n")
            if cells:
                yield cells
    except csv.Error as error:
        raise ValueError(f"{path}: cannot be read after line {number}: {error}.") from error
    # A quote that is never closed swallows the rest of the file as one cell, without an error.
    if '"' in last and "\n" in last.rstrip():
        try:
            list(csv.reader([last], strict=True))
        except csv.Error:
            line = number - last.count("\n") + 1
            raise ValueError(f"{path}: a quote opened in line {line} is never closed.") from None


def _encoding(path: Path) -> str:
    """UTF-8, or UTF-16 where the file begins with its mark (Excel's "Unicode text")."""
    with path.open("rb") as file:
        mark = file.read(2)
    return "utf-16" if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def _delimiter(header: str, smiles_column: str) -> str:
    """The separator that makes the column one of the header's; without it, most columns."""
    found = {d: next(csv.reader([header], delimiter=d), []) for d in ",;\t"}
    for delimiter, names in found.items():
        if smiles_column in [name.strip() for name in names]:
            return delimiter
    return max(found, key=lambda delimiter: len(found[delimiter]))
