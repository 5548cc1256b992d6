"""Draw relevance on molecules, graphs, superpixel images and tokens, and in grids, as SVG or PNG.

Inputs are plain values: RDKit molecules, numpy arrays and strings. RDKit, fontTools, matplotlib and
the rasteriser are imported only when a picture is drawn.
"""

from .color import PALETTES, PictureOptions, Scale
from .graph import PlainGraph, graph_svg
from .grid import grid_svg
from .molecule import molecule_svg
from .render import displayed, save_picture, svg_to_png
from .superpixel import patches_svg, superpixel_row_svg, superpixel_svg, upsampled
from .tokens import tokens_svg

__all__ = [
    "PALETTES",
    "PictureOptions",
    "PlainGraph",
    "Scale",
    "displayed",
    "graph_svg",
    "grid_svg",
    "molecule_svg",
    "patches_svg",
    "save_picture",
    "superpixel_row_svg",
    "superpixel_svg",
    "svg_to_png",
    "tokens_svg",
    "upsampled",
]
