"""Draw what all pictures share: the SVG document, its heading and its colour bar."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .color import FloatArray, PictureOptions, Scale
from .text import draw_text, escape, fit_text, glyph_outlines, minus_signs, number, text_width

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
MARGIN = 16.0  # the white margin around everything, in pixels
BAR_ROOM = 50.0  # the height of a colour bar with its numbers, in pixels
NOTE_ROOM = 28.0  # the height of the note below a drawing, in pixels
SMALLEST_ROOM = 40.0  # the width and height of the smallest drawing, in pixels
GREY, OUTLINE = "#555555", "#333333"
_DARK = 1.05**0.5 * 0.05**0.5 - 0.05  # the luminance at which black and white contrast equally
HATCHED = 'class="against"'  # marks the lines that hatch negative relevance
DASHED = ' stroke-dasharray="4 3"'  # of the edge of a pale disc
LEAST_HATCHED = 0.05  # the least |relevance| that is hatched, as a part of the scale's limit
_BAR_HEIGHT = 12.0
_LONGEST = 260.0  # the largest length of a colour bar, in pixels
_SHORTEST = 0.35  # if the words leave the bar less than this part of the room, they go below it
_LEAST_SHARE = 0.35  # beside its words, a drawing has at least this share of the height
_SMALLEST = 9.0  # the smallest font size of these words, in pixels
_SMALLEST_TITLE = 11.0


def document(width: float, height: float, body: str, *, title: str, description: str) -> str:
    """Return a complete SVG picture on a white background, in one line.

    There are no line breaks, because pandas writes one in a cell as a backslash and an n. Inside a
    path, a letter would vanish.

    Args:
        width, height: the size of the picture in pixels.
        title, description: plain text for screen readers.
    """
    title, description = minus_signs(title), minus_signs(description.replace("\n", "; "))
    # Different pictures on one page must not share ids.
    key = "t" + digest(body, title, description)
    # The size is in whole pixels, as a fraction at the edge would be drawn half transparent.
    w, h = str(math.ceil(width)), str(math.ceil(height))
    svg = (
        f'<svg xmlns="{SVG}" xmlns:xlink="{XLINK}" width="{w}" height="{h}"'
        f' viewBox="0 0 {w} {h}" role="img" aria-labelledby="{key} {key}d">'
        f'<title id="{key}">{escape(title)}</title><desc id="{key}d">{escape(description)}</desc>'
        f"{glyph_outlines(body)}"
        f'<rect width="{w}" height="{h}" fill="#ffffff"/>{body}</svg>'
    )
    return svg.replace("\n", " ")


def digest(*parts: object) -> str:
    """Return a short name that depends only on the contents of `parts`."""
    return hashlib.sha256("\x00".join(map(str, parts)).encode("utf-8", "replace")).hexdigest()[:10]


def heading(title: str, subtitle: str, width: float, *, size: float = 18.0) -> tuple[str, float]:
    """Draw title and subtitle, centred and shrunk to fit, and return them with their height.

    Args:
        title: plain text, which takes two lines if one of the smallest size would cut it.
        subtitle: plain text of one or several lines.
        width: the width of the picture in pixels.
        size: the font size of the title in pixels.

    Returns:
        The SVG elements, and their height in pixels, which is 0 if both texts are empty.
    """
    room, centre = width - 2 * MARGIN, width / 2
    parts, y = [], 0.0
    lines = _in_two(minus_signs(title), room) if title.strip() else ()
    for line in lines:
        largest = size if len(lines) == 1 else _SMALLEST_TITLE + 1
        text, fitted = fit_text(line, largest, room, smallest=_SMALLEST_TITLE, bold=True)
        y = y + size * 0.8 if y else MARGIN + size * 0.8
        parts.append(draw_text(text, centre, y, fitted, anchor="middle", bold=True))
    for k, line in enumerate(filter(str.strip, subtitle.split("\n"))):
        text, fitted = fit_text(minus_signs(line), size * 0.75, room, smallest=9)
        y = y + size * (0.95 if k else 1.15) if y else MARGIN + size * 0.6
        parts.append(draw_text(text, centre, y, fitted, anchor="middle", color=GREY))
    return "".join(parts), y + size * 0.45 if y else 0.0


def _in_two(title: str, width: float) -> tuple[str, ...]:
    """Return a title in two lines of similar length if a single one would be cut, or as it is."""
    if text_width(title, _SMALLEST_TITLE, bold=True) <= width:
        return (title,)
    words = title.split()
    halves = [(" ".join(words[:k]), " ".join(words[k:])) for k in range(1, len(words))]
    return min(halves, key=lambda two: max(map(len, two)), default=(title,))


@dataclass(frozen=True)
class Frame:
    """What surrounds a drawing: a heading above it, and a note and a colour bar below it.

    A thumbnail has little room, so the drawing fills it without any of these. The words are then
    only in the picture's description.

    Args:
        top: the height of the heading in pixels.
        note: plain text below the drawing.
    """

    picture: PictureOptions
    heading: str
    top: float
    note: str
    has_bar: bool

    @property
    def room(self) -> tuple[float, float]:
        """The width and height that remain for the drawing, in pixels."""
        return self.picture.width - 2 * MARGIN, self._base - self.top - 1.5 * MARGIN

    @property
    def _bottom(self) -> float:
        return self.picture.height - (BAR_ROOM if self.has_bar else 0.0)

    @property
    def _base(self) -> float:
        return self._bottom - (NOTE_ROOM if self.note else 0.0)

    def svg(self, drawing: str, scale: Scale, values: ArrayLike, untitled: str, about: str) -> str:
        """Put a drawing, which begins at (0, 0), into its frame, and return the whole picture.

        Args:
            drawing: SVG elements.
            scale: the colours.
            values: the relevances in the drawing.
            untitled: the title for screen readers if there is no other.
            about: what is drawn, in a sentence for screen readers.
        """
        picture, width = self.picture, self.picture.width
        at = f"translate({number(MARGIN)} {number(self.top + MARGIN)})"
        parts = [self.heading, f'<g transform="{at}">{drawing}</g>' if drawing else ""]
        if self.note:
            text, size = fit_text(self.note, 12, width - 2 * MARGIN, smallest=8)
            y = self._bottom - 6
            parts.append(draw_text(text, width / 2, y, size, anchor="middle", color=GREY))
        if self.has_bar:
            about_bar: Any = {"values": values, "hatched": HATCHED in drawing}
            parts.append(color_bar(scale, 0, self._bottom, width, picture.legend, **about_bar))
        subtitle, key = picture.subtitle.strip(), scale.key(picture.legend)
        words = (
            f"{subtitle}." if subtitle else "",
            about,
            f"{key[0].upper()}{key[1:]}; full colour at {scale.limit:.3g}.",
            f"{picture.note}." if picture.note else "",
        )
        return document(
            width,
            picture.height,
            "".join(parts),
            title=picture.title.strip() or untitled,
            description=" ".join(filter(None, words)),
        )


def frame(picture: PictureOptions) -> Frame:
    """Return the frame of a picture, or that of a thumbnail if words would take most of it.

    Raises:
        ValueError: the picture is too small for any drawing.
    """
    width, height = picture.width, picture.height
    head, top = heading(picture.title, picture.subtitle, width)
    framed = Frame(picture, head, top, picture.note, picture.color_bar)
    if framed.room[1] < _LEAST_SHARE * height:
        framed = Frame(picture, "", 0.0, "", has_bar=False)
    if min(framed.room) < SMALLEST_ROOM:
        least = (SMALLEST_ROOM + 2 * MARGIN, SMALLEST_ROOM + 1.5 * MARGIN)
        raise too_small((width, height), least)
    return framed


def ink_on(color: str) -> str:
    """Return black or white, whichever contrasts more with a colour like #0a0b0c (WCAG 2.1)."""
    parts = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return "#ffffff" if linear @ (0.2126, 0.7152, 0.0722) < _DARK else "#000000"


