"""Show progress: a bar on a terminal or in a notebook, elsewhere a line every 30 s.

If work is long, the first of these lines comes after two seconds and says how long it takes.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from html import escape
from threading import Event
from typing import TypeVar

from graphxai.runtime.scope import Blocks

INTERVAL = 30.0  # seconds between lines in a log file
LONG = 20.0  # seconds from which passes say beforehand how long they take
Progress = Callable[[int], None]
_Item = TypeVar("_Item")
_hidden = Event()  # set while the command line is to be quiet


def set_hidden(hidden: bool) -> None:
    """Let no bar or line of progress appear in this process, or let them appear again."""
    _hidden.set() if hidden else _hidden.clear()


def no_progress(items: int) -> None:
    """Do nothing. This is the progress function for work that nobody watches."""


@contextmanager
def progress_bar(title: str, total: int, *, show: bool | None = None) -> Iterator[Progress]:
    """Yield a function to call with the number of items done since the last call.

    The bar appears after two seconds and disappears at the end.

    Args:
        show: whether to draw the bar. If it is None, the bar is drawn on a terminal and in a
            notebook. A log file gets a line every 30 seconds instead, see `logged`.
    """
    if show is False or _hidden.is_set():
        with _opener.block(None):
            yield no_progress
        return
    with ExitStack() as stack:
        if in_kernel():
            open_bar: _OpenBar = notebook_bar
        elif show is None and not sys.stderr.isatty():
            open_bar = _log
        else:
            open_bar = stack.enter_context(_terminal())
        stack.enter_context(_opener.block(open_bar))
        yield stack.enter_context(open_bar(title, total))


@contextmanager
def bar_of_passes(title: str, total: int, advice: str) -> Iterator[Progress]:
    """Show the passes of one item of a bar, if a bar is open in this thread.

    When the second call has shown what passes take after the first checks of a model, a line on
    stderr says how long all of them will take, if that is long, followed by the advice.
    """
    open_bar, begun, calls = _opener.get(), time.monotonic(), 0
    if open_bar is None or total < 2:
        yield no_progress
        return

    with open_bar(title, total) as advance:

        def advance_passes(passes: int) -> None:
            nonlocal begun, calls
            seconds = (time.monotonic() - begun) / passes * total
            begun, calls = time.monotonic(), calls + 1
            if calls == 2 and seconds > LONG:
                needed = _duration(seconds)
                print(f"{title}: {total:,} passes, about {needed}. {advice}", file=sys.stderr)
            advance(passes)

        yield advance_passes


_OpenBar = Callable[[str, int], AbstractContextManager[Progress]]
_opener: Blocks[_OpenBar | None] = Blocks("graphxai_progress", None)  # opens a bar within a bar


@contextmanager
def _terminal() -> Iterator[_OpenBar]:
    """Yield a function that opens bars below each other, the first of them after a while."""
    from rich.console import Console  # typer brings it
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    bars = Progress(*columns, console=Console(stderr=True), transient=True)
    begun = time.monotonic()

    @contextmanager
    def open_bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
        task = bars.add_task(title, total=total)

        def advance(items: int) -> None:
            bars.advance(task, items)
            if not bars.live.is_started and time.monotonic() - begun > PATIENCE:
                bars.start()

        yield advance
        bars.remove_task(task)

    try:
        yield open_bar
    finally:
        if bars.live.is_started:
            bars.stop()


@contextmanager
def _log(title: str, total: int) -> Iterator[Progress]:
    yield logged(title, total)


def logged(title: str, total: int) -> Progress:
    """Return a function that writes to stderr how far long work is, and the time that is left.

    There is a line every 30 seconds at most, and a first one as soon as the work looks long.
    """
    pace = _Pace(total)
    last = pace.begun

    def advance(items: int) -> None:
        nonlocal last
        pace.advance(items)
        seconds, left = pace.now - pace.begun, pace.left
        is_first = last == pace.begun and seconds >= PATIENCE and (left or 0) > LONG
        if is_first or pace.now - last >= INTERVAL:
            last = pace.now
            text = f"{title}: {pace.done:,} of {total:,} after {seconds:.0f} s"
            text += f", about {_duration(left)} left" if left else ""
            print(text, file=sys.stderr, flush=True)

    return advance


def resumed(advance: Progress, earlier: int) -> Progress:
    """Return a function that tells of earlier items with the first new ones, whose pace counts."""
    untold = [earlier]

    def advance_further(items: int) -> None:
        advance(items + sum(untold))
        untold.clear()

    return advance_further


class _Pace:
    """How far some work is, and how long the rest takes by its pace since the first items.

    What comes before those, such as starting processes, does not come again.
    """

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.begun = self.now = time.monotonic()
        self._first = (self.begun, 0)

    def advance(self, items: int) -> None:
        """Note the number of items done since the last call."""
        self.now = time.monotonic()
        if not self.done:
            self._first = (self.now, items)
        self.done += items

    @property
    def left(self) -> float | None:
        """Seconds for the rest; None until a second of work tells the pace."""
        begun, before = self._first
        seconds, items = self.now - begun, self.done - before
        return seconds / items * (self.total - self.done) if seconds >= 1 and items else None


def _duration(seconds: float) -> str:
    return f"{seconds / 60:,.0f} min" if seconds > 90 else f"{seconds:.0f} s"


def in_chunks(
    items: Sequence[_Item], title: str, *, size: int = 500, show: bool | None = None
) -> Iterator[Sequence[_Item]]:
    """Yield the items, `size` at a time, with a progress bar. `show` is as for `progress_bar`."""
    with progress_bar(title, len(items), show=show) as advance:
        for start in range(0, len(items), size):
            part = items[start : start + size]
            yield part
            advance(len(part))


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

    pace = _Pace(total)
    last, handle = pace.begun, None

    def advance(items: int) -> None:
        nonlocal last, handle
        pace.advance(items)
        if pace.now - pace.begun < PATIENCE or (handle is not None and pace.now - last < STEP):
            return
        last = pace.now
        shown = _state(title, pace)
        if handle is None:
            handle = display(shown, raw=True, display_id=True)
        else:
            handle.update(shown, raw=True)

    try:
        yield advance
    finally:
        if handle is not None:
            handle.update(NOTHING, raw=True)


def _state(title: str, pace: _Pace) -> dict[str, str]:
    """Return a bar as a notebook's display data, with the time that is left."""
    left = "" if pace.left is None else f", {pace.left:.0f} s left"
    text = f"{title}: {pace.done:,} of {pace.total:,}{left}"
    bar = f'<progress value="{pace.done}" max="{pace.total}"></progress> {escape(text)}'
    return {"text/plain": text, "text/html": bar}
