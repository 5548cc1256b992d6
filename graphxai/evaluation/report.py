"""The report of a benchmark, which holds values that can be plotted and saved to a folder."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from graphxai.contract.method_names import CONTROLS
from graphxai.contract.target import Target
from graphxai.explainers import REGISTRY, get_explainer
from graphxai.explanation.api import explain
from graphxai.explanation.compute.models import Model
from graphxai.visualization import grid_svg
from graphxai.visualization.curves import curves_figure, forest_figure, stages_figure, sums_figure
from graphxai.visualization.text import minus_signs

from .method_values import MethodValues
from .metrics import METRICS
from .output import latex_table, latex_tables, save_report, table_frame
from .robustness import merged_robustness
from .statistics import Interval
from .store import GRID, Key

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PLOTS = ("activation", "pruning", "conservation", "forest", "randomisation")
PANELS = ("conservation", "forest")  # the plots with several panels
FOREST = 4  # how many metrics a forest plot has side by side
# The metric that ranks the methods of a plot of curves, its title, and the labels of its axes: the
# second one for classes and for a regression's value.
CURVES = {
    "activation": (
        "auac",
        "Node activation",
        "fraction of nodes added, most relevant first",
        ("probability of the explained class", "{}, moved from none to all nodes"),
    ),
    "pruning": (
        "au_mse",
        "Node pruning",
        "fraction of nodes removed, smallest |relevance| first",
        ("squared distance of logits", "squared distance of {}"),
    ),
}


class Report(MethodValues):
    """The values of several methods on the same graphs, with plots and export."""

    def plot(
        self, kind: str = "activation", *, operator: str | None = None, ax: "Axes | None" = None
    ) -> "Figure":
        """Draw one of `PLOTS` with matplotlib.

        Args:
            kind: the name of the plot.
            operator: how nodes were removed, by default the first operator of the report.
            ax: the axes to draw in, such as a subplot of yours. By default the figure is new.
                Plots with several panels take none.

        Raises:
            ValueError: there is no such plot, nothing to draw, or several panels and an `ax`.
        """
        if kind not in PLOTS:
            raise ValueError(f"unknown plot {kind!r}; choose from {', '.join(PLOTS)}.")
        if ax is not None and kind in PANELS:
            raise ValueError(f"the plot {kind!r} has several panels: leave out ax=.")
        operator = operator or (self.operators or ("none",))[0]
        n = len({unit.graph for unit in self.units})
        text = f"{n} graphs, nodes removed by {operator!r}"
        if kind in CURVES:
            metric, title, x_label, (of_class, of_value) = CURVES[kind]
            value = self.settings.get("value")
            curves = self.curves(kind, operator)
            if metric in self.metrics(operator):  # the best method comes first
                ranked = self.ranking(metric, operator)
                curves = {name: curves[name] for name in ranked if name in curves}
            return curves_figure(
                GRID,
                curves,
                title=f"{title} ({text})",
                x_label=x_label,
                y_label=of_class if value is None else of_value.format(value),
                axes=ax,
            )
        if kind == "conservation":
            sums = {}
            for name, c in self.conservation().items():
                figures = f"slope {c.slope:.2f}, r {c.correlation:.2f}, gap {c.gap:.2f}"
                sums[name] = (c.outputs, c.tokens, minus_signs(figures))
            if not sums:
                raise ValueError("no method in the report gives shares of the output.")
            return sums_figure(sums, title="Does relevance add up?")
        if kind == "forest":
            return self._forest(operator, f"Mean, 95 % interval ({text})")
        stages = self.randomisation()
        if not stages:
            raise ValueError("the metric 'model_randomisation' was not measured.")
        spans = {method: _spans(of) for method, of in stages.items()}
        return stages_figure(spans, title=f"Model randomisation ({n} graphs)", axes=ax)

    def _forest(self, operator: str, title: str) -> "Figure":
        metrics = self.metrics(operator)[:FOREST]
        spans = {metric: _spans(self.intervals(metric, operator)) for metric in metrics}
        ranked = self.ranking(metrics[0], operator)
        panels = {metric: {name: of[name] for name in ranked} for metric, of in spans.items()}
        directions = {metric: METRICS[metric].direction for metric in metrics if metric in METRICS}
        return forest_figure(panels, directions=directions, title=title)

    def to_frame(self) -> pd.DataFrame:
        """Return one table for a paper, see `output.table_frame`."""
        return table_frame(self)

    def to_latex(self, operator: str | None = None) -> str:
        """Return the table in LaTeX (booktabs), with the best mean of each metric in bold.

        Means that agree in three decimals are bold together.

        Args:
            operator: how nodes were removed, by default a table for each operator of the report.
        """
        return latex_tables(self) if operator is None else latex_table(self, operator)

    def save(self, folder: str | Path) -> Path:
        """Write rows, tables, tests and figures to a folder, as `output.save_report` does."""
        return save_report(self, Path(folder))


def _spans(intervals: Mapping[str, Interval]) -> dict[str, tuple[float, float, float]]:
    return {name: (each.mean, each.low, each.high) for name, each in intervals.items()}


def merged(reports: Iterable[Report]) -> Report:
    """Merge reports of several checkpoints that were measured with the same settings.

    Raises ValueError if there are none, or if they are about different values, or about a value and
    the probability of a class.
    """
    parts: Sequence[Report] = list(reports)
    if not parts:
        raise ValueError("there is no report to merge.")
    explained = dict.fromkeys(str(part.settings.get("value", "a class")) for part in parts)
    if len(explained) > 1:
        raise ValueError(
            f"the models were measured on different outputs, {', '.join(explained)}, of"
            " which there is no mean: evaluate them one by one, or name one task for all."
        )
    settings = dict(parts[0].settings)
    settings["checkpoints"] = [c for part in parts for c in part.settings.get("checkpoints", [])]
    settings["sha256"] = [part.settings.get("sha256") for part in parts]
    if "robustness" in settings:
        settings["robustness"] = merged_robustness(
            [part.settings.get("robustness", {}) for part in parts]
        )
    rejected = dict(pair for part in parts for pair in part.rejected)
    units = tuple(unit for part in parts for unit in part.units)
    return Report(units, settings, tuple(rejected.items()))


GRAPHS, METHODS = 3, 4  # how many rows and columns the picture has


def examples_svg(model: Model, inputs: Mapping[Key, Any], report: Report) -> str | None:
    """Draw one row per graph and one column per method, each panel on its own colour scale.

    The graphs are evenly spaced in the order of the best method's AUAC (the area under the
    activation curve), so that a good, a middling and a bad case are shown. The methods are the
    registered methods with the best AUAC that failed on no graph, then `random`.

    Returns:
        The picture as SVG, or None if the graphs cannot be drawn.
    """
    methods = _leading_methods(report)
    panels = []
    for key in _typical_graphs(report):
        for method in methods:
            target: Any = next(u.target for u in report.units if u.graph == key and u.target)
            if target in (task.name for task in model.config.tasks if not task.classes):
                target = Target(None, target)  # the value of a regression
            explanation = explain(model, inputs[key], get_explainer(method), target=target)
            if not explanation.has_picture:
                return None
            title = f"{explanation.title} · {key}"
            panels.append(explanation.svg(title=title, subtitle=explanation.headline))
    return grid_svg(panels, len(methods))


def _leading_methods(report: Report) -> list[str]:
    works = REGISTRY.keys() - report.failures
    ranked = [name for name in report.ranking(_metric(report)) if name in works]
    return [*[name for name in ranked if name not in CONTROLS][: METHODS - 1], "random"]


def _metric(report: Report) -> str:
    return "auac" if "auac" in report.metrics() else report.metrics()[0]


def _typical_graphs(report: Report) -> list[Key]:
    """Return the keys of graphs with a high, a middling and a low AUAC of the best method."""
    metric = _metric(report)
    best = _leading_methods(report)[0]
    rows = report.rows
    chosen = rows[(rows.metric == metric) & (rows.method == best)]
    ranked = list(chosen.sort_values("value", kind="stable").graph.drop_duplicates())
    count = min(GRAPHS, len(ranked))
    places = [round((len(ranked) - 1) * (k + 0.5) / count) for k in range(count)]
    return [ranked[p] for p in reversed(places)]
