"""What the engine knows of an operation stands in one place: its row in the table."""

import ast
from pathlib import Path

import torch

import graphxai
from graphxai.engine.operations import NODES_OF_GRAPH, OPERATIONS, operation
from graphxai.engine.positive.rules import RULES

ENGINE = Path(graphxai.__file__).parent / "engine"


def listings(file: Path) -> list[tuple[int, set[str]]]:
    """Return the lines of a file that list several operations, with their names."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        parts = getattr(node, "elts", None) or getattr(node, "keys", None) or []
        texts = {part.value for part in parts if isinstance(part, ast.Constant)}
        if len(named := texts & OPERATIONS.keys()) > 1:
            found.append((node.lineno, named))
    return found


def test_no_file_but_the_table_lists_operations():
    """If this fails, give the rows in `operations.py` a word, and ask for it."""
    listed = {
        f"{file.relative_to(ENGINE)}:{line}: {sorted(names)}"
        for file in ENGINE.rglob("*.py")
        for line, names in listings(file)
    }
    assert not listed


def test_an_operation_has_one_row():
    from graphxai.engine import operations

    names = [row.name for row in operations._TABLE]
    assert len(names) == len(set(names))


def test_every_row_names_an_operation_of_the_installed_pytorch():
    assert [name for name in OPERATIONS if not hasattr(torch.ops.aten, name)] == []


def test_every_positive_rule_of_the_table_exists():
    asked = {row.positive for row in OPERATIONS.values()} - {None}
    assert asked == set(RULES)


def test_what_a_node_saves_is_what_the_table_says():
    x = torch.randn(3, 4, requires_grad=True)
    results = [x.exp(), x @ x.T, x[:, 1:], x.sum(1, keepdim=True), torch.cat([x, x]), x / 2, x * x]
    for result in results:
        saved = NODES_OF_GRAPH[result.grad_fn.name()]
        names = [*saved.settings, *saved.constants.values()]
        assert all(hasattr(result.grad_fn, f"_saved_{name}") for name in names), saved


def test_an_operation_without_a_row_keeps_its_gradient():
    row = operation("an operation of tomorrow")
    assert row.rule is None
    assert row.positive == "by_entry"
