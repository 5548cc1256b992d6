"""Draw a benchmark's methods side by side on a few of its graphs."""

from collections.abc import Mapping
from typing import Any

from graphxai.api import explain
from graphxai.explainers import REGISTRY, get_explainer
from graphxai.explanation.compute.models import Model
from graphxai.visualization import grid_svg

from .report import Report
from .store import Key

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
