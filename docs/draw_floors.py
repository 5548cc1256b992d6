"""Draw the floors of the package and its halls from the imports: `python docs/draw_floors.py`.

A room is a folder of the package, or a file beside these folders. It stands one floor above the
highest room that it imports. An arrow that follows from others is left out. So are the imports that
the contracts in `pyproject.toml` except.

The picture of a hall has a room for every folder, except that folders which import each other are
one room. A hall that is a single room shows its files.
"""

import ast
import tomllib
from collections.abc import Callable
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import grimp

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
PACKAGE = "graphxai"
HALLS = {  # each hall with the beginning of the name of its contract, which lists the rooms
    "explain": "The hall that explains",
    "learn": "The hall that learns",
    "chemist": "The hall of the chemist",
}
PURPOSE = {  # of the folders that have no __init__.py to say it
    "datasets": "Molecules, superpixels, tables, splits, rules.",
    "models": "The Graphormer and the Gaussian process, their files, the bundled models.",
}
WIDTH, HEIGHT, GAP, LIFT = 236, 76, 18, 34  # of a room, between rooms, between floors, in pixels

Rooms = dict[str, set[str]]  # each room with the rooms that it imports


def rooms() -> Rooms:
    """Return every room of the package with the rooms that it imports, also within functions."""
    return _rooms(imported_modules(), _room)


def hall_rooms(hall: str) -> Rooms:
    """Return the rooms of a hall, each with the rooms of the hall that it imports."""
    imports, inside, above = imported_modules(), modules_of(hall), _above(hall)
    packages = {module.rpartition(".")[0] for module in imports}

    def room_of(module: str) -> str | None:
        if not any(f"{module}.".startswith(f"{room}.") for room in inside) or module == above:
            return None
        if above != PACKAGE:  # a hall of one room shows the files and folders in it
            return ".".join(module.split(".")[: above.count(".") + 2])
        return module if module in packages or module in inside else module.rpartition(".")[0]

    def short(room: str) -> str:
        return room.removeprefix(f"{above}.").replace(".", "/")

    rooms_inside = _without_circles(_rooms(imports, room_of))
    return {short(room): set(map(short, others)) for room, others in rooms_inside.items()}


def modules_of(hall: str) -> list[str]:
    """Return the modules and packages that the contract of a hall lists."""
    for contract in _settings()["contracts"]:
        if contract["name"].startswith(HALLS[hall]):
            return contract["source_modules"]
    raise ValueError(f"pyproject.toml has no contract whose name begins with {HALLS[hall]!r}.")


def floors(imported: Rooms) -> list[list[str]]:
    """Return the rooms by floor, the ground first, or raise a ValueError for a circle."""
    height: dict[str, int] = {}
    while len(height) < len(imported):
        ready = [r for r in imported if r not in height and imported[r] <= height.keys()]
        if not ready:
            raise ValueError(f"a circle of imports: {sorted(imported.keys() - height.keys())}")
        for room in ready:
            height[room] = 1 + max((height[other] for other in imported[room]), default=-1)
    levels = range(max(height.values()) + 1)
    return [sorted(room for room in imported if height[room] == level) for level in levels]


def arrows(imported: Rooms) -> list[tuple[str, str]]:
    """Return the imports that do not follow from others."""

    below = {room: _reached(room, imported) for room in imported}
    return sorted(
        (room, other)
        for room, others in imported.items()
        for other in others
        if not any(other in below[third] for third in others - {other})
    )


def pictures() -> dict[Path, str]:
    """Return the SVG of the whole package and of every hall, by the file in which it belongs."""
    drawn = {IMAGES / "floors.svg": picture(rooms(), ROOT / PACKAGE)}
    for hall in HALLS:
        folder = ROOT.joinpath(*_above(hall).split("."))
        drawn[IMAGES / f"hall-{hall}.svg"] = picture(hall_rooms(hall), folder)
    return drawn


