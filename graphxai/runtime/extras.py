"""Say how to install a package that only an extra brings, and import OGB without its network.

graphxai is on no package index, so an extra is installed from a copy of the repository.
"""

import os
import sys
from importlib import import_module
from threading import Lock
from types import ModuleType


def missing_extra(purpose: str, packages: str, extra: str, otherwise: str = "") -> ImportError:
    """Return the error of a package that is not installed, with the command that installs it.

    Args:
        purpose: what needs the package, with its verb, such as "training needs".
        extra: the extra in pyproject.toml that brings it.
        otherwise: what else the user can do, such as "save the table as CSV".
    """
    ending = f", or {otherwise}." if otherwise else "."
    return ImportError(f"{purpose} {packages}: {to_install(extra)}{ending}")


def to_install(extra: str) -> str:
    """Return what to do to install an extra."""
    command = f'pip install -c constraints.txt ".[{extra}]"'
    return f"in your copy of the repository, run `{command}`"


_VARIABLE = "OUTDATED_IGNORE"  # which `ogb` sets, and which silences `outdated` for other packages
_lock = Lock()


def import_ogb(name: str) -> ModuleType:
    """Return a module of OGB, such as "ogb.utils.features".

    Whoever imported `outdated` before keeps it, and whoever imports it afterwards gets it.
    """
    with _lock:
        if "ogb" not in sys.modules:
            modules = {key: value for key, value in sys.modules.items() if key == "outdated"}
            ignored = os.environ.get(_VARIABLE)
            sys.modules["outdated"] = None  # type: ignore[assignment]
            try:
                import_module("ogb")
            finally:
                del sys.modules["outdated"]
                sys.modules.update(modules)
                os.environ.pop(_VARIABLE, None)
                os.environ.update({} if ignored is None else {_VARIABLE: ignored})
    return import_module(name)


def is_ogb_name(name: str) -> bool:
    """Return whether a name is meant to be that of a data set of OGB's molecules."""
    return name.startswith("ogbg-mol")
