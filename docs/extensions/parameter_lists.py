"""Complete the list of a callable's parameters with types and defaults from its signature.

A docstring says what a parameter means, and the signature its type and its default. A parameter
that is a keyword of a settings object has its words in the docstring of that class.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from sphinx.util.typing import stringify_annotation

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SECTION = re.compile(r"^[A-Z][a-z]+:$")
ENTRY = re.compile(r"^ {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*): ?(.*)$")
DEFAULT = re.compile(r" By default (?:None|True|False|[-\d.]+|'[^']*'|\(.*\))\.$")
LONGEST = 100  # characters of a type; a longer one stands in the signature alone
ITSELF = ("self", "cls", "settings")


def complete(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrite the section of arguments in place."""
    if what not in ("function", "method") or not callable(obj):
        return
    try:
        signature = inspect.signature(obj)
    except (TypeError, ValueError):
        return
    parameters = {k: v for k, v in signature.parameters.items() if k not in ITSELF}
    if not parameters:
        return
    start, end = section(lines, "Args:")
    texts = entries(lines[start:end])
    types = written_types(obj)
    for settings in settings_of(signature):
        texts = entries(attributes_of(settings)) | texts
        types = written_types(settings) | types
    if not texts and len(parameters) == 1 and what == "method":
        return
    listed = ["", "Args:"]
    for key, parameter in parameters.items():
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        facts = type_and_default(parameter, types.get(key))
        words = [line for line in texts.get(key, []) if line]
        listed.append(f"    {star}{key}: {facts}{'.' if facts and not words else ''}")
        listed += [f"        {line}" for line in words]
    lines[start:end] = [*listed, ""]


def section(lines: list[str], title: str) -> tuple[int, int]:
    """Return where a section begins and ends; where it should be, if there is none."""
    starts = [at for at, line in enumerate(lines) if SECTION.match(line)]
    if title in lines:
        at = lines.index(title)
        return at, next((other for other in starts if other > at), len(lines))
    place = min(
        [at for at in starts if lines[at] in ("Returns:", "Yields:", "Raises:")] or [len(lines)]
    )
    return place, place


def entries(lines: list[str]) -> dict[str, list[str]]:
    """Return the words of each parameter, whether it has an entry of its own or shares one."""
    texts: dict[str, list[str]] = {}
    names: list[str] = []
    for line in lines:
        if match := ENTRY.match(line):
            names = [key.lstrip("*") for key in match[1].split(", ")]
            texts |= {key: [match[2]] for key in names}
        elif line.startswith(" " * 8):
            for key in names:
                texts[key].append(line.strip())
    return texts


def settings_of(signature: inspect.Signature) -> list[type]:
    """Return the class of settings whose fields are keywords of a callable."""
    parameter = signature.parameters.get("settings")
    kind = parameter.annotation if parameter else None
    return [kind] if isinstance(kind, type) and is_dataclass(kind) else []


def attributes_of(kind: type) -> list[str]:
    """Return the lines of a class's docstring that describe its attributes, without defaults."""
    lines = inspect.cleandoc(kind.__doc__ or "").split("\n")
    start, end = section(lines, "Attributes:")
    return [re.sub(DEFAULT, "", line) for line in lines[start:end]]


def written_types(obj: Any) -> dict[str, str]:
    """Return the types of a function's parameters or of a class's fields as the source has them."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(obj)))).body
    except (OSError, SyntaxError, TypeError, ValueError):
        return {}
    if isinstance(tree, ast.ClassDef):
        fields = [node for node in tree.body if isinstance(node, ast.AnnAssign)]
        return {ast.unparse(node.target): ast.unparse(node.annotation) for node in fields}
    if not isinstance(tree, ast.FunctionDef):
        return {}
    named = [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]
    return {arg.arg: ast.unparse(arg.annotation) for arg in named if arg.annotation}


def type_and_default(parameter: inspect.Parameter, written: str | None) -> str:
    """Return a parameter's type and its default as code, which no page links anywhere."""
    if written is None and parameter.annotation is not parameter.empty:
        written = stringify_annotation(parameter.annotation, "smart").replace("~", "")
    code = written.strip("'\"") if written and len(written) <= LONGEST else ""
    default = parameter.default
    shown = getattr(default, "__name__", None) or repr(default)
    if default is not parameter.empty and len(shown) <= LONGEST and shown != "<lambda>":
        code = f"{code} = {shown}".strip()
    return f"`{code}`" if code else ""


def setup(app: Sphinx) -> dict[str, bool]:
    """Run before docstrings become reStructuredText."""
    app.connect("autodoc-process-docstring", complete, priority=300)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
