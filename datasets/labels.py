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

__all__ = ["Labels", "LabelsKind", "is_missing", "name_and_unit", "read_labels", "with_unit"]

LabelsKind = Literal["classification", "regression"]
FloatArray = NDArray[np.float64]

MAX_CLASSES = 20
MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "none", "null", "nd", "n.d.", "?"})
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
HEADER = re.compile(r"(.*\S)\s*[(\[]([^()\[\]]*\S[^()\[\]]*)[)\]]")
DECIMAL_COMMA = re.compile(r"[+-]?\d+,(\d+)")
POSITIVE = frozenset(
    ("1", "+", "yes", "y", "true", "t", "active", "positive", "pos", "present", "high", "toxic")
)
NEGATIVE = frozenset(
    ("0", "-1", "-", "no", "n", "false", "f", "inactive", "negative", "neg", "absent", "low")
)
PREFIXES = ("in", "im", "non", "non-", "non ", "not ", "un")


@dataclass(frozen=True, eq=False)
class Labels:
    """One column: `values` (n,), class numbers or measured values, NaN where there is none.

    `classes` are in the order of their numbers and empty for regression; the second of two is the
    positive one. `unusable` are positions of cells that are not empty but have no label of this
    kind. `note` says how the kind was found.
    """

    name: str
    kind: LabelsKind
    values: FloatArray
    classes: tuple[str, ...] = ()
    unusable: tuple[int, ...] = ()
    note: str = ""


def name_and_unit(header: str) -> tuple[str, str]:
    """Split a column's header, `freesolv (kcal/mol)`, into name and unit; the unit may be empty."""
    found = HEADER.fullmatch(header.strip())
    return (found[1], found[2].strip()) if found else (header, "")


def with_unit(name: str, unit: str) -> str:
    """A name as a column's header: with its unit, if it has one, in parentheses."""
    return f"{name} ({unit})" if unit else name


def is_missing(cell: str) -> bool:
    """Whether a cell says that nothing was measured."""
    return cell.strip().casefold() in MISSING


def read_labels(name: str, cells: Sequence[str], kind: LabelsKind | None = None) -> Labels:
    """Read the labels in a column's cells; `kind` None infers what they are.

    Words are classes, whatever their case. Numbers are values, unless there are only two different
    whole numbers, such as 0 and 1. If at least half of the cells are numbers, other text (">10")
    is unusable. Commas are decimal commas if no cell of the column has a decimal point and at
    least one has a comma followed by more or fewer than three digits.

    Raises:
        ValueError: no labels at all, or too many different words to be classes.
    """
    numbers = _numbers(cells)
    present = [k for k, cell in enumerate(cells) if not is_missing(cell)]
    if not present:
        raise ValueError(f"column {name!r} has no labels.")
    numeric = [k for k in present if not math.isnan(numbers[k])]
    distinct = {float(numbers[k]) for k in numeric}
    found, note = kind, "as given"
    if found is None:
        found, note = _infer(len(present), len(numeric), distinct)
    if found == "regression":
        if not numeric:
            example = cells[present[0]]
            raise ValueError(f"column {name!r} has no numbers, only words such as {example!r}.")
        unusable = tuple(k for k in present if math.isnan(numbers[k]))
        return Labels(name, "regression", numbers, (), unusable, note)
    # In a column of numbers that are classes, an odd word is a class only if the user says so.
    mixed = kind is None and len(numeric) * 2 >= len(present)
    used = numeric if mixed else present
    # If more than half of the cells differ, they are names or remarks, not classes.
    limit = MAX_CLASSES if kind else max(2, min(MAX_CLASSES, len(used) // 2))
    values, classes = _classes(name, cells, numbers, used, limit)
    unusable = tuple(k for k in present if math.isnan(values[k]))
    return Labels(name, "classification", values, classes, unusable, note)


def _infer(present: int, numeric: int, distinct: set[float]) -> tuple[LabelsKind, str]:
    """Return the kind of a column, and why."""
    if numeric * 2 < present:
        return "classification", "inferred from words"
    if len(distinct) <= 2 and all(value.is_integer() for value in distinct):
        return "classification", f"inferred from {len(distinct)} whole numbers"
    return "regression", f"inferred from {len(distinct)} different numbers"


def _numbers(cells: Sequence[str]) -> FloatArray:
    """Return the numbers in cells (n,), NaN elsewhere; never infinite."""
    cells = [cell.strip() for cell in cells]
    fractions = [match[1] for cell in cells if (match := DECIMAL_COMMA.fullmatch(cell))]
    points = any("." in cell and NUMBER.fullmatch(cell) for cell in cells)
    # "1,234" may mean 1234: a column with nothing else to go by is not read as decimals.
    decimal = not points and any(len(fraction) != 3 for fraction in fractions)
    values = np.full(len(cells), np.nan)
    for k, cell in enumerate(cells):
        text = cell.replace(",", ".") if decimal and DECIMAL_COMMA.fullmatch(cell) else cell
        if NUMBER.fullmatch(text) and math.isfinite(value := float(text)):
            values[k] = value
    return values


def _classes(
    name: str, cells: Sequence[str], numbers: FloatArray, used: Sequence[int], limit: int
) -> tuple[FloatArray, tuple[str, ...]]:
    """Return class numbers (n,) and names; "Yes" and "yes", or "1" and "1.0", are one class."""
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
    """Return the most common spelling of a class; ties go to the first in the alphabet."""
    if isinstance(key, float):
        return f"{key:.15g}"
    return min(counts, key=lambda word: (-counts[word], word))


def _ordered(keys: list[str | float]) -> list[str | float]:
    """Sort numbers by size, then words by alphabet; of two classes, put the positive one last."""
    ordered = sorted(keys, key=lambda key: (isinstance(key, str), key))
    if len(ordered) != 2:
        return ordered
    first, second = (f"{key:g}" if isinstance(key, float) else key for key in ordered)
    negated = second in {prefix + first for prefix in PREFIXES}
    swapped = negated or (first in POSITIVE and second not in POSITIVE) or second in NEGATIVE
    return ordered[::-1] if swapped and first not in NEGATIVE else ordered
