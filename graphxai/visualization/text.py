"""Text as outlines, so that a picture looks the same in every viewer and with no fonts installed.

The glyphs are those of DejaVu Sans, which ships inside matplotlib. Text with a character that the
font lacks (a Chinese title, say) becomes an SVG ``<text>``: the viewer's fonts then decide.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
from xml.sax.saxutils import escape as _escape

Anchor = Literal["start", "middle", "end"]

# Characters that XML 1.0 forbids even as references.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELLIPSIS = "…"


def escape(text: object) -> str:
    """Return ``text`` made inert for XML content and attributes, without forbidden characters."""
    return _escape(_FORBIDDEN.sub("", str(text)), {'"': "&quot;", "'": "&#39;"})


def number(value: float) -> str:
    """Return a coordinate with at most two decimals and no needless characters."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def font_file(bold: bool = False) -> Path:
    """Return the path of the font that all text is set in."""
    import matplotlib

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name


@lru_cache(maxsize=2)
def _font(bold: bool) -> tuple[dict[int, str], Any, int]:
    from fontTools.ttLib import TTFont

    font = TTFont(font_file(bold))
    return font.getBestCmap(), font.getGlyphSet(), font["head"].unitsPerEm


@lru_cache(maxsize=4096)
def _glyph(character: str, bold: bool) -> tuple[Any, float] | None:
    """Return the recorded outline and advance (font units) of a character the font has."""
    from fontTools.pens.recordingPen import DecomposingRecordingPen

    names, glyphs, _ = _font(bold)
    name = names.get(ord(character))
    if name is None:
        return None
    pen = DecomposingRecordingPen(glyphs)
    glyphs[name].draw(pen)
    return pen, float(glyphs[name].width)


def _clean(text: str) -> str:
    return " ".join(_FORBIDDEN.sub("", text).split())


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of ``text`` in pixels at font size ``size`` (pixels)."""
    units = _font(bold)[2]
    glyphs = (_glyph(character, bold) for character in _clean(text))
    return sum(glyph[1] if glyph else 0.6 * units for glyph in glyphs) * size / units


def fit_text(
    text: str, size: float, width: float, *, smallest: float, bold: bool = False
) -> tuple[str, float]:
    """Return ``text`` and the font size at which it fits ``width``, shortened if it must be.

    Args:
        text: one line.
        size: wanted font size, pixels.
        width: room, pixels.
        smallest: size below which the text is cut with an ellipsis instead.
        bold: weight.
    """
    text = _clean(text)
    taken = text_width(text, size, bold=bold)
    if taken <= width:
        return text, size
    smaller = size * width / taken
    if smaller >= smallest:
        return text, smaller
    while text and text_width(text + _ELLIPSIS, smallest, bold=bold) > width:
        text = text[:-1].rstrip()
    return text + _ELLIPSIS, smallest


def draw_text(
    text: str,
    x: float,
    y: float,
    size: float,
    *,
    anchor: Anchor = "start",
    bold: bool = False,
    color: str = "#000000",
) -> str:
    """Return the SVG element of one line of text.

    Args:
        text: any string; it can not break out of the element.
        x, y: anchor point on the baseline, pixels.
        size: font size, pixels.
        anchor: which point of the line lies at ``x``.
        bold: weight.
        color: fill, ``#rrggbb``.
    """
    from fontTools.pens.svgPathPen import SVGPathPen
    from fontTools.pens.transformPen import TransformPen

    text = _clean(text)
    if not text:
        return ""
    _, glyph_set, units = _font(bold)
    outlines = [_glyph(character, bold) for character in text]
    if None in outlines:
        weight = ' font-weight="bold"' if bold else ""
        return (
            f'<text x="{number(x)}" y="{number(y)}" font-family="DejaVu Sans, sans-serif"'
            f' font-size="{number(size)}"{weight} text-anchor="{anchor}" fill="{color}">'
            f"{escape(text)}</text>"
        )
    left = x - text_width(text, size, bold=bold) * {"start": 0, "middle": 0.5, "end": 1}[anchor]
    pen = SVGPathPen(glyph_set, number)
    zoom = size / units
    for outline in outlines:
        if outline is not None:
            recording, advance = outline
            recording.replay(TransformPen(pen, (zoom, 0, 0, -zoom, left, y)))
            left += advance * zoom
    return f'<path role="text" aria-label="{escape(text)}" fill="{color}" d="{pen.getCommands()}"/>'
