"""Read the numbers in a column of cells: decimal commas, thousands, bounds (">10"), units."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

TYPOGRAPHY = str.maketrans({"\u2212": "-", "\u00a0": " ", "\u202f": " "})  # minus, fixed spaces
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
WITH_COMMA = re.compile(r"[+-]?(\d*),(\d+)([eE][+-]?\d+)?")
WITH_POINT = re.compile(r"[+-]?(\d*)\.(\d*)([eE][+-]?\d+)?")
POINTS_GROUP = re.compile(r"[+-]?\d{1,3}(?:(?:\.\d{3})+,\d+|(?:\.\d{3}){2,})")  # 1.023,5
COMMAS_GROUP = re.compile(r"[+-]?\d{1,3}(?:(?:,\d{3})+\.\d+|(?:,\d{3}){2,})")  # 1,023.5
LIMIT = re.compile(r"(>=|=>|<=|=<|>>|<<|[<>\u2264\u2265\u2a7d\u2a7e~\u2248])\s*(\S.*)")
WITH_UNIT = re.compile(r"[+-]?[\d.,]*\d(?:[eE][+-]?\d+)?\s*(\D{1,12})")

# Powers of ten of mol/l, and of g/l, which needs the molecule's mass
MOLAR = {"m": 0, "mm": -3, "um": -6, "nm": -9, "pm": -12, "fm": -15}
MOLAR |= {f"{prefix}mol/l": MOLAR[f"{prefix}m"] for prefix in ("", "m", "u", "n", "p", "f")}
MOLAR |= {"molar": 0, "millimolar": -3, "micromolar": -6, "nanomolar": -9, "picomolar": -12}
MASS = {"g/l": 0, "mg/ml": 0, "mg/l": -3, "ug/ml": -3, "ug/l": -6, "ng/ml": -6, "ng/l": -9}
MASS |= {"pg/ml": -9, "g/ml": 3}
POWERS = MOLAR | MASS
MICRO = str.maketrans({"\u00b5": "u", "\u03bc": "u", " ": None, "\u00b7": "."})
PER = re.compile(r"(.+?)[.*]?(m?l)\^?-1")  # ug.mL-1
UNITS = POWERS.keys() | {
    "%", "g", "mg", "ug", "ng", "mg/kg", "ppm", "kcal/mol", "kj/mol", "h", "min", "\u00b0c", "cm/s"
}  # fmt: skip


@dataclass(frozen=True)
class Bound:
    """A cell such as ">10", which says only where a value lies.

    Args:
        position: the position of the cell in its column.
        side: +1 if the measured value lies above `value`, -1 if below, 0 if about there.
        value: the number in the cell.
    """

    position: int
    side: int
    value: float

    def __str__(self) -> str:
        return f"{'>' if self.side > 0 else '<'}{self.value:.4g}"

    def excludes(self, value: float) -> bool:
        """Return whether a value lies on the wrong side."""
        return self.side * (value - self.value) < 0


@dataclass(frozen=True, eq=False)
class ParsedNumbers:
    """The numbers in cells, and why other cells are not numbers.

    Args:
        values (n,): NaN where there is no number.
        unclear: positions of cells such as "9,150" where nothing says what the comma means.
        units: the unit after the number in a cell, by position.
    """

    values: FloatArray
    bounds: tuple[Bound, ...]
    unclear: tuple[int, ...]
    units: dict[int, str]


def parsed_numbers(cells: Sequence[str]) -> ParsedNumbers:
    """Read the numbers in cells. An infinite number counts as none."""
    texts = [cell.translate(TYPOGRAPHY).strip() for cell in cells]
    limits = [LIMIT.fullmatch(text) for text in texts]
    bare = [text if limit is None else limit[2] for text, limit in zip(texts, limits, strict=True)]
    commas = sum(map(_proves_comma, bare))
    points = sum(map(_proves_point, bare))
    values = np.full(len(cells), np.nan)
    bounds, unclear, units = [], [], {}
    for k, (text, limit) in enumerate(zip(bare, limits, strict=True)):
        value = _value(text, commas, points)
        if value is None:
            unit = _unit(text)
            if unit:
                units[k] = unit
            elif not commas and WITH_COMMA.fullmatch(text):
                unclear.append(k)
        elif limit is None:
            values[k] = value
        else:
            side = 1 if set(limit[1]) & set(">\u2265\u2a7e") else -1
            side = 0 if limit[1] in ("~", "\u2248") else side
            bounds.append(Bound(k, side, value))
    return ParsedNumbers(values, tuple(bounds), tuple(unclear), units)


def _may_group(match: re.Match[str]) -> bool:
    """Return whether a separator may group thousands: "1,023" may, "0,150" and "28,2" do not."""
    whole, fraction, exponent = match.groups()
    return len(fraction) == 3 and len(whole) in (1, 2, 3) and whole[0] != "0" and not exponent


def marks_decimals(cell: str) -> str:
    """Return the decimal mark that a cell reveals, "," or ".", or "" if it reveals none."""
    text = cell.translate(TYPOGRAPHY).strip()
    return "," if _proves_comma(text) else "." if _proves_point(text) else ""


def _proves_comma(text: str) -> bool:
    """Return whether a cell shows that commas mark decimals."""
    match = WITH_COMMA.fullmatch(text)
    return bool(POINTS_GROUP.fullmatch(text)) or (match is not None and not _may_group(match))


def _proves_point(text: str) -> bool:
    """Return whether a cell shows that points mark decimals."""
    match = WITH_POINT.fullmatch(text)
    if COMMAS_GROUP.fullmatch(text):
        return True
    return match is not None and bool(NUMBER.fullmatch(text)) and not _may_group(match)


def _value(text: str, commas: int, points: int) -> float | None:
    """Return the number in a cell, or None if there is none or its separator is ambiguous.

    So many cells of the column show that commas, or points, mark decimals.
    """
    if POINTS_GROUP.fullmatch(text):
        text = text.replace(".", "").replace(",", ".")
    elif COMMAS_GROUP.fullmatch(text):
        text = text.replace(",", "")
    elif match := WITH_COMMA.fullmatch(text):
        if not _may_group(match) or commas > points:
            text = text.replace(",", ".")
        elif points and not commas:
            text = text.replace(",", "")
        else:
            return None
    elif (match := WITH_POINT.fullmatch(text)) and commas > points and _may_group(match):
        if points:
            return None
        text = text.replace(".", "")
    if not NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def _unit(text: str) -> str:
    """Return the unit after a number, or "" if there is none of `UNITS`."""
    match = WITH_UNIT.fullmatch(text)
    if match is None:
        return ""
    unit = match[1].strip()
    return unit if plain_unit(unit) in UNITS else ""


def plain_unit(unit: str) -> str:
    """Return a unit in the spelling of `MOLAR` and `MASS`."""
    plain = unit.translate(MICRO).casefold()
    match = PER.fullmatch(plain)
    return f"{match[1]}/{match[2]}" if match else plain
