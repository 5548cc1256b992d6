"""Draw explanations of one input side by side, and the difference of two.

They differ in their method or its options, in their model or in their target.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphxai.visualization import Scale, grid_svg, superpixel_row_svg

from .explanation import Explanation
from .explanations import drawable, panel_options, with_doubt
from .labelled import numbered
from .result import Picture

FloatArray = NDArray[np.floating]
LONGEST = 20  # characters of a name that fits at the end of a colour bar


def side_by_side(
    explanations: Sequence[Explanation],
    *,
    columns: int | None = None,
    difference: bool = False,
    **options: Any,
) -> Picture:
    """Draw explanations of one input by several methods, by several models or for several targets.

    Each has its own colour scale, because scores of different methods have different units. Options
    are those of `Explanation.svg`. By default, molecules are drawn at 400 x 310 pixels.

    Args:
        columns: the number of panels in a row, by default 3, or 2 for four panels.
        difference: whether to draw two explanations and their difference (Song 2024, figure 6).
            Each is divided by its sum of |relevance|, and all panels have one scale. If one of them
            has no sign, the difference is that of |relevance|. Two targets get a further panel
            with the relevance that speaks for either, in a colour for each.
    """
    explanations = drawable(explanations)
    first = explanations[0]
    if any(not _same_input(first, other) for other in explanations[1:]):
        raise ValueError(
            "a comparison shows one input under several methods, models or targets, and the models"
            " read it as the same graph: use grid for several inputs."
        )
    names, shared = _told_apart(explanations, with_method=not difference)
    headline = first.headline if len({e.headline for e in explanations}) == 1 else ""
    panels = [(name, e, e.legend) for name, e in zip(names, explanations, strict=True)]
    if difference:
        panels, share = _with_difference(panels)
        scaling = f"each divided by its sum of |relevance| · {share:.0%} of relevance differs"
        shared = " · ".join(filter(None, [shared, scaling]))
        limit = Scale.fit(*(e.relevance for _, e, _ in panels), *(_edges(e) for _, e, _ in panels))
        options = {"scale": replace(limit, palette=options.get("palette", limit.palette))} | options
    if first.image is not None and first.segments is not None:
        row = superpixel_row_svg(
            first.image,
            first.segments,
            {name: e.relevance for name, e, _ in panels},
            unsigned={name: e.unsigned for name, e, _ in panels if e.unsigned},
            pale={name: e.contested for name, e, _ in panels},
            title=headline,
            subtitle=with_doubt(shared, *(e.contested for _, e, _ in panels)),
            legend={name: legend for name, _, legend in panels},
            **options,
        )
        return Picture(row)
    drawn = [
        e.svg(title=name, **{"subtitle": "", "legend": legend} | panel_options(e, options))
        for name, e, legend in panels
    ]
    columns = columns or (2 if len(drawn) == 4 else 3)
    subtitle = with_doubt(shared if difference else "", *(e.contested for _, e, _ in panels))
    return Picture(grid_svg(drawn, columns, headline, subtitle=subtitle))


_Panels = list[tuple[str, Explanation, tuple[str, str]]]  # name, explanation, words of its colours


def _with_difference(panels: _Panels) -> tuple[_Panels, float]:
    """Return two explanations and their difference, and the share of relevance that differs.

    The share is half the sum of |difference|: 0 if both agree, and 1 if no node is relevant in
    both or if they are opposite.
    """
    if len(panels) != 2:
        raise ValueError(
            "a difference needs two explanations: two methods, two models or two targets. This"
            f" comparison has {len(panels)}."
        )
    (first, a, words), (second, b, other_words) = panels
    a, b = _divided(a), _divided(b)
    shown: _Panels = [(first, a, words), (second, b, other_words)]
    first = first if len(first) <= LONGEST else "the first"
    second = second if len(second) <= LONGEST else "the second"
    signed = not (a.unsigned or b.unsigned)
    gap = _combined(a, b, (lambda x, y: x - y) if signed else (lambda x, y: abs(x) - abs(y)))
    more = "higher" if signed else "larger"
    ends = f"{more} for {second}", f"{more} for {first}"
    shown.append((f"{first} minus {second}", gap, ends))
    if signed and a.target != b.target:
        both = _combined(a, b, lambda x, y: x.clip(0) - y.clip(0))
        shown.append((f"{first} and {second}", both, (other_words[1], words[1])))
    return shown, (np.abs(gap.relevance).sum() + np.abs(_edges(gap)).sum()) / 2


def _divided(explanation: Explanation) -> Explanation:
    """Return an explanation divided by its sum of |relevance|, which is then no share of f."""
    total = np.abs(explanation.relevance).sum() + np.abs(_edges(explanation)).sum()
    scale = 1 / total if total > 0 else 1.0
    parts = {name: values * scale for name, values in explanation.relevance_of.items()}
    relevance = explanation.relevance * scale
    return replace(explanation, relevance=relevance, relevance_of=parts, ledger=None)


def _combined(
    a: Explanation, b: Explanation, of: Callable[[FloatArray, FloatArray], FloatArray]
) -> Explanation:
    """Return an explanation whose relevance is a function of those of two."""
    common = a.relevance_of.keys() & b.relevance_of.keys()
    parts = {name: of(a.relevance_of[name], b.relevance_of[name]) for name in common}
    relevance = of(a.relevance, b.relevance)
    return replace(a, relevance=relevance, relevance_of=parts, members=None, unsigned="")


def _edges(explanation: Explanation) -> FloatArray:
    """Return the relevance of the edges (E,), or an empty array if they were not explained."""
    return explanation.relevance_of.get("edge_attr", np.zeros(0))


def _told_apart(
    explanations: Sequence[Explanation], with_method: bool
) -> tuple[tuple[str, ...], str]:
    """Return a name for each explanation of one input, and what all of them share.

    The name says what differs: method, options, model, target. If nothing does, it is the method's.

    `with_method` says whether each name has the method, even if all share it.
    """
    options = [e.provenance.get("options", {}) for e in explanations]
    differing = [k for k in options[0] if len({repr(each.get(k)) for each in options}) > 1]
    aspects = [
        [e.title for e in explanations],
        [", ".join(f"{k}={each[k]!r}" for k in differing if k in each) for each in options],
        [str(e.provenance.get("model")) for e in explanations],
        [e.target for e in explanations],
    ]
    several = [len({*aspect}) > 1 for aspect in aspects]
    several[1] &= not several[0]  # other methods have other options
    several[0] |= with_method or not any(several)
    telling = [aspect for aspect, differs in zip(aspects, several, strict=True) if differs]
    names = numbered(map(": ".join, zip(*telling, strict=True)))
    title = "" if several[0] else explanations[0].title
    target = "" if several[3] else f"relevance for {explanations[0].target}"
    return names, ", ".join(filter(None, [title, target]))


def _same_input(first: Explanation, second: Explanation) -> bool:
    if first.drawn is not None and second.drawn is not None:
        return np.array_equal(first.drawn.edges, second.drawn.edges) and len(first) == len(second)
    if first.image is None or second.image is None:
        return first.smiles == second.smiles and len(first) == len(second)
    return np.array_equal(first.image, second.image) and len(first) == len(second)
