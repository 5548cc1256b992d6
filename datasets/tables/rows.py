"""Read the rows of tables: of text between separators, of lists of SMILES, of typed cells.

Typed cells are those of workbooks, which openpyxl reads, and of Parquet, which pyarrow reads.
"""

from __future__ import annotations

import csv
import datetime
import io
import math
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from graphxai.runtime.extras import missing_extra

from .columns import size_of
from .dialect import LATIN, TOP, Header, TextLayout, find_header
from .opening import TableError, opened, opened_at_any_place

ROWS = 1024  # rows of a Parquet file that are unpacked at a time
MAX_CONTENT = 1 << 29  # bytes of a workbook's parts when they are unpacked
MAX_COLUMNS = 2000
ABOVE = 1000  # rows among which the header is
SHOWN_ROWS = 100  # rows that show whether the values of formulas are stored
MAX_EMPTY = 100_000  # empty rows one after another; a cell far down makes a million of them
MAX_CELL = 1 << 24  # characters
MAX_LINE = 1 << 26  # characters
csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL))

LIST_COLUMNS = ("smiles", "name")
WHOLE, DIGITS = re.compile(r"\s*[+-]?\d+\s*"), re.compile(r"\s*\d+\s*")


# A row: its number, of which the first below the header is 1; the cells of all columns; and why the
# row cannot be told apart into columns, or "". A row with such a problem has no cells.
Row: TypeAlias = tuple[int, Sequence[str], str]


@contextmanager
def opened_text(path: Path, encoding: str, skipped: int = 0) -> Iterator[io.TextIOWrapper]:
    """Open a file of text below some lines, such as those that come before its header.

    Reading raises a TableError at a line that is longer than any table has.
    """
    errors = LATIN if encoding == "utf-8-sig" else "replace"
    with (
        opened(path) as content,
        io.BufferedReader(_BoundedLines(content, path), 1 << 16) as bounded,
        io.TextIOWrapper(bounded, encoding=encoding, errors=errors, newline="") as text,
    ):
        for _ in range(skipped):
            text.readline()
        yield text


class _BoundedLines(io.RawIOBase):
    """A file with a limit on the length of lines, because readers keep a whole line in memory."""

    def __init__(self, content: BinaryIO, path: Path) -> None:
        self._content, self._path = content, path
        self._length = 0  # bytes of the line so far

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        part = self._content.read(len(buffer))
        buffer[: len(part)] = part
        end = max(part.rfind(b"\n"), part.rfind(b"\r"))
        self._length = self._length + len(part) if end < 0 else len(part) - end
        if self._length > MAX_LINE:
            raise TableError(f"{self._path} is no table: it has a line of over {MAX_LINE:,} bytes.")
        return len(part)


def rows(path: Path, layout: TextLayout, names: Sequence[str]) -> Iterator[Row]:
    """Yield the rows below the header one by one.

    A row without any cell, such as a blank line, is not counted. A row that has more or fewer cells
    than the header has a problem instead of cells, except for empty cells at its end.

    Raises:
        TableError: a quote is not closed, or a line is longer than any table has.
    """
    width, separator = len(names), layout.dialect.separator
    with opened_text(path, layout.encoding, layout.skipped) as text:
        reader = csv.reader(text, delimiter=separator)
        number, first_line, last_line = -layout.header.rows, 0, 0
        try:
            for cells in reader:
                first_line, last_line = last_line, reader.line_num
                if not cells:
                    continue
                number += 1
                if number <= 0:
                    continue  # the header
                while len(cells) > width and not cells[-1].strip():
                    cells.pop()
                if len(cells) == width:
                    yield number, cells, ""
                else:
                    yield number, (), _misfit(cells, names, separator)
        except csv.Error as error:
            raise TableError(f"{path}: cannot be read after line {last_line}: {error}.") from error
    if last_line - first_line > 1:
        # such a quote swallows the rest of the file as one cell, without an error
        with opened_text(path, layout.encoding, layout.skipped) as text:
            for _ in range(first_line):
                text.readline()
            rest = text.read(MAX_LINE)
        following = csv.reader(io.StringIO(f"{rest}\nend"), delimiter=layout.dialect.separator)
        if list(following)[-1] != ["end"]:
            line = first_line + 1 + layout.skipped
            raise TableError(f"{path}: a quote opened in line {line} is never closed.")


