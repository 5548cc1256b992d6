"""Call one function on many pieces of work, in as many processes as there are free cores.

Results come in the order of the pieces, whatever the number of processes. A process that dies is
replaced and its piece is done again. An item that ends its process even when it is alone there
gives a `LostItem` as its result. The function is sent once to every process, as bytes that only
this program has written.
"""

from __future__ import annotations

import math
import multiprocessing
import operator
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from itertools import chain, islice
from pathlib import Path
from queue import LifoQueue
from typing import Any, TypeVar

from graphxai.runtime.notices import warn

from .worker_process import Answer, WorkerProcess, as_bytes
from .worker_process import LostItem as LostItem
from .worker_process import PieceResult as PieceResult

STARTING = 6.0  # seconds until a process has torch and a model, see benchmarks/results/workers.md
HEARD = 0.2  # seconds until Ctrl-C is heard that another thread received while this one waits
SHORT = 2.0  # seconds that need no bar
FEWEST = 16  # items of a first piece, after which one can say how long the rest takes
GROWTH = 4  # from one piece to the next
_AHEAD = 3  # pieces per process: one in work, one ready, one being returned

Item = TypeVar("Item")


def checked_workers(workers: int) -> int:
    """Return the number of processes, or raise an error that says what is allowed."""
    try:
        count = operator.index(workers)
    except TypeError:
        count = 0
    if count < 1:
        raise ValueError(
            f"workers must be 1 (no extra process) or a number of processes, not {workers!r}: the"
            " number of free cores is a good choice."
        )
    return count


