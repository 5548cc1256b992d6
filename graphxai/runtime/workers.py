"""Call one function on many pieces of work, in as many processes as there are cores to spare.

Results come in the order of the pieces, whatever the number of processes. A process that dies is
replaced and its piece is done again; an item that ends its process even when it is alone is named
in place of its result. The function is sent once to every process, as bytes that only this program
has written. Neither this file nor what it imports needs torch, so a process that featurises starts
in a fraction of a second.

Every process has a pipe of its own, to which nobody else can write. In the pools of
`concurrent.futures` and loky others can: if a process is killed while it sends, half a message
stays in the pipe, and the pool waits for the rest forever, even with only one process.
"""

from __future__ import annotations

import io
import multiprocessing
import operator
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from queue import LifoQueue
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar

__all__ = [
    "Lost",
    "Part",
    "as_bytes",
    "checked_workers",
    "free_cores",
    "in_workers",
    "map_in_processes",
]

STARTING = 6.0  # seconds until a process has torch and a model, see benchmarks/results/workers.md
_AHEAD = 3  # pieces per process: one in work, one ready, one being returned
_MAIN = threading.Lock()  # held while the script's module is hidden

Item = TypeVar("Item")


class Lost(NamedTuple):
    """In place of the result of an item that ended its process twice when it was alone there."""

    reason: str


class Part(NamedTuple):
    """Items of a piece, their places in it, and what the function made of them, or `Lost`."""

    items: Sequence[Any]
    places: Sequence[int]
    found: Any


def free_cores() -> int:
    """The cores that this process may use: its affinity and its container's quota count."""
    from joblib import cpu_count

    return int(cpu_count())


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


def map_in_processes(
    function: Callable[[Sequence[Item]], Any],
    pieces: Iterable[Sequence[Item]],
    workers: int | None,
    total: int,
) -> Generator[list[Part], None, None]:
    """Call a function on each piece of work; yields the result of each piece, in order.

    workers: processes; 1 works here. None takes the free cores if that is faster: the first piece
    is done here, and processes start if the rest, at its speed, would take them less time,
    `STARTING` included. total: items in all pieces, roughly. A piece gives one part, several if it
    ended its process, or none if it is empty. A daemon of multiprocessing, which may not start
    processes, works alone with a warning. Errors as for `in_workers`.
    """
    if workers is not None:
        checked_workers(workers)
    source = iter(pieces)
    first = next(source, [])
    count = 1 if len(first) >= total else _allowed(workers)
    if count > 1 and workers is None:
        start = time.perf_counter()
        found = function(first)
        left = (time.perf_counter() - start) * (total / max(len(first), 1) - 1)
        yield [Part(first, range(len(first)), found)]
        if left * (1 - 1 / count) < STARTING or not _can_be_sent(function):
            count = 1
    elif first:
        source = chain([first], source)
    if count > 1:
        with closing(in_workers(function, source, count)) as parts:
            yield from parts
        return
    for piece in source:
        yield [Part(piece, range(len(piece)), function(piece))]


def _allowed(workers: int | None) -> int:
    """How many processes may work: as many as wanted, unless none may be started."""
    count = free_cores() if workers is None else workers
    if count == 1 or not multiprocessing.current_process().daemon:
        return count
    if workers is not None:
        warnings.warn(
            "this process is a daemon of multiprocessing, which may not start others: it works"
            " alone; give workers=1 to avoid this warning.",
            stacklevel=3,
        )
    return 1


def _can_be_sent(function: Callable[..., Any]) -> bool:
    """Whether a function can be sent to other processes; a warning says why not."""
    try:
        as_bytes(function)
    except ValueError as error:
        warnings.warn(f"one process does all the work: {error}", stacklevel=3)
        return False
    return True


