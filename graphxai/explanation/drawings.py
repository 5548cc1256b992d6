"""A list of results with pictures, which a notebook shows as a table."""

from html import escape
from typing import Any

from .html import image_html, table_html
from .labelled import LabelledResults
from .result import Drawing, shown_as_png

SHOWN = 12  # how many results of a list a notebook shows
SMALL = 0.5  # PNG pixels per SVG unit


class Drawings(LabelledResults[Any]):
    """The results of several inputs, such as `Pairs`, with None where an input was left out.

    Args:
        results: results with pictures, see `Drawing`.
        labels: as for `Explanations`.
    """

    def _line(self, result: Drawing) -> str:
        return repr(result)

    def _repr_html_(self) -> str:
        """Return a table of the first results, with small pictures."""
        rows = []
        for _, label, result in self._some(SHOWN):
            picture = shown_as_png(result._repr_svg_(), SMALL)
            image = "" if picture is None else image_html(picture, repr(result))
            rows.append((label, repr(result), image))
        table = table_html(("", "result", "picture"), rows) if rows else ""
        return f"{table}<p>{escape(self._counts(SHOWN))}</p>"
