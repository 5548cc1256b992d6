"""Read files that may be pipes, devices, or far too large, and name what is wrong with them."""

import csv
from functools import cache
from importlib import resources
from pathlib import Path

SMALL_FILE = 1 << 24  # bytes of the files beside the weights
CONFIG = "config.json"  # of every checkpoint folder


class CheckpointError(ValueError):
    """A checkpoint that cannot be read; the message names the file, the key and the remedy."""


def regular_file(path: Path) -> Path:
    """Return the path, or raise an OSError for a device, or for a pipe, which would wait."""
    if path.exists() and not path.is_file():
        raise OSError("it is not a regular file")
    return path


def readable_file(path: Path) -> Path:
    """Return the path of a file of a user's, or raise an OSError that names it.

    It is a FileNotFoundError if there is none, and otherwise says that it is a folder, or a device
    or a pipe, which may never end.
    """
    if path.is_file():
        return path
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file in it.")
    if path.exists():
        raise OSError(
            f"{path} is a device or a pipe: copy its content to a file first. Commands read what"
            " is piped into them as `-`."
        )
    raise FileNotFoundError(f"{path}: no such file.")


def small_file(path: Path) -> bytes:
    """Return the content of a file of up to `SMALL_FILE` bytes.

    Raises OSError if it is not a regular file or cannot be read, ValueError if it is larger.
    """
    if regular_file(path).stat().st_size > SMALL_FILE:
        raise ValueError(f"it is larger than {SMALL_FILE} bytes")
    return path.read_bytes()


@cache
def packaged_rows(package: str, name: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a CSV file of a package, without lines that begin with "#"."""
    with resources.files(package).joinpath(name).open(encoding="utf-8") as file:
        return tuple(csv.DictReader(line for line in file if not line.startswith("#")))
