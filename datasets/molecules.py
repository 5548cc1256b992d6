"""Molecules as graphs: from SMILES, RDKit molecules, CSV tables and MoleculeNet's BACE."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rdkit import Chem, rdBase
from torch_geometric.data import Data

from .download import data_root, fetch
from .features import atom_features, bond_features

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


def molecule_to_data(molecule: str | Chem.Mol, *, max_atoms: int = 500) -> Data:
    """The graph of a molecule; its nodes are the atoms in the order of the input.

    Hydrogens are nodes only where the input names them as atoms. Salts stay whole: their parts
    are not connected.

    Args:
        molecule: a SMILES string or an RDKit molecule.
        max_atoms: the largest number of atoms accepted.

    Returns:
        `x` (N, 9) and `edge_attr` (E, 3), OGB's codes (see `graphxai.datasets.features`);
        `edge_index` (2, E), both directions of every bond; `smiles`, the string given or, for an
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
        data = Data(
            x=torch.from_numpy(atom_features(mol)),
            edge_index=torch.from_numpy(ends),
            edge_attr=torch.from_numpy(bonds),
            smiles=text,
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
) -> Iterator[Data | RejectedRow]:
    """The rows of a CSV file one by one, as graphs or as rejected rows, in the file's order.

    Each graph has `row` (the first row after the header is 1) and, with `label_columns`, `y`
    (1, labels), float32, NaN where the cell is empty or says NA. Byte-order marks, Windows line
    ends, and semicolons or tabs as separators are understood.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a column is missing; the message lists those there.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file.")
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        header = file.readline()
        file.seek(0)
        reader = csv.DictReader(file, delimiter=_delimiter(header, smiles_column))
        columns = reader.fieldnames or []
        for wanted in (smiles_column, *label_columns):
            if wanted not in columns:
                there = ", ".join(repr(name) for name in columns) or "none: the file is empty"
                raise ValueError(f"{path} has no column {wanted!r}; its columns: {there}.")
        for number, record in enumerate(reader, start=1):
            text = (record[smiles_column] or "").strip()
            try:
                data = molecule_to_data(text, max_atoms=max_atoms)
                if label_columns:
                    values = [_number(name, record[name]) for name in label_columns]
                    data.y = torch.tensor([values], dtype=torch.float32)
            except MoleculeError as error:
                yield RejectedRow(number, text, str(error))
                continue
            data.row = number
            yield data


def read_table(
    path: str | os.PathLike[str],
    smiles_column: str = "smiles",
    label_columns: Sequence[str] = (),
    *,
    max_atoms: int = 500,
) -> tuple[list[Data], list[RejectedRow]]:
    """All rows of a CSV file: the graphs, and the rows left out. See `iter_table`."""
    graphs: list[Data] = []
    rejected: list[RejectedRow] = []
    for item in iter_table(path, smiles_column, label_columns, max_atoms=max_atoms):
        if isinstance(item, RejectedRow):
            rejected.append(item)
        else:
            graphs.append(item)
    return graphs, rejected


def load_bace(root: str | os.PathLike[str] | None = None, download: bool = True) -> list[Data]:
    """MoleculeNet's BACE (Subramanian 2016, Wu 2018): 1,513 inhibitors of beta-secretase 1.

    Each graph has `y` (1, 2): class (1 active: pIC50 of 7 or above) and pIC50. The file lies
    where `torch_geometric.datasets.MoleculeNet(root, "BACE")` puts it: `root/bace/raw/bace.csv`.

    Args:
        root: folder of the data sets; None means `$GRAPHXAI_DATA`, else `~/.cache/graphxai`.
        download: fetch the official file where it is missing.

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
    graphs, rejected = read_table(path, "mol", BACE_LABELS)
    if rejected:
        raise MoleculeError(f"{path}, {rejected[0]}")
    return graphs


def _parse(smiles: str) -> Chem.Mol:
    """An RDKit molecule, sanitised."""
    text = smiles.strip()
    if not text:
        raise MoleculeError("the SMILES is empty: fill it in or remove the row.")
    mol = Chem.MolFromSmiles(text) if text.isascii() else None  # RDKit skips other characters
    if mol is not None:
        return mol
    relaxed = Chem.SmilesParserParams()
    relaxed.sanitize = False  # type: ignore[assignment]
    raw = Chem.MolFromSmiles(text, relaxed) if text.isascii() else None
    reason = _syntax_problem(text) if raw is None else _chemistry_problem(raw)
    raise MoleculeError(f"{_shown(text)} cannot be read: {reason}. Correct it or remove it.")


def _prepared(mol: Chem.Mol) -> Chem.Mol:
    """The molecule itself, or a sanitised copy where hydrogens or rings are not known yet."""
    if not isinstance(mol, Chem.Mol):
        raise MoleculeError(f"a molecule must be a SMILES string or an RDKit Mol, not {mol!r}.")
    if not mol.NeedsUpdatePropertyCache() and _rings_known(mol):
        return mol
    copy = Chem.Mol(mol)
    try:
        Chem.SanitizeMol(copy)
    except ValueError as error:
        raise MoleculeError(f"the RDKit molecule cannot be sanitised: {error}") from error
    return copy


def _rings_known(mol: Chem.Mol) -> bool:
    try:
        mol.GetRingInfo().NumRings()
    except RuntimeError:
        return False
    return True


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


def _delimiter(header: str, smiles_column: str) -> str:
    for delimiter in ",;\t":
        names = next(csv.reader([header], delimiter=delimiter), [])
        if smiles_column in [name.strip() for name in names]:
            return delimiter
    return ","
