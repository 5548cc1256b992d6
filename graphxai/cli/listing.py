"""The commands `graphxai models` and `graphxai methods`, and the names that a shell completes.

No model and no method is imported, which would bring torch. What is listed of a model is in its
files. What is listed of a method is written out in its class, whose file is read but not run.
"""

import ast
import json
import math
import runpy
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

from graphxai.contract.method_names import MethodName, unknown_method
from graphxai.contract.tasks import TO_START, is_to_start
from graphxai.models import graphormer

from .answers import answer
from .terminal import print_table

SHOWN_CLASSES = 3
SPLITS = {
    "random": "random split",
    "scaffold": "new scaffolds",
    "given": "official test set",
    "column": "authors' split",
}
# Measured in benchmarks/results/bace_quality.md, with the recipe of the bundled model.
BACE_ELSEWHERE = (
    "bace is the model of one random split, a lucky one: its recipe has a mean ROC-AUC of 0.91 on"
    " five such splits, and 0.86 on new scaffolds."
)
EXPLAINERS = Path(__file__).parents[1] / "explainers"
PRETRAINED = Path(str(graphormer.__file__)).with_name("pretrained")


class ListedMethod(NamedTuple):
    """What the list says of a method."""

    name: str
    title: str
    source: str
    cost: str


def model_names(typed: str) -> list[str]:
    """Return the bundled models whose names begin with what was typed."""
    names = sorted(path.parent.name for path in PRETRAINED.glob("*/config.json"))
    return [name for name in names if name.startswith(typed)]


def method_names(typed: str) -> list[str]:
    """Return the methods whose names begin with what was typed, also after a comma."""
    *before, last = typed.split(",")
    names = sorted(["best", *(method.name for method in listed_methods())])
    return [",".join([*before, name]) for name in names if name.startswith(last)]


def require_method(name: str) -> None:
    """Raise ValueError if no method has this name."""
    if name not in get_args(MethodName):
        names = [method.name for method in listed_methods()]
        if name not in names:
            raise unknown_method(name, names)


class ListedTask(NamedTuple):
    """What the list says of a task of a model."""

    name: str
    task: str
    scale: str
    score: str
    tested_on: str
    parameters: int


def models() -> None:
    """List the bundled models, what they predict and how well.

    **Example**

    `graphxai models`
    """
    rows = [row for name in model_names("") for row in _tasks_of(PRETRAINED / name)]
    answer(models=[row._asdict() for row in rows])
    columns = ("name", "task", "classes or unit", "test score", "tested on", "parameters")
    looks: dict[str, Any] = {"name": {"no_wrap": True}, "parameters": {"justify": "right"}}
    print_table(
        {name: looks.get(name, {}) for name in columns},
        [[*row[:-1], f"{row.parameters:,}"] for row in rows],
        caption=BACE_ELSEWHERE,
        caption_justify="left",
    )


def _tasks_of(folder: Path) -> Iterator[ListedTask]:
    """Yield what is listed of each task of the model in a folder."""
    from graphxai.contract.prediction_metrics import held_out_score

    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    metadata, name = content.get("metadata") or {}, folder.name
    size = _parameters(folder / "model.safetensors")
    if is_to_start(metadata):
        yield ListedTask(name, "", "", TO_START, "", size)
        return
    tested_on = SPLITS[metadata.get("split", {}).get("kind", "given")]
    for task in content["model"]["tasks"]:
        classes = task["classes"]
        few = len(classes) <= SHOWN_CLASSES
        scale = " / ".join(classes) if few else f"{len(classes)} classes"
        score = held_out_score(metadata, task["name"], is_class=bool(classes))
        figures = metadata.get("summary", "") if math.isnan(score.value) else score.figures
        yield ListedTask(name, task["name"], scale or task["unit"], figures, tested_on, size)


def _parameters(weights: Path) -> int:
    """Return how many weights a file has, from its header. A process also has counts, integers."""
    from safetensors import safe_open

    with safe_open(weights, framework="numpy") as file:
        slices = [file.get_slice(key) for key in file.keys()]  # noqa: SIM118
        return sum(math.prod(each.get_shape()) for each in slices if "F" in each.get_dtype())


def methods() -> None:
    """List the explanation methods, their sources and what they cost.

    **Example**

    `graphxai methods`
    """
    listed = {method.name: method for method in listed_methods()}
    settings = _settings(EXPLAINERS / "registry.py")
    best, unfitted = settings["BEST"], settings["BEST_UNFITTED"]
    caption = (
        f"best: {best} ({listed[best].cost}) for a model that it was fitted to, and {unfitted}"
        " for any other; these order nodes best for their passes"
    )
    answer(methods=[method._asdict() for method in listed.values()])
    columns: dict[str, Any] = {"name": {"no_wrap": True}, "method": {}, "source": {}, "cost": {}}
    print_table(columns, listed.values(), caption=caption, caption_justify="left")


def listed_methods() -> list[ListedMethod]:
    """Return all methods in the order of the registry, read from the files of the explainers."""
    classes: dict[str, ast.ClassDef] = {}
    for path in sorted(EXPLAINERS.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes |= {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    methods = {
        method.name: method
        for node in classes.values()
        if any(isinstance(d, ast.Name) and d.id == "register" for d in node.decorator_list)
        for method in [_method(node, classes)]
    }
    families = _settings(EXPLAINERS / "__init__.py")["_ORDER"]
    order = [name for family in families for name in family]
    rest = [name for name in methods if name not in order]
    return [methods[name] for name in [*order, *rest]]


def _method(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> ListedMethod:
    """Return what a class says of a method, or else what the classes say that it extends."""
    lines: list[ast.stmt] = []
    line = [node]
    for each in line:
        lines += each.body
        line += [classes[b.id] for b in each.bases if isinstance(b, ast.Name) and b.id in classes]
    settings = _literals(reversed(lines))  # the class itself comes last, and wins
    traits = _traits()(**settings["traits"])
    note = f" ({traits.note})" if traits.note else ""
    return ListedMethod(
        settings["name"], f"{settings['title']}{note}", settings["source"], traits.cost
    )


@cache
def _traits() -> Any:
    """Return the class `Traits`, without importing its package, which would bring torch."""
    return runpy.run_path(str(EXPLAINERS / "traits.py"))["Traits"]


def _settings(path: Path) -> dict[str, Any]:
    return _literals(ast.parse(path.read_text(encoding="utf-8")).body)


def _literals(lines: Iterable[ast.stmt]) -> dict[str, Any]:
    """Return the values of names that are set to literals. The last line of a name counts.

    Of a call, such as that of `Traits`, the value is a dict of its keywords that are literals.
    """
    values: dict[str, Any] = {}
    for line in lines:
        if isinstance(line, ast.Assign | ast.AnnAssign) and line.value is not None:
            name = ast.unparse(line.target if isinstance(line, ast.AnnAssign) else line.targets[0])
            with suppress(ValueError):
                values[name] = _literal(line.value)
    return values


def _literal(value: ast.expr) -> Any:
    if not isinstance(value, ast.Call):
        return ast.literal_eval(value)
    words: dict[str, Any] = {}
    for word in value.keywords:
        with suppress(ValueError):
            words[str(word.arg)] = ast.literal_eval(word.value)
    return words
