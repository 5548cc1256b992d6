"""Take structures from memory: from data frames, arrays of text, and RDKit's suppliers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from rdkit import Chem

from ..graph import is_from
from ..molecule_reading import MoleculeError
from .columns import NAME_IT, structure_column
from .opening import SUFFIXES, TableError
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
        # RDKit does not always tell the records of an SD file apart
        texts = (value.GetItemText(k) for k in range(len(value)))
        lines = chain.from_iterable(text.splitlines(keepends=True) for text in texts)
        return [record.mol for record in records_in(lines, "the SD file")]
    if not any(is_from(package, value) for package in ("pandas", "pyarrow", "polars")):
        return None
    if is_from("polars", value) and hasattr(value, "collect"):
        value = value.collect()  # a lazy frame
    if _names(value) is not None:
        try:
            return column_values(value, structure_name(value))
        except TableError as error:
            way = "pass the column itself, such as frame['smiles']"
            raise TableError(str(error).replace(NAME_IT, way)) from None
    return _plain_values(value) if isinstance(value, Iterable) else None


def structure_name(frame: Any, asked: str | None = None) -> str:
    """Return the column of a data frame that holds the structures, see `structure_column`."""
    names = list(map(str, _names(frame) or ()))

    def sample() -> list[tuple[str, ...]]:
        columns = [column_values(frame[:SAMPLE], name) for name in names]
        return [tuple(map(_text, cells)) for cells in zip(*columns, strict=True)]

    return structure_column("the frame", names, sample, asked).name


def column_values(frame: Any, name: str) -> list[Any]:
    """Return the cells of a frame's column in plain Python, with None where one is missing.

    A name may be a number, or a tuple of several headers, that reads as this text.
    """
    names = _names(frame) or []
    return _plain_values(frame[next((key for key in names if str(key) == name), name)])


def _text(cell: Any) -> str:
    """Return a cell as text, a molecule as its SMILES."""
    if isinstance(cell, Chem.Mol):
        return str(Chem.MolToSmiles(cell))
    return "" if cell is None else str(cell)


def _names(value: Any) -> list[Any] | None:
    """Return the names of a frame's columns, or None for a single column."""
    names = getattr(value, "column_names", None)  # Arrow's
    if names is None and hasattr(value, "columns"):
        names = value.columns
    return None if names is None else list(names)


def _plain_values(column: Any) -> list[Any]:
    way = next(n for n in ("to_pylist", "tolist", "to_list") if hasattr(column, n))
    values = list(getattr(column, way)())
    return [None if isinstance(value, float) and value != value else value for value in values]


def _of_file(path: Path) -> list[Any]:
    table = open_table(path)
    name = table.structures.name
    return [
        MoleculeError(record.problem) if record.problem else record.cells[name]
        for record in table.records([name])
    ]