def picture(imported: Rooms, folder: Path) -> str:
    """Return the floors of the rooms in a folder as SVG."""
    levels = floors(imported)
    widest = max(map(len, levels))
    width = widest * (WIDTH + GAP) + GAP
    height = len(levels) * (HEIGHT + LIFT) - LIFT + 2 * GAP
    place = {}
    for level, names in enumerate(levels):
        left = (width - len(names) * (WIDTH + GAP) + GAP) / 2
        for column, name in enumerate(names):
            x = left + column * (WIDTH + GAP)
            y = height - GAP - level * (HEIGHT + LIFT) - HEIGHT
            place[name] = (x, y)
    lines = [_arrow(place[room], place[other]) for room, other in arrows(imported)]
    boxes = [_box(name, _purpose(folder / name), *at) for name, at in sorted(place.items())]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
            f' viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif">',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
            ' markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#8a94a3"/></marker>'
            "</defs>",
            '<rect width="100%" height="100%" fill="#fff"/>',
            *lines,
            *boxes,
            "</svg>\n",
        ]
    )


def _settings() -> dict[str, Any]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return settings["tool"]["importlinter"]


def _above(hall: str) -> str:
    """Return the package whose parts are the rooms of a hall."""
    inside = modules_of(hall)
    return inside[0] if len(inside) == 1 else PACKAGE


@cache
def imported_modules() -> dict[str, set[str]]:
    """Return every module with those that it imports, except what a contract leaves out."""
    settings = _settings()
    graph = grimp.build_graph(*settings["root_packages"], cache_dir=None)
    left_out = {each for c in settings["contracts"] for each in c.get("ignore_imports", ())}
    return {
        module: {
            other
            for other in graph.find_modules_directly_imported_by(module)
            if f"{module} -> {other}" not in left_out
        }
        for module in graph.modules
    }


def _rooms(imports: dict[str, set[str]], room_of: Callable[[str], str | None]) -> Rooms:
    """Put modules, or smaller rooms, into rooms. One whose room is None is left out."""
    imported: Rooms = {}
    for module, others in imports.items():
        if (room := room_of(module)) is not None:
            rooms_of_others = {room_of(other) for other in others} - {room, None}
            imported.setdefault(room, set()).update(rooms_of_others)  # type: ignore[arg-type]
    return imported


def _without_circles(imported: Rooms) -> Rooms:
    """Join rooms that import each other, by whatever way, into the uppermost folder of them."""
    below = {room: _reached(room, imported) for room in imported}
    joined = {
        room: min({room, *(o for o in below[room] if room in below[o])}, key=lambda r: (len(r), r))
        for room in imported
    }
    return _rooms(imported, joined.__getitem__)


def _reached(room: str, imported: Rooms) -> set[str]:
    """Return the rooms that a room imports, directly or through others."""
    reached: set[str] = set()
    left = [room]
    while left:
        further = imported[left.pop()] - reached
        reached |= further
        left += further
    return reached


def _room(module: str) -> str | None:
    """Return the room of a module, or None for the front door, which only hands names on."""
    parts = module.split(".")
    return None if len(parts) < 2 or parts[1] == "__main__" else parts[1]


def _purpose(room: Path) -> str:
    """Return the first sentence of the docstring of a folder or a file."""
    file = room / "__init__.py" if room.is_dir() else room.with_suffix(".py")
    if room.name in PURPOSE or not file.is_file():
        return PURPOSE.get(room.name, "")
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def _box(name: str, purpose: str, x: float, y: float) -> str:
    lines = _wrapped(purpose, 38)[:3]
    words = "".join(
        f'<text x="{x + 12:g}" y="{y + 38 + 14 * k:g}" font-size="11" fill="#4a5361">'
        f"{escape(line)}</text>"
        for k, line in enumerate(lines)
    )
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#f3f6fa"'
        f' stroke="#5b6b80"/><text x="{x + 12:g}" y="{y + 20:g}" font-size="14"'
        f' font-weight="bold" fill="#1d2733">{escape(name)}</text>{words}'
    )


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Draw a curve from the lower edge of one room to the upper edge of another."""
    (x1, y1), (x2, y2) = start, end
    x1, y1, x2 = x1 + WIDTH / 2, y1 + HEIGHT, x2 + WIDTH / 2
    bend = (y2 - y1) / 2
    return (
        f'<path d="M{x1:g} {y1:g}C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2:g}"'
        ' fill="none" stroke="#8a94a3" stroke-width="1.3" marker-end="url(#tip)"/>'
    )


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


if __name__ == "__main__":
    for file, svg in pictures().items():
        file.write_text(svg, encoding="utf-8")
        print(file)
