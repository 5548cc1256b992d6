"""Read labels as people write them in tables: numbers, words for classes, and gaps."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Bound",
    "Labels",
    "LabelsKind",
    "is_missing",
    "name_and_unit",
    "not_understood",
    "read_labels",
    "read_measured",
    "with_unit",
]

LabelsKind = Literal["classification", "regression"]
FloatArray = NDArray[np.float64]

MAX_CLASSES = 20
LONGEST = 40  # characters of a cell that are quoted
MISSING = frozenset(
    (
        *("", "na", "n/a", "n.a.", "n.a", "#n/a", "nan", "none", "null", "missing", "?", "--"),
        *("nd", "n.d.", "n.d", "n/d", "nt", "n.t.", "n.t", "n/t", "tbd", "\u2013", "\u2014"),
        *("not tested", "not determined", "not measured", "not available"),
        *("#div/0!", "#value!", "#ref!", "#num!", "#name?"),
    )
)
TYPOGRAPHY = str.maketrans({"\u2212": "-", "\u00a0": " ", "\u202f": " "})  # minus, fixed spaces
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
WITH_COMMA = re.compile(r"[+-]?(\d+),(\d+)([eE][+-]?\d+)?")
WITH_POINT = re.compile(r"[+-]?(\d*)\.(\d*)([eE][+-]?\d+)?")
POINTS_GROUP = re.compile(r"[+-]?\d{1,3}(?:(?:\.\d{3})+,\d+|(?:\.\d{3}){2,})")  # 1.023,5
LIMIT = re.compile(r"(>=|=>|<=|=<|>>|<<|[<>\u2264\u2265\u2a7d\u2a7e~\u2248])\s*(\S.*)")
WITH_UNIT = re.compile(r"[+-]?[\d.,]*\d(?:[eE][+-]?\d+)?\s*(\D{1,12})")
UNITS = frozenset(
    (
        *("%", "m", "mm", "um", "nm", "pm", "fm", "mol/l", "mmol/l", "umol/l", "nmol/l", "pmol/l"),
        *("g", "mg", "ug", "ng", "g/l", "mg/l", "ug/l", "mg/ml", "ug/ml", "ng/ml", "mg/kg", "ppm"),
        *("kcal/mol", "kj/mol", "h", "min", "\u00b0c", "cm/s"),
    )
)
POSITIVE = frozenset(
    ("1", "+", "yes", "y", "true", "t", "active", "positive", "pos", "present", "high", "toxic")
)
NEGATIVE = frozenset(
    ("0", "-1", "-", "no", "n", "false", "f", "inactive", "negative", "neg", "absent", "low")
)
PREFIXES = ("in", "im", "non", "non-", "non ", "not ", "un")


@dataclass(frozen=True)
class Bound:
    """A cell such as ">10", which says only where a value lies.

    Args:
        position: the position of the cell in its column.
        side: +1 if the value lies above `value`, -1 if below, 0 if about there.
    """

    position: int
    side: int
    value: float

    def excludes(self, value: float) -> bool:
        """Return whether a value lies on the wrong side."""
        return self.side * (value - self.value) < 0


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of one column.

    Args:
        values (n,): class numbers or measured values, NaN where there is none.
        classes: their names in the order of the numbers, empty for a regression; the second of
            two is the positive class.
        unusable: positions of cells that are not empty but have no label of this kind.
        bounds: those of them that limit a value (">10").
        note: how the kind was chosen.
    """

    name: str
    kind: LabelsKind
    values: FloatArray
    classes: tuple[str, ...] = ()
    unusable: tuple[int, ...] = ()
    note: str = ""
    bounds: tuple[Bound, ...] = ()


def name_and_unit(header: str) -> tuple[str, str]:
    """Split a column's header, `freesolv (kcal/mol)`, into name and unit, which may be empty."""
    text = header.strip()
    if not text.endswith((")", "]")):
        return header, ""
    inside = text[:-1]
    opening = max(inside.rfind("("), inside.rfind("["))
    name, unit = inside[:opening].rstrip(), inside[opening + 1 :].strip()
    if opening < 0 or not name or not unit or ")" in unit or "]" in unit:
        return header, ""
    return name, unit


