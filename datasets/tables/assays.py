"""Read a column of an assay export as plain values, with the columns that stand beside it.

Programs write ">", "10000" and "nM" into three columns. `assay_columns` finds these by their names,
and `plain_values` makes one column of them, whose cells are numbers and bounds in one unit. IC50
and the like become pIC50. The functions know no file: cells come from any table or frame.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rdkit.Chem import Descriptors

from ..as_given import AS_DRAWN
from ..cell_numbers import LIMIT, NUMBER, TYPOGRAPHY, parsed_numbers
from ..labels import is_missing
from ..molecule_reading import MoleculeError, read_molecules
from .columns import plain_name
from .opening import TableError

Transform = Literal["log10", "none"]


class Export(NamedTuple):
    """Columns of a program's export that belong together, by `plain_name`.

    Attributes:
        program: what writes them.
        value: the column with the values.
        relation: the column that says whether a value is a bound, or "".
        unit: the column with the units, or "".
        kind: the column that says what was measured, or "".
        stated: the unit that the program's description states, if no column does.
    """

    program: str
    value: str
    relation: str = ""
    unit: str = ""
    kind: str = ""
    stated: str = ""


# Columns whose names do not show that they belong together, by the programs' public descriptions
EXPORTS = (
    Export("ChEMBL", "pchemblvalue", "standardrelation"),
    Export("ChEMBL", "standardvalue", "standardrelation", "standardunits", "standardtype"),
    Export("ChEMBL", "value", "relation", "units", "type"),
    Export("ChEMBL", "publishedvalue", "publishedrelation", "publishedunits", "publishedtype"),
    Export("PubChem", "pubchemstandardvalue", "", "", "standardtype", "uM"),
    Export("PubChem", "activityvalue", "activityqualifier", "", "activityname", "uM"),
    Export("PubChem", "acvalue", "acqualifier", "", "acname", "uM"),
    Export("Guide to Pharmacology", "originalaffinitymedian", "originalaffinityrelation", "",
           "originalaffinityunits", "nM"),
    Export("PDSP Ki", "kival", "kinote", "", "", "nM"),
    Export("Genedata Screener", "qac50", "qac50mode"),
    Export("ActivityBase", "result", "prefix", "units", "resulttype"),
)  # fmt: skip
RELATION_WORDS = frozenset(
    f"{word}{end}"
    for word in ("relation", "qualifier", "operator", "modifier", "prefix")
    for end in ("", "s", "es")
)
UNIT_WORDS = frozenset(("unit", "units", "uom"))
KIND_WORDS = frozenset(("type", "endpoint", "parameter", "readout"))
EQUAL = frozenset(("=", "==", "eq", "equal", "equals", "equal to", "exact", "exactly"))
SIGNS = {
    **dict.fromkeys(("greater than", "greater", "more than", "above", "gt"), ">"),
    **dict.fromkeys(("less than", "less", "below", "lt"), "<"),
    **{"ge": ">=", "le": "<=", "about": "~", "approx": "~", "approximately": "~", "circa": "~"},
}
SIGN = re.compile(r"[<>=~\u2264\u2265\u2a7d\u2a7e\u2248]{1,2}")
TURNED = str.maketrans("<>\u2264\u2265\u2a7d\u2a7e", "><\u2265\u2264\u2a7e\u2a7d")
QUOTES = str.maketrans({"'": "", '"': ""})
FEW = 0.2  # share of the cells that may be something else in a column of relations
LONGEST_UNIT = 20  # characters
LISTED = 4  # of the units or relations in a column
RELATIONS, UNITS = "relations beside the values", "units beside the values"

# Powers of ten of mol/l, and of g/l, which needs the molecule's mass
MOLAR = {"m": 0, "mm": -3, "um": -6, "nm": -9, "pm": -12, "fm": -15}
MOLAR |= {f"{prefix}mol/l": MOLAR[f"{prefix}m"] for prefix in ("", "m", "u", "n", "p", "f")}
MOLAR |= {"molar": 0, "millimolar": -3, "micromolar": -6, "nanomolar": -9, "picomolar": -12}
MASS = {"g/l": 0, "mg/ml": 0, "mg/l": -3, "ug/ml": -3, "ug/l": -6, "ng/ml": -6, "ng/l": -9}
MASS |= {"pg/ml": -9, "g/ml": 3}
MICRO = str.maketrans({"\u00b5": "u", "\u03bc": "u", " ": None, "\u00b7": "."})
PER = re.compile(r"(.+?)[.*]?(m?l)\^?-1")  # ug.mL-1
ENDPOINT = re.compile(
    r"(?<![a-z])(?P<log>p|-?log(?:10)?[ _]?(?:of )?)?"
    r"(?P<name>q?(?:IC|EC|AC|GI|CC|XC|DC|TC)[ _]?(?:50|90)|K[idb]|potency)(?![a-z0-9])",
    re.IGNORECASE,
)
IS_LOG = re.compile(r"(?<![a-z])(?:pchembl|pact|-?log)", re.IGNORECASE)
IN_BRACKETS = re.compile(r"[(\[]([^()\[\]]{1,20})[)\]]")
UNIT_AT_END = re.compile(r"(.*\S)[\s_.,]+([pnu\u00b5\u03bcm]M|[nu]m|[NU]M)")


def words_of(name: str) -> frozenset[str]:
    """Return the words of a column's name in lower case, also of `StandardRelation`."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)
    return frozenset(word.casefold() for word in words)


