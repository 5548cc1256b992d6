"""Molecules as graphs: from SMILES, RDKit molecules, CSV tables and MoleculeNet's BACE."""

from __future__ import annotations

import codecs
import csv
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rdkit import Chem, rdBase
from torch_geometric.data import Data

from .download import data_root, fetch
from .features import ATOM_FEATURE_NAMES, atom_features, bond_features, canonical_chirality

__all__ = [
    "BACE_LABELS",
    "BACE_MD5",
    "BACE_URL",
    "MoleculeError",
    "RejectedRow",
    "iter_table",
    "load_bace",
    "molecule_to_data",
    "read_table",
]

BACE_URL = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets/bace.csv"
BACE_MD5 = "ba7f8fa3fdf463a811fa7edea8c982c2"
BACE_LABELS = ("Class", "pIC50")

MAX_CELL = 1 << 24  # characters
csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL))

_MISSING = {"", "na", "n/a", "nan", "none", "null"}


class MoleculeError(ValueError):
    """A molecule that cannot become a graph; the message says which, why, and what to do."""


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
    with rdBase.BlockLogs():
        mol = _parse(molecule) if isinstance(molecule, str) else _prepared(molecule)
        text = molecule.strip() if isinstance(molecule, str) else Chem.MolToSmiles(mol)
        size = mol.GetNumAtoms()
        if size == 0:
            raise MoleculeError(f"{_shown(text)} has no atoms: remove it from the input.")
        if size > max_atoms:
            raise MoleculeError(
                f"{_shown(text)} has {size} atoms, more than the limit of {max_atoms}: raise "
                "max_atoms if it is no mistake (time and memory grow with the square of the size)."
            )
        ends, bonds = bond_features(mol)
        features = atom_features(mol)
        chirality = canonical_chirality(mol) if canonical else None
        if chirality is not None:
            features[:, ATOM_FEATURE_NAMES.index("chirality")] = chirality
        data = Data(
            x=torch.from_numpy(features),
            edge_index=torch.from_numpy(ends),
            edge_attr=torch.from_numpy(bonds),
            smiles=text,
            vocabulary="ogb",
        )
    if not isinstance(molecule, str):
        data.mol = mol
    return data


def iter_table(
    path: str | os.PathLike[str],
    smiles_column: str = "smiles",
    label_columns: Sequence[str] = (),
    *,
    max_atoms: int = 500,
    canonical: bool = False,
) -> Iterator[Data | RejectedRow]:
    """The rows of a CSV file one by one, as graphs or as rejected rows, in the file's order.

    Each graph has `row` (the first row after the header is 1) and, with `label_columns`, `y`
    (1, labels), float32, NaN where the cell is empty or says NA. Byte-order marks, Windows line
    ends, and semicolons or tabs as separators are understood.

    `canonical` is as for `molecule_to_data`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a column is missing (the message lists those there) or a quote is not closed.
    """
    for number, record in iter_records(path, (smiles_column, *label_columns)):
        text = record[smiles_column]
        try:
            data = molecule_to_data(text, max_atoms=max_atoms, canonical=canonical)
            if label_columns:
                values = [_number(name, record[name]) for name in label_columns]
                data.y = torch.tensor([values], dtype=torch.float32)
        except MoleculeError as error:
            yield RejectedRow(number, text, str(error))
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
) -> tuple[list[Data], list[RejectedRow]]:
    """All rows of a CSV file: the graphs, and the rows left out. See `iter_table`."""
    graphs: list[Data] = []
    rejected: list[RejectedRow] = []
    for item in iter_table(
        path, smiles_column, label_columns, max_atoms=max_atoms, canonical=canonical
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


def _parse(smiles: str) -> Chem.Mol:
    """An RDKit molecule, sanitised."""
    text = smiles.strip()
    if not text:
        raise MoleculeError("the SMILES is empty: fill it in or remove the row.")
    head, *rest = text.split(maxsplit=1)
    if rest and not rest[0].startswith("|"):  # "|...|" is ChemAxon's extension
        raise MoleculeError(
            f"{_shown(text)} has text after the SMILES {_shown(head)}: give the SMILES alone."
        )
    if ">" in head and "->" not in head:
        raise MoleculeError(f"{_shown(text)} is a reaction: give one molecule.")
    mol = Chem.MolFromSmiles(text) if text.isascii() else None  # RDKit skips other characters
    if mol is not None:
        return mol
    relaxed = Chem.SmilesParserParams()
    relaxed.sanitize = False  # type: ignore[assignment]
    raw = Chem.MolFromSmiles(text, relaxed) if text.isascii() else None
    reason = _syntax_problem(text) if raw is None else _chemistry_problem(raw)
    raise MoleculeError(f"{_shown(text)} cannot be read: {reason}. Correct it or remove it.")


def _prepared(mol: Chem.Mol) -> Chem.Mol:
    """A copy of the molecule in the state in which a SMILES is read: sanitised, stereo assigned."""
    if not isinstance(mol, Chem.Mol):
        raise MoleculeError(f"a molecule must be a SMILES string or an RDKit Mol, not {mol!r}.")
    copy = Chem.Mol(mol)
    try:
        Chem.SanitizeMol(copy)
    except ValueError as error:
        raise MoleculeError(f"the RDKit molecule cannot be sanitised: {error}") from error
    Chem.AssignStereochemistry(copy, cleanIt=True, force=True)
    if sum(_is_plain_hydrogen(atom) for atom in copy.GetAtoms()) * 4 > copy.GetNumAtoms():
        warnings.warn(
            "the molecule's hydrogens are atoms, and so become nodes; models trained on SMILES"
            " expect them implicit: use Chem.RemoveHs.",
            stacklevel=4,
        )
    return copy


def _is_plain_hydrogen(atom: Chem.Atom) -> bool:
    return atom.GetAtomicNum() == 1 and atom.GetIsotope() == 0 and atom.GetDegree() == 1


def _chemistry_problem(raw: Chem.Mol) -> str:
    problems = [problem.Message() for problem in Chem.DetectChemistryProblems(raw)]
    return problems[0].strip().rstrip(".") if problems else "RDKit refuses its chemistry"


def _syntax_problem(smiles: str) -> str:
    """Words for what is most likely wrong; RDKit tells its own only to the process's stderr."""
    for opening, closing in ("()", "[]"):
        missing = smiles.count(opening) - smiles.count(closing)
        if missing:
            return f"{abs(missing)} {opening if missing < 0 else closing!r} too few"
    foreign = re.search(r"[^A-Za-z0-9@+\-\[\]()=#$:/\\.%*~<>{}|,;&!^?\s]", smiles)
    if foreign:
        return f"{foreign.group()!r} at position {foreign.start() + 1} is not SMILES"
    outside = re.sub(r"\[[^\]]*\]", "", smiles)
    labels = re.findall(r"%\(\d+\)|%\d\d|\d", outside)
    unclosed = sorted({label for label in labels if labels.count(label) % 2})
    if unclosed:
        return f"ring {unclosed[0]} is opened and not closed"
    unknown = re.search(r"[^BCNOPSFIbcnosplr0-9@+\-\[\]()=#$:/\\.%*~<>{}|,;&!^?\s]", outside)
    if unknown:
        return f"{unknown.group()!r} is no element that may stand outside of brackets"
    return "it is not SMILES"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


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
    for delimiter in ",;\t":
        names = next(csv.reader([header], delimiter=delimiter), [])
        if smiles_column in [name.strip() for name in names]:
            return delimiter
    return ","
