"""Deform images of digits a little, at random, before they are segmented."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F


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
    images: torch.Tensor,
    generator: torch.Generator,
    deformation: Deformation | None = None,
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
    affine = torch.stack(
        [
            torch.stack(
                [cos / across, (cos * shear - sin) / down, draw(2 * ranges.shift / width)], 1
            ),
            torch.stack(
                [sin / across, (sin * shear + cos) / down, draw(2 * ranges.shift / height)], 1
            ),
        ],
        dim=1,
    )  # (n, 2, 3)
    grid = F.affine_grid(affine, [n, 1, height, width], align_corners=False)  # (n, H, W, 2)
    coarse = torch.randn(n, 2, 6, 6, generator=generator) * ranges.elastic
    field = F.interpolate(coarse, size=(height, width), mode="bicubic", align_corners=True)
    pixels = torch.tensor([2 / width, 2 / height])
    grid = grid + field.permute(0, 2, 3, 1) * pixels
    moved = F.grid_sample(
        images.float().unsqueeze(1), grid, mode="bicubic", padding_mode="zeros", align_corners=False
    )
    return moved.squeeze(1).clamp(0, 1)
