"""How much faster several processes explain a table and a list than one does.

    python benchmarks/workers.py [--data FOLDER] [--rows 3000] [--workers 2] [--repeats 3]

Seconds on the clock, each the least of several runs that take turns: of the whole command
`graphxai explain`, and of a call of `graphxai.explain`. Both include the start of the processes.
"Start" is the time until a new process has answered for one molecule. The molecules are BACE's,
repeated. Run it on a machine with nothing else to do: the load is printed. Virtual cores may share
a real one: "apart" says what as many separate commands, started at once, gain over one after the
other, which no pool of processes can beat.

    python benchmarks/workers.py --processor

On a machine that is busy: processor milliseconds for a row of a long table, of all processes
together, in the second half, when they have started. It says what free cores would give. Linux
only.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def processor_time() -> float:
    """Seconds of this process and of its workers so far."""
    total = time.process_time()
    for worker in multiprocessing.active_children():
        words = Path(f"/proc/{worker.pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return total


def peak_memory() -> int:
    """The most memory that any worker has used, MB."""
    peaks = [0]
    for worker in multiprocessing.active_children():
        text = Path(f"/proc/{worker.pid}/status").read_text()
        peaks += [int(line.split()[1]) // 1024 for line in text.splitlines() if "VmHWM" in line]
    return max(peaks)


def per_row(model: Any, smiles: list[str], workers: int, **options: Any) -> tuple[float, int]:
    """Processor milliseconds for a row once all workers have begun, and `peak_memory`."""
    from graphxai.explainers import get_explainer
    from graphxai.tables.run import explain_table

    rows, at, peak = 0, [(0, 0.0)], 0

    def advance(count: int) -> None:
        nonlocal rows, peak
        rows, peak = rows + count, max(peak, peak_memory())
        if rows >= len(smiles) / 2:
            at.append((rows, processor_time()))

    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "molecules.csv"
        table.write_text("smiles\n" + "\n".join(smiles) + "\n")
        lrp = get_explainer("lrp")
        explain_table(
            model, table, Path(folder) / "out", lrp, workers=workers, progress=advance, **options
        )
    (first, begun), (last, ended) = at[1], at[-1]
    return (ended - begun) / (last - first) * 1e3, peak


def print_processor_time(model: Any, smiles: list[str], workers: int, repeats: int) -> None:
    from graphxai.tables.run import Pictures

    for title, options in {"no pictures": {}, "SVG": {"pictures": Pictures()}}.items():
        found: dict[int, list[tuple[float, int]]] = {1: [], workers: []}
        for _ in range(repeats):
            for count, times in found.items():
                times.append(per_row(model, smiles, count, **options))
        one, many = (min(ms for ms, _ in times) for times in found.values())
        print(
            f"{title}: {one:.2f} ms a row in one process, {many:.2f} in {workers}, so"
            f" {workers * one / many:.2f} times as fast on {workers} free cores; a worker takes up"
            f" to {max(peak for _, peak in found[workers])} MB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processor", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()

    import graphxai as gx
    from graphxai.datasets.molecules import load_bace
    from graphxai.runtime.workers import free_cores, in_workers
    from graphxai.tables.batches import ExplainBatch
    from graphxai.tables.run import Row, on_rows

    known = [graph.smiles for graph in load_bace(given.data)]
    smiles = [known[k % len(known)] for k in range(given.rows)]
    model = gx.load("bace")
    if given.processor:
        print(f"load {os.getloadavg()[0]:.1f}, {given.rows} molecules")
        print_processor_time(model, smiles, given.workers, given.repeats)
        return

    def start() -> None:
        with closing(in_workers(on_rows(ExplainBatch(model)), [[Row(1, "CCO", None)]], 1)) as found:
            next(found)

    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "molecules.csv"
        table.write_text("smiles\n" + "\n".join(smiles) + "\n")

        def command(workers: int, pictures: str) -> Callable[[], object]:
            out = tempfile.mkdtemp(dir=folder)
            line = [sys.executable, "-m", "graphxai", "explain", str(table), "--out", out]
            line += ["--workers", str(workers), "--pictures", pictures, "--resume"]
            return lambda: subprocess.run(line, check=True, capture_output=True)

        def call(workers: int) -> Callable[[], object]:
            return lambda: gx.explain(model, smiles, workers=workers, progress=False)

        print(f"{free_cores()} free cores, load {os.getloadavg()[0]:.1f}, {given.rows} molecules")
        print(f"start: {min(seconds(start) for _ in range(given.repeats)):.1f} s")
        for title, work in {
            "graphxai explain, no pictures": lambda workers: command(workers, "none"),
            "graphxai explain, SVG": lambda workers: command(workers, "svg"),
            "gx.explain": call,
        }.items():
            times: dict[int, list[float]] = {1: [], given.workers: []}
            for _ in range(given.repeats):
                for workers, found in times.items():
                    found.append(seconds(work(workers)))
            one, many = (min(found) for found in times.values())
            print(f"{title}: {one:.1f} s, {many:.1f} s, {one / many:.2f} times", flush=True)

        def apart() -> None:
            with ThreadPoolExecutor(given.workers) as pool:
                for done in [pool.submit(command(1, "none")) for _ in range(given.workers)]:
                    done.result()

        alone = seconds(command(1, "none"))
        print(f"apart: {given.workers * alone / seconds(apart):.2f} times")
        print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