def relevance_of(what: str, values: FloatArray, scale: Scale) -> str:
    """Say between which ends the relevances of some things lie, or nothing if there are none."""
    if not len(values):
        return ""
    ends = f"{scale.text(values.min())} to {scale.text(values.max())}"
    return f"{len(values)} {what} with relevance from {ends}."


def too_small(size: tuple[float, float], least: tuple[float, float]) -> ValueError:
    """Make the error for a picture with a size (width, height) in pixels below the least."""
    asked, needed = (f"{number(width)} x {number(height)}" for width, height in (size, least))
    return ValueError(f"this picture needs at least {needed} pixels; {asked} are too few")


def color_bar(
    scale: Scale,
    x: float,
    y: float,
    width: float,
    legend: Sequence[str],
    *,
    values: ArrayLike = (),
    hatched: bool = False,
) -> str:
    """Draw a colour bar with numbers below it and words at its ends.

    If space is short, the words go below the bar. The bar of a one-sided scale begins at zero and
    has words only at its right end.

    Args:
        x, y: the upper left corner of the available space in pixels. The space is `BAR_ROOM` high.
        width: the width of that space in pixels.
        legend: the words for negative and for positive relevance.
        values: the relevances in the picture. If any lies beyond the limit, the bar gets pointed
            ends.
        hatched: whether negative relevance is hatched in the picture, and so in the bar.
    """
    size = 13.0 if width >= 300 else 11.0
    room = width - 2 * MARGIN
    tip = 8.0 if scale.exceeded(values) else 0.0
    gap = 12 + tip
    legend = ("", legend[1]) if scale.one_sided else legend
    word = max(text_width(words, size) for words in legend) + gap
    free = room - (1 if scale.one_sided else 2) * word
    beside = free >= min(_LONGEST, _SHORTEST * room)
    length = min(_LONGEST, free, room / 2) if beside else min(_LONGEST, room - 2 * tip)
    shift = word / 2 if beside and scale.one_sided else 0.0  # bar and word are centred together
    left, top = x + (width - length) / 2 - shift, y + (8 if beside else 3)
    right, middle, bottom = left + length, top + _BAR_HEIGHT / 2, top + _BAR_HEIGHT
    if beside:
        baseline = middle + size * 0.36
        words = draw_text(legend[0], left - gap, baseline, size, anchor="end")
        words += draw_text(legend[1], right + gap, baseline, size)
    else:
        words = _words_below(legend, x + width / 2, y + BAR_ROOM - 5, size, (length, room))
    parts = [words]
    key = "b" + digest(scale, x, y, width)
    gradient = _stops(replace(scale, limit=1.0))
    parts.append(
        f'<defs><linearGradient id="{key}" gradientUnits="userSpaceOnUse" x1="{number(left)}"'
        f' y1="0" x2="{number(right)}" y2="0">{gradient}</linearGradient></defs>'
    )
    start = 0.0 if scale.one_sided else tip
    outline = (
        f"M{number(left)} {number(top)}H{number(right)}L{number(right + tip)} {number(middle)}"
        f"L{number(right)} {number(bottom)}H{number(left)}L{number(left - start)} {number(middle)}Z"
    )
    parts.append(
        f'<path d="{outline}" fill="url(#{key})" stroke="#888888" stroke-width="0.75"'
        ' stroke-linejoin="round"/>'
    )
    if hatched:
        x1, x2 = left - start, left + length * scale.place(-LEAST_HATCHED * scale.limit)
        starts = np.arange(x1, x2 - 9, 6)
        parts.append(hatch_lines([(x, bottom, x + _BAR_HEIGHT, top) for x in starts]))
    parts.append(_ticks(scale, left, length, bottom, size - 2))
    if scale.shared_by and beside:
        at, shared = (x + width / 2, y + BAR_ROOM - 2), f"one scale for {scale.shared_by}"
        parts.append(draw_text(shared, *at, size - 2, anchor="middle", color=GREY))
    return f'<g class="colour-bar">{"".join(parts)}</g>'


