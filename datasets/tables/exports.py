"""What the columns of assay exports are called, by program, and the units that stand in them."""

from __future__ import annotations

import re
from typing import NamedTuple

from .columns import plain_name


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

# Powers of ten of mol/l, and of g/l, which needs the molecule's mass
MOLAR = {"m": 0, "mm": -3, "um": -6, "nm": -9, "pm": -12, "fm": -15}
MOLAR |= {f"{prefix}mol/l": MOLAR[f"{prefix}m"] for prefix in ("", "m", "u", "n", "p", "f")}
MOLAR |= {"molar": 0, "millimolar": -3, "micromolar": -6, "nanomolar": -9, "picomolar": -12}
MASS = {"g/l": 0, "mg/ml": 0, "mg/l": -3, "ug/ml": -3, "ug/l": -6, "ng/ml": -6, "ng/l": -9}
MASS |= {"pg/ml": -9, "g/ml": 3}
POWERS = MOLAR | MASS
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


def plain_unit(unit: str) -> str:
    """Return a unit in the spelling of `MOLAR` and `MASS`."""
    plain = unit.translate(MICRO).casefold()
    match = PER.fullmatch(plain)
    return f"{match[1]}/{match[2]}" if match else plain
