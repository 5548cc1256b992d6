"""Ctrl-C and SIGTERM at moments when they would break, lose or leave unsaid something."""

import signal
import threading
import time
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with what was done before it.

    Attributes:
        results: what the interrupted function would have returned, as far as it came.
    """

    def __init__(self, progress: str, results: Any) -> None:
        """Take how far the work came, such as "after 12 of 300 inputs", and what was done."""
        super().__init__(f"stopped {progress}; what is done is in `sys.last_value.results`")
        self.progress = progress
        self.results = results


@dataclass
class _Collector:
    """A handler that keeps the signals of a block until its end."""

    handler: Callable[..., Any]
    arrived: list[tuple[int, Any]] = field(default_factory=list)

    def __call__(self, number: int, frame: Any) -> None:
        self.arrived.append((number, frame))


def interrupts_are_deferred() -> bool:
    """Return whether Ctrl-C has to wait for the end of a block already."""
    return isinstance(signal.getsignal(signal.SIGINT), _Collector)


def interrupt_if_deferred() -> None:
    """Let a Ctrl-C that waits for the end of a block take effect now, where nothing would break."""
    collector = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and isinstance(collector, _Collector) and collector.arrived:
        first, *_ = collector.arrived
        collector.arrived.clear()
        collector.handler(*first)


@contextmanager
def interrupts_deferred(wait: float = 0.0) -> Iterator[None]:
    """Let Ctrl-C take effect only when the block has ended.

    An import that is stopped in the middle leaves modules half loaded, and a notebook's kernel has
    to be restarted. In threads other than the main one, which no signal stops, nothing is done.

    `wait` is how many seconds pass between the end of the block and the effect.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(handler) or interrupts_are_deferred():
        yield
        return
    collector = _Collector(handler)
    signal.signal(signal.SIGINT, collector)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if collector.arrived and wait:
            threading.Thread(target=_interrupt_after, args=(wait,), daemon=True).start()
        elif collector.arrived:
            handler(*collector.arrived[0])


@contextmanager
def sigterm_handler_kept() -> Iterator[None]:
    """Keep the handler of SIGTERM where a library replaces it.

    Ray has handlers that end the process at once, without a word to the user. If one of them, in
    Python, does so in the block, the handler that is kept is called in its place. Another, in C++,
    aborts the process while Ray connects.
    """
    handler = signal.getsignal(signal.SIGTERM)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(handler):
        yield
        return
    try:
        yield
    except SystemExit:
        handler(signal.SIGTERM, None)
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)


def _interrupt_after(seconds: float) -> None:
    """Interrupt the main thread a little later."""
    time.sleep(seconds)
    if hasattr(signal, "pthread_kill"):  # this also ends a call that waits
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        interrupt_main(signal.SIGINT)