def in_workers(
    function: Callable[[Sequence[Item]], Any],
    pieces: Iterable[Sequence[Item]],
    workers: int,
) -> Generator[list[Part], None, None]:
    """Call a function on each piece in other processes; yields as `map_in_processes` does.

    The pieces are read only far enough ahead to keep the processes busy. They end with the
    generator. An error that the function raises is raised here; its warnings are issued here.
    The processes import neither the script nor the notebook that is running, so it needs no guard
    ``if __name__ == "__main__":``.

    Raises ValueError, which says what to do, if the function cannot be sent to a process.
    """
    sent = as_bytes(function)
    crew = [_Worker(sent) for _ in range(workers)]
    idle: LifoQueue[_Worker] = LifoQueue()
    for worker in crew:
        idle.put(worker)

    def work(piece: Sequence[Item]) -> list[Part]:
        if not piece:
            return []
        worker = idle.get()
        try:
            return worker.work(piece)
        finally:
            idle.put(worker)

    source = _with_failure(pieces)
    pending: deque[Future[list[Part]] | _Failure] = deque()
    threads = ThreadPoolExecutor(workers)
    try:
        while True:
            for piece in islice(source, workers * _AHEAD - len(pending)):
                pending.append(
                    piece if isinstance(piece, _Failure) else threads.submit(work, piece)
                )
            if not pending:
                return
            done = pending.popleft()
            if isinstance(done, _Failure):
                raise done.error
            yield [part._replace(found=_given(part.found)) for part in done.result()]
    finally:
        for worker in crew:
            worker.end()
        threads.shutdown(cancel_futures=True)


class _Failure(NamedTuple):
    """What the source raised instead of giving a piece."""

    error: Exception


def _with_failure(pieces: Iterable[Sequence[Item]]) -> Iterator[Sequence[Item] | _Failure]:
    """The source is read ahead: an error it raises must wait until everything before is out."""
    try:
        yield from pieces
    except Exception as error:
        yield _Failure(error)


class _Answer(NamedTuple):
    """What a process sends back: the result or the error, and the warnings on the way."""

    result: Any
    error: Exception | None
    warned: list[tuple[Any, type[Warning], str, int]]


_seen: dict[Any, Any] = {}  # warnings issued, as Python keeps them for each module


def _given(found: _Answer | Lost) -> Any:
    """The result, after the warnings; raises what the function raised."""
    if isinstance(found, Lost):
        return found
    for message, category, file, line in found.warned:
        warnings.warn_explicit(message, category, file, line, registry=_seen)
    if found.error is not None:
        raise found.error
    return found.result


class _DiedError(Exception):
    """A process ended before it answered; the message says how."""


class _Worker:
    """A process that calls one function, which is replaced when it dies."""

    def __init__(self, function: bytes) -> None:
        self.function = function
        self.process: BaseProcess | None = None
        self.ended = False
        self.changing = threading.Lock()

    def work(self, piece: Sequence[Any]) -> list[Part]:
        """The function's result for a piece; if it ends the process, for its items too.

        Items are then done one by one to find those to blame, and the rest together, as if those
        were not there.
        """
        places: Sequence[int] = range(len(piece))
        with suppress(_DiedError):
            return [Part(piece, places, self.call(piece))]
        alone = [Part([piece[k]], [k], self.alone([piece[k]])) for k in places]
        lost = [part for part in alone if isinstance(part.found, Lost)]
        places = [k for k in places if not isinstance(alone[k].found, Lost)]
        rest = [piece[k] for k in places]
        with suppress(_DiedError):
            return [*([Part(rest, places, self.call(rest))] if rest else []), *lost]
        return alone

    def alone(self, item: Sequence[Any]) -> _Answer | Lost:
        """The answer for one item, which may end its process once, by chance, but not twice."""
        with suppress(_DiedError):
            return self.call(item)
        try:
            return self.call(item)
        except _DiedError as died:
            return Lost(
                f"it ended its process twice ({died}): the molecule is too large for the memory,"
                " or one of the libraries fails on it"
            )

    def call(self, piece: Sequence[Any]) -> _Answer:
        """The answer of the process; raises _DiedError if it ends before."""
        message = as_bytes(piece)
        process, pipe = self.started()
        try:
            pipe.send_bytes(message)
            received = pipe.recv_bytes()
        except (EOFError, OSError):  # the other end of the pipe is closed
            process.join()
            pipe.close()
            self.process = None
            raise _DiedError(_how(process.exitcode)) from None
        answer: _Answer = pickle.loads(received)
        return answer

    def started(self) -> tuple[BaseProcess, Connection]:
        """The process and this end of its pipe; starts one if there is none."""
        with self.changing:
            if self.ended:
                raise RuntimeError("the processes have ended.")
            if self.process is None:
                context = _context()
                self.pipe, other = context.Pipe()
                process = context.Process(target=_serve, args=(other, self.function), daemon=True)
                with _main_hidden():
                    process.start()
                other.close()  # or the end of the process would not be noticed
                self.process = process
            return self.process, self.pipe

    def end(self) -> None:
        """End the process at once; it writes no files that could be cut off."""
        with self.changing:
            self.ended = True
            if self.process is not None:
                self.process.kill()
                self.process.join()


