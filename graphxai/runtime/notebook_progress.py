"""Show progress as a bar in a notebook, which leaves nothing in the stored notebook."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape

__all__ = ["PATIENCE", "in_kernel", "notebook_bar"]

PATIENCE = 2.0  # seconds before a bar appears
STEP = 0.25  # seconds between two states of a bar
NOTHING = {"text/plain": "", "text/html": ""}


def in_kernel() -> bool:
    """Return whether this is the kernel of a notebook, which has no terminal."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


@contextmanager
def notebook_bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the number of items done since the last call.

    The bar appears after two seconds and is empty at the end.
    """
    from IPython.display import display

    begun = last = time.monotonic()
    done = 0
    handle = None

    def advance(items: int) -> None:
        nonlocal done, last, handle
        done += items
        now = time.monotonic()
        if now - begun < PATIENCE or (handle is not None and now - last < STEP):
            return
        last = now
        shown = _state(title, done, total, now - begun)
        if handle is None:
            handle = display(shown, raw=True, display_id=True)
        else:
            handle.update(shown, raw=True)

    try:
        yield advance
    finally:
        if handle is not None:
            handle.update(NOTHING, raw=True)


def _state(title: str, done: int, total: int, seconds: float) -> dict[str, str]:
    """Return a bar as a notebook's display data, with the time that is left."""
    left = f", {seconds * (total - done) / done:.0f} s left" if 0 < done <= total else ""
    text = f"{title}: {done:,} of {total:,}{left}"
    bar = f'<progress value="{done}" max="{total}"></progress> {escape(text)}'
    return {"text/plain": text, "text/html": bar}
