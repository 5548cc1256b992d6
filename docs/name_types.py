"""Write the names of methods, models and targets as types: `python docs/name_types.py`.

Editors complete these names and type checkers know them, without running anything. Here they are
read from the registry of methods and from the folders of the bundled models.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import graphxai as gx

ROOT = Path(__file__).resolve().parents[1]
METHODS = ROOT / "graphxai" / "contract" / "method_names.py"
MODELS = ROOT / "models" / "graphormer" / "names.py"


def names() -> dict[Path, dict[str, set[str]]]:
    """Return the names of each type, by the files that hold the types."""
    models = gx.pretrained_models()
    tasks = [task for model in models for task in gx.load(model).config.tasks]
    targets = {name for task in tasks for name in (task.name, *task.classes)}
    return {
        METHODS: {"MethodName": {*gx.methods(), "best"}},
        MODELS: {"ModelName": set(models), "TargetName": targets},
    }


def with_names(text: str, type_name: str, listed: Iterable[str]) -> str:
    """Return the text of a module in which a type has these names."""
    lines = "".join(f'    "{name}",\n' for name in sorted(listed))
    return re.sub(
        rf"^{type_name} = Literal\[\n.*?^\]", f"{type_name} = Literal[\n{lines}]", text,
        flags=re.MULTILINE | re.DOTALL,
    )  # fmt: skip


def modules() -> dict[Path, str]:
    """Return the text that each module should have."""
    texts = {}
    for path, types in names().items():
        text = path.read_text(encoding="utf-8")
        for type_name, listed in types.items():
            text = with_names(text, type_name, listed)
        texts[path] = text
    return texts


if __name__ == "__main__":
    for path, text in modules().items():
        path.write_text(text, encoding="utf-8")