def hatching(places: FloatArray, radius: float) -> str:
    """Draw white lines across discs, which tell negative relevance from positive without colours.

    The lines of all discs lie on one lattice, so that those of neighbours meet.

    Args:
        places: the centres of the discs (N, 2) in pixels.
        radius: their radius in pixels.
    """
    step, turned = max(3.0, 0.3 * radius), np.array([[1, -1], [1, 1]]) / math.sqrt(2)
    lines = []
    for along, across in (places @ turned.T).tolist():
        first, last = (math.ceil((across + end) / step) for end in (-radius, radius))
        for offset in step * np.arange(first, last):
            half = math.sqrt(max(0.0, radius**2 - (offset - across) ** 2))
            ends = np.array([[along - half, offset], [along + half, offset]]) @ turned
            lines.append(ends.ravel().tolist())
    return hatch_lines(lines, 0.25 * step)


def hatch_lines(lines: Sequence[Sequence[float]], width: float = 1.4) -> str:
    """Draw the white lines of a hatching from (x1, y1) to (x2, y2)."""
    if not len(lines):
        return ""
    path = "".join("M{} {}L{} {}".format(*map(number, line)) for line in lines)
    return f'<path {HATCHED} d="{path}" stroke="#ffffff" stroke-width="{number(width)}"/>'