def with_unit(name: str, unit: str) -> str:
    """Return a name as the header of a column, with its unit, if it has one, in parentheses."""
    return f"{name} ({unit})" if unit else name


def is_missing(cell: str) -> bool:
    """Return whether a cell says that nothing was measured."""
    return _word(cell) in MISSING


def read_labels(name: str, cells: Sequence[str], kind: LabelsKind | None = None) -> Labels:
    """Read the labels in a column's cells. Without a `kind`, the cells show what they are.

    Words are classes, whatever their case. Numbers are values, unless there are only two different
    whole numbers, such as 0 and 1. If at least half of the cells are numbers or bounds (">10"),
    these bounds and other text are unusable. A hyphen alone is a gap, unless other cells are "+".

    A comma or a point followed by more or fewer than three digits marks decimals. If most such
    cells have commas, "9,150" is 9.15, and where none has a point, "1.023" is 1023.

    Raises:
        ValueError: no labels at all, too many different words to be classes, or numbers that are
            mostly ambiguous ("9,150") or have units in their cells; the message says what to do.
    """
    present = _present(cells)
    if not present:
        raise ValueError(f"column {name!r} has no labels.")
    numbers = _parsed_numbers(cells)
    numeric = [k for k in present if not math.isnan(numbers.values[k])]
    if kind != "classification":
        _require_clear(name, cells, numbers, present, len(numeric) + len(numbers.bounds))
    chosen, note = kind, "as given"
    if chosen is None:
        distinct = {float(numbers.values[k]) for k in numeric}
        chosen, note = _infer(len(present), len(numeric), len(numbers.bounds), distinct)
    if chosen == "regression":
        if not numeric:
            what = "bounds" if numbers.bounds else "words"
            example = cells[numbers.bounds[0].position if numbers.bounds else present[0]]
            raise ValueError(f"column {name!r} has no numbers, only {what} such as {example!r}.")
        unusable = tuple(k for k in present if math.isnan(numbers.values[k]))
        return Labels(name, "regression", numbers.values, (), unusable, note, numbers.bounds)
    # In a column of numbers that are classes, a stray word is a class only if the user says so.
    mixed = kind is None and len(numeric) * 2 >= len(present)
    used = numeric if mixed else present
    # If more than half of the cells differ, they are names or remarks, not classes.
    limit = MAX_CLASSES if kind else max(2, min(MAX_CLASSES, len(used) // 2))
    values, classes = _classes(name, cells, numbers.values, used, limit)
    unusable = tuple(k for k in present if math.isnan(values[k]))
    return Labels(name, "classification", values, classes, unusable, note)


def read_measured(
    cells: Sequence[str], classes: Sequence[str] = ()
) -> tuple[FloatArray, tuple[int, ...]]:
    """Read measured values as `read_labels` does, for the task of a model.

    classes: the task's classes; empty for a regression. A class may be written in any case. One of
    two may also be 0 or 1, or a word such as "yes" or "no" if the positive class is clear.

    Returns:
        Values or class numbers (n,), NaN where there is none, and the positions of the cells that
        are neither empty nor understood.
    """
    if classes:
        numbers = (_class_number(cell, classes) for cell in cells)
        values = np.array([math.nan if n is None else float(n) for n in numbers], dtype=float)
    else:
        values = _parsed_numbers(cells).values
    present = _present(cells)
    measured = np.full(len(cells), np.nan)
    measured[present] = values[present]
    return measured, tuple(k for k in present if math.isnan(measured[k]))


def not_understood(name: str, cells: Sequence[str], positions: Sequence[int]) -> str:
    """Say how many of a column's measured values, those at `positions`, were not understood.

    Without such values, the text is empty.
    """
    if not positions:
        return ""
    example = cells[positions[0]]
    shown = example if len(example) <= LONGEST else f"{example[:LONGEST]}..."
    were = "was" if len(positions) == 1 else "were"
    return (
        f"{len(positions):,} of {len(_present(cells)):,} measured values in column {name!r} {were}"
        f" not understood, such as {shown!r}."
    )


@dataclass(frozen=True, eq=False)
class _ParsedNumbers:
    """The numbers in cells, and why other cells are not numbers.

    Args:
        values (n,): NaN where there is no number.
        unclear: positions of cells such as "9,150" where nothing says what the comma means.
        units: the unit behind the number in a cell, by position.
    """

    values: FloatArray
    bounds: tuple[Bound, ...]
    unclear: tuple[int, ...]
    units: dict[int, str]


def _word(cell: str) -> str:
    """Return a cell in lower case and with single spaces."""
    return " ".join(cell.translate(TYPOGRAPHY).split()).casefold()


def _present(cells: Sequence[str]) -> list[int]:
    """Return the positions of cells with a label. A hyphen is one only if other cells are "+"."""
    signs = any("+" in cell and not cell.strip("+-/() ") for cell in cells)
    return [
        k for k, cell in enumerate(cells) if not is_missing(cell) and (signs or cell.strip() != "-")
    ]


def _infer(present: int, numeric: int, bounds: int, distinct: set[float]) -> tuple[LabelsKind, str]:
    """Return the kind of a column, and why."""
    if (numeric + bounds) * 2 < present:
        return "classification", "inferred from words"
    few = len(distinct) <= 2 and all(value.is_integer() for value in distinct)
    if few and bounds <= numeric:
        return "classification", f"inferred from {len(distinct)} whole numbers"
    return "regression", f"inferred from {len(distinct)} different numbers"


def _require_clear(
    name: str, cells: Sequence[str], numbers: _ParsedNumbers, present: Sequence[int], numeric: int
) -> None:
    """Refuse a column that would be one of numbers if its commas or its units were understood."""
    if numeric * 2 >= len(present):
        return
    if numbers.unclear and (numeric + len(numbers.unclear)) * 2 >= len(present):
        raise ValueError(
            f"column {name!r} has numbers such as {cells[numbers.unclear[0]]!r}, whose comma may"
            " mark decimals or thousands: write them with a decimal point and without thousands"
            " separators."
        )
    if numbers.units and (numeric + len(numbers.units)) * 2 >= len(present):
        first, unit = next(iter(numbers.units.items()))
        raise ValueError(
            f"column {name!r} has numbers with a unit, such as {cells[first]!r}: remove"
            f" {unit!r} from the cells, and name the unit in the header: '{name} ({unit})'."
        )


def _parsed_numbers(cells: Sequence[str]) -> _ParsedNumbers:
    """Read the numbers in cells. None of them is infinite."""
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
            bounds.append(Bound(k, _side(limit[1]), value))
    return _ParsedNumbers(values, tuple(bounds), tuple(unclear), units)


def _side(sign: str) -> int:
    """Return the side on which a bound's value lies, see `Bound`."""
    if sign in ("~", "\u2248"):
        return 0
    return 1 if set(sign) & set(">\u2265\u2a7e") else -1


def _may_group(match: re.Match[str]) -> bool:
    """Return whether a separator may group thousands: "1,023" may, "0,150" and "28,2" do not."""
    whole, fraction, exponent = match.groups()
    return len(fraction) == 3 and len(whole) in (1, 2, 3) and whole[0] != "0" and not exponent


def _proves_comma(text: str) -> bool:
    """Return whether a cell shows that commas mark decimals."""
    match = WITH_COMMA.fullmatch(text)
    return bool(POINTS_GROUP.fullmatch(text)) or (match is not None and not _may_group(match))


def _proves_point(text: str) -> bool:
    """Return whether a cell shows that points mark decimals."""
    match = WITH_POINT.fullmatch(text)
    return match is not None and bool(NUMBER.fullmatch(text)) and not _may_group(match)


def _value(text: str, commas: int, points: int) -> float | None:
    """Return the number in a cell, or None if there is none or its separator is ambiguous.

    Args:
        commas, points: how many cells of the column show that these mark decimals.
    """
    if POINTS_GROUP.fullmatch(text):
        text = text.replace(".", "").replace(",", ".")
    elif match := WITH_COMMA.fullmatch(text):
        if _may_group(match) and commas <= points:
            return None
        text = text.replace(",", ".")
    elif (match := WITH_POINT.fullmatch(text)) and commas > points and _may_group(match):
        if points:
            return None
        text = text.replace(".", "")
    if not NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def _unit(text: str) -> str:
    """Return the unit behind a number, or "" if there is none of `UNITS`."""
    match = WITH_UNIT.fullmatch(text)
    if match is None:
        return ""
    unit = match[1].strip()
    plain = "".join(unit.casefold().replace("\u00b5", "u").replace("\u03bc", "u").split())
    return unit if plain in UNITS else ""


def _class_number(cell: str, classes: Sequence[str]) -> int | None:
    """Return the number of a class as people write it, or None if it is unclear which is meant."""
    if cell in classes:
        return list(classes).index(cell)
    word, words = _word(cell), [_word(name) for name in classes]
    if words.count(word) == 1:
        return words.index(word)
    if NUMBER.fullmatch(word):
        same = [k for k, w in enumerate(words) if NUMBER.fullmatch(w) and float(w) == float(word)]
        if same:
            return same[0]
        if len(classes) == 2 and float(word) in (0, 1):
            return int(float(word))
    if len(classes) != 2 or not _is_positive(words[1], words[0]):
        return None
    if word in POSITIVE - {"high"}:
        return 1
    return 0 if word in NEGATIVE - {"low"} else None


def _is_positive(word: str, other: str) -> bool:
    """Return whether `word` is clearly the positive class beside `other`."""
    negated = other in {prefix + word for prefix in PREFIXES}
    return negated or (word in POSITIVE and other not in POSITIVE) or other in NEGATIVE


def _classes(
    name: str, cells: Sequence[str], numbers: FloatArray, used: Sequence[int], limit: int
) -> tuple[FloatArray, tuple[str, ...]]:
    """Return class numbers (n,) and names. "Yes" and "yes" are one class, as are "1" and "1.0"."""
    spellings: dict[str | float, Counter[str]] = defaultdict(Counter)
    keys: dict[int, str | float] = {}
    for k in used:
        word = " ".join(cells[k].split())
        keys[k] = word.casefold() if math.isnan(numbers[k]) else float(numbers[k])
        spellings[keys[k]][word] += 1
    if len(spellings) > limit:
        raise ValueError(
            f"column {name!r} has {len(spellings)} different texts, such as "
            f"{cells[used[0]]!r}: these are neither numbers nor a few classes (at most {limit})."
        )
    order = _ordered(list(spellings))
    names = [_spelt(key, spellings[key]) for key in order]
    values = np.full(len(cells), np.nan)
    for k, key in keys.items():
        values[k] = order.index(key)
    return values, tuple(names)


def _spelt(key: str | float, counts: Counter[str]) -> str:
    """Return the most common spelling of a class. Ties go to the first in the alphabet."""
    if isinstance(key, float):
        return f"{key:.15g}"
    return min(counts, key=lambda word: (-counts[word], word))


def _ordered(keys: list[str | float]) -> list[str | float]:
    """Sort numbers by size, then words by alphabet. Of two classes, the positive one is last."""
    ordered = sorted(keys, key=lambda key: (isinstance(key, str), key))
    if len(ordered) != 2:
        return ordered
    first, second = (f"{key:g}" if isinstance(key, float) else key for key in ordered)
    return ordered[::-1] if _is_positive(first, second) and first not in NEGATIVE else ordered
