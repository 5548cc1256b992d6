"""The package names all its parts, shadows no other, and is quick and safe to import."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from functools import partial
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rdkit import Chem

import graphxai as gx

ROOT = Path(__file__).resolve().parents[1]


def test_listed_packages_are_those_of_the_tree():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    places = {"graphxai": "graphxai", "graphxai.models": "models", "graphxai.datasets": "datasets"}
    expected = set()
    for package, folder in places.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.parent.relative_to(ROOT / folder).parts
            expected.add(".".join([package, *parts]))
    linked = ("graphxai.models.", "graphxai.datasets.")  # found again behind the links
    packages = {p for p in expected if not p.startswith(linked) or p in settings["packages"]}
    assert set(settings["packages"]) == packages
    for package, folder in settings["package-dir"].items():
        assert (ROOT / folder).is_dir(), package


def test_hugging_face_datasets_is_not_shadowed():
    """A script run in the checkout must not find our folders as `datasets` and `models`."""
    code = (
        "import importlib.util as u;"
        "print([bool(s and s.origin) for s in map(u.find_spec, ('datasets', 'models'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "datasets/__init__.py" not in done.stdout
    assert not (ROOT / "datasets" / "__init__.py").exists()
    assert not (ROOT / "models" / "__init__.py").exists()


SLOW = (
    "torch_geometric", "torch._dynamo", "sympy", "matplotlib", "lightning", "scipy", "sklearn",
    "pandas", "numba",
)  # fmt: skip


# One process runs all lines from the top, so what a line loads counts for the lines below as well.
# It goes on with what needs no PyG, which would load more.
LIGHT = {
    "import graphxai": ("torch", "rdkit", "matplotlib", "pandas"),
    "import graphxai.cli.main": ("torch", "rdkit", "matplotlib", "pandas"),
    "from graphxai.cli import listing; import contextlib, io\n"
    "with contextlib.redirect_stdout(io.StringIO()): listing.models()\n"
    "with contextlib.redirect_stdout(io.StringIO()): listing.methods()": (
        *("torch", "rdkit", "matplotlib", "pandas", "graphxai.explainers"),
    ),
    "import graphxai.models.graphormer": ("rdkit", "lightning", "matplotlib"),
    "import graphxai.explanation.api, graphxai.explainers": ("rdkit", "skimage", *SLOW),
    "import graphxai.evaluation, graphxai.tables.app.server": SLOW,
}


WITHOUT_PYG = f"""
import graphxai as gx
from graphxai.cli.main import app

for line in (
    "explain CCO --out one.svg", "explain CCO --out one.png", "predict CCO", "predict table.csv",
    "explain table.csv --out several", "explain CCO --method gae --method occlusion --out two.svg",
    "models",
):
    app(args=line.split(), standalone_mode=False)
model = gx.load("bace")
light = gx.explain(model, ["CCO", "CCN"]), gx.pairs(model, "CCO")
gx.trust(model, light[0][0])
print([m for m in {SLOW!r} if m in sys.modules])
from graphxai.datasets.samples import digit_paths
gx.explain(gx.load("mnist-superpixels"), digit_paths()[0])
print("torch_geometric" in sys.modules)"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return the folder in which `printed` runs."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "table.csv").write_text("smiles\nCCO\nCC(=O)Nc1ccccc1\n")
    return folder


@pytest.fixture(scope="module")
def printed(folder) -> list[str]:
    """Return what a new process prints: a line for each of `LIGHT`, and what comes after these."""
    code = "".join(
        f"{line}\nprint([m for m in {heavy!r} if m in sys.modules])\n"
        for line, heavy in LIGHT.items()
    )
    start = f"import os, sys\nsys.path.insert(0, {str(ROOT)!r})\nos.chdir({str(folder)!r})\n"
    command = [sys.executable, "-c", start + code + WITHOUT_PYG]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("statement", LIGHT)
def test_imports_stay_light(statement, printed):
    assert printed[list(LIGHT).index(statement)] == "[]"


def test_what_explains_a_molecule_or_a_digit_does_without_pyg(printed, folder):
    """PyG alone takes longer to import than torch. A user's `Data` is explained all the same."""
    assert printed[-2:] == ["[]", "False"]
    assert (folder / "several" / "explanations.csv").is_file()


# For each extra, a package that it brings, and what a user calls that needs it.
NEEDS = {
    "images": ("skimage", "graphxai.datasets.superpixels", None),
    "train": ("lightning", "graphxai.learning.fit", lambda fit: fit.require_lightning()),
    "parquet": (
        "pyarrow",
        "graphxai.explanation.files",
        lambda files: files.require_pyarrow(Path("explanations.parquet")),
    ),
    "excel": (
        "openpyxl",
        "graphxai.datasets.tables.rows",
        lambda rows: rows._opened_workbook(Path("table.xlsx")).__enter__(),
    ),
    "counterfactuals": (
        "selfies",
        "graphxai.chemistry.search.neighbours",
        lambda swaps: next(iter(swaps.mutated(Chem.MolFromSmiles("CC"), 1, 0))),
    ),
    "scale": ("ray", "graphxai.tables.cluster", lambda cluster: cluster._ray()),
    "app": ("uvicorn", "graphxai.tables.app.server", None),
    "notebook": ("anywidget", "graphxai.tables.app.widget", None),
    "chemprop": (
        "chemprop",
        "graphxai.wrapping.chemprop.molecules",
        lambda installed: installed.chemprop_nn.__wrapped__(),
    ),
}


