"""Measure the start-up of a program, in the processor time of new processes."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

STARTS = {
    "`import torch`": ("-c", "import torch"),
    "`import torch_geometric`": ("-c", "import torch_geometric"),
    "`import graphxai`": ("-c", "import graphxai"),
    "`graphxai --help`": ("-m", "graphxai", "--help"),
    "`graphxai models`": ("-m", "graphxai", "models"),
    "`graphxai methods`": ("-m", "graphxai", "methods"),
    "`graphxai predict CCO`": ("-m", "graphxai", "predict", "CCO"),
    "`graphxai explain CCO --out x.svg`": ("-m", "graphxai", "explain", "CCO", "--out", "x.svg"),
}


def measure_start(repeats: int = 7) -> dict[str, float]:
    """Return the processor seconds of new processes, the best of several runs that take turns."""
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        # The first turn writes byte code, which is kept as for an installed package.
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        env |= {"OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": str(Path(folder) / "compiled")}
        for turn in range(repeats + 1):
            for name, arguments in STARTS.items():
                command = [sys.executable, *arguments]
                with subprocess.Popen(
                    command, cwd=folder, env=env, stdout=subprocess.DEVNULL
                ) as new:
                    _, status, used = os.wait4(new.pid, 0)
                    new.returncode = os.waitstatus_to_exitcode(status)
                if new.returncode:
                    raise RuntimeError(f"{name} failed.")
                if turn:
                    seconds = used.ru_utime + used.ru_stime
                    best[name] = min(seconds, best.get(name, seconds))
    return best


def report_start(best: dict[str, float]) -> str:
    """Return the section about the start-up."""
    torch_alone, *_ = best.values()
    lines = [
        "## Start-up",
        "",
        "A new process from a warm disk cache, one thread: processor time in seconds, each the best"
        " of seven runs that take turns. Trust the ratios more than the times.",
        "",
        "| | seconds | of `import torch` |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {s:.2f} | {s / torch_alone:.2f} |" for name, s in best.items()]
    return "\n".join([*lines, ""])
