"""The free cores are those that the system leaves to this process, less those in use."""

import os
import subprocess
import sys
import time

import pytest

from graphxai.runtime import workers
from graphxai.runtime.workers import allowed_cores, free_cores, map_in_processes
from toiling import where

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
HERTZ = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(workers, "QUOTA", workers.STAT.with_name("no such file"))


@linux
@pytest.mark.parametrize(("busy", "free"), [(0, 8), (3, 5), (7.8, 1), (8, 1), (30, 1)])
def test_cores_in_use_by_others_are_not_free(busy, free, eight_cores, monkeypatch):
    """The machine has eight cores, `busy` of which have work while it is watched."""
    now = 0.0

    def sleep(seconds):
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(workers, "_idle_seconds", lambda: 1000 + max(0, 8 - busy) * now)
    assert free_cores() == free


@linux
def test_idle_time_is_read_as_the_system_writes_it(tmp_path, monkeypatch):
    """The fields are user, nice, system, idle, waiting, and others; see `man 5 proc`."""
    (tmp_path / "stat").write_text(f"cpu  7 7 7 {30 * HERTZ} {2 * HERTZ} 7 7 7 0 0\ncpu0 1 1\n")
    monkeypatch.setattr(workers, "STAT", tmp_path / "stat")
    assert workers._idle_seconds() == 32


@linux
@pytest.mark.parametrize(
    ("quota", "allowed"), [("max 100000", 8), ("200000 100000", 2), ("50000 100000", 1)]
)
def test_the_quota_of_a_container_counts(quota, allowed, eight_cores, tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(workers, "QUOTA", tmp_path / "cpu.max")
    assert allowed_cores() == allowed


def test_without_counts_of_the_system_the_load_average_decides(eight_cores, monkeypatch):
    monkeypatch.setattr(workers, "_idle_seconds", lambda: None)
    for load, free in ((0.2, 8), (1.0, 8), (4.0, 5), (40.0, 1)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0), raising=False)
        assert free_cores() == free


@linux
def test_no_process_starts_on_a_machine_whose_cores_are_all_busy(monkeypatch):
    """Each core runs a process that toils, so the default number of processes is one: this one."""
    monkeypatch.setattr(workers, "STARTING", 0.0)
    toil = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(toil) for _ in range(os.cpu_count() or 1)]
    try:
        time.sleep(0.5)  # until all of them toil
        results = list(map_in_processes(where, [[1], [2], [3]], None, 3))
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert {part.result[0] for parts in results for part in parts} == {os.getpid()}
