"""A process that calls one function on what it is sent, and is replaced when it dies.

Every process has a pipe of its own, to which nobody else can write. In the pools of
`concurrent.futures` and loky others can. If a process there is killed while it sends, half a
message stays in the pipe, and the pool waits for the rest forever, even with only one process.

Neither this file nor what it imports needs torch, so that a process which featurises starts in a
fraction of a second.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

_main_module = threading.Lock()  # held while the script's module is hidden


class LostItem(NamedTuple):
    """The result of an item that ended its process twice while it ran there alone."""

    reason: str


class PieceResult(NamedTuple):
    """The items of a piece, their positions in it, and the function's result or a `LostItem`."""

    items: Sequence[Any]
    positions: Sequence[int]
    result: Any


class Answer(NamedTuple):
    """What a process sends back: a result or an error, and the warnings issued on the way."""

    result: Any
    error: Exception | None
    warnings: list[tuple[Any, type[Warning], str, int]]


class _ProcessEndedError(Exception):
    """A process ended before it answered. The message says how it ended."""


class WorkerProcess:
    """A process that calls one function. A new one takes its place when it dies."""

    pipe: Connection  # this end of it, while a process is running

    def __init__(self, function: bytes) -> None:
        self.function = function
        self.process: BaseProcess | None = None
        self.ended = False
        self.changing = threading.Lock()

    def call_on_piece(self, piece: Sequence[Any]) -> list[PieceResult]:
        """Return the answer for a piece, or for its items if the piece ends the process.

        The items are then done one by one, to find those that end the process. The remaining items
        are done again together.
        """
        positions: Sequence[int] = range(len(piece))
        with suppress(_ProcessEndedError):
            return [PieceResult(piece, positions, self._call(piece))]
        singles = [PieceResult([piece[k]], [k], self._call_alone([piece[k]])) for k in positions]
        lost = [single for single in singles if isinstance(single.result, LostItem)]
        positions = [k for k in positions if not isinstance(singles[k].result, LostItem)]
        rest = [piece[k] for k in positions]
        if not rest:
            return lost
        with suppress(_ProcessEndedError):
            return [PieceResult(rest, positions, self._call(rest)), *lost]
        return singles

    def end(self) -> None:
        """End the process at once. It writes no files that could be cut off."""
        with self.changing:
            self.ended = True
            if self.process is not None:
                self.process.kill()
                self.process.join()

    def _call_alone(self, item: Sequence[Any]) -> Answer | LostItem:
        """Return the answer for one item. It may end its process once, by chance, but not twice."""
        with suppress(_ProcessEndedError):
            return self._call(item)
        try:
            return self._call(item)
        except _ProcessEndedError as ended:
            return LostItem(
                f"it ended its process twice ({ended}): the molecule is too large for the memory,"
                " or one of the libraries fails on it"
            )

    def _call(self, piece: Sequence[Any]) -> Answer:
        """Return the answer of the process, or raise _ProcessEndedError if it ends before."""
        message = as_bytes(piece)
        process, pipe, is_new = self._running()
        try:
            if is_new:
                pipe.send_bytes(self.function)
            pipe.send_bytes(message)
            received = pipe.recv_bytes()
        except (EOFError, OSError):  # the other end of the pipe is closed
            process.join()
            pipe.close()
            self.process = None
            raise _ProcessEndedError(_how_it_ended(process.exitcode)) from None
        return pickle.loads(received)

    def _running(self) -> tuple[BaseProcess, Connection, bool]:
        """Return the process, this end of its pipe, and whether the process was started here.

        It starts without its function, which may hold megabytes of a model. If this process were
        stopped while Python hands so much to a new one, that one would find half a pickle and
        print a traceback.
        """
        with self.changing:
            if self.ended:
                raise RuntimeError("the processes have ended.")
            if self.process is not None:
                return self.process, self.pipe, False
            # a fork of a process with threads, such as torch's, may hang
            can_serve = "forkserver" in multiprocessing.get_all_start_methods()
            context: Any = multiprocessing.get_context("forkserver" if can_serve else "spawn")
            self.pipe, other_end = context.Pipe()
            process = context.Process(target=_serve, args=(other_end,), daemon=True)
            with _main_module_hidden(), _interrupts_held():
                process.start()
            other_end.close()  # otherwise nobody would notice when the process ends
            self.process = process
            return process, self.pipe, True


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Keep a process that starts inside this block from importing the running script.

    Python makes every process import the script, for functions that it may define. These processes
    need none of them. Most scripts import torch, which takes seconds and hundreds of MB in each
    process, and a script without the guard `if __name__ == "__main__"` would start more processes
    in each.
    """
    with _main_module:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Keep Ctrl-C from a process that starts inside this block. This process gets it afterwards.

    Python's server of processes imports torch before it ignores Ctrl-C, which reaches all
    processes of a terminal, and would print a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # which lets the signal through once it has started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _how_it_ended(code: int | None) -> str:
    """Say how a process ended: the name of a signal, or the exit code."""
    if code is not None and code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


def _serve(pipe: Connection) -> None:
    """Receive a function, and answer messages by calling it until the pipe is closed."""
    # Ctrl-C reaches every process of a terminal, and a scheduler's SIGTERM every process of a job.
    # The parent ends this one.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = "1"  # torch reads it if the function imports torch
    function: bytes | None = None
    call: Callable[[Any], Any] | None = None
    while True:
        try:
            function = function or pipe.recv_bytes()
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
                failure = sendable_error(error)
        issued = [(w.message, w.category, w.filename, w.lineno) for w in caught]
        try:
            answer = as_bytes(Answer(result, failure, issued))
        except ValueError as error:
            answer = as_bytes(Answer(None, error, []))
        pipe.send_bytes(answer)


def _end_with_parent() -> None:
    """End this process with its parent, which may be killed while this process is at work."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


class _Pickler(pickle.Pickler):
    """Pickle what another process can rebuild, and refuse the rest in a sentence."""

    def reducer_override(self, value: Any) -> Any:
        if type(value).__module__.startswith("rdkit."):
            from rdkit import Chem  # imported already, as the value shows

            if type(value).__name__.startswith("FingerprintGenerator"):  # its JSON is not all of it
                raise pickle.PicklingError(
                    "RDKit cannot copy a fingerprint generator or its methods; a function of yours"
                    " can make its own"
                )
            if not isinstance(value, Chem.Mol):
                return NotImplemented
            # By default, RDKit leaves out the molecule's properties.
            return Chem.Mol, (value.ToBinary(int(Chem.PropertyPickleOptions.AllProps)),)
        if isinstance(value, FunctionType | type) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"{value.__qualname__} is defined in the running script")
        if type(value).__name__ == "Generator" and type(value).__module__.startswith("torch"):
            raise pickle.PicklingError(
                "a torch.Generator gives different numbers in every process; a seed does not"
            )
        return NotImplemented


def as_bytes(value: Any) -> bytes:
    """Return a value as bytes for another process.

    Raises ValueError if another process could not rebuild the value. The message says what to do.
    """
    with io.BytesIO() as file:
        try:
            _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
        except Exception as error:  # of any type: objects may define how they are pickled
            why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise ValueError(
                f"this cannot be sent to other processes ({why}): give workers=1, or define models"
                " and functions in a module that can be imported, and without lambdas."
            ) from error
        return file.getvalue()


def sendable_error(error: Exception) -> Exception:
    """Return the error, or one with its words if another process could not rebuild it."""
    try:
        rebuilt: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return rebuilt
