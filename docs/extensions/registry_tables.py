"""Make the tables of methods, metrics and models when the pages are built, from what is registered.

A page says where a table belongs. Readers of the file see other words there:

    <!-- made from the registry: methods -->
    `graphxai methods` prints this table.
    <!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphxai.evaluation.metrics import METRICS, Metric
from graphxai.explainers import REGISTRY, Explainer
from graphxai.explanation.api import load
from graphxai.models.graphormer import only_starts, pretrained_names

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parents[1]
FEW = 3  # tasks that are listed by name
DEFINITIONS = ("theory/propagation.md", "theory/explainers.md")  # pages that define methods
PLACE = re.compile(
    r"<!-- made from the registry: (?P<table>[\w ]+) -->\n.*?^<!-- end -->$",
    re.MULTILINE | re.DOTALL,
)


def filled(page: str) -> str:
    """Return the text of a page with its tables."""
    return PLACE.sub(lambda place: TABLES[place["table"]](), page)


def table_of_methods() -> str:
    """Return a row for each registered method."""
    return table(
        ("name", "what it is", "source", "passes", "gives"),
        (
            (f"`{name}`", summary(cls), cls.source, cls.traits.cost, gives(cls))
            for name, cls in REGISTRY.items()
        ),
    )


def gives(cls: type[Explainer]) -> str:
    """Say in words what the scores of a method are."""
    kind = "shares" if cls.traits.adds_up else "scores"
    if cls.traits.in_output_units:
        kind += " in units of the output"
    if cls.traits.large_score_means:
        kind += f" without a sign ({cls.traits.large_score_means})"
    remarks = (cls.traits.caveat, f"**{cls.traits.note}**" if cls.traits.note else "")
    return "; ".join(filter(None, (kind, *remarks)))


def table_of_metrics() -> str:
    """Return a row for each registered metric."""
    return table(
        ("metric", "better", "definition", "source"),
        (
            (f"`{name}`", metric.direction.partition(" ")[0], metric_summary(metric), metric.source)
            for name, metric in METRICS.items()
        ),
    )


def metric_summary(metric: Metric) -> str:
    """Return the definition of a metric, and to which tasks it applies."""
    return metric.summary + (" Only for classes." if metric.classes_only else "")


def table_of_models() -> str:
    """Return a row for each bundled model."""
    return table(("name", "predicts", "test score"), map(row_of_model, pretrained_names()))


def row_of_model(name: str) -> tuple[str, str, str]:
    """Return what a bundled model predicts, and the summary of its test."""
    model = load(name)
    tasks = model.config.tasks
    words = [f"{task.name} ({task.unit})" if task.unit else task.name for task in tasks]
    predicts = ", ".join(words) if len(tasks) <= FEW else f"{len(tasks)} tasks"
    return f"`{name}`", "" if only_starts(model) else predicts, model.origin.metadata["summary"]


def further_methods() -> str:
    """Return a list of the methods that no page defines, with their docstrings."""
    pages = "".join((DOCS / page).read_text(encoding="utf-8") for page in DEFINITIONS)
    undefined = [(name, cls) for name, cls in REGISTRY.items() if f"`{name}`" not in pages]
    if not undefined:
        return ""
    entries = [f"`{name}`\n: {summary(cls)} ({cls.source})" for name, cls in undefined]
    return "\n\n".join(["## Further methods", *entries])


def kinds_of_models() -> str:
    """Return the table that `benchmarks/kinds.py` measured, and the sentences of refusals."""
    page = (DOCS.parent / "benchmarks" / "results" / "kinds.md").read_text(encoding="utf-8")
    return page[page.index("\n* ") :].strip()


TABLES: dict[str, Callable[[], str]] = {
    "methods": table_of_methods,
    "metrics": table_of_metrics,
    "models": table_of_models,
    "further methods": further_methods,
    "kinds of models": kinds_of_models,
}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [
        header,
        ["---"] * len(header),
        *([cell.replace("|", r"\|") for cell in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def summary(cls: type[Explainer]) -> str:
    """Return the first sentence of the docstring."""
    text = " ".join((cls.__doc__ or "").split())
    first = re.match(r"(?:`[^`]*`|[^`])*?\.(?=\s|$)", text)
    return first[0] if first else text


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    """Fill in the tables of a page that Sphinx has read."""
    source[0] = filled(source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Fill in pages before they are parsed."""
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
