"""HTML of the tables that results show in a notebook."""

from collections.abc import Iterable
from html import escape


def table_html(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A table as HTML, everything in it escaped."""
    body = "".join(_row("td", row) for row in rows)
    return f"<table><thead>{_row('th', head)}</thead><tbody>{body}</tbody></table>"


def _row(cell: str, values: Iterable[object]) -> str:
    return "<tr>" + "".join(f"<{cell}>{escape(str(v))}</{cell}>" for v in values) + "</tr>"
