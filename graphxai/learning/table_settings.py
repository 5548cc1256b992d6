"""The settings of a training run on your own table, for Python and the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from graphxai.learning.run_settings import EnsembleSettings
from graphxai.runtime.options import documented, option

__all__ = ["TableSettings"]

TABLE = ("table",)


@documented
@dataclass(frozen=True)
class TableSettings(EnsembleSettings):
    """How to split a table of molecules, what to train on it, and on which hardware.


    Raises:
        ValueError: options that exclude each other, or an impossible number of networks.
    """

    split: Literal["scaffold", "random", "clusters"] | None = option(
        None,
        "How test molecules are chosen [default: scaffold; bace: random].",
        applies_to=("table", "bace"),
    )
    split_column: str | None = option(
        None,
        "Column that says train, valid or test for each molecule.",
        applies_to=TABLE,
    )
    time_column: str | None = option(
        None,
        "Column with dates or years; the newest molecules are tested.",
        applies_to=TABLE,
    )
    init_weights: str | Path | None = option(
        "molecules",
        "Weights to start from: a model's name, a folder or 'none'.",
        applies_to=TABLE,
    )
    teacher: bool = option(
        True, "Do not learn from a teacher (a fifth of the time, usually worse).", applies_to=TABLE
    )
    keep_teacher: bool = option(
        False,
        "Store the teacher too; predictions then show the teacher's as well.",
        applies_to=TABLE,
    )
    learning_curve: bool = option(
        False, "Also train on 1/8, 1/4 and 1/2 (three times as long).", applies_to=TABLE
    )

    values_alone: bool = option(
        False,
        "Learn the values as they stand, even if a column beside them has relations or units.",
        applies_to=TABLE,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        ways = {
            "--split": self.split,
            "--split-column": self.split_column,
            "--time-column": self.time_column,
        }
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} cannot be combined: give one of them.")
        if self.keep_teacher and not self.teacher:
            raise ValueError("without a teacher (--no-teacher) there is no teacher to keep.")

    @property
    def split_kind(self) -> str:
        """The way to split: "column", "time", "scaffold", "random" or "clusters"."""
        if self.split_column is not None:
            return "column"
        return "time" if self.time_column is not None else self.split or "scaffold"

    @property
    def named_column(self) -> str | None:
        """The column that the split reads, if there is one."""
        return self.split_column if self.time_column is None else self.time_column
