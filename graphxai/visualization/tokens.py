"""Draw a sequence as a text, with the background of each token coloured by relevance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .color import Scale, finite
from .frame import frame, relevance_of, too_small
from .picture import PictureKeywords, PictureOptions, with_picture_options
from .text import draw_text, escape, fit_text, number, text_width

_LARGEST, _SMALLEST = 20.0, 8.0  # the limits of the font size, in pixels
_DARK = 0.45  # below this luminance of the background, a token is white
_PAD, _GAP, _LINE = 0.3, 0.25, 1.9  # around a token, between tokens, and of a line, in font sizes


DEFAULTS = PictureOptions(height=260)


@with_picture_options(DEFAULTS)
def tokens_svg(
    relevance: ArrayLike, *, words: Sequence[str] = (), **options: Unpack[PictureKeywords]
) -> str:
    """Draw tokens as SVG, one after another as in a text, coloured by signed relevance.

    Args:
        relevance: one number per token (N,).
        words: the text of each token. By default it is the token's number, counted from 0.
        options: the words, size and colours of the picture.

    Raises:
        ValueError: the numbers of tokens and words differ, or the picture is too small for them.
    """
    picture = DEFAULTS.changed(**options)
    values = finite(relevance)
    texts = [str(word) for word in words] or [str(k) for k in range(len(values))]
    if values.shape != (len(texts),):
        raise ValueError(f"{len(texts)} words do not fit the relevance of {values.size} tokens.")
    scale = picture.scale_for(values)
    surroundings = frame(picture)
    room = surroundings.room
    size = _LARGEST
    while (lines := _lines(texts, size, room[0])) * _LINE * size > room[1]:
        size -= 1.0
        if size < _SMALLEST:
            needed = _lines(texts, _SMALLEST, room[0]) * _LINE * _SMALLEST
            least = (picture.width, picture.height - room[1] + needed)
            raise too_small((picture.width, picture.height), least)
    top = (room[1] - lines * _LINE * size) / 2
    drawing = _drawn(texts, values, scale, size, room[0], top)
    about = relevance_of("tokens", values, scale)
    return surroundings.svg(drawing, scale, values, "Tokens coloured by relevance", about)


def _places(texts: Sequence[str], size: float, room: float) -> list[tuple[float, int, float]]:
    """Return where each token begins, its line, and its width, in pixels."""
    places: list[tuple[float, int, float]] = []
    x, line = 0.0, 0
    for text in texts:
        width = min(text_width(text, size) + 2 * _PAD * size, room)
        if x and x + width > room:
            x, line = 0.0, line + 1
        places.append((x, line, width))
        x += width + _GAP * size
    return places


def _lines(texts: Sequence[str], size: float, room: float) -> int:
    """Return how many lines the tokens take."""
    return max((line for _, line, _ in _places(texts, size, room)), default=0) + 1


def _drawn(
    texts: Sequence[str],
    values: NDArray[np.float64],
    scale: Scale,
    size: float,
    room: float,
    top: float,
) -> str:
    """Draw the tokens, each on a box of its colour."""
    parts = []
    luminance = scale.rgb(values) @ np.array([0.2126, 0.7152, 0.0722])
    colors, places = scale.hex(values), _places(texts, size, room)
    tokens = zip(texts, values, colors, luminance, places, strict=True)
    for text, value, color, light, (x, line, width) in tokens:
        y = top + line * _LINE * size
        fitted, font = fit_text(text, size, width - 2 * _PAD * size, smallest=_SMALLEST)
        ink = "#ffffff" if light < _DARK else "#000000"
        words = draw_text(fitted, x + width / 2, y + 1.2 * size, font, anchor="middle", color=ink)
        parts.append(
            f'<g class="token"><title>{escape(f"{text}: {scale.text(value)}")}</title>'
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}"'
            f' height="{number(1.7 * size)}" rx="3" fill="{color}"/>{words}</g>'
        )
    return "".join(parts)
