"""Write pictures as the pages of a PDF, as vector drawings for print and slides."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from .render import svg_to_png

_SIZE = re.compile(r'<svg[^>]*? width="([\d.]+)" height="([\d.]+)"')
_SPOKEN = re.compile(r"<(title|desc)\b[^>]*>.*?</\1>", re.DOTALL)
_ZOOM = 4.0  # pixels per SVG pixel on a page without vector drawing


def pictures_to_pdf(pictures: Sequence[str]) -> bytes:
    """Return a PDF with one page per picture, where an SVG pixel is a point.

    The drawings stay vectors if fpdf2 is installed (`pip install ".[pdf]"`). Without it, or
    if any picture has characters that its font lacks, pages are images with four pixels per point.

    Args:
        pictures: whole SVG documents, as the functions of this package return them.

    Raises:
        ValueError: there is no picture, or a picture is not an SVG with width and height.
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
    size = _SIZE.search(picture)
    if size is None:
        raise ValueError("a page must be an SVG with width and height in pixels")
    return float(size[1]), float(size[2])


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
