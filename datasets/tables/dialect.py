"""Find how a text file separates its columns and marks decimals, from its first lines."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from dataclasses import dataclass

from ..cell_numbers import marks_decimals
from .headers import Header, find_header

SEPARATORS = ",;\t|"
SAMPLE = 200  # rows that show the separator and the decimal mark
SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)  # Excel's first line


def _as_latin(error: UnicodeError) -> tuple[str, int]:
    """Decode bytes that are not UTF-8 as Windows-1252, which extends Latin-1."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("cp1252", "replace"), error.end


LATIN = "graphxai.latin"  # the handler of errors of decoding
codecs.register_error(LATIN, _as_latin)


@dataclass(frozen=True)
class Dialect:
    """How a table is written as text, so that what is made of it can be written alike.

    Attributes:
        separator: the character between two cells.
        decimal: the mark of decimals, "." or ",".
        byte_order_mark: whether the file begins with one, by which Excel knows UTF-8.
    """

    separator: str = ","
    decimal: str = "."
    byte_order_mark: bool = False

    def number(self, text: str) -> str:
        """Return a number in this dialect."""
        return text if self.decimal == "." else text.replace(".", self.decimal)


DEFAULT = Dialect()


@dataclass(frozen=True)
class TextLayout:
    """What has to be known to read a text file row by row.

    Attributes:
        dialect: how to write a file like it.
        encoding: its encoding; bytes that do not fit are read as `LATIN` says.
        skipped: lines before the header.
    """

    dialect: Dialect
    encoding: str
    skipped: int
    header: Header


def text_layout(head: bytes, column: str | None) -> TextLayout:
    """Find, from the bytes at its start, how a text file is written.

    Args:
        column: a column that the header must have. The separator is the one that gives it, if one
            does, and otherwise the one that cuts the rows into as many cells as the header.
    """
    encoding = encoding_of(head)
    text = head.decode(encoding, LATIN if encoding == "utf-8-sig" else "replace")
    lines = text.splitlines(keepends=True)
    stated = SEPARATOR_LINE.fullmatch(lines[0].lstrip("\ufeff")) if lines else None
    skipped = 1 if stated else 0
    text = "".join(lines[skipped:])
    separator = stated[1] if stated else _separator(text, column)
    rows, starts = _sample(text, separator)
    header = find_header(rows, column)
    below = rows[header.first + header.rows :]
    marks = Counter(marks_decimals(cell) for cells in below for cell in cells)
    decimal = "," if separator != "," and marks[","] > marks["."] else "."
    skipped += starts[header.first] if header.first else 0
    dialect = Dialect(separator, decimal, _is_from_excel(head, stated))
    return TextLayout(dialect, encoding, skipped, header)


def encoding_of(head: bytes) -> str:
    """Return UTF-8, or UTF-16 if its byte-order mark or its zero bytes show it, as in Excel's text.

    The decoder for UTF-16 takes the mark away by itself.
    """
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    few = head[:1000]
    for first, encoding in (1, "utf-16-le"), (0, "utf-16-be"):
        zeros = few[first::2]
        if len(zeros) > 4 and zeros.count(0) > 0.7 * len(zeros) and 0 not in few[1 - first :: 2]:
            return encoding
    return "utf-8-sig"


def _is_from_excel(head: bytes, stated: re.Match[str] | None) -> bool:
    """Return whether a file is one that Excel wrote or that was written for Excel."""
    marks = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    if stated or head.startswith(marks):
        return True
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the last letter may be cut
    except UnicodeDecodeError:
        return True  # Windows-1252
    return False


def _separator(text: str, column: str | None) -> str:
    """Return the separator of a file, given the text at its start."""
    samples = {separator: _sample(text, separator)[0] for separator in SEPARATORS}
    firsts = {sign: find_header(rows, column).first for sign, rows in samples.items()}
    headers = {
        sign: [name.strip() for name in rows[firsts[sign]]]
        for sign, rows in samples.items()
        if rows
    }
    if column is not None:
        exact = [sign for sign, names in headers.items() if column in names]
        folded = column.casefold()
        alike = [sign for sign, names in headers.items() if folded in map(str.casefold, names)]
        if chosen := exact or alike:
            headers = {sign: headers[sign] for sign in chosen}
    several = [sign for sign, names in headers.items() if len(names) > 1]
    if not several:
        return next(iter(headers), ",")

    def fit(separator: str) -> tuple[float, int]:
        first, *rows = samples[separator][firsts[separator] :]
        fitting = sum(len(cells) == len(first) for cells in rows)
        return fitting / max(len(rows), 1), len(first)

    return max(several, key=fit)


def _sample(text: str, separator: str) -> tuple[list[list[str]], list[int]]:
    """Return the first rows of a text that are not empty, and how many lines stand above each."""
    rows, starts, line = [], [], 0
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        for cells in reader:
            if cells:
                rows.append(cells)
                starts.append(line)
            line = reader.line_num
            if len(rows) == SAMPLE:
                break
    except csv.Error:
        pass  # reading the whole file says what is wrong with it
    return rows, starts
