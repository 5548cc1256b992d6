"""Read a column of an assay export as plain values, with the columns that stand beside it.

Programs write ">", "10000" and "nM" into three columns. `assay_columns` finds these by their names,
and `plain_values` makes one column of them, whose cells are numbers and bounds in one unit. IC50
and the like become pIC50. The functions know no file: cells come from any table or frame.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..as_given import AS_DRAWN
from ..cell_numbers import LIMIT, MASS, NUMBER, POWERS, TYPOGRAPHY, parsed_numbers, plain_unit
from ..labels import is_missing
from ..molecule_reading import MoleculeError, read_molecules
from .columns import (
    ENDPOINT,
    EQUAL,
    IS_LOG,
    QUOTES,
    SIGN,
    SIGNS,
    TURNED,
    AssayColumns,
    header_unit,
)  # fmt: skip

Transform = Literal["log10", "none"]
FEW = 0.2  # share of the cells that may be something else in a column of relations
HYDROGEN = 1.008  # g/mol
LONGEST_UNIT = 20  # characters
LISTED = 4  # of the units or relations in a column
RELATIONS, UNITS = "relations beside the values", "units beside the values"


@dataclass(frozen=True)
class ColumnRemark:
    """Something that was done to read a column.

    Attributes:
        count: how many values this concerns.
        rows: what to say of their rows, by position; empty if they need no remark.
    """

    check: str
    column: str
    done: str
    count: int
    rows: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PlainValues:
    """A column in plain form.

    Attributes:
        name: what the values are called; the header, unless they became logarithms.
        unit: their unit if the header does not have it, "" otherwise.
        cells: the values (n,): numbers and bounds in one unit, or what was there.
    """

    name: str
    unit: str
    cells: tuple[str, ...]
    readings: tuple[ColumnRemark, ...] = ()


@dataclass
class _Column:
    """The numbers of a column while they are read, by position."""

    header: str
    cells: list[str]
    signs: dict[int, str] = field(default_factory=dict)
    numbers: dict[int, float] = field(default_factory=dict)
    units: dict[int, str] = field(default_factory=dict)
    readings: list[ColumnRemark] = field(default_factory=list)

    def say(self, check: str, done: str) -> None:
        """Keep what was done to all numbers."""
        self.readings.append(ColumnRemark(check, self.header, done, len(self.numbers)))

    def leave_out(self, check: str, reasons: Mapping[int, str], column: str = "") -> None:
        """Take the labels of some rows away, and say why."""
        for k in reasons:
            self.cells[k] = ""
            self.numbers.pop(k, None)
        if reasons:
            header = column or self.header
            self.readings.append(
                ColumnRemark(check, header, "label not used", len(reasons), reasons)
            )


def plain_values(
    columns: AssayColumns,
    cells: Mapping[str, Sequence[str]],
    structures: Sequence[str],
    transform: Transform | None = None,
) -> PlainValues:
    """Bring a column to plain form.

    Args:
        columns: which columns to read, see `assay_columns`.
        cells: the cells of these columns, (n,) each.
        structures: the structures (n,), whose masses convert ug/mL.
        transform: "log10" takes logarithms, of concentrations -log10(mol/l); "none" leaves the
            values as they are. By default IC50, Ki, EC50 and the like become pIC50 and so on.
    """
    column = _Column(columns.value, list(cells[columns.value]))
    numbers = parsed_numbers(column.cells)
    column.numbers = {k: v for k, v in enumerate(numbers.values.tolist()) if not math.isnan(v)}
    column.numbers |= {bound.position: bound.value for bound in numbers.bounds}
    present = sum(not is_missing(cell) for cell in column.cells)
    if len(column.numbers) * 2 < max(present, 1):
        return PlainValues(columns.value, "", tuple(column.cells))  # classes
    for bound in numbers.bounds:
        match = LIMIT.fullmatch(column.cells[bound.position].translate(TYPOGRAPHY).strip())
        column.signs[bound.position] = match[1] if match else ""
    if columns.relation:
        _read_relations(column, columns.relation, cells[columns.relation], columns.turned)
    distinct = set(column.numbers.values())
    if len(distinct) <= 2 and all(v.is_integer() for v in distinct) and not column.signs:
        return PlainValues(columns.value, "", tuple(column.cells))  # classes, such as 0 and 1
    if not _read_units(column, columns, cells):
        return PlainValues(columns.value, "", _signed(column), tuple(column.readings))
    base, in_header = header_unit(columns.value)
    kinds = _kinds(column, cells[columns.kind]) if columns.kind else Counter[str]()
    match = ENDPOINT.search(base)
    if match and not match["log"] and not IS_LOG.search(base):
        kinds = Counter({match["name"]: len(column.numbers)})
    elif len(kinds) > 1:
        listed = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
        column.say("several kinds of result", f"kept: {listed}")
    plain = {plain_unit(unit) for unit in column.units.values()}
    is_dose = bool(plain) and plain <= POWERS.keys()
    if (transform is None and kinds and is_dose) or (transform == "log10" and is_dose):
        name = f"p{'/'.join(kinds)}" if kinds else f"p {base}"
        if match:
            name = f"{base[: match.start()]}p{base[match.start() :]}"
        _take_logarithms(column, _masses(column, structures))
        done = f"learned as {name}, -log10(mol/l), with bounds turned round"
        done += "; --transform none keeps the values" if transform is None else ""
        column.say(f"values in {_listed(column.units.values())}", done)
        return PlainValues(name, "", tuple(column.cells), tuple(column.readings))
    unit = Counter(column.units.values()).most_common(1)[0][0] if column.units else ""
    if len(plain) > 1:
        common = plain_unit(unit)
        by_mass = common in MASS
        masses = _masses(column, structures, but=by_mass)
        for k, value in column.numbers.items():
            factor = 10.0 ** (POWERS[plain_unit(column.units[k])] - POWERS[common])
            mass = masses.get(k, 1.0)
            value *= factor * mass if by_mass else factor / mass
            column.numbers[k], column.cells[k] = value, f"{column.signs.get(k, '')}{value!r}"
        column.say(f"values in {_listed(column.units.values())}", f"converted to {unit}")
    if transform == "log10":
        _take_logarithms(column)
        column.say("values", f"learned as log10 {base}")
        return PlainValues(f"log10 {base}", unit, tuple(column.cells), tuple(column.readings))
    shown = "" if unit == in_header else unit
    return PlainValues(columns.value, shown, _signed(column), tuple(column.readings))


def _read_relations(column: _Column, header: str, cells: Sequence[str], turned: bool) -> None:
    """Take the signs of bounds from a column, unless it holds something else."""
    said = {k: _sign(cell) for k, cell in enumerate(cells) if not is_missing(cell)}
    if sum(sign is None for sign in said.values()) > FEW * len(said):
        return
    read: dict[int, str] = {}
    contradicting: dict[int, str] = {}
    for k in column.numbers:
        sign, in_cell = said.get(k, ""), column.signs.get(k, "")
        if sign is None:
            contradicting[k] = f"{header}: {cells[k]!r} is not understood"
        elif sign:
            sign = sign.translate(TURNED) if turned else sign
            if in_cell and set(in_cell) & set("<>\u2264\u2265") and in_cell[0] != sign[0]:
                contradicting[k] = f"{header}: {cells[k]!r} contradicts {column.cells[k]!r}"
            elif not in_cell:
                read[k] = sign
    column.signs |= read
    if read:
        rows = {k: f"{header}: {cells[k]}" for k in read}
        done = f"read as bounds: {_listed(cells[k].translate(QUOTES) for k in read)}"
        column.readings.append(ColumnRemark(RELATIONS, header, done, len(rows), rows))
    column.leave_out("relation not understood", contradicting, header)


def _sign(cell: str) -> str | None:
    """Return the sign that a relation says, "" for equality, or None if it says none."""
    text = " ".join(cell.translate(QUOTES).casefold().split())
    if text in EQUAL or not text:
        return ""
    return text if SIGN.fullmatch(text) else SIGNS.get(text)


def _read_units(column: _Column, columns: AssayColumns, cells: Mapping[str, Sequence[str]]) -> bool:
    """Give every number its unit, and return whether the units can be converted into one."""
    column.units = dict.fromkeys(column.numbers, columns.stated) if columns.stated else {}
    if columns.unit is None:
        return True
    given = {
        k: cells[columns.unit][k].translate(QUOTES).strip()
        for k in column.numbers
        if not is_missing(cells[columns.unit][k]) and _sign(cells[columns.unit][k]) != ""
    }
    if not given or any(NUMBER.fullmatch(u) or len(u) > LONGEST_UNIT for u in given.values()):
        return True  # no column of units
    column.units |= given
    different = {plain_unit(unit) for unit in column.units.values()}
    if len(different) > 1 and not different <= POWERS.keys():
        rows = {k: f"{columns.unit}: {unit}" for k, unit in given.items()}
        done = f"not read: {_listed(column.units.values())}"
        column.readings.append(ColumnRemark(UNITS, columns.unit, done, len(rows), rows))
        return False
    without = {k: "no unit" for k in column.numbers if k not in column.units}
    column.leave_out("no unit", without, columns.unit)
    return True


def _kinds(column: _Column, cells: Sequence[str]) -> Counter[str]:
    """Return how often what was measured is IC50, Ki and so on, if that is what a column says."""
    said = [cells[k].strip() for k in column.numbers if not is_missing(cells[k])]
    matches = [ENDPOINT.fullmatch(text) for text in said]
    if not said or any(match is None or match["log"] for match in matches):
        return Counter()
    return Counter(said)


def _take_logarithms(column: _Column, masses: Mapping[int, float] | None = None) -> None:
    """Replace numbers by their logarithms, with `masses` by the negative ones of mol/l."""
    none = {k: f"{v:g} has no logarithm" for k, v in column.numbers.items() if v <= 0}
    column.leave_out("no logarithm", none)
    for k, value in column.numbers.items():
        logarithm, sign = math.log10(value), column.signs.get(k, "")
        if masses is not None:
            logarithm = -(logarithm + POWERS[plain_unit(column.units[k])])
            logarithm += math.log10(masses.get(k, 1.0))
            sign = sign.translate(TURNED)
        column.cells[k] = f"{sign}{logarithm!r}"


def _masses(column: _Column, structures: Sequence[str], *, but: bool = False) -> dict[int, float]:
    """Return the molar masses (g/mol), as drawn, of molecules whose values are in g/l, or not."""
    rows = [k for k in column.numbers if (plain_unit(column.units[k]) in MASS) != but]
    read = read_molecules([structures[k] for k in rows], 10**6, AS_DRAWN, canonical=False)
    masses = {
        k: sum(atom.GetMass() + HYDROGEN * atom.GetTotalNumHs() for atom in each.mol.GetAtoms())
        for k, each in zip(rows, read, strict=True)
        if not isinstance(each, MoleculeError)
    }
    column.leave_out("no mass to convert", {k: "unreadable" for k in rows if k not in masses})
    return masses


def _signed(column: _Column) -> tuple[str, ...]:
    """Return the cells, with the signs that stood beside them."""
    for k in column.numbers:
        sign, cell = column.signs.get(k, ""), column.cells[k]
        if sign and not LIMIT.fullmatch(cell.translate(TYPOGRAPHY).strip()):
            column.cells[k] = f"{sign}{cell}"
    return tuple(column.cells)


def _listed(texts: Iterable[str]) -> str:
    """List different texts, the most frequent first."""
    counts = Counter(texts)
    several = [text for text, _ in counts.most_common(LISTED)]
    return ", ".join(several) + (", ..." if len(counts) > LISTED else "")
