"""Draw a molecule with its atoms coloured by relevance, under a plain black drawing."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .color import (
    FloatArray,
    PictureKeywords,
    PictureOptions,
    Scale,
    one_each,
    with_picture_options,
)
from .frame import DASHED, LEAST_HATCHED, OUTLINE, digest, frame, hatching, relevance_of
from .layout import atoms_of, bond_length, bonded, bonds_of, laid_out
from .text import escape, number, numbers

if TYPE_CHECKING:
    from rdkit.Chem import Mol

_LONGEST_BOND = 66.0  # in pixels, so that small molecules do not fill the picture
_ATOM_RADIUS = 0.34  # in bond lengths
_BOND_WIDTH = 0.42  # in bond lengths
_LINE = 2.0  # the line width in pixels, in drawings where it affects no shape
_ZOOM = _LONGEST_BOND / 1.5  # in pixels per Angstrom, as a normalised bond has 1.5 Angstrom
_PADDING = 0.03  # on each side, as a part of the picture
_LABEL = 0.2  # how far a label extends beyond its atom, in Angstrom
_OUTLINE = 0.07  # in bond lengths
Window = tuple[float, float, float, float]  # left, bottom, right and top in 2D coordinates
# Draws SVG elements, given the positions of the atoms (N, 2) and the bond length in pixels.
Underlay = Callable[[FloatArray, float], str]
_END_OF_HEADER = "<!-- END OF HEADER -->"
# RDKit writes these styles for every line although they are SVG's defaults. They are a quarter of
# it.
_INITIAL = (
    (";stroke-linecap:butt;stroke-linejoin:miter;stroke-opacity:1'", "'"),
    ("fill:none;fill-rule:evenodd;", "fill:none;"),
)
_STYLE = re.compile(" style='([^']*)'")


@with_picture_options()
def molecule_svg(
    mol: Mol,
    relevance: ArrayLike,
    *,
    atom_numbers: bool | Sequence[int] = False,
    keep_layout: bool = True,
    outlined: Collection[int] = (),
    window: Window | None = None,
    bond_relevance: ArrayLike | None = None,
    pale: ArrayLike = (),
    **options: Unpack[PictureKeywords],
) -> str:
    """Draw a molecule as SVG, with its atoms coloured by signed relevance.

    An atom has exactly the colour of its relevance. The middle of a bond has the colour of the
    bond's relevance, or of the mean of both ends if bonds have none, and the colour changes
    smoothly in between. The molecule itself is not modified.

    Args:
        mol: any RDKit molecule, sanitised or not.
        relevance: one number per atom of `mol`, including explicit hydrogens (N,).
        atom_numbers: whether to write each atom's number beside it, counted from 0 as in tables, or
            the numbers to write.
        keep_layout: whether to use the 2D coordinates of `mol` if it has any, such as those of an
            SD file.
        outlined: the atoms with a dark contour. Bonded atoms share one contour.
        window: the part of the 2D coordinates to show, by default the whole molecule. Pictures with
            the same window and `keep_layout` have their atoms in the same places.
        bond_relevance: one number per bond of `mol` (M,), if bonds were explained.
        pale: True for each atom with a third of its colour and a dashed edge (N,), by default none.
        options: the words, size and colours of the picture.

    Raises:
        ValueError: `relevance` does not have one finite number per atom, `bond_relevance` does not
            have one per bond, or the picture is too small for the molecule.
    """
    picture = PictureOptions(**options)
    values, of_bonds = one_each(relevance, "relevance", mol.GetNumAtoms(), "atom"), None
    if bond_relevance is not None:
        of_bonds = one_each(bond_relevance, "bond_relevance", mol.GetNumBonds(), "bond")
    everything = values if of_bonds is None else np.concatenate([values, of_bonds])
    scale = picture.scale_for(everything)
    shown = scale.shades(values, pale)

    def colored(points: FloatArray, bond: float) -> str:
        contour = _contour(mol, outlined, points, bond)
        return contour + _highlights(mol, values, shown, of_bonds, scale, points, bond)

    return framed(
        mol,
        colored,
        values,
        scale,
        picture,
        atom_numbers=atom_numbers,
        keep_layout=keep_layout,
        window=window,
    )


def framed(
    mol: Mol,
    underlay: Underlay,
    values: FloatArray,
    scale: Scale,
    picture: PictureOptions,
    *,
    atom_numbers: bool | Sequence[int] = False,
    keep_layout: bool = True,
    window: Window | None = None,
    of: str = "atoms",
) -> str:
    """Draw a molecule on top of `underlay` as SVG, with heading and colour bar.

    Args:
        underlay: draws the coloured shapes under the molecule.
        values: the relevances that `underlay` shows.
        atom_numbers, keep_layout, window: as for `molecule_svg`.
        of: what the relevances belong to, for the description of the picture.

    Raises ValueError if the picture is too small for the molecule.
    """
    surroundings = frame(picture)
    prepared = _prepared(mol, keep_layout)
    drawing, points, bond = _draw(prepared, surroundings.room, atom_numbers, window)
    drawn = (
        f'{underlay(points, bond)}<g class="structure" pointer-events="none">{drawing}</g>'
        if len(points)
        else ""
    )
    about = relevance_of(of, values, scale)
    return surroundings.svg(drawn, scale, values, "Molecule coloured by relevance", about)


def structure(mol: Mol, room: tuple[float, float]) -> tuple[str, FloatArray, float]:
    """Return the plain drawing as SVG, the atoms' places (N, 2) and the bond length in pixels."""
    return _draw(_prepared(mol, keep_layout=True), room, atom_numbers=False, window=None)


