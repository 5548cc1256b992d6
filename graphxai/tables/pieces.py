"""Cut tables anywhere into pieces of consecutive rows that any process can read by itself.

A table is a file that `datasets.tables` reads, a Lance table, or a folder of such files, on a disk
or in a store that pyarrow or fsspec knows (`s3://`, `gs://`, `hdfs://`, `az://` and others). Its
rows are numbered from 1 through all its files, in the order of their names.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

from graphxai.datasets.molecule_reading import MoleculeError
from graphxai.datasets.tables.columns import structure_column
from graphxai.datasets.tables.opening import SUFFIXES as READABLE
from graphxai.datasets.tables.rows import as_text
from graphxai.datasets.tables.table import open_table

if TYPE_CHECKING:
    import pyarrow.fs as pafs

CUT = (".parquet", ".lance")  # files that can be read from the middle
SUFFIXES = (*(suffix for suffix in READABLE if suffix != ".pq"), ".gz", ".lance")
SAMPLE = 20  # how many rows show which column has structures
Span: TypeAlias = tuple[int, int]  # consecutive row numbers: the first, and one past the last


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one file.

    Attributes:
        first: the number of the first row in the table.
        start: the index of the first row in the file.
        cells: the columns of a CSV file or the like, which only the driver reads, and why each row
            cannot be read, or "". It is None for a file that can be read from the middle.
    """

    path: str
    first: int
    start: int
    rows: int
    cells: tuple[tuple[str, ...], ...] | None = None
    version: int | None = None

    @classmethod
    def of(cls, text: str) -> "Piece":
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        cells = fields.pop("cells")
        return cls(**fields, cells=None if cells is None else tuple(map(tuple, cells)))

    def to_json(self) -> str:
        """Return the piece as text, for another process."""
        return json.dumps(vars(self))

    def part(self, span: Span) -> "Piece":
        """Return the part of the piece with these row numbers."""
        skipped, rows = span[0] - self.first, span[1] - span[0]
        cells = self.cells and tuple(column[skipped : skipped + rows] for column in self.cells)
        return replace(self, first=span[0], start=self.start + skipped, rows=rows, cells=cells)


def absolute(place: str | os.PathLike[str]) -> str:
    """Return an absolute path, for processes in other folders, or an address as it is."""
    text = os.fspath(place)
    return text if "://" in text else str(Path(text).absolute())


def filesystem_of(place: str | os.PathLike[str]) -> "tuple[pafs.FileSystem, str]":
    """Return the file system of a path or an address, and the path on it.

    Raises ValueError or ImportError if neither pyarrow nor an installed fsspec package knows the
    address.
    """
    import pyarrow as pa
    import pyarrow.fs as pafs

    text = absolute(place)
    if "://" not in text:
        return pafs.LocalFileSystem(), text
    try:
        return pafs.FileSystem.from_uri(text)
    except pa.ArrowInvalid:
        return pafs.FileSystem.from_uri(f"fsspec+{text}")


def files_of(table: str | os.PathLike[str], columns: list[str]) -> list[Piece]:
    """Return each file of a table as one piece.

    Raises:
        FileNotFoundError: there is no such table.
        ValueError: the table is of another type, or has no such column.
    """
    filesystem, place = filesystem_of(table)
    pieces: list[Piece] = []
    for path in _paths(filesystem, place, os.fspath(table)):
        first = pieces[-1].first + pieces[-1].rows if pieces else 1
        piece = _file(filesystem, path, os.fspath(table), columns)
        pieces.append(replace(piece, first=first))
    return pieces


def structures_of(table: str | os.PathLike[str], asked: str | None) -> str:
    """Return the column of a table with the structures, see `datasets.tables.columns`.

    Raises FileNotFoundError if there is no such table, and ValueError if no column can be chosen.
    """
    filesystem, place = filesystem_of(table)
    path = _paths(filesystem, place, os.fspath(table))[0]
    suffix = Path(path).suffix.lower()
    if suffix not in CUT:
        with _local_copy(filesystem, path) as copy:
            return open_table(copy, asked).structures.name
    dataset = _dataset(filesystem, path, os.fspath(table))
    names = dataset.schema.names

    def sample() -> list[tuple[str, ...]]:
        """Return the first rows as text."""
        cells = dataset.head(SAMPLE)
        columns = [[as_text(value) for value in cells.column(name).to_pylist()] for name in names]
        return list(zip(*columns, strict=True))

    return structure_column(path, names, sample, asked).name


