"""What a table of measured values says about a change: the product, and pairs with the change."""

import math
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from rdkit import Chem, rdBase

from graphxai.datasets.labels import is_missing
from graphxai.datasets.molecules import iter_records

from .matched_pairs import Exchange, matched_pairs


@dataclass(frozen=True)
class Measured:
    """What was measured for a change from one molecule to another.

    name: of the measured value. before, after: the two values, None if not in the table. exchange:
    what was exchanged, None if the two are not a matched pair. changes: measured changes of the
    pairs in the table with the same exchange at the same kind of atom, this pair among them.
    """

    name: str
    before: float | None
    after: float | None
    exchange: Exchange | None
    changes: tuple[float, ...] = ()

    @property
    def mean(self) -> float | None:
        """Mean of the changes; None without pairs."""
        return float(np.mean(self.changes)) if self.changes else None

    @property
    def sd(self) -> float | None:
        """Standard deviation of the changes; None for fewer than two."""
        return float(np.std(self.changes, ddof=1)) if len(self.changes) > 1 else None

    @property
    def columns(self) -> dict[str, Any]:
        """The cells of a table."""
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
        """The same in words."""
        known = []
        if self.after is not None:
            was = "" if self.before is None else f" (before {self.before:.4g})"
            known.append(f"measured {self.name} {self.after:.4g}{was}")
        if self.exchange is None:
            known.append("no exchange at one bond")
        elif self.mean is None:
            known.append("exchange never measured")
        else:
            spread = "" if self.sd is None else f" (sd {self.sd:.2f})"
            pairs = "1 pair" if len(self.changes) == 1 else f"{len(self.changes)} pairs"
            known.append(f"{self.name} {self.mean:+.2f}{spread} in {pairs}")
        return "; ".join(known)


@dataclass(frozen=True, eq=False)
class Measurements:
    """Measured values by canonical SMILES; the mean of molecules that were measured repeatedly."""

    name: str
    values: Mapping[str, float]

    @classmethod
    def read(
        cls, path: str | Path, columns: Sequence[str], smiles_column: str = "smiles"
    ) -> "Measurements":
        """The values of a CSV file, from the first of these columns that has numbers.

        A warning counts rows whose SMILES or value cannot be read. Raises ValueError if no column
        has numbers; the message is about the first.
        """
        errors = []
        for column in columns:
            try:
                records = iter_records(path, (smiles_column, column))
                cells = [(r[smiles_column], r[column]) for _, r in records]
                return cls.of([cell for cell in cells if not is_missing(cell[1])], column)
            except ValueError as error:
                errors.append(str(error))
        raise ValueError(f"{path} has no measured values: {errors[0]}")

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, Any]], name: str = "value") -> "Measurements":
        """Measured values of pairs of a SMILES and a number; warning and errors as for `read`."""
        found, bad = defaultdict(list), 0
        with rdBase.BlockLogs():
            for smiles, cell in pairs:
                mol, value = Chem.MolFromSmiles(smiles), _number(cell)
                if mol is None or value is None:
                    bad += 1
                else:
                    found[Chem.MolToSmiles(mol)].append(value)
        if not found:
            raise ValueError(f"no row has a SMILES and a number in {name!r}.")
        if bad:
            warnings.warn(
                f"{bad} rows have no readable SMILES or no number in {name!r}.", stacklevel=2
            )
        return cls(name, {smiles: float(np.mean(values)) for smiles, values in found.items()})

    def about(self, before: str, after: str) -> Measured:
        """What was measured for a change between two molecules, canonical SMILES."""
        exchange = _exchange(before, after)
        changes = () if exchange is None else tuple(self._changes.get(exchange, ()))
        return Measured(
            self.name, self.values.get(before), self.values.get(after), exchange, changes
        )

    @cached_property
    def _changes(self) -> dict[Exchange, list[float]]:
        """The measured changes of every exchange in the table."""
        values = list(self.values.values())
        found: dict[Exchange, list[float]] = defaultdict(list)
        molecules = [Chem.MolFromSmiles(smiles) for smiles in self.values]
        for (i, j), pair in matched_pairs(molecules).items():
            found[pair.exchange].append(values[j] - values[i])
            found[pair.exchange.reversed].append(values[i] - values[j])
        return dict(found)


@lru_cache(maxsize=4096)  # a search asks again after every batch
def _exchange(before: str, after: str) -> Exchange | None:
    pair = matched_pairs([Chem.MolFromSmiles(smiles) for smiles in (before, after)]).get((0, 1))
    return None if pair is None else pair.exchange


def _number(cell: Any) -> float | None:
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None
