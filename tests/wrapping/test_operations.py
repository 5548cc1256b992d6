"""What the engine knows of an operation stands in one place: its row in the table."""

import ast
from pathlib import Path

import pytest
import torch

import graphxai
from graphxai.engine.operations import NODES_OF_GRAPH, OPERATIONS
from graphxai.engine.positive.rules import RULES

ENGINE = Path(graphxai.__file__).parent / "engine"
# values of arguments of PyTorch that are called like operations: ways to reduce and to round
VALUES = {"sum", "mean", "amax", "amin", "prod", "floor"}


def named_operations(code: str) -> list[tuple[int, str]]:
    """Return the operations of the table that code names, as text or of `torch.ops`, with lines."""
    nodes = list(ast.walk(ast.parse(code)))
    # what is compared with a name, or is one of several texts, is an operation in any case
    of_names = {
        part
        for node in nodes
        if isinstance(node, ast.Set | ast.Dict)
        or (isinstance(node, ast.Compare) and ".name" in ast.unparse(node))
        for part in ast.walk(node)
    }
    named = []
    for node in nodes:
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("aten"):
            named.append((node.lineno, ast.unparse(node)))
        text = node.value if isinstance(node, ast.Constant) else None
        if text in OPERATIONS and (text not in VALUES or node in of_names):
            named.append((node.lineno, text))
    return named


def test_no_file_but_the_table_names_an_operation():
    """If this fails, give the rows in `operations.py` a word or a column, and ask for it."""
    files = set(ENGINE.rglob("*.py")) - {ENGINE / "operations.py"}
    named = {str(file): named_operations(file.read_text(encoding="utf-8")) for file in files}
    assert {file: places for file, places in named.items() if places} == {}


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ('op.name == "sum"', 1),
        ('NAMES = {"amax", "index_add"}', 2),
        ("torch.ops.aten.mul", 1),
        ('x.scatter_reduce(0, index, y, "amax")', 0),
    ],
)
def test_the_search_finds_names_but_not_ways_to_reduce(code, count):
    assert len(named_operations(code)) == count


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
    row = OPERATIONS["an operation of tomorrow"]
    assert row.rule is None
    assert row.positive == "by_entry"
