"""The layout: rooms on floors, a front door, and methods that are found where they lie."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import graphxai as gx
import graphxai.explainers

ROOT = Path(__file__).resolve().parents[1]


def drawing():
    spec = importlib.util.spec_from_file_location("draw_floors", ROOT / "docs" / "draw_floors.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_of_the_floors_is_drawn_from_the_imports():
    """Else run `python docs/draw_floors.py`."""
    draw = drawing()
    assert draw.PICTURE.read_text(encoding="utf-8") == draw.picture()


def test_there_are_few_rooms_on_few_floors():
    draw = drawing()
    levels = draw.floors(draw.rooms())
    assert len(levels) <= 12
    assert sum(map(len, levels)) <= 20


def test_the_package_shows_its_architecture_at_a_glance():
    links = {"models", "datasets"}
    entries = {path.name for path in (ROOT / "graphxai").iterdir()} - {"__pycache__"} - links
    assert len(entries) <= 14, sorted(entries)


def test_every_public_name_is_listed_once_and_loads():
    assert len(gx.__all__) == len(set(gx.__all__)) > 30
    for name in gx.__all__:
        assert getattr(gx, name) is not None
        assert name in dir(gx)


def test_a_method_is_found_by_its_file_alone(tmp_path):
    (tmp_path / "loudest.py").write_text(
        "from graphxai.explainers.control import Random\n"
        "from graphxai.explainers.registry import register\n"
        "@register\n"
        "class Loudest(Random):\n"
        '    name = "loudest"\n'
    )
    code = (
        "import pkgutil, sys; import importlib.util as u;"
        f"spec = u.find_spec('graphxai.explainers'); paths = [*spec.submodule_search_locations, {str(tmp_path)!r}];"  # noqa: E501
        "spec.submodule_search_locations[:] = paths;"
        "module = u.module_from_spec(spec); sys.modules[spec.name] = module;"
        "spec.loader.exec_module(module); print(list(module.REGISTRY)[-1])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["loudest"]
    assert "loudest" not in graphxai.explainers.REGISTRY