def list_rows(path: Path, layout: TextLayout) -> Iterator[Row]:
    """Yield the rows of a list whose lines hold a SMILES and, after a space or tab, a name.

    The first line is a header if it does not begin with a SMILES. `LIST_COLUMNS` names the cells.
    """
    number = 0
    with opened_text(path, layout.encoding, layout.skipped) as text:
        for k, line in enumerate(text):
            line = line.strip().lstrip("\ufeff")
            if not line or (k == 0 and not size_of(line.split()[0])):
                continue
            number += 1
            smiles, *rest = line.split(None, 1)
            name = rest[0] if rest else ""
            if name.startswith("|") and (end := name.find("|", 1)) > 0:
                smiles, name = f"{smiles} {name[: end + 1]}", name[end + 1 :].strip()
            yield number, (smiles, name), ""


def _misfit(cells: Sequence[str], names: Sequence[str], separator: str) -> str:
    """Say why a row does not fit its header."""
    width = len(names)
    counted = f"it has {len(cells)} cell{'' if len(cells) == 1 else 's'}, the header has {width}"
    if len(cells) < width:
        return f"{counted}: add the missing cells, or empty ones in their place."
    if separator == ",":
        for left, right in pairwise(cells):
            if WHOLE.fullmatch(left) and DIGITS.fullmatch(right):
                return (
                    f"{counted}: '{left.strip()},{right.strip()}' may be a number with a decimal"
                    " comma; separate the columns by semicolons, or write decimal points."
                )
    return f"{counted}: put a cell that contains {separator!r} between double quotes."


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
        return str(int(value)) if whole else repr(float(value)) if math.isfinite(value) else ""
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
        uncomputed: columns with formulas whose values the file does not have. A spreadsheet stores
            them when it saves the file; programs that write formulas do not.
    """

    name: str
    others: tuple[str, ...]
    header: Header
    rows: int = 0
    uncomputed: tuple[str, ...] = ()


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
    with opened_at_any_place(path) as content:
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
                header = find_header(texts, asked)
                empty = _uncomputed(path, sheet, header.names)
                return Sheet(sheet.title, others, header, stated, empty)
    raise TableError(f"{path} has no sheet with a table.")


def _uncomputed(path: Path, sheet: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Name the columns that have a formula without a value in their first rows."""
    places = set()
    with _opened_workbook(path, formulas=True) as workbook:
        as_written = workbook[sheet.title]
        as_written.reset_dimensions()
        tops = (
            each.iter_rows(max_row=SHOWN_ROWS, max_col=len(names), values_only=True)
            for each in (sheet, as_written)
        )
        for values, formulas in zip(*tops, strict=False):
            pairs = enumerate(zip(values, formulas, strict=False))
            places |= {k for k, (value, formula) in pairs if value is None and formula is not None}
    return tuple(name for k, name in enumerate(names) if k in places)


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
def _opened_workbook(path: Path, *, formulas: bool = False) -> Iterator[Any]:
    """Open a workbook to read values, or formulas in their place."""
    try:
        from openpyxl import load_workbook
    except ImportError as error:
        purpose = f"{path}: Excel workbooks need"
        raise missing_extra(purpose, "openpyxl", "excel", "save the sheet as CSV") from error
    with opened_at_any_place(path) as file:
        try:
            with zipfile.ZipFile(file) as parts:
                size = sum(part.file_size for part in parts.infolist())
            if size > MAX_CONTENT:
                raise TableError(
                    f"{path} holds {size:,} bytes when it is unpacked: save the sheet as CSV."
                )
            options = {"data_only": not formulas, "keep_links": False}
            workbook = load_workbook(file, read_only=True, **options)
        except TableError:
            raise
        except Exception as error:  # a damaged file raises errors of any type
            raise TableError(f"{path} cannot be read as a workbook: {error}.") from error
        try:
            yield workbook
        finally:
            workbook.close()
