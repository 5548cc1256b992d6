"""A checked table of molecules: its targets, its molecules, and what the checks found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphxai.contract.prediction_metrics import FloatArray
from graphxai.datasets.as_given import Standardisation
from graphxai.datasets.graph import Graph
from graphxai.datasets.labels import LabelsKind, with_unit
from graphxai.datasets.molecules import RejectedRow
from graphxai.datasets.tables.table import Table
from graphxai.runtime.writing import csv_text, folder_at, write_whole

if TYPE_CHECKING:
    import pandas as pd
    from torch_geometric.data import Data

    from graphxai.datasets.open_graph_benchmark import OgbMolecules

CHECKS = ("check", "target", "count", "done")
RECORDS = ("row", "smiles", "check", "target", "done", "reason")


@dataclass(frozen=True)
class Finding:
    """The result of a check: how many rows or values it affects, which, and what was done."""

    check: str
    count: int
    done: str
    target: str = ""
    rows: tuple[RejectedRow, ...] = ()

    def __str__(self) -> str:
        where = f" in {self.target}" if self.target else ""
        return f"{self.check}{where}: {self.count:,}, {self.done}"


class Findings(tuple[Finding, ...]):
    """All findings for a table, which print as lines and are shown as a table in a notebook."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def __repr__(self) -> str:
        return f"Findings({'; '.join(map(str, self)) or 'nothing'})"

    def records(self) -> Iterator[tuple[int, str, str, str, str, str]]:
        """Yield number, SMILES, check, target, action and reason of every affected row."""
        for finding in self:
            done = finding.done.partition("; ")[0]  # what follows sums up all rows
            for row in finding.rows:
                yield row.row, row.smiles, finding.check, finding.target, done, row.reason

    def to_frame(self) -> pd.DataFrame:
        """Return a data frame with one row per check: check, target, count, done."""
        import pandas as pd

        rows = [tuple(getattr(finding, name) for name in CHECKS) for finding in self]
        return pd.DataFrame(rows, columns=list(CHECKS))

    def rows_to_frame(self) -> pd.DataFrame:
        """Return a data frame of all affected rows: row, smiles, check, target, done, reason."""
        import pandas as pd

        return pd.DataFrame(list(self.records()), columns=list(RECORDS))

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False, escape=True, border=0))


@dataclass(frozen=True)
class TargetColumn:
    """A column to learn.

    Attributes:
        name: header of the column, without its unit.
        kind: classification or regression.
        classes: names of the classes; empty for a regression.
        note: how kind and classes were inferred.
        measured: number of molecules with a label.
        counts: number of molecules in each class; empty for a regression.
        limits: smallest and largest value of a regression.
        unit: unit of the values, from the column's header or as given.
        bounded: number of molecules with a bound, such as ">10", instead of a value.
        noise: standard deviation of single values of one molecule, 0 if it is not known.
    """

    name: str
    kind: LabelsKind
    classes: tuple[str, ...]
    note: str
    measured: int
    counts: tuple[int, ...] = ()
    limits: tuple[float, float] = (0.0, 0.0)
    unit: str = ""
    bounded: int = 0
    noise: float = 0.0

    @property
    def heading(self) -> str:
        """The name with the unit, for the columns of tables."""
        return with_unit(self.name, self.unit)

    def __str__(self) -> str:
        if self.kind == "regression":
            low, high = self.limits
            content = f"{self.measured:,} values from {low:.4g} to {high:.4g} {self.unit}".rstrip()
            content += f", and {self.bounded:,} bounds" if self.bounded else ""
            content += f"; sd of replicates {self.noise:.2g}" if self.noise else ""
        else:
            each = zip(self.classes, self.counts, strict=True)
            content = ", ".join(f"{name!r} {count:,}" for name, count in each)
        return f"{self.name}: {self.kind} ({self.note}): {content}"


def unbounded(*shape: int) -> FloatArray:
    """Return bounds (*shape, 2) that say nothing."""
    return np.stack([np.full(shape, -np.inf), np.full(shape, np.inf)], axis=-1)


@dataclass(frozen=True, eq=False)
class CleanTable:
    """The distinct molecules of a table with their labels.

    Attributes:
        file: the file.
        sha256: digest of the file.
        read: number of rows in the file.
        targets: the columns to learn.
        molecules: the graphs of the molecules, with `y` (1, targets), NaN where there is no label,
            `row` (the first of the molecule's rows) and `smiles` as written there; if the table has
            bounds, also `bounds` (1, targets, 2), see the property.
        canonical: the molecules' canonical SMILES.
        findings: what the checks found.
        standardise: how molecules were brought to their parents, see `clean_table`.
        official: the data set of OGB whose molecules these are, see `learning.official`.
        counts: how many measured values each label was made from (n, targets).
    """

    file: Table
    sha256: str
    read: int
    targets: tuple[TargetColumn, ...]
    molecules: tuple[Graph, ...]
    canonical: tuple[str, ...]
    findings: Findings
    standardise: Standardisation = "as drawn"
    official: OgbMolecules | None = None
    counts: FloatArray | None = None

    def __repr__(self) -> str:
        names = ", ".join(target.name for target in self.targets)
        return f"CleanTable({self.path.name}: {len(self.molecules):,} molecules, {names})"

    def _repr_html_(self) -> str:
        rows = f"{self.read:,} rows, {len(self.molecules):,} molecules"
        return f"<p>{escape(self.path.name)}: {rows}</p>{self.findings._repr_html_()}"

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.file.path

    @property
    def smiles_column(self) -> str:
        """The file's column with SMILES."""
        return self.file.structures.name

    @cached_property
    def graphs(self) -> tuple[Data, ...]:
        """The molecules as PyG's graphs."""
        graphs = tuple(molecule.to_data() for molecule in self.molecules)
        for graph in graphs:
            if graph.get("isomers") is not None:
                graph.isomers = tuple(isomer.to_data() for isomer in graph.isomers)
        return graphs

    @property
    def y(self) -> FloatArray:
        """Labels (n, targets)."""
        return np.array([graph.get("y")[0].tolist() for graph in self.molecules], dtype=np.float64)

    @property
    def bounds(self) -> FloatArray:
        """The lowest and highest possible values (n, targets, 2) where a bound is all there is.

        They are infinite everywhere else.
        """
        bounds = unbounded(len(self.molecules), len(self.targets))
        for row, graph in zip(bounds, self.molecules, strict=True):
            if graph.get("bounds") is not None:
                row[:] = graph.bounds[0]
        return bounds

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """The number of each molecule's first row, counted from 1 after the header."""
        return tuple(int(graph.row) for graph in self.molecules)

    def cells(self, column: str) -> list[str]:
        """Read another column of the file: the cell in each molecule's first row.

        Raises:
            TableError: the file has no such column.
        """
        cell_of = {record.number: record.cells[column] for record in self.file.records((column,))}
        return [cell_of[row] for row in self.rows]

    def save(self, folder: Path) -> None:
        """Write `hygiene.json` (checks) and `hygiene.csv` (one line per affected row)."""
        folder_at(folder)
        write_whole(folder / "hygiene.json", json.dumps(self.to_dict(), indent=1) + "\n")
        write_whole(folder / "hygiene.csv", csv_text(RECORDS, self.findings.records()))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "file": self.path.name,
            "sha256": self.sha256,
            "rows": self.read,
            "molecules": len(self.molecules),
            "targets": [asdict(target) for target in self.targets],
            "checks": [
                vars(finding) | {"rows": [row.row for row in finding.rows]}
                for finding in self.findings
            ],
        }
