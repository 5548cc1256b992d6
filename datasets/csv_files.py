"""Read the rows of CSV files, whatever program wrote them, and say how to convert other files."""

from __future__ import annotations

import codecs
import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rdkit import Chem, rdBase

__all__ = ["CONVERSIONS", "column_names", "conversion", "iter_records", "require_table"]

MAX_CELL = 1 << 24  # characters
csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL))

STRUCTURES = (
    "convert its structures to SMILES; in Python, gx.explain(model, Chem.SDMolSupplier(path)) reads"
    " those of an SD or MOL file"
)
WORKBOOK = "save the sheet as CSV"
PARQUET = "save it as CSV; only `graphxai explain --engine ray` reads Parquet"
LIST = "write the header smiles,name above it, separate both by commas, and name the file .csv"
CONVERSIONS = {  # by suffix
    **dict.fromkeys((".sdf", ".sd", ".mol", ".mol2", ".pdb"), STRUCTURES),
    **dict.fromkeys((".xlsx", ".xlsm", ".xls", ".ods", ".numbers"), WORKBOOK),
    **dict.fromkeys((".parquet", ".pq"), PARQUET),
    **dict.fromkeys((".smi", ".ism", ".cxsmiles"), LIST),
}
SIGNATURES = {b"PK\x03\x04": WORKBOOK, b"\xd0\xcf\x11\xe0": WORKBOOK, b"PAR1": PARQUET}

MAX_HEADER_SMILES = 1000  # characters of a header's first cell that may be a SMILES


def conversion(path: str | os.PathLike[str]) -> str:
    """Say how to make a table of a file of another type, or return "" if it may be a CSV table."""
    path = Path(path)
    by_suffix = CONVERSIONS.get(path.suffix.lower(), "")
    if by_suffix or not path.is_file():
        return by_suffix
    with path.open("rb") as file:
        start = file.read(4)
    return next((text for sign, text in SIGNATURES.items() if start.startswith(sign)), "")


def require_table(path: str | os.PathLike[str]) -> None:
    """Raise an error unless this file may be a CSV table.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it holds structures, a workbook or the like; the message says how to convert it.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file.")
    advice = conversion(path)
    if advice and advice != LIST:  # a list may have a header
        raise ValueError(f"{path} is not a CSV table with a column of SMILES: {advice}.")


def column_names(path: str | os.PathLike[str], column: str) -> list[str]:
    """Return the names in a CSV file's header.

    Args:
        path: the file.
        column: one of these names. The separator is the one that gives this column.
    """
    path = Path(path)
    require_table(path)
    with path.open(encoding=_encoding(path), errors=_LATIN, newline="") as file:
        header = file.readline()
    row = next(csv.reader([header], delimiter=_delimiter(header, column)), [])
    return [name.strip() for name in row]


def iter_records(
    path: str | os.PathLike[str], columns: Sequence[str]
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a CSV file one by one: the row's number, and its cells by column.

    The first row after the header has number 1. The separator is the one that makes `columns[0]` a
    column. A missing cell is empty. Byte-order marks and Windows line endings are handled. Bytes
    that are not UTF-8 are read as Latin-1 (Windows-1252).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no table (see `require_table`), a column is missing (the message lists the
            existing ones) or there twice, or a quote is not closed.
    """
    path = Path(path)
    require_table(path)
    with path.open(encoding=_encoding(path), errors=_LATIN, newline="") as file:
        header = file.readline()
        file.seek(0)
        lines = _RecordedLines(file)
        reader = csv.reader(lines, delimiter=_delimiter(header, columns[0]))
        names = [name.strip() for name in next(reader, [])]
        lines.since_last_row.clear()
        _require_columns(path, names, columns)
        for number, cells in enumerate(_rows(lines, reader, path), start=1):
            record = dict(zip(names, cells, strict=False))
            yield number, {name: record.get(name, "").strip() for name in columns}


def _require_columns(path: Path, names: Sequence[str], columns: Sequence[str]) -> None:
    """Raise a ValueError unless a table with these names has each of the columns once."""
    for column in columns:
        if column not in names:
            existing = ", ".join(map(repr, names)) or "none: the file is empty"
            hint = f" The first line is a molecule: {LIST}." if _starts_with_smiles(names) else ""
            raise ValueError(f"{path} has no column {column!r}; its columns: {existing}.{hint}")
        if names.count(column) > 1:
            raise ValueError(f"{path} has more than one column {column!r}.")


def _starts_with_smiles(names: Sequence[str]) -> bool:
    """Return whether a header starts with a SMILES of several atoms, so that it is no header."""
    first = "".join(names[:1]).split()[:1]
    with rdBase.BlockLogs():
        readable = first and len(first[0]) <= MAX_HEADER_SMILES
        mol = Chem.MolFromSmiles(first[0]) if readable else None
    return mol is not None and mol.GetNumAtoms() > 1


class _RecordedLines:
    """The lines of a file, which keeps those that were read since the last row."""

    def __init__(self, file: Iterable[str]) -> None:
        self._file = iter(file)
        self.since_last_row: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._file)
        self.since_last_row.append(line)
        return line


def _rows(lines: _RecordedLines, reader: Iterator[list[str]], path: Path) -> Iterator[list[str]]:
    """Yield the rows that are not empty, or raise a ValueError that says where it is not CSV."""
    number, last = 1, ""
    try:
        for cells in reader:
            last = "".join(lines.since_last_row)
            lines.since_last_row.clear()
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


def _as_latin(error: UnicodeError) -> tuple[str, int]:
    """Decode bytes that are not UTF-8 as Windows-1252, which extends Latin-1."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("cp1252", "replace"), error.end


_LATIN = "graphxai.latin"
codecs.register_error(_LATIN, _as_latin)


def _encoding(path: Path) -> str:
    """Return UTF-8, or UTF-16 if the file starts with its byte-order mark, as Excel's text does."""
    with path.open("rb") as file:
        mark = file.read(2)
    return "utf-16" if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def _delimiter(header: str, column: str) -> str:
    """Return the separator that gives this column, or else the one that gives most columns."""
    names_by_delimiter = {d: next(csv.reader([header], delimiter=d), []) for d in ",;\t"}
    for delimiter, names in names_by_delimiter.items():
        if column in [name.strip() for name in names]:
            return delimiter
    return max(names_by_delimiter, key=lambda delimiter: len(names_by_delimiter[delimiter]))
