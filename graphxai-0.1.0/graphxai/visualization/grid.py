"""Put several pictures into one: methods for one input, or inputs for one method."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from numpy.typing import ArrayLike

from .color import Scale
from .frame import BAR_ROOM, MARGIN, SVG, XLINK, color_bar, document, heading
from .text import GLYPH, GLYPHS, number

_LINKS = ("href", f"{{{XLINK}}}href")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def grid_svg(
    panels: Sequence[str],
    columns: int,
    title: str = "",
    *,
    subtitle: str = "",
    scale: Scale | None = None,
    legend: Sequence[str] = ("against", "for"),
    values: ArrayLike = (),
) -> str:
    """Arrange pictures row by row in one SVG.

    Args:
        panels: whole SVG documents, as the functions of this package return them.
        columns: the number of panels in a row, at least 1.
        title, subtitle: plain text above all panels.
        scale: the scale that all panels share. If it is given, its colour bar is drawn below them.
        legend: the words at the negative and the positive end of that bar.
        values: all relevances in the panels. If any lies beyond the scale, the bar gets pointed
            ends.

    Raises:
        ValueError: there is no panel, `columns` is below 1, or a panel is not an SVG.
    """
    if not panels:
        raise ValueError("a grid needs at least one panel")
    if columns < 1:
        raise ValueError(f"a grid needs at least one column, got {columns}")
    parsed = [_parse(panel, index) for index, panel in enumerate(panels)]
    columns = min(columns, len(parsed))
    rows = [parsed[start : start + columns] for start in range(0, len(parsed), columns)]
    widths = [max(row[column][1] for row in rows if column < len(row)) for column in range(columns)]
    width = sum(widths)
    head, y = heading(title, subtitle, width, size=22)
    body = [head]
    for row in rows:
        x = 0.0
        for (content, panel_width, _), cell in zip(row, widths, strict=False):
            at = f"{number(x + (cell - panel_width) / 2)} {number(y)}"
            body.append(f'<g transform="translate({at})">{content}</g>')
            x += cell
        y += max(panel[2] for panel in row)
    if scale is not None:
        body.append(color_bar(scale, 0, y, width, legend, values=values))
        y += BAR_ROOM
    rowed = "one row" if len(rows) == 1 else f"{len(rows)} rows"
    count = f"{len(panels)} pictures in {rowed}." if len(panels) > 1 else "One picture."
    return document(
        width,
        y + MARGIN / 2,
        "".join(body),
        title=title.strip() or "Pictures of relevance",
        description=f"{subtitle.strip()}. {count}" if subtitle.strip() else count,
    )


def _parse(panel: str, index: int) -> tuple[str, float, float]:
    """Return the content of a picture with unique ids, and its width and height in pixels."""
    try:
        root = ElementTree.fromstring(panel)
        width, height = (float(root.attrib[side].removesuffix("px")) for side in _SIDES)
    except (ElementTree.ParseError, KeyError, ValueError) as error:
        raise ValueError(f"panel {index} is not an SVG with width and height: {error}") from error
    for glyphs in root.findall(f"{{{SVG}}}defs[@class='{GLYPHS}']"):
        root.remove(glyphs)  # the whole picture defines them once for all panels
    prefix = f"p{index}-"
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "id":
                element.set(name, prefix + value)
            elif name in _LINKS and value.startswith(f"#{GLYPH}"):
                continue
            elif name in _LINKS and value.startswith("#"):
                element.set(name, f"#{prefix}{value[1:]}")
            elif name == "aria-labelledby":
                element.set(name, " ".join(prefix + part for part in value.split()))
            elif "url(#" in value:
                element.set(name, _REFERENCE.sub(rf"url(#{prefix}\1)", value))
    labelled = root.get("aria-labelledby", "")
    root.attrib.clear()
    root.tag = f"{{{SVG}}}g"
    if labelled:
        root.set("role", "img")
        root.set("aria-labelledby", labelled)
    return _serialise(root), width, height


_SIDES = ("width", "height")


def _serialise(root: ElementTree.Element) -> str:
    """Return SVG markup without repeating the namespace declarations of the document."""
    for element in root.iter():
        if isinstance(element.tag, str):
            element.tag = element.tag.removeprefix(f"{{{SVG}}}")
        link = element.attrib.pop(f"{{{XLINK}}}href", None)
        if link is not None:
            element.set("xlink:href", link)
    return ElementTree.tostring(root, encoding="unicode")
