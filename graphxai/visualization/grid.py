"""Put several pictures into one: methods, inputs, or two molecules that are compared."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .color import FloatArray, Scale
from .frame import BAR_ROOM, HATCHED, MARGIN, SVG, XLINK, color_bar, document, heading
from .layout import flaws, has_layout, laid_out, shows_double_bonds
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
        hatched = any(HATCHED in panel for panel in panels)
        body.append(color_bar(scale, 0, y, width, legend, values=values, hatched=hatched))
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


def contrast_svg(
    mols: Sequence[Mol],
    mapping: NDArray[np.integer],
    relevance: Sequence[FloatArray],
    *,
    scale: Scale,
    titles: Sequence[str],
    outlined: Sequence[Sequence[int]],
    pale: Sequence[ArrayLike],
    title: str = "",
    subtitle: str = "",
    legend: Sequence[str] = ("against", "for"),
    width: float = 480,
    height: float = 400,
    **options: Any,
) -> str:
    """Draw two molecules as SVG, with corresponding atoms in the same places.

    Args:
        mols: the first molecule and the second.
        mapping: the corresponding atoms of the first and the second molecule (M, 2).
        relevance: the relevance of the atoms of each molecule (N,).
        scale: the colours.
        titles: plain text above each molecule.
        outlined, pale: for each molecule, as for `molecule_svg`.
        title, subtitle: plain text above the panels.
        legend: the words at the ends of the colour bar.
        width, height: the size of a panel in pixels. Wide molecules take less height.
        options: options of `molecule_svg`.
    """
    first = laid_out(mols[0], keep=True)
    second = aligned(mols[1], first, mapping)
    points = np.concatenate([_points(first), _points(second)])
    left, bottom = (points.min(0) - _AIR).tolist()
    right, top = (points.max(0) + _AIR).tolist()
    window: Window = (left, bottom, right, top)  # which just fits the height below
    fitting = (width - 2 * MARGIN) * (top - bottom) / (right - left) + _HEADING
    shared: dict[str, Any] = {"scale": scale, "color_bar": False, "keep_layout": True, **options}
    shared |= {"window": window, "width": width, "height": min(height, max(160.0, fitting))}
    pictures = [
        molecule_svg(mol, of, title=name, outlined=changed, pale=doubtful, **shared)
        for mol, of, name, changed, doubtful in zip(
            (first, second), relevance, titles, outlined, pale, strict=True
        )
    ]
    values = np.concatenate(relevance)
    about: dict[str, Any] = {"scale": scale, "legend": legend, "values": values}
    return grid_svg(pictures, len(pictures), title, subtitle=subtitle, **about)


def aligned(mol: Mol, reference: Mol, mapping: NDArray[np.integer]) -> Mol:
    """Return a copy of `mol` laid out like `reference` where atoms correspond.

    Corresponding atoms get the coordinates of the reference, and the rest is laid out around them.
    If that makes the picture too crowded, or draws a double bond as its other isomer, the molecule
    gets an independent layout, rotated and mirrored to bring corresponding atoms as close together
    as possible.

    Args:
        reference: a molecule with 2D coordinates.
        mapping: the corresponding atoms of `reference` and `mol` (M, 2).
    """
    return _laid_out_like(laid_out(mol), reference, mapping)


def _laid_out_like(free: Mol, reference: Mol, mapping: NDArray[np.integer]) -> Mol:
    """Do what `aligned` does with a molecule whose independent layout is made."""
    from rdkit import Chem
    from rdkit.Chem import rdDepictor

    fixed = Chem.Mol(free)
    rdDepictor.GenerateDepictionMatching2DStructure(
        fixed, reference, [(int(i), int(j)) for i, j in mapping]
    )
    if shows_double_bonds(fixed) and flaws(fixed) <= max(flaws(free), flaws(reference)):
        return fixed
    return _brought_close(free, reference, mapping)


def _brought_close(free: Mol, reference: Mol, mapping: NDArray[np.integer]) -> Mol:
    """Rotate and mirror a layout to bring corresponding atoms as close together as possible.

    This is the orthogonal Procrustes problem (Schoenemann 1966).
    """
    points, there = _points(free), _points(reference)[mapping[:, 0]]
    here = points[mapping[:, 1]]
    u, _, v = np.linalg.svd((here - here.mean(0)).T @ (there - there.mean(0)))
    points = (points - here.mean(0)) @ (u @ v) + there.mean(0)
    conformer = free.GetConformer()
    for atom, (x, y) in enumerate(points.tolist()):
        conformer.SetAtomPosition(atom, (x, y, 0.0))
    return free


SMALLEST_CORE = 6  # atoms of a core by which a series is aligned
_LEAST_CORE = 1 / 3  # of the median molecule of a series, unless it is a common scaffold
_MOST_SEARCHED = 100  # molecules in which the maximum common core is searched
_MOST_SCAFFOLDS = 20


def aligned_series(mols: Sequence[Mol], core: str | None = None) -> list[Mol]:
    """Return copies of molecules with 2D coordinates, in which a common core is drawn alike.

    The core is the maximum common substructure. If it is small, molecules with one scaffold
    (Bemis 1996) are drawn alike. Molecules that come with 2D coordinates keep these.

    Args:
        mols: the molecules.
        core: the SMARTS of the core. Molecules that have it are aligned even if they come with
            coordinates.

    Raises ValueError if the core cannot be read, or no molecule has it.
    """
    from rdkit import Chem

    placed: list[Any] = [laid_out(mol, keep=True) for mol in mols]
    kept = [core is None and has_layout(mol) for mol in mols]
    if core is None:
        patterns = _cores(placed)
    elif (pattern := Chem.MolFromSmarts(core)) is None or not pattern.GetNumAtoms():
        raise ValueError(f"{core[:80]!r} is not a core that RDKit can read.")
    else:
        patterns = [pattern]
    open_places = set(range(len(mols)))
    for pattern in patterns:
        members = [k for k in sorted(open_places) if placed[k].HasSubstructMatch(pattern)]
        open_places -= set(members)
        if core is not None and not members:
            raise ValueError(f"no molecule has the core {core[:80]}.")
        first = next((k for k in members if has_layout(mols[k])), members[0] if members else 0)
        there = placed[first].GetSubstructMatch(pattern)
        for k in members:
            if k != first and not kept[k]:
                placed[k] = _with_core_at(placed[k], pattern, placed[first], there)
    return placed


def _with_core_at(mol: Mol, pattern: Mol, reference: Mol, there: Sequence[int]) -> Mol:
    """Return a copy with its core where that of the reference is, as far as `aligned` can.

    Of several ways to match a symmetric core, that with most substituents in the same places wins.
    """

    def alike(here: Iterable[Any]) -> int:
        return sum(
            mol.GetAtomWithIdx(i).GetDegree() == reference.GetAtomWithIdx(j).GetDegree()
            for i, j in zip(here, there, strict=True)
        )

    ways = mol.GetSubstructMatches(pattern, uniquify=False, maxMatches=64)
    return _laid_out_like(mol, reference, np.transpose([there, max(ways, key=alike)]))


def _cores(mols: Sequence[Mol]) -> list[Mol]:
    """Return the patterns of the maximum common core, or of the scaffolds of three or more."""
    from rdkit import Chem
    from rdkit.Chem import rdFMCS

    if len(mols) < 2:
        return []
    some = list(mols[:_MOST_SEARCHED])
    alike: dict[str, Any] = {"ringMatchesRingOnly": True, "completeRingsOnly": True}
    search = rdFMCS.FindMCS(some, timeout=10, bondCompare=rdFMCS.BondCompare.CompareOrder, **alike)
    least = _LEAST_CORE * sorted(mol.GetNumHeavyAtoms() for mol in some)[len(some) // 2]
    if search.numAtoms >= max(SMALLEST_CORE, least) and not search.canceled:
        return [Chem.MolFromSmarts(search.smartsString)]
    common = Counter(filter(None, map(scaffold, mols))).most_common(_MOST_SCAFFOLDS)
    patterns = [(text, mol) for text, _ in common if (mol := Chem.MolFromSmiles(text))]
    members = {smiles: sum(m.HasSubstructMatch(p) for m in mols) for smiles, p in patterns}
    # a large core says more than a single ring that many molecules have
    patterns.sort(key=lambda each: (-members[each[0]] * (each[1].GetNumAtoms() - 5), each[0]))
    return [pattern for smiles, pattern in patterns if members[smiles] > 2]


def scaffold(mol: Mol) -> str:
    """Return the SMILES of a molecule's ring systems and what links them (Bemis 1996)."""
    from rdkit.Chem.Scaffolds import MurckoScaffold

    try:
        return str(MurckoScaffold.MurckoScaffoldSmiles(mol=mol))
    except (ValueError, RuntimeError):  # RDKit cannot make one of each molecule
        return ""


def _points(mol: Mol) -> FloatArray:
    return np.asarray(mol.GetConformer().GetPositions())[:, :2]
