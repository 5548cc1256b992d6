"""Fit what each R-group adds to a measured value, and fill the empty cells of a table of R-groups.

A value is the core's, plus a contribution of each R-group (Free and Wilson 1964). The contributions
are fitted by ridge regression, whose penalty has the smallest error on compounds left out in turn.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase

from graphxai.explanation.api import OneOrMoreModels, predict
from graphxai.explanation.compute.models import ModelPanel
from graphxai.explanation.prediction import table_cells
from graphxai.runtime.notices import warn

from .matched_pairs import NINE_IN_TEN
from .matching import rgroups, unstable_groups
from .measurements import Measurements
from .profile_text import read_profile
from .table_changes import MeasuredSource

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 6  # compounds of a series that is fitted
PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
ENDS = ("value", "low", "high")
MOST_MADE = 5000  # products that are enumerated


Estimate: TypeAlias = tuple[float, float, float]  # a value, and the ends of its 90 % interval


@dataclass(frozen=True, eq=False)
class FreeWilson:
    """The contributions of R-groups to a measured value, from `free_wilson`.

    Attributes:
        name: the name of the value.
        core: SMILES of the core, with numbered `*` at its R-groups.
        parts: for each compound, the SMILES of its R-groups, in the order of `groups`.
        groups: the names of the R-groups.
        values: the measured values (n,) by SMILES of each compound.
    """

    name: str
    core: str
    groups: tuple[str, ...]
    parts: Mapping[str, tuple[str, ...]]
    values: Mapping[str, float]

    @cached_property
    def columns(self) -> dict[tuple[str, str], int]:
        """How many compounds have each part of each group, the most common of a group first."""
        counts = Counter(
            (g, p) for row in self.parts.values() for g, p in zip(self.groups, row, strict=True)
        )
        return dict(sorted(counts.items(), key=lambda each: (each[0][0], -each[1], each[0][1])))

    @cached_property
    def _fit(self) -> tuple[NDArray[np.float64], NDArray[np.float64], float, float]:
        """The contributions, their inverse matrix, the variance, and the error left out in turn."""
        rows = np.stack([self._row(each) for each in self.parts.values()])
        y = np.array([self.values[smiles] for smiles in self.parts])
        best = None
        for penalty in PENALTIES:
            ridge = np.diag([1e-9, *[penalty] * len(self.columns)])  # the core's value is free
            inverse = np.linalg.inv(rows.T @ rows + ridge)
            fitted = inverse @ rows.T @ y
            leverage = np.einsum("ij,jk,ik->i", rows, inverse, rows)
            residual = y - rows @ fitted
            left_out = float(((residual / np.maximum(1 - leverage, 1e-6)) ** 2).mean())
            if best is None or left_out < best[3]:
                spare = max(len(y) - float(leverage.sum()), 1.0)
                best = fitted, inverse, float((residual**2).sum()) / spare, left_out
        assert best is not None
        coefficients, inverse, variance, left_out = best
        return coefficients, np.asarray(inverse, dtype=np.float64), variance, left_out

    def _row(self, parts: Sequence[str]) -> NDArray[np.float64]:
        """Return 1 for the core and each part that a compound has (1 + columns,)."""
        here = set(zip(self.groups, parts, strict=True))
        return np.array([1.0, *(key in here for key in self.columns)])

    @property
    def q2(self) -> float:
        """The share of the variance that is predicted for compounds left out in turn."""
        return 1 - self._fit[3] / (float(np.var(list(self.values.values()))) or 1.0)

    @property
    def contributions(self) -> dict[tuple[str, str], Estimate]:
        """What each part adds, by group and SMILES, with the interval of the contribution."""
        fitted, inverse, variance, _ = self._fit
        half = NINE_IN_TEN * np.sqrt(variance * np.diag(inverse))
        numbers = zip(self.columns, fitted[1:].tolist(), half[1:].tolist(), strict=True)
        return {key: (value, value - by, value + by) for key, value, by in numbers}

    def predict(self, parts: Sequence[str]) -> Estimate:
        """Return the value of a compound with these R-groups, in the order of `groups`.

        A part that no compound has adds nothing.
        """
        fitted, inverse, variance, _ = self._fit
        row = self._row(parts)
        half = NINE_IN_TEN * float(np.sqrt(variance * (1 + row @ inverse @ row)))
        value = float(row @ fitted)
        return value, value - half, value + half

    def matrix(self, most: int = 12) -> tuple[tuple[str, str], list[list[Any]]] | None:
        """Return the two groups with most parts, and a row of cells for each part of the first.

        Each row begins with the part. Its cells, one for each part of the second group, are that
        part, the mean measured value or None, and the fitted value for the most common other parts.
        The result is None without two groups that have several parts. `most` limits both ways.
        """
        parts = {g: [p for h, p in self.columns if h == g] for g in self.groups}
        ranked = sorted(self.groups, key=lambda group: -len(parts[group]))
        if len(ranked) < 2 or len(parts[ranked[1]]) < 2:
            return None
        first, second = ranked[:2]
        a, b = self.groups.index(first), self.groups.index(second)
        measured: dict[tuple[str, str], list[float]] = {}
        for smiles, row in self.parts.items():
            measured.setdefault((row[a], row[b]), []).append(self.values[smiles])
        rows: list[list[Any]] = []
        for row_part in parts[first][:most]:
            cells: list[Any] = [row_part]
            for other in parts[second][:most]:
                chosen = {g: parts[g][0] for g in self.groups} | {first: row_part, second: other}
                values = measured.get((row_part, other))
                mean = None if values is None else float(np.mean(values))
                cells.append((other, mean, self.predict([chosen[g] for g in self.groups])))
            rows.append(cells)
        return (first, second), rows

    def __repr__(self) -> str:
        return (
            f"FreeWilson({self.name}: {len(self.columns)} parts in {len(self.parts)} compounds,"
            f" left out in turn R2 {self.q2:.2f})"
        )

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with a row for each part: its group, compounds and contribution."""
        import pandas as pd

        rows = [(*key, self.columns[key], *each) for key, each in self.contributions.items()]
        return pd.DataFrame(rows, columns=["group", "part", "compounds", *ENDS])

    def empty_cells(self) -> Iterator[tuple[str, tuple[str, ...], Estimate]]:
        """Yield the SMILES and parts of every product that was not measured, and its value.

        Products with an unstable group, or that RDKit cannot join, are left out. A warning says if
        there are more than `MOST_MADE` combinations.
        """
        measured = set(self.parts.values())
        choices = [[p for g, p in self.columns if g == group] for group in self.groups]
        if (combinations := math.prod(map(len, choices))) > MOST_MADE:
            warn(
                f"the R-groups have {combinations:,} combinations, of which the first {MOST_MADE:,}"
                " are made: give a core that leaves fewer groups to choose.",
                stacklevel=3,
            )
        with rdBase.BlockLogs():
            for parts in islice(product(*choices), MOST_MADE):
                mol = None if parts in measured else _joined(self.core, parts)
                if mol is not None and not unstable_groups(mol):
                    yield str(Chem.MolToSmiles(mol)), parts, self.predict(parts)

    def products(
        self, model: OneOrMoreModels, goal: str, n: int = 20, predictions: int = 1000
    ) -> "pd.DataFrame":
        """Return the core with all combinations of R-groups, those nearest to a goal first.

        Args:
            model: a model, or a list of these.
            goal: goals for their properties, as `gx.profile` reads them.
            n: how many products to return.
            predictions: how many are predicted at most: those with the highest fitted value, or the
                lowest if compounds of the series with low values are predicted nearer to the goal.

        Returns:
            A table with the SMILES, R-groups, desirability, the fitted value with its interval, and
            what the models predict.
        """
        import pandas as pd

        panel = ModelPanel.of(model)
        wished = read_profile(panel, goal)
        series = predict(list(panel.models), list(self.parts), progress=False)
        wanted = [0.0 if each is None else wished.score(each).overall or 0.0 for each in series]
        falls = np.cov([self.values[smiles] for smiles in self.parts], wanted)[0, 1] < 0
        made = sorted(self.empty_cells(), key=lambda each: each[2][0], reverse=not falls)
        made = made[:predictions]
        predicted = predict(list(panel.models), [smiles for smiles, _, _ in made], progress=False)
        rows = []
        for (smiles, parts, fitted), each in zip(made, predicted, strict=True):
            if each is not None:
                cells: dict[str, Any] = {"smiles": smiles}
                cells |= zip(self.groups, parts, strict=True)
                cells |= wished.score(each).columns
                cells |= {f"fitted_{end}": cell for end, cell in zip(ENDS, fitted, strict=True)}
                rows.append(cells | table_cells([*each.values()], several_models=True))
        of_none = ["smiles", *self.groups, "desirability"]
        frame = pd.DataFrame(rows, columns=None if rows else of_none)
        return frame.sort_values("desirability", ascending=False, ignore_index=True)[:n]


