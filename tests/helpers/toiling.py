"""Functions that worker processes of the tests call; they need no torch, so these start fast."""

import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path


def doubled(items):
    return [2 * item for item in items]


def where(items):
    """The process that did the items, and what it may do to threads."""
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
    """Cannot be rebuilt from its words."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


def odd(items):
    raise OddError(*items)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class DiesSending:
    """Ends its process in the middle of sending what it made, until the file is there."""

    def __init__(self, at_first: Path, size: int) -> None:
        self.at_first, self.size = at_first, size

    def __call__(self, items):
        if not self.at_first.exists():
            self.at_first.touch()
            threading.Thread(target=self.watch, args=(threading.get_ident(),), daemon=True).start()
        return bytes(self.size)

    def watch(self, thread):
        while sys._current_frames()[thread].f_code.co_name != "_send":
            time.sleep(0.001)
        die()


class DiesOn:
    """Ends its process at certain items; `at_first`: only until the file is there."""

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
