"""The folder of a run over a table: what was run, which rows are finished, and files that grow.

Rows that are in `explanations.csv` or `rejected.csv` are finished. They are written last, so that
the picture and the structure of a finished row are always complete.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphxai.runtime.reading import small_file
from graphxai.runtime.writing import (
    Appended,
    exclusive_lock,
    folder_at,
    synced_together,
    write_whole,
)

from .files import AppendedCsv, CsvFormat, appended_sdf, csv_to_parquet, rows_in
from .settings import ExplanationSettings

TABLES = ("explanations.csv", "rejected.csv")
WRITTEN = (*TABLES, "explanations.sdf", "explanations.parquet", "pictures")
RUN = {"table", "smiles_column", "model", "method"}  # the keys that every run.json of ours has
NOT_CELLS = ("record", "drawing")  # parts of a row that go to separate files


@dataclass(frozen=True)
class RunFolder:
    """The open files of a run.

    Attributes:
        finished: the numbers of the rows that an earlier run wrote.
        structures: the SD file, or None without one.
    """

    folder: Path
    finished: frozenset[int]
    explanations: AppendedCsv
    rejected: AppendedCsv
    structures: Appended | None
    pictures: bool

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the rows of an `ExplainBatch`, and sync them to the disk."""
        explained = [row for row in rows if "reason" not in row]
        with synced_together():
            for row in explained if self.pictures else ():
                write_whole(self.folder / row["picture"], row["drawing"])
        if self.structures is not None:
            self.structures.write("".join(row.get("record", "") for row in explained))
            self.structures.sync()
        self.explanations.write(
            {name: cell for name, cell in row.items() if name not in NOT_CELLS} for row in explained
        )
        self.rejected.write(row for row in rows if "reason" in row)

    def write_parquet(self) -> None:
        """Convert the table of explanations to Parquet, at the end of a run."""
        table = self.folder / "explanations.csv"
        columns, dialect = self.explanations.format.columns, self.explanations.format.dialect
        csv_to_parquet(table, self.folder / "explanations.parquet", columns, dialect)


@contextmanager
def open_run(
    folder: Path,
    description: Mapping[str, Any],
    explained: CsvFormat,
    rejected: CsvFormat,
    settings: ExplanationSettings,
) -> Iterator[RunFolder]:
    """Open the files of a run within the block, while no other run may use the folder.

    `description` is what must agree when a run is resumed.

    Raises:
        FileExistsError: there are results that the settings do not resume, or files of another
            origin.
        ValueError: the results come from a different run.
    """
    with ExitStack() as stack:
        stack.enter_context(exclusive_lock(folder))
        separator = explained.dialect.separator
        finished = _begin(folder, description, separator, settings.resume)
        if settings.pictures is not None:
            folder_at(folder / "pictures")
        done = AppendedCsv(stack, folder / TABLES[0], explained)
        left_out = AppendedCsv(stack, folder / TABLES[1], rejected)
        structures = None
        if "sdf" in settings.formats:
            drawn = rows_in(folder / TABLES[0], separator)
            structures = stack.enter_context(appended_sdf(folder / "explanations.sdf", drawn))
        pictures = settings.pictures is not None
        yield RunFolder(folder, frozenset(finished), done, left_out, structures, pictures)


def _begin(folder: Path, description: Mapping[str, Any], separator: str, resume: bool) -> set[int]:
    """Make the folder, or check that it holds the same run, and return the rows already done."""
    stored = folder / "run.json"
    before = _description_in(stored)
    for name in WRITTEN if before is None else ():
        if os.path.lexists(folder / name):
            raise FileExistsError(
                f"{folder / name} is not from a run of this command: choose another folder."
            )
    tables = [folder / name for name in TABLES]
    finished = rows_in(tables[0], separator) | rows_in(tables[1], separator)
    if before is None or not finished:  # the run is new, or failed before its first row
        for table in tables:
            table.unlink(missing_ok=True)
        write_whole(stored, json.dumps(description, indent=1) + "\n")
        return set()
    require_same_run(folder, before, description, resume)
    return finished


def require_same_run(
    place: str | Path, before: Mapping[str, Any], description: Mapping[str, Any], resume: bool
) -> None:
    """Refuse to go on where there are results, unless the same run is to be resumed.

    Raises:
        FileExistsError: it is not to be resumed.
        ValueError: it is another run.
    """
    if not resume:
        raise FileExistsError(
            f"{place} already holds results: continue with --resume, or choose another folder."
        )
    for name, value in description.items():
        stored = before.get(name)
        pairs = {name: (stored, value)}
        if isinstance(stored, dict) and isinstance(value, dict):
            pairs = {f"{name}.{key}": (stored.get(key), value[key]) for key in value}
        for key, (old, new) in pairs.items():
            if old != new:
                raise ValueError(
                    f"{place} holds a run with {key} = {old!r}, not {new!r}: choose another folder."
                )


def _description_in(stored: Path) -> dict[str, Any] | None:
    """Return the description of the run that a folder holds, or None if it holds none."""
    if not os.path.lexists(stored):
        return None
    try:
        content = json.loads(small_file(stored).decode("utf-8")) if stored.is_file() else None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{stored} cannot be read ({error}); choose another folder.") from error
    if not isinstance(content, dict) or not content.keys() >= RUN:
        raise FileExistsError(f"{stored} is not from a run of this command: choose another folder.")
    return content
