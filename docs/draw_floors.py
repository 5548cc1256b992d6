"""Draw the floors of the package from its imports: `python docs/draw_floors.py`.

A room is a folder of the package, or a file beside these folders. It stands one floor above the
highest room that it imports. An arrow that follows from others is left out.
"""

import ast
import tomllib
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "floors.svg"
PURPOSE = {  # of the folders that have no __init__.py to say it
    "datasets": "Molecules, superpixels, tables, splits, rules.",
    "models": "The Graphormer, its files and the bundled models.",
}
WIDTH, HEIGHT, GAP, LIFT = 236, 76, 18, 34  # of a room, between rooms, between floors, in pixels

Rooms = dict[str, set[str]]  # each room with the rooms that it imports


def rooms() -> Rooms:
    """Return every room of the package with the rooms that it imports, also within functions."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    graph = grimp.build_graph(*settings["tool"]["importlinter"]["root_packages"], cache_dir=None)
    imported: Rooms = {}
    for module in graph.modules:
        if (room := _room(module)) is None:
            continue
        others = map(_room, graph.find_modules_directly_imported_by(module))
        imported.setdefault(room, set()).update(o for o in others if o not in (None, room))
    return imported


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

    def below(room: str) -> set[str]:
        return set().union(*({other} | below(other) for other in imported[room]))

    return sorted(
        (room, other)
        for room, others in imported.items()
        for other in others
        if not any(other in below(third) for third in others - {other})
    )


def picture() -> str:
    """Return the floors as SVG."""
    imported = rooms()
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
    boxes = [_box(name, *at) for name, at in sorted(place.items())]
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


def _room(module: str) -> str | None:
    """Return the room of a module, or None for the front door, which only hands names on."""
    parts = module.split(".")
    return None if len(parts) < 2 or parts[1] == "__main__" else parts[1]


def _purpose(room: str) -> str:
    """Return the first sentence of the room's docstring."""
    folder = ROOT / "graphxai" / room
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    if room in PURPOSE or not file.is_file():
        return PURPOSE.get(room, "")
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def _box(name: str, x: float, y: float) -> str:
    lines = _wrapped(_purpose(name), 38)[:3]
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
    PICTURE.write_text(picture(), encoding="utf-8")
    print(PICTURE)
