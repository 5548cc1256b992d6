"""A progress bar on stderr for work that takes more than two seconds."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

PATIENCE = 2.0  # seconds before a bar appears
Tick = Callable[[int], None]
_Item = TypeVar("_Item")


def unseen(items: int) -> None:
    """Do nothing: the tick without a bar."""


@contextmanager
def progress_bar(title: str, total: int, *, show: bool | None = None) -> Iterator[Tick]:
    """Yield a function to call with the number of items done since the last call.

    show: None draws the bar if stderr is a terminal. It appears after two seconds and disappears
    at the end.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield unseen
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(title, total=total)
    begun = time.monotonic()

    def tick(items: int) -> None:
        bar.advance(task, items)
        if not bar.live.is_started and time.monotonic() - begun > PATIENCE:
            bar.start()

    try:
        yield tick
    finally:
        if bar.live.is_started:
            bar.stop()


def in_chunks(
    items: Sequence[_Item], title: str, *, size: int = 500, show: bool | None = None
) -> Iterator[Sequence[_Item]]:
    """Yield the items, `size` at a time, with a progress bar; `show` as for `progress_bar`."""
    with progress_bar(title, len(items), show=show) as tick:
        for start in range(0, len(items), size):
            part = items[start : start + size]
            yield part
            tick(len(part))
