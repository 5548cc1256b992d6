"""What was found while a table was looked through: checks, and the rows they concern."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .molecules import RejectedRow

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Finding", "Findings"]

CHECKS = ("check", "target", "count", "done")
RECORDS = ("row", "smiles", "check", "target", "done", "reason")


@dataclass(frozen=True)
class Finding:
    """One check: how many rows or values it concerns, what was done with them, and which rows."""

    check: str
    count: int
    done: str
    target: str = ""
    rows: tuple[RejectedRow, ...] = ()

    def __str__(self) -> str:
        where = f" in {self.target}" if self.target else ""
        return f"{self.check}{where}: {self.count:,}, {self.done}"


class Findings(tuple[Finding, ...]):
    """All findings of a table, which are a table, too."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def records(self) -> Iterator[tuple[int, str, str, str, str, str]]:
        """Number, SMILES, check, target, what was done and why, of every row that is concerned."""
        for f in self:
            for row in f.rows:
                yield row.row, row.smiles, f.check, f.target, f.done, row.reason

    def to_frame(self) -> pd.DataFrame:
        """One row a check: check, target, count, done."""
        import pandas as pd

        rows = [tuple(getattr(f, name) for name in CHECKS) for f in self]
        return pd.DataFrame(rows, columns=list(CHECKS))

    def rows_to_frame(self) -> pd.DataFrame:
        """One row for every row that a check concerns: row, smiles, check, target, done, reason."""
        import pandas as pd

        return pd.DataFrame(list(self.records()), columns=list(RECORDS))

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False, escape=True, border=0))
