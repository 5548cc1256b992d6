"""Write pictures to files: SVG unchanged, PNG by librsvg through libvips, and pages of a PDF."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from graphxai.runtime.writing import write_whole

from .text import font_file

COLUMN = 840.0
"""The width of a notebook's column in pixels. Pictures are never shown wider."""

# This is not written to files, because CairoSVG reads "auto" as zero height.
_SHRINKS = 'style="max-width:100%;height:auto"'
_ROOT = re.compile(r'(<svg[^>]*?) width="([\d.]+)" height="([\d.]+)"')
SUFFIXES = (".svg", ".png", ".pdf")
"""The suffixes of the formats that `save_picture` can write."""


def displayed(svg: str) -> str:
    """Return a picture as a notebook should show it, no wider than its column.

    Jupyter shows an SVG as an image of the size in its root element and cuts off the rest. If the
    markup itself becomes part of a page, the picture shrinks with its column.

    Args:
        svg: a whole SVG document with width, height and viewBox in pixels.
    """
    root = _ROOT.search(svg)
    if root is None:
        return svg
    head, width, height = root[1], float(root[2]), float(root[3])
    zoom = min(1.0, COLUMN / width)
    shown = f'{head} width="{width * zoom:.0f}" height="{height * zoom:.0f}" {_SHRINKS}'
    return svg[: root.start()] + shown + svg[root.end() :]


def svg_to_png(svg: str, scale: float = 2.0, *, few_colors: bool = False) -> bytes:
    """Return an SVG picture as the bytes of a PNG.

    Args:
        svg: a whole SVG document.
        scale: the number of PNG pixels per SVG pixel, above 0.
        few_colors: whether 256 colours are enough, which makes the file three times smaller.

    Raises:
        ValueError: `scale` is not above 0, or `svg` cannot be drawn.
    """
    if not scale > 0:
        raise ValueError(f"the scale of a picture must be above 0, got {scale}")
    import pyvips

    # All text in our pictures is outlines, except lines with a character that our font lacks.
    if "<text" in svg:
        _add_our_font()
    try:
        drawn = pyvips.Image.svgload_buffer(svg.encode(), scale=float(scale))
        # The default level 6 takes a fifth longer, with rendering, for files that are 6 % smaller.
        return bytes(drawn.pngsave_buffer(compression=3, palette=few_colors))
    except pyvips.Error as error:
        raise ValueError(f"this SVG cannot be drawn: {' '.join(str(error).split())}") from error


@cache
def _add_our_font() -> None:
    """Make our font available to libvips by drawing with it, because the system may have none."""
    import pyvips

    for bold in (False, True):
        pyvips.Image.text("a", fontfile=str(font_file(bold)))


def save_picture(
    svg: str | Sequence[str], path: str | os.PathLike[str], scale: float = 2.0
) -> Path:
    """Write an SVG picture in the format of the file's suffix, and return its path.

    Args:
        svg: a whole SVG document, or for a PDF several, one for each page.
        path: a file name that ends in .svg, .png or .pdf. Its folder must exist.
        scale: the number of PNG pixels per SVG pixel.

    Raises:
        ValueError: the suffix is another one, or several pictures are to go into one.
        OSError: the file cannot be written.
    """
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(
            f"cannot save a picture as {target.name!r}: the name must end in .svg, .png or .pdf"
        )
    pictures = [svg] if isinstance(svg, str) else list(svg)
    if suffix == ".pdf":
        return write_whole(target, pictures_to_pdf(pictures))
    (picture,) = pictures
    return write_whole(target, picture if suffix == ".svg" else svg_to_png(picture, scale))


_SPOKEN = re.compile(r"<(title|desc)\b[^>]*>.*?</\1>", re.DOTALL)
_ZOOM = 4.0  # pixels per SVG pixel on a page without vector drawing


def pictures_to_pdf(pictures: Sequence[str]) -> bytes:
    """Return a PDF with one page per picture, where an SVG pixel is a point.

    The drawings stay vectors if fpdf2 is installed (`pip install ".[pdf]"`). Without it, or
    if any picture has characters that its font lacks, pages are images with four pixels per point.

    `pictures` are whole SVG documents, as the functions of this package return them.

    Raises ValueError if there is no picture, or a picture is not an SVG with width and height.
    """
    sizes = [_size(picture) for picture in pictures]
    if not sizes:
        raise ValueError("a PDF needs at least one picture")
    if any("<text" in picture for picture in pictures):
        return _images(pictures)
    try:
        from fpdf import FPDF
        from fpdf.svg import SVGObject
    except ImportError:
        return _images(pictures)
    pdf = FPDF(unit="pt")
    pdf.set_creator("graphxai")
    for picture, size in zip(pictures, sizes, strict=True):
        pdf.add_page(format=size)
        SVGObject(_SPOKEN.sub("", picture)).draw_to_page(pdf)
    return bytes(pdf.output())


def _size(picture: str) -> tuple[float, float]:
    root = _ROOT.search(picture)
    if root is None:
        raise ValueError("a page must be an SVG with width and height in pixels")
    return float(root[2]), float(root[3])


def _images(pictures: Sequence[str]) -> bytes:
    from PIL import Image

    pages = [
        Image.open(io.BytesIO(svg_to_png(picture, _ZOOM))).convert("RGB") for picture in pictures
    ]
    written = io.BytesIO()
    pages[0].save(
        written, "PDF", resolution=72 * _ZOOM, save_all=True, append_images=pages[1:], quality=95
    )
    return written.getvalue()
