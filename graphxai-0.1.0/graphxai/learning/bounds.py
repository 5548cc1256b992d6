"""Labels of which only a bound is known, such as ">10": censored values.

For each label there are two numbers, the lowest and the highest possible value. They are infinite
where nothing is known, and for labels that were measured.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from graphxai.datasets.labels import Labels
from graphxai.datasets.table_rows import TableRows
from graphxai.learning.cleaned_table import Finding

__all__ = ["merged_bounds", "unbounded"]

FloatArray = NDArray[np.float64]


def unbounded(*shape: int) -> FloatArray:
    """Return bounds (*shape, 2) that say nothing."""
    return np.stack([np.full(shape, -np.inf), np.full(shape, np.inf)], axis=-1)


def merged_bounds(
    raw: TableRows, column: int, labels: Labels, values: FloatArray
) -> tuple[FloatArray, Finding]:
    """Return the bounds of each molecule's value in a column, and the finding about them.

    A measured value makes the bounds of its molecule unnecessary. Of several bounds the tightest
    ones count. Bounds that contradict each other, and cells such as "~10", are not used.

    Args:
        raw: the rows of the table.
        column: the position of the column among the target columns.
        labels: the labels of the column.
        values: the values learned (molecules,), NaN where none was measured.

    Returns:
        The lowest and highest possible values (molecules, 2), and the finding.
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
