"""Draw a graph that is no molecule, with its nodes and edges coloured by relevance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .color import FloatArray, PictureKeywords, PictureOptions, Scale, finite, with_picture_options
from .frame import DASHED, LEAST_HATCHED, OUTLINE, digest, frame, hatching, ink_on, relevance_of
from .layout import laid_out_graph
from .text import draw_text, escape, fit_text, number, text_width

MOST_NODES = 150  # how many nodes a picture shows, which are the most relevant of a larger graph
_LARGEST, _SMALLEST = 17.0, 3.5  # the limits of a node's radius, in pixels
ARC = 0.28  # how far an arc bends, as a part of the distance between its ends
_VISIBLE = 0.03  # below this part of the limit, relevance gives an edge no colour


@dataclass(frozen=True, eq=False)
class PlainGraph:
    """The nodes and edges of a graph, as its picture shows them.

    Args:
        edges: the two nodes of each edge (2, E). An edge may be there in both directions.
        labels: the text at each node. By default it is the node's number, counted from 0.
        explained: the node or pair that the output belongs to. It is empty for the whole graph.
    """

    edges: NDArray[np.integer]
    labels: tuple[str, ...] = ()
    explained: tuple[int, ...] = ()


@with_picture_options()
def graph_svg(
    graph: PlainGraph,
    relevance: ArrayLike,
    *,
    edge_relevance: ArrayLike | None = None,
    labels: bool = True,
    outlined: Collection[int] = (),
    pale: ArrayLike = (),
    **options: Unpack[PictureKeywords],
) -> str:
    """Draw a graph as SVG, with its nodes coloured by signed relevance.

    If edges were explained, an edge has the colour of its relevance. Otherwise its colour changes
    from that of one end to that of the other. The two directions of an edge are one line, with the
    sum of their relevance. If the output belongs to a node or pair, these nodes have a dark ring.
    If a graph has more than 150 nodes, the 150 with the largest |relevance| are drawn, and the note
    says so.

    Args:
        graph: the graph to draw.
        relevance: one number per node (N,).
        edge_relevance: one number per edge (E,), if edges were explained.
        labels: whether to write the label of each node on it. Long labels go beside the node if
            there is room.
        outlined: further nodes with a dark ring.
        pale: True for each node with a third of its colour and a dashed edge (N,), by default none.
        options: the words, size and colours of the picture.

    Raises:
        ValueError: `relevance` does not have one finite number per node, `edge_relevance` does not
            have one per edge, the graph has no nodes, or the picture is too small.
    """
    picture = PictureOptions(**options)
    values = finite(relevance)
    of_edges = np.zeros(0) if edge_relevance is None else finite(edge_relevance)
    if values.ndim != 1 or (edge_relevance is not None and of_edges.shape != graph.edges.shape[1:]):
        raise ValueError("relevance must have one number per node, edge_relevance one per edge.")
    scale = picture.scale_for(values, of_edges)
    ringed, shades = {*graph.explained, *outlined}, scale.shades(values, pale)

    def colored(layout: GraphLayout) -> str:
        of_lines = None if edge_relevance is None else of_edges
        lines = _lines(graph.edges, layout.place, shades, of_lines)
        return _edges_svg(lines, layout.points, layout.radius, scale) + nodes_svg(
            graph, values, layout, scale, ringed, labels, shades=shades
        )

    return framed_graph(
        graph,
        colored,
        np.concatenate([values, of_edges]),
        scale,
        picture,
        strength=np.abs(values),
        about=relevance_of("nodes", values, scale),
        ringed=ringed,
    )


@dataclass(frozen=True, eq=False)
class GraphLayout:
    """Where the nodes of a picture are.

    Args:
        shown: the numbers of the nodes that are drawn (n,).
        points: the places of these nodes (n, 2), in pixels.
        radius: the radius of a node in pixels.
    """

    shown: NDArray[np.int_]
    points: FloatArray
    radius: float

    @property
    def place(self) -> dict[int, int]:
        """The index of each node among those that are drawn."""
        return {int(node): k for k, node in enumerate(self.shown)}


def framed_graph(
    graph: PlainGraph,
    draw: Callable[[GraphLayout], str],
    values: FloatArray,
    scale: Scale,
    picture: PictureOptions,
    *,
    strength: FloatArray,
    about: str,
    ringed: Collection[int] = (),
    arcs: Collection[tuple[int, int]] = (),
) -> str:
    """Draw a graph as SVG by `draw`, with heading and colour bar.

    Args:
        draw: draws the graph, given the layout of its nodes.
        values: the relevances in the picture, for the colour bar.
        strength (N,): decides which nodes of a large graph are drawn, those with the largest.
        about: what is drawn, as text for screen readers.
        ringed: the nodes that are drawn in any case.
        arcs: the nodes between which there are arcs, for which there has to be room around.

    Raises ValueError if the picture is too small, or the graph has no nodes.
    """
    if not len(strength):
        raise ValueError("the graph has no nodes that could be drawn.")
    shown = nodes_to_draw(strength, ringed)
    if len(shown) < len(strength):
        cut = f"{len(shown)} of {len(strength)} nodes, with the largest |relevance|"
        picture = replace(picture, note=f"{picture.note}; {cut}" if picture.note else cut)
    surroundings = frame(picture)
    drawn = draw(laid_out(graph, shown, surroundings.room, arcs))
    return surroundings.svg(drawn, scale, values, "Graph coloured by relevance", about)


def nodes_to_draw(strength: FloatArray, always: Collection[int]) -> NDArray[np.int_]:
    """Return the nodes to draw, in ascending order."""
    if len(strength) <= MOST_NODES:
        return np.arange(len(strength))
    size = strength.copy()
    size[list(always)] = np.inf
    return np.sort(np.argsort(-size, kind="stable")[:MOST_NODES])


def _lines(
    edges: NDArray[np.integer],
    place: dict[int, int],
    values: FloatArray,
    of_edges: FloatArray | None,
) -> dict[tuple[int, int], tuple[float, float]]:
    """Return the relevance at both ends of each line between two places, leaving out self loops."""
    lines: dict[tuple[int, int], tuple[float, float]] = {}
    for k, (i, j) in enumerate(edges.T.tolist()):
        if i == j or i not in place or j not in place:
            continue
        (a, i), (b, j) = sorted([(place[i], i), (place[j], j)])
        if of_edges is None:
            lines[a, b] = float(values[i]), float(values[j])
        else:
            whole = lines.get((a, b), (0.0, 0.0))[0] + float(of_edges[k])
            lines[a, b] = whole, whole
    return lines


def lines_between(
    graph: PlainGraph, place: dict[int, int]
) -> dict[tuple[int, int], tuple[float, float]]:
    """Return the lines between the places of some nodes, without relevance."""
    return _lines(graph.edges, place, np.zeros(max(place, default=0) + 1), None)


def laid_out(
    graph: PlainGraph,
    shown: NDArray[np.int_],
    room: tuple[float, float],
    arcs: Collection[tuple[int, int]] = (),
) -> GraphLayout:
    """Lay out the nodes in a room of pixels, with a radius that depends on their places.

    Around them there is room for arcs between these nodes.
    """
    place = {int(node): k for k, node in enumerate(shown)}
    lines = lines_between(graph, place)
    points = laid_out_graph(len(shown), tuple(lines), room[0] / room[1])
    spans = [points[place[i]] - points[place[j]] for i, j in arcs if i in place and j in place]
    bulge = ARC * float(np.linalg.norm(spans, axis=1).max()) if spans else 0.0
    radius = _LARGEST
    # the places need a margin of one radius, and the radius depends on the places
    for _ in range(2):
        margin = radius + 12
        extent = np.maximum(np.ptp(points, axis=0) + bulge, 1e-9)
        free = np.maximum(np.array(room) - 2 * margin, 10.0)
        zoom = float((free / extent).min()) if len(shown) > 1 else 1.0
        middle = (points.max(0) + points.min(0)) / 2
        placed = (points - middle) * zoom + np.array(room) / 2
        radius = float(np.clip(_gap(placed) * 0.36, _SMALLEST, _LARGEST))
    return GraphLayout(shown, placed, radius)


def _gap(points: FloatArray) -> float:
    """Return how far nodes are from their nearest neighbour, at the 10 % quantile."""
    if len(points) < 2:
        return np.inf
    apart = np.linalg.norm(points[:, None] - points[None], axis=-1)
    np.fill_diagonal(apart, np.inf)
    return float(np.quantile(apart.min(1), 0.1))


def _edges_svg(
    lines: dict[tuple[int, int], tuple[float, float]],
    points: FloatArray,
    radius: float,
    scale: Scale,
) -> str:
    """Draw the edges as thin grey lines, on top of bands with the colours of their relevance."""
    thin, bands, gradients = [], [], []
    key = "g" + digest(scale, points.round(3).tobytes(), sorted(lines.items()))
    for number_of, ((i, j), ends) in enumerate(lines.items()):
        (x1, y1), (x2, y2) = points[i], points[j]
        path = f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}"
        thin.append(f'<path d="{path}" stroke="#a6a6a6" stroke-width="1"/>')
        if max(map(abs, ends)) < _VISIBLE * scale.limit:
            continue
        name = f"{key}-{number_of}"
        gradients.append(
            f'<linearGradient id="{name}" gradientUnits="userSpaceOnUse" x1="{number(x1)}"'
            f' y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}">{_stops(ends, scale)}'
            "</linearGradient>"
        )
        bands.append(f'<path d="{_band(points[i], points[j], radius)}" fill="url(#{name})"/>')
    return (
        f'<defs>{"".join(gradients)}</defs><g class="edges">{"".join(bands)}'
        f'<g fill="none">{"".join(thin)}</g></g>'
    )


def _stops(ends: tuple[float, float], scale: Scale) -> str:
    """Return a gradient from one end to the other, which is clear where there is no relevance."""
    values = (ends[0], sum(ends) / 2, ends[1])
    stops = []
    for offset, value, color in zip(("0", "0.5", "1"), values, scale.hex(values), strict=True):
        clear = ' stop-opacity="0"' if abs(value) < _VISIBLE * scale.limit else ""
        stops.append(f'<stop offset="{offset}" stop-color="{color}"{clear}/>')
    return "".join(stops)


def _band(start: FloatArray, end: FloatArray, radius: float) -> str:
    """Return a band along an edge, because renderers drop gradients on lines without an area."""
    along = end - start
    aside = along[::-1] * (-1, 1) / (np.linalg.norm(along) or 1.0) * max(1.2, radius * 0.26)
    corners = [start + aside, end + aside, end - aside, start - aside]
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in corners) + "Z"


def lines_svg(graph: PlainGraph, layout: GraphLayout) -> str:
    """Draw the edges as thin grey lines."""
    lines = lines_between(graph, layout.place)
    return _edges_svg(lines, layout.points, layout.radius, Scale(1.0))


def nodes_svg(
    graph: PlainGraph,
    values: FloatArray,
    layout: GraphLayout,
    scale: Scale,
    ringed: Collection[int],
    labels: bool,
    around: float = 1.0,
    shades: FloatArray | None = None,
) -> str:
    """Draw the nodes with their labels, which belong above the edges.

    The colours are those of `shades`, by default of the values. A label beside its node keeps a
    distance of `around` radii from the node's middle.
    """
    shown, points, radius = layout.shown, layout.points, layout.radius
    shades = values if shades is None else shades
    discs = []
    names = [graph.labels[node] if graph.labels else str(node) for node in shown.tolist()]
    colors = scale.hex(shades[shown])
    for node, label, (x, y), color in zip(shown.tolist(), names, points, colors, strict=True):
        ring = max(1.8, radius * 0.2) if node in ringed else 0.8
        edge = OUTLINE if node in ringed else "#777777"
        dashes = DASHED if shades[node] != values[node] else ""
        discs.append(
            f'<circle data-node="{node}" cx="{number(x)}" cy="{number(y)}"'
            f' r="{number(radius)}" fill="{color}" stroke="{edge}" stroke-width="{number(ring)}"'
            f"{dashes}><title>{escape(f'{label}: {scale.text(values[node])}')}</title></circle>"
        )
    discs.append(hatching(points[shades[shown] < -LEAST_HATCHED * scale.limit], radius))
    words = ""
    if labels:
        first = [node in ringed for node in shown.tolist()]
        strength = np.where(first, np.inf, np.abs(values[shown]))
        order = np.argsort(-strength, kind="stable").tolist()
        words = _labels_svg(names, order, points, radius, colors, around)
    return f'<g class="nodes">{"".join(discs)}</g><g pointer-events="none">{words}</g>'


def _labels_svg(
    names: Sequence[str],
    order: Sequence[int],
    points: FloatArray,
    radius: float,
    colors: Sequence[str],
    around: float,
) -> str:
    """Write the names on their nodes, or below or above them where there is room.

    The nodes are in `order`, the most important first. A name without room is only in the tooltip.
    """
    size, words = min(12.0, max(7.0, radius * 0.95)), []
    away = around * radius
    taken = [(x - away, y - away, x + away, y + away) for x, y in points.tolist()]
    for k in order:
        x, y = points[k].tolist()
        if text_width(names[k], size) <= 1.9 * radius:
            ink = ink_on(colors[k])
            words.append(draw_text(names[k], x, y + size * 0.36, size, anchor="middle", color=ink))
            continue
        text, fitted = fit_text(names[k], min(max(size, 9.0), 10.0), 90.0, smallest=8.0)
        half = text_width(text, fitted) / 2
        for base in (y + away + fitted, y - away - 0.3 * fitted):
            box = (x - half, base - 0.75 * fitted, x + half, base + 0.2 * fitted)
            if not any(_overlap(box, other) for other in taken):
                taken.append(box)
                words.append(draw_text(text, x, base, fitted, anchor="middle", color="#000000"))
                break
    return "".join(words)


def _overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    """Return whether two boxes (left, top, right, bottom) overlap."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
