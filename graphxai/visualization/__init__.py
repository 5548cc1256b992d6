"""Pictures of relevance: molecules, superpixel images, grids of both, as SVG or PNG.

Plain inputs only (RDKit molecules, numpy arrays, strings). RDKit, fontTools, matplotlib and the
rasteriser are imported when a picture is drawn, not when this package is.
"""

from graphxai.visualization.color import PALETTES, Scale
from graphxai.visualization.grid import grid_svg
from graphxai.visualization.molecule import molecule_svg
from graphxai.visualization.render import displayed, save_picture, svg_to_png
from graphxai.visualization.superpixel import superpixel_row_svg, superpixel_svg

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
