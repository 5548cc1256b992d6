"""Explanations side by side: several methods for one input, several inputs for one method."""

from collections.abc import Sequence
from typing import Any

from graphxai.explanation import Explanation


def compare(explanations: Sequence[Explanation], *, columns: int = 3, **options: Any) -> str:
    """SVG of one input explained by several methods, each on its own colour scale.

    Scores of different methods have different units, so no scale is shared. Options as for
    `Explanation.svg`.
    """
    _require(explanations)
    first = explanations[0]
    if first.image is not None and first.segments is not None:
        from graphxai.visualization import superpixel_row_svg

        return superpixel_row_svg(
            first.image,
            first.segments,
            {e.title: e.relevance for e in explanations},
            title=first.headline,
            subtitle=f"relevance for {first.target}",
            **options,
        )
    from graphxai.visualization import grid_svg

    panels = [e.svg(title=e.title, subtitle="", **options) for e in explanations]
    return grid_svg(panels, columns, first.headline)


def grid(
    explanations: Sequence[Explanation],
    *,
    columns: int = 3,
    title: str = "",
    titles: Sequence[str] | None = None,
    shared_scale: bool = True,
    palette: str = "red-blue",
    **options: Any,
) -> str:
    """SVG of several inputs explained by one method.

    titles: one above each panel, instead of the prediction. shared_scale: one colour scale for
    all, with one bar; otherwise each panel has its own. Options as for `Explanation.svg`.
    """
    _require(explanations)
    titles = titles or [e.headline for e in explanations]
    title = title or explanations[0].title
    from graphxai.visualization import Scale, grid_svg

    scale = None
    if shared_scale:
        scale = Scale.fit(*[e.relevance for e in explanations], palette=palette)
    shared: dict[str, Any] = {"subtitle": "", "color_bar": scale is None} | options
    panels = [
        e.svg(scale=scale, palette=palette, title=name, **shared)
        for e, name in zip(explanations, titles, strict=True)
    ]
    if scale is None:
        return grid_svg(panels, columns, title)
    target = explanations[0].target
    same = all(e.target == target for e in explanations)
    legend = (f"against {target}", f"for {target}") if same else ("against", "for")
    return grid_svg(panels, columns, title, scale=scale, legend=legend)


def _require(explanations: Sequence[Explanation]) -> None:
    if not explanations:
        raise ValueError("there is no explanation to draw.")
