"""The size of the house, and the ceilings that hold it: `python tests/helpers/house_budget.py`.

The command rewrites the ceilings in `tests/house_budget.toml` from the tree.
"""

import json
import os
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "house_budget.toml"
LIBRARY = ("graphxai", "models", "datasets")
FULL = 25  # Python files in a folder
NEW = {"Python files in a folder": FULL}  # ceilings of what the table does not list, else 0
NOTE = """\
# Ceilings of the house, which `tests/test_house.py` holds: lines and files of every room of the
# library, folders with more than 25 Python files, words of the pages. A commit that raises one says
# why in its body. `python tests/helpers/house_budget.py` writes the figures of the tree.
"""

Figures = dict[str, dict[str, int]]


def measured() -> Figures:
    """Return the figures of the tree by subject and name."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    in_folder: Counter[str] = Counter()
    for file in _library():
        room = room_of(file)
        lines[room] += len(file.read_text(encoding="utf-8").splitlines())
        files[room] += 1
        in_folder[file.parent.relative_to(ROOT).as_posix()] += 1
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return {
        "lines of a room": dict(sorted(lines.items())),
        "files of a room": dict(sorted(files.items())),
        "Python files in a folder": {
            folder: count for folder, count in sorted(in_folder.items()) if count > FULL
        },
        "words": {"docs": _words("docs"), "benchmarks": _words("benchmarks")},
        "lines of a page": {"README.md": len(readme.splitlines())},
    }


def ceilings() -> Figures:
    """Return the ceilings as they stand in the table."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def write() -> None:
    """Write the figures of the tree as the ceilings."""
    parts = [NOTE]
    for subject, figures in measured().items():
        entries = (f"{json.dumps(name)} = {figure}\n" for name, figure in figures.items())
        parts.append(f"\n[{json.dumps(subject)}]\n{''.join(entries)}")
    TABLE.write_text("".join(parts), encoding="utf-8")


def room_of(file: Path) -> str:
    """Return the room of a file: a folder of `graphxai`, or `graphxai` for the files beside these.

    `models/graphormer` and `datasets` are rooms too.
    """
    first, *rest = file.relative_to(ROOT).parts
    if first == "datasets":
        return first
    return f"{first}/{rest[0]}" if len(rest) > 1 else first


def _library() -> list[Path]:
    """Return the Python files of the library, each once, as links are not followed."""
    return [
        Path(folder) / name
        for top in LIBRARY
        for folder, _, names in os.walk(ROOT / top)
        for name in names
        if name.endswith(".py")
    ]


def _words(folder: str) -> int:
    """Return the number of words in the Markdown of a folder that is written by hand."""
    made = [
        ROOT / "docs" / name for name in ("_build", "notebooks", "benchmarks")
    ]  # by `make docs`
    pages = (ROOT / folder).rglob("*.md")
    return sum(
        len(page.read_text(encoding="utf-8").split())
        for page in pages
        if not any(page.is_relative_to(each) for each in made)
    )


if __name__ == "__main__":
    write()
    print(TABLE)
