"""Choose the column of a table that holds the structures, by its name or by its content."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    from rdkit import Chem, rdBase  # slow to import, and help pages need names alone

    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(text) if 0 < len(text) <= MAX_SMILES else None
    return 0 if mol is None else mol.GetNumAtoms()
