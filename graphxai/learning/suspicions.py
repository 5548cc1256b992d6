"""Report molecules and labels that are kept for training, but that a user should know about."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from rdkit.Chem.rdMolHash import HashFunction, MolHash

from graphxai.datasets.as_given import AS_DRAWN, MoleculeError, Standardisation
from graphxai.datasets.labels import NUMBER, Labels, is_missing, name_and_unit
from graphxai.datasets.molecules import RejectedRow
from graphxai.datasets.standardise import parent_of
from graphxai.datasets.table_rows import TableMolecule, TableRows
from graphxai.learning.cleaned_table import CleanTable, Finding, TargetColumn

FloatArray = NDArray[np.float64]
RARE_CLASS = 10  # molecules
OUTLIER = 6.0  # robust standard deviations from the median
LISTED = 4  # of the relations or units in a column
RELATION_WORDS = frozenset(
    f"{word}{end}"
    for word in ("relation", "qualifier", "operator", "modifier", "prefix")
    for end in ("", "s", "es")
)
UNIT_WORDS = frozenset(("unit", "units", "uom"))
UNREAD_RELATIONS, UNREAD_UNITS = "relations beside the values", "units beside the values"
# What a relation other than "=" has, be it a sign or a word
_RELATION = re.compile(
    r"[<>\u2264\u2265\u2a7d\u2a7e~\u2248]|\b(?:less|greater|more|above|below|about|lt|gt|le|ge)\b",
    re.I,
)
_PLAIN = str.maketrans({"\u00b5": "u", "\u03bc": "u", "'": "", '"': ""})  # micro, quotes
SKEWED = 1e3  # ratio of largest to smallest value above which a logarithm is likely needed


def suspicions(
    molecules: Sequence[TableMolecule],
    targets: Sequence[TargetColumn],
    y: FloatArray,
    standardise: Standardisation,
) -> list[Finding]:
    """Report suspicious molecules and labels y (n, targets), NaN where one is missing.

    Args:
        molecules: (n,).
        targets: the columns.
        y: the labels.
        standardise: how the molecules were brought to their parents.
    """
    mixtures = _rows(
        molecules,
        ((m, f"{mol.parts} parts") for m, mol in enumerate(molecules) if mol.parts > 1),
    )
    findings = [
        Finding("salts or mixtures", len(mixtures), "kept whole", "", mixtures),
        _undefined(molecules),
        _relatives("stereoisomers", "stereochemistry", molecules, targets, y, lambda m: m.flat),
        _relatives("tautomers", "the place of hydrogens", molecules, targets, y, _tautomer_hash),
    ]
    if standardise == AS_DRAWN:
        findings.append(
            _relatives("salts or ions", "salt or charge", molecules, targets, y, _parent_smiles)
        )
    for target, column in zip(targets, y.T, strict=True):
        findings += _of_labels(molecules, target, column)
    return findings


def columns_beside(names: Sequence[str]) -> list[str]:
    """Return the columns that may hold the relations or units of others, by their names."""
    return [name for name in names if _words(name) & (RELATION_WORDS | UNIT_WORDS)]


def unread_columns(
    raw: TableRows, columns: Sequence[Labels], names: Sequence[str]
) -> list[Finding]:
    """Report columns of relations or units that say that the numbers beside them are not plain.

    These are `Standard Relation` with ">", and `Standard Units` with several units. A column
    `Ki relation` is about `Ki` if there is such a column, else about all numbers that are learned.
    A number with a bound in its cell needs no relation.

    Args:
        raw: the rows, with the cells of `columns_beside`.
        columns: the labels.
        names: all columns of the table.
    """
    numbers = {labels.name: k for k, labels in enumerate(columns) if labels.kind == "regression"}
    words = {frozenset(_words(name_and_unit(name)[0])): name for name in names}
    findings = []
    for column, cells in raw.beside.items():
        about = words.get(frozenset(_words(column) - RELATION_WORDS - UNIT_WORDS))
        learned = [k for name, k in numbers.items() if about in (None, name)]
        values = [[row[k] for k in learned if not is_missing(row[k])] for row in raw.cells]
        said = [cell.translate(_PLAIN).strip() for cell in cells]
        is_relation = bool(_words(column) & RELATION_WORDS)
        check = UNREAD_RELATIONS if is_relation else UNREAD_UNITS
        used = (_with_relation if is_relation else _with_mixed_units)(values, said)
        if not used:
            continue
        kinds = list(dict.fromkeys(said[k] for k in used))
        done = f"not read: {', '.join(kinds[:LISTED])}{', ...' if len(kinds) > LISTED else ''}"
        rows = tuple(raw.row(k, f"{column}: {said[k]}") for k in used)
        findings.append(Finding(check, len(used), done, column, rows))
    return findings


def _with_relation(values: Sequence[Sequence[str]], said: Sequence[str]) -> list[int]:
    """Return the rows whose relation says that a plain number is a bound."""
    plain = [any(not _RELATION.match(value) for value in row) for row in values]
    return [k for k, row in enumerate(plain) if row and _RELATION.search(said[k])]


def _with_mixed_units(values: Sequence[Sequence[str]], said: Sequence[str]) -> list[int]:
    """Return the rows with a unit if there are several units, and these are no numbers."""
    used = [k for k, row in enumerate(values) if row and not is_missing(said[k])]
    units = {said[k] for k in used}
    return [] if len(units) < 2 or any(map(NUMBER.fullmatch, units)) else used


def require_plain_values(table: CleanTable) -> None:
    """Refuse a table of which `unread_columns` reports a column.

    Raises:
        ValueError: the message names the columns and what to do.
    """
    unread = [f for f in table.findings if f.check in (UNREAD_RELATIONS, UNREAD_UNITS)]
    if not unread:
        return
    columns = "; ".join(
        f"column {f.target!r} is {f.done} ({f.count:,} rows, the first is row {f.rows[0].row})"
        for f in unread
    )
    ways = {
        UNREAD_RELATIONS: "write the bounds into the cells (>8)",
        UNREAD_UNITS: "convert all values to one unit",
    }
    needed = [way for check, way in ways.items() if any(f.check == check for f in unread)]
    raise ValueError(
        f"{table.path}: the values are learned as they stand, but {columns}. Please"
        f" {' and '.join(needed)}, remove the column if it says nothing about these values, or"
        " go on without it (--values-alone; in Python train_table(..., values_alone=True))."
    )


def _words(name: str) -> set[str]:
    """Return the words of a column's name in lower case, also of `StandardRelation`."""
    return {word.casefold() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)}


