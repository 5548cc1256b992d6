"""The layout keeps its floors, and methods are found where they lie."""

import ast
import importlib.util
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import graphxai as gx
from graphxai import explainers
from graphxai.explainers import REGISTRY
from house_budget import NEW, ceilings, measured

ROOT = Path(__file__).resolve().parents[1]


def drawing():
    spec = importlib.util.spec_from_file_location("draw_floors", ROOT / "docs" / "draw_floors.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["floors", "hall-explain", "hall-learn", "hall-chemist"])
def test_a_picture_of_the_house_is_drawn_from_the_imports(name):
    """If this fails, run `python docs/draw_floors.py`."""
    draw = drawing()
    file = draw.IMAGES / f"{name}.svg"
    assert file.read_text(encoding="utf-8") == draw.pictures()[file]


def test_every_room_below_the_commands_is_in_one_hall():
    draw = drawing()
    rooms_of = [{room.split(".")[1] for room in draw.modules_of(hall)} for hall in draw.HALLS]
    halls = [room for rooms in rooms_of for room in rooms]
    assert sorted(halls) == sorted(draw.rooms().keys() - {"cli"})


def test_a_hall_is_tested_by_the_folders_of_its_rooms():
    """If this fails, correct the folders at the top of `make test-explain` and its neighbours."""
    draw = drawing()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for hall in draw.HALLS:
        (tested,) = re.findall(rf"^{hall.upper()}_ROOMS := (.*)$", makefile, re.MULTILINE)
        rooms = {room.split(".")[1] for room in draw.modules_of(hall)}
        assert set(tested.split()) == {room for room in rooms if (ROOT / "tests" / room).is_dir()}


def test_there_are_few_rooms_on_few_floors():
    draw = drawing()
    levels = draw.floors(draw.rooms())
    assert len(levels) <= 11
    assert sum(map(len, levels)) <= 20


def test_the_search_for_counterfactuals_stands_on_the_rest_of_chemistry():
    draw, search = drawing(), "graphxai.chemistry.search"
    below = {
        module: {other for other in imported if other.startswith(search)}
        for module, imported in draw.imported_modules().items()
        if module.startswith("graphxai.chemistry") and not module.startswith(search)
    }
    assert len(below) > 15
    assert {module: others for module, others in below.items() if others} == {}


def test_the_package_shows_its_architecture_at_a_glance():
    links = {"models", "datasets"}
    entries = {path.name for path in (ROOT / "graphxai").iterdir()} - {"__pycache__"} - links
    assert len(entries) <= 17, sorted(entries)


def test_the_map_in_contributing_has_every_folder():
    """If this fails, add the folder to the map under "The map" in CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    on_map = text.partition("## The map")[2].partition("```\n\n")[0]
    folders = {path.parent.name for path in (ROOT / "graphxai").rglob("__init__.py")}
    assert [folder for folder in sorted(folders) if f"{folder}/" not in on_map] == []


def test_the_name_of_a_class_means_one_thing():
    files = [
        path for root in ("graphxai", "models", "datasets") for path in (ROOT / root).rglob("*.py")
    ]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in {p.resolve() for p in files}]
    classes = [
        node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    ]
    assert [name for name, count in Counter(classes).items() if count > 1] == []


def test_the_house_stays_within_its_budget():
    """The ceilings are those of rooms, of folders with more than 25 Python files, and of pages."""
    limits = ceilings()
    grown = [
        f"{name}: {subject} {figure:,}, ceiling {limit:,}"
        for subject, figures in measured().items()
        for name, figure in figures.items()
        if figure > (limit := limits[subject].get(name, NEW.get(subject, 0)))
    ]
    assert not grown, (
        "take something away, or run `python tests/helpers/house_budget.py`; a commit that raises"
        f" one says why in its body: {'; '.join(grown)}"
    )


def test_the_core_of_the_engine_is_read_in_an_afternoon():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (core,) = (each for each in contracts if each["name"].startswith("The core of the engine"))
    files = [ROOT / f"{name.replace('.', '/')}.py" for name in core["source_modules"]]
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    assert lines <= 5_000
    assert len(files) <= 16


def test_every_public_name_is_listed_once_and_loads():
    assert len(gx.__all__) == len(set(gx.__all__)) > 30
    for name in gx.__all__:
        assert getattr(gx, name) is not None
        assert name in dir(gx)


def test_a_method_is_found_by_its_file_alone(tmp_path, monkeypatch):
    (tmp_path / "loudest.py").write_text(
        "from graphxai.explainers.control import Random\n"
        "from graphxai.explainers.registry import register\n"
        "@register\n"
        "class Loudest(Random):\n"
        '    name = "loudest"\n'
    )
    before = list(REGISTRY)
    monkeypatch.setattr(explainers, "__path__", [*explainers.__path__, str(tmp_path)])
    try:
        explainers.__spec__.loader.exec_module(explainers)  # as when it is first imported
        assert list(REGISTRY) == [*before, "loudest"]
    finally:
        REGISTRY.pop("loudest", None)
        sys.modules.pop("graphxai.explainers.loudest", None)
        vars(explainers).pop("loudest", None)


def test_tests_that_are_left_to_another_command_exist():
    """After a test has another name, correct it in tests/data/slow_tests.txt."""
    for place in (ROOT / "tests" / "data" / "slow_tests.txt").read_text().split():
        path, function = place.split("::")
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), place
