"""Read MNIST from its IDX files, convert pictures of digits to its format, and deform digits."""

from __future__ import annotations

import gzip
import io
import math
import os
import struct
import zlib
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import BinaryIO, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F

from graphxai.runtime.download import ROOT_ARGUMENT, DownloadError, data_root, fetch
from graphxai.runtime.extras import missing_extra
from graphxai.runtime.reading import readable_file

from .superpixels import SuperpixelError

try:
    from PIL import Image, UnidentifiedImageError
except ImportError:
    raise missing_extra("pictures need", "Pillow", "images") from None

Split = Literal["train", "test"]
SIDE = 28
BOX = 20  # MNIST fits a digit into 20 x 20 pixels and centres its mass in 28 x 28
MAX_PIXELS = 16_000_000
MAX_FILE_BYTES = 64 << 20  # of a picture
MAX_IDX_BYTES = 256 * 1024 * 1024  # the largest official file, 60,000 images, holds 47 MB
MAX_DIMENSIONS = 4
UNSIGNED_BYTE = 0x08
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"


# For each split the names of the images and labels with their MD5, and accepted prefixes.
_FILES = {
    "train": {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    },
    "test": {
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
}
_PREFIXES = {"train": ("train", "train10k"), "test": ("t10k",)}


def load_mnist(
    root: str | os.PathLike[str] | None = None,
    split: Split = "train",
    limit: int | None = None,
    download: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Load the images and labels of MNIST from a local folder or the official files.

    The official names, plain or ``.gz``, are looked for in ``<root>/mnist`` and ``<root>``, and for
    the training split then those of a subset, ``train10k-...``. If nothing is found and `download`
    is true, the official files are downloaded into ``<root>/mnist`` and checked by their MD5.

    Args:
        root: the folder; None means ``$GRAPHXAI_DATA``, else the user's cache folder.
        split: "train" (60,000 images, or those of the local subset) or "test" (10,000).
        limit: load only the first `limit` images.
        download: whether the network may be used.

    Returns:
        uint8 images (n, 28, 28), bright ink on black, and int64 labels (n,).

    Raises:
        DownloadError: the files are missing and cannot be downloaded; the message says what to do.
        SuperpixelError: the files are damaged or do not belong together.

    Source: LeCun, Cortes and Burges.
    """
    paths = mnist_files(root, split, download)
    images, labels = map(read_idx, paths)
    if images.ndim != 3 or images.shape[1:] != (SIDE, SIDE):
        raise SuperpixelError(f"{paths[0]}: images of shape {images.shape}, not (n, 28, 28)")
    if labels.shape != images.shape[:1]:
        raise SuperpixelError(
            f"{paths[1]}: labels of shape {labels.shape} for {len(images)} images"
        )
    if labels.max() > 9:
        raise SuperpixelError(f"{paths[1]}: a label is {labels.max()}; digits are 0 to 9")
    if limit is not None:
        if limit < 1:
            raise SuperpixelError(f"limit must be at least 1, not {limit}")
        images, labels = images[:limit], labels[:limit]
    return images, labels.astype(np.int64)


def mnist_files(
    root: str | os.PathLike[str] | None = None, split: Split = "train", download: bool = True
) -> tuple[Path, Path]:
    """Return the paths of the images and labels that :func:`load_mnist` reads."""
    if split not in _FILES:
        raise SuperpixelError(f"split must be 'train' or 'test', not {split!r}")
    base = data_root(root)
    for folder, prefix, end in product((base / "mnist", base), _PREFIXES[split], (".gz", "")):
        images = folder / f"{prefix}-images-idx3-ubyte{end}"
        labels = folder / f"{prefix}-labels-idx1-ubyte{end}"
        if images.is_file() and labels.is_file():
            return images, labels
    if not download:
        raise DownloadError(
            f"no MNIST {split} files in {base / 'mnist'}: put {' and '.join(_FILES[split])} "
            f"there (official source: {MIRROR}), or give the folder that contains mnist/ with "
            f"{ROOT_ARGUMENT} or the environment variable GRAPHXAI_DATA."
        )
    images, labels = (
        fetch(MIRROR + name, base / "mnist" / name, md5=md5) for name, md5 in _FILES[split].items()
    )
    return images, labels


def read_digit(picture: str | os.PathLike[str] | Image.Image) -> np.ndarray:
    """Read the digit in a picture and convert it to MNIST's format.

    Colours become grey, transparency becomes white paper, dark ink on a bright border is
    inverted, contrast is stretched, and the digit is scaled to a box of 20 x 20 pixels with its
    centre of mass at the centre of 28 x 28. A picture of 28 x 28 with a dark border counts as
    MNIST already and is only scaled to [0, 1].

    Args:
        picture: path of a PNG, JPEG, BMP, GIF or WebP of up to 16 million pixels, or a Pillow
            image.

    Returns:
        float64 (28, 28) in [0, 1], bright ink on black.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it is a folder, or a device or a pipe, which may never end.
        SuperpixelError: not a readable picture, damaged, too large, or empty.
    """
    if isinstance(picture, Image.Image):
        path, grey = "the picture", _grey_of(picture, "the picture")
    else:
        path = str(picture)
        grey = _read_grey(Path(picture))
    border = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
    paper = float(np.median(border))
    if grey.shape == (SIDE, SIDE) and paper < 0.1 and grey.max() > 0.5:
        return grey
    ink = np.clip(paper - grey if paper > 0.5 else grey - paper, 0, None)
    if ink.max() < 0.05:
        raise SuperpixelError(f"{path}: no digit found; the picture has a single colour")
    ink = ink / ink.max()
    ink[ink < 0.1] = 0.0  # paper texture and compression noise
    return centre_digit(ink)


def centre_digit(ink: np.ndarray) -> np.ndarray:
    """Scale ink (H, W) in [0, 1] to 20 x 20 and centre its mass in (28, 28), as MNIST does.

    Source: LeCun, Cortes and Burges's description of MNIST.
    """
    rows, columns = np.flatnonzero(ink.max(axis=1)), np.flatnonzero(ink.max(axis=0))
    if not len(rows):
        raise SuperpixelError("no digit: there is no ink")
    digit = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height, width = digit.shape
    factor = BOX / max(height, width)
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    picture = Image.fromarray(digit.astype(np.float32)).resize(size, Image.Resampling.BICUBIC)
    small = np.clip(np.asarray(picture, dtype=np.float64), 0, 1)
    if small.max() > 0:
        small = small / small.max()  # thin strokes fade when scaled down
    height, width = small.shape
    mass = small.sum()
    down = (small.sum(axis=1) @ np.arange(height)) / mass
    right = (small.sum(axis=0) @ np.arange(width)) / mass
    middle = SIDE / 2  # in the published images the mean centre of mass is at index 14.0
    top = int(np.clip(round(middle - down), 0, SIDE - height))
    left = int(np.clip(round(middle - right), 0, SIDE - width))
    canvas = np.zeros((SIDE, SIDE))
    canvas[top : top + height, left : left + width] = small
    return canvas


def _read_grey(path: Path) -> np.ndarray:
    """Read the grey values (H, W) of a picture, in [0, 1]. Transparent pixels are white."""
    if readable_file(path).stat().st_size > MAX_FILE_BYTES:
        raise SuperpixelError(f"{path}: files over {MAX_FILE_BYTES >> 20} MB are not read")
    content = path.read_bytes()
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            return _grey_of(picture, str(path))
    except SuperpixelError:
        raise
    except Image.DecompressionBombError as error:
        raise SuperpixelError(
            f"{path}: too many pixels; at most {MAX_PIXELS:,} are read"
        ) from error
    except UnidentifiedImageError as error:
        raise SuperpixelError(
            f"{path}: not a readable picture (supported: {', '.join(FORMATS)})"
        ) from error
    except (OSError, ValueError, SyntaxError, EOFError, MemoryError) as error:
        raise SuperpixelError(f"{path}: damaged or truncated picture ({error})") from error


def _grey_of(picture: Image.Image, name: str) -> np.ndarray:
    """Return the grey values (H, W) of a Pillow image. Messages call it `name`."""
    width, height = picture.size
    if width * height > MAX_PIXELS:
        raise SuperpixelError(f"{name}: {width} x {height} pixels; at most {MAX_PIXELS:,} are read")
    if min(width, height) < 2:
        raise SuperpixelError(f"{name}: {width} x {height} pixels is too small for a digit")
    if picture.mode.startswith("I") or picture.mode == "F":  # 16 bits and more
        values = np.asarray(picture, dtype=np.float64)
        top = values.max()
        return np.clip(values / max(255.0 if top <= 255 else 65535.0, top), 0, 1)
    paper = Image.new("RGBA", picture.size, "white")
    paper.alpha_composite(picture.convert("RGBA"))
    return np.asarray(paper.convert("L"), dtype=np.float64) / 255.0


class IdxError(SuperpixelError):
    """A file is not a readable IDX file of unsigned bytes. The message names it."""


def read_idx(path: str | Path) -> np.ndarray:
    """Read an IDX file of unsigned bytes, plain or gzip-compressed.

    Memory stays bounded whatever the file claims: no data are read before the header has been
    checked, and a compressed file is expanded no further than the header says.

    Args:
        path: the file; compression is recognised by content, not by name.

    Returns:
        uint8 array of the shape in the header, e.g. (10000, 28, 28) or (10000,).

    Raises:
        FileNotFoundError: there is no such file.
        IdxError: wrong magic number, unsupported data type, absurd dimensions, truncated or
            damaged data, or extra data.

    Source: the format description published with the files (LeCun, Cortes and Burges).
    """
    path = Path(path)
    with path.open("rb") as raw:
        compressed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            if not compressed:
                return _read(raw, path)
            with gzip.GzipFile(fileobj=raw) as stream:
                return _read(cast(BinaryIO, stream), path)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise IdxError(f"{path}: damaged or truncated gzip data ({error})") from error


def _read(stream: BinaryIO, path: Path) -> np.ndarray:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\x00\x00":
        raise IdxError(f"{path}: not an IDX file (it starts with {magic.hex() or 'nothing'})")
    if magic[2] != UNSIGNED_BYTE:
        raise IdxError(f"{path}: IDX type 0x{magic[2]:02x}; only unsigned bytes (0x08) are read")
    ndim = magic[3]
    if not 1 <= ndim <= MAX_DIMENSIONS:
        raise IdxError(f"{path}: {ndim} dimensions; 1 to {MAX_DIMENSIONS} are accepted")
    header = stream.read(4 * ndim)
    if len(header) < 4 * ndim:
        raise IdxError(f"{path}: truncated within the header")
    shape = struct.unpack(f">{ndim}I", header)
    size = math.prod(shape)
    if size == 0 or size > MAX_IDX_BYTES:
        raise IdxError(
            f"{path}: the header claims {shape}; 1 to {MAX_IDX_BYTES} bytes are accepted"
        )
    content = stream.read(size)
    if len(content) < size:
        raise IdxError(f"{path}: truncated, {len(content)} of {size} bytes of data")
    if stream.read(1):
        raise IdxError(f"{path}: more data than the {size} bytes the header claims")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape).copy()


@dataclass(frozen=True)
class Deformation:
    """The ranges of a random deformation. Every value is drawn uniformly from [-range, range].

    Attributes:
        rotation: degrees.
        scale: relative change of size, drawn separately for each axis (0.1: 0.9 to 1.1).
        shear: tangent of the slant.
        shift: pixels.
        elastic: standard deviation in pixels of a smooth displacement field.
    """

    rotation: float = 12.0
    scale: float = 0.12
    shear: float = 0.2
    shift: float = 1.5
    elastic: float = 0.7


def deform(
    images: torch.Tensor, generator: torch.Generator, deformation: Deformation | None = None
) -> torch.Tensor:
    """Deform each image by its own random rotation, scaling, shear, shift and elastic field.

    Args:
        images: (n, H, W) float, values in [0, 1], dark background.
        generator: the source of randomness; the same generator state gives the same images.
        deformation: ranges; the default keeps digits legible.

    Returns:
        (n, H, W) float32 in [0, 1].

    Source: Simard et al. 2003, for elastic deformations of digits.
    """
    ranges = deformation or Deformation()
    n, height, width = images.shape

    def draw(limit: float) -> torch.Tensor:
        return (2 * torch.rand(n, generator=generator) - 1) * limit

    angle = draw(math.radians(ranges.rotation))
    across, down = 1 + draw(ranges.scale), 1 + draw(ranges.scale)
    shear = draw(ranges.shear)
    cos, sin = torch.cos(angle), torch.sin(angle)
    # The map from output to input coordinates, both in [-1, 1]: rotation times shear, scaled.
    rows = (
        (cos / across, (cos * shear - sin) / down, draw(2 * ranges.shift / width)),
        (sin / across, (sin * shear + cos) / down, draw(2 * ranges.shift / height)),
    )
    affine = torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)  # (n, 2, 3)
    grid = F.affine_grid(affine, [n, 1, height, width], align_corners=False)  # (n, H, W, 2)
    coarse = torch.randn(n, 2, 6, 6, generator=generator) * ranges.elastic
    field = F.interpolate(coarse, size=(height, width), mode="bicubic", align_corners=True)
    pixels = torch.tensor([2 / width, 2 / height])
    grid = grid + field.permute(0, 2, 3, 1) * pixels
    moved = F.grid_sample(
        images.float().unsqueeze(1), grid, mode="bicubic", padding_mode="zeros", align_corners=False
    )
    return moved.squeeze(1).clamp(0, 1)
