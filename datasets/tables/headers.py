"""Find the header of a table below titles, in one row or two, and the units in a row below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..cell_numbers import parsed_numbers
from .columns import LIKELY, SURE, plain_name
from .exports import is_unit

TOP = 20  # rows among which the header is
STRUCTURES = ("structure", "molstructure", "chemicalstructure", "compoundstructure")
PUBCHEM = "RESULT_"  # begins the rows below the header of a PubChem assay
PUBCHEM_UNITS = "RESULT_UNIT"


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
