"""Time how OGB, one process and several processes featurise many molecules."""

import contextlib
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from graphxai.datasets.molecules import RejectedRow, iter_table, molecules_to_data


class FeaturisingTimes(NamedTuple):
    """Times for featurising many molecules in several ways, each the best of several runs."""

    count: int
    wall: dict[str, float]  # milliseconds per molecule
    busy: dict[str, float]  # processor time per molecule, in all processes together
    parent: float  # processor time per molecule in the parent of the workers
    first_graph: float  # seconds from the call to the first graph from workers
    first_of_all: float  # the same for a program's first call


def worker_seconds() -> float:
    """Return the processor time of the worker processes so far, or 0 if there is no /proc."""
    ticks = 0
    for process in multiprocessing.active_children():
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(stat[11]) + int(stat[12])
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0


def measure_many(table: Path, count: int, workers: int = 2, repeats: int = 5) -> FeaturisingTimes:
    """Time several ways to featurise all molecules of a table, which take turns."""
    from ogb.utils import smiles2graph

    rows = (row for row in iter_table(table) if not isinstance(row, RejectedRow))
    smiles = [row.smiles for row in islice(rows, count)]
    count = len(smiles)
    ways: dict[str, Callable[[], Iterable[object]]] = {
        "OGB's `smiles2graph`": lambda: map(smiles2graph, smiles),
        "`molecules_to_data`": lambda: molecules_to_data(smiles),
        f"`molecules_to_data`, {workers} workers": lambda: molecules_to_data(
            smiles, workers=workers
        ),
    }
    wall: dict[str, list[float]] = {name: [] for name in ways}
    busy: dict[str, list[float]] = {name: [] for name in ways}
    parent: list[float] = []  # processor time of the parent in the last way
    first: list[float] = []  # time until the first graph in the last way
    for _ in range(repeats):
        for name, way in ways.items():
            start, own_seconds = time.perf_counter(), time.process_time()
            graphs = iter(way())
            next(graphs)
            until_first = time.perf_counter() - start
            deque(islice(graphs, count - 2), maxlen=0)
            others = worker_seconds()  # before they end
            deque(graphs, maxlen=0)
            own_seconds = time.process_time() - own_seconds
            wall[name].append((time.perf_counter() - start) / count * 1e3)
            busy[name].append((own_seconds + others) / count * 1e3)
        parent.append(own_seconds / count * 1e3)
        first.append(until_first)
    return FeaturisingTimes(
        count,
        {name: min(times) for name, times in wall.items()},
        {name: min(times) for name, times in busy.items()},
        min(parent),
        min(first[1:]),
        first[0],
    )


def report_many(many: FeaturisingTimes) -> str:
    """Return the section about many molecules."""
    lines = [
        "## Many molecules",
        "",
        f"SMILES to features of {many.count:,} molecules on two cores, including the start of the"
        " workers. The figures are milliseconds per molecule, each the best of several runs in"
        " which the three ways take turns. Wall-clock time depends on what else the machine does;"
        " processor time, summed over all processes, does not.",
        "",
        "| | wall clock | ratio | processor |",
        "|---|---|---|---|",
    ]
    published, *_ = many.wall.values()
    for name, value in many.wall.items():
        ratio = f"{published / value:.1f}"
        lines.append(f"| {name} | {value:.2f} | {ratio} | {many.busy[name]:.2f} |")
    lines += [
        "",
        f"Two workers deliver their first graph after {many.first_graph:.1f} s, the first time in a"
        f" program after {many.first_of_all:.1f} s. The main process itself is busy for"
        f" {many.parent:.3f} ms per molecule, which limits what more workers can gain.",
        "",
    ]
    return "\n".join(lines)
