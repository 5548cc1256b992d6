"""The notebooks run offline, and their stored outputs are what they show."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from jupyter_client import AsyncKernelManager

# Their import takes long, and only the process that runs the notebooks needs them.
if not all(map(importlib.util.find_spec, ("nbformat", "nbclient", "ipykernel"))):
    pytest.skip('needs pip install ".[notebook]"', allow_module_level=True)

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST = 250_000  # bytes
NEED_TRAINING = {
    "02_train_on_your_own_table",
    "04_which_explainer",
    "07_your_own_graphs",
}
# What a user is warned of, and a notebook explains.
WARNINGS = {"05_your_own_graph_transformer": "Gps is explained by recorded passes"}
# Replacements, by notebook, with which a cell shows the same kind of output after less work.
LESS_WORK = {
    "00_from_a_table_to_an_explanation": {
        "head(40)": "head(12)",
        "minimum=5": "minimum=2",
        "head(8)": "head(2)",
        "detailed=1": "detailed=0",
        '"predictions": 300': '"predictions": 60',
    },
    "02_train_on_your_own_table": {"epochs=6": "epochs=1", "[:320]": "[:50]"},
    "04_which_explainer": {
        "epochs=4": "epochs=1",
        "size=500": "size=80",
        "steps=21": "steps=3",
        "list(digit_paths())": "list(digit_paths())[:2]",
    },
    "05_your_own_graph_transformer": {
        "range(30)": "range(3)",
        "[:200]": "[:15]",
        "[:160]": "[:10]",
        "[160:]": "[10:]",
        "steps=11": "steps=3",
        "epochs=50": "epochs=2",
    },
    "06_activity_cliffs_and_matched_pairs": {"cliffs[:12]": "cliffs[:2]"},
    "07_your_own_graphs": {"1, 250, tree": "1, 20, tree", "epochs=40": "epochs=1"},
}
# This runs before a notebook's own cells. It forgets all names, as a new kernel does, and allows no
# network. Forests have few trees. `%reset` looks for garbage twice, but not among earlier imports.
START = """
import gc
gc.freeze()
gc.set_threshold(50_000, 20, 100)
%reset -f
import os, socket
import pandas
from graphxai.learning.teachers import forests

pandas.reset_option("display")

os.chdir({folder!r})
forests.TREES = 30

def refused(*arguments, **options):
    raise OSError("a notebook has to do without a network")

socket.socket.connect = socket.getaddrinfo = refused
del forests, os, pandas, refused, socket
"""
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")
MACHINE = re.compile(r"/tmp/|/home/|/root/|/Users/|/work/|[A-Z]:\\\\|site-packages|localhost")

# A figure in prose with a decimal point or a percent sign, and what is true of any model.
FIGURE = re.compile(r"[-+−]?\d+\.\d+|\d+(?= ?%)")
DEFINITIONS = {
    "01_explain_a_molecule": {"+0.7", "95"},
    "04_which_explainer": {"95", "0.05", "0.5"},
}

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def stored(path: Path):
    import nbformat

    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell) -> list[str]:
    """Return what a cell shows: its streams and the forms of its results, in order."""
    streams = [output.name for output in cell.outputs if output.output_type == "stream"]
    results = [
        ", ".join(sorted(output.data))
        for output in cell.outputs
        if output.output_type in ("execute_result", "display_data")
    ]
    return [*dict.fromkeys(streams), *results]


def untouched(sources: list[str], less_work: dict[str, str]) -> list[str]:
    """Return the cells that see no name, and no text such as a file's, that less work changes."""
    changed: set[str] = set()
    same = []
    for source in sources:
        python = "\n".join(line for line in source.splitlines() if not line.startswith("%"))
        nodes = list(ast.walk(ast.parse(python)))
        texts = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        names = [node for node in nodes if isinstance(node, ast.Name)]
        seen = texts | {node.id for node in names if isinstance(node.ctx, ast.Load)}
        if any(much in source for much in less_work) or seen & changed:
            changed |= texts | {node.id for node in names if isinstance(node.ctx, ast.Store)}
            changed |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        else:
            same.append(source)
    return same


def texts(cell) -> list[str]:
    """Return what a cell says: its streams, and its results as text.

    A kernel sends streams in as many parts, and in the order, that time makes of them.
    """
    streams = {"stdout": "", "stderr": ""}
    for output in cell.outputs:
        if output.output_type == "stream":
            streams[output.name] += output.text
    results = (output.get("data", {}).get("text/plain", "") for output in cell.outputs)
    return [text for text in (*streams.values(), *results) if text]