def _rows(
    molecules: Sequence[TableMolecule], chosen: Iterable[tuple[int, str]]
) -> tuple[RejectedRow, ...]:
    """Return the first row of each chosen molecule, with a remark about it."""
    return tuple(
        RejectedRow(int(molecules[m].graph.row), molecules[m].graph.smiles, reason)
        for m, reason in chosen
    )


def _undefined(molecules: Sequence[TableMolecule]) -> Finding:
    """Report the molecules of which some configuration is not drawn."""
    counts = []
    for m, molecule in enumerate(molecules):
        with rdBase.BlockLogs():
            places = Chem.FindPotentialStereo(molecule.mol)
        open_places = [p for p in places if p.specified == Chem.StereoSpecified.Unspecified]
        if open_places:
            counts.append((m, f"{len(open_places)} of {len(places)} not drawn"))
    done = "kept; the model reads them as no isomer in particular"
    return Finding("undefined configuration", len(counts), done, "", _rows(molecules, counts))


def _relatives(
    kind: str,
    difference: str,
    molecules: Sequence[TableMolecule],
    targets: Sequence[TargetColumn],
    y: FloatArray,
    key: Callable[[TableMolecule], str],
) -> Finding:
    """Report molecules with the same key as one before, and how much their labels differ.

    Args:
        kind: what such molecules are to each other.
        difference: what they differ in.
        molecules: (n,).
        targets: the columns.
        y: labels (n, targets).
        key: of a molecule.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for m, molecule in enumerate(molecules):
        groups[key(molecule)].append(m)
    several = [group for group in groups.values() if len(group) > 1]
    rows = _rows(
        molecules,
        (
            (m, f"differs from row {molecules[group[0]].graph.row} only in {difference}")
            for group in several
            for m in group[1:]
        ),
    )
    done = "; ".join(["kept", *_contradictions(several, targets, y)])
    return Finding(f"{kind} of another row", len(rows), done, "", rows)


def _contradictions(
    groups: Sequence[Sequence[int]], targets: Sequence[TargetColumn], y: FloatArray
) -> list[str]:
    """Say for each column how much labels y (n, targets) differ within groups of molecules."""
    stated = []
    for target, column in zip(targets, y.T, strict=True):
        measured = [column[list(group)] for group in groups]
        measured = [values[~np.isnan(values)] for values in measured]
        spans = [float(np.ptp(values)) for values in measured if len(values) > 1]
        differing = sum(span > 0 for span in spans)
        if not differing:
            continue
        of_column = f" in {target.name}" if len(targets) > 1 else ""
        if target.kind == "classification":
            groups_have = "group has" if differing == 1 else "groups have"
            stated.append(f"{differing} {groups_have} several classes{of_column}")
        else:
            stated.append(f"values differ by up to {max(spans):.3g}{of_column}")
    return stated


def _tautomer_hash(molecule: TableMolecule) -> str:
    """Return a key that tautomers share, and seldom other molecules (RDKit's, version 2)."""
    with rdBase.BlockLogs():
        return str(MolHash(Chem.Mol(molecule.mol), HashFunction.HetAtomTautomerv2))


def _parent_smiles(molecule: TableMolecule) -> str:
    try:
        with rdBase.BlockLogs():
            parent = parent_of(molecule.mol, "parent")
    except (MoleculeError, ValueError, RuntimeError):
        parent = None
    return molecule.canonical if parent is None else str(Chem.MolToSmiles(parent.mol))


def _of_labels(
    molecules: Sequence[TableMolecule], target: TargetColumn, column: FloatArray
) -> list[Finding]:
    """Report rare classes, or values far from the rest and over orders of magnitude."""
    if target.kind == "classification":
        each = zip(target.classes, target.counts, strict=True)
        rare = [f"{name!r}: {count}" for name, count in each if count < RARE_CLASS]
        done = f"kept; {', '.join(rare)}"
        return [Finding("class with few molecules", len(rare), done, target.name)]
    far = _rows(molecules, ((m, f"value {column[m]:g}") for m in _outliers(column)))
    findings = [Finding("values far from the rest", len(far), "kept", target.name, far)]
    low, high = target.limits
    if low > 0 and high / low > SKEWED:
        done = "kept; their logarithm is easier to learn"
        check = "values span orders of magnitude"
        findings.append(Finding(check, target.measured, done, target.name))
    return findings


def _outliers(values: FloatArray) -> list[int]:
    """Return the positions of values (n,) far from the median.

    They are more than `OUTLIER` robust standard deviations (1.4826 MAD) away.
    """
    distance = np.abs(values - np.nanmedian(values))
    scale = 1.4826 * np.nanmedian(distance)
    return [] if scale == 0 else np.flatnonzero(distance > OUTLIER * scale).tolist()
