"""Import modules of OGB, the Open Graph Benchmark, without a question to the network.

The first import of `ogb` starts a thread that asks for its newest release through the package
`outdated`. It does not if `outdated` cannot be imported, so for that moment it cannot.
"""

import os
import sys
from importlib import import_module
from threading import Lock
from types import ModuleType

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