def is_unit(text: str) -> bool:
    """Return whether a text such as "(nM)" or "PERCENT" is a unit of assays."""
    unit = _plain_unit(text.strip("()[] "))
    return unit in MOLAR or unit in MASS or unit in ("%", "percent", "h", "min", "kcal/mol")


def header_unit(header: str) -> tuple[str, str]:
    """Split a header such as `IC50 (nM)`, `IC50_nM` or `ic50 nm` into name and unit.

    A header without a unit of `is_unit` is a name alone.
    """
    for inside in IN_BRACKETS.finditer(header):
        if is_unit(inside[1]):
            name = f"{header[: inside.start()].rstrip()}{header[inside.end() :]}"
            return name.strip(), inside[1].strip()
    match = UNIT_AT_END.fullmatch(header.strip())
    is_clear = match is not None and match[2] not in ("nm", "um", "NM", "UM")
    if match is None or not (is_clear or _measures_dose(match[1])):
        return header, ""
    return match[1], match[2]


def _measures_dose(name: str) -> bool:
    """Return whether a column's name says that it has IC50, Ki and the like."""
    return bool(ENDPOINT.search(name)) or any(plain_name(name) == e.value for e in EXPORTS)


def may_become(column: str, name: str) -> bool:
    """Return whether the values of a column may be called this once they are logarithms."""
    base, match = header_unit(column)[0], ENDPOINT.search(name)
    if name in (f"log10 {base}", f"p {base}"):
        return True
    return match is not None and match["log"] == "p" and _measures_dose(base)


@dataclass(frozen=True)
class AssayColumns:
    """A column of values and those that say how to read it; by itself, a column of plain values.

    Attributes:
        value: the header of the values.
        relation: the header of the relations, or None.
        unit: the header of the units, or None.
        kind: the header of what was measured, or None.
        stated: the unit that is not in a column, or "".
        turned: whether the values are logarithms of those that the relations are about.
    """

    value: str
    relation: str | None = None
    unit: str | None = None
    kind: str | None = None
    stated: str = ""
    turned: bool = False

    @property
    def all(self) -> tuple[str, ...]:
        """The headers of the columns to read."""
        columns = (self.value, self.relation, self.unit, self.kind)
        return tuple(name for name in columns if name is not None)


