"""Leave a page at each old address that leads to the new one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

MOVED = {
    "cite": "about.html#how-to-cite",
    "examples": "get-started.html#the-example-files",
    "gallery": "index.html#gallery",
    "glossary": "faq.html#glossary",
    "halls/chemist": "about.html#the-hall-of-the-chemist",
    "halls/explain": "about.html#the-hall-that-explains",
    "halls/learn": "about.html#the-hall-that-learns",
    "howto/chemprop": "howto/other-models.html#a-model-of-chemprop",
    "howto/properties": "howto/counterfactuals.html#several-properties-at-once",
    "howto/report": "howto/tables.html#a-report-to-pass-on",
    "howto/sequences-and-images": "howto/other-models.html#sequences-and-images",
    "licences": "about.html#licences",
    "limits": "trust.html#ten-limits",
    "limits-models": "trust.html#limits-of-methods-and-of-wrapped-models",
    "other-tools": "about.html#beside-other-tools",
    "papers": "about.html#papers",
    "project": "about.html#version-and-changes",
    "speed": "howto/platform.html#speed",
    "stability": "about.html#stable-names",
    "theory/learned": "theory/explainers.html#the-learned-order-of-nodes",
    "theory/path-marginals": "theory/explainers.html#methods-along-the-activation-curve",
    "theory/trust": "trust.html#the-verdict-of-trust",
    "theory/uncertainty": "trust.html#intervals-that-hold",
    "theory/wrapped-models": "theory/propagation.html#how-a-wrapped-model-is-followed",
}
PAGE = '<!doctype html><meta http-equiv="refresh" content="0; url={0}"><a href="{0}">Moved</a>\n'


def lead_on(app: Sphinx, failure: Exception | None) -> None:
    """Write the pages at the old addresses of MOVED."""
    if failure or app.builder.name != "html":
        return
    for old, new in MOVED.items():
        page = Path(app.outdir) / f"{old}.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(PAGE.format("../" * old.count("/") + new), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write them when all other pages are there."""
    app.connect("build-finished", lead_on)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
