"""Draw the parts of a graph that is no molecule, coloured by their summed relevance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from .color import Scale
from .fragments import WIDE, Listed, free_place, numbered_tag, parts_page
from .graph import GraphLayout, PlainGraph, laid_out, lines_svg, nodes_svg, nodes_to_draw
from .picture import PictureKeywords, with_picture_options
from .text import escape, number

_EDGE = 1.4  # the outline around a part, in pixels
_AREA = 1.45  # the radius of the area around a node, in radii of the node
_OUTLINE = "#7a7a7a"


@with_picture_options(WIDE)
def graph_parts_svg(
    graph: PlainGraph,
    parts: Sequence[Listed],
    *,
    labels: bool = True,
    **options: Unpack[PictureKeywords],
) -> str:
    """Draw a graph with filled and outlined parts as SVG, and list them with numbers.

    A graph of more than 150 nodes shows those of the parts with the largest |relevance|.

    Args:
        graph: the graph.
        parts: the name, nodes and summed relevance of each part. No node is in two parts.
        labels: whether to write the label of each node on it.
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
        areas = [
            _area(graph, nodes, layout, color, f"{name}: {scale.text(relevance)}")
            for (name, nodes, relevance), color in zip(parts, colors, strict=True)
        ]
        plain = nodes_svg(
            graph, np.zeros(len(strength)), layout, Scale(1.0), graph.explained, labels, _AREA + 0.2
        )
        tags = _tags([nodes for _, nodes, _ in parts], layout, room)
        return f'<g class="parts">{"".join(areas)}</g>{lines_svg(graph, layout)}{plain}{tags}'

    title = "Parts of a graph coloured by relevance"
    return parts_page(parts, drawn, title, WIDE.changed(**options), dark_tags=True)


def _area(
    graph: PlainGraph, nodes: Sequence[int], layout: GraphLayout, color: str, note: str
) -> str:
    """Draw a part as discs for nodes and bands for the edges between them.

    The shapes are drawn twice, first a little larger as the outline, then in their colour.
    """
    place = {node: layout.place[node] for node in nodes if node in layout.place}
    points = layout.points
    pairs = {(i, j) for i, j in graph.edges.T.tolist() if i in place and j in place and i < j}
    pairs |= {(j, i) for i, j in graph.edges.T.tolist() if i in place and j in place and j < i}
    lines = "".join(f"M{_at(points[place[i]])}L{_at(points[place[j]])}" for i, j in sorted(pairs))

    def shape(fill: str, edge: float) -> str:
        radius = number(_AREA * layout.radius + edge)
        discs = "".join(
            f'<circle cx="{number(points[k][0])}" cy="{number(points[k][1])}" r="{radius}"/>'
            for k in place.values()
        )
        band = number(0.9 * layout.radius + 2 * edge)
        bands = f'<path d="{lines}" fill="none" stroke="{fill}" stroke-width="{band}"/>'
        return f'<g fill="{fill}">{bands if lines else ""}{discs}</g>'

    return f"<g><title>{escape(note)}</title>{shape(_OUTLINE, _EDGE)}{shape(color, 0)}</g>"


def _at(point: NDArray[np.float64]) -> str:
    return f"{number(point[0])} {number(point[1])}"


def _tags(parts: Sequence[Sequence[int]], layout: GraphLayout, room: tuple[float, float]) -> str:
    """Draw a dark circle with a number beside each part, where there is most room.

    Nodes are circles with numbers, too, but light ones.
    """
    taken, tags = [*layout.points], []
    for rank, nodes in enumerate(parts, start=1):
        places = [layout.place[node] for node in nodes if node in layout.place]
        if not places:
            continue
        at = free_place(layout.points[places], [], np.array(taken), 4 * layout.radius, room)
        taken.append(at)
        tags.append(numbered_tag(rank, float(at[0]), float(at[1]), dark=True))
    return "".join(tags)