def assay_columns(
    names: Sequence[str], value: str, unit: str = "", structures: str = ""
) -> AssayColumns:
    """Find the columns that say how the values of a column are to be read.

    Args:
        names: the columns of the table.
        value: the column of the values.
        unit: the unit of the values that the user gave, or that a row below the header states.
        structures: the column of the structures.

    Raises:
        TableError: two columns of relations or units stand equally near the values.
    """
    others = [name for name in names if name not in (value, structures)]
    by_plain = {plain_name(name): name for name in reversed(others)}
    base, in_header = header_unit(value)
    known = next(
        (
            e
            for e in EXPORTS
            if plain_name(base) == e.value and (e.relation or e.unit or e.kind) in by_plain
        ),
        Export("", ""),
    )
    relation, units, kind = map(by_plain.get, (known.relation, known.unit, known.kind))
    if not known.program:
        relation, units, kind = (
            _beside(names, value, others, role) for role in (RELATION_WORDS, UNIT_WORDS, KIND_WORDS)
        )
    match = ENDPOINT.search(base)
    is_log = bool(IS_LOG.search(base)) or (match is not None and bool(match["log"]))
    turned = False
    if is_log and relation is not None:
        about = words_of(relation) - RELATION_WORDS
        linear = words_of(base) - {"p", "log"}
        beside = {words_of(header_unit(name)[0]) for name in others}
        turned = known.value == "pchemblvalue" or about == linear
        turned = turned or (not about and linear in beside)
    if is_log or unit:
        units = None
    stated = unit or ("" if is_log else in_header or known.stated)
    return AssayColumns(value, relation, units, kind, stated, turned)


def _beside(
    names: Sequence[str], value: str, others: Sequence[str], role: frozenset[str]
) -> str | None:
    """Return the column of a role that is about the values, by its words or by its place.

    A column `Ki relation` is about `Ki` if there is such a column, else about the columns that have
    its other words and a unit or a dose, else about all.
    """
    roles = RELATION_WORDS | UNIT_WORDS | KIND_WORDS
    about = {n: words_of(header_unit(n)[0]) for n in names if n == value or not words_of(n) & roles}
    ranked: dict[int, list[str]] = {}
    for name in others:
        words = words_of(name)
        if not words & role:
            continue
        rest, own = words - role, words_of(header_unit(value)[0])
        for rank, fits in enumerate((rest.__eq__, rest.__le__)):
            matching = [other for other, theirs in about.items() if rest and fits(theirs)]
            if value in matching or rest == own - {"p", "log"}:
                ranked.setdefault(rank, []).append(name)
                break
            if any(rank == 0 or _measures_dose(o) or header_unit(o)[1] for o in matching):
                break
        else:
            ranked.setdefault(2, []).append(name)
    if not ranked:
        return None
    candidates = ranked[min(ranked)]
    distance = {n: abs(names.index(n) - names.index(value)) for n in candidates}
    nearest = [name for name in candidates if distance[name] == min(distance.values())]
    if len(nearest) > 1:
        raise TableError(
            f"columns {nearest[0]!r} and {nearest[1]!r} stand on both sides of {value!r}: name them"
            f" after the values that they are about, such as '{value} {sorted(role)[0]}'."
        )
    return nearest[0]


@dataclass(frozen=True)
class Reading:
    """Something that was done to read a column.

    Attributes:
        check: what was there.
        column: in which column.
        done: what was done.
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
        readings: what was done.
        mixed: the units that cannot be converted into one another, which then are not read.
    """

    name: str
    unit: str
    cells: tuple[str, ...]
    readings: tuple[Reading, ...] = ()
    mixed: tuple[str, ...] = ()


