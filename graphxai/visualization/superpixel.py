"""Draw an image with its superpixels, coloured by relevance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .color import FloatArray, Scale, finite, one_each
from .frame import BAR_ROOM, HATCHED, LEAST_HATCHED, MARGIN, document, hatch_lines, heading
from .frame import color_bar as _color_bar
from .text import draw_text, escape, fit_text, number

_CAPTION = 24.0  # the space above a panel for its name, in pixels
_GAP = 20.0  # the space between panels, in pixels
_BELOW = 6.0  # the space below a panel, in pixels
_APART = 7.0  # the least distance between two lines of a hatching along a row, in pixels


def superpixel_svg(
    image: ArrayLike,
    segments: ArrayLike,
    relevance: ArrayLike,
    *,
    scale: Scale | float | None = None,
    title: str = "",
    subtitle: str = "",
    legend: Sequence[str] = ("against", "for"),
    size: float = 280,
    show_image: bool = True,
    color_bar: bool = True,
    palette: str = "red-blue",
    pale: ArrayLike = (),
) -> str:
    """Draw an image with its segments as SVG, and beside it the relevance of each segment.

    A segment is filled with exactly the colour of its relevance, and hatched if that is negative.
    The outline of the bright part of the image is drawn on top in black.

    Args:
        image: grey levels in [0, 1] (H, W).
        segments: the segment of each pixel, as integers 0..N-1 (H, W).
        relevance: one number per segment (N,).
        scale: the colours, which several pictures can share. By default they are fitted to
            `relevance`.
        title, subtitle: plain text above the picture.
        legend: the words at the negative and the positive end of the colour bar.
        size: the height of a panel in pixels.
        show_image: whether to draw the image beside the relevance.
        color_bar: whether to draw the bar. A grid may have one for all panels.
        palette: one of `PALETTES`, if `scale` is not given.
        pale: True for each segment with a third of its colour (N,), by default none.

    Raises:
        ValueError: shapes do not match or a value is not finite.
    """
    picture = _SuperpixelImage(image, segments, size)
    values = picture.check(relevance, "relevance")
    scale = Scale.chosen(scale, values, palette=palette)
    panels = [picture.image(boundaries=True)] if show_image else []
    panels.append(picture.relevance(values, scale, pale))
    width = max(2 * MARGIN + _row_width(len(panels), picture.width), 300.0 if color_bar else 0.0)
    head, y = heading(title, subtitle, width)
    y = y + MARGIN * 0.6 if head else MARGIN
    left = (width - _row_width(len(panels), picture.width)) / 2
    parts = [head]
    for position, panel in enumerate(panels):
        parts.append(_at(left + position * (picture.width + _GAP), y, panel))
    y += picture.height + _BELOW
    if color_bar:
        parts.append(
            _color_bar(scale, 0, y, width, legend, values=values, hatched=HATCHED in panels[-1])
        )
        y += BAR_ROOM
    return document(
        width,
        y + (0 if color_bar else MARGIN - _BELOW),
        "".join(parts),
        title=title.strip() or "Superpixels coloured by relevance",
        description=_description({"": values}, [scale], subtitle, [legend]),
    )


def superpixel_row_svg(
    image: ArrayLike,
    segments: ArrayLike,
    relevances: Mapping[str, ArrayLike],
    *,
    scale: Scale | float | None = None,
    title: str = "",
    subtitle: str = "",
    legend: Sequence[str] | Mapping[str, Sequence[str]] = ("against", "for"),
    unsigned: Mapping[str, str] = {},
    size: float = 220,
    palette: str = "red-blue",
    pale: Mapping[str, ArrayLike] = {},
) -> str:
    """Draw a row as SVG: the image, its segments, and a panel of relevance for each method.

    Args:
        image: grey levels in [0, 1] (H, W).
        segments: the segment of each pixel, as integers 0..N-1 (H, W).
        relevances: for each method, one number per segment (N,).
        scale: the colours of all methods, with one bar below the row unless only some methods have
            a sign. If it is not given, each method has a separate scale and bar.
        title, subtitle: plain text above the row.
        legend: the words at the negative and the positive end of a colour bar, which may differ
            from method to method.
        unsigned: for each method without a sign, the word at the end of its colour bar, which
            starts at zero.
        size: the height of a panel in pixels.
        palette: one of `PALETTES`, if `scale` is not given.
        pale: for a method, True for each segment with a third of its colour (N,).

    Raises:
        ValueError: shapes do not match or a value is not finite.
    """
    picture = _SuperpixelImage(image, segments, size)
    values = {name: picture.check(array, name) for name, array in relevances.items()}
    scale = None if scale is None else Scale.chosen(scale, palette=palette)
    scales = [
        replace(scale or Scale.fit(array, palette=palette), one_sided=name in unsigned)
        for name, array in values.items()
    ]
    words = legend if isinstance(legend, Mapping) else dict.fromkeys(values, legend)
    legends = [("", unsigned[name]) if name in unsigned else words[name] for name in values]
    one_bar = scale is not None and len({*zip(scales, map(tuple, legends), strict=True)}) == 1
    panels = [("Image", picture.image()), ("Superpixels", picture.image(boundaries=True))]
    panels += [
        (name, picture.relevance(array, method_scale, pale.get(name, ())))
        for (name, array), method_scale in zip(values.items(), scales, strict=True)
    ]
    width = 2 * MARGIN + _row_width(len(panels), picture.width)
    head, y = heading(title, subtitle, width, size=20)
    y += _CAPTION + (4 if head else MARGIN / 2)
    parts = [head]
    for position, (name, panel) in enumerate(panels):
        x = MARGIN + position * (picture.width + _GAP)
        text, fitted = fit_text(name, 15, picture.width, smallest=9)
        parts.append(draw_text(text, x + picture.width / 2, y - 8, fitted, anchor="middle"))
        parts.append(_at(x, y, panel))
    y += picture.height + _BELOW
    if one_bar:
        every = np.concatenate(list(values.values()))
        hatched = any(HATCHED in panel for _, panel in panels)
        parts.append(_color_bar(scales[0], 0, y, width, legends[0], values=every, hatched=hatched))
    else:
        bars = zip(values.values(), scales, legends, strict=True)
        for position, (array, method_scale, ends) in enumerate(bars):
            x = MARGIN + (position + 2) * (picture.width + _GAP) - _GAP / 2
            about: Any = {"values": array, "hatched": HATCHED in panels[position + 2][1]}
            parts.append(_color_bar(method_scale, x, y, picture.width + _GAP, ends, **about))
    return document(
        width,
        y + (BAR_ROOM if values else MARGIN - _BELOW),
        "".join(parts),
        title=title.strip() or "Superpixels coloured by relevance",
        description=_description(values, scales, subtitle, legends),
    )


def patches_svg(
    relevance: ArrayLike, grid: tuple[int, int], *, image: ArrayLike | None = None, **options: Any
) -> str:
    """Draw the patches of an image as SVG on their grid, or upsampled to the image's pixels.

    Args:
        relevance: one number per patch (N,), from left to right and from top to bottom.
        grid: the numbers of rows and columns of patches.
        image: grey levels in [0, 1] (H, W), to which the patches are upsampled, and which is drawn
            beside them.
        options: those of `superpixel_svg`.

    Raises:
        ValueError: the numbers of patches and of cells differ, or a value is not finite.
    """
    values, (rows, columns) = finite(relevance), grid
    if values.shape != (rows * columns,):
        raise ValueError(f"a grid of {rows} x {columns} does not fit {values.size} patches.")
    cells = np.arange(rows * columns).reshape(grid)
    if image is None:
        options.setdefault("show_image", False)
        return superpixel_svg(np.zeros(grid), cells, values, **options)
    height, width = np.asarray(image).shape[:2]
    down, right = (np.arange(n) * of // n for n, of in ((height, rows), (width, columns)))
    return superpixel_svg(image, cells[np.ix_(down, right)], values, **options)


def upsampled(relevance: ArrayLike, grid: tuple[int, int], size: tuple[int, int]) -> FloatArray:
    """Return the relevance of patches for each pixel (H, W), bilinear between their centres.

    This is how Chefer 2021b makes a picture of a vision transformer's patches.

    Args:
        relevance: one number per patch (N,), from left to right and from top to bottom.
        grid: the numbers of rows and columns of patches.
        size: H and W.
    """
    values = finite(relevance).reshape(grid)
    for axis, (wanted, cells) in enumerate(zip(size, grid, strict=True)):
        at = ((np.arange(wanted) + 0.5) * cells / wanted - 0.5).clip(0, cells - 1)
        low = np.floor(at).astype(int)
        high, part = np.minimum(low + 1, cells - 1), at - low
        part = part[:, None] if axis == 0 else part
        values = values.take(low, axis) * (1 - part) + values.take(high, axis) * part
    return values


class _SuperpixelImage:
    """An image that draws its parts at a given height: pixels, boundaries, filled segments."""

    def __init__(self, image: ArrayLike, segments: ArrayLike, size: float) -> None:
        self.grey = finite(image, "image")
        self.segments = np.asarray(segments)
        if self.grey.ndim != 2 or 0 in self.grey.shape:
            raise ValueError(f"image must have shape (H, W), got {self.grey.shape}")
        if self.grey.min() < 0 or self.grey.max() > 1:
            raise ValueError(
                "image must have grey levels in [0, 1], got"
                f" {self.grey.min():g} to {self.grey.max():g}"
            )
        if self.segments.shape != self.grey.shape:
            raise ValueError(
                f"segments have shape {self.segments.shape}, the image has {self.grey.shape}"
            )
        if not np.issubdtype(self.segments.dtype, np.integer) or self.segments.min() < 0:
            raise ValueError("segments must be integers 0..N-1")
        rows, columns = self.grey.shape
        self.zoom = size / rows
        self.width, self.height = columns * self.zoom, float(size)

    def check(self, relevance: ArrayLike, name: str) -> FloatArray:
        """Return `relevance` as floats (N,), where N is the number of segments."""
        return one_each(relevance, name, int(self.segments.max()) + 1, "segment")

    def image(self, *, boundaries: bool = False) -> str:
        """Return the grey image, optionally with the boundaries of its segments."""
        levels = np.rint(self.grey * 255).astype(int)
        fills = {level: f"#{level:02x}{level:02x}{level:02x}" for level in np.unique(levels)}
        edges = self._boundaries("#ffb000", 1.0) if boundaries else ""
        return self._scaled(_runs(levels, fills) + edges)

    def relevance(self, values: FloatArray, scale: Scale, pale: ArrayLike = ()) -> str:
        """Return the filled segments with their boundaries and the outline of the image."""
        shades = scale.shades(values, pale)
        colors = scale.hex(shades)
        fills = {int(cell): colors[cell] for cell in np.unique(self.segments)}
        notes = {
            segment: f"superpixel {segment}: {scale.text(values[segment])}" for segment in fills
        }
        body = _runs(self.segments, fills, notes) + self._hatching(shades, scale)
        return self._scaled(body + self._boundaries("#b8b8b8", 0.6) + self._outline())

    def _hatching(self, values: FloatArray, scale: Scale) -> str:
        """Return white lines across segments of negative relevance, on the diagonals of pixels."""
        y, x = np.nonzero(values[self.segments] < -LEAST_HATCHED * scale.limit)
        on_line = (x + y) % max(1, round(_APART / self.zoom)) == 0
        corner = np.stack([x, y, x, y], axis=1)[on_line]
        many = max(1, round(self.zoom / _APART))  # lines across a large pixel
        ends = []
        for at in np.arange(1, 2 * many) / many:
            near, far = max(0.0, at - 1), min(1.0, at)
            ends += (corner + np.array([near, far, far, near])).tolist()
        return hatch_lines(ends, 1.4 / self.zoom)

    def _scaled(self, body: str) -> str:
        rows, columns = self.grey.shape
        return (
            f'<g transform="scale({self.zoom:.6g})">{body}<rect width="{columns}" height="{rows}"'
            f' fill="none" stroke="#888888" stroke-width="{1 / self.zoom:.4g}"'
            ' pointer-events="none"/></g>'
        )

    def _boundaries(self, color: str, width: float) -> str:
        cells = self.segments
        path = _edges(cells[1:] != cells[:-1], "h") + _edges((cells[:, 1:] != cells[:, :-1]).T, "v")
        return (
            f'<path class="boundaries" d="{path}" fill="none" stroke="{color}"'
            f' stroke-width="{width / self.zoom:.4g}" stroke-linecap="square"'
            ' pointer-events="none"/>'
        )

    def _outline(self) -> str:
        """Return the contour halfway between the darkest and the brightest grey level."""
        from contourpy import LineType, contour_generator

        low, high = float(self.grey.min()), float(self.grey.max())
        if high - low < 1e-6:
            return ""
        padded = np.pad(self.grey, 1, constant_values=low)
        generator = contour_generator(z=padded, line_type=LineType.Separate)
        # After padding, the centre of pixel i lies at i - 0.5, counted from the corner of the
        # picture.
        path = "".join(
            "M" + "L".join(f"{number(x - 0.5)} {number(y - 0.5)}" for x, y in np.asarray(line))
            for line in generator.lines((low + high) / 2)
        )
        return (
            f'<path class="outline" d="{path}" fill="none" stroke="#000000" stroke-width='
            f'"{2 / self.zoom:.4g}" stroke-linejoin="round" pointer-events="none"/>'
        )


def _runs(cells: NDArray[np.int_], fills: Mapping[int, str], notes: Mapping[int, str] = {}) -> str:
    """Return one path for each value of `cells` (H, W), made of horizontal runs of pixels."""
    paths: dict[int, list[str]] = {value: [] for value in fills}
    columns = cells.shape[1]
    for y, row in enumerate(cells):
        starts = np.flatnonzero(np.r_[True, row[1:] != row[:-1]])
        for start, end in zip(starts, np.r_[starts[1:], columns], strict=True):
            paths[int(row[start])].append(f"M{start} {y}h{end - start}v1h{start - end}z")
    elements = []
    for value, path in paths.items():
        note = notes.get(value)
        mark = f' data-segment="{value}"' if note else ""
        end = f"><title>{escape(note)}</title></path>" if note else "/>"
        elements.append(f'<path{mark} d="{"".join(path)}" fill="{fills[value]}"{end}')
    # Pixels must join without hairlines of background between them.
    return f'<g shape-rendering="crispEdges">{"".join(elements)}</g>'


def _edges(differs: NDArray[np.bool_], direction: str) -> str:
    """Return a path along the lower edge of each row y where `differs[y]`, with runs merged."""
    parts = []
    for y, row in enumerate(differs, start=1):
        steps = np.diff(np.r_[0, row.astype(int), 0])
        ends = np.flatnonzero(steps < 0)
        for start, end in zip(np.flatnonzero(steps > 0), ends, strict=True):
            at = f"{start} {y}" if direction == "h" else f"{y} {start}"
            parts.append(f"M{at}{direction}{end - start}")
    return "".join(parts)


def _row_width(count: int, width: float) -> float:
    return count * width + (count - 1) * _GAP


def _at(x: float, y: float, body: str) -> str:
    return f'<g transform="translate({number(x)} {number(y)})">{body}</g>'


def _description(
    values: Mapping[str, FloatArray],
    scales: Sequence[Scale],
    subtitle: str,
    legends: Sequence[Sequence[str]],
) -> str:
    words = [subtitle.strip() + "."] if subtitle.strip() else []
    for (name, array), scale, legend in zip(values.items(), scales, legends, strict=True):
        words.append(
            f"{name + ': ' if name else ''}{len(array)} superpixels with relevance from"
            f" {scale.text(array.min())} to {scale.text(array.max())}; {scale.key(legend)}, full"
            f" colour at {scale.limit:.3g}."
        )
    return " ".join(words)
