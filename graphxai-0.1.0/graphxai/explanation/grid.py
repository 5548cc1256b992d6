"""Draw explanations side by side: one input by several methods, or several inputs by one method."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .explanation import Explanation
from .result import Picture

if TYPE_CHECKING:
    from graphxai.visualization import Scale

PANEL = {"width": 400, "height": 310}  # the size of a molecule in a grid, in pixels
SATURATED = 0.975  # a shared scale ends at this quantile of |relevance|


def side_by_side(
    explanations: Sequence[Explanation], *, columns: int = 3, **options: Any
) -> Picture:
    """Draw one input explained by several methods, each with its own colour scale.

    Scores of different methods have different units, so they share no scale. Options are those of
    `Explanation.svg`. By default, molecules are drawn at 400 x 310 pixels.
    """
    explanations = _drawable(explanations)
    first = explanations[0]
    if any(not _same_input(first, other) for other in explanations[1:]):
        raise ValueError(
            "a comparison shows one input under several methods: use grid for several inputs."
        )
    targets = {e.target for e in explanations}
    names = [e.title if len(targets) == 1 else f"{e.title}: {e.target}" for e in explanations]
    headline = first.headline if len({e.headline for e in explanations}) == 1 else ""
    about = f"relevance for {first.target}" if len(targets) == 1 else ""
    if first.image is not None and first.segments is not None:
        from graphxai.visualization import superpixel_row_svg

        named = dict(zip(names, explanations, strict=True))
        row = superpixel_row_svg(
            first.image,
            first.segments,
            {name: e.relevance for name, e in named.items()},
            unsigned={name: e.unsigned for name, e in named.items() if e.unsigned},
            title=headline,
            subtitle=about,
            **options,
        )
        return Picture(row)
    from graphxai.visualization import grid_svg

    panels = [
        e.svg(title=name, subtitle="", **_panel(e, options))
        for name, e in zip(names, explanations, strict=True)
    ]
    return Picture(grid_svg(panels, columns, headline))


def grid(
    explanations: Sequence[Explanation | None],
    *,
    columns: int = 3,
    title: str = "",
    subtitle: str = "",
    titles: Sequence[str] | None = None,
    shared_scale: bool = True,
    scale: "Scale | float | None" = None,
    palette: str = "red-blue",
    **options: Any,
) -> Picture:
    """Draw several inputs explained by one method.

    Panels always have separate scales if methods or tasks differ, because their scores have
    different units. Their titles then name the difference.

    Args:
        explanations: what to draw. Inputs that could not be explained (None) are left out.
        columns: the number of panels in a row.
        title: the title above all panels, by default the method.
        subtitle: the text below the title.
        titles: a title above each panel, instead of the prediction.
        shared_scale: whether all panels share a colour scale and its bar. The scale ends at the
            97.5 % quantile of |relevance|, so that one strong atom does not wash out the other
            molecules. Pointed ends of the bar mark larger values.
        scale: a scale for all panels.
        palette: one of `visualization.PALETTES`.
        options: options of `Explanation.svg`. By default, molecules are drawn at 400 x 310 pixels.
    """
    if titles is not None:
        if len(titles) != len(explanations):
            raise ValueError(f"{len(titles)} titles for {len(explanations)} explanations.")
        titles = [name for name, e in zip(titles, explanations, strict=True) if e is not None]
    explanations = _drawable(explanations)
    title = title or (explanations[0].title if len({e.title for e in explanations}) == 1 else "")
    titles = titles or _panel_titles(explanations)
    in_one_unit = len({(e.title, e.prediction.task) for e in explanations}) == 1
    one_key = len({e.unsigned for e in explanations}) == 1
    from graphxai.visualization import Scale, grid_svg

    values = np.concatenate([e.relevance for e in explanations])
    if scale is None and shared_scale and in_one_unit:
        limit = float(np.quantile(np.abs(values), SATURATED))
        scale = Scale(limit, palette) if limit > 0 else Scale.fit(values, palette=palette)
    shared: dict[str, Any] = {"subtitle": "", "color_bar": scale is None or not one_key}
    panels = [
        e.svg(scale=scale, palette=palette, title=name, **shared, **_panel(e, options))
        for e, name in zip(explanations, titles, strict=True)
    ]
    if scale is None or not one_key:
        return Picture(grid_svg(panels, columns, title, subtitle=subtitle))
    one_legend = len({e.legend for e in explanations}) == 1
    legend = explanations[0].legend if one_legend else ("against", "for")
    scale = explanations[0].scale(scale, palette)
    about: dict[str, Any] = {"subtitle": subtitle, "legend": legend}
    return Picture(grid_svg(panels, columns, title, scale=scale, values=values, **about))


def _panel_titles(explanations: Sequence[Explanation]) -> list[str]:
    """Return the predictions, with method and target if these differ."""
    one_method = len({e.title for e in explanations}) == 1
    one_target = len({e.target for e in explanations}) == 1
    named = not one_target and any(_class_of(e) != e.prediction.label for e in explanations)
    return [
        ("" if one_method else f"{e.title}: ")
        + (e.headline if one_method or len(e.predictions) > 1 else str(e.prediction))
        + (f", for {e.target}" if named else "")
        for e in explanations
    ]


def _class_of(explanation: Explanation) -> str:
    """Return the target without the name of its task, which the prediction already has."""
    return explanation.target.removeprefix(f"{explanation.prediction.task}: ")


def _panel(explanation: Explanation, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a panel, with a size unless the input is an image."""
    return options if explanation.image is not None else PANEL | options


def _drawable(explanations: Sequence[Explanation | None]) -> list[Explanation]:
    if isinstance(explanations, Explanation):
        return [explanations]
    drawable = [e for e in explanations if e is not None]
    if not drawable:
        raise ValueError("there is no explanation to draw.")
    return drawable


def _same_input(first: Explanation, second: Explanation) -> bool:
    if first.drawn is not None and second.drawn is not None:
        return np.array_equal(first.drawn.edges, second.drawn.edges) and len(first) == len(second)
    if first.image is None or second.image is None:
        return first.smiles == second.smiles and len(first) == len(second)
    return np.array_equal(first.image, second.image) and len(first) == len(second)