@pytest.mark.parametrize("extra", NEEDS)
def test_a_missing_extra_names_its_command(extra, monkeypatch):
    package, module, use = NEEDS[extra]
    if use is None:  # the module imports the package at its top
        monkeypatch.delitem(sys.modules, module, raising=False)
        call = partial(importlib.import_module, module)
    else:
        call = partial(use, importlib.import_module(module))
    loaded = [name for name in sys.modules if name.startswith(f"{package}.")]
    for name in (package, *loaded):  # importing it raises ModuleNotFoundError
        monkeypatch.setitem(sys.modules, name, None)
    command = f'in your copy of the repository, run `pip install -c constraints.txt ".[{extra}]"`'
    with pytest.raises(ImportError, match=re.escape(command)):
        call()


def test_every_extra_for_users_is_tried_without_its_package():
    """PDF and compiled code have other ways, and the rest is for developers."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    others = {"pdf", "fast", "test", "types", "release", "docs"}
    assert set(settings["optional-dependencies"]) - others == set(NEEDS)


# What the package uses without naming it in pyproject.toml, each with what brings it.
BROUGHT = {
    "filelock": "torch",
    "networkx": "torch",
    "fonttools": "matplotlib",
    "rich": "typer",
    "anyio": "starlette",
    "markdown-it-py": "rich",
    "threadpoolctl": "scikit-learn",
    "ipython": "ipykernel",
    "traitlets": "ipywidgets",
}


@pytest.mark.parametrize(("package", "bringing"), BROUGHT.items())
def test_a_package_that_is_not_named_comes_with_one_that_is(package, bringing):
    named = [Requirement(line) for line in requires(bringing)]
    (requirement,) = [each for each in named if each.name.lower() == package]
    assert requirement.marker is None  # it comes on every system, without any extra


def test_at_most_twelve_packages_are_required_and_every_package_that_is_used_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(project["dependencies"]) <= 12
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    named = {Requirement(line).name for lines in groups for line in lines} | set(BROUGHT)
    files = [p for f in ("graphxai", "models", "datasets") for p in (ROOT / f).rglob("*.py")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    imported = {
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {n.module for n in nodes if isinstance(n, ast.ImportFrom) and not n.level}
    distributions = packages_distributions()
    names = {name.partition(".")[0] for name in imported} - {"graphxai"}
    used = [distributions[name] for name in names if name in distributions]
    assert {"torch", "rdkit"} < {name for each in used for name in each}
    assert [each for each in used if named.isdisjoint(each)] == []


UNPICKLING = (
    "pickle.load", "Unpickler", "read_pickle", "torch.load", "jit.load", "load_from_checkpoint",
    "joblib.load", "shelve", "allow_pickle=True",
)  # fmt: skip


def test_nothing_is_unpickled():
    """No module reads a pickle, not even with the reader of PyTorch that allows only weights.

    The one exception is a pool of processes, which reads pipes to processes that it started.
    """
    for folder in ("graphxai", "models", "datasets"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            if path.parent.name == "runtime" and path.name == "worker_process.py":
                continue
            for word in UNPICKLING:
                assert word not in text, f"{path}: {word}"


WITHOUT_DOCSTRINGS = """
import contextlib, importlib, io, pkgutil
import graphxai, graphxai.datasets, graphxai.models.graphormer
for package in (graphxai, graphxai.datasets, graphxai.models.graphormer):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # an extra that is not installed
                importlib.import_module(module.name)
explanation = graphxai.explain("bace", "CC(=O)Oc1ccccc1C(=O)O")
print(*explanation.relevance.tolist())
"""


def test_without_docstrings_and_assertions_everything_runs_as_with_them():
    """`python -OO` and PYTHONOPTIMIZE=2 leave both out."""
    command = [sys.executable, "-OO", "-c", WITHOUT_DOCSTRINGS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    relevance = [float(value) for value in done.stdout.split()]
    assert relevance == gx.explain("bace", "CC(=O)Oc1ccccc1C(=O)O").relevance.tolist()


def test_every_locked_package_is_a_pinned_one_with_a_hash_and_no_index_is_named():
    """So that `pip install --require-hashes` installs what was tried, from anywhere, or nothing."""
    locks = [(ROOT / f"requirements{kind}.lock").read_text() for kind in ("", "-source")]
    lines = [line for lock in locks for line in lock.splitlines() if not line.startswith("#")]
    pins = dict(line.split(" ")[0].split("==") for line in lines)
    for line in lines:
        assert re.fullmatch(r"[\w.-]+==[\w.!+]+ --hash=sha256:[0-9a-f]{64}", line), line
    assert "://" not in "".join(locks)
    tested = (ROOT / "constraints.txt").read_text().splitlines()
    versions = dict(line.split("==") for line in tested if "==" in line)
    of_constraints = {canonicalize_name(name): version for name, version in versions.items()}
    for name, version in pins.items():  # setuptools and pkgconfig only build
        assert of_constraints.get(canonicalize_name(name), version) == version.partition("+")[0]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][name] for name in ("images", "train", "app")]
    wanted = {
        Requirement(line).name for group in (project["dependencies"], *extras) for line in group
    }
    assert {canonicalize_name(name) for name in wanted} <= set(map(canonicalize_name, pins))


def test_no_admitted_or_pinned_version_has_a_listed_advisory():
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "audit.py"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