def _prepared(mol: Mol, keep_layout: bool) -> Mol:
    """Return a copy with 2D coordinates that is ready to draw, with its atoms in the same order."""
    from rdkit.Chem.Draw import rdMolDraw2D

    copy = laid_out(mol, keep=keep_layout)
    for kekulize in (True, False):  # a ring without a Kekulé structure is drawn dashed
        try:
            return rdMolDraw2D.PrepareMolForDrawing(copy, kekulize=kekulize, addChiralHs=False)
        except ValueError:
            continue
    return copy


def _draw(
    mol: Mol, room: tuple[float, float], atom_numbers: bool | Sequence[int], window: Window | None
) -> tuple[str, FloatArray, float]:
    """Return the drawing as SVG, the atoms' positions (N, 2) and the bond length in pixels."""
    from rdkit.Chem import BondDir
    from rdkit.Chem.Draw import rdMolDraw2D

    if not isinstance(atom_numbers, bool):
        mol = type(mol)(mol)
        for atom, written in zip(mol.GetAtoms(), atom_numbers, strict=True):
            atom.SetProp("atomNote", str(written))

    def draw(line: float) -> rdMolDraw2D.MolDraw2DSVG:
        drawer = rdMolDraw2D.MolDraw2DSVG(int(room[0]), int(room[1]))
        options: Any = drawer.drawOptions()
        options.useBWAtomPalette()
        options.clearBackground = False
        options.prepareMolsBeforeDrawing = False
        options.fixedBondLength = _ZOOM
        options.padding = _PADDING
        if window is not None:
            drawer.SetScale(int(room[0]), int(room[1]), *_corners(window, room))
        options.minFontSize = 8
        options.maxFontSize = 26
        options.bondLineWidth = line
        options.addAtomIndices = atom_numbers is True
        options.annotationFontScale = 0.6
        drawer.DrawMolecule(mol)
        drawer.FinishDrawing()
        return drawer

    def positions(drawer: rdMolDraw2D.MolDraw2DSVG) -> FloatArray:
        points = [drawer.GetDrawCoords(index) for index in range(mol.GetNumAtoms())]
        return np.array([(point.x, point.y) for point in points]).reshape(-1, 2)

    # The line width depends on the bond length, which is only known after fitting the molecule. It
    # changes the shape of wedges and wavy bonds, so a wrong guess costs a second drawing there.
    # Elsewhere it is only a style.
    shaped = any(b.GetBondDir() != BondDir.NONE for b in bonds_of(mol))
    ends = bonded(mol)
    first = _line_width(_likely_bond(mol, ends, room)) if shaped else _LINE
    drawer = draw(first)
    points = positions(drawer)
    bond = bond_length(ends, points) or _LONGEST_BOND
    line = _line_width(bond)
    if shaped and line != first:
        drawer = draw(line)
    body = drawer.GetDrawingText().split(_END_OF_HEADER)[1].rsplit("</svg>", 1)[0]
    for default, shortened in (*_INITIAL, (f"width:{first}px", f"width:{line}px")):
        body = body.replace(default, shortened)

    def attributes(style: re.Match[str]) -> str:  # which mail and notebooks on web sites keep
        declared = (each.partition(":") for each in style[1].split(";") if each)
        return "".join(f" {name}='{value}'" for name, _, value in declared)

    return _STYLE.sub(attributes, body).strip(), points, bond


def _line_width(bond: float) -> float:
    return round(min(2.2, max(0.9, bond * 0.05)), 1)


def _likely_bond(mol: Mol, ends: NDArray[np.int_], room: tuple[float, float]) -> float:
    """Estimate RDKit's bond length in pixels from the atoms and the rough size of labels."""
    points = mol.GetConformer().GetPositions()[:, :2]
    label = [[0.0 if atom.GetAtomicNum() == 6 else _LABEL] for atom in atoms_of(mol)]
    extent = (points + label).max(0) - (points - label).min(0)
    zoom = min((np.array(room) * (1 - 2 * _PADDING) / np.maximum(extent, 1e-6)).min(), _ZOOM)
    return float(zoom * (bond_length(ends, points) or 0.0))


