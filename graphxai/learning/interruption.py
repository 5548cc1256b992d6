"""Let an interrupted training say how to continue it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["resumable_in"]


@contextmanager
def resumable_in(out: str | Path) -> Iterator[None]:
    """Let an interrupt of the block say how to continue the run in the folder `out`.

    Lightning ends the whole process on Ctrl-C, and ignores every further one. In a notebook the
    first would be an exit with status 1, so it becomes KeyboardInterrupt again, and the next
    Ctrl-C acts as before.
    """
    words = f"training was interrupted: call it again with resume=True to continue in {out}"
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.args = stop.args or (words,)
        raise
    except SystemExit as stop:
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt(words) from None
        raise
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGINT, handler)
