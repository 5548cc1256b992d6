"""Read labels as people write them in tables: numbers, words for classes, and gaps."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .cell_numbers import NUMBER, TYPOGRAPHY, ParsedNumbers, parsed_numbers
from .cell_numbers import Bound as Bound

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
POSITIVE = frozenset(
    ("1", "+", "yes", "y", "true", "t", "active", "positive", "pos", "present", "high", "toxic")
)
NEGATIVE = frozenset(
    ("0", "-1", "-", "no", "n", "false", "f", "inactive", "negative", "neg", "absent", "low")
)
PREFIXES = ("in", "im", "non", "non-", "non ", "not ", "un")


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of one column.

    Args:
        values (n,): class numbers or measured values, NaN where there is none.
        classes: names of the classes in the order of their numbers, empty for a regression. The
            second of two is the positive class.
        unusable: positions of cells that are not empty but have no label of this kind.
        bounds: the unusable cells that limit a value (">10").
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
    """Split a column's header, such as `freesolv (kcal/mol)`, into name and unit (or "")."""
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
    numbers = parsed_numbers(cells)
    numeric = [k for k in present if not math.isnan(numbers.values[k])]
    if kind != "classification":
        _require_clear(name, cells, numbers, present, len(numeric) + len(numbers.bounds))
    chosen, note = kind, "as given"
    if chosen is None:
        distinct = {float(numbers.values[k]) for k in numeric}
        chosen, note = _infer(len(present), len(numeric), len(numbers.bounds), distinct)
    if chosen == "regression":
        if not numeric:
            nouns = "bounds" if numbers.bounds else "words"
            example = cells[numbers.bounds[0].position if numbers.bounds else present[0]]
            raise ValueError(f"column {name!r} has no numbers, only {nouns} such as {example!r}.")
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


class MeasuredCells(NamedTuple):
    """What the cells of a column say was measured.

    Attributes:
        values: values or class numbers (n,), NaN where there is none.
        bounds: what cells such as ">10" say of a regression.
        strange: the positions of the cells that are neither empty nor understood. Of a value that
            is only about right ("~5"), nothing is taken.
    """

    values: FloatArray
    bounds: tuple[Bound, ...]
    strange: tuple[int, ...]


def read_measured(cells: Sequence[str], classes: Sequence[str] = ()) -> MeasuredCells:
    """Read measured values as `read_labels` does, for the task of a model.

    classes: the task's classes; empty for a regression. A class may be written in any case. One of
    two may also be 0 or 1, or a word such as "yes" or "no" if the positive class is clear.
    """
    bounds: tuple[Bound, ...] = ()
    if classes:
        of_cells = (_class_number(cell, classes) for cell in cells)
        values = np.array([math.nan if n is None else float(n) for n in of_cells], dtype=float)
    else:
        numbers = parsed_numbers(cells)
        values, bounds = numbers.values, tuple(bound for bound in numbers.bounds if bound.side)
    present = _present(cells)
    measured = np.full(len(cells), np.nan)
    measured[present] = values[present]
    sided = {bound.position for bound in bounds}
    strange = tuple(k for k in present if math.isnan(measured[k]) and k not in sided)
    return MeasuredCells(measured, bounds, strange)


def not_understood(name: str, cells: Sequence[str], positions: Sequence[int]) -> str:
    """Say how many measured values of a column were not understood, or return "" if all were.

    Args:
        positions: positions of the cells that were not understood.
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


class UnclearNumbersError(ValueError):
    """Raised for cells that would be numbers if their commas or units were understood."""


def _require_clear(
    name: str, cells: Sequence[str], numbers: ParsedNumbers, present: Sequence[int], numeric: int
) -> None:
    """Refuse a column whose cells would be numbers if its commas or its units were understood."""
    if numeric * 2 >= len(present):
        return
    if numbers.unclear and (numeric + len(numbers.unclear)) * 2 >= len(present):
        raise UnclearNumbersError(
            f"column {name!r} has numbers such as {cells[numbers.unclear[0]]!r}, whose comma may"
            " mark decimals or thousands: write them with a decimal point and without thousands"
            " separators."
        )
    if numbers.units and (numeric + len(numbers.units)) * 2 >= len(present):
        first, unit = next(iter(numbers.units.items()))
        raise UnclearNumbersError(
            f"column {name!r} has numbers with a unit, such as {cells[first]!r}: remove"
            f" {unit!r} from the cells, and name the unit in the header: '{name} ({unit})'."
        )


def _class_number(cell: str, classes: Sequence[str]) -> int | None:
    """Return the number of the class that a cell means, or None if it is unclear which one."""
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
        content, reason = "texts", "these are neither numbers nor a few classes"
        if all(isinstance(key, float) for key in spellings):
            content, reason = "numbers", "learn them as a regression, or write a few classes"
        raise ValueError(
            f"column {name!r} has {len(spellings)} different {content}, such as"
            f" {cells[used[0]]!r}: {reason} (at most {limit})."
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