def _corners(window: Window, room: tuple[float, float]) -> tuple[Any, Any]:
    """Return the window's corners, moved apart if bonds would become too long."""
    from rdkit.Geometry import Point2D

    ends = np.reshape(window, (2, 2))  # the lower left and the upper right corner
    centre, half = ends.mean(0), (ends[1] - ends[0]) / 2
    half = np.maximum(half, np.array(room) * 1.5 / _LONGEST_BOND / 2)
    return Point2D(*(centre - half).tolist()), Point2D(*(centre + half).tolist())


def _contour(mol: Mol, outlined: Collection[int], points: FloatArray, bond_px: float) -> str:
    """Draw dark shapes, which show as outlines around the coloured shapes that cover them.

    They extend one line width beyond the coloured shapes.
    """
    if not len(outlined):
        return ""
    width = max(1.6, _OUTLINE * bond_px)
    radius = number(bond_px * _ATOM_RADIUS + width)
    parts = []
    for i, j in bonded(mol).tolist():
        if i in outlined and j in outlined:
            (x1, y1), (x2, y2) = points[i], points[j]
            parts.append(
                f'<path d="M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}"'
                f' stroke="{OUTLINE}"'
                f' stroke-width="{number(bond_px * _BOND_WIDTH + 2 * width)}"/>'
            )
    for i in outlined:
        x, y = points[i]
        parts.append(
            f'<circle data-outlined="{int(i)}" cx="{number(x)}" cy="{number(y)}" r="{radius}"'
            f' fill="{OUTLINE}"/>'
        )
    return f'<g class="outline">{"".join(parts)}</g>'


def _highlights(
    mol: Mol,
    values: FloatArray,
    shown: FloatArray,
    of_bonds: FloatArray | None,
    scale: Scale,
    points: FloatArray,
    bond_px: float,
) -> str:
    ends = bonded(mol)  # (B, 2)
    middles = shown[ends].mean(axis=1) if of_bonds is None else of_bonds  # (B,)
    colors = scale.hex(np.concatenate([shown, middles]))
    colors, means = colors[: len(values)], colors[len(values) :]
    key = "m" + digest(scale, np.concatenate([shown, middles]).tobytes(), points.round(3).tobytes())
    start, end = points[ends[:, 0]], points[ends[:, 1]]  # (B, 2)
    along = end - start
    length = np.linalg.norm(along, axis=1, keepdims=True)
    length[length == 0] = 1.0
    # The colour starts to change where the bond leaves its atom's disc.
    edges = np.minimum(40.0, 100 * _ATOM_RADIUS * bond_px / length)  # (B, 1)
    # This is a rectangle and no line, because renderers drop gradients on lines without an area.
    aside = along[:, ::-1] * (-1, 1) / length * bond_px * _BOND_WIDTH / 2
    corners = np.hstack([start + aside, end + aside, end - aside, start - aside])  # (B, 8)
    places, shapes = numbers(points), numbers(np.hstack([edges, 100 - edges, corners]))
    gradients, bands, discs = [], [], []
    bonds = zip(ends.tolist(), means, shapes, strict=True)
    for index, ((i, j), mean, (near, far, *shape)) in enumerate(bonds):
        (x1, y1), (x2, y2) = places[i], places[j]
        name = f"{key}-{index}"
        gradients.append(
            f'<linearGradient id="{name}" gradientUnits="userSpaceOnUse"'
            f' x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}">'
            f'<stop offset="{near}%" stop-color="{colors[i]}"/>'
            f'<stop offset="50%" stop-color="{mean}"/>'
            f'<stop offset="{far}%" stop-color="{colors[j]}"/></linearGradient>'
        )
        a, b, c, d, e, f, g, h = shape
        tail = "/>"
        if of_bonds is not None:
            note = escape(f"bond {index}: {scale.text(float(of_bonds[index]))}")
            tail = f"><title>{note}</title></path>"
        bands.append(
            f'<path data-bond="{index}" data-color="{mean}" d="M{a} {b}L{c} {d}L{e} {f}L{g} {h}Z"'
            f' fill="url(#{name})"{tail}'
        )
    radius = number(bond_px * _ATOM_RADIUS)
    negative = shown < -LEAST_HATCHED * scale.limit
    labels = [
        f"{atom.GetSymbol()} {index}: {scale.text(value)}"
        for index, (atom, value) in enumerate(zip(atoms_of(mol), values.tolist(), strict=True))
    ]
    named = zip(places, escape("\n".join(labels)).split("\n"), strict=True)
    for index, ((x, y), label) in enumerate(named):
        edge = f' stroke="#777777"{DASHED}' if shown[index] != values[index] else ""
        discs.append(
            f'<circle data-atom="{index}" cx="{x}" cy="{y}" r="{radius}" fill="{colors[index]}"'
            f"{edge}><title>{label}</title></circle>"
        )
    return (
        f'<defs>{"".join(gradients)}</defs><g class="relevance">{"".join(bands)}'
        f"{''.join(discs)}{hatching(points[negative], bond_px * _ATOM_RADIUS)}</g>"
    )
