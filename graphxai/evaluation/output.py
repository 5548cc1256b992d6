"""Write a report to a folder, with all rows, tables, tests and figures, and how they were made."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from graphxai.explanation.files import write_csv, write_parquet
from graphxai.runtime.writing import atomic_write, folder_at, markdown_table, write_whole

from .method_values import MethodValues
from .metrics import DEFAULT_METRICS, higher_is_better, known_metric
from .robustness import SHARES
from .statistics import COLUMNS
from .store import finite_or_null

LEADING = (*DEFAULT_METRICS, "roar")  # the metrics that the summary tests


def save_report(report: MethodValues, folder: Path) -> Path:
    """Write the report to a folder.

    The files are

    * `results.csv`, and with pyarrow `results.parquet`: all rows;
    * `comparisons.csv`: all tests;
    * `summary.json` and `summary.md`: the summary for programs and readers;
    * `table.csv`, with pyarrow `table.parquet`, and `table.tex`: the summary's table for
      spreadsheets, programs and papers;
    * the figures as PNG and SVG.
    """
    folder_at(folder)
    write_csv(report.rows, folder / "results.csv", index=False)
    write_csv(comparisons(report), folder / "comparisons.csv", index=False)
    figures = _save_figures(report, folder)
    summary = json.dumps(_summary(report), indent=1, allow_nan=False)
    write_whole(folder / "summary.json", summary + "\n")
    write_whole(folder / "summary.md", summary_markdown(report, figures))
    frame = table_frame(report)
    write_csv(frame, folder / "table.csv", index=False)
    if find_spec("pyarrow") is not None:
        rows = report.rows.assign(graph=report.rows.graph.astype(str))
        for name, table in (("results", rows), ("table", frame)):
            write_parquet(table, folder / f"{name}.parquet")
    write_whole(folder / "table.tex", latex_tables(report))
    return folder


def comparisons(report: MethodValues) -> pd.DataFrame:
    """Compare all pairs of methods for each metric and operator, each with Holm's correction."""
    rows = []
    for operator in report.operators or ("none",):
        for metric in report.metrics(operator):
            for compared in report.compare(metric=metric, operator=operator):
                rows.append({"operator": operator, "metric": metric} | compared.to_dict())
    return pd.DataFrame(rows, columns=["operator", "metric", *COLUMNS])


def summary_markdown(report: MethodValues, figures: list[str]) -> str:
    """Write the report as Markdown text and tables."""
    graphs = len({unit.graph for unit in report.units})
    lines = [
        "# Faithfulness",
        "",
        f"{graphs} graphs. Mean over graphs with 95 % bootstrap interval (4,000 resamplings); cells"
        " based on fewer graphs say so.",
        "",
    ]
    if report.rejected:
        lines += [f"{len(report.rejected)} inputs were left out:", ""]
        lines += [f"* {key}: {_cell(reason)}" for key, reason in report.rejected[:10]]
        lines += [f"* and {len(report.rejected) - 10} more"] if len(report.rejected) > 10 else []
        lines += [""]
    for method, failed in report.failures.items():
        lines += [
            f"`{_cell(method)}` gave no scores for {len(failed)} graphs: {_cell(failed[0][1])}",
            "",
        ]
    said = [line + "\n" for line in report.sentences()]
    lines = [*lines[:2], *_robustness(report), *said, *lines[2:]]
    for operator in report.operators or ("none",):
        lines += [f"## Nodes removed by `{operator}`", ""] if report.operators else []
        lines += _table(report, operator)
        for metric in LEADING:
            if metric in report.metrics(operator):
                lines += _against_the_best(report, metric, operator)
    lines += _operators(report) + _seeds(report) + _conservation(report) + _glossary(report)
    lines += [f"![{name}]({name}.png)" for name in figures] + [""] if figures else []
    made = json.dumps(finite_or_null(report.settings), indent=1).replace("<", "\\u003c")
    lines += ["## How it was made", "", "```json", made, "```", ""]
    return "\n".join(lines)


def _robustness(report: MethodValues) -> list[str]:
    """Write how the model itself fares with nodes removed at random."""
    if not report.robustness:
        return []
    rows = [["removed by", "", *(f"{100 * share:.0f} %" for share in SHARES)]]
    rows += [
        [f"`{operator}`", of.measure, *(f"{value:.3f}" for value in of.values)]
        for operator, of in report.robustness.items()
    ]
    about = "The model itself, with shares of the nodes removed at random:"
    return [about, "", markdown_table(rows), ""]


def _table(report: MethodValues, operator: str) -> list[str]:
    frame = report.table(operator, costs=True)
    lines = []
    for start in range(0, len(frame.columns), 6):  # wider tables are unreadable
        some = frame.iloc[:, start : start + 6]
        rows = [[_name(report, name), *row] for name, row in some.iterrows()]
        arrows = {m: "↑" if higher_is_better(m) else "↓" for m in report.metrics(operator)}
        heads = [f"{name} {arrows.get(name, '')}".rstrip() for name in some.columns]
        lines += [markdown_table([["method", *heads], *rows]), ""]
    return [*lines, "ms: mean time of one explanation, of graphs that share passes.", ""]