def _context() -> Any:
    """How processes start: a fork of a process with threads, such as torch's, may hang."""
    known = multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("forkserver" if "forkserver" in known else "spawn")


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Keep a process that starts inside this block from importing the running script.

    Python makes every process import it, for functions that it may define; these need none of
    them. Most scripts import torch, which takes seconds and hundreds of MB in each process, and a
    script without the guard `if __name__ == "__main__"` would start more processes in each.
    """
    with _MAIN:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _how(code: int | None) -> str:
    """How a process ended, in words."""
    if code is not None and code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


def _serve(pipe: Connection, function: bytes) -> None:
    """Answer until the pipe is closed: the life of a process."""
    # Ctrl-C reaches every process of a terminal: the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, as the function may do
    call: Callable[[Any], Any] | None = None
    while True:
        try:
            message = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result, failure = None, None
            try:
                call = call or pickle.loads(function)
                result = call(pickle.loads(message))
            except Exception as error:
                failure = _that_can_be_sent(error)
        warned = [(w.message, w.category, w.filename, w.lineno) for w in caught]
        try:
            answer = as_bytes(_Answer(result, failure, warned))
        except ValueError as error:
            answer = as_bytes(_Answer(None, error, []))
        pipe.send_bytes(answer)


def _end_with_parent() -> None:
    """End with the parent, which may be killed while this process is at work."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _that_can_be_sent(error: Exception) -> Exception:
    """The error, or one with its words if it cannot be rebuilt in another process."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


class _Sender(pickle.Pickler):
    """Pickles what another process can rebuild; refuses the rest in a sentence."""

    def reducer_override(self, given: Any) -> Any:
        if type(given).__module__.startswith("rdkit."):
            from rdkit import Chem  # already there, as the value is

            if not isinstance(given, Chem.Mol):
                return NotImplemented
            # by default, its properties stay behind
            return Chem.Mol, (given.ToBinary(int(Chem.PropertyPickleOptions.AllProps)),)
        own = isinstance(given, FunctionType | type) and given.__module__ == "__main__"
        if own:
            raise pickle.PicklingError(f"{given.__qualname__} is defined in the running script")
        if type(given).__name__ == "Generator" and type(given).__module__.startswith("torch"):
            raise pickle.PicklingError(
                "a torch.Generator gives different numbers in every process; a seed does not"
            )
        return NotImplemented


def as_bytes(value: Any) -> bytes:
    """A value as bytes for another process; ValueError says what to do if there are none."""
    with io.BytesIO() as file:
        try:
            _Sender(file, pickle.HIGHEST_PROTOCOL).dump(value)
        except Exception as error:  # of any type: objects may define how they are pickled
            why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise ValueError(
                f"this cannot be sent to other processes ({why}): give workers=1, or define models"
                " and functions in a module that can be imported, and without lambdas."
            ) from error
        return file.getvalue()
