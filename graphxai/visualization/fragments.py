"""Draw the parts of molecules and graphs, coloured by their summed relevance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np

from .color import (
    FloatArray,
    PictureKeywords,
    PictureOptions,
    Scale,
    finite,
    signed_alike,
    with_picture_options,
)
from .frame import GREY, MARGIN, SMALLEST_ROOM, document, frame, hatching, too_small
from .graph import PlainGraph, laid_out, lines_between, lines_svg, nodes_svg, nodes_to_draw
from .layout import bonded, free_place
from .molecule import structure
from .text import draw_text, escape, fit_text, number, text_width

if TYPE_CHECKING:
    from rdkit.Chem import Mol

Listed = tuple[str, Sequence[int], float]  # the name, the atoms, and the relevance
Interactions = Mapping[tuple[int, int], float]  # by the places of two fragments in their sequence

WIDE = PictureOptions(width=840)  # the list of parts takes 250 pixels of it

_RADIUS, _BAND = 0.36, 0.46  # an atom's disc and the width of a bond's band, in bond lengths
_AREA = 1.45  # the radius of the area around a node of a graph, in radii of the node
_EDGE = 1.4  # the outline around a fragment, in pixels
_OUTLINE = "#7a7a7a"
_LIST_WIDTH = 250.0  # in pixels
_ROW = 24.0  # the height of a row of the list, in pixels
_NOTE = 14.0  # and of a note below it
_FREE = 22.0  # the space around a single fragment, in pixels
_FRAGMENT_SIZE = (180.0, 120.0)  # the width and height of its picture, in pixels
_WIDEST, _BEND = 0.3, 0.18  # the widest arc, in bond lengths, and how far arcs bend
_TAG = 8.5  # the radius of the circle around a number, in pixels


@with_picture_options(WIDE)
def fragments_svg(
    mol: Mol,
    fragments: Sequence[Listed],
    *,
    interactions: Interactions | None = None,
    notes: Sequence[str] = (),
    **options: Unpack[PictureKeywords],
) -> str:
    """Draw a molecule with filled and outlined fragments as SVG, and list them with numbers.

    Args:
        mol: any RDKit molecule.
        fragments: the name, atom indices and summed relevance of each fragment. No atom is in two
            fragments.
        interactions: values of pairs of fragments, by their places in the sequence. Each is an arc
            between the numbers of the two, on the scale of the fragments.
        notes: a line below each fragment of the list, or "".
        options: the words, size and colours of the picture.

    Raises:
        ValueError: a sum or an interaction is not finite, a pair is not two different fragments of
            the sequence, or the picture is too small.
    """
    arcs = checked_interactions(interactions, len(fragments))

    def drawn(room: tuple[float, float], colors: Sequence[str], scale: Scale) -> str:
        drawing, points, bond = structure(mol, room)
        areas = [
            _area(mol, atoms, points, bond, color, f"{name}: {scale.text(value)}", value < 0)
            for (name, atoms, value), color in zip(fragments, colors, strict=True)
        ]
        ends = bonded(mol)
        places = _places(
            [atoms for _, atoms, _ in fragments],
            points,
            bond,
            room,
            middles=(points[ends[:, 0]] + points[ends[:, 1]]) / 2,
            rings=[set(ring) for ring in mol.GetRingInfo().AtomRings()] if len(points) else [],
        )
        return (
            f'<g class="fragments">{"".join(areas)}</g>'
            f'<g class="structure" pointer-events="none">{drawing}</g>'
            f"{_arcs(arcs, places, bond, scale)}{_tags(places)}"
        )

    title = "Fragments coloured by relevance"
    between = {f"{first + 1} and {second + 1}": value for first, second, value in arcs}
    picture = WIDE.changed(**options)
    return parts_page(fragments, drawn, title, picture, further=between, notes=notes)


@with_picture_options(WIDE)
def graph_parts_svg(
    graph: PlainGraph,
    parts: Sequence[Listed],
    *,
    labels: bool = True,
    notes: Sequence[str] = (),
    **options: Unpack[PictureKeywords],
) -> str:
    """Draw a graph with filled and outlined parts as SVG, and list them with numbers.

    A graph of more than 150 nodes shows those of the parts with the largest |relevance|.

    Args:
        graph: the graph.
        parts: the name, nodes and summed relevance of each part. No node is in two parts.
        labels: whether to write the label of each node on it.
        notes: a line below each part of the list, or "".
        options: the words, size and colours of the picture.

    Raises:
        ValueError: a sum is not finite, or the picture is too small.
    """
    strength = np.zeros(1 + max((node for _, nodes, _ in parts for node in nodes), default=-1))
    for _, nodes, relevance in parts:
        strength[list(nodes)] = abs(relevance)
    shown = nodes_to_draw(strength, graph.explained)

    def drawn(room: tuple[float, float], colors: Sequence[str], scale: Scale) -> str:
        layout = laid_out(graph, shown, room)
        size, points = (_AREA * layout.radius, 0.9 * layout.radius), layout.points
        members, areas = [], []
        for (name, nodes, relevance), color in zip(parts, colors, strict=True):
            place = {node: layout.place[node] for node in nodes if node in layout.place}
            members.append(list(place.values()))
            lines, note = sorted(lines_between(graph, place)), f"{name}: {scale.text(relevance)}"
            areas.append(_shapes(points, members[-1], lines, size, color, note, relevance < 0))
        plain = nodes_svg(
            graph, np.zeros(len(strength)), layout, Scale(1.0), graph.explained, labels, _AREA + 0.2
        )
        # Nodes are circles with numbers, too, but light ones.
        tags = _tags(_places(members, points, 4 * layout.radius, room), dark=True)
        return f'<g class="parts">{"".join(areas)}</g>{lines_svg(graph, layout)}{plain}{tags}'

    title = "Parts of a graph coloured by relevance"
    return parts_page(parts, drawn, title, WIDE.changed(**options), dark_tags=True, notes=notes)


def parts_page(
    parts: Sequence[Listed],
    drawn: Callable[[tuple[float, float], Sequence[str], Scale], str],
    untitled: str,
    picture: PictureOptions,
    *,
    dark_tags: bool = False,
    further: Mapping[str, float] = {},
    notes: Sequence[str] = (),
) -> str:
    """Draw what has parts as SVG, beside a numbered list of the parts.

    Args:
        parts: the name, members and summed relevance of each part.
        drawn: draws them in a room of pixels, given the colour of each part and the scale.
        untitled: the title for screen readers if there is no other.
        dark_tags: whether the numbers of the parts are in dark circles.
        further: other numbers that are drawn on the same scale, by name.
        notes: a line below each part of the list, or "".
    """
    sums = finite([relevance for *_, relevance in parts])
    values = np.concatenate([sums, finite(list(further.values()))])
    scale = picture.scale_for(values)
    framed = frame(picture)
    size = (picture.width, picture.height)
    room = (framed.room[0] - _LIST_WIDTH - MARGIN, framed.room[1] - MARGIN / 2)
    if min(room) < SMALLEST_ROOM:
        least = (SMALLEST_ROOM + size[0] - room[0], SMALLEST_ROOM + size[1] - room[1])
        raise too_small(size, least)
    listed = _list(parts, scale, (room[0] + MARGIN, 0.0), room[1] + MARGIN, dark_tags, notes)
    drawing = drawn(room, scale.hex(sums), scale) + listed
    notes = notes or [""] * len(parts)
    texts = [
        f"{name}: {scale.text(value)}{note and f' ({note})'}"
        for (name, _, value), note in zip(parts, notes, strict=True)
    ]
    about = "; ".join(texts + [f"{name}: {scale.text(value)}" for name, value in further.items()])
    return framed.svg(drawing, scale, values, untitled, f"{about}.")


def fragment_svg(smiles: str, relevance: float, *, scale: Scale | float | None = None) -> str:
    """Draw one fragment as a small SVG in the colour of its relevance.

    Args:
        smiles: the fragment, with `*` where it is bonded to the rest of the molecule.
        relevance: the fragment's summed relevance.
        scale: the colours, which the pictures of a table share. By default the colour is full.

    Raises ValueError if the SMILES cannot be read or the relevance is not finite.
    """
    from rdkit import Chem

    relaxed = Chem.SmilesParserParams()
    relaxed.sanitize = False  # type: ignore[assignment]
    mol = Chem.MolFromSmiles(smiles) or Chem.MolFromSmiles(smiles, relaxed)
    if mol is None:
        raise ValueError(f"{smiles!r} is not a fragment that RDKit can read.")
    scale = Scale.chosen(scale, [relevance])
    color = scale.hex(finite(relevance))[0]
    width, height = _FRAGMENT_SIZE
    room = (width - 2 * _FREE, height - 2 * _FREE)
    drawing, points, bond = structure(mol, room)
    bonded_atoms = [atom.GetIdx() for atom in mol.GetAtoms() if atom.GetAtomicNum()]
    note = f"{smiles}: {scale.text(relevance)}"
    area = _area(mol, bonded_atoms, points, bond, color, note, relevance < 0)
    body = (
        f'<g transform="translate({number(_FREE)} {number(_FREE)})">{area}'
        f'<g class="structure" pointer-events="none">{drawing}</g></g>'
    )
    return document(width, height, body, title=smiles, description=note)


def _area(
    mol: Mol,
    atoms: Sequence[int],
    points: FloatArray,
    bond_px: float,
    color: str,
    note: str,
    hatched: bool,
) -> str:
    inside = set(atoms)
    rings = [ring for ring in mol.GetRingInfo().AtomRings() if inside.issuperset(ring)]
    bonds = [bond for bond in bonded(mol).tolist() if inside.issuperset(bond)]
    size = (bond_px * _RADIUS, bond_px * _BAND)
    return _shapes(points, sorted(inside), bonds, size, color, note, hatched, rings)


def _shapes(
    points: FloatArray,
    members: Sequence[int],
    lines: Sequence[tuple[int, int]],
    size: tuple[float, float],
    color: str,
    note: str,
    hatched: bool,
    rings: Sequence[Sequence[int]] = (),
) -> str:
    """Draw a part as discs for its members, bands for the lines between them, and filled rings.

    The shapes are drawn twice, first a little larger as the outline, then in their colour. The size
    is the radius of a disc and the width of a band, in pixels.
    """
    inside = "".join(f"M{'L'.join(_at(points[i]) for i in ring)}Z" for ring in rings)
    path = "".join(f"M{_at(points[i])}L{_at(points[j])}" for i, j in lines)

    def shape(fill: str, edge: float) -> str:
        radius, width = number(size[0] + edge), number(size[1] + 2 * edge)
        discs = "".join(
            f'<circle cx="{number(points[i][0])}" cy="{number(points[i][1])}" r="{radius}"/>'
            for i in members
        )
        bands = f'<path d="{path}" fill="none" stroke="{fill}" stroke-width="{width}"/>'
        filled = f'<path d="{inside}"/>' if inside else ""
        return f'<g fill="{fill}">{filled}{bands if path else ""}{discs}</g>'

    lines_across = hatching(points[list(members)], size[0]) if hatched else ""
    drawn = f"{shape(_OUTLINE, _EDGE)}{shape(color, 0)}{lines_across}"
    return f"<g><title>{escape(note)}</title>{drawn}</g>"


def _at(point: FloatArray) -> str:
    return f"{number(point[0])} {number(point[1])}"


def _places(
    parts: Iterable[Sequence[int]],
    points: FloatArray,
    size: float,
    room: tuple[float, float],
    *,
    middles: Iterable[FloatArray] = (),
    rings: Sequence[set[int]] = (),
) -> dict[int, tuple[float, float]]:
    """Return a place for the number of each part that has members, where there is most room.

    The `middles` of bonds are taken, too. The centre of a ring is as good as a place around.
    """
    taken = [*points, *middles]
    places = {}
    for rank, members in enumerate(parts, start=1):
        if len(members):
            centres = [points[sorted(ring)].mean(0) for ring in rings if ring.issubset(members)]
            at = free_place(points[list(members)], centres, np.array(taken), size, room, _TAG)
            taken.append(at)
            places[rank] = (float(at[0]), float(at[1]))
    return places


def _tags(places: Mapping[int, tuple[float, float]], dark: bool = False) -> str:
    return "".join(_numbered_tag(rank, x, y, dark) for rank, (x, y) in places.items())


def checked_interactions(
    interactions: Interactions | None, count: int
) -> list[tuple[int, int, float]]:
    """Return the pairs of `count` fragments with their interactions, the weakest first.

    Raises TypeError if they are no mapping, and ValueError for a value that is not finite or a pair
    that is not two different fragments.
    """
    if interactions is None:
        return []
    if not isinstance(interactions, Mapping):
        raise TypeError("interactions are values of pairs, such as {(0, 1): 0.5} of the first two.")
    finite(list(interactions.values()))
    for pair in interactions:
        if len(set(pair)) != 2 or not all(0 <= place < count for place in pair):
            raise ValueError(f"{pair} is no pair of the {count} fragments, 0 to {count - 1}.")
    pairs = [(first, second, value) for (first, second), value in interactions.items()]
    return sorted(pairs, key=lambda pair: abs(pair[2]))


def _arcs(
    interactions: Sequence[tuple[int, int, float]],
    places: Mapping[int, tuple[float, float]],
    bond_px: float,
    scale: Scale,
) -> str:
    """Draw the interactions as arcs between the places of the numbers, wider for larger ones."""
    parts = []
    for first, second, value in interactions:
        start, end = np.array(places[first + 1]), np.array(places[second + 1])
        bend = (start + end) / 2 + _BEND * (end - start)[::-1] * (1, -1)
        path = "M{} {}Q{} {} {} {}".format(*map(number, (*start, *bend, *end)))
        width = max(1.0, _WIDEST * bond_px * min(1.0, abs(value) / scale.limit))
        words = escape(f"{first + 1} and {second + 1}: {scale.text(value)}")
        parts.append(
            f'<path d="{path}" stroke="{_OUTLINE}" stroke-width="{number(width + 2)}"/>'
            f'<path d="{path}" stroke="{scale.hex(value)[0]}" stroke-width="{number(width)}">'
            f"<title>{words}</title></path>"
        )
    return f'<g class="interactions" fill="none">{"".join(parts)}</g>' if parts else ""


def _numbered_tag(place: int, x: float, y: float, dark: bool = False) -> str:
    ink, fill = ("#ffffff", "#333333") if dark else ("#000000", "#ffffff")
    text = draw_text(str(place), x, y + 3.6, 10, anchor="middle", bold=True, color=ink)
    return (
        f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(_TAG)}" fill="{fill}"'
        f' stroke="{_OUTLINE}" stroke-width="1"/>{text}'
    )


def _list(
    fragments: Sequence[Listed],
    scale: Scale,
    at: tuple[float, float],
    height: float,
    dark: bool,
    notes: Sequence[str],
) -> str:
    """Draw the number, colour, name and sum of each fragment in a list.

    If there is not enough room, the weakest fragments share a row.
    """
    noted = any(notes)
    step = _ROW + _NOTE if noted else _ROW
    rows = max(int(height // step), 2)
    room = len(fragments) if len(fragments) <= rows else rows - 1
    strongest = sorted(range(len(fragments)), key=lambda k: -abs(fragments[k][2]))
    sums = [relevance for *_, relevance in fragments]
    hidden = strongest[room:]
    values = signed_alike([*sums, sum(sums[k] for k in hidden)])
    values = [text.removeprefix("+") for text in values] if scale.one_sided else values
    colors = scale.hex(sums)
    parts, left, y = [], at[0], at[1] + _ROW / 2
    for k in sorted(strongest[:room]):
        parts.append(_numbered_tag(k + 1, left + _TAG, y, dark))
        parts.append(
            f'<rect x="{number(left + 24)}" y="{number(y - 7)}" width="14" height="14" rx="3"'
            f' fill="{colors[k]}" stroke="{_OUTLINE}" stroke-width="1"/>'
        )
        parts.append(_row_text(fragments[k][0], values[k], left + 46, y))
        if noted:
            text, size = fit_text(notes[k], 11, _LIST_WIDTH - 46, smallest=8)
            parts.append(draw_text(text, left + 46, y + 18, size, color=GREY))
        y += step
    if hidden:
        parts.append(_row_text(f"and {len(hidden)} weaker ones", values[-1], left + 46, y))
    return f'<g class="list">{"".join(parts)}</g>'


def _row_text(name: str, value: str, x: float, y: float) -> str:
    room = _LIST_WIDTH - 46 - text_width(value, 13) - 10
    text, size = fit_text(name, 13, room, smallest=10)
    return draw_text(text, x, y + 4.5, size) + draw_text(
        value, x + _LIST_WIDTH - 46, y + 4.5, 13, anchor="end", color=GREY
    )