def _against_the_best(report: MethodValues, metric: str, operator: str) -> list[str]:
    """Write the tests of the best method against every other method."""
    if len(report.methods) < 2:
        return []
    best = report.ranking(metric, operator)[0]
    head = ("method", "difference [95 % interval]", "p (Holm)", "effect d_z", "")
    rows = [
        (
            _name(report, c.second),
            str(c.difference),
            f"{c.p_adjusted:.2g}",
            f"{c.effect:+.2f}",
            "" if c.significant else "not significant",
        )
        for c in report.against_the_best(metric, operator)
    ]
    return [
        f"{_name(report, best)} has the best mean {metric}. Tests against it (Wilcoxon; Holm's"
        " correction counts all pairs of methods, because the same graphs picked the best):",
        "",
        markdown_table([head, *rows]),
        "",
    ]


def milliseconds(seconds: float) -> str:
    """Write a mean time, or "" where it was not measured."""
    return f"{1000 * seconds:.2f}" if math.isfinite(seconds) else ""


def _operators(report: MethodValues) -> list[str]:
    if len(report.operators) < 2:
        return []
    lines = ["## Does the ranking depend on how nodes are removed?", ""]
    lines += ["Kendall's tau between the rankings of methods by their means.", ""]
    for metric in LEADING:
        if metric in report.metrics(report.operators[0]):
            frame = report.agreement(metric)
            rows = [[str(name), *(f"{v:.2f}" for v in row)] for name, row in frame.iterrows()]
            lines += [markdown_table([[metric, *frame.columns], *rows]), ""]
    return lines


def _seeds(report: MethodValues) -> list[str]:
    if len({unit.checkpoint for unit in report.units}) < 2:
        return []
    lines = ["## Between checkpoints", ""]
    for metric in LEADING:
        if metric in report.metrics():
            frame = report.seeds(metric)
            rows = [
                [_name(report, name), *(f"{v:.3f}" for v in row)] for name, row in frame.iterrows()
            ]
            head = [metric, *(_cell(str(c)) for c in frame.columns)]
            lines += [markdown_table([head, *rows]), ""]
    return lines


def _conservation(report: MethodValues) -> list[str]:
    conserved = report.conservation()
    if not conserved:
        return []
    rows = [
        (
            f"`{_cell(name)}`",
            *(f"{value:.3f}" for value in (c.slope, c.correlation, c.gap)),
            f"{c.unexplained:.2g}",
        )
        for name, c in conserved.items()
    ]
    return [
        "## Conservation",
        "",
        "Sum of relevance (nodes and graph token) against the output. Gap: mean absolute"
        " difference; unexplained: the same after adding biases.",
        "",
        markdown_table([("method", "slope", "correlation", "gap", "unexplained"), *rows]),
        "",
    ]


def _glossary(report: MethodValues) -> list[str]:
    """Say what each metric measures."""
    value = report.settings.get("value")
    p = "the probability of the explained class"
    p = p if value is None else f"how far {_cell(value)} has moved from that without nodes"
    lines = [
        "## What the metrics measure",
        "",
        f"p is {p} for the whole graph, p(top k) for only the k most relevant nodes, and p(rest k)"
        " for the graph without these.",
        "",
    ]
    measured = [metric for name in report.metrics() if (metric := known_metric(name))]
    lines += [
        f"* `{_cell(metric.name)}`: {_cell(metric.summary)} {metric.direction.capitalize()}"
        f" ({_cell(metric.source)})."
        for metric in measured
    ]
    return [*lines, ""] if measured else []


def _summary(report: MethodValues) -> dict[str, Any]:
    """Return the report as JSON values, for programs."""
    results: dict[str, Any] = {}
    for operator in report.operators or ("none",):
        for metric in report.metrics(operator):
            values = report.intervals(metric, operator)
            of_methods = {name: vars(interval) for name, interval in values.items()}
            results.setdefault(operator, {})[metric] = of_methods
    summary = {
        "graphs": len({unit.graph for unit in report.units}),
        "rejected": [[key, reason] for key, reason in report.rejected],
        "failures": {name: len(values) for name, values in report.failures.items()},
        "results": results,
        "seconds": report.seconds(),
        "passes": report.passes(),
        "agreement": {
            metric: report.agreement(metric).to_dict()
            for metric in LEADING
            if len(report.operators) > 1 and metric in report.metrics(report.operators[0])
        },
        "conservation": {
            name: {k: getattr(c, k) for k in ("slope", "correlation", "gap", "unexplained")}
            for name, c in report.conservation().items()
        },
        "settings": report.settings,
    }
    return finite_or_null(summary)


