"""A table of molecules: its columns, the one with the structures, and its records one by one.

`structures_in` takes structures from memory, too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rdkit import Chem

from ..graph import is_from
from ..labels import name_and_unit
from ..molecule_reading import MoleculeError
from .assays import PlainValues, Transform, plain_values
from .columns import (
    NAME_IT,
    NAMES,
    SURE,
    AssayColumns,
    StructureColumn,
    assay_columns,
    may_become,
    named_column,
    plain_name,
    size_of,
    structure_column,
)
from .dialect import DEFAULT, Dialect, Header, TextLayout, text_layout
from .opening import HEAD, SUFFIXES, Format, TableError, format_of, opened
from .rows import (
    LIST_COLUMNS,
    Row,
    Sheet,
    list_rows,
    opened_text,
    parquet_rows,
    parquet_sheet,
    rows,
    sheet_of,
    sheet_rows,
)
from .structures import property_names, read_structures, record_count, records_in

SAMPLE = 20  # rows whose cells show which column has structures
SHOWING = 1000  # rows that show what was measured
HEADLESS = "The first line is a molecule: write a header such as smiles,name above it."
# The columns of an SD file's items that have the names of its first columns
COLUMN_OF_ITEM = {name: f"input {name}" for name in LIST_COLUMNS}


class Record(NamedTuple):
    """A row of a table with the cells of some columns.

    Attributes:
        number: the first row after the header has number 1.
        cells: the cells by column, without spaces around them. All are empty if there is a problem.
        problem: why the row cannot be used, or "".
    """

    number: int
    cells: dict[str, str]
    problem: str = ""


@dataclass(frozen=True)
class Table:
    """A file with a table of molecules. Its rows are read when they are asked for.

    Attributes:
        columns: the names of its columns. An SD file has `smiles`, `name` (the title of a record,
            or else its item of this name) and its data items.
        dialect: how a CSV file like it is written.
        asked: the column with the structures that the user named, if any.
        layout: how a text file is to be read.
        sheet: the sheet of a workbook, or what a Parquet file holds.
    """

    path: Path
    format: Format
    columns: tuple[str, ...]
    dialect: Dialect = DEFAULT
    asked: str | None = None
    layout: TextLayout | None = None
    sheet: Sheet | None = None

    @cached_property
    def structures(self) -> StructureColumn:
        """Return the column with the structures.

        Raises:
            TableError: it cannot be told; the message lists the columns.
        """
        if self.format in ("list", "structures") and self.asked in (None, LIST_COLUMNS[0]):
            return StructureColumn(LIST_COLUMNS[0])
        try:
            chosen = structure_column(str(self.path), self.columns, self._sample, self.asked)
        except TableError as error:
            if self._has_no_header:
                raise TableError(f"{error} {HEADLESS}") from error
            raise self._naming_the_sheet(error, "structures") from error
        if chosen.reason and self._has_no_header:
            raise TableError(f"{self.path} has no header. {HEADLESS}")
        return chosen

    @property
    def _has_no_header(self) -> bool:
        """Return whether the first line of a CSV file has a SMILES of several atoms.

        Beside a title of structures it is a title too, such as PDSP's "NSC".
        """
        named = any(plain_name(name) in SURE for name in self.columns)
        is_text = self.format == "delimited" and not named
        return is_text and any(len(name) > 2 and size_of(name) for name in self.columns)

    @property
    def choice(self) -> str:
        """Return what was chosen in the file and the user should know, or ""."""
        parts = []
        if self.structures.reason:
            parts.append(f"structures: column {self.structures.name!r}, {self.structures.reason}")
        if self.names_column not in (None, LIST_COLUMNS[1]):
            parts.append(f"names: column {self.names_column!r}")
        if self._which_sheet:
            parts.append(self._which_sheet)
        if self._header.first:
            parts.append(f"header: the row that begins with {self._header.names[0]!r}")
        if self.sheet is not None and self.sheet.uncomputed:
            named = ", ".join(map(repr, self.sheet.uncomputed))
            parts.append(
                f"empty: formulas of columns {named}, as the file has no values of them; open it in"
                " a spreadsheet and save it"
            )
        if repeated := [name for name, count in Counter(self.columns).items() if count > 1]:
            named = ", ".join(map(repr, repeated))
            parts.append(f"not read: columns {named}, as several have the name; rename them")
        return "; ".join(parts)

    @property
    def _which_sheet(self) -> str:
        """Say which sheet of several is read, or return ""."""
        if self.sheet is None or not self.sheet.others:
            return ""
        return f"sheet {self.sheet.name!r}, the first of {1 + len(self.sheet.others)}"

    def _naming_the_sheet(self, error: TableError, missing: str) -> TableError:
        """Return an error that also says which sheet of several was read, without `missing`."""
        if not self._which_sheet:
            return error
        how = f"move the sheet with the {missing} to the front"
        return TableError(f"{error} This is {self._which_sheet}: {how}.")

    @cached_property
    def names_column(self) -> str | None:
        """The column with the names of compounds, by its name, or None if there is none."""
        others = [name for name in self.columns if self.columns.count(name) == 1]
        others = [name for name in others if name != self.structures.name]
        usual = [name for word in NAMES for name in others if plain_name(name) == word]
        if len(usual) < 2:
            return next(iter(usual), None)
        sample = self._sample()
        filled = (n for n in usual if any(row[self.columns.index(n)].strip() for row in sample))
        return next(filled, usual[0])

    @property
    def _header(self) -> Header:
        """The header of a text file or a workbook."""
        layout = self.layout or self.sheet
        return Header(0, 1, self.columns) if layout is None else layout.header

    def assay(self, column: str, unit: str = "") -> AssayColumns:
        """Return the columns that are read with a column of values, see `assay_columns`."""
        unit = unit or self._header.units.get(column, "")
        return assay_columns(self.columns, column, unit, self.structures.name)

    def measured(
        self, column: str, wanted: Collection[str] | None, limit: int | None = None
    ) -> tuple[list[Record], PlainValues]:
        """Read the first `limit` rows with structures, and a column of values in plain form.

        Args:
            column: the column.
            wanted: what the values may be called. They become logarithms only if they then have
                such a name, as `IC50 (nM)` becomes `pIC50`. None takes them as training does.
            limit: the largest number of rows.

        Raises:
            TableError: there is no such column.
        """
        columns, structures = self.assay(self.column(column)), self.structures.name
        records = list(islice(self.records((structures, *columns.all)), limit))
        cells = {name: [record.cells[name] for record in records] for name in columns.all}
        smiles = [record.cells[structures] for record in records]
        ways: tuple[Transform | None, ...] = (None, "log10")
        made = (plain_values(columns, cells, smiles, way) for way in ways)
        named = next((v for v in made if wanted is None or v.name in wanted), None)
        return records, named or plain_values(columns, cells, smiles, "none")

    def source_of(self, name: str, unit: str = "") -> str | None:
        """Return the column of a name, or the one whose values get it: `IC50 (nM)` for `pIC50`.

        With its unit, `log D (7.4)` is the column of the name `log D`, as in training, even beside
        a column `log D`, which may hold something else.
        """
        with_its_unit = [n for n in self.columns if unit and name_and_unit(n) == (name, unit)]
        for header in (*with_its_unit, name):
            if self.columns.count(header) == 1:
                return header
        others = [n for n in self.columns if n != self.structures.name and may_become(n, name)]
        single = (n for n in others if self.columns.count(n) == 1)
        return next((n for n in single if self.measured(n, [name], SHOWING)[1].name == name), None)

    def records(
        self, columns: Sequence[str] | None = None, unchanged: Sequence[str] = ()
    ) -> Iterator[Record]:
        """Yield the rows one by one, with the cells of these columns, by default all.

        White space at the ends of cells is removed, except in the columns `unchanged`.

        Raises:
            TableError: a column is missing or is there twice, or the file is damaged.
        """
        wanted = self.columns if columns is None else tuple(dict.fromkeys(columns))
        places = [(name, self.columns.index(self.column(name))) for name in wanted]
        for number, cells, problem in self._rows([self.columns[place] for _, place in places]):
            if problem:
                yield Record(number, dict.fromkeys(wanted, ""), problem)
            else:
                read = {
                    name: cells[place] if name in unchanged else cells[place].strip()
                    for name, place in places
                }
                yield Record(number, read)

    def count(self) -> int:
        """Return roughly how many rows there are, for a bar of progress."""
        if self.sheet is not None:
            return self.sheet.rows
        if self.format == "structures":
            return record_count(self.path)
        with opened(self.path) as file:
            lines = returns = 0
            while part := file.read(HEAD):
                lines, returns = lines + part.count(b"\n"), returns + part.count(b"\r")
        return max((lines or returns) - (self.format == "delimited"), 1)

    def column(self, name: str) -> str:
        """Return the name of a column as it is written, or raise a TableError."""
        try:
            return named_column(str(self.path), self.columns, name)
        except TableError as error:
            raise self._naming_the_sheet(error, "column") from error

    def _rows(self, wanted: Sequence[str]) -> Iterator[Row]:
        """Yield the rows. The cells of columns that are not wanted may be empty."""
        if self.format == "parquet":
            yield from parquet_rows(self.path, self.columns, wanted)
        elif self.sheet is not None:
            yield from sheet_rows(self.path, self.sheet)
        elif self.format == "structures":
            yield from _structure_rows(self.path, self.columns, LIST_COLUMNS[0] in wanted)
        else:
            assert self.layout is not None
            if self.format == "list":
                yield from list_rows(self.path, self.layout)
            else:
                yield from rows(self.path, self.layout, self.columns)

    def _sample(self) -> list[Sequence[str]]:
        """Return the cells of the first rows that have no problem."""
        fitting = (cells for _, cells, problem in self._rows(self.columns) if not problem)
        return list(islice(fitting, SAMPLE))


def open_table(path: str | os.PathLike[str], smiles_column: str | None = None) -> Table:
    """Tell what is in a file with a table of molecules: CSV, SMILES, SD, workbook or Parquet.

    Args:
        path: the file, which may be packed with gzip.
        smiles_column: the column with the structures. Without it, the column is one with a usual
            name, or the only one whose cells can be read as SMILES; see `Table.structures`.

    Raises:
        FileNotFoundError: there is no such file.
        TableError: it is no table; the message says what to do.
        TypeError: it is no path, but for example a frame.
        ImportError: a package that reads it is not installed.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"a table is read from its file, not from a {type(path).__name__}: write it to one, for"
            " example with frame.to_csv, and give its path."
        )
    path = Path(path)
    format = format_of(path)
    if format in ("workbook", "parquet"):
        sheet = sheet_of(path, smiles_column) if format == "workbook" else parquet_sheet(path)
        dialect = Dialect(byte_order_mark=format == "workbook")  # as Excel writes
        return Table(path, format, sheet.header.names, dialect, smiles_column, sheet=sheet)
    if format == "structures":
        items = [COLUMN_OF_ITEM.get(name, name) for name in property_names(path)]
        return Table(path, format, (*LIST_COLUMNS, *items), DEFAULT, smiles_column)
    with opened(path) as file:
        layout = text_layout(file.read(HEAD), smiles_column)
    names = LIST_COLUMNS if format == "list" else layout.header.names
    if len(names) == 1 and smiles_column is None and _is_list(path, layout):
        format, names = "list", LIST_COLUMNS
    return Table(path, format, names, layout.dialect, smiles_column, layout)


