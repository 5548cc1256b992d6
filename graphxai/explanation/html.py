"""Make the HTML of tables in a notebook and of complete pages."""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from html import escape, unescape


class Markup(str):
    """Text that is HTML already, such as an image in a cell."""


def image_html(picture: str | bytes, text: str) -> Markup:
    """Return an SVG or PNG picture as an image with a text for those who do not see it.

    Each picture is a separate document, because two may use the same ids.
    """
    content, kind = (
        (picture, "png") if isinstance(picture, bytes) else (picture.encode(), "svg+xml")
    )
    code = base64.b64encode(content).decode()
    return Markup(f'<img alt="{escape(text)}" src="data:image/{kind};base64,{code}">')


def table_html(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a table as HTML, with all text escaped that is no `Markup`."""
    body = "".join(_row("td", row) for row in rows)
    return f"<table><thead>{_row('th', head)}</thead><tbody>{body}</tbody></table>"


def fields_html(fields: Mapping[str, object]) -> str:
    """Return the fields of one thing as HTML, a row each, with numbers rounded.

    Fields that are empty or None are left out.
    """
    rows = "".join(
        f'<tr><th style="text-align: left">{escape(name.replace("_", " "))}</th>'
        f'<td style="text-align: left">{escape(_field_text(value))}</td></tr>'
        for name, value in fields.items()
        if value is not None and value != ""
    )
    return f"<table>{rows}</table>"


def _field_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def security_policy(
    style: str, script: str = "", *, rest: str = "", loaded: Iterable[str] = ()
) -> str:
    """Return a content security policy that allows no network, and only this style and script.

    Style and script are allowed by their hashes. Without a script, none can run.

    Args:
        rest: further directives.
        loaded: the addresses of files that the script may load as scripts.
    """
    allowed = f" script-src {' '.join([_quoted_hash(script), *loaded])};" if script else ""
    return (
        f"default-src 'none'; style-src {_quoted_hash(style)}{rest};{allowed}"
        " base-uri 'none'; form-action 'none'"
    )


def page_html(title: str, sections: Iterable[str]) -> str:
    """Make a page of sections with HTML that is already escaped. No script can run in it."""
    body = "".join(f"<section>{html}</section>" for html in sections)
    # escaped text has no plain quotes, so only attributes of our tables match
    styles = sorted({_quoted_hash(unescape(text)) for text in re.findall(r'style="([^"]*)"', body)})
    hashes = " ".join(["", "'unsafe-hashes'", *styles])
    policy = security_policy(_STYLE, rest=f"{hashes}; img-src data:")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )


_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "img{max-width:100%}td,th{padding:0 .8em;text-align:right}"
    "section+section{border-top:1px solid #ccc;margin-top:2em;padding-top:1em}"
)


def _quoted_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _row(cell: str, values: Iterable[object]) -> str:
    cells = (value if isinstance(value, Markup) else escape(str(value)) for value in values)
    return "<tr>" + "".join(f"<{cell}>{text}</{cell}>" for text in cells) + "</tr>"
