"""A checkout without symbolic links, as git makes by default on Windows, works like any other."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("graphxai", "models", "datasets")
LINKS = ("graphxai/models", "graphxai/datasets")

# Import, explain a molecule, read a table in other processes, and ask for help.
SMOKE = """
import sys

import graphxai as gx
from graphxai.cli.main import main
from graphxai.datasets.molecules import read_table

if __name__ == "__main__":
    molecule = gx.explain(gx.load("bace"), "CC(=O)Oc1ccccc1C(=O)O")
    ledger = molecule.ledger
    shares = molecule.relevance.sum() + ledger.graph_token + ledger.biases
    graphs, rejected = read_table(sys.argv.pop(), workers=2)
    print(gx.__file__, gx.load.__code__.co_filename)
    print(abs(shares - ledger.output) < 1e-3, len(graphs), rejected)
    sys.argv = ["graphxai", "--help"]
    main()
"""


@pytest.fixture(scope="module")
def without_links(tmp_path_factory) -> Path:
    """Clone the last commit without links, with the package as it is in the working tree.

    Compiled files come along, so that no process has to compile the package anew.
    """
    clone = tmp_path_factory.mktemp("clone") / "graphxai"
    run(["git", "clone", "--quiet", "-c", "core.symlinks=false", str(ROOT), str(clone)])
    assert all((clone / link).is_file() for link in LINKS), "git wrote links"
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, clone / folder, ignore=links, dirs_exist_ok=True)
    return clone


@pytest.fixture
def with_links(tmp_path) -> Path:
    """Copy what an installation needs, with the links that a checkout has."""
    copy = tmp_path / "graphxai"
    for folder in (*FOLDERS, ".ci"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "MANIFEST.in"):
        shutil.copy(ROOT / name, copy)
    return copy


def links(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if Path(folder, name).is_symlink()]


def run(command: list[str], **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def environment(tmp_path) -> Path:
    """Make a virtual environment with the libraries, but not with the developer's checkout.

    A file `.pth` adds the folders of the libraries without reading the files `.pth` in them, one of
    which adds the developer's checkout.
    """
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=os.name != "nt")
    libraries = [entry for entry in sys.path if Path(entry).name.endswith("-packages")]
    (packages_of(folder) / "libraries.pth").write_text("\n".join(libraries) + "\n")
    return folder


def packages_of(environment: Path) -> Path:
    (packages,) = environment.rglob("site-packages")
    return packages


def smoke(environment: Path, clone: Path, **variables: str) -> None:
    """Run the smoke test: the files are the clone's, relevance adds up, help lists the commands."""
    (environment / "smoke.py").write_text(SMOKE)
    (environment / "table.csv").write_text("smiles\nCCO\nc1ccccc1O\n")
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(python), "smoke.py", "table.csv"]
    files, results, *help_page = run(
        command, cwd=environment, env={**inherited, **variables}
    ).splitlines()
    assert all(Path(file).is_relative_to(clone) for file in files.split())
    assert results == "True 2 []"
    assert "explain" in "\n".join(help_page)


def test_a_checkout_without_links_works_by_the_path(without_links, environment):
    smoke(environment, without_links, PYTHONPATH=str(without_links))


def install_editable(environment: Path, checkout: Path) -> None:
    pytest.importorskip("setuptools")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options]
    run([*command, "--target", str(packages_of(environment)), "--editable", str(checkout)])


def test_a_checkout_without_links_works_as_an_editable_install(without_links, environment):
    install_editable(environment, without_links)
    smoke(environment, without_links)


# Where Python and mypy find a module, mypy by the type of a value that only the file has.
FILES = """
import graphxai.datasets.added, graphxai.models.graphormer.added, graphxai.chemistry.added
reveal_type(graphxai.datasets.added.HOW_MANY)
reveal_type(graphxai.models.graphormer.added.HOW_MANY)
reveal_type(graphxai.chemistry.added.HOW_MANY)
"""


def test_files_added_after_an_editable_install_are_found_by_python_and_by_type_checkers(
    with_links, environment
):
    pytest.importorskip("mypy", reason="mypy is not installed")
    install_editable(environment, with_links)
    for folder in ("datasets", "models/graphormer", "graphxai/chemistry"):
        (with_links / folder / "added.py").write_text("HOW_MANY: int = 3\n")
    script = environment / "script.py"
    script.write_text(FILES)
    python = environment / "bin" / "python"
    imported = script.read_text().splitlines()[1]
    run([str(python), "-c", imported], cwd=environment)
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--python-executable"]
    checked = run([*command, str(python), script.name], cwd=environment)
    assert checked.count('Revealed type is "int"') == 3, checked
    only = [f"import {name}" for name in ("models", "datasets.tables", "tests")]
    for line in only:  # what lies beside the package in the checkout stays out of the environment
        done = subprocess.run([str(python), "-c", line], cwd=environment, capture_output=True)
        assert b"ModuleNotFoundError" in done.stderr


def test_only_a_checkout_without_links_is_searched_beside_the_package(tmp_path):
    from graphxai.runtime.lazy import folders_beside

    package = tmp_path / "graphxai" / "__init__.py"
    for folder in ("models/graphormer", "datasets", "graphxai"):
        (tmp_path / folder).mkdir(parents=True)
    assert folders_beside(str(package)) == [str(tmp_path)]
    for link in LINKS:  # as in a wheel, whose neighbours may have these names
        (tmp_path / link).mkdir()
    assert folders_beside(str(package)) == []
