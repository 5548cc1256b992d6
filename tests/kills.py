"""Kill commands at random moments, run them again, and compare what they write.

    python tests/kills.py                          # every command, 30 kills each: an hour
    python tests/kills.py --times 5 report train   # five kills of two commands

The commands run in a copy of the last commit. Every second kill is SIGTERM, as from a scheduler,
and the others are SIGKILL, as from a system that is out of memory. After a kill, a file is whole or
absent unless the command can continue it. The command that is then run again, with `--resume` where
it has that option, has to write the same bytes as two runs that nobody disturbed. Files in which
these two differ, because they hold times, are named and left out.
"""

import argparse
import hashlib
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
ASSAY = ROOT / "datasets" / "examples" / "assay.csv"
BUNDLED = ROOT / "models" / "graphormer" / "pretrained" / "bace"
COPY = Path(tempfile.gettempdir()) / f"graphxai-kills-{os.getpid()}"
TERMINATED = 128 + signal.SIGTERM
NAMED_TIME = re.compile(rb'"processor_seconds": [0-9.]+')


@dataclass(frozen=True)
class Command:
    """A command of `graphxai` that writes into a folder `out`.

    continuation: the option with which it continues, if it has one.
    may_abort: whether a library may abort it on SIGTERM.
    """

    line: str
    continuation: str = ""
    may_abort: bool = False


@dataclass(frozen=True)
class End:
    """How a command ended.

    status: its exit status, or the signal that ended it, with a minus.
    seconds: the processor time of its processes.
    said: what it printed to stderr.
    """

    status: int
    seconds: float
    said: str


TO_START = Command("predict CCO")  # takes as long as importing the package and loading a model
COMMANDS = {
    "explain": Command("explain table.csv --out out --pictures none --workers 2", "--resume"),
    # Ray aborts on SIGTERM while it connects. The command has said before how to go on.
    "ray": Command("explain table.csv --out out --engine ray --shard-rows 10", "--resume", True),
    "predict": Command("predict table.csv --out out/predictions.csv"),
    "report": Command("report table.csv --limit 20 --out out/report.html"),
    "counterfactuals": Command("counterfactuals few.csv --towards active --out out/changes.csv"),
    "fit-explainer": Command(
        "fit-explainer table.csv --model bace --graphs 20 --epochs 1 --out out"
    ),
    "benchmark": Command(
        f"benchmark {BUNDLED} table.csv --methods lrp,occlusion --limit 8 --out out", "--resume"
    ),
    "train": Command(
        "train table.csv --target-column efflux --split random --no-teacher --epochs 4 --out out",
        "--resume",
    ),
}


