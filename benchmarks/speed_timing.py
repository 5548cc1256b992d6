"""Measure the processor time of functions that take turns."""

import time
from collections.abc import Callable
from functools import partial


def taking_turns(
    runs: dict[str, Callable[[], object]], count: int, repeats: int = 7
) -> dict[str, float]:
    """Return processor milliseconds per molecule for functions that take turns.

    Taking turns exposes all of them to the same conditions, and processor time ignores other work
    on the machine. After a warm-up, the least of their repetitions counts.
    """
    best = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - start)
    return {name: seconds / count * 1e3 for name, seconds in best.items()}


def in_turns_of_32(
    runs: dict[str, Callable[[list[str]], object]], smiles: list[str]
) -> dict[str, float]:
    """Return processor milliseconds per molecule for functions that take turns of 32 molecules."""
    totals = dict.fromkeys(runs, 0.0)
    for first in range(0, len(smiles), 32):
        part = smiles[first : first + 32]
        times = taking_turns({name: partial(run, part) for name, run in runs.items()}, 1)
        totals = {name: total + times[name] for name, total in totals.items()}
    return {name: total / len(smiles) for name, total in totals.items()}
