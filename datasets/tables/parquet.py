"""Read the rows of a Parquet file with pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graphxai.runtime.extras import missing_extra

from .delimited import Row
from .opening import TableError, opened
from .typed_cells import as_text

__all__ = ["parquet_count", "parquet_names", "parquet_rows"]

ROWS = 1024  # rows that are unpacked at a time


def parquet_names(path: Path) -> list[str]:
    """Return the columns of a Parquet file.

    Raises:
        ImportError: pyarrow is not installed.
        TableError: the file is damaged.
    """
    with _opened(path) as file:
        return [name for name in file.schema_arrow.names if name != "__index_level_0__"]


def parquet_count(path: Path) -> int:
    """Return how many rows a Parquet file has."""
    with _opened(path) as file:
        return int(file.metadata.num_rows)


def parquet_rows(path: Path, names: Sequence[str], wanted: Sequence[str]) -> Iterator[Row]:
    """Yield the rows one by one. The cells of columns that are not wanted are empty."""
    places = [names.index(name) for name in wanted]
    number = 0
    with _opened(path) as file:
        for batch in file.iter_batches(ROWS, columns=list(wanted)):
            columns = [batch.column(name).to_pylist() for name in wanted]
            for k in range(batch.num_rows):
                number += 1
                cells = [""] * len(names)
                for place, column in zip(places, columns, strict=True):
                    cells[place] = as_text(column[k])
                yield number, cells, ""


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        purpose = f"{path}: Parquet needs"
        raise missing_extra(purpose, "pyarrow", "parquet", "save it as CSV") from error
    with opened(path) as content:
        try:
            with pq.ParquetFile(content) as file:
                yield file
        except pa.ArrowInvalid as error:
            raise TableError(f"{path} cannot be read as Parquet: {error}.") from error
