"""Take structures from memory: from data frames, arrays of text, and RDKit's suppliers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rdkit import Chem

from ..graph import is_from
from ..molecule_reading import MoleculeError
from .columns import structure_column
from .opening import SUFFIXES
from .structures import records_in
from .table import open_table

SAMPLE = 20  # rows whose cells show which column has structures


def structures_in(value: Any) -> list[Any] | None:
    """Return the structures of a frame, an array of text, a supplier or the file of a table.

    Each is a SMILES, a molecule, or what the cell holds. A record that cannot be read has in
    its place a `MoleculeError` that says why. Anything else gives None.

    Raises:
        TableError: a frame or a file has no column of structures, or several.
    """
    if isinstance(value, Path):
        return _of_file(value) if value.suffix.lower() in (*SUFFIXES, ".gz") else None
    if isinstance(value, np.ndarray):
        return _plain_values(value) if value.ndim == 1 and value.dtype.kind in "OUT" else None
    if isinstance(value, Chem.SDMolSupplier):
        return [record.mol for record in records_in(_lines_of(value), "the SD file")]
    if not any(is_from(package, value) for package in ("pandas", "pyarrow", "polars")):
        return None
    if _names(value) is not None:
        return column_values(value, structure_name(value))
    return _plain_values(value) if isinstance(value, Iterable) else None


def structure_name(frame: Any, asked: str | None = None) -> str:
    """Return the column of a data frame that holds the structures, see `structure_column`."""
    names = list(map(str, _names(frame) or ()))

    def sample() -> list[tuple[str, ...]]:
        columns = [column_values(frame[:SAMPLE], name) for name in names]
        return [
            tuple("" if cell is None else str(cell) for cell in cells)
            for cells in zip(*columns, strict=True)
        ]

    return structure_column("the frame", names, sample, asked).name


def column_values(frame: Any, name: str) -> list[Any]:
    """Return the cells of a frame's column in plain Python, with None where one is missing."""
    return _plain_values(frame[name])


def _names(value: Any) -> list[Any] | None:
    """Return the names of a frame's columns, or None for a single column."""
    names = getattr(value, "column_names", None)  # Arrow's
    if names is None and hasattr(value, "columns"):
        names = value.columns
    return None if names is None else list(names)


def _plain_values(column: Any) -> list[Any]:
    values = column.to_pylist() if hasattr(column, "to_pylist") else list(column.tolist())
    return [None if isinstance(value, float) and value != value else value for value in values]


def _of_file(path: Path) -> list[Any]:
    table = open_table(path)
    name = table.structures.name
    return [
        MoleculeError(record.problem) if record.problem else record.cells[name]
        for record in table.records([name])
    ]


def _lines_of(supplier: Chem.SDMolSupplier) -> Iterator[str]:
    """Yield the lines of an SD file, whose records RDKit does not always tell apart."""
    for k in range(len(supplier)):
        yield from supplier.GetItemText(k).splitlines(keepends=True)
