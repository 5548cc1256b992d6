"""Files like those in which MNIST is published."""

import gzip
import struct
from pathlib import Path

import numpy as np


def write_mnist(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Write images (n, 28, 28) and labels (n,) as the training and the test set of MNIST."""
    folder.mkdir(parents=True)
    for prefix in ("train", "t10k"):
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            path = folder / f"{prefix}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(header + array.tobytes(), compresslevel=1))