@cache
def _stops(scale: Scale) -> str:
    """Return the stops of a bar's gradient, which do not depend on the limit."""
    stops = scale.stops()
    return "".join(
        f'<stop offset="{number(100 * scale.place(value))}%" stop-color="{color}"/>'
        for value, color in zip(stops, scale.hex(stops), strict=True)
    )


def _words_below(
    legend: Sequence[str], centre: float, baseline: float, size: float, widths: tuple[float, float]
) -> str:
    """Draw the words of a legend below its bar, both in the same size.

    They are flush with the ends of the bar, unless they are too long for that. The widths are
    those of the bar and of the available space.
    """
    bar, room = widths
    room_for_words = room / 2 - 5 if all(legend) else room
    fitted = min(fit_text(words, size, room_for_words, smallest=_SMALLEST)[1] for words in legend)
    cut = [fit_text(words, fitted, room_for_words, smallest=fitted)[0] for words in legend]
    half = min(room, max(bar, 2 * max(text_width(words, fitted) for words in cut) + 10)) / 2
    return draw_text(cut[0], centre - half, baseline, fitted) + draw_text(
        cut[1], centre + half, baseline, fitted, anchor="end"
    )


def _ticks(scale: Scale, left: float, length: float, bottom: float, size: float) -> str:
    ticks = scale.ticks()
    zero = ticks.index(0.0)
    widest = max(text_width(scale.text(advance), size) for advance in ticks)
    spacing = length * (scale.place(ticks[1]) - scale.place(ticks[0]))
    # If numbers would touch, skip some, counting from zero so that 0 always stays.
    every = 1
    while spacing * every < widest + 5 and every < len(ticks) - 1 - zero:
        every += 1
    parts = []
    for position, advance in enumerate(ticks):
        at = left + length * scale.place(advance)
        parts.append(
            f'<path d="M{number(at)} {number(bottom)}v4" stroke="#888888" stroke-width="0.75"/>'
        )
        if (position - zero) % every == 0:
            y = bottom + 6 + size * 0.8
            parts.append(draw_text(scale.text(advance), at, y, size, anchor="middle", color=GREY))
    return "".join(parts)
