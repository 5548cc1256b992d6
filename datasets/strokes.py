"""The stroke of a digit: the true region of a picture, for pixels and for superpixels."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .superpixels import SuperpixelError, as_grey

__all__ = ["stroke_pixels", "stroke_segments"]

INK = 0.5  # half of full ink


def stroke_pixels(image: ArrayLike, *, threshold: float = INK) -> NDArray[np.bool_]:
    """Pixels (H, W) of the stroke: brighter than `threshold`.

    image: (H, W), grey values in [0, 1], or uint8, bright ink on black. Raises SuperpixelError for
    what is no grey image.
    """
    return as_grey(image) > threshold


def stroke_segments(
    image: ArrayLike, segments: NDArray[np.integer], *, threshold: float = INK
) -> NDArray[np.bool_]:
    """Superpixels (N,) of the stroke: those whose mean intensity is above `threshold`.

    image: as for `stroke_pixels`; segments: (H, W), the ids 0..N-1 of its superpixels. Raises
    SuperpixelError where the shapes differ or an id is not used.
    """
    grey, ids = as_grey(image), np.asarray(segments)
    if ids.shape != grey.shape:
        raise SuperpixelError(f"image {grey.shape} and segments {ids.shape} differ in shape")
    size = np.bincount(ids.ravel())
    if not size.all():
        raise SuperpixelError(f"superpixel {int(np.argmin(size))} has no pixel")
    return np.bincount(ids.ravel(), grey.ravel()) / size > threshold
