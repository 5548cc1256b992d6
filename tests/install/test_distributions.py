"""The wheel and the source are complete, keep to one namespace, and work outside the checkout."""

import hashlib
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

import graphxai as gx

ROOT = Path(__file__).resolve().parents[2]


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


def test_wheel_is_small_enough_to_be_fetched_in_a_minute(wheel):
    assert wheel.stat().st_size < 40_000_000


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
    editor = "graphxai/tables/app/openchemlib"
    assert {f"{editor}/openchemlib.js", f"{editor}/LICENSE"} <= set(names)


def test_files_that_others_made_come_with_a_notice_and_are_listed(wheel):
    """The page names the kind and source of each file, and a card the source of its data."""
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("dist-info/licenses/NOTICE") for name in names)
    assert any(name.endswith("licenses/graphxai/tables/app/openchemlib/LICENSE") for name in names)
    (metadata,) = [name for name in names if name.endswith("dist-info/METADATA")]
    stated = zipfile.ZipFile(wheel).read(metadata).decode()
    assert "License-Expression: MIT AND BSD-3-Clause AND CC-BY-SA-3.0 AND CC0-1.0" in stated
    page = (ROOT / "docs" / "about.md").read_text()
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


def test_the_sbom_names_the_javascript_weights_and_data_of_the_wheel_with_their_hashes(
    wheel, tmp_path
):
    sbom = tmp_path / "graphxai.cdx.json"
    root = {"type": "library", "bom-ref": "root", "name": "graphxai"}
    packages = [{"type": "library", "bom-ref": "torch", "name": "torch"}]
    edges = [{"ref": "root", "dependsOn": ["torch"]}, {"ref": "torch"}]
    content = {"metadata": {"component": root}, "components": packages, "dependencies": edges}
    sbom.write_text(json.dumps(content))
    command = [sys.executable, ROOT / ".ci" / "sbom.py", wheel, sbom]
    subprocess.run(command, check=True, capture_output=True)
    listed = json.loads(sbom.read_text())
    assert listed["metadata"]["component"]["version"] == gx.__version__
    parts = {each["bom-ref"].removeprefix("file:"): each for each in listed["components"]}
    assert "torch" in parts
    (depending,) = [each for each in listed["dependencies"] if each["ref"] == "root"]
    assert set(depending["dependsOn"]) == {each["bom-ref"] for each in listed["components"]}

    with zipfile.ZipFile(wheel) as archive:
        foreign = [n for n in archive.namelist() if n.endswith((".safetensors", ".csv", ".png"))]
        foreign.append("graphxai/tables/app/openchemlib/openchemlib.js")
        assert set(foreign) == set(parts) - {"torch"}
        for name in foreign:
            (entry,) = parts[name]["hashes"]
            assert entry == {
                "alg": "SHA-256",
                "content": hashlib.sha256(archive.read(name)).hexdigest(),
            }
            assert parts[name]["licenses"]
    assert parts[foreign[-1]]["purl"] == "pkg:npm/openchemlib@9.25.0"
    folder = "graphxai/models/graphormer/pretrained"
    assert parts[f"{folder}/bace/model.safetensors"]["type"] == "machine-learning-model"
    (terms,) = parts[f"{folder}/lipophilicity/training.csv"]["licenses"]
    assert terms == {"license": {"id": "CC-BY-SA-3.0"}}
    (terms,) = parts[f"{folder}/hlm-clearance/training.csv"]["licenses"]
    assert terms == {"license": {"id": "MIT"}}


def test_wheel_works_outside_the_checkout(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    for neighbour in ("models/graphormer", "datasets"):  # of another package, such as `datasets`
        (tmp_path / "site" / neighbour).mkdir(parents=True)
    code = (
        "import graphxai, graphxai.datasets.samples as s, graphxai.models.graphormer as g;"
        "print(*graphxai.__path__, graphxai.__file__); print(*g.pretrained_names());"
        "print(graphxai.explain('bace', 'CCO').output)"
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
    assert {
        "graphxai/explanation/api.py",
        "models/graphormer/model.py",
        "datasets/molecules.py",
    } <= names
