"""Draw the relevance of pairs of nodes, as arrows on molecules and graphs and bars by distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np
from numpy.typing import ArrayLike

from .color import (
    FloatArray,
    PictureKeywords,
    PictureOptions,
    Scale,
    finite,
    one_each,
    signed,
    with_picture_options,
)
from .curves import new_figure
from .graph import ARC, GraphLayout, PlainGraph, framed_graph, lines_svg, nodes_svg
from .molecule import Window, framed
from .text import escape, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rdkit.Chem import Mol

Pair = tuple[int, int, float]  # the atom that reads, the atom read, and their relevance

_WIDEST = 0.14  # the largest width of a line, in bond lengths
_LEVELS = 255  # colours of a map, an odd number, so that zero is white
_THINNEST = 0.8  # the smallest width of a line, in pixels
_FAINT = 0.08  # below this part of the limit, rings would only be white lines
_RING = 0.24  # the radius of a ring, in bond lengths
_HEAD = 0.12  # the head of an arrow without width, in bond lengths
_GROUP = '<g class="pairs" fill="none" stroke-linecap="round">'
# the last layer's bars; those of earlier layers are mixed with white
_DARKEST = (0.0, 0.447, 0.698)
_LIGHTEST = 0.75


@with_picture_options()
def pairs_svg(
    mol: Mol,
    read: ArrayLike,
    pairs: Sequence[Pair],
    *,
    atom_numbers: bool | Sequence[int] = False,
    keep_layout: bool = True,
    window: Window | None = None,
    **options: Unpack[PictureKeywords],
) -> str:
    """Draw a molecule as SVG, with arrows between pairs of atoms and rings around atoms.

    An arrow points from the atom that is read to the atom that reads, and keeps clear of their
    rings. Width and colour show the relevance, on one scale for arrows and rings. By default the
    scale ends at the strongest arrow. Stronger rings saturate, and the colour bar shows that.

    Args:
        mol: any RDKit molecule.
        read: the relevance that the graph token read from each atom (N,), which is drawn as a ring.
        pairs: the atom that reads, the atom that it reads, and the relevance between them.
        atom_numbers, keep_layout, window: as for `molecule_svg`.
        options: the words, size and colours of the picture.

    Raises:
        ValueError: `read` does not have one finite number per atom, a pair has another atom than
            those of the molecule, or the picture is too small.
    """
    picture = PictureOptions(**options)
    read = one_each(read, "read", mol.GetNumAtoms(), "atom")
    rings, values, scale = _values(read, pairs, picture)

    def drawn(points: FloatArray, bond: float) -> str:
        place = {atom: atom for atom in range(len(points))}
        arrows, circles = _arrows_and_rings(pairs, rings, points, bond, scale, place)
        return f"{_GROUP}{arrows}{circles}</g>"  # rings are on top of all arrows

    return framed(
        mol,
        drawn,
        values,
        scale,
        picture,
        atom_numbers=atom_numbers,
        keep_layout=keep_layout,
        window=window,
        of="pairs",
    )


@with_picture_options()
def graph_pairs_svg(
    graph: PlainGraph,
    read: ArrayLike,
    pairs: Sequence[Pair],
    *,
    labels: bool = True,
    **options: Unpack[PictureKeywords],
) -> str:
    """Draw a graph as SVG, with arrows between pairs of nodes and rings around nodes.

    Arrows and rings are as in `pairs_svg`, and the edges of the graph are thin lines. If a graph
    has more than 150 nodes, those with the strongest pairs are drawn, and the note says so.

    Args:
        graph: the graph to draw.
        read: the relevance that the graph token read from each node (N,), which is drawn as a ring.
        pairs: the node that reads, the node that it reads, and the relevance between them.
        labels: whether to write the label of each node on it.
        options: the words, size and colours of the picture.

    Raises:
        ValueError: a number is not finite, a pair has another node than those of the graph, or the
            picture is too small.
    """
    picture = PictureOptions(**options)
    rings, values, scale = _values(read, pairs, picture)
    strength = np.abs(rings)
    for *ends, value in pairs:
        strength[ends] = np.maximum(strength[ends], abs(value))

    def drawn(layout: GraphLayout) -> str:
        size = layout.radius / _RING  # stands for a bond length
        where = layout.points, size, scale, layout.place
        arrows, circles = _arrows_and_rings(pairs, rings, *where)
        nodes = nodes_svg(graph, np.zeros(len(rings)), layout, scale, graph.explained, labels)
        above = f"{nodes}{_GROUP}{circles}</g>"  # labels stay readable
        return f"{lines_svg(graph, layout)}{_GROUP}{arrows}</g>{above}"

    count = f"{len(rings)} nodes and {len(pairs)} pairs." if len(rings) else ""
    return framed_graph(
        graph,
        drawn,
        values,
        scale,
        picture,
        strength=strength,
        about=count,
        ringed=graph.explained,
        arcs=[(a, b) for a, b, value in pairs if abs(value) > _FAINT * scale.limit],
    )


def _values(
    read: ArrayLike, pairs: Sequence[Pair], picture: PictureOptions
) -> tuple[FloatArray, FloatArray, Scale]:
    """Return the values of rings, those of rings and arrows, and the scale of the arrows."""
    rings, between = finite(read), finite([value for *_, value in pairs])
    if any(not 0 <= node < len(rings) for *ends, _ in pairs for node in ends):
        raise ValueError(f"pairs may only name nodes 0 to {len(rings) - 1}.")
    scale = picture.scale_for(between if between.any() else rings)
    return rings, np.concatenate([rings.ravel(), between]), scale


def _arrows_and_rings(
    pairs: Sequence[Pair],
    rings: FloatArray,
    points: FloatArray,
    bond: float,
    scale: Scale,
    place: Mapping[int, int],
) -> tuple[str, str]:
    """Draw arrows, the strongest on top, and rings of the nodes whose row in `points` is known."""
    arrows = [
        _arrow(pair, points[place[pair[1]]], points[place[pair[0]]], bond, scale)
        for pair in sorted(pairs, key=lambda pair: abs(pair[2]))
        if pair[0] in place and pair[1] in place
    ]
    circles = [
        _ring(node, rings[node], points[row], bond, scale)
        for node, row in place.items()
        if abs(rings[node]) > _FAINT * scale.limit
    ]
    return "".join(arrows), "".join(circles)


def _arrow(pair: Pair, start: FloatArray, end: FloatArray, bond: float, scale: Scale) -> str:
    """Draw an arc from the atom read to the reader's ring. A pair's two directions bend apart."""
    reader, read, value = pair
    along = end - start
    bend = (start + end) / 2 + ARC * along[::-1] * (1, -1)
    width = _width(value, bond, scale)
    clear, head = (_RING + _WIDEST / 2) * bond, _HEAD * bond + width
    start = start + clear * _unit(bend - start)
    tip = end + clear * _unit(bend - end)
    back = _unit(bend - tip)
    neck, across = tip + head * back, back[::-1] * (1, -1) * (0.35 * head + width / 2)
    path = "M{} {}Q{} {} {} {}".format(*map(number, (*start, *bend, *neck)))
    point = "M{} {}L{} {}L{} {}Z".format(*map(number, (*tip, *neck + across, *neck - across)))
    color, words = scale.hex(value)[0], escape(f"{reader} read from {read}: {signed(value)}")
    return (
        f'<g data-pair="{reader} {read}" stroke="{color}"><path d="{path}"'
        f' stroke-width="{number(width)}" stroke-linecap="butt"/><path d="{point}" fill="{color}"'
        f' stroke="none"/><title>{words}</title></g>'
    )


def _unit(vector: FloatArray) -> FloatArray:
    return vector / (np.linalg.norm(vector) or 1.0)


def _ring(atom: int, value: float, at: FloatArray, bond: float, scale: Scale) -> str:
    x, y = at
    return (
        f'<circle data-read="{atom}" cx="{number(x)}" cy="{number(y)}" r="{number(_RING * bond)}"'
        f' stroke="{scale.hex(value)[0]}" stroke-width="{number(_width(value, bond, scale))}">'
        f"<title>{escape(f'graph token and {atom}: {signed(value)}')}</title></circle>"
    )


def _width(value: float, bond: float, scale: Scale) -> float:
    return max(_THINNEST, _WIDEST * bond * min(1.0, abs(value) / scale.limit))


def profile_figure(
    layers: Mapping[str, Mapping[int | str, float]],
    bonds: Mapping[str, float],
    *,
    title: str,
    how: str,
) -> Figure:
    """Draw bar charts of the relevance of pairs by shortest-path distance and by bond type.

    Args:
        layers: for each layer, the relevance by distance, or by name for pairs without a distance.
        bonds: the relevance by bond type, summed over layers. If it is empty, there is no panel.
        how: what the relevance passed through, for the label of the y axis.
    """
    keys = list(next(iter(layers.values())))
    ratio = (len(keys), 1.6 * len(bonds))
    figure = new_figure(1.5 + 0.42 * sum(ratio), 3.9)
    panels = figure.subplots(
        1, 2 if bonds else 1, squeeze=False, width_ratios=ratio[: 1 + bool(bonds)]
    )
    axes = panels[0, 0]
    width = 0.8 / len(layers)
    for layer, (name, profile) in enumerate(layers.items()):
        at = np.arange(len(keys)) + (layer - (len(layers) - 1) / 2) * width
        shade = _LIGHTEST * (1 - layer / max(1, len(layers) - 1))
        color = tuple(shade + (1 - shade) * np.array(_DARKEST))
        axes.bar(at, [profile[key] for key in keys], width, color=color, label=name)
    named = [str(key).replace(" ", "\n") for key in keys]
    axes.set_xticks(range(len(keys)), named, fontsize=8)
    axes.set_ylabel(f"relevance {how}")
    axes.legend(frameon=False, fontsize=8)
    _finish(axes, "shortest-path distance of the pair")
    if bonds:
        panels[0, 1].bar(list(bonds), list(bonds.values()), color=_DARKEST, width=0.6)
        _finish(panels[0, 1], "bonded pairs, all layers" if len(layers) > 1 else "bonded pairs")
    figure.suptitle(title, fontsize=11)
    return figure


def heads_figure(relevance: ArrayLike, *, title: str) -> Figure:
    """Draw the relevance through each head (L, H) as a map, with the sum of each layer beside it.

    Args:
        relevance: the relevance through each head, first layer first. It is drawn at the bottom.
        title: plain text.
    """
    values = finite(relevance)
    layers, heads = values.shape
    from matplotlib.colors import ListedColormap

    figure = new_figure(2.6 + 0.45 * heads, 1.5 + 0.45 * layers)
    axes = figure.subplots()
    scale = Scale.fit(values)
    colours = ListedColormap(scale.rgb(np.linspace(-scale.limit, scale.limit, _LEVELS)))
    drawn = axes.imshow(values, cmap=colours, vmin=-scale.limit, vmax=scale.limit, origin="lower")
    axes.set_xticks(range(heads), [str(k + 1) for k in range(heads)])
    sums = [f"layer {k + 1} ({total:+.2f})" for k, total in enumerate(values.sum(1))]
    axes.set_yticks(range(layers), sums)
    axes.set_xlabel("head")
    axes.tick_params(length=0)
    figure.colorbar(drawn, ax=axes, shrink=0.7, label="relevance through attention")
    figure.suptitle(title, fontsize=11)
    return figure


def _finish(axes: Axes, label: str) -> None:
    axes.set_xlabel(label)
    axes.axhline(0, color="black", lw=0.8)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(axis="x", length=0)
