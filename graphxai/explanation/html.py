"""HTML of tables in a notebook and of complete pages."""

from collections.abc import Iterable
from html import escape


def table_html(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A table as HTML, with all text escaped."""
    body = "".join(_row("td", row) for row in rows)
    return f"<table><thead>{_row('th', head)}</thead><tbody>{body}</tbody></table>"


def page_html(title: str, sections: Iterable[str]) -> str:
    """A complete page of sections, whose HTML is already escaped."""
    body = "".join(f"<section>{html}</section>" for html in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )


_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "img{max-width:100%}td,th{padding:0 .8em;text-align:right}"
    "section+section{border-top:1px solid #ccc;margin-top:2em;padding-top:1em}"
)


def _row(cell: str, values: Iterable[object]) -> str:
    return "<tr>" + "".join(f"<{cell}>{escape(str(v))}</{cell}>" for v in values) + "</tr>"
