"""Text for the terminal, without control characters that someone may have put into it."""

import sys
from typing import Any

import typer


def printable(text: str) -> str:
    """Text with control and format characters as question marks; spaces and line ends stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def echo(text: object, *, err: bool = False, **style: Any) -> None:
    """Print text that may come from a table, a checkpoint or a command line; style: of typer."""
    typer.secho(printable(str(text)), err=err, **style)


class Printed:
    """Standard output as a file to write printable text to."""

    def write(self, text: str) -> None:
        """Write to standard output."""
        sys.stdout.write(printable(text))
