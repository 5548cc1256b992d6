"""Merge the rows of a table that have the same molecule into one label for each column.

Of some labels only a bound is known, such as ">10" (censored values). Two numbers stand for each
label, the lowest and the highest possible value. They are infinite where nothing is known, and for
labels that were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphxai.datasets.labels import Labels
from graphxai.datasets.molecules import RejectedRow
from graphxai.datasets.table_rows import TableRows
from graphxai.learning.cleaned_table import Finding, unbounded

FloatArray = NDArray[np.float64]
FEWEST = 5  # further values of molecules, from which their noise can be told
UNSEEN = "differs from the first row only in isotopes or labels of atoms"


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

    Args:
        raw: the rows of the table.
        columns: the labels of all rows, by column.
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
        values[:, column], merged = _merged_values(raw, labels)
        counts[:, column], noise[column] = _replicates(raw, labels)
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


def _replicates(raw: TableRows, labels: Labels) -> tuple[FloatArray, float]:
    """Return how many values each molecule has (molecules,), and their standard deviation.

    It is pooled over the molecules with several values: the root of the sum of squared deviations
    from each molecule's mean, over the number of values minus that of these molecules.
    """
    groups = [labels.values[molecule.rows] for molecule in raw.molecules]
    groups = [values[~np.isnan(values)] for values in groups]
    several = [values for values in groups if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    counts = np.array([len(values) for values in groups], dtype=float)
    if labels.kind != "regression" or freedom < FEWEST:
        return counts, float("nan")
    return counts, float(np.sqrt(sum(len(v) * np.var(v) for v in several) / freedom))


def _merged_values(raw: TableRows, labels: Labels) -> tuple[FloatArray, Finding]:
    """Return a column's label of each molecule (molecules,), and the finding about differences."""
    values = np.full(len(raw.molecules), np.nan)
    regression = labels.kind == "regression"
    differing: list[RejectedRow] = []
    largest = 0.0
    for m, molecule in enumerate(raw.molecules):
        measured = labels.values[molecule.rows]
        measured = measured[~np.isnan(measured)]
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
