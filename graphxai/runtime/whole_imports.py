"""Let no interrupt stop an import in the middle, in a notebook or console.

Python forgets a module whose import was stopped, but not what the import had done so far: compiled
parts are loaded, operators are registered, and some submodules stay. Most libraries cannot be
imported again after that, so that pandas, Matplotlib or PyTorch would fail until the kernel is
restarted. Many are imported only when a function first needs them, which is when people wait and
press Ctrl-C.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import (
    ExtensionFileLoader,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from types import ModuleType
from typing import Any

from graphxai.runtime.interrupts import (
    interrupt_if_deferred,
    interrupts_are_deferred,
    interrupts_deferred,
)

__all__ = ["LIBRARIES", "import_in_one_piece", "is_interactive"]

LIBRARIES = {
    "PIL",
    "anywidget",
    "chemprop",
    "contourpy",
    "fontTools",
    "fpdf",
    "graphxai",
    "ipywidgets",
    "lightning",
    "llvmlite",
    "matplotlib",
    "networkx",
    "numba",
    "numpy",
    "ogb",
    "openpyxl",
    "pandas",
    "pyarrow",
    "pytorch_lightning",
    "pyvips",
    "ray",
    "rdkit",
    "scipy",
    "selfies",
    "skimage",
    "sklearn",
    "torch",
    "torch_geometric",
    "torchmetrics",
}
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
