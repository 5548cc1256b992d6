"""Open the file of a table: only regular files, unpacked if need be, within limits of size."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from graphxai.runtime.reading import readable_file

Format = Literal["delimited", "list", "structures", "workbook", "parquet"]

FORMATS: dict[str, Format] = {
    **dict.fromkeys((".csv", ".tsv", ".txt", ".tab"), "delimited"),
    **dict.fromkeys((".smi", ".ism", ".cxsmiles"), "list"),
    **dict.fromkeys((".sdf", ".sd", ".mol"), "structures"),
    **dict.fromkeys((".xlsx", ".xlsm"), "workbook"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
}
SUFFIXES = tuple(FORMATS)
OTHERS = {  # files of other types that people have, and what to do with them
    **dict.fromkeys((".xls", ".ods", ".numbers"), "save the sheet as .xlsx or CSV"),
    **dict.fromkeys((".mol2", ".pdb", ".cdx", ".cdxml"), "save its structures as an SD file"),
    **dict.fromkeys((".zip", ".7z", ".rar", ".bz2", ".xz"), "unpack it"),
}
GZIP, OLD_EXCEL = b"\x1f\x8b", b"\xd0\xcf\x11\xe0"
SIGNATURES: dict[bytes, Format] = {b"PK\x03\x04": "workbook", b"PAR1": "parquet"}

HEAD = 1 << 18  # bytes at the start of a file that show its format
# A text shrinks to a tenth, rarely to a hundredth of its size; a file made to fill a disk, to a
# thousandth.
MAX_RATIO = 200
ALWAYS_UNPACKED = 1 << 26  # bytes


class TableError(ValueError):
    """A file cannot be read as a table. The message names it and says what to do."""


def format_of(path: Path) -> Format:
    """Tell the format of a table by its content where that is clear, and else by its suffix.

    Raises:
        FileNotFoundError: there is no such file.
        TableError: it is no regular file, or of another type; the message says what to do.
    """
    suffix = path.suffix.lower()
    if suffix == ".gz":
        suffix = Path(path.stem).suffix.lower()
    with opened(path) as file:
        head = file.read(HEAD)
    for signature, by_content in SIGNATURES.items():
        if head.startswith(signature) and suffix not in OTHERS:
            return by_content
    if suffix in OTHERS or head.startswith(OLD_EXCEL):
        how = OTHERS.get(suffix, OTHERS[".xls"])
        raise TableError(f"{path} is not a table of molecules that can be read: {how}.")
    by_suffix = FORMATS.get(suffix, "delimited")
    if by_suffix in ("workbook", "parquet"):
        raise TableError(f"{path} is damaged: its content is not that of a {suffix} file.")
    if b"\nM  END" in head.replace(b"\r", b"\n"):
        return "structures"
    return by_suffix


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file, unpacked if it is gzip.

    Raises:
        FileNotFoundError: there is no such file.
        TableError: it is no regular file. Reading raises it if the file is damaged or grows beyond
            any table when it is unpacked.
    """
    try:
        readable_file(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TableError(str(error)) from None
    with path.open("rb") as file:
        if file.peek(2)[:2] != GZIP:
            yield file
            return
        with _Unpacked(file, path) as raw, io.BufferedReader(raw, 1 << 16) as unpacked:
            yield unpacked


@contextmanager
def opened_at_any_place(path: Path) -> Iterator[BinaryIO]:
    """Open a file whose reader goes back and forth in it, which a packed one is copied for.

    The errors are those of `opened`.
    """
    with opened(path) as file:
        if file.seekable():
            yield file
            return
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(file, copy)
            copy.seek(0)
            yield copy


class _Unpacked(io.RawIOBase):
    """The content of a gzip file, which ends with an error if it is far larger than the file."""

    def __init__(self, packed: BinaryIO, path: Path) -> None:
        self._content = gzip.GzipFile(fileobj=packed)
        self._path = path
        self._left = max(ALWAYS_UNPACKED, MAX_RATIO * os.fstat(packed.fileno()).st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            count = self._content.readinto(buffer)
        except (OSError, EOFError, zlib.error) as error:
            raise TableError(f"{self._path} is damaged and cannot be unpacked: {error}.") from error
        self._left -= count
        if self._left < 0:
            raise TableError(
                f"{self._path} becomes more than {MAX_RATIO} times larger when it is unpacked:"
                " unpack it yourself if you trust it."
            )
        return count