def pieces_of(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield items `size` at a time, the first of them in smaller pieces.

    The first piece has `FEWEST` items and each further one `GROWTH` times as many as the one
    before, up to `size`. So a bar knows early how long the rest takes, however slow an item is.
    """
    rest, count = iter(items), min(FEWEST, size)
    while piece := list(islice(rest, count)):
        yield piece
        count = min(GROWTH * count, size)


def map_in_processes(
    function: Callable[[Sequence[Item]], Any],
    pieces: Iterable[Sequence[Item]],
    workers: int | None,
    total: int,
) -> Generator[list[PieceResult], None, None]:
    """Call a function on each piece of work, and yield the results of each piece in order.

    A piece gives one result. It gives several if it ended its process, and none if it is empty. A
    daemon of multiprocessing, which may not start processes, works alone with a warning.

    Args:
        workers: the number of processes; 1 works in this process. None takes the cores that others
            leave idle, if that is faster: the first piece is done here, or the first two if that
            is quick, and processes start if the rest, at the speed of the last of them, would take
            them less time, `STARTING` included.
        total: the number of items in all pieces, roughly.

    Raises:
        ValueError: `workers` is below 1, or the function cannot be sent to a process.
    """
    if workers is not None:
        checked_workers(workers)
    source = iter(pieces)
    first = next(source, [])
    count = 1 if len(first) >= total else _allowed(workers)
    source = chain([first] if first else [], source)
    left, remaining = total, 0.0
    if count in (None, 1):
        for piece in islice(source, 2):  # a model's first call prepares what later ones use
            start = time.perf_counter()
            result = function(piece)
            taken = time.perf_counter() - start
            left -= len(piece)
            remaining = taken * max(left, 0) / len(piece)  # seconds
            yield [PieceResult(piece, range(len(piece)), result)]
            del result  # which may be large
            if taken >= STARTING / 4:
                break
    if count is None:
        count = free_cores() if remaining >= STARTING else 1
        if remaining * (1 - 1 / count) < STARTING or not _can_be_sent(function):
            count = 1
    if count > 1:
        with closing(in_workers(function, _shared(source, left, count), count)) as results:
            yield from results
        return
    for piece in _joined(source) if remaining < SHORT else source:
        yield [PieceResult(piece, range(len(piece)), function(piece))]


def _joined(pieces: Iterable[Sequence[Item]]) -> Iterator[Sequence[Item]]:
    """Join pieces of growing size, so that more items share passes; an error comes after them."""
    joined: list[Item] = []
    failed: Exception | None = None
    last = 0
    try:
        for piece in pieces:
            if len(piece) == last:  # the full size, of which as many fit into memory
                yield joined
                joined = []
            joined += piece
            last = len(piece)
    except Exception as error:
        failed = error
    if joined:
        yield joined
    if failed is not None:
        raise failed


def _shared(
    pieces: Iterable[Sequence[Item]], left: int, processes: int
) -> Iterator[Sequence[Item]]:
    """Split the last pieces, so that no process works for long when the others have nothing left.

    Args:
        left: the number of items in all pieces, roughly.
    """
    for piece in pieces:
        start = 0
        while start < len(piece):
            size = max(FEWEST, left // (2 * processes)) if left > 0 else len(piece)
            part = piece[start : start + size]
            yield part
            start += len(part)
            left -= len(part)


def _allowed(workers: int | None) -> int | None:
    """Return how many processes may work, None for as many as are useful.

    A process that may start none works alone.
    """
    if workers == 1 or not multiprocessing.current_process().daemon:
        return workers
    if workers is not None:
        warn(
            "this process is a daemon of multiprocessing, which may not start others: it works"
            " alone; give workers=1 to avoid this warning.",
            stacklevel=3,
        )
    return 1


def _can_be_sent(function: Callable[..., Any]) -> bool:
    """Return whether a function can be sent to other processes, and warn if it cannot."""
    try:
        as_bytes(function)
    except ValueError as error:
        warn(f"one process does all the work: {error}", stacklevel=3)
        return False
    return True


def in_workers(
    function: Callable[[Sequence[Item]], Any],
    pieces: Iterable[Sequence[Item]],
    workers: int,
) -> Generator[list[PieceResult], None, None]:
    """Call a function on each piece in other processes, and yield as `map_in_processes` does.

    The pieces are read only far enough ahead to keep the processes busy. The processes end with the
    generator. An error that the function raises is raised here, and its warnings are issued here.
    The processes import neither the script nor the notebook that is running, so it needs no guard
    ``if __name__ == "__main__":``.

    Raises ValueError if the function cannot be sent to a process. The message says what to do.
    """
    sent = as_bytes(function)
    processes = [WorkerProcess(sent) for _ in range(workers)]
    idle: LifoQueue[WorkerProcess] = LifoQueue()
    for process in processes:
        idle.put(process)

    def work(piece: Sequence[Item]) -> list[PieceResult]:
        if not piece:
            return []
        process = idle.get()
        try:
            return process.call_on_piece(piece)
        finally:
            idle.put(process)

    source: Iterator[Sequence[Item]] = iter(pieces)
    pending: deque[Future[list[PieceResult]]] = deque()
    threads = ThreadPoolExecutor(workers)
    try:
        while True:
            try:
                for piece in islice(source, workers * _AHEAD - len(pending)):
                    pending.append(threads.submit(work, piece))
            except Exception as error:  # of the source, which is read ahead: others come before
                failed: Future[list[PieceResult]] = Future()
                failed.set_exception(error)
                pending.append(failed)
                source = iter(())
            if not pending:
                return
            done = pending.popleft()
            while not done.done():
                wait([done], timeout=HEARD)
            yield [part._replace(result=_opened(part.result)) for part in done.result()]
    finally:
        for process in processes:
            process.end()
        threads.shutdown(cancel_futures=True)


_issued_warnings: dict[Any, Any] = {}  # as Python keeps them for each module


def _opened(answer: Answer | LostItem) -> Any:
    """Return the result in an answer. Issue its warnings first, and raise its error."""
    if isinstance(answer, LostItem):
        return answer
    for message, category, file, line in answer.warnings:
        warnings.warn_explicit(message, category, file, line, registry=_issued_warnings)
    if answer.error is not None:
        raise answer.error
    return answer.result


STAT = Path("/proc/stat")
QUOTA = Path("/sys/fs/cgroup/cpu.max")  # microseconds that a container may compute per period
WATCHED = 0.2  # seconds; the system counts in hundredths


def allowed_cores() -> int:
    """Return the number of cores that the affinity and the quota of the container allow."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with suppress(OSError, ValueError):  # no container, or no quota ("max")
        quota, period = map(int, QUOTA.read_text().split())
        return max(1, min(cores or 1, math.ceil(quota / period)))
    return cores or 1


def free_cores() -> int:
    """Return the number of cores that this process may use without taking them from others.

    This is at least 1. The call takes a fifth of a second, in which the machine is watched: its
    load average still counts processes that ended a minute ago.
    """
    before, start = _idle_seconds(), time.monotonic()
    if before is not None:
        time.sleep(WATCHED)
        idle = ((_idle_seconds() or before) - before) / (time.monotonic() - start)
    else:
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # counts this process too
        idle = (os.cpu_count() or 1) - max(0.0, load - 1)
    return max(1, min(allowed_cores(), round(idle)))


def _idle_seconds() -> float | None:
    """Return how long all cores together were idle since the start, or None if unknown."""
    with suppress(OSError, ValueError, IndexError):
        _, _, _, _, idle, waiting, *_ = STAT.read_text().partition("\n")[0].split()
        return (int(idle) + int(waiting)) / os.sysconf("SC_CLK_TCK")
    return None