def _save_figures(report: MethodValues, folder: Path) -> list[str]:
    """Draw all figures that the report allows, and return their names."""
    names = []
    for operator in report.operators:
        curves = ("activation", "pruning") if any(u.curves for u in report.units) else ()
        for kind in (*curves, "forest"):
            suffix = "" if operator == report.operators[0] else f"-{operator}"
            _save(report, kind, folder / f"{kind}{suffix}", operator)
            names.append(f"{kind}{suffix}")
    further = {"conservation": report.conservation(), "randomisation": report.randomisation()}
    for kind in (name for name, values in further.items() if values):
        _save(report, kind, folder / kind, None)
        names.append(kind)
    return names


def _save(report: Any, kind: str, stem: Path, operator: str | None) -> None:
    figure = report.plot(kind, operator=operator)
    with atomic_write(stem.with_suffix(".png"), "wb") as file:
        figure.savefig(file, format="png", dpi=160)
    figure.set_layout_engine("none")  # the PNG is laid out already, and this step takes longest
    with atomic_write(stem.with_suffix(".svg"), "wb") as file:
        figure.savefig(file, format="svg")


def _name(report: MethodValues, method: Any) -> str:
    """Return a method's name in a table, with its note."""
    name, note = _cell(method), report.labelled(method)[len(method) :]
    return f"`{name}`{note}"


def _cell(text: str) -> str:
    """Make a text safe for a Markdown table, because users choose some of the names."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("`", "'").replace("<", "&lt;")


LATEX_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip


def table_frame(report: MethodValues) -> pd.DataFrame:
    """Return a table with a row for each operator, metric and method.

    Its columns are the mean with the ends of its 95 % bootstrap interval over graphs, the number of
    graphs, the standard deviation of the means of several models (`sd`, and how many `models` there
    are), whether the mean is the best or ties with it (`best`), the mean time of one explanation in
    milliseconds (`ms`), and the passes that the method says it takes (`passes`).
    """
    seconds, passes = report.seconds(), report.passes()
    rows: list[tuple[Any, ...]] = []
    for operator in report.operators or ("none",):
        for metric in report.metrics(operator):
            seeds, best = report.seeds(metric, operator), report.best(metric, operator)
            rows += [
                (
                    operator, metric, name, each.mean, each.low, each.high, each.n,
                    seeds.sd[name], seeds.shape[1] - 2, name in best,
                    1000 * seconds[name], passes[name],
                )
                for name, each in report.intervals(metric, operator).items()
            ]  # fmt: skip
    columns = ["operator", "metric", "method", "mean", "low", "high", "graphs"]
    return pd.DataFrame(rows, columns=[*columns, "sd", "models", "best", "ms", "passes"])


def latex_tables(report: MethodValues) -> str:
    """Return the summary's tables in LaTeX, one for each operator."""
    return "\n".join(latex_table(report, each) for each in report.operators or ("none",))


def latex_table(report: MethodValues, operator: str) -> str:
    """Return the table of an operator in LaTeX (booktabs), with the best means in bold."""
    metrics = report.metrics(operator)
    frame = table_frame(report)
    cells = frame[frame.operator == operator].set_index(["method", "metric"])
    graphs = len({unit.graph for unit in report.units})
    removal = f", nodes removed by {operator}" if report.operators else ""
    models = len({unit.checkpoint for unit in report.units})
    spread = f"; $\\pm$ standard deviation between {models} models" if models > 1 else ""
    arrows = {True: r"$\uparrow$", False: r"$\downarrow$"}  # which values are better
    heads = [f"{_latex_escaped(m)} {arrows[higher_is_better(m)]}" for m in metrics]
    lines = [
        f"% {graphs} graphs{removal}; means with 95 % bootstrap intervals over graphs{spread};"
        " bold: the best means; ms and passes for one explanation",
        rf"\begin{{tabular}}{{l{'c' * len(metrics)}rl}}",
        r"\toprule",
        " & ".join(["method", *heads, "ms", "passes"]) + r" \\",
        r"\midrule",
    ]
    for name in report.methods:
        rows = [cells.loc[(name, metric)] for metric in metrics]
        ends = milliseconds(rows[0].ms / 1000) or "--", _latex_escaped(rows[0].passes)
        row = [_latex_escaped(report.labelled(name)), *map(_latex_cell, rows), *ends]
        lines.append(" & ".join(row) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex_cell(row: Any) -> str:
    """Return a mean with its interval, and its spread between models if there are several."""
    if not row.graphs:
        return "--"
    mean = f"{row['mean']:z.3f}".replace("-", "$-$")
    ends = f"[{row.low:z.3f}, {row.high:z.3f}]".replace("-", "$-$")
    spread = rf" $\pm$ {row.sd:.3f}" if row.models > 1 else ""
    mean = rf"\textbf{{{mean}}}" if row.best else mean
    return rf"{mean}{spread} {{\small {ends}}}"


def _latex_escaped(text: str) -> str:
    """Escape all characters of a text that have a meaning in LaTeX."""
    return "".join(LATEX_SPECIAL.get(character, character) for character in " ".join(text.split()))
