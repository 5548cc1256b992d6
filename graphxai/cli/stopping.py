"""End the command line on Ctrl-C or SIGTERM, with a status and a line that says how to go on."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from .terminal import tell

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
