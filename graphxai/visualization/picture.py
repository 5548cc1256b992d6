"""The options that all pictures of a graph share: their words, size and colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from inspect import Parameter, cleandoc, signature
from typing import ParamSpec, TypedDict, Unpack

from numpy.typing import ArrayLike

from graphxai.runtime.options import require_options

from .color import Scale

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

    Args:
        defaults: the options that the function uses where a user gives none.
    """
    shared = [
        Parameter(
            each.name,
            Parameter.KEYWORD_ONLY,
            default=getattr(defaults, each.name),
            annotation=each.type,
        )
        for each in fields(PictureOptions)
    ]

    def decorated(draw: Callable[Parameters, str]) -> Callable[Parameters, str]:
        declared = signature(draw)
        others = [each for name, each in declared.parameters.items() if name != ARGUMENT]
        keywords = [x.name for x in (*others, *shared) if x.kind is Parameter.KEYWORD_ONLY]

        @wraps(draw)
        def draw_with_options(*args: Parameters.args, **options: Parameters.kwargs) -> str:
            by_name = [name for name in options if name not in declared.parameters]
            require_options(by_name, keywords, f"{draw.__name__}()")
            return draw(*args, **options)

        seen = declared.replace(parameters=[*others, *shared])
        draw_with_options.__signature__ = seen  # type: ignore[attr-defined]
        del draw_with_options.__wrapped__  # or Sphinx takes the defaults from its source
        draw_with_options.__doc__ = draw.__doc__ and _with_options_described(draw.__doc__)
        return draw_with_options

    return decorated


def _with_options_described(text: str) -> str:
    """Put the descriptions of the options where a docstring describes `options`."""
    described = cleandoc(PictureOptions.__doc__ or "").partition("Attributes:\n")[2]
    lines = cleandoc(text).splitlines(keepends=True)
    place = next(k for k, line in enumerate(lines) if line.startswith(f"    {ARGUMENT}: "))
    return "".join([*lines[:place], f"{described}\n", *lines[place + 1 :]])