def spans_left(piece: Piece, done: list[Span], size: int) -> Iterator[Span]:
    """Yield the rows of a piece that are in no span of `done` (sorted), at most `size` at a time.

    The cuts are in the same places as if nothing had been done.
    """
    end = piece.first + piece.rows
    at = piece.first
    for start, stop in [*((a, b) for a, b in done if b > piece.first and a < end), (end, end)]:
        while at < start:
            cut = min(start, piece.first + ((at - piece.first) // size + 1) * size)
            yield at, cut
            at = cut
        at = max(at, stop)


def cells_of(piece: Piece, table: str, columns: list[str]) -> list[list[Any]]:
    """Return the cells of a piece by column, in plain Python.

    An error stands in the first column for a row that cannot be read.
    """
    if piece.cells is not None:
        first, *others, problems = piece.cells
        pairs = zip(first, problems, strict=True)
        structures = [MoleculeError(problem) if problem else cell for cell, problem in pairs]
        return [structures, *map(list, others)]
    end = piece.start + piece.rows
    if piece.version is not None:
        import lance

        cells = lance.dataset(table, version=piece.version).to_table(
            columns=columns, offset=piece.start, limit=piece.rows
        )
    else:
        import pyarrow.parquet as pq

        source = filesystem_of(table)[0].open_input_file(piece.path)
        with source, pq.ParquetFile(source) as file:
            groups = range(file.num_row_groups)
            starts = [0, *accumulate(file.metadata.row_group(k).num_rows for k in groups)]
            read = [k for k in groups if starts[k] < end and starts[k + 1] > piece.start]
            cells = file.read_row_groups(read, columns=columns)
            cells = cells.slice(piece.start - starts[read[0]], piece.rows)
    return [cells[name].to_pylist() for name in columns]


def _paths(filesystem: "pafs.FileSystem", place: str, named: str) -> list[str]:
    """Return the files of a table in the order of their names."""
    import pyarrow.fs as pafs

    suffix = Path(place).suffix.lower()
    info = filesystem.get_file_info(place)
    if info.type == pafs.FileType.NotFound:
        raise FileNotFoundError(f"{named}: no such file or folder.")
    if info.type == pafs.FileType.File or suffix == ".lance":
        paths = [place]
    else:
        inside = filesystem.get_file_info(pafs.FileSelector(place, recursive=True))
        paths = sorted(
            info.path
            for info in inside
            if info.type == pafs.FileType.File and not info.base_name.startswith((".", "_"))
        )
    kinds = {Path(path).suffix.lower() for path in paths}
    if not paths or len(kinds) > 1 or not kinds <= set(SUFFIXES):
        raise ValueError(
            f"{named}: cannot be read; give a file, or a folder of files of one type:"
            f" {', '.join(SUFFIXES)}."
        )
    return paths


def _file(filesystem: "pafs.FileSystem", path: str, table: str, columns: list[str]) -> Piece:
    """Return a file of a table as one piece that begins at row 1."""
    suffix = Path(path).suffix.lower()
    if suffix not in CUT:
        with _local_copy(filesystem, path) as copy:
            opened = open_table(copy, columns[0]).records(columns)
            records = [(*record.cells.values(), record.problem) for record in opened]
        cells = tuple(zip(*records, strict=True)) or ((),) * (len(columns) + 1)
        return Piece(path, 1, 0, len(records), cells)
    dataset = _dataset(filesystem, path, table)
    existing = dataset.schema.names
    for name in columns:
        if name not in existing:
            raise ValueError(f"{path} has no column {name!r}; its columns: {', '.join(existing)}.")
    version = dataset.version if suffix == ".lance" else None
    return Piece(path, 1, 0, dataset.count_rows(), version=version)


def _dataset(filesystem: "pafs.FileSystem", path: str, table: str) -> Any:
    """Open a file that can be read from the middle, as pyarrow or Lance does."""
    if Path(path).suffix.lower() != ".lance":
        import pyarrow.dataset as pads

        return pads.dataset(path, filesystem=filesystem, format="parquet")
    try:
        import lance
    except ImportError as error:
        raise ImportError(f"{path}: install `pylance` to read Lance tables.") from error
    return lance.dataset(table)


@contextmanager
def _local_copy(filesystem: "pafs.FileSystem", path: str) -> Iterator[Path]:
    """Yield a path on this machine to a file, which is copied if it lies elsewhere."""
    import pyarrow.fs as pafs

    if isinstance(filesystem, pafs.LocalFileSystem):
        yield Path(path)
        return
    with TemporaryDirectory() as folder:
        copy = Path(folder) / Path(path).name
        pafs.copy_files(path, str(copy), filesystem, pafs.LocalFileSystem())
        yield copy
