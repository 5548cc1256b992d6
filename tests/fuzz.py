"""Look for inputs that break the library, for some minutes: `make fuzz MINUTES=5 SEED=0`.

Hypothesis makes the inputs, models among them; `helpers/hostile.py` says what must hold for each.
A fault is added, in its smallest form, to `data/hostile.jsonl`, which the tests run; the exit
status is then 1. The work is done in a process of its own, so that a crash or an endless loop is a
fault like others. A seed always makes the same inputs in the same order; give another one to look
elsewhere.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HELPERS = Path(__file__).parent / "helpers"
PATIENCE = 120.0  # seconds for one input, on a slow machine
EXAMPLES = 40  # of one kind before the next kind has its turn


def main() -> int:
    """Run the process that searches, and note what ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--note", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.note:
        return search(60 * options.minutes, options.seed, options.note)
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "note.json"  # the input in work
        note.write_text("{}")
        budget = ["--minutes", str(options.minutes), "--seed", str(options.seed)]
        command = [sys.executable, __file__, *budget, "--note", note]
        with subprocess.Popen(list(map(str, command))) as process:
            why = watched(process, note)
        if why is None:
            return 0
        fault = json.loads(note.read_text())
        if not fault:
            print(f"nothing was tried, as the search {why} before its first input")
            return 1
        fault["why"] = fault.get("why", why)
        with (Path(__file__).parent / "data" / "hostile.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(fault) + "\n")
        print(f"fault, added to tests/data/hostile.jsonl: {json.dumps(fault)[:2000]}")
        return 1


def watched(process: "subprocess.Popen[bytes]", note: Path) -> str | None:
    """Wait for the process; returns what is wrong, or None."""
    while True:
        try:
            status = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            if time.time() - note.stat().st_mtime < PATIENCE:
                continue
            process.kill()
            return f"took more than {PATIENCE:.0f} seconds"
        return None if status == 0 else f"ended the process with status {status}"


def search(seconds: float, start: int, note: Path) -> int:
    """Check inputs of all kinds in turn until the time is over or one is a fault."""
    sys.path.insert(0, str(HELPERS))
    from strategies import STRATEGIES

    seeds = random.Random(start)
    stop, tried = time.monotonic() + seconds, dict.fromkeys(STRATEGIES, 0)
    while time.monotonic() < stop:
        for kind, strategy in STRATEGIES.items():
            tried[kind] += attempts(kind, strategy, seeds.getrandbits(32), stop, note)
    print("no fault in", ", ".join(f"{count} {kind}" for kind, count in tried.items()))
    return 0


def attempts(kind: str, strategy: Any, start: int, stop: float, note: Path) -> int:
    """Check some inputs of a kind; returns how many. Raises a fault, whose input is noted."""
    from hostile import check
    from hypothesis import HealthCheck, Phase, given, seed, settings

    count = 0
    fault = ""

    @seed(start)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        print_blob=False,
    )
    @given(strategy)
    def attempt(value: Any) -> None:
        nonlocal count, fault
        if time.monotonic() > stop and not fault:
            return
        case = {"kind": kind, "value": value}
        note.write_text(json.dumps(case))
        count += 1
        try:
            check(kind, value)
        except Exception as error:
            fault = json.dumps(case | {"why": f"{type(error).__name__}: {error}"[:300]})
            raise

    try:
        attempt()
    finally:
        if fault:
            note.write_text(fault)  # the last one is the smallest
    return count


if __name__ == "__main__":
    raise SystemExit(main())
