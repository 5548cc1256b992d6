"""Choose the columns of a table: that with the structures, and those that say how values are read.

The structures are found by the name of their column or by its content, the columns of assay exports
by what programs call them, and the units in them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..cell_numbers import MASS, MOLAR, plain_unit
from .opening import TableError

# Names as they are compared, see `plain_name`. The first that a table has is taken.
SURE = (
    *("smiles", "canonicalsmiles", "isomericsmiles", "smilesstring", "smilescode", "cansmiles"),
    *("isosmiles", "absolutesmiles", "rdkitsmiles", "standardizedsmiles", "standardisedsmiles"),
    *("parentsmiles", "cleanedsmiles", "desaltedsmiles"),
)
# Columns of these names may hold something else, so their cells have to be structures.
LIKELY = ("structure", "mol", "molecule", "compound", "molstructure", "chemicalstructure")
NAMES = (  # of compounds
    *("name", "id", "compound", "compoundid", "compoundname", "molecule", "moleculeid", "cid"),
    *("title", "moleculename", "moleculechemblid", "idnumber"),
)
MAX_SMILES = 1000  # characters
CHECKED = 20  # cells of a column
# The share of these cells that may be misspelt, in any column and in one named for structures.
SLIPS, NAMED_SLIPS = 0.2, 0.5
LISTED = 30  # columns in a message
NAME_IT = "name it with --smiles-column (in Python, smiles_column=)"

SampleCells = Callable[[], Sequence[Sequence[str]]]


@dataclass(frozen=True)
class StructureColumn:
    """The column with the structures, and why it is that one.

    Attributes:
        reason: what to tell the user, "" if the user named it or it is called "smiles".
    """

    name: str
    reason: str = ""


def structure_column(
    source: str, names: Sequence[str], sample: SampleCells, given: str | None = None
) -> StructureColumn:
    """Choose the column with the structures.

    Args:
        source: the file, for messages.
        sample: returns the cells of the first rows.
        given: the name that the user gave, in any case of letters. Otherwise the column is one with
            a usual name, or the only one whose cells can be read as SMILES, but for a few of them.

    Raises:
        TableError: there is no such column, or several; the message lists the columns.
    """
    if given is not None:
        return StructureColumn(named_column(source, names, given))
    plain = [plain_name(name) for name in names]
    for usual in SURE:
        if plain.count(usual) > 1:
            same = [name for name, word in zip(names, plain, strict=True) if word == usual]
            if len(set(same)) == 1:
                raise TableError(f"{source} has more than one column {same[0]!r}.")
            raise TableError(_several(source, same))
        if usual in plain:
            name = names[plain.index(usual)]
            others = sum("smiles" in word for word in plain) > 1
            silent = name == "smiles" and not others
            return StructureColumn(name, "" if silent else "by its name")
    rows = sample()
    for usual in LIKELY:
        if usual not in plain:
            continue
        place = plain.index(usual)
        if _are_structures([row[place] for row in rows], NAMED_SLIPS):
            return StructureColumn(names[place], "by its name")
    readable = [
        name
        for k, name in enumerate(names)
        if _are_structures([row[k] for row in rows], NAMED_SLIPS if "smiles" in plain[k] else SLIPS)
    ]
    if len(readable) == 1:
        return StructureColumn(readable[0], "as the only one whose cells can be read as SMILES")
    if readable:
        raise TableError(_several(source, readable))
    raise TableError(
        f"{source} has no column of structures: none is called SMILES, and none has cells that can"
        f" be read as SMILES: {NAME_IT}; {_listed(names)}"
    )


def named_column(source: str, names: Sequence[str], name: str) -> str:
    """Return the name of a column as it is written, given in any case of letters.

    Raises:
        TableError: there is no such column, or it is there twice.
    """
    alike = [other for other in names if other == name]
    alike = alike or [other for other in names if other.casefold() == name.strip().casefold()]
    if not alike:
        raise TableError(f"{source} has no column {name!r}; {_listed(names)}")
    if len(alike) > 1:
        raise TableError(f"{source} has more than one column {name!r}.")
    return alike[0]


def _several(source: str, names: Sequence[str]) -> str:
    return f"{source} has several columns of structures, {', '.join(map(repr, names))}: {NAME_IT}."


def _listed(names: Sequence[str]) -> str:
    """Say which columns there are."""
    if not names:
        return "the file is empty."
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"its columns: {', '.join(map(repr, names[:LISTED]))}{more}."


def plain_name(name: str) -> str:
    """Return a name in lower case without what joins words."""
    return re.sub(r"[\s_\-.#]+", "", name).casefold()


def _are_structures(cells: Sequence[str], unreadable: float) -> bool:
    """Return whether cells are SMILES, but for a share, and not all as short as names or codes."""
    texts = [cell.strip() for cell in cells if cell.strip()][:CHECKED]
    sizes = list(filter(None, map(size_of, texts)))
    return len(texts) - len(sizes) <= unreadable * len(texts) and sum(sizes) > 2 * len(sizes)


def size_of(text: str) -> int:
    """Return the number of atoms in a SMILES, or 0 for a text that is none, or a long one."""
    from ..canonical_form import quietly_read  # slow to import, and help pages need names alone

    mol = quietly_read(text) if 0 < len(text) <= MAX_SMILES else None
    return 0 if mol is None else mol.GetNumAtoms()


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


# Columns whose names do not show that they belong together, by `plain_name`, as the programs'
# public descriptions have them, with the unit that a description states if no column does
EXPORTS = (
    AssayColumns("pchemblvalue", "standardrelation"),  # ChEMBL
    AssayColumns("standardvalue", "standardrelation", "standardunits", "standardtype"),
    AssayColumns("value", "relation", "units", "type"),
    AssayColumns("publishedvalue", "publishedrelation", "publishedunits", "publishedtype"),
    AssayColumns("pubchemstandardvalue", None, None, "standardtype", "uM"),  # PubChem
    AssayColumns("activityvalue", "activityqualifier", None, "activityname", "uM"),
    AssayColumns("acvalue", "acqualifier", None, "acname", "uM"),
    AssayColumns("originalaffinitymedian", "originalaffinityrelation", None,
                 "originalaffinityunits", "nM"),  # Guide to Pharmacology
    AssayColumns("kival", "kinote", stated="nM"),  # PDSP Ki
    AssayColumns("qac50", "qac50mode"),  # Genedata Screener
    AssayColumns("result", "prefix", "units", "resulttype"),  # ActivityBase
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
    known = next(fitting, AssayColumns(""))
    with_role = (known.relation, known.unit, known.kind)
    without_role = [name for name in others if plain_name(name) not in with_role]

    def column_of(exported: str | None, role: frozenset[str]) -> str | None:
        """Return the export's column, or one beside the values, as units are in any table."""
        if exported in by_plain:
            return by_plain[exported]
        is_asked = exported or not known.value or role is UNIT_WORDS
        return _beside(names, value, without_role, role) if is_asked else None

    relation = column_of(known.relation, RELATION_WORDS)
    units, kind = column_of(known.unit, UNIT_WORDS), column_of(known.kind, KIND_WORDS)
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
    stated = unit or ("" if is_log else in_header or ("" if units else known.stated))
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
