"""Make a report's table for a paper (LaTeX) and for spreadsheets, with the time of each method."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .method_values import MethodValues
from .metrics import METRICS

if TYPE_CHECKING:
    import pandas as pd

    from .statistics import Interval

SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip


def table_frame(report: MethodValues) -> pd.DataFrame:
    """Return a table with a row for each operator, metric and method.

    Its columns are the mean with the ends of its 95 % bootstrap interval, the number of graphs, and
    the mean time of one explanation in milliseconds.
    """
    import pandas as pd

    seconds = report.seconds()
    rows = [
        (operator, metric, name, each.mean, each.low, each.high, each.n, 1000 * seconds[name])
        for operator in report.operators or ("none",)
        for metric in report.metrics(operator)
        for name, each in report.intervals(metric, operator).items()
    ]
    columns = ["operator", "metric", "method", "mean", "low", "high", "graphs", "ms"]
    return pd.DataFrame(rows, columns=columns)


def table_latex(report: MethodValues) -> str:
    """Return the table of each operator in LaTeX (package booktabs), with the best mean in bold."""
    return "\n".join(_tabular(report, operator) for operator in report.operators or ("none",))


def _tabular(report: MethodValues, operator: str) -> str:
    """Return the table of one operator."""
    metrics = report.metrics(operator)
    intervals = {metric: report.intervals(metric, operator) for metric in metrics}
    best = {metric: report.ranking(metric, operator)[0] for metric in metrics}
    seconds = report.seconds()
    graphs = len({unit.graph for unit in report.units})
    removal = f", nodes removed by {operator}" if report.operators else ""
    lines = [
        f"% {graphs} graphs{removal}; means with 95 % bootstrap intervals; ms for one explanation",
        rf"\begin{{tabular}}{{l{'c' * len(metrics)}r}}",
        r"\toprule",
        " & ".join(["method", *map(_heading, metrics), "ms"]) + r" \\",
        r"\midrule",
    ]
    for name in report.methods:
        cells = [_cell(intervals[metric][name], bold=best[metric] == name) for metric in metrics]
        time = f"{1000 * seconds[name]:.1f}" if math.isfinite(seconds[name]) else "--"
        lines.append(" & ".join([_escaped(report.labelled(name)), *cells, time]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _heading(metric: str) -> str:
    """Return a metric's name with an arrow that says which values are better."""
    if metric not in METRICS:
        return _escaped(metric)
    arrow = r"\uparrow" if METRICS[metric].higher_is_better else r"\downarrow"
    return f"{_escaped(metric)} ${arrow}$"


def _cell(interval: Interval, *, bold: bool) -> str:
    """Return a mean with its interval."""
    if not interval.n:
        return "--"
    mean = f"{interval.mean:.3f}".replace("-", "$-$")
    ends = f"[{interval.low:.3f}, {interval.high:.3f}]".replace("-", "$-$")
    mean = rf"\textbf{{{mean}}}" if bold else mean
    return rf"{mean} {{\small {ends}}}"


def _escaped(text: str) -> str:
    """Escape all characters of a text that have a meaning in LaTeX."""
    return "".join(SPECIAL.get(character, character) for character in " ".join(text.split()))
