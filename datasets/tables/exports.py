"""Find the columns of assay exports by what programs call them, and the units in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..cell_numbers import MASS, MOLAR, plain_unit
from .columns import plain_name
from .opening import TableError


class Export(NamedTuple):
    """Columns of a program's export that belong together, by `plain_name`.

    Attributes:
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
    unit = plain_unit(text.strip("()[] "))
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
    if match is None or not (is_clear or measures_dose(match[1])):
        return header, ""
    return match[1], match[2]


def measures_dose(name: str) -> bool:
    """Return whether a column's name says that it has IC50, Ki and the like."""
    return bool(ENDPOINT.search(name)) or any(plain_name(name) == e.value for e in EXPORTS)


def may_become(column: str, name: str) -> bool:
    """Return whether the values of a column may be called this once they are logarithms."""
    base, match = header_unit(column)[0], ENDPOINT.search(name)
    if name in (f"log10 {base}", f"p {base}"):
        return True
    return match is not None and match["log"] == "p" and measures_dose(base)


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
        unit: the unit of the values that the user gave, or that a row below the header states.

    Raises:
        TableError: two columns of relations or units stand equally near the values.
    """
    others = [name for name in names if name not in (value, structures)]
    by_plain = {plain_name(name): name for name in reversed(others)}
    base, in_header = header_unit(value)
    named = (e for e in EXPORTS if plain_name(base) == e.value)
    fitting = (e for e in named if (e.relation or e.unit or e.kind) in by_plain)
    known = next(fitting, Export("", ""))
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
    its other words and a unit or a dose, else about all. One without other words comes first then,
    and `Time units` say nothing beside `IC50 (nM)`.
    """
    roles = RELATION_WORDS | UNIT_WORDS | KIND_WORDS
    about = {n: words_of(header_unit(n)[0]) for n in names if n == value or not words_of(n) & roles}
    ranked: dict[int, list[str]] = {}
    for name in others:
        words = words_of(name)
        if not words & role:
            continue
        rest, of_value = words - role, words_of(header_unit(value)[0])
        for rank, fits in enumerate((rest.__eq__, rest.__le__)):
            matching = [other for other, theirs in about.items() if rest and fits(theirs)]
            if value in matching or rest == of_value - {"p", "log"}:
                ranked.setdefault(rank, []).append(name)
                break
            if any(rank == 0 or measures_dose(o) or header_unit(o)[1] for o in matching):
                break
        else:
            if not (rest and role is UNIT_WORDS and header_unit(value)[1]):
                ranked.setdefault(3 if rest else 2, []).append(name)
    if not ranked:
        return None
    candidates = ranked[min(ranked)]
    distance = {n: abs(names.index(n) - names.index(value)) for n in candidates}
    nearest = [name for name in candidates if distance[name] == min(distance.values())]
    if len(nearest) > 1 and role is KIND_WORDS:
        return None
    if len(nearest) > 1:
        raise TableError(
            f"columns {nearest[0]!r} and {nearest[1]!r} stand on both sides of {value!r}: name them"
            f" after the values that they are about, such as '{value} {sorted(role)[0]}'."
        )
    return nearest[0]
