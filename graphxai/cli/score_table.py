"""Print a table of scores so that no number is cut, however narrow the terminal is."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box  # typer brings it
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from .terminal import printable

__all__ = ["print_scores"]

SHORTEST_NAME = 8  # characters of the first column in a narrow terminal
Rows = list[list[str]]


def print_scores(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Print a table whose first column has names, and the others numbers.

    In a terminal that is too narrow, intervals in brackets take a second line. If even that is too
    wide, they are left out, and names and headings take several lines.

    Returns:
        Whether the intervals were printed.
    """
    console = Console()
    whole = [list(map(printable, row)) for row in (header, *rows)]
    two_lines = [[cell.replace(" to ", "\nto ") for cell in row] for row in whole]
    for cells, compact in ((whole, False), (two_lines, False), (two_lines, True)):
        widths = [max(map(_longest_line, column)) for column in zip(*cells, strict=True)]
        between = len(widths) if compact else 3 * len(widths) + 1
        if sum(widths) + between <= console.width:
            columns = [Column(no_wrap=True) for _ in widths]
            console.print(_table(title, cells, columns, compact))
            return True
    values = [[row[0], *(cell.partition(" (")[0] for cell in row[1:])] for row in whole]
    names, *numbers = zip(*values, strict=True)
    widths = [max(map(_longest_word, column)) for column in numbers]
    left = console.width - sum(widths) - len(widths)
    widths.insert(0, max(SHORTEST_NAME, min(left, max(map(len, names)))))
    columns = [Column(width=width, overflow="fold") for width in widths]
    console.print(_table(title, values, columns, compact=True))
    return False


def _table(title: str, cells: Rows, columns: Sequence[Column], compact: bool) -> Table:
    """Make a table, whose first row is its header.

    A compact table has only a space between its columns, any other has lines and spaces.
    """
    header, *rows = cells
    for column, heading in zip(columns, header, strict=True):
        column.header = escape(heading)
    table = Table(*columns, title=escape(printable(title)), title_justify="left")
    if compact:
        table.box, table.show_edge = box.SIMPLE_HEAD, False
        table.padding, table.pad_edge = 0, False
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _longest_line(text: str) -> int:
    """Return the length of the longest line."""
    return max(map(len, text.split("\n")))


def _longest_word(text: str) -> int:
    """Return the length of the longest word."""
    return max(map(len, text.split() or [""]))
