"""What is added as CONTRIBUTING and the guides say passes ruff, mypy and the tests."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from guides import PastedBlock, pasted_blocks
from pages import ROOT, blocks_of

GUIDES = ("CONTRIBUTING.md", "docs/howto/extend.md")
FOLDERS = ("graphxai", "models", "datasets", "tests", "docs")
FILES = ("pyproject.toml", "README.md", "CONTRIBUTING.md")
# What a new method, metric, option or model has to pass beside its own tests.
AFFECTED = [
    "tests/test_house.py::test_every_public_name_is_listed_once_and_loads",
    "tests/walkthroughs/test_pages.py::test_every_block_of_the_page_runs[docs/theory/evaluation.md]",
    "tests/test_docs.py::test_tables_have_a_row_for_each_method_metric_and_model",
    "tests/explainers/test_explainers.py::test_every_method_of_the_papers_is_registered",
    "tests/explainers/test_signs.py::"
    "test_every_method_has_the_key_of_its_scores[active-embedding_norm]",
    "tests/cli/test_cli.py::test_methods_are_listed_as_their_classes_describe_them",
    "tests/cli/test_cli.py::test_the_shell_completes_models_and_methods",
    "tests/install/test_types.py::test_the_names_that_editors_complete_are_those_there_are",
    "tests/models/test_zoo.py::"
    "test_a_model_is_small_and_comes_with_card_scores_and_training_set[efflux]",
    "tests/models/test_zoo.py::test_an_explanation_adds_up_to_the_prediction[efflux]",
]


@pytest.fixture(scope="module")
def blocks() -> list[PastedBlock]:
    return [block for page in GUIDES for block in pasted_blocks(page)]


@pytest.fixture(scope="module")
def changed(tmp_path_factory, blocks) -> Path:
    """Return a copy of the repository into which every block of the guides was typed."""
    copy = tmp_path_factory.mktemp("copy")
    unused = shutil.ignore_patterns("_build")  # compiled files save compiling the copy anew
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=unused)
    for name in FILES:
        shutil.copy(ROOT / name, copy)
    for block in blocks:
        block.paste(copy)
    trained = copy / "runs" / "efflux" / "model"  # where the guide has put what it trained
    shutil.copytree(copy / "models" / "graphormer" / "pretrained" / "solubility", trained)
    subprocess.run(shlex.split(installing()), cwd=copy, check=True)
    run(["docs/name_types.py"], copy)
    return copy


def installing() -> str:
    """Return the command that puts a trained model among the bundled ones."""
    blocks = [block.text for block in blocks_of("docs/howto/extend.md") if block.kind == "sh"]
    (command,) = (text for text in blocks if text.startswith("cp "))
    return command


def run(command: Sequence[str], folder: Path) -> None:
    """Run Python with arguments in a copy; its output is the message if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "MYPYPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def test_the_guides_have_blocks_for_code_and_for_tests(blocks):
    folders = {Path(block.path).parts[0] for block in blocks}
    assert folders == {"graphxai", "tests"}
    assert len(blocks) >= 6


def test_what_the_guides_add_is_formatted_and_linted(changed, blocks):
    files = [block.path for block in blocks]
    run(["-m", "ruff", "format", "--check", *files], changed)
    run(["-m", "ruff", "check", *files], changed)


def test_what_the_guides_add_is_typed(changed, request):
    """This uses what `make lint` has cached, or what an earlier run of this test has."""
    cache = request.config.cache.mkdir("mypy")
    if (ROOT / ".mypy_cache").is_dir():
        cache = changed / ".mypy_cache"
        shutil.copytree(ROOT / ".mypy_cache", cache)
    run(["-m", "mypy", "--cache-dir", str(cache)], changed)


def test_what_the_guides_add_keeps_the_floors(changed):
    start = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    run(["-c", start, "--no-logo"], changed)


def test_what_the_guides_add_is_tested_and_breaks_no_page(changed, blocks):
    files = [block.path for block in blocks if block.path.startswith("tests/")]
    run(["-m", "pytest", "-x", "-p", "no:cacheprovider", *files, *AFFECTED], changed)
