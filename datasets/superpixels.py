"""Turn images into graphs of superpixels: SLIC segments are nodes, edges join touching segments.

``pos[:, 0]`` runs to the right and ``pos[:, 1]`` down, both from 0 to 1 over the image. The pixel
in row r and column c of an H x W image has its centre at ((c + 0.5) / W, (r + 0.5) / H).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from graphxai.runtime.extras import missing_extra

from .graph import Graph

if TYPE_CHECKING:
    from torch_geometric.data import Data

try:
    from skimage.segmentation import slic
except ImportError:
    raise missing_extra("pictures need", "scikit-image", "images") from None

SEGMENTS = 75
MAX_SIDE = 2048

# On MNIST these two give 75 superpixels on average (69 to 81) that follow the strokes;
# scikit-image's defaults for them (10 and 0.5) give squares.
COMPACTNESS = 0.25
MIN_SIZE_FACTOR = 0.4


class SuperpixelError(ValueError):
    """An image, or a graph of superpixels, cannot be used. The message says why."""


def segment(
    image: ArrayLike,
    *,
    segments: int = SEGMENTS,
    compactness: float = COMPACTNESS,
    min_size_factor: float = MIN_SIZE_FACTOR,
) -> np.ndarray:
    """Assign every pixel to a superpixel, by SLIC.

    Args:
        image: (H, W), grey values in [0, 1], or uint8.
        segments: approximate number of superpixels; SLIC starts from a regular grid of about that
            many.
        compactness: weight of distance against intensity; small values follow the strokes.
        min_size_factor: pieces smaller than this fraction of the mean size join a neighbour.

    Returns:
        int64 array (H, W) with the ids 0..N-1, each used, each a connected region.

    Raises:
        SuperpixelError: not a grey image, values out of range, or fewer than 1 segment.

    Source: Achanta et al. 2012, as in ``skimage.segmentation.slic``.
    """
    grey = as_grey(image)
    if segments < 1:
        raise SuperpixelError(f"segments must be at least 1, not {segments}")
    labels = slic(
        grey,
        n_segments=min(segments, grey.size),
        compactness=compactness,
        min_size_factor=min_size_factor,
        channel_axis=None,
        start_label=0,
    )
    _, ids = np.unique(labels, return_inverse=True)
    return ids.reshape(grey.shape).astype(np.int64)


def region_adjacency(segments: np.ndarray) -> np.ndarray:
    """Find the pairs of segments that share a pixel edge.

    Args:
        segments: (H, W) ids 0..N-1.

    Returns:
        int64 array (2, E): every pair in both directions, sorted, without self-loops.
    """
    n = int(segments.max()) + 1
    a = np.concatenate([segments[:, :-1].ravel(), segments[:-1].ravel()])
    b = np.concatenate([segments[:, 1:].ravel(), segments[1:].ravel()])
    touching = a != b
    a, b = a[touching], b[touching]
    codes = np.unique(np.concatenate([a * n + b, b * n + a]))
    return np.stack([codes // n, codes % n])


def image_to_data(
    image: ArrayLike,
    *,
    segments: int = SEGMENTS,
    compactness: float = COMPACTNESS,
    min_size_factor: float = MIN_SIZE_FACTOR,
    y: int | None = None,
) -> Data:
    """Make the superpixel graph of one grey image, in which bright is ink, as in MNIST.

    Args:
        image: (H, W), grey values in [0, 1], or uint8.
        segments: approximate number of superpixels.
        compactness: see :func:`segment`.
        min_size_factor: see :func:`segment`.
        y: the class, kept as ``y`` of shape (1,).

    Returns:
        ``Data`` with ``x`` (N, 1) mean intensity in [0, 1], ``pos`` (N, 2) centroid in [0, 1]
        (x to the right, y down), ``edge_index`` (2, E) in both directions, ``segments``
        (1, H, W) ids, ``image`` (1, H, W) float32, and ``y`` if given. With the leading 1, batches
        stack images.

    Raises:
        SuperpixelError: see :func:`segment`.
    """
    graph = image_graph(
        image, segments=segments, compactness=compactness, min_size_factor=min_size_factor
    )
    if y is not None:
        graph.y = torch.tensor([y])
    return graph.to_data()


def image_graph(image: ArrayLike, **options: Any) -> Graph:
    """Make the superpixel graph of an image as `image_to_data` does, without PyG."""
    grey = as_grey(image)
    ids = segment(grey, **options)
    height, width = grey.shape
    flat = ids.ravel()
    size = np.bincount(flat)
    rows, columns = np.divmod(np.arange(flat.size), width)
    x = np.bincount(flat, grey.ravel()) / size  # (N,)
    right = (np.bincount(flat, columns) / size + 0.5) / width
    down = (np.bincount(flat, rows) / size + 0.5) / height
    return Graph(
        x=torch.from_numpy(x.astype(np.float32)).clamp_(0, 1).unsqueeze(1),
        pos=torch.from_numpy(np.stack([right, down], axis=1).astype(np.float32)),
        edge_index=torch.from_numpy(region_adjacency(ids)),
        segments=torch.from_numpy(ids).unsqueeze(0),
        image=torch.from_numpy(grey.astype(np.float32)).unsqueeze(0),
    )


def images_to_data(
    images: np.ndarray,
    labels: Sequence[int] | np.ndarray | None = None,
    *,
    segments: int = SEGMENTS,
) -> Iterator[Data]:
    """Make the superpixel graphs of many images, one by one.

    Args:
        images: (n, H, W), grey values in [0, 1], or uint8.
        labels: (n,) classes, or None.
        segments: approximate number of superpixels per image.

    Raises:
        SuperpixelError: the numbers of images and labels differ, or an image cannot be used; the
            message names its index.
    """
    if labels is not None and len(labels) != len(images):
        raise SuperpixelError(f"{len(images)} images, but {len(labels)} labels")
    for index, image in enumerate(images):
        y = None if labels is None else int(labels[index])
        try:
            yield image_to_data(image, segments=segments, y=y)
        except SuperpixelError as error:
            raise SuperpixelError(f"image {index}: {error}") from error


def from_mnist_superpixels(data: Data, *, side: int = 28) -> Data:
    """Convert a graph of ``torch_geometric.datasets.MNISTSuperpixels`` to the format used here.

    Those graphs (Monti et al. 2017: 75 superpixels, centroids in pixels) have no segmentation
    image, so pictures show dots instead of regions. Their segmentation differs from the one the
    bundled model was trained on: expect lower accuracy.

    Args:
        data: ``x`` (N, 1) in [0, 1], ``pos`` (N, 2) in pixels (right, down), ``edge_index``
            (2, E), optionally ``y``.
        side: height and width of the image in pixels.

    Raises:
        SuperpixelError: a field is missing or out of range.
    """
    for name in ("x", "pos", "edge_index"):
        if getattr(data, name, None) is None:
            raise SuperpixelError(
                f"the graph has no `{name}`; MNISTSuperpixels has x, pos, edge_index"
            )
    x, pos = data.x.float(), data.pos.float()
    if x.dim() != 2 or x.shape[1] != 1 or pos.shape != (x.shape[0], 2) or not x.shape[0]:
        raise SuperpixelError(
            f"x {tuple(x.shape)} and pos {tuple(pos.shape)}; expected (N, 1) and (N, 2), N > 0"
        )
    if not bool(torch.isfinite(x).all() and torch.isfinite(pos).all()):
        raise SuperpixelError("x or pos has values that are not finite")
    if pos.min() < -0.5 or pos.max() > side:
        raise SuperpixelError(f"pos must be in pixels of an image of {side} x {side}")
    converted = Graph(x=x.clamp(0, 1), pos=(pos + 0.5) / side, edge_index=data.edge_index.long())
    if getattr(data, "y", None) is not None:
        converted.y = data.y.view(-1).long()
    return converted.to_data()


def as_grey(image: ArrayLike) -> np.ndarray:
    """Return the image as float64 (H, W) in [0, 1], or raise a :class:`SuperpixelError`."""
    try:
        array = np.asarray(image)
        integral = array.dtype == np.uint8
        grey = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise SuperpixelError(f"not a numeric image: {error}") from error
    if grey.ndim != 2 or min(grey.shape) < 2:
        raise SuperpixelError(f"expected a grey image (H, W), not an array of shape {grey.shape}")
    if max(grey.shape) > MAX_SIDE:
        raise SuperpixelError(f"image of {grey.shape}; at most {MAX_SIDE} pixels per side")
    if integral:
        return grey / 255.0
    if not np.isfinite(grey).all():
        raise SuperpixelError("the image has values that are not finite")
    if grey.min() < 0 or grey.max() > 1:
        raise SuperpixelError(
            f"grey values from {grey.min():g} to {grey.max():g}; expected [0, 1], or uint8"
        )
    return grey
