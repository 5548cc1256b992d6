"""Text for any terminal, without control characters that someone may have put into it.

What a code page cannot show is escaped. When the reader of a pipe has gone, a command goes on in
silence, because files are still to be written. Only a table that is itself the output ends it.

Ctrl-C or SIGTERM ends a command with a status, and with a line that says how to go on.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from graphxai.runtime.notices import LOGGER

from .answers import INVOCATION, named_streams

if TYPE_CHECKING:
    from rich.console import Console


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
    words = printable(named_streams(str(text)))
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
    from rich.console import Console  # typer brings it

    console = Console(file=stream)
    shown = [list(map(str, row)) for row in (list(columns), *filter(None, listed))]
    narrow = _narrow_widths(list(zip(*shown, strict=True)), console.width)
    if narrow:
        pairs = zip(columns.items(), narrow, strict=True)
        columns = {name: {**look, "width": width} for (name, look), width in pairs}
    folded = [(name, {"overflow": "fold", **look}) for name, look in columns.items()]
    show(console, folded, listed, compact=bool(narrow), **options)


def show(
    console: Console,
    columns: Iterable[tuple[str, Mapping[str, Any]]],
    rows: Iterable[Sequence[object] | None],
    *,
    compact: bool,
    **options: Any,
) -> None:
    """Print a table of rich's, whose columns have a heading and keywords of `Column` each.

    In a `compact` table, there is nothing but a space between columns.
    """
    from rich import box
    from rich.markup import escape
    from rich.table import Column, Table

    def text(cell: object) -> str:
        return escape(printable(str(cell)))

    if compact:
        options |= {"box": box.SIMPLE_HEAD, "show_edge": False, "padding": 0, "pad_edge": False}
    if "title" in options:
        options["title"] = text(options["title"])
    table = Table(*(Column(text(name), **look) for name, look in columns), **options)
    for row in rows:
        if row is None:
            table.add_section()
        else:
            table.add_row(*map(text, row))
    with console.capture() as printed:
        console.print(table)
    with going_on_unheard(err=console.file is sys.stderr):
        typer.echo(printed.get(), file=console.file, nl=False)


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


INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
STOPPED = (INTERRUPTED, TERMINATED)  # the statuses of a command that was stopped
PATIENCE = 0.8  # seconds that a process has to end by itself
RESUME = "continue a table, benchmark or training run with --resume."
REPEAT = "repeat the command to start it again."


class TerminatedInterrupt(KeyboardInterrupt):
    """The interrupt that SIGTERM raises.

    It has a type of its own for a reason. If a plain KeyboardInterrupt was ever raised in code that
    `exec` runs, as in dataclasses, Python ends the process by SIGINT, whatever status the process
    asks for.
    """


@dataclass
class Termination:
    """Whether SIGTERM or Ctrl-C has arrived.

    A scheduler sends SIGTERM to a job whose time is up. By default it ends a process without a
    word, and Lightning turns it into an exit with status 0. Some libraries lose the exception of
    Ctrl-C, or wait long before they let it through.

    Attributes:
        too_late: called if the process is still at work `PATIENCE` seconds after either.
    """

    arrived: bool = False
    interrupted: bool = False
    too_late: Callable[[], None] | None = None

    @property
    def stopped(self) -> bool:
        """Whether either signal has arrived."""
        return self.arrived or self.interrupted

    def handle(self, number: int, frame: Any) -> None:
        """Stop the main thread. What it has to tidy up after SIGTERM is not cut short."""
        is_first = not self.stopped
        if is_first and self.too_late is not None:
            timer = threading.Timer(PATIENCE, self.too_late)
            timer.daemon = True
            timer.start()
        if number == signal.SIGINT:
            self.interrupted = True
            raise KeyboardInterrupt
        self.arrived = True
        if is_first:
            raise TerminatedInterrupt

    def exit(self, resumable: bool) -> SystemExit:
        """Print how to go on, and return the exit of a command that was stopped."""
        word = "terminated" if self.arrived else "interrupted"
        tell(f"{word}; {RESUME if resumable else REPEAT}", logging.ERROR)
        return SystemExit(TERMINATED if self.arrived else INTERRUPTED)


@contextmanager
def heeding_signals() -> Iterator[Termination]:
    """Stop the block on SIGTERM as on Ctrl-C, and tell the two apart."""
    termination = Termination()
    if threading.current_thread() is not threading.main_thread():
        yield termination  # only the main thread may handle signals
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, termination.handle) for number in numbers]
    try:
        yield termination
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def leave_at_once(status: int) -> NoReturn:
    """End the process with a status, after what it still has to write and to tidy up.

    Taking down an interpreter that holds torch and RDKit takes up to a second, and waiting for
    threads may take longer. Nobody who pressed Ctrl-C waits for either.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def is_resumable(command: Any, arguments: Sequence[str]) -> bool:
    """Return whether the command that is named by the arguments has the option `--resume`."""
    commands = getattr(command, "commands", {})
    named = next((commands[name] for name in arguments if name in commands), None)
    options = getattr(named, "params", [])
    return any("--resume" in option.opts for option in options)
