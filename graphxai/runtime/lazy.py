"""Load the public names of a package when they are first used, so that it imports quickly.

The package lists the names as imports under `if TYPE_CHECKING:`, where type checkers see them, too:

    __getattr__, __dir__, __all__ = lazily(__name__, __file__)
"""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from graphxai.runtime.interrupts import interrupts_deferred

__all__ = ["folders_beside", "lazily"]


def lazily(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return a package's `__getattr__` and `__dir__`, and the sorted names that its `file` lists.

    `__dir__` has these names before they are loaded, so that a console completes them.
    """
    module_of = _modules_by_name(Path(file).read_text(encoding="utf-8"))
    namespace = vars(sys.modules[package])

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with interrupts_deferred():
            namespace[name] = getattr(import_module(module_of[name], package), name)
        return namespace[name]

    return load, lambda: sorted({*namespace, *module_of}), sorted(module_of)


def _modules_by_name(source: str) -> dict[str, str]:
    """Return the names imported under `if TYPE_CHECKING:`, each with its module."""
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    (listed,) = [node for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING"]
    return {
        alias.name: "." * statement.level + str(statement.module)
        for statement in listed.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


def folders_beside(package: str) -> list[str]:
    """Return the root of a checkout whose links git could not make, and otherwise no folder.

    In the repository, `graphxai/models` and `graphxai/datasets` are symbolic links to the folders
    of these names at its root. Without the links, as on Windows by default, git writes small text
    files in their place, and Python has to look for the folders at the root. An installed package
    contains both folders, so Python never looks beside it.

    Args:
        package: the file `__init__.py` of the package.
    """
    folder = Path(package).parent
    root = folder.parent
    is_complete = (folder / "models").is_dir() and (folder / "datasets").is_dir()
    is_checkout = (root / "models" / "graphormer").is_dir() and (root / "datasets").is_dir()
    return [str(root)] if is_checkout and not is_complete else []
