"""Time and memory of `graphxai fragments` on tables of increasing length.

    python benchmarks/fragments.py molecules.csv 1000 10000 ...

Each length runs in a separate process. Prints a Markdown table.
"""

import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def measure(table: Path, rows: int, out: Path) -> str:
    """Run on the first `rows` molecules of a table; return a row of the printed table."""
    options = ["--limit", str(rows), "--minimum", "1", "--out", str(out)]
    command = [sys.executable, "-m", "graphxai", "fragments", str(table), *options]
    begun = time.perf_counter()
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdout=quiet, stderr=quiet, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, "the command failed"
    wall, used = time.perf_counter() - begun, usage.ru_utime + usage.ru_stime
    with out.open(newline="") as file:
        fragments = sum(1 for _ in csv.DictReader(file))
    peak = usage.ru_maxrss / 1024  # Linux counts in kB
    return f"| {rows:,} | {fragments:,} | {wall:.0f} | {used:.0f} | {peak:.0f} |"


def main(table: Path, lengths: list[int]) -> None:
    print("| rows | fragments | wall time, s | processor time, s | peak memory, MB |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for rows in lengths:
            print(measure(table, rows, Path(folder) / "fragments.csv"), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(rows) for rows in sys.argv[2:]])
