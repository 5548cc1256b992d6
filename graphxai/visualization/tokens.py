"""Draw a text with its tokens, coloured by relevance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike

from .color import PictureKeywords, PictureOptions, one_each, with_picture_options
from .frame import frame, ink_on, relevance_of, too_small
from .text import draw_text, escape, fit_text, number, text_width

_LARGEST, _SMALLEST = 20.0, 8.0  # the limits of the font size, in pixels
_PAD, _SPACE, _LINE = 0.3, 0.25, 1.9  # around a token, between tokens, and of a line, in font sizes
DEFAULTS = PictureOptions(height=260)


@with_picture_options(DEFAULTS)
def tokens_svg(
    relevance: ArrayLike,
    *,
    words: Sequence[str] = (),
    pale: ArrayLike = (),
    **options: Unpack[PictureKeywords],
) -> str:
    """Draw tokens as SVG, one after another as in a text, coloured by signed relevance.

    Args:
        relevance: one number per token (N,).
        words: the text of each token. By default it is the token's number, counted from 0.
        pale: True for each token with a third of its colour (N,), by default none.
        options: the words, size and colours of the picture.

    Raises:
        ValueError: the numbers of tokens and words differ, or the picture is too small for them.
    """
    picture = DEFAULTS.changed(**options)
    texts = [str(word) for word in words] or [str(k) for k in range(np.size(relevance))]
    values = one_each(relevance, "relevance", len(texts), "word")
    scale = picture.scale_for(values)
    surroundings = frame(picture)
    room = surroundings.room
    for size in np.arange(_LARGEST, _SMALLEST - 1, -1.0).tolist():
        places = _places(texts, size, room[0])
        height = (max((line for _, line, _ in places), default=0) + 1) * _LINE * size
        if height <= room[1]:
            break
    else:
        least = (picture.width, picture.height - room[1] + height)
        raise too_small((picture.width, picture.height), least)
    parts, colors = [], scale.hex(scale.shades(values, pale))
    tokens = zip(texts, values, colors, places, strict=True)
    for text, value, color, (x, line, width) in tokens:
        y = (room[1] - height) / 2 + line * _LINE * size
        fitted, font = fit_text(text, size, width - 2 * _PAD * size, smallest=_SMALLEST)
        middle, base, ink = x + width / 2, y + 1.2 * size, ink_on(color)
        word = draw_text(fitted, middle, base, font, anchor="middle", color=ink)
        parts.append(
            f'<g class="token"><title>{escape(f"{text}: {scale.text(value)}")}</title>'
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}"'
            f' height="{number(1.7 * size)}" rx="3" fill="{color}"/>{word}</g>'
        )
    about = relevance_of("tokens", values, scale)
    return surroundings.svg("".join(parts), scale, values, "Tokens coloured by relevance", about)


def _places(texts: Sequence[str], size: float, room: float) -> list[tuple[float, int, float]]:
    """Return where each token begins, its line, and its width, in pixels."""
    places: list[tuple[float, int, float]] = []
    x, line = 0.0, 0
    for text in texts:
        width = min(text_width(text, size) + 2 * _PAD * size, room)
        if x and x + width > room:
            x, line = 0.0, line + 1
        places.append((x, line, width))
        x += width + _SPACE * size
    return places
