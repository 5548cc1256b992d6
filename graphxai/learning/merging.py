"""Read a table's rows of molecules, and merge those of one molecule into a label for each column.

Unusable rows are rejected. Of some labels only a bound is known, such as ">10" (censored values).
Two numbers stand for each label, the lowest and the highest possible value. They are infinite where
nothing is known, and for labels that were measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase

from graphxai.contract.prediction_metrics import FloatArray
from graphxai.datasets.as_given import AS_DRAWN, AsGiven, MixtureError, Standardisation
from graphxai.datasets.canonical_form import ISOTOPE_UNSEEN, is_labelled
from graphxai.datasets.graph import Graph
from graphxai.datasets.labels import Labels, is_missing
from graphxai.datasets.molecule_reading import is_inchi, shortened
from graphxai.datasets.molecules import MAX_QUOTED, MoleculeError, RejectedRow, molecule_graph
from graphxai.datasets.tables.table import Table
from graphxai.learning.cleaned_table import Finding, unbounded

FEWEST = 5  # further values of molecules, from which their noise can be told
UNSEEN = "differs from the first row only in isotopes or labels of atoms"
MISFIT = "more or fewer cells than the header"
LARGEST = 5000  # atoms up to which a molecule is read to say how many it has


@dataclass(eq=False)
class TableMolecule:
    """A molecule as its first row has it, and the positions of its rows among the usable ones."""

    graph: Graph
    drawn: str  # SMILES with what no feature tells apart
    canonical: str  # SMILES of the canonical form
    flat: str  # SMILES without stereochemistry
    parts: int
    mol: Chem.Mol  # in its canonical form
    rows: list[int] = field(default_factory=list)


@dataclass(eq=False)
class TableRows:
    """The rows of a table.

    Args:
        read: how many rows there are.
        numbers, smiles, cells: those of the usable rows.
        beside: for each further column, its cells in the usable rows.
        molecules: each once.
        noted: rows whose molecule was replaced by its parent ("standardised"), those with a remark
            on a molecule "read as drawn", and those with "isotopes", which no model sees.
        alike: positions of usable rows with another molecule than the first row of theirs, which
            the features of a model cannot tell apart from it.
        left_out: unusable rows, by the check that they failed.
    """

    read: int = 0
    numbers: list[int] = field(default_factory=list)
    smiles: list[str] = field(default_factory=list)
    cells: list[tuple[str, ...]] = field(default_factory=list)
    beside: dict[str, list[str]] = field(default_factory=dict)
    molecules: list[TableMolecule] = field(default_factory=list)
    noted: dict[str, list[RejectedRow]] = field(default_factory=lambda: defaultdict(list))
    alike: list[int] = field(default_factory=list)
    left_out: dict[str, list[RejectedRow]] = field(default_factory=lambda: defaultdict(list))

    def row(self, k: int, reason: str) -> RejectedRow:
        """Return the usable row at position `k` with a remark about it."""
        return RejectedRow(self.numbers[k], self.smiles[k], reason)


def read_rows(
    table: Table,
    target_columns: Sequence[str],
    max_atoms: int,
    progress: Callable[[int], None],
    standardise: Standardisation = AS_DRAWN,
    beside: Sequence[str] = (),
    split_column: str | None = None,
) -> TableRows:
    """Sort every row into `TableRows`. A molecule is kept once, at its first row.

    Molecules that differ only in what the features of a model leave out count as one.

    Args:
        standardise: what is kept instead of each molecule, see `molecule_to_data`.
        beside: further columns, whose cells are kept in `TableRows.beside`.
        split_column: a column of parts, in each of which a molecule is kept once.
    """
    rows = TableRows(beside={name: [] for name in beside})
    index_of: dict[str, dict[str, TableMolecule]] = defaultdict(dict)  # by part
    structures = table.structures.name
    columns = (structures, *target_columns, *beside, *([split_column] if split_column else []))
    unusable = "SMILES unreadable" if table.format == "structures" else MISFIT
    with rdBase.BlockLogs():
        for number, record, misfit in table.records(columns):
            rows.read += 1
            progress(1)
            text = record[structures]
            cells = tuple(record[name] for name in target_columns)
            problem: tuple[str, str] | None = (unusable, misfit)
            if not misfit:
                index = index_of[record[split_column] if split_column else ""]
                problem = _add_row(rows, index, number, text, cells, max_atoms, standardise)
            if problem is None:
                for name, kept in rows.beside.items():
                    kept.append(record[name])
            else:
                check, reason = problem
                rejected = RejectedRow(number, shortened(text, MAX_QUOTED), reason)
                rows.left_out[check].append(rejected)
    return rows


def _add_row(
    rows: TableRows,
    index: dict[str, TableMolecule],
    number: int,
    text: str,
    cells: tuple[str, ...],
    max_atoms: int,
    standardise: Standardisation,
) -> tuple[str, str] | None:
    """Add a usable row to its molecule. For any other row, return the check it fails, and why."""
    if not text:
        return "SMILES empty", "the SMILES is empty"
    if all(is_missing(cell) for cell in cells):
        return "no label", "no target column has a label"
    try:
        options: dict[str, Any] = {"canonical": True, "standardise": standardise}
        options["isomers"] = "groups"  # as models read a molecule by default
        graph = molecule_graph(text, max_atoms=max(max_atoms, LARGEST), **options)
    except MixtureError as error:
        return "mixture of compounds", str(error)
    except MoleculeError as error:
        return "SMILES unreadable", str(error) + _other_separator(text)
    if (size := int(graph.num_nodes or 0)) > max_atoms:
        return f"more than {max_atoms} atoms", f"{size} atoms"
    mol: Chem.Mol = graph.read
    canonical = str(Chem.MolToSmiles(mol))
    drawn = str(Chem.CanonSmiles(text)) if is_labelled(text) else canonical
    as_given: AsGiven | None = graph.get("as_given")
    if as_given is not None:
        is_changed = as_given.smiles != graph.smiles
        reason = f"{as_given.sentence}: {graph.smiles}" if is_changed else as_given.sentence
        check = "standardised" if is_changed else "read as drawn"
        check = "isotopes" if as_given.changes == (ISOTOPE_UNSEEN,) else check
        rows.noted[check].append(RejectedRow(number, shortened(text, MAX_QUOTED), reason))
        text = graph.smiles
        del graph.as_given
    molecule = index.get(canonical)
    if molecule is None:
        graph.row = number
        flat = Chem.MolToSmiles(mol, isomericSmiles=False)
        parts = canonical.count(".") + 1
        plain = Graph(**vars(graph))  # without the molecule that was read
        molecule = TableMolecule(plain, drawn, canonical, flat, parts, mol)
        index[canonical] = molecule
        rows.molecules.append(molecule)
    elif drawn != molecule.drawn:
        rows.alike.append(len(rows.numbers))
    molecule.rows.append(len(rows.numbers))
    rows.numbers.append(number)
    rows.smiles.append(text)
    rows.cells.append(cells)
    return None


def _other_separator(text: str) -> str:
    """Return a hint for a message if a cell looks like a whole row, or ""."""
    if is_inchi(text):  # it may contain commas and semicolons
        return ""
    for sign, name in (";", "semicolon"), ("\t", "tab"), (",", "comma"):
        if sign in text:
            return f" It contains a {name}: is this row separated differently from the header?"
    return ""


@dataclass(frozen=True, eq=False)
class MoleculeLabels:
    """The labels of molecules, one for each column.

    Attributes:
        values: the labels (molecules, columns), NaN where one is missing.
        bounds: the lowest and highest possible values (molecules, columns, 2), see
            the top of this file.
        counts: how many measured values each label was made from (molecules, columns).
        noise: the standard deviation of single values of one molecule (columns,), NaN without any.
    """

    values: FloatArray
    bounds: FloatArray
    counts: FloatArray
    noise: FloatArray

    @property
    def bounded(self) -> NDArray[np.bool_]:
        """Whether a bound is known (molecules, columns)."""
        return np.asarray(np.isfinite(self.bounds).any(axis=2))

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Whether a molecule has a label or a bound in any column (molecules,)."""
        return np.asarray((~np.isnan(self.values) | self.bounded).any(axis=1))

    def of(self, molecules: NDArray[np.bool_]) -> MoleculeLabels:
        """Return the labels of some molecules, given by a mask (molecules,)."""
        rows = (self.values[molecules], self.bounds[molecules], self.counts[molecules])
        return MoleculeLabels(*rows, self.noise)


