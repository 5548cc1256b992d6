"""The public names of graphxai with their parameters, as the page on stable names promises them.

python tests/helpers/public_names.py   # writes tests/data/public_names.txt anew
"""

import inspect
from pathlib import Path

import graphxai as gx

FILE = Path(__file__).resolve().parents[1] / "data" / "public_names.txt"


def public_names() -> str:
    """Return a line for each public name, and for each public method of a class."""
    lines = []
    for name in gx.__all__:
        value = getattr(gx, name)
        lines.append(f"{name}{parameters(value)}")
        if inspect.isclass(value):
            lines += [f"{name}.{line}" for line in members(value)]
    return "".join(f"{line}\n" for line in lines)


def members(kind: type) -> list[str]:
    """Return the public methods and properties of a class that the project itself defines."""
    bases = [base for base in kind.__mro__ if base.__module__.startswith("graphxai")]
    names = {name for base in bases for name in vars(base) if not name.startswith("_")}
    return [f"{name}{parameters(inspect.getattr_static(kind, name))}" for name in sorted(names)]


def parameters(value: object) -> str:
    """Return what a function or class takes: `(x, y=, *, z=)`, where `=` stands for a default."""
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if not callable(value) or value.__init__ is object.__init__:
        return ""
    shown, by_name_only = [], False
    for parameter in inspect.signature(value).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not by_name_only:
            shown.append("*")
        by_name_only |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else "="
        shown.append(f"{stars}{parameter.name}{default}")
    return f"({', '.join(shown)})"


if __name__ == "__main__":
    FILE.write_text(public_names(), encoding="utf-8")
