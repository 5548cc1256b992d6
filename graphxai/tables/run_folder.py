"""The folder of a run over a table: what was run, which rows are finished, and files that grow.

Rows that are in `explanations.csv` or `rejected.csv` are finished. They are written last, so that
the picture and the structure of a finished row are always complete.

A run on Ray has `shards/*.parquet` and `manifest.json` instead, on a disk or in a store. A shard
has consecutive rows, is named after the first of them, and appears whole. The manifest says what
was run, and once the run is finished, how many rows there are and where.
"""

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphxai.runtime.reading import small_file
from graphxai.runtime.writing import (
    Appended,
    atomic_write,
    exclusive_lock,
    folder_at,
    synced_together,
    write_whole,
)

from .files import AppendedCsv, CsvFormat, appended_sdf, csv_to_parquet, rows_in
from .pieces import Span, filesystem_of
from .settings import ExplanationSettings

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs


TABLES = ("explanations.csv", "rejected.csv")
WRITTEN = (*TABLES, "explanations.sdf", "explanations.parquet", "pictures")
RUN = {"table", "smiles_column", "model", "method"}  # the keys that every run.json of ours has
NOT_CELLS = ("record", "drawing")  # parts of a row that go to separate files


class RunFolder:
    """The open files of a run, which no other run may use meanwhile.

    Attributes:
        finished: the numbers of the rows that an earlier run wrote.
        structures: the SD file, or None without one.

    Raises:
        FileExistsError: there are results that the settings do not resume, or files of another
            origin.
        ValueError: the results come from a different run.
    """

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        description: Mapping[str, Any],
        explained: CsvFormat,
        rejected: CsvFormat,
        settings: ExplanationSettings,
    ) -> None:
        """Open the files until the stack is left.

        `description` is what must agree when a run is resumed.
        """
        stack.enter_context(exclusive_lock(folder))
        separator = explained.dialect.separator
        self.folder = folder
        self.finished = _begin(folder, description, separator, settings.resume)
        self.pictures = settings.pictures is not None
        if self.pictures:
            folder_at(folder / "pictures")
        self.explanations = AppendedCsv(stack, folder / TABLES[0], explained)
        self.rejected = AppendedCsv(stack, folder / TABLES[1], rejected)
        self.structures: Appended | None = None
        if "sdf" in settings.formats:
            drawn = rows_in(folder / TABLES[0], separator)
            self.structures = stack.enter_context(appended_sdf(folder / "explanations.sdf", drawn))

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


READERS = 32  # how many footers are read at a time, because a store returns each slowly


@dataclass(frozen=True)
class Shard:
    """A finished shard, with its name, first row, number of rows, and how many were left out."""

    name: str
    first: int
    rows: int
    rejected: int

    @property
    def span(self) -> Span:
        """The row numbers of the shard."""
        return self.first, self.first + self.rows


@dataclass(frozen=True)
class ShardFolder:
    """A folder of results at a path, or at an address such as `s3://bucket/results`."""

    place: str

    @cached_property
    def _opened(self) -> "tuple[pafs.FileSystem, str]":
        return filesystem_of(self.place)

    @property
    def is_local(self) -> bool:
        """Whether the folder is on a disk of this machine, where a file can be renamed."""
        return bool(self._opened[0].type_name == "local")

    @property
    def path(self) -> str:
        """The folder's path on its file system."""
        return self._opened[1]

    def begin(self, settings: dict[str, Any], resume: bool) -> list[Shard]:
        """Make the folder, or check that it holds the same run, and return its finished shards.

        A store can leave shards that were cut off. They are deleted.
        """
        before = self._manifest()
        if before is None and self._names():
            raise FileExistsError(
                f"{self.place} holds shards without a manifest: choose another folder."
            )
        shards = [] if before is None else self.shards()
        if before is not None and shards:
            require_same_run(self.place, before, settings, resume)
        filesystem, path = self._opened
        filesystem.create_dir(f"{path}/shards")
        self._write("manifest.json", json.dumps(settings | {"finished": False}, indent=1).encode())
        return shards

    def finish(self, settings: dict[str, Any], shards: Sequence[Shard]) -> None:
        """Write the manifest of a finished run."""
        counts = {
            "finished": True,
            "explained": sum(shard.rows - shard.rejected for shard in shards),
            "rejected": sum(shard.rejected for shard in shards),
            "shards": [vars(shard) for shard in shards],
        }
        self._write("manifest.json", json.dumps(settings | counts, indent=1).encode())

    def write(self, first: int, rows: "pa.Table") -> None:
        """Write a shard as a whole or not at all, in place of one with the same first row."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd")
        self._write(f"shards/{first:012d}.parquet", sink.getvalue())

    def _write(self, name: str, content: "bytes | pa.Buffer") -> None:
        filesystem, path = self._opened
        if self.is_local:
            with atomic_write(Path(path) / name, "wb") as file:
                file.write(content)
            return
        with filesystem.open_output_stream(f"{path}/{name}") as file:
            file.write(content)

    def _manifest(self) -> dict[str, Any] | None:
        filesystem, path = self._opened
        try:
            with filesystem.open_input_stream(f"{path}/manifest.json") as file:
                content = json.loads(file.read())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(
                f"{self.place}/manifest.json cannot be read ({error}): choose another folder."
            ) from error
        return dict(content)

    def _names(self) -> list[str]:
        import pyarrow.fs as pafs

        filesystem, path = self._opened
        inside = pafs.FileSelector(f"{path}/shards", allow_not_found=True)
        shards = (info for info in filesystem.get_file_info(inside) if info.is_file)
        return sorted(info.base_name for info in shards if info.extension == "parquet")

    def shards(self) -> list[Shard]:
        """Return the finished shards in order, as the end of each file describes them."""
        with ThreadPoolExecutor(READERS) as pool:
            return list(filter(None, pool.map(self._shard, self._names())))

    def _shard(self, name: str) -> Shard | None:
        """Return the shard that a footer describes, or delete a shard that was cut off."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        filesystem, path = self._opened
        try:
            with filesystem.open_input_file(f"{path}/shards/{name}") as file:
                footer = pq.read_metadata(file)
        except pa.ArrowInvalid:
            filesystem.delete_file(f"{path}/shards/{name}")
            return None
        columns = {footer.schema.column(k).path: k for k in range(len(footer.schema))}
        groups = [footer.row_group(k) for k in range(footer.num_row_groups)]
        first = min(group.column(columns["row"]).statistics.min for group in groups)
        explained = sum(group.column(columns["reason"]).statistics.null_count for group in groups)
        return Shard(name, int(first), footer.num_rows, footer.num_rows - explained)


def require_complete(shards: Sequence[Shard], rows: int) -> None:
    """Raise RuntimeError unless the shards hold each of the rows, numbered from 1, exactly once."""
    following = 1
    for shard in shards:
        if shard.first != following:
            break
        following += shard.rows
    if following != rows + 1:
        raise RuntimeError(f"row {following} is missing or appears twice; run again with --resume.")
