"""Put several pictures into one: methods, inputs, or two molecules that are compared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .color import Scale, finite
from .frame import BAR_ROOM, MARGIN, SVG, XLINK, color_bar, document, heading
from .layout import flaws, laid_out
from .molecule import Window, molecule_svg
from .text import GLYPH, GLYPHS, number

if TYPE_CHECKING:
    from rdkit.Chem import Mol


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


_AIR = 1.1  # the space around the atoms for labels and discs, in units of 2D coordinates
_HEADING = 60.0  # the height of what is above and below a molecule, in pixels


@dataclass(frozen=True, eq=False)
class Panel:
    """A molecule with the relevance of its atoms.

    Args:
        mol: the molecule.
        relevance: the relevance of its atoms (N,).
        changed: the atoms to outline.
        title: plain text above the molecule.
    """

    mol: Mol
    relevance: ArrayLike
    changed: Sequence[int]
    title: str


def contrast_svg(
    panels: Sequence[Panel],
    mapping: NDArray[np.integer],
    *,
    scale: Scale | float | None = None,
    palette: str = "red-blue",
    title: str = "",
    subtitle: str = "",
    legend: Sequence[str] = ("against", "for"),
    width: float = 480,
    height: float = 400,
    **options: Any,
) -> str:
    """Draw two molecules as SVG, with corresponding atoms in the same places.

    Args:
        panels: the first molecule and the second.
        mapping: the corresponding atoms of the first and the second molecule (M, 2).
        scale: the colours. By default they are fitted to all panels.
        palette: one of `PALETTES`, if `scale` is not given.
        title, subtitle: plain text above the panels.
        legend: the words at the ends of the colour bar.
        width, height: the size of a panel in pixels. Wide molecules take less height.
        options: options of `molecule_svg`.
    """
    values = np.concatenate([finite(panel.relevance) for panel in panels])
    scale = Scale.chosen(scale, values, palette=palette)
    first = laid_out(panels[0].mol)
    second = aligned(panels[1].mol, first, mapping)
    points = np.concatenate([_points(first), _points(second)])
    left, bottom = (points.min(0) - _AIR).tolist()
    right, top = (points.max(0) + _AIR).tolist()
    window: Window = (left, bottom, right, top)  # which just fits the height below
    fitting = (width - 2 * MARGIN) * (top - bottom) / (right - left) + _HEADING
    height = min(height, max(160.0, fitting))
    pictures = [
        molecule_svg(
            mol,
            panel.relevance,
            scale=scale,
            title=panel.title,
            width=width,
            height=height,
            color_bar=False,
            keep_layout=True,
            outlined=panel.changed,
            window=window,
            **options,
        )
        for mol, panel in zip((first, second), panels, strict=True)
    ]
    return grid_svg(
        pictures,
        len(pictures),
        title,
        subtitle=subtitle,
        scale=scale,
        legend=legend,
        values=values,
    )


def aligned(mol: Mol, reference: Mol, mapping: NDArray[np.integer]) -> Mol:
    """Return a copy of `mol` laid out like `reference` where atoms correspond.

    Corresponding atoms get the coordinates of the reference, and the rest is laid out around them.
    If that makes the picture too crowded, the molecule gets an independent layout, rotated and
    mirrored to bring corresponding atoms as close together as possible.

    Args:
        mol: any molecule.
        reference: a molecule with 2D coordinates.
        mapping: the corresponding atoms of `reference` and `mol` (M, 2).
    """
    from rdkit import Chem
    from rdkit.Chem import rdDepictor

    fixed = Chem.Mol(mol)
    rdDepictor.GenerateDepictionMatching2DStructure(
        fixed, reference, [(int(i), int(j)) for i, j in mapping]
    )
    free = laid_out(mol)
    if flaws(fixed) <= max(flaws(free), flaws(reference)):
        return fixed
    there = _points(reference)[mapping[:, 0]]
    conformer = free.GetConformer()
    points = _superposed(_points(free), _points(free)[mapping[:, 1]], there)
    for atom, (x, y) in enumerate(points.tolist()):
        conformer.SetAtomPosition(atom, (x, y, 0.0))
    return free


def _superposed(
    points: NDArray[np.float64], here: NDArray[np.float64], there: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Move all points rigidly, mirrored if needed, so that `here` comes closest to `there`.

    This is the orthogonal Procrustes problem (Schoenemann 1966).
    """
    u, _, v = np.linalg.svd((here - here.mean(0)).T @ (there - there.mean(0)))
    moved: NDArray[np.float64] = (points - here.mean(0)) @ (u @ v) + there.mean(0)
    return moved


def _points(mol: Mol) -> NDArray[np.float64]:
    return np.asarray(mol.GetConformer().GetPositions())[:, :2]