def free_wilson(core: str, measured: MeasuredSource, column: str = "value") -> FreeWilson:
    """Fit what each R-group of a series adds to a measured value (Free and Wilson 1964).

    Args:
        core: SMARTS or SMILES of the core, as for `rgroup_table`.
        measured: the table's file, measured values by SMILES, or `Measurements`.
        column: the column of the measured values. A dose, such as `IC50 (nM)`, is fitted as its
            negative logarithm in mol/l, as in training.

    Raises:
        ValueError: fewer than `FEWEST` compounds with values have the core.
    """
    if isinstance(measured, Mapping):
        measured = Measurements.of(measured, column)
    elif not isinstance(measured, Measurements):
        measured = Measurements.read(measured, [column], tasks=None)
    made = fitted_series(rgroups(core, list(measured.values)), measured)
    if made is None:
        raise ValueError(f"fewer than {FEWEST} compounds with R-groups have the core {core[:80]}.")
    return made


def fitted_series(
    divided: Mapping[str, Mapping[str, str]], measured: Measurements
) -> FreeWilson | None:
    """Return the fit for compounds that `rgroups` has divided, or None if they are too few.

    Compounds count that have the most common core, and no ring over two R-groups.
    """
    of_series = {s: parts for s, parts in divided.items() if s in measured.values}
    cores = Counter(parts["Core"] for parts in of_series.values())
    if not cores:
        return None
    core, _ = min(cores.items(), key=lambda each: (-each[1], each[0]))
    groups = sorted({g for parts in of_series.values() for g in parts} - {"Core"}, key=group_number)
    rows = {
        smiles: tuple(parts.get(group, "") for group in groups)
        for smiles, parts in of_series.items()
        if parts["Core"] == core
    }
    rows = {s: row for s, row in rows.items() if all(part.count("*") == 1 for part in row)}
    if len(rows) < FEWEST or not groups:
        return None
    values = {smiles: measured.values[smiles] for smiles in rows}
    return FreeWilson(measured.name, core, tuple(groups), rows, values)


def _joined(core: str, parts: Sequence[str]) -> Chem.Mol | None:
    """Return the core with its R-groups, or None if RDKit cannot join them."""
    mol = Chem.MolFromSmiles(".".join((core, *parts)))
    try:
        joined = Chem.RemoveHs(Chem.molzip(mol))
        Chem.SanitizeMol(joined)
    except (ValueError, RuntimeError):
        return None
    return joined if "." not in Chem.MolToSmiles(joined) else None


def group_number(group: str) -> tuple[int, str]:
    """Sort R2 before R10."""
    return (int(group[1:]) if group[1:].isdigit() else 0), group