@dataclass
class _Column:
    """The numbers of a column while they are read, by position."""

    header: str
    cells: list[str]
    signs: dict[int, str] = field(default_factory=dict)
    numbers: dict[int, float] = field(default_factory=dict)
    units: dict[int, str] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)

    def say(self, check: str, done: str) -> None:
        """Keep what was done to all numbers."""
        self.readings.append(Reading(check, self.header, done, len(self.numbers)))

    def leave_out(self, check: str, reasons: Mapping[int, str], column: str = "") -> None:
        """Take the labels of some rows away, and say why."""
        for k in reasons:
            self.cells[k] = ""
            self.numbers.pop(k, None)
        if reasons:
            header = column or self.header
            self.readings.append(Reading(check, header, "label not used", len(reasons), reasons))


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
    present = [k for k, cell in enumerate(column.cells) if not is_missing(cell)]
    distinct = set(column.numbers.values())
    few = len(distinct) <= 2 and all(value.is_integer() for value in distinct)
    if len(column.numbers) * 2 < len(present) or not present or (few and not numbers.bounds):
        return PlainValues(columns.value, "", tuple(column.cells))  # classes
    for bound in numbers.bounds:
        match = LIMIT.fullmatch(column.cells[bound.position].translate(TYPOGRAPHY).strip())
        column.signs[bound.position] = match[1] if match else ""
    if columns.relation:
        _read_relations(column, columns.relation, cells[columns.relation], columns.turned)
    mixed = _read_units(column, columns, cells)
    if mixed:
        return PlainValues(columns.value, "", _signed(column), tuple(column.readings), mixed)
    base, in_header = header_unit(columns.value)
    kinds = _kinds(column, cells[columns.kind]) if columns.kind else Counter[str]()
    match = ENDPOINT.search(base)
    if match and not match["log"] and not IS_LOG.search(base):
        kinds = Counter({match["name"]: len(column.numbers)})
    elif len(kinds) > 1:
        listed = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
        column.say("several kinds of result", f"kept: {listed}")
    plain = {_plain_unit(unit) for unit in column.units.values()}
    is_dose = bool(plain) and plain <= MOLAR.keys() | MASS.keys()
    if (transform is None and kinds and is_dose) or (transform == "log10" and is_dose):
        name = f"p{'/'.join(kinds)}" if kinds else f"p {base}"
        if match:
            name = f"{base[: match.start()]}p{base[match.start() :]}"
        _to_logarithms(column, structures)
        listed = _listed(column.units.values())
        done = f"learned as {name}, -log10(mol/l), with bounds turned round"
        done += "; --transform none keeps the values" if transform is None else ""
        column.say(f"values in {listed}", done)
        return PlainValues(name, "", tuple(column.cells), tuple(column.readings))
    unit = Counter(column.units.values()).most_common(1)[0][0] if column.units else ""
    if len(plain) > 1:
        _to_one_unit(column, unit, structures)
    if transform == "log10":
        _take_logarithms(column)
        done = f"learned as log10 {base}"
        column.say("values", done)
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
        sign, own = said.get(k, ""), column.signs.get(k, "")
        if sign is None:
            contradicting[k] = f"{header}: {cells[k]!r} is not understood"
        elif sign:
            sign = sign.translate(TURNED) if turned else sign
            if own and set(own) & set("<>\u2264\u2265") and own[0] != sign[0]:
                contradicting[k] = f"{header}: {cells[k]!r} contradicts {column.cells[k]!r}"
            elif not own:
                read[k] = sign
    column.signs |= read
    if read:
        rows = {k: f"{header}: {cells[k]}" for k in read}
        done = f"read as bounds: {_listed(cells[k].translate(QUOTES) for k in read)}"
        column.readings.append(Reading(RELATIONS, header, done, len(rows), rows))
    column.leave_out("relation not understood", contradicting, header)


def _sign(cell: str) -> str | None:
    """Return the sign that a relation says, "" for equality, or None if it says none."""
    text = " ".join(cell.translate(QUOTES).casefold().split())
    if text in EQUAL or not text:
        return ""
    return text if SIGN.fullmatch(text) else SIGNS.get(text)


