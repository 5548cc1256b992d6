"""End the command line on Ctrl-C or SIGTERM, with a status and a line that says how to go on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .terminal import echo

__all__ = ["INTERRUPTED", "Termination", "heeding_sigterm"]

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
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
    """Whether SIGTERM has arrived.

    A scheduler sends it to a job whose time is up. By default it ends a process without a word,
    and Lightning turns it into an exit with status 0.
    """

    arrived: bool = False

    def handle(self, number: int, frame: Any) -> None:
        """Stop the main thread as Ctrl-C does. What the thread has to tidy up is not cut short."""
        if not self.arrived:
            self.arrived = True
            raise TerminatedInterrupt

    def exit(self, resumable: bool) -> SystemExit:
        """Print how to go on, and return the exit of a command that was stopped.

        Args:
            resumable: whether the command has the option `--resume`.
        """
        word = "terminated" if self.arrived else "interrupted"
        echo(f"{word}; {RESUME if resumable else REPEAT}", err=True)
        return SystemExit(TERMINATED if self.arrived else INTERRUPTED)


@contextmanager
def heeding_sigterm() -> Iterator[Termination]:
    """Stop the block on SIGTERM as on Ctrl-C, and tell the two apart."""
    termination = Termination()
    if threading.current_thread() is not threading.main_thread():
        yield termination  # only the main thread may handle signals
        return
    before = signal.signal(signal.SIGTERM, termination.handle)
    try:
        yield termination
    finally:
        signal.signal(signal.SIGTERM, before)


def is_resumable(command: Any, arguments: Sequence[str]) -> bool:
    """Return whether the command that is named by the arguments has the option `--resume`."""
    commands = getattr(command, "commands", {})
    named = next((commands[name] for name in arguments if name in commands), None)
    options = getattr(named, "params", [])
    return any("--resume" in option.opts for option in options)