def merge_rows(raw: TableRows, columns: Sequence[Labels]) -> tuple[MoleculeLabels, list[Finding]]:
    """Merge the rows of each molecule into one label per column, and say what was merged.

    The label is the median of the molecule's values, or its class if all its rows agree.
    """
    values = np.full((len(raw.molecules), len(columns)), np.nan)
    bounds = unbounded(len(raw.molecules), len(columns))
    counts, noise = np.zeros_like(values), np.full(len(columns), np.nan)
    duplicates = tuple(
        raw.row(k, f"the same molecule as in row {raw.numbers[molecule.rows[0]]}")
        for molecule in raw.molecules
        for k in molecule.rows[1:]
    )
    alike = tuple(raw.row(k, UNSEEN) for k in raw.alike)
    findings = [
        Finding("duplicate molecules", len(duplicates), "merged", "", duplicates),
        Finding("differences that no model sees", len(alike), "merged", "", alike),
    ]
    for column, labels in enumerate(columns):
        measured = [labels.values[molecule.rows] for molecule in raw.molecules]
        measured = [each[~np.isnan(each)] for each in measured]
        counts[:, column] = list(map(len, measured))
        if labels.kind == "regression":
            noise[column] = _noise(measured)
        values[:, column], merged = _merged_values(raw, labels, measured)
        bounds[:, column], bounded = _merged_bounds(raw, column, labels, values[:, column])
        noun = "number" if labels.kind == "regression" else "class"
        known = {bound.position for bound in labels.bounds}
        wrong = tuple(
            raw.row(k, f"{raw.cells[k][column]!r} is not a {noun}")
            for k in labels.unusable
            if k not in known
        )
        unread = Finding("label not understood", len(wrong), "label not used", labels.name, wrong)
        findings += [unread, merged, bounded]
    return MoleculeLabels(values, bounds, counts, noise), findings


