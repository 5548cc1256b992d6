"""Find how a table is written: separator and decimals of a text, and the header below titles.

The header may take two rows, and a row below it may state units.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..cell_numbers import marks_decimals, parsed_numbers
from .columns import LIKELY, SURE, is_unit, plain_name

TOP = 20  # rows among which the header is
STRUCTURES = ("structure", "molstructure", "chemicalstructure", "compoundstructure")
PUBCHEM = "RESULT_"  # begins the rows below the header of a PubChem assay
PUBCHEM_UNITS = "RESULT_UNIT"
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
class Header:
    """The header of a table.

    Attributes:
        first: how many rows with cells stand above it.
        rows: how many rows it takes, with the units.
        units: the units that a row below the names states, by column.
    """

    first: int
    rows: int
    names: tuple[str, ...]
    units: dict[str, str] = field(default_factory=dict)


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


def find_header(rows: Sequence[Sequence[str]], asked: str | None = None) -> Header:
    """Find the header among the first rows of a table.

    It is the first row, unless a later one has the title of structures. A second row of titles
    stands below merged cells. Titles above the header tell columns of one name apart.

    Args:
        rows: the first rows that have cells.
        asked: the column of structures that the user named, by which the header is known.
    """
    first = _place(rows[:TOP], asked)
    if not rows:
        return Header(0, 1, ())
    below = [list(row) for row in rows[first:]]
    names, after = [cell.strip() for cell in below[0]], 1
    place = next((k for k, name in enumerate(names) if _is_structures(name, asked)), 0)
    if _is_second(names, below[1:2], place):
        names, after = _joined(names, below[1]), 2
    while names and not names[-1]:
        names.pop()
    if names:
        names[0] = names[0].lstrip("\ufeff#").strip()
    if first and len(set(names)) < len(names):
        names = _told_apart(names, rows[first - 1])
    columns = tuple(name or f"column {k}" for k, name in enumerate(names, start=1))
    units: dict[str, str] = {}
    while len(below) > after and below[after][0].startswith(PUBCHEM):
        if below[after][0] == PUBCHEM_UNITS:
            units = _units(columns, below[after][1:], 1)
        after += 1
    if len(below) > after and _states_units(below[after], place):
        units, after = _units(columns, below[after]), after + 1
    return Header(first, after, columns, units)


def _place(rows: Sequence[Sequence[str]], asked: str | None) -> int:
    """Return the position of the first row that has the title of structures, or else 0."""
    widest = 0  # cells; a row of data has as many as its header, titles have fewer
    for place, row in enumerate(rows):
        filled = sum(bool(cell.strip()) for cell in row)
        if filled > widest and any(_is_structures(cell, asked) for cell in row):
            return place
        if place == 0 and asked is None and any(plain_name(cell) in LIKELY for cell in row):
            return 0
        widest = max(widest, filled)
    return 0


def _is_structures(name: str, asked: str | None) -> bool:
    if asked is not None:
        return name.strip().casefold() == asked.strip().casefold()
    plain = plain_name(name)
    return plain in SURE or plain in STRUCTURES or (plain.endswith("smiles") and len(plain) < 40)


def _is_second(names: Sequence[str], below: Sequence[Sequence[str]], place: int) -> bool:
    """Return whether the row below the names has further titles, below merged cells."""
    if not below or len(below[0]) <= place or below[0][place].strip():
        return False
    titles = {k: cell.strip() for k, cell in enumerate(below[0]) if cell.strip()}
    numbers = parsed_numbers(list(titles.values()))
    is_text = not numbers.bounds and bool((numbers.values != numbers.values).all())
    merged = [k >= len(names) or not names[k] for k in titles]  # the first keeps the title
    return any(merged) and not all(merged) and is_text and not all(map(is_unit, titles.values()))


def _joined(names: Sequence[str], below: Sequence[str]) -> list[str]:
    """Join two rows of titles, of which the upper ones hold as far as the lower ones go on."""
    joined, upper = [], ""
    for k in range(max(len(names), len(below))):
        name = names[k] if k < len(names) else ""
        title = below[k].strip() if k < len(below) else ""
        upper = name or (upper if title else "")
        joined.append(f"{upper} {title}".strip())
    return joined


def _told_apart(names: Sequence[str], above: Sequence[str]) -> list[str]:
    """Put the titles above the header before names that several columns have."""
    apart, upper = [], ""
    for k, name in enumerate(names):
        upper = above[k].strip() if k < len(above) and above[k].strip() else upper
        apart.append(f"{upper} {name}".strip() if list(names).count(name) > 1 else name)
    return apart


def _states_units(row: Sequence[str], place: int) -> bool:
    """Return whether a row has units, and no structure."""
    texts = [cell.strip() for cell in row if cell.strip()]
    return bool(texts) and len(row) > place and not row[place].strip() and all(map(is_unit, texts))


def _units(columns: Sequence[str], cells: Sequence[str], first: int = 0) -> dict[str, str]:
    """Return the units of columns, of which the cells begin at the column `first`."""
    named = zip(columns[first:], cells, strict=False)
    return {name: cell.strip("()[] ") for name, cell in named if cell.strip()}
