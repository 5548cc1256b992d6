"""Text for the terminal, without control characters that someone may have put into it."""

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import typer

SHOWN_REASONS = 10  # rows left out that are named one by one


def printable(text: str) -> str:
    """Replace control and format characters by question marks, except spaces and line ends."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def typed_command() -> str:
    """Return the command that runs, as a line to type that makes its results anew.

    `--resume` is left out: a run that was stopped and continued records what another one records,
    and without that run there is nothing to continue.
    """
    return shlex.join(["graphxai", *(word for word in sys.argv[1:] if word != "--resume")])


def echo(text: object, *, err: bool = False, **style: Any) -> None:
    """Print text that may come from a table, a checkpoint or a command line.

    Args:
        style: keywords of `typer.secho`.
    """
    typer.secho(printable(str(text)), err=err, **style)


def print_table(
    columns: Mapping[str, Mapping[str, Any]],
    rows: Iterable[Sequence[object] | None],
    **options: Any,
) -> None:
    """Print a table, whose text may come from anywhere.

    Args:
        columns: the keywords of rich's `Column` for each heading.
        rows: the cells of each row, or None for a line between rows.
        options: keywords of rich's `Table`.
    """
    from rich.console import Console  # typer brings it
    from rich.markup import escape
    from rich.table import Column, Table

    def text(cell: object) -> str:
        return escape(printable(str(cell)))

    if "title" in options:
        options["title"] = text(options["title"])
    table = Table(*(Column(text(name), **look) for name, look in columns.items()), **options)
    for row in rows:
        if row is None:
            table.add_section()
        else:
            table.add_row(*map(text, row))
    Console().print(table)


def echo_left_out(reasons: Iterable[str], count: int, what: str = " rows") -> None:
    """Print the first reasons why rows were left out, and how many more there are."""
    shown = list(islice(reasons, SHOWN_REASONS))
    for reason in shown:
        echo(f"left out: {reason}", err=True)
    if count > len(shown):
        echo(f"left out: {count - len(shown)} more{what}", err=True)


class PrintableOutput:
    """Standard output as a file, to which only printable text is written."""

    def write(self, text: str) -> None:
        """Write to standard output, without a mark for Excel."""
        sys.stdout.write(printable(text.removeprefix("\ufeff")))
