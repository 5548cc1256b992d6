"""Draw the figures of a report."""

from typing import TYPE_CHECKING, Any

from graphxai.visualization.curves import curves_figure, forest_figure, stages_figure, sums_figure
from graphxai.visualization.text import minus_signs

from .method_values import GRID, MethodValues
from .metrics import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLOTS = ("activation", "pruning", "conservation", "forest", "randomisation")
PANELS = ("conservation", "forest")  # the plots with several panels
FOREST = 4  # how many metrics a forest plot has side by side


def draw(
    report: MethodValues, kind: str, operator: str | None = None, axes: "Axes | None" = None
) -> "Figure":
    """Draw one of `PLOTS`, in a new figure or in axes.

    Raises:
        ValueError: the name is another one, there is nothing to draw, or the plot has several
            panels and does not fit into axes.
    """
    if kind not in PLOTS:
        raise ValueError(f"unknown plot {kind!r}; choose from {', '.join(PLOTS)}.")
    if axes is not None and kind in PANELS:
        raise ValueError(f"the plot {kind!r} has several panels: leave out ax=.")
    operator = operator or (report.operators or ("none",))[0]
    n = len({unit.graph for unit in report.units})
    text = f"{n} graphs, nodes removed by {operator!r}"
    if kind == "activation":
        return curves_figure(
            GRID,
            _ranked(report, "activation", "auac", operator),
            title=f"Node activation ({text})",
            x_label="fraction of nodes added, most relevant first",
            y_label="probability of the explained class",
            axes=axes,
        )
    if kind == "pruning":
        return curves_figure(
            GRID,
            _ranked(report, "pruning", "au_mse", operator),
            title=f"Node pruning ({text})",
            x_label="fraction of nodes removed, smallest |relevance| first",
            y_label="squared distance of logits",
            axes=axes,
        )
    if kind == "conservation":
        return _conservation(report)
    if kind == "forest":
        return _forest(report, operator, text)
    stages = report.randomisation()
    if not stages:
        raise ValueError("the metric 'model_randomisation' was not measured.")
    spans = {
        method: {block: (i.mean, i.low, i.high) for block, i in of.items()}
        for method, of in stages.items()
    }
    return stages_figure(spans, title=f"Model randomisation ({n} graphs)", axes=axes)


def _conservation(report: MethodValues) -> "Figure":
    sums = {}
    for name, c in report.conservation().items():
        text = f"slope {c.slope:.2f}, r {c.correlation:.2f}, gap {c.gap:.2f}"
        sums[name] = (c.outputs, c.tokens, minus_signs(text))
    if not sums:
        raise ValueError("no method in the report gives shares of the output.")
    return sums_figure(sums, title="Does relevance add up?")


def _forest(report: MethodValues, operator: str, text: str) -> "Figure":
    metrics = report.metrics(operator)[:FOREST]
    panels = {
        metric: {m: (i.mean, i.low, i.high) for m, i in report.intervals(metric, operator).items()}
        for metric in metrics
    }
    ranked = report.ranking(metrics[0], operator)
    panels = {metric: {name: of[name] for name in ranked} for metric, of in panels.items()}
    directions = {metric: METRICS[metric].direction for metric in metrics if metric in METRICS}
    return forest_figure(panels, directions=directions, title=f"Mean, 95 % interval ({text})")


def _ranked(
    report: MethodValues, kind: str, metric: str, operator: str
) -> dict[str, tuple[Any, Any, Any]]:
    """Return the curves with the best method first."""
    curves = report.curves(kind, operator)
    if metric not in report.metrics(operator):
        return curves
    return {name: curves[name] for name in report.ranking(metric, operator) if name in curves}
