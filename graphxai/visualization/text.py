"""Draw text as outlines, so that a picture looks the same in every viewer, even without fonts.

The glyphs are those of DejaVu Sans, which ships with matplotlib. A line of text refers to them by
id, and a picture defines each glyph once (`glyph_outlines`). Text with a character that the font
lacks (a Chinese title, say) becomes an SVG `<text>`, which uses the viewer's fonts.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from xml.sax.saxutils import escape as _escape

import numpy as np
from numpy.typing import NDArray

Anchor = Literal["start", "middle", "end"]

# XML 1.0 forbids these characters even as references, or they turn the direction of text.
FORBIDDEN = re.compile(
    "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]"
)
_ELLIPSIS = "…"
GLYPH = "gx-"  # the prefix of glyph ids, which are the same in every picture
GLYPHS = "glyphs"  # the class of the glyph definitions
_REFERENCE = re.compile(f'href="#{GLYPH}([br][0-9a-f]+)"')
# The ends of numbers with two decimals, and how `number` writes them.
_SHORTER = (("-0.00", "0"), (".00", ""), *((f".{tenth}0", f".{tenth}") for tenth in range(1, 10)))
_HYPHEN_MINUS = re.compile(r"(?<!\S)-(?=\.?\d)")  # a hyphen before a number, not inside a name


def minus_signs(text: str) -> str:
    """Return `text` with a minus sign before negative numbers, as in `BACE-1: −0.5`."""
    return _HYPHEN_MINUS.sub("\N{MINUS SIGN}", text)


def escape(text: object) -> str:
    """Return `text` escaped for XML content and attributes, without forbidden characters."""
    return _escape(FORBIDDEN.sub("", str(text)), {'"': "&quot;", "'": "&#39;"})


def number(value: float) -> str:
    """Format a coordinate with at most two decimals, as short as possible."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def numbers(rows: NDArray[np.float64]) -> list[list[str]]:
    """Format each value of rows (R, K) like `number`, but several times as fast."""
    line = " ".join(["%.2f"] * rows.shape[1])
    text = "\n".join([line] * len(rows)) % tuple(rows.ravel().tolist())
    for written, shorter in _SHORTER:
        text = text.replace(written, shorter)
    return [row.split() for row in text.splitlines()]


def font_file(bold: bool = False) -> Path:
    """Return the path of the font used for all text, without importing matplotlib if possible."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    spec = find_spec("matplotlib")
    data = Path(spec.origin if spec and spec.origin else "").with_name("mpl-data")
    if not data.is_dir():  # a distribution keeps it elsewhere
        import matplotlib

        data = Path(matplotlib.get_data_path())
    return data / "fonts" / "ttf" / name


@lru_cache(maxsize=2)
def _font(bold: bool) -> tuple[dict[int, str], Any, int]:
    from fontTools.ttLib import TTFont  # matplotlib brings it

    font = TTFont(font_file(bold))
    # The names of the 6,000 glyphs in the font take longer to read than all else that is needed.
    font.setGlyphOrder([str(place) for place in range(font["maxp"].numGlyphs)])
    return font.getBestCmap(), font.getGlyphSet(), font["head"].unitsPerEm


@lru_cache(maxsize=4096)
def _glyph(character: str, bold: bool) -> tuple[str, float] | None:
    """Return a character's outline (SVG path) and advance in font units, or None if missing."""
    from fontTools.pens.svgPathPen import SVGPathPen

    names, glyphs, _ = _font(bold)
    name = names.get(ord(character))
    if name is None:
        return None
    pen = SVGPathPen(glyphs, number)
    glyphs[name].draw(pen)
    return pen.getCommands(), float(glyphs[name].width)


@lru_cache(maxsize=512)
def _line(text: str, bold: bool) -> tuple[str | None, float]:
    """Return SVG references to the glyphs of a clean line and its width, in font units with y up.

    If the font lacks a character, its width is guessed and the references are None.
    """
    uses: list[str] | None = []
    at = 0.0
    for character in text:
        glyph = _glyph(character, bold)
        if glyph is None:
            uses, at = None, at + 0.6 * _font(bold)[2]
            continue
        if glyph[0] and uses is not None:  # older viewers only know `xlink:href`
            name = f"{GLYPH}{'b' if bold else 'r'}{ord(character):x}"
            uses.append(f'<use xlink:href="#{name}" x="{number(at)}"/>')
        at += glyph[1]
    return None if uses is None else "".join(uses), at


@lru_cache(maxsize=4096)
def _clean(text: str) -> str:
    return " ".join(FORBIDDEN.sub("", text).split())


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of `text` in pixels at a font size in pixels."""
    return _line(_clean(text), bold)[1] * size / _font(bold)[2]


def fit_text(
    text: str, size: float, width: float, *, smallest: float, bold: bool = False
) -> tuple[str, float]:
    """Return `text`, cut if necessary, and the font size at which it fits into `width`.

    Args:
        size: the preferred font size in pixels.
        width: the available width in pixels.
        smallest: the smallest font size. If it is still too large, the text is cut with an
            ellipsis.
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


@lru_cache(maxsize=4096)  # pictures share the words and most numbers of their colour bars
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
        text: any string. It cannot break out of the element.
        x, y: the anchor point on the baseline in pixels.
        size: the font size in pixels.
        anchor: which point of the line lies at `x`.
        color: the colour of the text, as `#rrggbb`.
    """
    text = _clean(text)
    if not text:
        return ""
    uses, advance = _line(text, bold)
    if uses is None:
        weight = ' font-weight="bold"' if bold else ""
        return (
            f'<text x="{number(x)}" y="{number(y)}" font-family="DejaVu Sans, sans-serif"'
            f' font-size="{number(size)}"{weight} text-anchor="{anchor}" fill="{color}">'
            f"{escape(text)}</text>"
        )
    zoom = size / _font(bold)[2]
    left = x - advance * zoom * {"start": 0, "middle": 0.5, "end": 1}[anchor]
    place = f"translate({number(left)} {number(y)}) scale({zoom:.6f} -{zoom:.6f})"
    return (
        f'<g role="text" aria-label="{escape(text)}" fill="{color}" transform="{place}">{uses}</g>'
    )


def glyph_outlines(body: str) -> str:
    """Return the SVG definition of each glyph that the text in `body` uses."""
    paths = "".join(_outline(name) for name in sorted({*_REFERENCE.findall(body)}))
    return f'<defs class="{GLYPHS}">{paths}</defs>' if paths else ""


@lru_cache(maxsize=4096)
def _outline(name: str) -> str:
    """Return the definition of a glyph by its id without prefix, or "" if the font lacks it."""
    glyph = _glyph(chr(int(name[1:], 16)), name[0] == "b")
    return "" if glyph is None else f'<path id="{GLYPH}{name}" d="{glyph[0]}"/>'
