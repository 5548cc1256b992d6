"""Pictures of relevance: molecules, superpixel images, grids of both, as SVG or PNG.

Plain inputs only (RDKit molecules, numpy arrays, strings). RDKit, fontTools, matplotlib and the
rasteriser are imported when a picture is drawn, not when this package is.
"""

from .color import PALETTES, Scale
from .grid import grid_svg
from .molecule import molecule_svg
from .render import displayed, save_picture, svg_to_png
from .superpixel import superpixel_row_svg, superpixel_svg

__all__ = [
    "PALETTES",
    "Scale",
    "displayed",
    "grid_svg",
    "molecule_svg",
    "save_picture",
    "superpixel_row_svg",
    "superpixel_svg",
    "svg_to_png",
]
