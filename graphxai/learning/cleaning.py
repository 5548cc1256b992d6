"""Check a table of molecules before anything is trained on it.

Every row has one fate: kept as a molecule, merged with an identical one, or left out with a
reason. Rows that are merely suspicious are kept and reported.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import compress, starmap
from pathlib import Path

import numpy as np
import torch

from graphxai.contract.prediction_metrics import FloatArray
from graphxai.datasets.as_given import Standardisation
from graphxai.datasets.labels import (
    Labels,
    LabelsKind,
    UnclearNumbersError,
    name_and_unit,
    read_labels,
)
from graphxai.datasets.molecules import MAX_ATOMS
from graphxai.datasets.tables.assays import Transform, plain_values
from graphxai.datasets.tables.columns import AssayColumns
from graphxai.datasets.tables.table import open_table
from graphxai.learning.cleaned_table import CleanTable, Finding, Findings, TargetColumn
from graphxai.learning.merging import (
    MoleculeLabels,
    TableMolecule,
    TableRows,
    merge_rows,
    read_rows,
)
from graphxai.learning.suspicions import suspicions
from graphxai.runtime.notices import warn

MIN_MOLECULES = 20
STANDARDISED = {
    "as drawn": "",
    "parent": "counter-ions and solvents removed, charges neutralised",
    "tautomers": "counter-ions and solvents removed, charges neutralised, one tautomer taken",
}


def clean_table(
    path: str | Path,
    smiles_column: str | None,
    target_columns: Sequence[str],
    *,
    kinds: Mapping[str, LabelsKind] | None = None,
    units: Mapping[str, str] | None = None,
    max_atoms: int = MAX_ATOMS,
    standardise: Standardisation = "parent",
    split_column: str | None = None,
    transform: Mapping[str, Transform] | None = None,
    values_alone: bool = False,
    progress: Callable[[int], None] = lambda rows: None,
) -> CleanTable:
    """Read a table row by row into distinct molecules with labels.

    Columns beside the values that say how to read them, such as relations and units, are read with
    them, see `datasets.tables.assays`. Molecules with the same canonical SMILES are merged. They
    get the median of their values, or their class if all agree and no label otherwise.

    Args:
        path: the file.
        smiles_column: column with structures; None for one with a usual name, or the only one whose
            cells can be read as SMILES.
        target_columns: columns to learn.
        kinds: kind of a column, by name; it is inferred for the others.
        units: unit of a column, by name; without one, the header of a regression
            `freesolv (kcal/mol)` is read as name and unit.
        max_atoms: larger molecules are left out.
        standardise: learn from the "parent" of each molecule, without counter-ions and neutral;
            from its canonical tautomer too ("tautomers"); or from the molecule "as drawn". See
            `datasets.standardise`.
        split_column: column that says which part of a split a row is in. Molecules are then merged
            within their part alone, so that no label of one part is learned in another.
        transform: by column, "log10" to learn logarithms or "none" to learn the values; by default
            IC50, Ki, EC50 and the like in units of concentration become pIC50 and so on.
        values_alone: learn the numbers as they stand, whatever is beside them.
        progress: called with the number of rows read since the last call.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a column is missing or has no labels; every column has a single class or
            value; a unit is given for classes; fewer than 20 molecules.
    """
    path, kinds, units = Path(path), dict(kinds or {}), dict(units or {})
    table = open_table(path, smiles_column)
    smiles_column, transform = table.structures.name, dict(transform or {})
    _check_columns(smiles_column, target_columns, {**kinds, **units, **transform})
    assays = [
        AssayColumns(name)
        if values_alone or kinds.get(name) == "classification"
        else table.assay(name, units.get(name, ""))
        for name in target_columns
    ]
    beside = [smiles_column, *(name for assay in assays for name in assay.all)]
    raw = read_rows(table, target_columns, max_atoms, progress, standardise, beside, split_column)
    if not raw.read:
        raise ValueError(f"{path} has no rows below its header.")
    if not raw.molecules:
        check, rows = next(iter(raw.left_out.items()))
        raise ValueError(f"{path} has no usable row. {check}: {len(rows)}, first {rows[0]}")
    plain = [
        plain_values(assay, raw.beside, raw.beside[smiles_column], transform.get(assay.value))
        for assay in assays
    ]
    raw.cells = list(zip(*(values.cells for values in plain), strict=True))
    columns = []
    for assay, values in zip(assays, plain, strict=True):
        is_only = sum(other.name == values.name for other in plain) == 1
        name = values.name if is_only else f"{values.name} of {assay.value}"
        if values.unit or values.name != assay.value:
            units[name] = values.unit
        read = read_labels(assay.value, values.cells, kinds.get(assay.value))
        columns.append(replace(read, name=name))
    merged, merge_findings = merge_rows(raw, columns)
    _require_values(path, raw, columns, merged.values)
    of_targets, targets, column_findings = _learnable(path, columns, merged)
    targets = _with_units(targets, units)
    molecules, labels, lost = _labelled_molecules(path, raw, of_targets)
    has_bounds = bool(labels.bounded.any())
    for molecule, row, limits in zip(molecules, labels.values, labels.bounds, strict=True):
        molecule.graph.y = torch.tensor(row[None], dtype=torch.float32)  # (1, targets)
        if has_bounds:
            molecule.graph.bounds = torch.tensor(limits[None], dtype=torch.float32)
    findings = [
        *_row_findings(raw, standardise),
        *(
            Finding(r.check, r.count, r.done, r.column, tuple(starmap(raw.row, r.rows.items())))
            for values in plain
            for r in values.readings
        ),
        *merge_findings,
        *column_findings,
        lost,
        _in_several_parts(raw, molecules),
        *suspicions(molecules, targets, labels.values, standardise),
    ]
    return CleanTable(
        table,
        _digest(path),
        raw.read,
        targets,
        tuple(molecule.graph for molecule in molecules),
        tuple(molecule.canonical for molecule in molecules),
        Findings(finding for finding in findings if finding.count),
        standardise,
        counts=labels.counts,
    )


def matching_columns(
    path: str | Path,
    smiles_column: str | None,
    patterns: Sequence[str],
    exclude: Sequence[str] = (),
) -> list[str]:
    """Find the columns of a table that patterns name: exact names, "NR-*", or "all".

    The patterns are those of `fnmatch`. They and "all" skip the SMILES, the names or numbers of
    compounds, the columns in `exclude`, and columns without labels. The order is the file's.

    Raises:
        ValueError: a pattern matches no column.
    """
    table = open_table(path, smiles_column)
    header, skipped = table.columns, {table.structures.name, table.names_column, *exclude}
    columns: list[str] = []
    for pattern in patterns:
        if pattern in header or not (pattern == "all" or set(pattern) & set("*?[")):
            columns.append(pattern)  # if there is no such column, `clean_table` refuses it
            continue
        names = [name for name in header if pattern == "all" or fnmatchcase(name, pattern)]
        names = [name for name in names if name not in (*skipped, *columns)]
        cells: dict[str, list[str]] = {name: [] for name in names}
        for record in table.records(names):
            for name in names:
                cells[name].append(record.cells[name])
        usable = [name for name in names if _has_labels(name, cells[name])]
        if not usable:
            raise ValueError(
                f"{pattern!r} matches no column with labels; the columns are"
                f" {', '.join(repr(name) for name in header)}."
            )
        columns += usable
    return columns


def _has_labels(name: str, cells: Sequence[str]) -> bool:
    """Return whether a column has at least two different labels. Warn of one that may have."""
    try:
        labels = read_labels(name, cells)
    except UnclearNumbersError as error:
        warn(f"not learned: {error}", stacklevel=4)
        return False
    except ValueError:
        return False
    return len(np.unique(labels.values[~np.isnan(labels.values)])) > 1


def _check_columns(
    smiles_column: str, target_columns: Sequence[str], kinds: Mapping[str, str]
) -> None:
    """Refuse columns that contradict each other."""
    if not target_columns:
        raise ValueError("give at least one column to learn.")
    if smiles_column in target_columns:
        raise ValueError(f"column {smiles_column!r} cannot be both the SMILES and a target.")
    for name in target_columns:
        if list(target_columns).count(name) > 1:
            raise ValueError(f"target column {name!r} is given twice.")
    for name in kinds:
        if name not in target_columns:
            raise ValueError(f"{name!r} has a kind or unit, but is not a target column.")


def _require_values(
    path: Path, raw: TableRows, columns: Sequence[Labels], values: FloatArray
) -> None:
    """Refuse a table with one column of labels if all its numbers are the same."""
    if len(columns) > 1 or columns[0].kind != "regression" or not columns[0].unusable:
        return
    labels, distinct = columns[0], np.unique(values[~np.isnan(values)])
    if len(distinct) < 2:
        cell = raw.cells[labels.unusable[0]][0]
        raise ValueError(
            f"{path}: nothing can be learned from {labels.name!r}: its only value is"
            f" {distinct[0]:g}, and {len(labels.unusable):,} cells are not numbers, such as"
            f" {cell!r}."
        )


def _learnable(
    path: Path, columns: Sequence[Labels], merged: MoleculeLabels
) -> tuple[MoleculeLabels, tuple[TargetColumn, ...], list[Finding]]:
    """Return the labels and targets of columns with several classes or values, and findings."""
    targets: dict[int, TargetColumn] = {}
    kept: list[FloatArray] = []
    findings: list[Finding] = []
    bounded = merged.bounded.sum(axis=0).tolist()
    for position, (labels, column) in enumerate(zip(columns, merged.values.T, strict=True)):
        distinct, counts = np.unique(column[~np.isnan(column)], return_counts=True)
        if len(distinct) < 2:
            findings.append(
                Finding("one class or value only", int(counts.sum()), "not learned", labels.name)
            )
            continue
        target = TargetColumn(
            labels.name, labels.kind, (), labels.note, int(counts.sum()), bounded=bounded[position]
        )
        if labels.kind == "regression":
            limits, noise = (float(distinct[0]), float(distinct[-1])), merged.noise[position]
            target = replace(target, limits=limits, noise=float(np.nan_to_num(noise)))
        else:  # a class is gone if all its molecules had contradictory labels
            names = tuple(labels.classes[int(value)] for value in distinct)
            target = replace(target, classes=names, counts=tuple(counts.tolist()))
            column = np.where(np.isnan(column), column, np.searchsorted(distinct, column))
        targets[position] = target
        kept.append(column)
    if not targets:
        text = ", ".join(repr(labels.name) for labels in columns)
        raise ValueError(
            f"{path}: nothing can be learned from {text}: all molecules have the same class or"
            " value (or contradictory ones)."
        )
    chosen = list(targets)
    chosen_labels = merged.bounds[:, chosen], merged.counts[:, chosen], merged.noise[chosen]
    return MoleculeLabels(np.stack(kept, axis=1), *chosen_labels), tuple(targets.values()), findings


def _labelled_molecules(
    path: Path, raw: TableRows, labels: MoleculeLabels
) -> tuple[list[TableMolecule], MoleculeLabels, Finding]:
    """Return the molecules with a label, their labels, and the finding about the others."""
    molecules = list(compress(raw.molecules, labels.labelled))
    if len(molecules) < MIN_MOLECULES:
        raise ValueError(
            f"{path} has {len(molecules)} different molecules with a label; at least "
            f"{MIN_MOLECULES} are needed to train, calibrate and test (hundreds for a useful "
            "model)."
        )
    lost = tuple(
        raw.row(molecule.rows[0], "no usable label is left")
        for molecule in compress(raw.molecules, ~labels.labelled)
    )
    finding = Finding("no usable label left", len(lost), "left out", "", lost)
    return molecules, labels.of(labels.labelled), finding


def _in_several_parts(raw: TableRows, molecules: Sequence[TableMolecule]) -> Finding:
    """Return the finding about molecules that several parts of a given split have."""
    counts = Counter(molecule.canonical for molecule in molecules)
    several = tuple(
        raw.row(molecule.rows[0], f"{counts[molecule.canonical]} parts have this molecule")
        for molecule in molecules
        if counts[molecule.canonical] > 1
    )
    return Finding("molecule in several parts of the split", len(several), "kept", "", several)


def _row_findings(raw: TableRows, standardise: Standardisation) -> list[Finding]:
    """Return the findings about rows: those left out, and those whose molecule was changed."""
    done = {
        "standardised": STANDARDISED[standardise],
        "read as drawn": "kept",
        "isotopes": "not seen by the model",
    }
    each = [(check, "left out", rows) for check, rows in raw.left_out.items()]
    each += [(check, text, raw.noted[check]) for check, text in done.items()]
    return [Finding(check, len(rows), text, "", tuple(rows)) for check, text, rows in each]


def _with_units(
    targets: Sequence[TargetColumn], units: Mapping[str, str]
) -> tuple[TargetColumn, ...]:
    """Set the units that were given, or else those in the headers if names stay unique."""
    with_unit = []
    for target in targets:
        name, unit = name_and_unit(target.name)
        alike = [other for other in targets if name_and_unit(other.name)[0] == name]
        given = units.get(target.name)
        if given and target.kind != "regression":
            raise ValueError(f"{target.name!r} has classes: a unit is for numbers.")
        if given not in (None, unit):
            target = replace(target, unit=given or "")
        elif target.kind == "regression" and len(alike) == 1:
            target = replace(target, name=name, unit=unit)
        with_unit.append(target)
    return tuple(with_unit)


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
