"""Text for any terminal, without control characters that someone may have put into it.

What a code page cannot show is escaped. When the reader of a pipe has gone, a command goes on in
silence, because files are still to be written. Only a table that is itself the output ends it.
"""

import io
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SHOWN_REASONS = 10  # rows left out that are named one by one


def printable(text: str) -> str:
    """Replace control and format characters by question marks, except spaces and line ends."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def escape_what_cannot_be_shown() -> None:
    """Let standard output and errors escape what their code page lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def going_on_unheard(*, err: bool = False) -> Iterator[None]:
    """Print within the block, and print to nobody from then on if the reader has gone."""
    try:
        yield
    except BrokenPipeError:
        silence(sys.stderr if err else sys.stdout)


def silence(stream: Any) -> None:
    """Discard what is written to a stream, and what it still holds."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


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
    with going_on_unheard(err=err):
        typer.secho(printable(str(text)), file=sys.stderr if err else sys.stdout, **style)


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
    show(Console(), table)


def show(console: "Console", table: "Table") -> None:
    """Print a table of rich's on standard output."""
    with console.capture() as text:
        console.print(table)
    with going_on_unheard():
        typer.echo(text.get(), file=sys.stdout, nl=False)


def echo_left_out(reasons: Iterable[str], count: int, what: str = " rows") -> None:
    """Print the first reasons why rows were left out, and how many more there are."""
    shown = list(islice(reasons, SHOWN_REASONS))
    for reason in shown:
        echo(f"left out: {reason}", err=True)
    if count > len(shown):
        echo(f"left out: {count - len(shown)} more{what}", err=True)


class PrintableOutput:
    """Standard output as a file for a table, to which only printable text is written.

    A table that is redirected is UTF-8 on every system, as a table in a file is.
    """

    def write(self, text: str) -> None:
        """Write to standard output, without a mark for Excel."""
        text = printable(text.removeprefix("\ufeff"))
        if sys.stdout.isatty() or not hasattr(sys.stdout, "buffer"):
            sys.stdout.write(text)
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(text.encode())
        sys.stdout.flush()
