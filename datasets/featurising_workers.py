"""SMILES featurised in several processes: what takes most time, RDKit's reading, is one thread's.

Chunks of SMILES go out, a few small arrays each come back, and all come out in the order of the
source. The source is read only so far ahead as keeps the processes busy.
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

# A worker takes about 30 ms for a chunk. What it sends back, some 50 kB, fits into a pipe whole: so
# it waits for nobody, and one that is killed hardly ever leaves half a message behind.
_CHUNK = 4 * TURN
_CHUNKS_AHEAD = 3  # for each worker: one it is at, one that lies ready, one that comes out

_PATIENCE = 1.0  # seconds for workers to finish what they are at

_MAIN = threading.Lock()  # over the script's module while a process starts

_Result = Featurised | MoleculeError


class _Failure(NamedTuple):
    """What the source raised, in the place of the molecule that it did not give."""

    error: Exception


class _Pending(NamedTuple):
    """A chunk under way: its SMILES are at the workers, all else in it is done."""

    size: int
    smiles: list[str]
    packed: Future[Packed] | None
    others: dict[int, _Result | _Failure]  # by position in the chunk


def checked_workers(workers: int) -> int:
    """The number of processes, or an error that says what may be given."""
    try:
        count = operator.index(workers)
    except TypeError:
        count = 0
    if count < 1:
        raise ValueError(
            f"workers must be 1 (no further process) or a number of processes, not {workers!r}: as"
            " many as there are free cores is a good choice."
        )
    return count


def featurise_in_workers(
    molecules: Iterable[str | Chem.Mol], max_atoms: int, canonical: bool, workers: int
) -> Generator[_Result, None, None]:
    """Features or errors in the order of the source, those of SMILES from so many processes.

    RDKit molecules are featurised in this process. The processes end with the generator.

    Raises:
        RuntimeError: a process ended before its time.
    """
    chunks = _chunks(molecules)
    pending: deque[_Pending] = deque()
    with _processes(workers) as pool:
        try:
            while True:
                for chunk in islice(chunks, workers * _CHUNKS_AHEAD - len(pending)):
                    pending.append(_submit(pool, chunk, max_atoms, canonical))
                if not pending:
                    return
                yield from _results(pending.popleft())
        except BrokenProcessPool as error:
            raise RuntimeError(
                "a process that featurises molecules ended before its time; most often it is"
                " killed for want of memory: use fewer workers, or workers=1. If it said why, that"
                " stands above, on stderr."
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
    """The source is read ahead: what it raises must wait until all before it has come out."""
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
        with _main_left_out():
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
def _processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that start as work comes, and have ended when the block is left."""
    # A fork of a process with threads, as torch has them, may hang.
    known = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in known else "spawn")
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin_worker)
    try:
        yield pool
    finally:
        started = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        # Not killed at once: one that is killed while it sends leaves half a message behind, for
        # the rest of which the pool would wait. Only RDKit keeps one busy for longer than this.
        for process in _running_after(_PATIENCE, started):
            process.kill()
        for process in started:
            process.join()


def _running_after(seconds: float, processes: Sequence[BaseProcess]) -> list[BaseProcess]:
    """The processes that have not ended by then; returns earlier if all have."""
    stop = time.monotonic() + seconds
    running = list(processes)
    while running and (left := stop - time.monotonic()) > 0:
        ended = wait([process.sentinel for process in running], left)
        running = [process for process in running if process.sentinel not in ended]
    return running


@contextmanager
def _main_left_out() -> Iterator[None]:
    """Processes that start within do not import the script that runs.

    Python has every process import it, for functions that it may define; these are none. Most
    scripts import torch, which takes seconds and hundreds of MB in each process, and one without
    the guard `if __name__ == "__main__"` would start processes anew in each.
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
    """Ctrl-C reaches every process of a terminal: this one's end is its parent's to decide."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed ends no worker, and its queue would be waited for for good."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
