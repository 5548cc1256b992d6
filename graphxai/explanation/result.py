"""Results that can be drawn in a notebook, as a PNG or to a file, and the HTML of their tables."""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from html import unescape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphxai.visualization.curves import new_figure
from graphxai.visualization.render import displayed, save_picture, svg_to_png
from graphxai.visualization.text import escape

from . import files

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Markup(str):
    """Text that is HTML already, such as an image in a cell."""


def image_html(picture: str | bytes, text: str) -> Markup:
    """Return an SVG or PNG picture as an image with a text for those who do not see it.

    Each picture is a separate document, because two may use the same ids.
    """
    content, kind = (
        (picture, "png") if isinstance(picture, bytes) else (picture.encode(), "svg+xml")
    )
    code = base64.b64encode(content).decode()
    return Markup(f'<img alt="{escape(text)}" src="data:image/{kind};base64,{code}">')


def table_html(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a table as HTML, with all text escaped that is no `Markup`."""
    body = "".join(_row("td", row) for row in rows)
    return f"<table><thead>{_row('th', head)}</thead><tbody>{body}</tbody></table>"


def fields_html(fields: Mapping[str, object]) -> str:
    """Return the fields of one thing as HTML, a row each, with numbers rounded.

    Fields that are empty or None are left out.
    """
    rows = "".join(
        f'<tr><th style="text-align: left">{escape(name.replace("_", " "))}</th>'
        f'<td style="text-align: left">{escape(_field_text(value))}</td></tr>'
        for name, value in fields.items()
        if value is not None and value != ""
    )
    return f"<table>{rows}</table>"


def _field_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def security_policy(
    style: str, script: str = "", *, rest: str = "", loaded: Iterable[str] = ()
) -> str:
    """Return a content security policy that allows no network, and only this style and script.

    Style and script are allowed by their hashes. Without a script, none can run.

    Args:
        loaded: the addresses of files that the script may load as scripts.
    """
    allowed = f" script-src {' '.join([_quoted_hash(script), *loaded])};" if script else ""
    return (
        f"default-src 'none'; style-src {_quoted_hash(style)}{rest};{allowed}"
        " base-uri 'none'; form-action 'none'"
    )


def page_html(title: str, sections: Iterable[str]) -> str:
    """Make a page of sections with HTML that is already escaped. No script can run in it."""
    body = "".join(f"<section>{html}</section>" for html in sections)
    # escaped text has no plain quotes, so only attributes of our tables match
    styles = sorted({_quoted_hash(unescape(text)) for text in re.findall(r'style="([^"]*)"', body)})
    hashes = " ".join(["", "'unsafe-hashes'", *styles])
    policy = security_policy(_STYLE, rest=f"{hashes}; img-src data:")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )


_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "img{max-width:100%}td,th{padding:0 .8em;text-align:right}"
    "section+section{border-top:1px solid #ccc;margin-top:2em;padding-top:1em}"
)


def _quoted_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _row(cell: str, values: Iterable[object]) -> str:
    cells = (value if isinstance(value, Markup) else escape(str(value)) for value in values)
    return "<tr>" + "".join(f"<{cell}>{text}</{cell}>" for text in cells) + "</tr>"


ZOOM = 1.5  # PNG pixels per SVG unit in a notebook, which stores them


def shown_as_png(svg: str | None, zoom: float = ZOOM) -> bytes | None:
    """Return a notebook's picture as PNG, or None if there is none."""
    return None if svg is None else svg_to_png(svg, zoom, few_colors=True)


class Drawing:
    """A result with an SVG picture, which can be turned into a PNG and shown in a notebook."""

    def svg(self, **options: Any) -> str:
        """Return the picture as SVG text."""
        raise NotImplementedError

    def png(self, *, zoom: float = 2.0, **options: Any) -> bytes:
        """Return the picture as PNG, with `zoom` pixels per SVG unit and the options of `svg`."""
        return svg_to_png(self.svg(**options), zoom)

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the picture as .svg, .png or .pdf, or raise ValueError for another suffix."""
        path = files.writable(path, files.PICTURES)
        return save_picture([self.svg(**options)], path)

    def plot(self, *, ax: "Axes | None" = None, **options: Any) -> "Figure":
        """Show the picture in Matplotlib's axes, or in a new figure of its size.

        In axes, a picture that can have any size is drawn for theirs, so that its text is as large
        as Matplotlib's. Its title becomes that of the axes, if they have none.

        Args:
            ax: the axes, which lose their ticks and frame.
            options: those of `svg`.

        Returns:
            The figure with the axes.
        """

        if ax is not None:
            options = self._options_for(*room_in(ax)) | options
            ax.set_title(ax.get_title() or self._title)
        return show_in_axes(self.svg(**options), ax)

    def _options_for(self, width: float, height: float) -> dict[str, Any]:
        """Return the options for a picture of this many pixels in axes, if it has a choice."""
        return {}

    @property
    def _title(self) -> str:
        """The title of axes with the picture, or "" if the picture has its own."""
        return ""

    def _repr_svg_(self) -> str | None:
        return displayed(self.svg())

    def _repr_png_(self) -> bytes | None:
        """Return the picture for what shows no SVG, such as LaTeX."""
        return shown_as_png(self._repr_svg_())


class Result(Drawing):
    """A drawing with a table of the numbers in it."""

    def to_frame(self) -> "pd.DataFrame":
        """Return the numbers that the picture shows."""
        raise NotImplementedError

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the picture (.svg, .png, .pdf) or the table (.csv, .tsv, .parquet)."""
        path = files.writable(path, (*files.PICTURES, *files.FRAMES))
        if path.suffix.lower() in files.FRAMES:
            return files.write_table(self.to_frame(), path)
        return save_picture([self.svg(**options)], path)


class Picture(str, Drawing):
    """SVG text that a notebook displays."""

    def svg(self, **options: Any) -> str:
        """Return the text itself. Options have no effect."""
        return str(self)

    def png(self, *, zoom: float = 2.0) -> bytes:  # type: ignore[override]
        """Return the picture as PNG, with `zoom` pixels per SVG unit."""
        return super().png(zoom=zoom)

    def save(self, path: str | Path) -> Path:  # type: ignore[override]
        """Write the picture as .svg, .png or .pdf, or raise ValueError for another suffix."""
        return super().save(path)

    def __repr__(self) -> str:
        return f"Picture({len(self):,} characters of SVG)"


PIXELS_PER_INCH = 96.0  # of our pictures, whose small text is then as large as Matplotlib's
SHARPNESS = 300.0  # dots per inch of a picture in axes, as journals ask for


def room_in(axes: "Axes") -> tuple[float, float]:
    """Return the width and height of axes in pixels of our pictures."""
    figure: Any = axes.get_figure(root=True)
    inches = axes.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    return inches.width * PIXELS_PER_INCH, inches.height * PIXELS_PER_INCH


def show_in_axes(svg: str, axes: "Axes | None") -> "Figure":
    """Show an SVG picture in axes, or in a new figure that it fills, and return the figure."""
    from matplotlib.image import imread

    pixels = imread(BytesIO(svg_to_png(svg, SHARPNESS / PIXELS_PER_INCH)))  # (H, W, 4)
    if axes is None:
        figure = new_figure(pixels.shape[1] / SHARPNESS, pixels.shape[0] / SHARPNESS)
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(pixels, interpolation="antialiased")
    axes.set_axis_off()
    shown: Any = axes.get_figure(root=True)
    return shown
