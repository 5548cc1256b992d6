"""Public names of a package that are loaded when they are first used, so that it imports quickly.

A package lists them as imports under `if TYPE_CHECKING:`, where type checkers read them:

    _load, _lazy = lazily(__name__, __file__)
    def __getattr__(name: str) -> Any: return _load(name)
"""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["lazily"]


def lazily(package: str, file: str) -> tuple[Callable[[str], Any], list[str]]:
    """What loads a name of a package, and the names that its `file` lists, sorted.

    Raises AttributeError, when a name is loaded that is not listed.
    """
    module_of = _listed(Path(file).read_text(encoding="utf-8"))

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, sorted(module_of)


def _listed(source: str) -> dict[str, str]:
    """The names imported under `if TYPE_CHECKING:`, each with its module."""
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    (listed,) = [node for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING"]
    return {
        alias.name: "." * statement.level + str(statement.module)
        for statement in listed.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
