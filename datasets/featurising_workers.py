"""Featurise SMILES in several processes: RDKit's parsing, the slowest step, is single-threaded.

Chunks of SMILES go out, a few small arrays per chunk come back, and results keep the order of the
source. The source is read only far enough ahead to keep the processes busy.
"""

from __future__ import annotations

import multiprocessing
import operator
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from rdkit import Chem

from .featurising import TURN, Featurised, Packed, featurise, featurise_packed, unpack
from .molecule_reading import MoleculeError

__all__ = ["checked_workers", "featurise_in_workers"]

# A worker takes about 30 ms per chunk. Its answer, some 50 kB, fits into a pipe in one piece: it
# never blocks on sending, and killing it hardly ever leaves half a message behind.
_CHUNK = 4 * TURN
_CHUNKS_AHEAD = 3  # per worker: one in work, one ready, one being returned

PATIENCE = 1.0  # seconds for workers to finish their work

_MAIN = threading.Lock()  # guards the script's module while a process starts

_Result = Featurised | MoleculeError


class _Failure(NamedTuple):
    """What the source raised instead of giving a molecule."""

    error: Exception


class _Pending(NamedTuple):
    """A chunk in progress: its SMILES are with the workers, everything else in it is done."""

    size: int
    smiles: list[str]
    packed: Future[Packed] | None
    others: dict[int, _Result | _Failure]  # by position in the chunk


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


def featurise_in_workers(
    molecules: Iterable[str | Chem.Mol], max_atoms: int, canonical: bool, workers: int
) -> Generator[_Result, None, None]:
    """Yield features or errors in the order of the source, using `workers` processes for SMILES.

    RDKit molecules are featurised in this process. The workers end with the generator.

    Raises:
        RuntimeError: a worker died.
    """
    chunks = _chunks(molecules)
    pending: deque[_Pending] = deque()
    with worker_pool(workers) as pool:
        try:
            while True:
                for chunk in islice(chunks, workers * _CHUNKS_AHEAD - len(pending)):
                    pending.append(_submit(pool, chunk, max_atoms, canonical))
                if not pending:
                    return
                yield from _results(pending.popleft())
        except BrokenProcessPool as error:
            raise RuntimeError(
                "a process that featurises molecules died, most likely because memory ran out:"
                " use fewer workers, or workers=1. Its own error message, if any, is above, on"
                " stderr."
            ) from error


def _chunks(
    molecules: Iterable[str | Chem.Mol],
) -> Iterator[list[str | Chem.Mol | _Failure]]:
    remaining = _with_failure(molecules)
    while chunk := list(islice(remaining, _CHUNK)):
        yield chunk


def _with_failure(
    molecules: Iterable[str | Chem.Mol],
) -> Iterator[str | Chem.Mol | _Failure]:
    """The source is read ahead: an error it raises must wait until everything before is out."""
    try:
        yield from molecules
    except Exception as error:
        yield _Failure(error)


def _submit(
    pool: ProcessPoolExecutor,
    chunk: Sequence[str | Chem.Mol | _Failure],
    max_atoms: int,
    canonical: bool,
) -> _Pending:
    smiles = [str(one) for one in chunk if isinstance(one, str)]
    packed = None
    if smiles:
        with main_left_out():
            packed = pool.submit(featurise_packed, smiles, max_atoms, canonical)
    others: dict[int, _Result | _Failure] = {
        k: one for k, one in enumerate(chunk) if isinstance(one, _Failure)
    }
    given = {k: one for k, one in enumerate(chunk) if not isinstance(one, str | _Failure)}
    if given:
        found = featurise(list(given.values()), max_atoms, canonical)
        others.update(zip(given, found, strict=True))
    return _Pending(len(chunk), smiles, packed, others)


def _results(chunk: _Pending) -> Iterator[_Result]:
    done = iter(unpack(chunk.smiles, chunk.packed.result()) if chunk.packed else ())
    for k in range(chunk.size):
        one = chunk.others[k] if k in chunk.others else next(done)
        if isinstance(one, _Failure):
            raise one.error
        yield one


@contextmanager
def worker_pool(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that start when work arrives and have ended when the block is left."""
    # A fork of a process with threads, such as torch's, may hang.
    known = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in known else "spawn")
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin_worker)
    try:
        yield pool
    finally:
        started = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        # Not killed at once: a process killed while sending leaves half a message behind, and the
        # pool would wait for the rest. Only RDKit keeps one busy for longer than this.
        for process in _running_after(PATIENCE, started):
            process.kill()
        for process in started:
            process.join()


def _running_after(seconds: float, processes: Sequence[BaseProcess]) -> list[BaseProcess]:
    """Return the processes still running after `seconds`; return early if all have ended."""
    stop = time.monotonic() + seconds
    running = list(processes)
    while running and (left := stop - time.monotonic()) > 0:
        ended = wait([process.sentinel for process in running], left)
        running = [process for process in running if process.sentinel not in ended]
    return running


@contextmanager
def main_left_out() -> Iterator[None]:
    """Keep processes that start inside this block from importing the running script.

    Python makes every process import it, for functions that it may define; workers need none of
    them. Most scripts import torch, which takes seconds and hundreds of MB in each process, and a
    script without the guard `if __name__ == "__main__"` would start more processes in each.
    """
    main = vars(sys.modules["__main__"])
    with _MAIN:
        kept: dict[str, Any] = {
            name: main[name] for name in ("__file__", "__spec__") if name in main
        }
        main.pop("__file__", None)
        main["__spec__"] = None
        try:
            yield
        finally:
            del main["__spec__"]
            main.update(kept)


def _begin_worker() -> None:
    """Ignore Ctrl-C, which reaches every process of a terminal: the parent ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End with the parent: if it is killed, a worker would wait on its queue forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
