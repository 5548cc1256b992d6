"""The installed package is complete, keeps to its own namespace, and is quick to import."""

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(common_folder) -> Path:
    """Build a wheel once for all test processes, because builds share a folder of the tree."""
    folder = common_folder / "wheel"
    with FileLock(common_folder / "wheel.lock"):
        if not folder.is_dir():
            command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (path,) = folder.glob("*.whl")
    return path


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


def test_wheel_contains_all_modules_and_checkpoints_and_no_foreign_names(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"graphxai"}
    for folder, prefix in {"graphxai": "", "models": "models/", "datasets": "datasets/"}.items():
        for path in (ROOT / folder).rglob("*.py"):
            inner = path.relative_to(ROOT / folder)
            if folder == "graphxai" and inner.parts[0] in ("models", "datasets"):
                continue
            assert f"graphxai/{prefix}{inner.as_posix()}" in names
    for path in (ROOT / "models/graphormer/pretrained").glob("*/*"):
        assert f"graphxai/{path.relative_to(ROOT).as_posix()}" in names
    assert "graphxai/datasets/sample_digits/7.png" in names
    assert "graphxai/py.typed" in names


def test_files_that_others_made_come_with_a_notice_and_are_listed(wheel):
    """The page names the kind and source of each file, and a card the source of its data."""
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("dist-info/licenses/NOTICE") for name in names)
    page = (ROOT / "docs" / "licences.md").read_text()
    data = [n for n in names if n.endswith((".csv", ".png")) or n.endswith("model.safetensors")]
    for name in data:
        if "/pretrained/" in name:
            _, _, inner = name.partition("/pretrained/")
            model, _, file = inner.partition("/")
            card = (ROOT / "models/graphormer/pretrained" / model / "README.md").read_text()
            assert "Licence" in card, model
            assert f"`pretrained/{model}/" in page or file == "model.safetensors", name
            assert file != "held_out.csv" or f"`pretrained/{model}/training.csv`" in page
        else:
            assert name in page or f"{name.rpartition('/')[0]}/*.png" in page, name


def test_wheel_works_outside_the_checkout(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    for neighbour in ("models/graphormer", "datasets"):  # of another package, such as `datasets`
        (tmp_path / "site" / neighbour).mkdir(parents=True)
    code = (
        "import graphxai, graphxai.datasets.samples as s, graphxai.models.graphormer as g;"
        "print(*graphxai.__path__, graphxai.__file__); print(*g.pretrained_names());"
        "print(graphxai.explain('bace', 'CCO').ledger.output)"
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, 'site'); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    places, names, output = done.stdout.splitlines()
    assert len(places.split()) == 2  # nothing beside the package is searched for parts of it
    assert all(place.startswith(str(tmp_path / "site" / "graphxai")) for place in places.split())
    assert {"bace", "mnist-superpixels"} <= set(names.split())
    float(output)


def test_source_distribution_builds_the_package_and_has_no_half_of_the_tests(tmp_path):
    """The wheel is built in an environment of its own; doing it twice would say no more."""
    pytest.importorskip("setuptools")
    options = ["--sdist", "--no-isolation", "--outdir", str(tmp_path)]
    command = [sys.executable, "-m", "build", *options, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not {name for name in names if name.startswith("tests")}
    assert {"LICENSE", "NOTICE", "CHANGELOG.md", "constraints.txt", "pyproject.toml"} <= names
    assert {"graphxai/api.py", "models/graphormer/model.py", "datasets/molecules.py"} <= names


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
    "import graphxai.models.graphormer": ("rdkit", "ogb", "lightning", "matplotlib"),
    "import graphxai.api, graphxai.explainers": ("rdkit", "skimage", *SLOW),
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


def test_nothing_is_unpickled():
    """No module reads a pickle, and torch.load is only called with weights_only=True.

    The one exception is a pool of processes, which reads pipes to processes that it started.
    """
    for folder in ("graphxai", "models", "datasets"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            if path.parent.name == "runtime" and path.name in ("worker_process.py", "pickling.py"):
                continue
            for word in ("pickle.load", "weights_only=False", "allow_pickle=True"):
                assert word not in text, f"{path}: {word}"
            for line in text.splitlines():
                if "torch.load(" in line:
                    assert "weights_only=True" in line, f"{path}: {line}"
