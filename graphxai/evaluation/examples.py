"""A picture of a benchmark's methods, side by side on a few of its graphs."""

from collections.abc import Mapping
from typing import Any

from graphxai.api import explain
from graphxai.explainers import REGISTRY
from graphxai.explanation.compute.models import Model
from graphxai.visualization import grid_svg

from .report import Report
from .store import Key

GRAPHS, METHODS = 3, 4


def examples_svg(model: Model, inputs: Mapping[Key, Any], report: Report) -> str | None:
    """Draw one row per graph and one column per method, each panel on a separate colour scale.

    The graphs are evenly spaced in the order of the best method's AUAC (the area under the
    activation curve), so that a good, a middling and a bad case are shown. The methods are the best
    registered ones by AUAC, then `random`.

    Args:
        model: the explained model.
        inputs: what was measured, by key.
        report: of the benchmark.

    Returns:
        SVG text; None if the graphs have no picture.
    """
    methods = _leading(report)
    panels = []
    for key in _typical(report):
        for method in methods:
            explanation = explain(model, inputs[key], method, target=_target(report, key, model))
            if not explanation.has_picture:
                return None
            title = f"{explanation.title} · {key}"
            panels.append(explanation.svg(title=title, subtitle=explanation.headline))
    return grid_svg(panels, len(methods))


def _leading(report: Report) -> list[str]:
    ranked = [name for name in report.ranking(_metric(report)) if name in REGISTRY]
    return [*[name for name in ranked if name != "random"][: METHODS - 1], "random"]


def _metric(report: Report) -> str:
    return "auac" if "auac" in report.metrics() else report.metrics()[0]


def _typical(report: Report) -> list[Key]:
    """Return keys of graphs at the upper end, middle and lower end of the best method's AUAC."""
    metric = _metric(report)
    best = _leading(report)[0]
    rows = report.rows
    chosen = rows[(rows.metric == metric) & (rows.method == best)]
    ranked = list(chosen.sort_values("value", kind="stable").graph.drop_duplicates())
    count = min(GRAPHS, len(ranked))
    places = [round((len(ranked) - 1) * (k + 0.5) / count) for k in range(count)]
    return [ranked[p] for p in reversed(places)]


def _target(report: Report, key: Key, model: Model) -> Any:
    """Return the class that the report tracked for a graph; None for a regression."""
    text = next(u.target for u in report.units if u.graph == key and u.target)
    return None if text in {t.name for t in model.config.tasks if not t.classes} else text
