"""Store the results of a run in pieces: Parquet shards, which appear whole, and a manifest.

A folder, on a disk or in a store, holds `shards/*.parquet` and `manifest.json`. A shard has
consecutive rows of the table and is named after the first of them. If a row was left out, it has a
`reason`. The manifest says what was run. Once the run is finished, it also says how many rows there
are and where.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphxai.runtime.writing import atomic_write

from .pieces import Span, filesystem_of
from .run_folder import require_same_run

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

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
