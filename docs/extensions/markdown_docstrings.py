"""Convert docstrings, plain text with `code` in single backticks, to reStructuredText.

Code becomes a literal. Characters that are markup in reStructuredText (`*`, `|`, a trailing `_`)
are escaped. Signatures become shorter: a dataclass lists only the names of its fields, since its
docstring gives their shapes and units, arrays are `NDArray`, and the names of all methods, targets
and models are the types that list them.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_args

from graphxai.contract.method_names import MethodName
from graphxai.models.graphormer import ModelName, TargetName

if TYPE_CHECKING:
    from sphinx.application import Sphinx

CODE = re.compile(r"(?<!`)(?::\w+:)?`([^`]+)`(?!`)")  # with or without a role of Sphinx
MARKUP = re.compile(r"(?P<bullet>^ *\* )|[*|\\]|(?<=\w)_(?!\w)", re.MULTILINE)
ARRAY = re.compile(r"~?numpy\.ndarray\[tuple\[~?typing\.Any, \.\.\.\], ~?numpy\.dtype\[[^\]]*\]\]")


def to_rst(text: str) -> str:
    """Convert a docstring to reStructuredText."""
    pieces = CODE.split(text)  # prose and code alternate
    pieces[::2] = [MARKUP.sub(_escaped, prose) for prose in pieces[::2]]
    pieces[1::2] = [f"``{code.strip()}``" for code in pieces[1::2]]
    return "".join(pieces)


def _escaped(markup: re.Match[str]) -> str:
    """Return a character with a backslash, but the bullet of a list as it is."""
    return markup["bullet"] or f"\\{markup[0]}"


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrite a docstring in place."""
    lines[:] = to_rst("\n".join(lines)).split("\n")


def shorten(
    app: Sphinx,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str | None,
    returns: str | None,
) -> tuple[str, str | None] | None:
    """Return the signature and return type to show, or None if there is no signature."""
    if what == "class" and is_dataclass(obj):
        return f"({', '.join(field.name for field in fields(obj) if field.init)})", None
    if signature is None:
        return None
    return _with_short_types(signature), _with_short_types(returns) if returns else None


def _with_short_types(text: str) -> str:
    """Name long types in a signature instead of writing them out."""
    text = ARRAY.sub("NDArray", text)
    for name, alias in {
        "MethodName": MethodName, "TargetName": TargetName, "ModelName": ModelName
    }.items():  # fmt: skip
        listed = re.escape(", ".join(map(repr, get_args(alias))))
        text = re.sub(rf"~?(?:typing\.)?Literal\[{listed}\]", name, text)
    return text


def setup(app: Sphinx) -> dict[str, bool]:
    """Run before napoleon, which parses the sections."""
    app.connect("autodoc-process-docstring", process, priority=400)
    app.connect("autodoc-process-signature", shorten)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
