"""Make one HTML file from template, style, script and data, where only our script can run.

The data are a block of JSON without a single `<`. The script inserts text as nothing but text. A
content security policy allows exactly this script and style, by their hashes, and no network.
"""

import html
import json
import math
import re
from importlib.resources import files
from typing import Any

from markdown_it import MarkdownIt  # typer brings it with rich

from graphxai.evaluation.trust.trust import level_properties
from graphxai.explanation.html import security_policy

SCRIPTS = (  # the order matters, because each file uses constants of those before it
    *("draw.js", "basket.js", "properties.js", "report.js", "rows.js", "fragments.js"),
    *("structure_activity.js", "sar.js", "measured.js", "map.js", "detail.js", "start.js"),
)
FEATURE_BLOCK = 100  # molecules
FORBIDDEN = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def render(data: dict[str, Any], title: str, card: str) -> str:
    """Make the page as HTML, from data (JSON values), a title and a model card (Markdown)."""
    folder = files(__package__)
    style, template = (
        (folder / name).read_text(encoding="utf-8") for name in ("report.css", "template.html")
    )
    style = style.replace("{{LEVELS}}", level_properties("{0}"))
    style = style.replace("{{DARK_LEVELS}}", level_properties("{1}"))
    script = "".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)
    data, blocks = _without_features(data)
    parts = {
        "POLICY": html.escape(security_policy(style, script)),
        "TITLE": html.escape(title),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": embedded(data),
        "FEATURES": "\n".join(
            f'<script type="application/json" class="features">{embedded(numbers)}</script>'
            for numbers in blocks
        ),
        "CARD": card_html(card),
    }
    # A single pass fills all placeholders, so that inserted text is not searched for them.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], template)


def _without_features(data: dict[str, Any]) -> tuple[dict[str, Any], list[list[list[int]]]]:
    """Take the relevance of features out of the data, in blocks of molecules.

    These numbers are half of a long page, and few of them are ever shown. So the page reads a block
    when it is needed. A number is written as a whole one, in tenths of the last decimal shown.
    """
    decimals = max(0, 3 - math.floor(math.log10(data["limit"])))
    numbers = [
        [round(value * 10**decimals) for atom in molecule.get("features", ()) for value in atom]
        for molecule in data["molecules"]
    ]
    molecules = [
        {name: value for name, value in molecule.items() if name != "features"}
        for molecule in data["molecules"]
    ]
    about = {"feature_block": FEATURE_BLOCK, "feature_decimals": decimals}
    starts = range(0, len(numbers) if any(numbers) else 0, FEATURE_BLOCK)
    blocks = [numbers[start : start + FEATURE_BLOCK] for start in starts]
    return data | about | {"molecules": molecules}, blocks


def embedded(data: Any) -> str:
    """Return JSON that is safe inside an HTML script: no `<`, `>`, `&` or line separators."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character, escape in FORBIDDEN.items():
        text = text.replace(character, escape)
    return text.encode("utf-8", "replace").decode()  # a lone surrogate is not valid UTF-8


def card_html(markdown: str) -> str:
    """Turn a model card into HTML with headings, paragraphs, tables, lists and code.

    Links and images stay text, and everything else is escaped.
    """
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    reader.disable(["link", "image", "autolink", "reference"])
    tokens = reader.parse(markdown)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + 2, 6)}"  # below the page's own headings
    return str(reader.renderer.render(tokens, reader.options, {}))
