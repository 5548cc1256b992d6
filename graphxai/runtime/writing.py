"""Write files whole or not at all, sync them to the disk, and keep two runs out of one folder."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import IO, Any

SYNCED_EVERY = 1.0  # seconds
# A list of numbers as JSON indents it. Text in JSON never contains a line break.
_NUMBERS = re.compile(r"\[\n\s*((?:-?\d[^\s,]*,\n\s*)*-?\d[^\s,]*)\n\s*\]")
_waiting: ContextVar[list[Path] | None] = ContextVar("files to sync at the end", default=None)


def place_of(path: str | os.PathLike[str]) -> Path:
    """Return where a file is to be written, with symbolic links followed.

    Raises:
        OSError: the path names a folder, a device, a pipe, a file or a new file in a folder
            without write permission, or a link that leads nowhere.
    """
    path = Path(path)
    try:
        real = path.resolve()
        exists = real.exists()
        if real.is_symlink():  # since Python 3.13
            raise OSError("the link leads to itself")
    except (OSError, RuntimeError) as error:  # a link to itself
        raise OSError(f"{path} cannot be written: {error}.") from error
    if path.is_symlink() and not real.parent.is_dir():
        raise FileNotFoundError(f"{path} is a link into a folder that does not exist: {real}.")
    if real.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file.")
    if exists and not real.is_file():
        raise OSError(f"{path} is a device, a pipe or a socket: name a file.")
    if exists and not os.access(real, os.W_OK):
        raise PermissionError(f"{path} cannot be written: it is read-only.")
    if real.parent.is_dir() and not exists and not os.access(real.parent, os.W_OK):
        raise _unwritable(path, "its folder is read-only")
    return real


def folder_at(path: str | os.PathLike[str]) -> Path:
    """Make a folder unless it exists, and return its path. Raise an OSError if that fails."""
    path = Path(path)
    if os.path.lexists(path) and not path.is_dir():
        raise NotADirectoryError(f"{path} is not a folder: choose another name.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error.strerror) from error
    return path


@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file to write that takes the place of `path`, synced, when the block is left.

    Until then it has another name beside `path`, so an error or a full disk leaves `path` as it
    was. Errors are as for `place_of`.

    `mode` is "w" (UTF-8, line endings as written) or "wb".
    """
    real = place_of(path)
    partial = real.with_name(f".{token_hex(6)}.partial")
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    try:
        with partial.open(mode.replace("w", "x"), **text) as file:  # type: ignore[call-overload]
            yield file
            file.flush()
            if (later := _waiting.get()) is None:
                os.fsync(file.fileno())
        if real.exists():
            shutil.copymode(real, partial)
        partial.replace(real)
        if later is None:
            _sync_folder(real.parent)
        else:
            later.append(real)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(partial)):
            raise  # the error is about another file
        raise _unwritable(path, error.strerror) from error
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def synced_together() -> Iterator[None]:
    """Sync the files that `atomic_write` writes in the block together, when the block is left.

    Each folder is synced once, so that many small files cost a fraction of the time. The files take
    their places at once.
    """
    files: list[Path] = []
    token = _waiting.set(files)
    try:
        yield
    finally:
        _waiting.reset(token)
        for path in files:
            with path.open("r+b") as file:
                os.fsync(file.fileno())
        for folder in dict.fromkeys(path.parent for path in files):
            _sync_folder(folder)


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write a file with `atomic_write`, and return its path."""
    with atomic_write(path, "w" if isinstance(content, str) else "wb") as file:
        file.write(content)
    return Path(path)


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a CSV file as text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, whose first row is its header."""
    head, *lines = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head.replace("|  |", "| |"), "|---" * len(rows[0]) + "|", *lines])


def json_text(content: Any) -> str:
    """Return JSON with a line for each entry, but with every list of numbers on one line."""
    text = json.dumps(content, indent=1)
    return _NUMBERS.sub(lambda match: "[" + " ".join(match[1].split()) + "]", text) + "\n"


class Appended:
    """A file that grows piece by piece. A piece is written whole and at once, or not at all.

    So a process that is killed loses nothing. The pieces are synced once a second, by `sync`, and
    on leaving the block, so that a machine that fails loses those of the last second.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = place_of(path).open("ab", buffering=0)
        self.size = self.safe = os.fstat(self.file.fileno()).st_size
        self.synced = time.monotonic()

    def write(self, text: str) -> None:
        """Append a piece, or raise an OSError that names the file if there is no room for it."""
        left = memoryview(text.encode("utf-8"))
        end = self.size + len(left)
        try:
            while left:
                left = left[self.file.write(left) :]
        except OSError as error:
            self.file.truncate(self.size)
            raise _unwritable(self.path, error.strerror) from error
        self.size = end
        if time.monotonic() - self.synced >= SYNCED_EVERY:
            self.sync()

    def sync(self) -> None:
        """Wait until all pieces are on the disk. If that fails, drop those since the last sync."""
        if self.size == self.safe:
            return
        try:
            os.fsync(self.file.fileno())
        except OSError as error:
            self.file.truncate(self.safe)
            self.size = self.safe
            raise _unwritable(self.path, error.strerror) from error
        self.safe, self.synced = self.size, time.monotonic()

    def __enter__(self) -> Appended:
        return self

    def __exit__(self, *_: object) -> None:
        with self.file:
            self.sync()


@contextmanager
def exclusive_lock(out: str | os.PathLike[str]) -> Iterator[None]:
    """Refuse to write to a folder or file that another process is writing to.

    The system releases the lock when the process that holds it ends, however it ends.

    Raises OSError if another process is writing there; the message has its number and start.
    """
    from filelock import FileLock, Timeout  # torch brings it; its asyncio takes a while to import

    out = Path(out)
    lock = out / ".lock" if out.is_dir() else out.with_name(f".{out.name}.lock")
    holder = lock.with_name(lock.name + "-holder")
    held = FileLock(lock)
    try:
        held.acquire(timeout=0)
    except Timeout:
        user = holder.read_text(encoding="utf-8") if holder.is_file() else "another process"
        raise BlockingIOError(
            f"{out} is in use by {user}: wait until it has finished, or choose another --out."
        ) from None
    except OSError as error:
        raise _unwritable(out, error.strerror) from error
    try:
        with suppress(OSError):  # a full disk; the lock holds without a name
            holder.write_text(f"process {os.getpid()} since {datetime.now():%Y-%m-%d %H:%M:%S}")
        yield
    finally:
        holder.unlink(missing_ok=True)
        with suppress(OSError):  # Windows does not remove open files
            lock.unlink()
        held.release()


def _sync_folder(folder: Path) -> None:
    """Sync the names in a folder, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _unwritable(path: str | os.PathLike[str], reason: str | None) -> OSError:
    return OSError(f"{path} cannot be written: {reason}. Nothing half-written was left.")
