"""Read the rows of tables whose cells have types: workbooks with openpyxl, Parquet with pyarrow."""

from __future__ import annotations

import datetime
import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from graphxai.runtime.extras import missing_extra

from .delimited import Row
from .headers import TOP, Header, find_header
from .opening import TableError, opened

ROWS = 1024  # rows of a Parquet file that are unpacked at a time
MAX_CONTENT = 1 << 29  # bytes of a workbook's parts when they are unpacked
MAX_COLUMNS = 2000
ABOVE = 1000  # rows among which the header is
MAX_EMPTY = 100_000  # empty rows one after another; a cell far down makes a million of them


def as_text(value: Any) -> str:
    """Return a value as a cell of text, "" if it is missing.

    A whole number has no decimal point, as spreadsheets hold all numbers as floating point.
    """
    if isinstance(value, str):
        return value
    if value is None or value != value:  # NaN and pandas's NaT
        return ""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        whole = value.is_integer() and abs(value) < 1e15
        return str(int(value)) if whole else repr(value) if math.isfinite(value) else ""
    if isinstance(value, datetime.datetime):
        is_date = value.time() == datetime.time() and value.tzinfo is None
        return value.date().isoformat() if is_date else value.isoformat(sep=" ")
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)


@dataclass(frozen=True)
class Sheet:
    """The sheet of a workbook that is read, or the only one of a Parquet file.

    Attributes:
        name: its name; "" in a Parquet file.
        others: the names of the other sheets.
        rows: roughly how many rows it has, as the file states.
    """

    name: str
    others: tuple[str, ...]
    header: Header
    rows: int = 0


def parquet_sheet(path: Path) -> Sheet:
    """Return the columns and the number of rows of a Parquet file.

    Raises:
        ImportError: pyarrow is not installed.
        TableError: the file is damaged.
    """
    with _opened_parquet(path) as file:
        names = (name for name in file.schema_arrow.names if name != "__index_level_0__")
        return Sheet("", (), Header(0, 1, tuple(names)), int(file.metadata.num_rows))


def parquet_rows(path: Path, names: Sequence[str], wanted: Sequence[str]) -> Iterator[Row]:
    """Yield the rows one by one. The cells of columns that are not wanted are empty."""
    places = [names.index(name) for name in wanted]
    number = 0
    with _opened_parquet(path) as file:
        for batch in file.iter_batches(ROWS, columns=list(wanted)):
            columns = [batch.column(name).to_pylist() for name in wanted]
            for k in range(batch.num_rows):
                number += 1
                cells = [""] * len(names)
                for place, column in zip(places, columns, strict=True):
                    cells[place] = as_text(column[k])
                yield number, cells, ""


@contextmanager
def _opened_parquet(path: Path) -> Iterator[Any]:
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


def sheet_of(path: Path, asked: str | None = None) -> Sheet:
    """Choose the first sheet that has cells, and find its header, see `find_header`.

    Raises:
        ImportError: openpyxl is not installed.
        TableError: the file is damaged, is no workbook, or is too large when it is unpacked.
    """
    with _opened_workbook(path) as workbook:
        titles = [sheet.title for sheet in workbook.worksheets]
        for sheet in workbook.worksheets:
            stated = max(sheet.max_row or 1, 1) - 1
            top = islice(_values(sheet, MAX_COLUMNS, path, ABOVE), TOP + 2)
            texts = [[as_text(value).strip() for value in row] for row in top]
            if texts:
                others = tuple(title for title in titles if title != sheet.title)
                return Sheet(sheet.title, others, find_header(texts, asked), stated)
    raise TableError(f"{path} has no sheet with a table.")


def sheet_rows(path: Path, sheet: Sheet) -> Iterator[Row]:
    """Yield the rows below the header that are not empty, numbered from 1."""
    width, header = len(sheet.header.names), sheet.header
    with _opened_workbook(path) as workbook:
        values = _values(workbook[sheet.name], width + 1, path)
        below = islice(values, header.first + header.rows, None)
        for number, row in enumerate(below, start=1):
            cells = [as_text(value) for value in row]
            cells += [""] * (width - len(cells))
            if len(cells) > width and cells[width].strip():
                yield number, (), "it has a cell to the right of the header's last column."
            else:
                yield number, cells[:width], ""


def _values(sheet: Any, width: int, path: Path, last: int | None = None) -> Iterator[Sequence[Any]]:
    """Yield at most `width` values of each row that is not empty, up to the row `last`."""
    sheet.reset_dimensions()  # which the file states and may state wrongly
    empty = 0
    for row in sheet.iter_rows(max_row=last, max_col=width, values_only=True):
        if any(value not in (None, "") for value in row):
            empty = 0
            yield row
            continue
        empty += 1
        if empty > MAX_EMPTY:
            raise TableError(f"{path} has over {MAX_EMPTY:,} empty rows in sheet {sheet.title!r}.")


@contextmanager
def _opened_workbook(path: Path) -> Iterator[Any]:
    """Open a workbook to read values, not formulas."""
    try:
        from openpyxl import load_workbook
    except ImportError as error:
        purpose = f"{path}: Excel workbooks need"
        raise missing_extra(purpose, "openpyxl", "excel", "save the sheet as CSV") from error
    with opened(path) as file:
        try:
            with zipfile.ZipFile(file) as parts:
                size = sum(part.file_size for part in parts.infolist())
            if size > MAX_CONTENT:
                raise TableError(
                    f"{path} holds {size:,} bytes when it is unpacked: save the sheet as CSV."
                )
            workbook = load_workbook(file, read_only=True, data_only=True, keep_links=False)
        except TableError:
            raise
        except Exception as error:  # a damaged file raises errors of any type
            raise TableError(f"{path} cannot be read as a workbook: {error}.") from error
        try:
            yield workbook
        finally:
            workbook.close()
