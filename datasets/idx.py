"""IDX files, the format in which MNIST is distributed: read with every number checked."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

MAX_BYTES = 256 * 1024 * 1024  # the largest official file, 60,000 images, holds 47 MB
_MAX_DIMENSIONS = 4
_UNSIGNED_BYTE = 0x08


class IdxError(ValueError):
    """A file is not a readable IDX file of unsigned bytes; the message names the file."""


def read_idx(path: str | Path, *, max_bytes: int = MAX_BYTES) -> np.ndarray:
    """Array of an IDX file of unsigned bytes, plain or gzip-compressed.

    Memory stays bounded whatever the file claims: nothing is read before the header has been
    checked, and a compressed file is expanded no further than the header says.

    Args:
        path: the file; compression is recognised by content, not by name.
        max_bytes: the largest array that is accepted.

    Returns:
        uint8 array of the shape in the header, e.g. (10000, 28, 28) or (10000,).

    Raises:
        FileNotFoundError: there is no such file.
        IdxError: wrong magic number, other data types, absurd dimensions, truncated or damaged
            data, or data left over.

    Source: the format description beside the original files (LeCun, Cortes and Burges).
    """
    path = Path(path)
    with path.open("rb") as raw:
        compressed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            if not compressed:
                return _read(raw, path, max_bytes)
            with gzip.GzipFile(fileobj=raw) as stream:
                return _read(cast(BinaryIO, stream), path, max_bytes)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise IdxError(f"{path}: damaged or truncated gzip data ({error})") from error


def _read(stream: BinaryIO, path: Path, max_bytes: int) -> np.ndarray:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\x00\x00":
        raise IdxError(f"{path}: not an IDX file (it starts with {magic.hex() or 'nothing'})")
    if magic[2] != _UNSIGNED_BYTE:
        raise IdxError(f"{path}: IDX type 0x{magic[2]:02x}; only unsigned bytes (0x08) are read")
    ndim = magic[3]
    if not 1 <= ndim <= _MAX_DIMENSIONS:
        raise IdxError(f"{path}: {ndim} dimensions; 1 to {_MAX_DIMENSIONS} are accepted")
    header = stream.read(4 * ndim)
    if len(header) < 4 * ndim:
        raise IdxError(f"{path}: truncated within the header")
    shape = struct.unpack(f">{ndim}I", header)
    size = math.prod(shape)
    if size == 0 or size > max_bytes:
        raise IdxError(f"{path}: the header claims {shape}; 1 to {max_bytes} bytes are accepted")
    content = stream.read(size)
    if len(content) < size:
        raise IdxError(f"{path}: truncated, {len(content)} of {size} bytes of data")
    if stream.read(1):
        raise IdxError(f"{path}: more data than the {size} bytes the header claims")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape).copy()
