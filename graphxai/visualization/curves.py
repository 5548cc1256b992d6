"""Draw benchmark figures from plain values: curves with bands, sums against outputs, forest plots.

They use only Matplotlib's object interface, so that no figure depends on a backend or stays open.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The first seven are Okabe and Ito's colours, which are safe for colour-blind readers. The others
# are from Tol's muted scheme. More methods than colours take theirs from a map.
COLORS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#332288", "#882255", "#999933", "#44AA99", "#661100", "#AA4499"),
)
DASHES = ("-", "--", ":", "-.")
CONTROL = "#8A8A8A"
CONTROLS = {"random": "-", "ones": ":", "reverse": "--"}  # with the dashes of their lines
FEW = 7  # lines; more are thinner, dashed in turn, and have paler bands

Band = tuple[Any, Any, Any]  # the mean, the lower and the upper end
Span = tuple[float, float, float]


def curves_figure(
    grid: Any,
    curves: Mapping[str, Band],
    *,
    title: str,
    x_label: str,
    y_label: str,
    axes: "Axes | None" = None,
) -> "Figure":
    """Draw mean curves with their bands, the most important first.

    With many curves, the first ones stand out.

    Args:
        grid: the positions on the x axis (K,).
        curves: the mean, the lower and the upper end of each method, (K,) each.

    Returns:
        The figure with the axes.
    """
    figure, axes = _canvas(axes)
    styles = _styles(curves)
    opacity = 0.15 if len(curves) <= FEW else 0.07
    for name, (mean, low, high) in curves.items():
        axes.plot(grid, mean, label=name, **styles[name])
        axes.fill_between(grid, low, high, color=styles[name]["color"], alpha=opacity, lw=0)
    axes.set(title=title, xlabel=x_label, ylabel=y_label, xlim=(0, 1))
    _legend(axes, len(curves))
    return figure


def sums_figure(sums: Mapping[str, tuple[Any, Any, str]], *, title: str) -> "Figure":
    """Draw summed relevance against the output, with one panel per method.

    If relevance adds up to the output, a method lies on the diagonal (Ali 2022, Fig. 3).

    `sums` has for each method the outputs (n,), the sums (n,) and a caption.
    """
    columns = min(3, len(sums))
    rows = -(-len(sums) // columns)
    figure = new_figure(2.9 * columns, 2.9 * rows + 0.4)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (name, (outputs, total, caption)) in zip(panels, sums.items(), strict=False):
        ends = [float(np.min(outputs)), float(np.max(outputs))]
        axes.plot(ends, ends, color=CONTROL, lw=1, zorder=0)
        axes.scatter(outputs, total, s=9, color=COLORS[0], alpha=0.6, linewidths=0)
        axes.set_title(f"{name}\n{caption}", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[len(sums) :]:
        axes.remove()
    figure.supxlabel("output", fontsize=10)
    figure.supylabel("sum of relevance", fontsize=10)
    figure.suptitle(title, fontsize=11)
    return figure


def forest_figure(
    panels: Mapping[str, Mapping[str, Span]], *, directions: Mapping[str, str], title: str
) -> "Figure":
    """Draw the mean and interval of every method, with one panel per metric.

    The rows are in the order of the first panel.

    Args:
        panels: by metric and method, the mean, the lower and the upper end.
        directions: the text under each metric's name, which says which way is better.
    """
    names = list(next(iter(panels.values())))
    figure = new_figure(1.8 + 2.6 * len(panels), 1.3 + 0.27 * len(names))
    axes_row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    height = np.arange(len(names))[::-1]
    for axes, (metric, spans) in zip(axes_row, panels.items(), strict=True):
        for y, name in zip(height, names, strict=True):
            mean, low, high = spans[name]
            if not np.isfinite(mean):
                continue
            color = CONTROL if name in CONTROLS else COLORS[0]
            axes.plot([low, high], [y, y], color=color, lw=1.6, solid_capstyle="butt")
            axes.plot(mean, y, "o", color=color, ms=4.5)
        if "random" in spans and np.isfinite(spans["random"][0]):
            axes.axvline(spans["random"][0], color=CONTROL, lw=0.8, ls=":", zorder=0)
        axes.set_title(f"{metric}\n{directions.get(metric, '')}", fontsize=9)
        axes.set_yticks(height, names)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11)
    return figure


def stages_figure(
    stages: Mapping[str, Mapping[str, Span]], *, title: str, axes: "Axes | None" = None
) -> "Figure":
    """Draw rank correlations with the original scores as the model is shuffled.

    Args:
        stages: by method and by the block that was shuffled last, the mean |rank correlation| with
            its interval.
    """
    figure, axes = _canvas(axes)
    blocks = list(next(iter(stages.values())))
    styles = _styles(stages)
    for name, by_block in stages.items():
        means = [1.0, *(by_block[block][0] for block in blocks)]
        axes.plot(range(len(means)), means, marker="o", ms=3.5, label=name, **styles[name])
    axes.set_xticks(range(len(blocks) + 1), ["trained", *blocks], rotation=30, ha="right")
    axes.set(title=title, ylabel="|rank correlation| with the trained model", ylim=(0, 1.03))
    axes.set_xlabel("shuffled down to this block")
    _legend(axes, len(stages))
    return figure


def layers_figure(sums: "pd.DataFrame") -> "Figure":
    """Draw the relevance that enters each layer, and what is created there, as means over graphs.

    Args:
        sums: a table as `evaluation.layer_sums` returns it. What is created is drawn as the mean of
            absolute values.
    """
    figure = new_figure(9.6, 3.8)
    entering, created = figure.subplots(1, 2)
    methods = list(dict.fromkeys(sums.method))
    for name, style in _styles(dict.fromkeys(methods)).items():
        if name not in methods:
            continue
        stages = sums[sums.method == name].groupby("stage", sort=False)
        entering.plot(stages.relevance.mean(), marker="o", ms=3, label=name, **style)
        size = stages.created.agg(lambda values: values.abs().mean())
        created.plot(size.iloc[:-1], marker="o", ms=3, label=name, **style)
    entering.set_title("Relevance that enters the layer", fontsize=11)
    created.set_title("Created or lost in it, mean size", fontsize=11)
    for axes in (entering, created):
        axes.tick_params(axis="x", rotation=30)
        axes.spines[["top", "right"]].set_visible(False)
    _legend(created, len(methods))
    return figure


def new_figure(width: float, height: float) -> "Figure":
    """Make an empty figure of width x height inches that a notebook displays by itself."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    class Shown(Figure):
        """A figure that notebooks display although it was not made by pyplot.

        As SVG, equal figures have equal bytes: no date, and no names drawn at random.
        """

        def savefig(self, fname: Any, **options: Any) -> None:
            if "svg" in (options.get("format"), str(fname).rpartition(".")[2]):
                options["metadata"] = {"Date": None} | (options.get("metadata") or {})
            with rc_context({"svg.hashsalt": "graphxai"}):
                super().savefig(fname, **options)

        def _repr_png_(self) -> bytes:
            from io import BytesIO

            file = BytesIO()
            self.savefig(file, format="png", dpi=110)
            return file.getvalue()

    return Shown(figsize=(width, height), layout="constrained")