def assert_same_text(before: str, now: str) -> None:
    """Compare texts to the letter, and numbers but for what another processor rounds otherwise."""
    stale = f"run notebooks/execute.py again; stored:\n{before}\nnow:\n{now}"
    # a column of a table is wider where another processor rounds a zero to -0.000
    words, words_now = (re.sub(" +#", " #", NUMBER.sub("#", text)) for text in (before, now))
    assert words == words_now, stale
    for old, new in zip(NUMBER.findall(before), NUMBER.findall(now), strict=True):
        assert float(old.replace(",", "")) == pytest.approx(
            float(new.replace(",", "")), rel=5e-3, abs=1e-5
        ), stale


def test_a_stale_sentence_or_number_is_found():
    verdict = "Use with care: 25% wrong, and nearer ones 7%."
    assert_same_text(verdict, verdict)
    assert_same_text("unexplained +4.3e-07, 1,234 letters", "unexplained +1.9e-07, 1,236 letters")
    assert_same_text("unexplained   0.000", "unexplained  -0.000")
    for stale in (verdict + " Not sure.", verdict.replace("25", "26"), ""):
        with pytest.raises(AssertionError):
            assert_same_text(verdict, stale)


def test_a_cell_is_compared_unless_it_sees_what_less_work_changed():
    cells = ["%%capture\nimport a", "x = a.f(1)", "y = a.g(40)", "y.h()", "z = x + y", "x", "z"]
    assert untouched(cells, {"40": "4"}) == ["%%capture\nimport a", "x = a.f(1)", "x"]


@pytest.fixture(scope="module")
def execute() -> ModuleType:
    """Load `notebooks/execute.py`, a script that is not part of the package."""
    spec = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kernel() -> Iterator["AsyncKernelManager"]:
    """Start one kernel for all notebooks of a process, because its start takes so long."""
    from jupyter_client import AsyncKernelManager
    from nbclient.util import run_sync

    manager = AsyncKernelManager(kernel_name="python3")
    yield manager
    run_sync(manager.shutdown_kernel)(now=True)


def test_there_is_a_notebook_for_every_step():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{k:02}" for k in range(8)]


@every_notebook
def test_stored_outputs_are_those_of_one_run_from_top_to_bottom(path):
    cells = code_cells(stored(path))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


@every_notebook
def test_stored_outputs_contain_no_warning_and_nothing_about_the_machine(path):
    assert path.stat().st_size < LARGEST
    for cell in code_cells(stored(path)):
        for output in cell.outputs:
            assert output.output_type != "error"
            if output.get("name") == "stderr":
                assert WARNINGS.get(path.stem, "no warning") in output.text, output.text
            texts = [output.get("text", ""), *output.get("data", {}).values()]
            for text in texts:
                assert not MACHINE.search(str(text))


@every_notebook
def test_figures_in_the_text_are_those_of_a_cell(path):
    notebook = stored(path)
    texts = [cell.source for cell in code_cells(notebook)]
    for cell in code_cells(notebook):
        for output in cell.outputs:
            texts += [output.get("text", ""), *map(str, output.get("data", {}).values())]
    numbers = [abs(float(text)) for text in re.findall(r"\d+(?:\.\d+)?", " ".join(texts))]
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        for figure in FIGURE.findall(re.sub(r"`[^`]*`", "", cell.source)):
            if figure in DEFINITIONS.get(path.stem, ()):
                continue
            digits = len(figure.partition(".")[2])
            value = abs(float(figure.replace("−", "-")))
            assert value in {round(number, digits) for number in numbers}, figure


@every_notebook
def test_notebook_runs_offline_and_shows_what_is_stored(path, tmp_path, execute, kernel):
    import nbformat

    if path.stem in NEED_TRAINING and importlib.util.find_spec("lightning") is None:
        pytest.skip('needs pip install ".[train]"')
    before, offline = stored(path), stored(path)
    same = untouched([cell.source for cell in code_cells(before)], LESS_WORK.get(path.stem, {}))
    for much, little in LESS_WORK.get(path.stem, {}).items():
        assert any(much in cell.source for cell in code_cells(offline)), much
        for cell in code_cells(offline):
            cell.source = cell.source.replace(much, little)
    offline.cells.insert(0, nbformat.v4.new_code_cell(START.format(folder=str(tmp_path))))
    after = execute.tidied(execute.executed(offline, tmp_path, timeout=120, kernel=kernel))
    for old, new in zip(code_cells(before), code_cells(after)[1:], strict=True):
        assert kinds(old) == kinds(new), f"run notebooks/execute.py again; cell:\n{old.source}"
        if old.source in same:
            assert_same_text("\n".join(texts(old)), "\n".join(texts(new)))
