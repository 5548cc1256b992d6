"""Functions that worker processes of the tests call; they need no torch, so these start fast."""

import os
import signal
import sys
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path


def doubled(items):
    return [2 * item for item in items]


def where(items):
    """Return the process that did the items, and what it may do to threads."""
    return os.getpid(), os.environ.get("OMP_NUM_THREADS"), list(items)


def slowly(items):
    time.sleep(0.05 * items[0])
    return list(items)


def strict(items):
    for item in items:
        warnings.warn(f"item {item} is odd", UserWarning, stacklevel=1)
        if item == 4:
            raise LookupError("there is no item 4")
    return list(items)


class OddError(Exception):
    """An error that cannot be rebuilt from its words."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def odd(items):
    raise OddError(*items)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class DiesOn:
    """A function that ends its process at certain items, or `at_first` until the file is there."""

    def __init__(self, items, at_first: Path | None = None) -> None:
        self.items, self.at_first = items, at_first

    def __call__(self, items):
        if set(items) & set(self.items):
            if self.at_first is None:
                die()
            elif not self.at_first.exists():
                self.at_first.touch()
                die()
        return [(item, len(items)) for item in items]


class DiesTimes:
    """A function that ends its process at an item some times, and leaves a file each time."""

    def __init__(self, item, times: int, folder: Path) -> None:
        self.item, self.times, self.folder = item, times, folder

    def __call__(self, items):
        deaths = len(list(self.folder.iterdir()))
        if self.item in items and deaths < self.times:
            (self.folder / str(deaths)).touch()
            die()
        return list(items)


class DiesSending:
    """A function that ends its process within the answer for an item, until the file is there."""

    def __init__(self, item, at_first: Path) -> None:
        self.item, self.at_first = item, at_first

    def __call__(self, items):
        if self.item in items and not self.at_first.exists():
            self.at_first.touch()

            def send_half(connection, message):
                os.write(connection.fileno(), bytes(message[: len(message) // 2]))
                die()

            Connection._send = send_half
        return list(items)


def leave(items):
    """End the process as a library does that calls `sys.exit`."""
    if 5 in items:
        sys.exit(3)
    return list(items)
