"""The pictures that a model was trained on, to measure how similar a picture is to them.

They are not bundled. They are available if the data folder holds the files that the checkpoint's
metadata name, with the same digests.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphxai.runtime.download import data_root


@dataclass(frozen=True, eq=False)
class TrainingImages:
    """Training pictures of one `shape` (H, W), as rows of unit length, `directions` (n, H * W)."""

    directions: NDArray[np.float32]
    shape: tuple[int, int]

    def nearest(self, image: NDArray[np.floating]) -> float:
        """Return the largest cosine similarity of grey values (H, W) to a training picture.

        It is NaN for a picture of another size, and for an all-black picture.
        """
        length = float(np.linalg.norm(image))
        if image.shape != self.shape or not length:
            return float("nan")
        return float((self.directions @ (image.ravel() / length).astype(np.float32)).max())


def training_images_of(model: Any) -> TrainingImages | None:
    """Return the training pictures of a model, or None if they are not available."""
    metadata = getattr(model.origin, "metadata", None) or {}
    files, count = metadata.get("files"), metadata.get("train_images")
    if not isinstance(files, dict) or not isinstance(count, int):
        return None
    for name, digest in files.items():
        for folder in (data_root() / "mnist", data_root()):
            path = folder / name
            if "train" in name and "images" in name and path.is_file():
                return _read(path, str(digest), count, path.stat().st_mtime_ns)
    return None


@lru_cache(maxsize=1)
def _read(path: Path, digest: str, count: int, modified: int) -> TrainingImages | None:
    """Read the first `count` pictures of a file, or return None if it was not used in training."""
    from graphxai.datasets.mnist import read_idx

    if hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() != digest:
        return None
    images = read_idx(path)[:count]  # (n, H, W)
    rows = images.reshape(len(images), -1).astype(np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return TrainingImages(rows / np.maximum(lengths, 1.0), images.shape[1:])
