"""The files that make up the server's page and the notebook's view."""

import re
from importlib.resources import files


def part_of(name: str) -> str:
    """The text of a file in this folder; draw.js is shared with the report."""
    folder = files("graphxai.tables.report" if name == "draw.js" else __package__)
    return (folder / name).read_text(encoding="utf-8")


def filled(name: str, **parts: str) -> str:
    """The text of a file with its {{PLACES}} filled."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], part_of(name))
