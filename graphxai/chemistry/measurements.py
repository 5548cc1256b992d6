"""Look up what a table of measured values says about a change of a molecule.

The table may hold the product itself, and pairs of molecules with the same change.
"""

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from rdkit import Chem, rdBase

from graphxai.contract.tasks import Task
from graphxai.datasets.labels import not_understood, read_measured
from graphxai.datasets.tables.table import open_table

from .matched_pairs import Exchange, matched_pairs

SPREAD = 3.0  # standard deviations around the mean within which a task's values are expected


class NoNumbersError(ValueError):
    """Raised where there are measured values but none of them is a number."""


@dataclass(frozen=True)
class Measured:
    """What was measured for a change from one molecule to another.

    Args:
        name: name of the measured value.
        before, after: the two measured values, None for a molecule that is not in the table.
        exchange: the part that was exchanged, None if the two molecules are not a matched pair.
        changes: measured changes of the pairs in the table that have the same exchange at the same
            kind of atom, this pair among them.
    """

    name: str
    before: float | None
    after: float | None
    exchange: Exchange | None
    changes: tuple[float, ...] = ()

    @property
    def mean(self) -> float | None:
        """The mean of the changes, or None without pairs."""
        return float(np.mean(self.changes)) if self.changes else None

    @property
    def sd(self) -> float | None:
        """The standard deviation of the changes, or None for fewer than two."""
        return float(np.std(self.changes, ddof=1)) if len(self.changes) > 1 else None

    @property
    def columns(self) -> dict[str, Any]:
        """The cells of its row in a table, by column."""
        return {
            "measured": self.after,
            "measured_before": self.before,
            "exchange": "" if self.exchange is None else str(self.exchange),
            "measured_pairs": len(self.changes),
            "measured_mean_change": self.mean,
            "measured_sd_of_changes": self.sd,
        }

    @property
    def sentence(self) -> str:
        """The measured values in words."""
        parts = []
        if self.after is not None:
            was = "" if self.before is None else f" (before {self.before:.4g})"
            parts.append(f"measured {self.name} {self.after:.4g}{was}")
        if self.exchange is None:
            parts.append("no exchange at one bond")
        elif self.mean is None:
            parts.append("exchange never measured")
        else:
            spread = "" if self.sd is None else f" (sd {self.sd:.2f})"
            pairs = "1 pair" if len(self.changes) == 1 else f"{len(self.changes)} pairs"
            parts.append(f"{self.name} {self.mean:+.2f}{spread} in {pairs}")
        return "; ".join(parts)


@dataclass(frozen=True, eq=False)
class Measurements:
    """Measured values by canonical SMILES.

    Args:
        name: name of the measured value.
        values: the value of each molecule, or the mean if it was measured repeatedly.
        note: the values or SMILES that were not understood, in words; empty if all were.
    """

    name: str
    values: Mapping[str, float]
    note: str = ""

    @classmethod
    def read(
        cls, path: str | Path, columns: Sequence[str], smiles_column: str | None = None
    ) -> "Measurements":
        """Read the values of a table from the first of these columns that has numbers.

        Numbers are read as for training, see `read_labels`. A warning counts rows whose SMILES or
        value is not understood.

        Raises:
            ValueError: if no column has numbers; it is a `NoNumbersError` if a column has values.
                The message is about that column, or else about the first.
        """
        table = open_table(path, smiles_column)
        structures = table.structures.name
        errors: list[ValueError] = []
        for column in columns:
            try:
                records = table.records((structures, column))
                return cls.of([(r.cells[structures], r.cells[column]) for r in records], column)
            except ValueError as error:
                errors.append(error)
        first = next((e for e in errors if isinstance(e, NoNumbersError)), errors[0])
        raise type(first)(f"{path} has no measured values: {first}")

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, Any]], name: str = "value") -> "Measurements":
        """Take measured values from pairs of a SMILES and a number.

        The warning and errors are as for `read`.
        """
        rows = [(smiles, _text(cell)) for smiles, cell in pairs]
        cells = [cell for _, cell in rows]
        values, odd = read_measured(cells)
        values_of, unreadable = defaultdict(list), 0
        with rdBase.BlockLogs():
            for k in np.flatnonzero(~np.isnan(values)).tolist():
                mol = Chem.MolFromSmiles(rows[k][0])
                if mol is None:
                    unreadable += 1
                else:
                    values_of[Chem.MolToSmiles(mol)].append(float(values[k]))
        counted = "1 row has" if unreadable == 1 else f"{unreadable:,} rows have"
        unread = f"{counted} a value in {name!r} but no readable SMILES." if unreadable else ""
        note = " ".join(filter(None, (not_understood(name, cells, odd), unread)))
        if not values_of:
            digits = any(character.isdigit() for k in odd for character in cells[k])
            text = f"no row has a SMILES and a number in {name!r}."
            raise (NoNumbersError if digits or unreadable else ValueError)(f"{text} {note}".strip())
        if note:
            warnings.warn(note, stacklevel=2)
        means = {smiles: float(np.mean(each)) for smiles, each in values_of.items()}
        return cls(name, means, note)

    def doubt(self, task: Task) -> str:
        """Return a warning if the values hardly look like those that a regression was trained on.

        The text is empty if they do. It is also empty where the mean and the standard deviation of
        the training values (the task's `offset` and `scale`) are not recorded.
        """
        if task.kind != "regression" or (task.offset, task.scale) == (0, 1) or not self.values:
            return ""
        values = np.array(list(self.values.values()))
        if np.mean(np.abs(values - task.offset) <= SPREAD * task.scale) >= 0.5:
            return ""
        usual = (task.offset + side * SPREAD * task.scale for side in (-1, 1))
        return (
            f"Column {self.name!r} has values from {values.min():.4g} to {values.max():.4g}, but"
            f" {task.name} was mostly from {' to '.join(f'{end:.3g}' for end in usual)} in"
            " training: compare the same quantity in the same unit."
        )

    def about(self, before: str, after: str) -> Measured:
        """Return what was measured for a change between two molecules, both as canonical SMILES."""
        exchange = _exchange(before, after)
        changes = () if exchange is None else tuple(self._changes.get(exchange, ()))
        return Measured(
            self.name, self.values.get(before), self.values.get(after), exchange, changes
        )

    @cached_property
    def _changes(self) -> dict[Exchange, list[float]]:
        """The measured changes of every exchange in the table."""
        values = list(self.values.values())
        changes: dict[Exchange, list[float]] = defaultdict(list)
        molecules = [Chem.MolFromSmiles(smiles) for smiles in self.values]
        for (i, j), pair in matched_pairs(molecules).items():
            changes[pair.exchange].append(values[j] - values[i])
            changes[pair.exchange.reversed].append(values[i] - values[j])
        return dict(changes)


@lru_cache(maxsize=4096)  # a search asks again after every batch
def _exchange(before: str, after: str) -> Exchange | None:
    pair = matched_pairs([Chem.MolFromSmiles(smiles) for smiles in (before, after)]).get((0, 1))
    return None if pair is None else pair.exchange


def _text(cell: Any) -> str:
    if cell is None or isinstance(cell, str):
        return cell or ""
    try:
        return repr(float(cell))
    except (TypeError, ValueError):
        return str(cell)
