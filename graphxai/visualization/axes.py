"""Show pictures in Matplotlib's axes."""

from io import BytesIO
from typing import TYPE_CHECKING, Any

from .curves import new_figure
from .render import svg_to_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PIXELS_PER_INCH = 96.0  # of our pictures, whose small text is then as large as Matplotlib's
SHARPNESS = 300.0  # dots per inch of a picture in axes, as journals ask for


def room_in(axes: "Axes") -> tuple[float, float]:
    """Return the width and height of axes in pixels of our pictures."""
    figure: Any = axes.get_figure(root=True)
    inches = axes.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    return inches.width * PIXELS_PER_INCH, inches.height * PIXELS_PER_INCH


def show_in_axes(svg: str, axes: "Axes | None") -> "Figure":
    """Show an SVG picture in axes, or in a new figure that it fills, and return the figure."""
    from matplotlib.image import imread

    pixels = imread(BytesIO(svg_to_png(svg, SHARPNESS / PIXELS_PER_INCH)))  # (H, W, 4)
    if axes is None:
        figure = new_figure(pixels.shape[1] / SHARPNESS, pixels.shape[0] / SHARPNESS)
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(pixels, interpolation="antialiased")
    axes.set_axis_off()
    shown: Any = axes.get_figure(root=True)
    return shown
