"""A type checker knows what the functions take and return, in a user's own script."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

# A line with a mistake ends with `# wrong`.
SCRIPT = """
import graphxai as gx

e = gx.explain("bace", "CCO")
print(e.relevance.sum(), e.svg(width=250))
print(e.relevence)  # wrong
gx.explain("bace", "CCO", method="lrp", target="active")
gx.explain("bace", "CCO", method="lpr")  # wrong
several = gx.explain("bace", ["CCO", "CCN"])
several.grid(columns=2).save("all.svg")
several.svg()  # wrong
gx.explain("bace", ["CCO"], on_error="ignore")  # wrong
gx.explain("bace", "CCO", target=("active", "inactive"))
gx.explain("bace", "CCO", target={"active"})  # wrong
print(gx.predict("bace", "CCO")["pIC50"].interval)
print(gx.predict("bace", "CCO")["pIC50"].intervall)  # wrong
table = gx.predict("bace", ["CCO"]).to_frame()
gx.predict("bace", ["CCO"], progres=True)  # wrong
gx.explain(model="bace", inputs=["CCO"], method="shapley_sampling", samples=8).grid()
gx.predict(model="bace", inputs=["CCO"]).too_frame()  # wrong
for name in gx.methods():
    gx.explain("bace", "CCO", name)
"""
WRONG = [k for k, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith("# wrong")]


def lines_with_errors(command: list[str], folder: Path) -> list[int]:
    """Return the lines of the script in which a type checker finds errors.

    It gets no search path: it is started as in an environment that has been activated.
    """
    (folder / "script.py").write_text(SCRIPT)
    activated = {name: value for name, value in os.environ.items() if name != "MYPYPATH"}
    activated["PATH"] = PATH
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=activated
    )
    numbers = [
        line.split(":")[1]
        for line in done.stdout.splitlines()
        if "script.py:" in line and "error" in line
    ]
    assert numbers, done.stdout + done.stderr
    return sorted({int(number) for number in numbers})


def test_mypy_finds_the_mistakes_in_a_script_and_no_others(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent"]
    assert lines_with_errors([*command, "script.py"], tmp_path) == WRONG


def test_pyright_finds_the_mistakes_in_a_script_and_no_others(tmp_path):
    checker = shutil.which("basedpyright", path=PATH) or shutil.which("pyright", path=PATH)
    if checker is None:
        pytest.skip("neither basedpyright nor pyright is installed")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "basic"}))
    assert lines_with_errors([checker, "script.py"], tmp_path) == WRONG


def test_the_names_that_editors_complete_are_those_there_are():
    """If this fails, run `python docs/name_types.py`."""
    place = importlib.util.spec_from_file_location("name_types", ROOT / "docs" / "name_types.py")
    name_types = importlib.util.module_from_spec(place)
    place.loader.exec_module(name_types)
    for path, text in name_types.modules().items():
        assert path.read_text(encoding="utf-8") == text
