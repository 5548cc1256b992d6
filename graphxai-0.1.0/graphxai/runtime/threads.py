"""Choose how many threads and processes compute. Torch has one thread in each process.

Molecules are small, so two threads spend more time waiting for each other than they save, and ten
times as much if the machine is busy. Results do not depend on how many threads torch was given.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_changing = threading.Lock()
_running = 0  # threads within the block
_before = 1  # torch's number of threads outside of it
_this_thread = threading.local()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread within the block, and afterwards with as many as before.

    Blocks may be nested, and entered by several threads of a program at once.
    """
    global _running, _before
    if getattr(_this_thread, "within", False):
        yield
        return
    with _changing:
        if not _running:  # a thread that enters later may see 1
            _before = torch.get_num_threads()
        _running += 1
        _set_threads(1)
    _this_thread.within = True
    try:
        yield
    finally:
        _this_thread.within = False
        with _changing:
            _running -= 1
            _set_threads(_before)


def workers_for(model: Any, workers: int | None) -> int | None:
    """Return how many processes to use, by default one for a model on an accelerator.

    Several processes would share the accelerator.
    """
    if workers is None and next(model.parameters()).device.type != "cpu":
        return 1
    return workers


def _set_threads(count: int) -> None:
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
