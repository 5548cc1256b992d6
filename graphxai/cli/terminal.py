"""Text for any terminal, without control characters that someone may have put into it.

What a code page cannot show is escaped. When the reader of a pipe has gone, a command goes on in
silence, because files are still to be written. Only a table that is itself the output ends it.
"""

import io
import logging
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import typer

from graphxai.runtime.notices import LOGGER

from .answers import INVOCATION

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


def echo(text: object, **style: Any) -> None:
    """Print a part of the answer, which may come from a table, a checkpoint or a command line."""
    if INVOCATION.streams_a_file:
        tell(text)
    elif not INVOCATION.json:
        with going_on_unheard():
            typer.secho(printable(str(text)), file=sys.stdout, **style)


def tell(text: object, level: int = logging.INFO) -> None:
    """Print words about the run on standard error, and log them.

    `level` says how serious they are. `--quiet` leaves out what is less than a warning.
    """
    words = printable(str(text))
    LOGGER.log(level, words)
    if level >= logging.WARNING or not INVOCATION.quiet:
        with going_on_unheard(err=True):
            typer.secho(words, file=sys.stderr)


def print_table(
    columns: Mapping[str, Mapping[str, Any]],
    rows: Iterable[Sequence[object] | None],
    *,
    as_words: bool = False,
    **options: Any,
) -> None:
    """Print a table, whose text may come from anywhere.

    Where no terminal shows it, it is lines with tabs, of which nothing is cut.

    Args:
        columns: the keywords of rich's `Column` for each heading.
        rows: the cells of each row, or None for a line between rows.
        as_words: whether it is about the run and goes to standard error, instead of an answer.
        options: keywords of rich's `Table`.
    """
    stream = sys.stderr if as_words else sys.stdout
    listed = list(rows)
    if not stream.isatty() or INVOCATION.json or INVOCATION.streams_a_file:
        for heading in (options.get("title"), options.get("caption")):
            if heading is not None:
                tell(heading)
        for cells in (list(columns), *filter(None, listed)):
            line = "\t".join(" ".join(str(cell).split()) for cell in cells)
            tell(line) if as_words else echo(line)
        return
    from rich import box  # typer brings it
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    console = Console(file=stream)
    shown = [list(map(str, row)) for row in (list(columns), *filter(None, listed))]
    narrow = _narrow_widths(list(zip(*shown, strict=True)), console.width)
    if narrow:
        options |= {"box": box.SIMPLE_HEAD, "show_edge": False, "padding": 0, "pad_edge": False}
        pairs = zip(columns.items(), narrow, strict=True)
        columns = {name: {**look, "width": width} for (name, look), width in pairs}
    columns = {name: {"overflow": "fold", **look} for name, look in columns.items()}

    def text(cell: object) -> str:
        return escape(printable(str(cell)))

    if "title" in options:
        options["title"] = text(options["title"])
    table = Table(*(Column(text(name), **look) for name, look in columns.items()), **options)
    for row in listed:
        if row is None:
            table.add_section()
        else:
            table.add_row(*map(text, row))
    show(console, table)


def show(console: "Console", table: "Table") -> None:
    """Print a table of rich's on the stream of its console."""
    with console.capture() as text:
        console.print(table)
    with going_on_unheard(err=console.file is sys.stderr):
        typer.echo(text.get(), file=console.file, nl=False)


def _narrow_widths(columns: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the widths of columns with a space between them, none of whose words is cut.

    There are none if the columns, with lines and spaces, fit into the width as they are, or if
    even their longest words do not.
    """
    whole = [max(map(len, column)) for column in columns]
    widths = [max(len(w) for cell in column for w in cell.split() or [""]) for column in columns]
    spare = width - sum(widths) - len(widths) + 1
    if sum(whole) + 3 * len(whole) + 1 <= width or spare < 0:
        return []
    for place in sorted(range(len(widths)), key=lambda k: whole[k] - widths[k]):
        more = min(spare, whole[place] - widths[place])
        widths[place], spare = widths[place] + more, spare - more
    return widths


def echo_left_out(reasons: Iterable[str], count: int, what: str = " rows") -> None:
    """Print the first reasons why rows were left out, and how many more there are."""
    INVOCATION.rejected += count
    shown = list(islice(reasons, SHOWN_REASONS))
    for reason in shown:
        tell(f"left out: {reason}")
    if count > len(shown):
        tell(f"left out: {count - len(shown)} more{what}")


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
