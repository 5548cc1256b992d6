"""The report of a benchmark, which holds values that can be plotted and saved to a folder."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphxai.api import explain
from graphxai.explainers import REGISTRY, get_explainer
from graphxai.explanation.compute.models import Model
from graphxai.visualization import grid_svg

from .figures import draw
from .method_values import MethodValues
from .output import save_report
from .robustness import merged_robustness
from .store import Key

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Report(MethodValues):
    """The values of several methods on the same graphs, with plots and export."""

    def plot(
        self, kind: str = "activation", *, operator: str | None = None, ax: "Axes | None" = None
    ) -> "Figure":
        """Draw one of `figures.PLOTS` with matplotlib.

        Args:
            kind: the name of the plot.
            operator: how nodes were removed, by default the first operator of the report.
            ax: the axes to draw in, such as a subplot of yours. By default the figure is new.
                Plots with several panels take none.

        Raises:
            ValueError: there is no such plot, nothing to draw, or several panels and an `ax`.
        """
        return draw(self, kind, operator, ax)

    def save(self, folder: str | Path) -> Path:
        """Write rows, tables, tests and figures to a folder, as `output.save_report` does."""
        return save_report(self, Path(folder))


def merged(reports: Iterable[Report]) -> Report:
    """Merge reports of several checkpoints that were measured with the same settings."""
    parts: Sequence[Report] = list(reports)
    if not parts:
        raise ValueError("there is no report to merge.")
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
    registered methods with the best AUAC, then `random`.

    Args:
        model: the explained model.
        inputs: the measured inputs, by key.
        report: the report of the benchmark.

    Returns:
        The picture as SVG, or None if the graphs cannot be drawn.
    """
    methods = _leading_methods(report)
    panels = []
    for key in _typical_graphs(report):
        for method in methods:
            explanation = explain(
                model, inputs[key], get_explainer(method), target=_target(report, key, model)
            )
            if not explanation.has_picture:
                return None
            title = f"{explanation.title} · {key}"
            panels.append(explanation.svg(title=title, subtitle=explanation.headline))
    return grid_svg(panels, len(methods))


def _leading_methods(report: Report) -> list[str]:
    ranked = [name for name in report.ranking(_metric(report)) if name in REGISTRY]
    return [*[name for name in ranked if name != "random"][: METHODS - 1], "random"]


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


def _target(report: Report, key: Key, model: Model) -> Any:
    """Return the class that the report tracked for a graph, or None for a regression."""
    text = next(u.target for u in report.units if u.graph == key and u.target)
    return None if text in {t.name for t in model.config.tasks if not t.classes} else text
