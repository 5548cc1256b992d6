"""The colours of relevance, and the options that all pictures share: words, size and colours.

Zero is white, and each sign has one colour, or all scores that have no sign.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import cleandoc
from typing import ParamSpec, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from graphxai.runtime.options import with_keywords

FloatArray = NDArray[np.float64]
_Anchors = tuple[tuple[int, int, int], ...]

# Each arm runs from white to full colour in equal steps of |value| / limit. The two arms of a
# palette have nearly the same lightness at every step, so that neither sign looks stronger than the
# other. The ends stay light enough (contrast above 4.5) for black atom labels. The arms of
# "orange-purple" differ only along the blue-yellow axis, which red-green colour blindness does not
# affect.
_ARMS: dict[str, tuple[_Anchors, _Anchors]] = {
    "red-blue": (
        ((255, 255, 255), (250, 187, 172), (227, 84, 74)),
        ((255, 255, 255), (172, 203, 245), (74, 134, 222)),
    ),
    "orange-purple": (
        ((255, 255, 255), (253, 195, 130), (222, 118, 16)),
        ((255, 255, 255), (208, 192, 240), (149, 120, 214)),
    ),
}

# Scores without a sign have one colour in every palette, which means neither "for" nor "against".
_UNSIGNED: _Anchors = ((255, 255, 255), (163, 217, 192), (47, 158, 118))
_UNSIGNED_NAME = "green"
_WHITE: _Anchors = ((255, 255, 255), (255, 255, 255), (255, 255, 255))

PALETTES: tuple[str, ...] = tuple(_ARMS)
"""The names of the palettes: the colour of positive, then that of negative relevance.