def _canvas(axes: "Axes | None") -> "tuple[Figure, Axes]":
    """Return the axes to draw in and their figure, which is new unless there are axes."""
    if axes is not None:
        figure: Any = axes.get_figure(root=True)
        return figure, axes
    figure = new_figure(7.2, 4.4)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.title.set_fontsize(11)
    return figure, axes


def _styles(names: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a colour of its own for each line, dashes and width, with grey for the controls."""
    methods = [name for name in names if name not in CONTROLS]
    styles: dict[str, dict[str, Any]] = {
        name: {"color": CONTROL, "ls": dashes, "lw": 1.4} for name, dashes in CONTROLS.items()
    }
    for rank, (name, color) in enumerate(zip(methods, _colors(len(methods)), strict=True)):
        turn, width = (0, 1.6) if rank < FEW else (rank // FEW, 0.9)
        styles[name] = {"color": color, "ls": DASHES[turn % len(DASHES)], "lw": width}
    return styles


def _colors(count: int) -> Sequence[Any]:
    if count <= len(COLORS):
        return COLORS[:count]
    from matplotlib import colormaps

    return list(colormaps["turbo"](np.linspace(0.03, 0.97, count)))


def _legend(axes: "Axes", count: int) -> None:
    axes.legend(
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        frameon=False,
        fontsize=9 if count <= 12 else 7.5,
    )
