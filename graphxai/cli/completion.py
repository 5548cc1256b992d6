"""Complete names in the shell: of models, of methods, and of files where a path may stand."""

import runpy
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from graphxai.models import graphormer

PACKAGE = Path(__file__).parents[1]
PRETRAINED = Path(str(graphormer.__file__)).with_name("pretrained")


def model_names(typed: str) -> list[str]:
    """Return the bundled models whose names begin with what was typed."""
    return _beginning_with(typed, (path.parent.name for path in PRETRAINED.glob("*/config.json")))


def method_names(typed: str) -> list[str]:
    """Return the methods whose names begin with what was typed, also behind a comma."""
    *before, last = typed.split(",")
    # Importing the package of explainers would bring torch, and take seconds after each Tab.
    names = runpy.run_path(str(PACKAGE / "explainers" / "names.py"))["MethodName"]
    return [",".join([*before, name]) for name in _beginning_with(last, get_args(names))]


def _beginning_with(typed: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(typed))