def _noise(measured: Sequence[FloatArray]) -> float:
    """Return the standard deviation of the values of one molecule, NaN if too few have several.

    It is pooled over the molecules with several values: the root of the sum of squared deviations
    from each molecule's mean, over the number of values minus that of these molecules.
    """
    several = [values for values in measured if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    squares = sum(len(values) * np.var(values) for values in several)
    return float(np.sqrt(squares / freedom)) if freedom >= FEWEST else float("nan")


def _merged_values(
    raw: TableRows, labels: Labels, each: Sequence[FloatArray]
) -> tuple[FloatArray, Finding]:
    """Return a column's label of each molecule (molecules,), and the finding about differences."""
    values = np.full(len(raw.molecules), np.nan)
    regression = labels.kind == "regression"
    differing: list[RejectedRow] = []
    largest = 0.0
    for m, (molecule, measured) in enumerate(zip(raw.molecules, each, strict=True)):
        if not measured.size:
            continue
        spread = float(np.ptp(measured))
        if regression or spread == 0:
            values[m] = np.median(measured)
        if spread > 0:
            largest = max(largest, spread)
            if regression:
                listed = ", ".join(f"{value:g}" for value in measured)
                text = f"values {listed}; they differ by {spread:.3g}"
            else:
                text = "classes " + ", ".join(labels.classes[int(value)] for value in measured)
            differing += [raw.row(k, text) for k in molecule.rows]
    check = f"duplicates with different {'values' if regression else 'classes'}"
    done = f"median taken; largest difference {largest:.3g}" if regression else "label not used"
    if 2 * len(differing) > sum(len(molecule.rows) for molecule in raw.molecules):
        done += "; if these are several assays, keep the rows of one"
    return values, Finding(check, len(differing), done, labels.name, tuple(differing))


def _merged_bounds(
    raw: TableRows, column: int, labels: Labels, values: FloatArray
) -> tuple[FloatArray, Finding]:
    """Return the lowest and highest possible values (molecules, 2), and the finding about them.

    A measured value makes the bounds of its molecule unnecessary. Of several bounds the tightest
    ones count. Bounds that contradict each other, and cells such as "~10", are not used.
    """
    molecule_of_row = {k: m for m, molecule in enumerate(raw.molecules) for k in molecule.rows}
    bounds = unbounded(len(values))
    rows, contradicted, unused = [], 0, 0
    for bound in labels.bounds:
        m = molecule_of_row[bound.position]
        cell, value = raw.cells[bound.position][column], values[m]
        reason = f"{cell!r} is a bound, not a value"
        if bound.excludes(value):
            contradicted += 1
            reason += f"; it contradicts {value:g}, learned for the same compound"
        if bound.side and np.isnan(value):
            low, high = bounds[m]
            bounds[m] = (
                (max(low, bound.value), high) if bound.side > 0 else (low, min(high, bound.value))
            )
        else:
            unused += 1
        rows.append(raw.row(bound.position, reason))
    contradictory = bounds[:, 0] > bounds[:, 1]
    bounds[contradictory] = unbounded()
    done = "learned as bounds"
    if rows:
        done += f", such as {raw.cells[labels.bounds[0].position][column]!r}"
    if unused:
        done += f"; {unused:,} not needed beside a value, or without a side"
    if contradicted:
        verb = "contradicts" if contradicted == 1 else "contradict"
        done += f"; {contradicted:,} {verb} the value learned for the same compound"
    if contradictory.any():
        done += f"; those of {contradictory.sum():,} compounds contradict each other, not used"
    return bounds, Finding("bounds instead of values", len(rows), done, labels.name, tuple(rows))