def _is_list(path: Path, layout: TextLayout) -> bool:
    """Return whether a file without separators is a list of SMILES, not a table of one column."""
    with opened_text(path, layout.encoding, layout.skipped) as text:
        first = text.readline(HEAD).lstrip("\ufeff").split()
    return bool(first) and (size_of(first[0]) > 0 or len(first) > 1)


def _structure_rows(path: Path, columns: Sequence[str], with_smiles: bool) -> Iterator[Row]:
    """Yield the records of an SD file as rows. One that cannot be read has a problem."""
    _, _, *items = columns
    item_of_column = {column: name for name, column in COLUMN_OF_ITEM.items()}
    for number, record in enumerate(read_structures(path), start=1):
        try:
            smiles = record.smiles if with_smiles else ""
        except MoleculeError as error:
            yield number, (), str(error)
            continue
        cells = (record.properties.get(item_of_column.get(name, name), "") for name in items)
        title = record.title or record.properties.get(LIST_COLUMNS[1], "")
        yield number, (smiles, title, *cells), ""


# -- structures in memory: frames, arrays of text, RDKit's suppliers -------------------------------


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
        return _python_values(value) if value.ndim == 1 and value.dtype.kind in "OUT" else None
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
    return _python_values(value) if isinstance(value, Iterable) else None


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
    return _python_values(frame[next((key for key in names if str(key) == name), name)])


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


def _python_values(column: Any) -> list[Any]:
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