`red-blue` is the default. `orange-purple` is safe for red-green colour blindness.
"""


@dataclass(frozen=True)
class Scale:
    """A colour scale on which white is 0, and colour saturates at plus or minus `limit`.

    Args:
        limit: the relevance of the full colour, which is finite and above 0.
        palette: one of `PALETTES`. Its first colour is for positive relevance.
        one_sided: whether scores have no sign. The scale then runs from 0 to `limit`, in a colour
            that no palette uses for a sign.
        shared_by: what the scale is the same for, such as "all 60 pictures", which the key says.

    Raises:
        ValueError: `limit` is not a finite number above 0, or the palette is unknown.
    """

    limit: float
    palette: str = "red-blue"
    one_sided: bool = False
    shared_by: str = ""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.limit) and self.limit > 0):
            raise ValueError(
                f"the limit of a colour scale must be finite and above 0, got {self.limit}"
            )
        if self.palette not in _ARMS:
            listed = ", ".join(PALETTES)
            raise ValueError(f"unknown palette {self.palette!r}; choose one of: {listed}")

    @classmethod
    def fit(cls, *arrays: ArrayLike, palette: str = "red-blue") -> Scale:
        """Return the smallest scale that covers every value of all arrays.

        Args:
            arrays: relevances of any shape. If all are empty or zero, the limit is 1.
            palette: one of `PALETTES`.

        Raises:
            ValueError: a value is not finite.
        """
        limit = 0.0
        for position, array in enumerate(arrays):
            values = finite(array, f"array {position}" if len(arrays) > 1 else "relevance")
            if values.size:
                limit = max(limit, float(np.abs(values).max()))
        return cls(limit or 1.0, palette)

    @classmethod
    def chosen(
        cls, wanted: Scale | float | None, *arrays: ArrayLike, palette: str = "red-blue"
    ) -> Scale:
        """Return the scale that a user requested.

        Args:
            wanted: a Scale, a number for its limit, or None for `fit`.
            arrays: relevances of any shape, for `fit`.
            palette: one of `PALETTES`, unless `wanted` is a Scale.

        Raises:
            ValueError: as for the constructor and `fit`.
        """
        if isinstance(wanted, Scale):
            return wanted
        if wanted is None:
            return cls.fit(*arrays, palette=palette)
        if isinstance(wanted, str):
            raise ValueError(f"a colour scale is a Scale, a number or None, not {wanted!r}")
        return cls(float(wanted), palette)

    def rgb(self, values: ArrayLike) -> FloatArray:
        """Return the colours of `values`.

        Args:
            values: relevances of any shape S.

        Returns:
            Red, green and blue in [0, 1], of shape S + (3,).

        Raises:
            ValueError: a value is not finite.
        """
        relative = finite(values) / self.limit
        amount = np.minimum(np.abs(relative), 1.0)
        arms = np.array(self._arms, dtype=np.float64)  # (2, K, 3)
        step = amount * (arms.shape[1] - 1)
        below = np.minimum(step.astype(int), arms.shape[1] - 2)
        arm = (relative < 0).astype(int)
        low, high = arms[arm, below], arms[arm, below + 1]  # S + (3,)
        return (low + (high - low) * (step - below)[..., None]) / 255

    def hex(self, values: ArrayLike) -> list[str]:
        """Return the colours of `values` as `#rrggbb`, for any shape in C order."""
        levels = np.rint(self.rgb(values).reshape(-1, 3) * 255).astype(int)
        return [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in levels.tolist()]

    @staticmethod
    def shades(values: FloatArray, pale: ArrayLike) -> FloatArray:
        """Return the values (N,) whose colours are drawn, a third of those that are pale."""
        return np.where(pale, values / 3, values) if np.size(pale) else values

    def exceeded(self, values: ArrayLike) -> bool:
        """Return whether any of `values` lies beyond the limit and saturates."""
        return bool((np.abs(finite(values)) > self.limit * (1 + 1e-9)).any())

    def stops(self) -> tuple[float, ...]:
        """Return the relevances between which the colour is linear, from end to end."""
        positive, negative = self._arms
        below = -np.linspace(1, 0, len(negative))[: 0 if self.one_sided else -1]
        return tuple((np.r_[below, np.linspace(0, 1, len(positive))] * self.limit).tolist())

    def arms(self) -> list[str]:
        """Return the colours at equal steps from minus to plus the limit."""
        return self.hex(np.multiply(Scale(1.0).stops(), self.limit))

    def place(self, value: float) -> float:
        """Return where on a colour bar a relevance lies, from 0 (left end) to 1 (right end)."""
        return value / self.limit if self.one_sided else 0.5 + value / self.limit / 2

    def text(self, value: float) -> str:
        """Format a relevance like `signed`, but without a plus sign on a one-sided scale."""
        return signed(value).removeprefix("+") if self.one_sided else signed(value)

    def key(self, legend: Sequence[str]) -> str:
        """Return what the colours mean, as text.

        Args:
            legend: the words for negative and for positive relevance.
        """
        if self.one_sided:
            return f"{_UNSIGNED_NAME} is {legend[1]}, white is zero{self._shared}"
        positive, negative = self.palette.split("-")
        return f"{positive} is {legend[1]}, {negative} is {legend[0]}, white is zero{self._shared}"

    def ticks(self) -> tuple[float, ...]:
        """Return round numbers for a colour bar, which include 0, at most three on a side."""
        # Take the finest step of 1, 2, 2.5 or 5 times a power of ten with at most 3 steps per side.
        power = math.floor(math.log10(self.limit)) - 1
        steps = [
            float(f"{mantissa}e{exponent}")
            for exponent in range(power, power + 3)
            for mantissa in (1, 2, 2.5, 5)
        ]
        step, count = next(
            (step, count) for step in steps if (count := math.floor(self.limit / step + 1e-9)) <= 3
        )
        first = 0 if self.one_sided else -count
        return tuple(float(f"{k * step:.12g}") for k in range(first, count + 1))

    @property
    def _shared(self) -> str:
        return f", one scale for {self.shared_by}" if self.shared_by else ""

    @property
    def _arms(self) -> tuple[_Anchors, _Anchors]:
        return (_UNSIGNED, _WHITE) if self.one_sided else _ARMS[self.palette]


def finite(values: ArrayLike, name: str = "relevance") -> FloatArray:
    """Return `values` as floats, or raise a ValueError that names the first that is not finite."""
    array = np.asarray(values, dtype=np.float64)
    bad = ~np.isfinite(array)
    if bad.any():
        first = np.unravel_index(int(np.argmax(bad)), array.shape)
        where = f" at index {', '.join(str(i) for i in first)}" if first else ""
        raise ValueError(f"{name} must be finite, but contains {array[first]}{where}")
    return array


def one_each(values: ArrayLike, name: str, count: int, of: str) -> FloatArray:
    """Return `values` as floats (count,), or raise a ValueError if they are others than these."""
    array = finite(values, name)
    if array.shape != (count,):
        given = f"{len(array)} numbers" if array.ndim == 1 else f"shape {array.shape}"
        wanted = f"one number per {of}: there are {count} {of}s"
        raise ValueError(f"{name} must have {wanted}, got {given}")
    return array


def signed(value: float) -> str:
    """Format a relevance with a sign and three digits, as in `+0.25`, `−1.3e−5`, `0`."""
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e4:
        text = f"{value:+.3g}" if abs(value) < 1000 else f"{value:+.0f}"
    else:
        mantissa, exponent = f"{value:+.2e}".split("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return text.replace("-", "−")


def signed_alike(values: ArrayLike) -> list[str]:
    """Format relevances for one column, with signs and the same number of decimals.

    The largest has three digits, as in `+1.15`, `−0.31` or in `+1.30e−5`, `−0.20e−5`.
    """
    array = finite(values)
    largest = float(np.abs(array).max(initial=0.0))
    power = math.floor(math.log10(largest)) if largest else 0
    exponent, decimals = ("", max(0, 2 - power)) if -4 < power < 4 else (f"e{power}", 2)
    unit = 10.0**power if exponent else 1.0
    texts = (f"{value / unit:+z.{decimals}f}" for value in array.tolist())
    return [
        (text if float(text) else text[1:]).replace("-", "−")
        for text in (text + exponent for text in texts)
    ]


ARGUMENT = "options"  # of the drawing functions, in whose place users see the keywords
Parameters = ParamSpec("Parameters")


class PictureKeywords(TypedDict, total=False):
    """The fields of `PictureOptions` as keywords of a drawing function."""

    scale: Scale | float | None
    palette: str
    title: str
    subtitle: str
    note: str
    legend: Sequence[str]
    width: float
    height: float
    color_bar: bool


@dataclass(frozen=True)
class PictureOptions:
    """The words, size and colours of a picture.

    Attributes:
        scale: the colours, which several pictures can share. By default they are fitted to this
            picture.
        palette: one of `PALETTES`, if `scale` is not given.
        title, subtitle: plain text above the drawing.
        note: plain text below the drawing.
        legend: the words at the negative and the positive end of the colour bar.
        width, height: the size of the picture in pixels.
        color_bar: whether to draw the bar. A grid may have one for all panels.
    """

    scale: Scale | float | None = None
    palette: str = "red-blue"
    title: str = ""
    subtitle: str = ""
    note: str = ""
    legend: Sequence[str] = ("against", "for")
    width: float = 640
    height: float = 480
    color_bar: bool = True

    def changed(self, **options: Unpack[PictureKeywords]) -> PictureOptions:
        """Return a copy with other options."""
        return replace(self, **options)

    def scale_for(self, *relevances: ArrayLike) -> Scale:
        """Return the colours, fitted to these relevances unless the user chose others.

        Raises:
            ValueError: there is no such palette, or the limit of the colours is not above 0.
        """
        return Scale.chosen(self.scale, *relevances, palette=self.palette)


def with_picture_options(
    defaults: PictureOptions = PictureOptions(),
) -> Callable[[Callable[Parameters, str]], Callable[Parameters, str]]:
    """Show the fields of `PictureOptions` where a drawing function takes them as keywords.

    They stand in the signature and in the docstring that users see, in the place of `options`. Type
    checkers know them from `PictureKeywords`.

    `defaults` are the options that the function uses where a user gives none.
    """

    def decorated(draw: Callable[Parameters, str]) -> Callable[Parameters, str]:
        shown = with_keywords(draw, defaults)
        del shown.__wrapped__  # type: ignore[attr-defined] # else Sphinx takes defaults from there
        shown.__doc__ = draw.__doc__ and _with_options_described(draw.__doc__)
        return shown

    return decorated


def _with_options_described(text: str) -> str:
    """Put the descriptions of the options where a docstring describes `options`."""
    described = cleandoc(PictureOptions.__doc__ or "").partition("Attributes:\n")[2]
    lines = cleandoc(text).splitlines(keepends=True)
    place = next(k for k, line in enumerate(lines) if line.startswith(f"    {ARGUMENT}: "))
    return "".join([*lines[:place], f"{described}\n", *lines[place + 1 :]])