def main() -> None:
    """Kill the commands that are named, print how they fared, and fail if one did not recover."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", nargs="*", default=COMMANDS, help=f"of {', '.join(COMMANDS)}")
    parser.add_argument("--times", type=int, default=30, help="kills of each command")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name in options.commands:
        if name not in COMMANDS:
            parser.error(f"there is no command {name!r} here; known are {', '.join(COMMANDS)}")
    faults = 0
    subprocess.run(["git", "clone", "--quiet", ROOT, COPY], check=True)
    try:
        for name in options.commands:
            with tempfile.TemporaryDirectory() as folder:
                faults += killed_often(name, options.times, options.seed, Path(folder))
    finally:
        shutil.rmtree(COPY)
    sys.exit(f"{faults} kills did harm" if faults else 0)


def killed_often(name: str, times: int, seed: int, folder: Path) -> int:
    """Kill one command at random moments, and return how many kills did harm."""
    command = COMMANDS[name]
    whole, _ = undisturbed(command, folder / "first")
    again, seconds = undisturbed(command, folder / "second")
    _, ready = undisturbed(TO_START, folder / "start")
    differing = sorted(path for path in whole | again if whole.get(path) != again.get(path))
    expected = {path: content for path, content in whole.items() if path not in differing}
    faults, num_stopped, num_at_work = 0, 0, 0
    moments = random.Random(seed)
    for number in range(times):
        place = prepared(folder / str(number))
        kind = signal.SIGTERM if number % 2 else signal.SIGKILL
        after = moments.uniform(0.8 * ready, seconds)
        end = run(command, place, kind, after)
        num_stopped += end.status != 0
        num_at_work += end.status != 0 and end.seconds > ready
        harm = [] if command.continuation else damaged(contents(place), expected)
        harm += [] if kind == signal.SIGKILL else unsaid(end, command)
        harm += damaged(finished(command, place), expected, complete=True)
        for line in harm:
            print(f"{name}, {kind.name} after {after:.2f} s: {line}", flush=True)
        faults += bool(harm)
    left_out = f", left out: {', '.join(differing)}" if differing else ""
    print(
        f"{name}: {times} kills, {num_stopped} of them before the end and {num_at_work} at work"
        f" ({ready:.1f} to {seconds:.1f} s), {faults} did harm{left_out}",
        flush=True,
    )
    return faults


def unsaid(end: End, command: Command) -> list[str]:
    """Describe what is wrong with the end that SIGTERM gave: its status, or no word of a way on."""
    aborted = end.status == -signal.SIGABRT and command.may_abort
    if end.status not in (0, -signal.SIGTERM, TERMINATED) and not aborted:
        return [f"ended with status {end.status}: {end.said[-300:]}"]
    word = {TERMINATED: "terminated; ", -signal.SIGABRT: command.continuation}.get(end.status, "")
    return [] if word in end.said else [f"did not say how to go on: {end.said[-300:]}"]


def undisturbed(command: Command, place: Path) -> tuple[dict[str, str], float]:
    """Return what the command writes if nobody kills it, and the processor time that it takes."""
    end = run(command, prepared(place))
    if end.status:
        raise SystemExit(f"graphxai {command.line} failed\n{end.said[-2000:]}")
    return contents(place), end.seconds


def run(command: Command, place: Path, kind: int = signal.SIGKILL, after: float = math.inf) -> End:
    """Run the command, and send a signal to its processes when they have worked for some time.

    Args:
        command: the command.
        place: the folder in which it runs.
        kind: the signal.
        after: processor time in seconds, which, unlike the clock, is the same on a busy machine.
    """
    seconds = 0.0
    with tempfile.TemporaryFile("w+") as errors:
        process = psutil.Popen(
            arguments(command),
            cwd=place,
            env=variables(),
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        while process.poll() is None:
            seconds = max(seconds, processor_time(process))
            if seconds >= after:
                os.killpg(process.pid, kind)
                process.wait(timeout=600)
            else:
                time.sleep(0.02)
        errors.seek(0)
        return End(process.returncode, seconds, errors.read())


def processor_time(process: psutil.Popen) -> float:
    """Return how many seconds a process and all those that it started have worked."""
    seconds = 0.0
    with suppress(psutil.NoSuchProcess):
        for each in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                seconds += sum(each.cpu_times()[:4])  # also of children that have ended
    return seconds


def finished(command: Command, place: Path) -> dict[str, str]:
    """Return what lies in the folder when the command was run once more after a kill."""
    # Where there is nothing to continue yet, the option is refused in words.
    if command.continuation:
        line = [*arguments(command), command.continuation]
        done = subprocess.run(line, cwd=place, env=variables(), capture_output=True, text=True)
        if done.returncode == 0:
            return contents(place)
    done = subprocess.run(
        arguments(command), cwd=place, env=variables(), capture_output=True, text=True
    )
    return contents(place) if done.returncode == 0 else {"": done.stderr[-500:]}


def damaged(
    files: dict[str, str], expected: dict[str, str], *, complete: bool = False
) -> list[str]:
    """Describe how files differ from those expected, which may be absent unless `complete`."""
    if "" in files:
        return [f"could not be run again: {files['']}"]
    harm = [
        f"{path} differs" for path in files if path in expected and files[path] != expected[path]
    ]
    if complete:
        harm += [f"{path} is missing" for path in expected if path not in files]
    return harm


def prepared(place: Path) -> Path:
    """Make a folder with the tables that the commands read, and return it."""
    (place / "out").mkdir(parents=True)
    rows = ASSAY.read_text().splitlines(keepends=True)
    (place / "table.csv").write_text("".join(rows[:61]))
    (place / "few.csv").write_text("".join(rows[:2]))
    return place


def contents(place: Path) -> dict[str, str]:
    """Return a checksum of every file below the folder `out`, without the times that it names."""
    paths = (path for path in (place / "out").rglob("*") if path.is_file())
    return {
        path.relative_to(place).as_posix(): hashlib.sha256(
            NAMED_TIME.sub(b"", path.read_bytes())
        ).hexdigest()
        for path in paths
    }


def arguments(command: Command) -> list[str]:
    """Return the command with the program that runs it."""
    return [sys.executable, "-m", "graphxai", *command.line.split()]


def variables() -> dict[str, str]:
    """Return the environment in which the commands import the copy."""
    return os.environ | {"PYTHONPATH": str(COPY), "OMP_NUM_THREADS": "1"}


if __name__ == "__main__":
    main()
