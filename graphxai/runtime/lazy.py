"""Import the package: its public names when they are first used, and libraries in one piece.

The package lists its names as imports under `if TYPE_CHECKING:`, where type checkers see them, too:

    __getattr__, __dir__, __all__ = lazily(__name__, __file__)

In a notebook or console, no interrupt stops an import in the middle. Python forgets a module whose
import was stopped, but not what the import had done so far: compiled parts are loaded, operators
are registered, and some submodules stay. Most libraries cannot be imported again after that, so
that pandas, Matplotlib or PyTorch would fail until the kernel is restarted. Many are imported only
when a function first needs them, which is when people wait and press Ctrl-C.
"""

import ast
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import (
    ExtensionFileLoader,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from types import ModuleType
from typing import Any

from graphxai.runtime.interrupts import (
    interrupt_if_deferred,
    interrupts_are_deferred,
    interrupts_deferred,
)


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


LIBRARIES = {
    "PIL", "anywidget", "chemprop", "contourpy", "fontTools", "fpdf", "graphxai", "ipywidgets",
    "lightning", "llvmlite", "matplotlib", "networkx", "numba", "numpy", "ogb", "openpyxl",
    "pandas", "pyarrow", "pytorch_lightning", "pyvips", "ray", "rdkit", "scipy", "selfies",
    "skimage", "sklearn", "torch", "torch_geometric", "torchmetrics",
}  # fmt: skip
"""The packages that are imported in one piece: ours, and those that it uses."""

OURS = "graphxai"
# What a library imports, in parts that are loaded before it, so that an interrupt waits less.
PARTS = {"torch_geometric": ("aiohttp", "pandas", "sympy", "torch._dynamo")}
_SETTLED = 0.05  # seconds in which Python has put a loaded module in its place
_LOADERS = (SourceFileLoader, SourcelessFileLoader, ExtensionFileLoader)


def is_interactive() -> bool:
    """Return whether a person works at a prompt or in a notebook, where Python lives on."""
    return hasattr(sys, "ps1") or "IPython" in sys.modules or "marimo" in sys.modules


def import_in_one_piece() -> None:
    """Let an interrupt wait for the end of the import of any of `LIBRARIES`."""
    if not any(isinstance(finder, _WholeImports) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WholeImports())


class _WholeImports:
    """A finder of modules, which leaves finding to the others and changes how they are loaded."""

    def __init__(self) -> None:
        self._in_library = False  # whether another library than ours is being loaded

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is, with a loader that no interrupt stops.

        Our modules import libraries in their first lines, before they do anything, and are loaded
        again after an interrupt. So one that came meanwhile takes effect before the next library.
        """
        library = name.partition(".")[0]
        if interrupts_are_deferred():
            if library == OURS or self._in_library:
                return None
            for part in PARTS.get(name, ()):
                with suppress(ImportError):
                    import_module(part)
            interrupt_if_deferred()
        elif library not in LIBRARIES:
            return None
        others = (each for each in sys.meta_path if each is not self and hasattr(each, "find_spec"))
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and isinstance(spec.loader, _LOADERS):
            self._let_interrupts_wait(spec.loader, library)
        return spec

    def _let_interrupts_wait(self, loader: Any, library: str) -> None:
        """Let the next module that a loader executes be executed whole."""
        execute = loader.exec_module

        def execute_whole(module: ModuleType) -> None:
            loader.exec_module = execute
            # raised in here, the interrupt would make Python forget the module
            with interrupts_deferred(wait=_SETTLED):
                self._in_library = library != OURS
                try:
                    execute(module)
                finally:
                    self._in_library = False

        loader.exec_module = execute_whole
