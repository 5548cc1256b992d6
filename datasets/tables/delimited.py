"""Read the rows of text files: cells between separators, or lines that begin with a SMILES."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, TypeAlias

from .columns import size_of
from .dialect import LATIN, TextLayout
from .opening import TableError, opened

MAX_CELL = 1 << 24  # characters
MAX_LINE = 1 << 26  # characters
csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL))

LIST_COLUMNS = ("smiles", "name")
WHOLE, DIGITS = re.compile(r"\s*[+-]?\d+\s*"), re.compile(r"\s*\d+\s*")


# A row: its number, of which the first below the header is 1; the cells of all columns; and why the
# row cannot be told apart into columns, or "". A row with such a problem has no cells.
Row: TypeAlias = tuple[int, Sequence[str], str]


@contextmanager
def opened_text(path: Path, layout: TextLayout) -> Iterator[io.TextIOWrapper]:
    """Open a file of text below the lines that come before its header.

    Reading raises a TableError at a line that is longer than any table has.
    """
    errors = LATIN if layout.encoding == "utf-8-sig" else "replace"
    with (
        opened(path) as content,
        io.BufferedReader(_BoundedLines(content, path), 1 << 16) as bounded,
        io.TextIOWrapper(bounded, encoding=layout.encoding, errors=errors, newline="") as text,
    ):
        for _ in range(layout.skipped):
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
    with opened_text(path, layout) as text:
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
        with opened_text(path, layout) as text:
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
    with opened_text(path, layout) as text:
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
