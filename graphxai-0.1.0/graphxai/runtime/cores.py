"""Count the cores that this process may use, and those that other processes leave idle."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["allowed_cores", "free_cores"]

STAT = Path("/proc/stat")
QUOTA = Path("/sys/fs/cgroup/cpu.max")  # microseconds that a container may compute per period
WATCHED = 0.2  # seconds; the system counts in hundredths


def allowed_cores() -> int:
    """Return the number of cores that the affinity and the quota of the container allow."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with suppress(OSError, ValueError):  # no container, or no quota ("max")
        quota, period = map(int, QUOTA.read_text().split())
        return max(1, min(cores or 1, math.ceil(quota / period)))
    return cores or 1


def free_cores() -> int:
    """Return the number of cores that this process may use without taking them from others.

    This is at least 1. The call takes a fifth of a second, in which the machine is watched: its
    load average still counts processes that ended a minute ago.
    """
    before, start = _idle_seconds(), time.monotonic()
    if before is None:
        return _by_load_average()
    time.sleep(WATCHED)
    after = _idle_seconds()
    idle = (after or before) - before
    return max(1, min(allowed_cores(), round(idle / (time.monotonic() - start))))


def _idle_seconds() -> float | None:
    """Return how long all cores together were idle since the start, or None if unknown."""
    with suppress(OSError, ValueError, IndexError):
        _, _, _, _, idle, waiting, *_ = STAT.read_text().partition("\n")[0].split()
        return (int(idle) + int(waiting)) / os.sysconf("SC_CLK_TCK")
    return None


def _by_load_average() -> int:
    """Return how many cores are free by the load average, which counts this process too."""
    if not hasattr(os, "getloadavg"):
        return allowed_cores()
    others = max(0.0, os.getloadavg()[0] - 1)
    return max(1, min(allowed_cores(), round((os.cpu_count() or 1) - others)))
