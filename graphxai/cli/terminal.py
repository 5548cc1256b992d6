"""Text for the terminal, without control characters that someone may have put into it."""

import shlex
import sys
from collections.abc import Iterable
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


def echo_left_out(reasons: Iterable[str], count: int) -> None:
    """Print the first reasons why rows were left out, and how many more there are."""
    shown = list(islice(reasons, SHOWN_REASONS))
    for reason in shown:
        echo(f"left out: {reason}", err=True)
    if count > len(shown):
        echo(f"left out: {count - len(shown)} more rows", err=True)


class PrintableOutput:
    """Standard output as a file, to which only printable text is written."""

    def write(self, text: str) -> None:
        """Write to standard output, without a mark for Excel."""
        sys.stdout.write(printable(text.removeprefix("\ufeff")))