def _read_units(
    column: _Column, columns: AssayColumns, cells: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Give every number its unit, and return the units if they cannot be converted."""
    column.units = dict.fromkeys(column.numbers, columns.stated) if columns.stated else {}
    if columns.unit is None:
        return ()
    given = {
        k: cells[columns.unit][k].translate(QUOTES).strip()
        for k in column.numbers
        if not is_missing(cells[columns.unit][k]) and _sign(cells[columns.unit][k]) != ""
    }
    if not given or any(NUMBER.fullmatch(u) or len(u) > LONGEST_UNIT for u in given.values()):
        return ()
    column.units |= given
    spelt = {_plain_unit(unit): unit for unit in reversed(column.units.values())}
    if len(spelt) > 1 and not spelt.keys() <= MOLAR.keys() | MASS.keys():
        counts = Counter(_plain_unit(unit) for unit in column.units.values())
        mixed = tuple(spelt[unit] for unit, _ in counts.most_common())
        rows = {k: f"{columns.unit}: {unit}" for k, unit in given.items()}
        done = f"not read: {', '.join(mixed[:LISTED])}{', ...' if len(mixed) > LISTED else ''}"
        column.readings.append(Reading(UNITS, columns.unit, done, len(rows), rows))
        return mixed
    without = {k: "no unit" for k in column.numbers if k not in column.units}
    column.leave_out("no unit", without, columns.unit)
    return ()


def _kinds(column: _Column, cells: Sequence[str]) -> Counter[str]:
    """Return how often what was measured is IC50, Ki and so on, if that is what a column says."""
    said = [cells[k].strip() for k in column.numbers if not is_missing(cells[k])]
    matches = [ENDPOINT.fullmatch(text) for text in said]
    if not said or any(match is None or match["log"] for match in matches):
        return Counter()
    return Counter(said)


def _to_logarithms(column: _Column, structures: Sequence[str]) -> None:
    """Turn concentrations into -log10(mol/l)."""
    masses = _masses(column, structures)
    _take_logarithms(column, masses)


def _take_logarithms(column: _Column, masses: Mapping[int, float] | None = None) -> None:
    """Replace numbers by logarithms; with masses, by the negative ones of mol/l."""
    none = {k: f"{v:g} has no logarithm" for k, v in column.numbers.items() if v <= 0}
    column.leave_out("no logarithm", none)
    for k, value in column.numbers.items():
        logarithm, sign = math.log10(value), column.signs.get(k, "")
        if masses is not None:
            unit = _plain_unit(column.units[k])
            logarithm = -(logarithm + MOLAR.get(unit, MASS.get(unit, 0)))
            logarithm += math.log10(masses[k]) if unit in MASS else 0.0
            sign = sign.translate(TURNED)
        column.cells[k] = f"{sign}{logarithm!r}"


def _to_one_unit(column: _Column, common: str, structures: Sequence[str]) -> None:
    """Convert concentrations into one unit."""
    of = _plain_unit(common)
    has_mass = {
        k for k, unit in column.units.items() if (_plain_unit(unit) in MASS) != (of in MASS)
    }
    masses = _masses(column, structures, has_mass)
    powers = MOLAR | MASS
    for k, value in column.numbers.items():
        unit = _plain_unit(column.units[k])
        value *= 10.0 ** (powers[unit] - powers[of])
        if k in has_mass:
            value *= masses[k] if of in MASS else 1 / masses[k]
        column.cells[k] = f"{column.signs.get(k, '')}{value!r}"
    column.say(f"values in {_listed(column.units.values())}", f"converted to {common}")


def _masses(
    column: _Column, structures: Sequence[str], needed: set[int] | None = None
) -> dict[int, float]:
    """Return the molar masses (g/mol) of molecules whose values are in g/l, as they are drawn."""
    if needed is None:
        needed = {k for k, unit in column.units.items() if _plain_unit(unit) in MASS}
    rows = [k for k in column.numbers if k in needed]
    read = read_molecules([structures[k] for k in rows], 10**6, AS_DRAWN, canonical=False)
    masses = {
        k: float(Descriptors.MolWt(each.mol))  # type: ignore[attr-defined]
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


def _plain_unit(unit: str) -> str:
    """Return a unit in the spelling of `MOLAR` and `MASS`."""
    plain = unit.translate(MICRO).casefold()
    match = PER.fullmatch(plain)
    return f"{match[1]}/{match[2]}" if match else plain


def _listed(texts: object) -> str:
    """List different texts, the most frequent first."""
    counts = Counter(texts)  # type: ignore[call-overload]
    several = [text for text, _ in counts.most_common(LISTED)]
    return ", ".join(several) + (", ..." if len(counts) > LISTED else "")
