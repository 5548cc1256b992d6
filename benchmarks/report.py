"""How long a report of 1,000 molecules takes to make, open, scroll and search.

    PYTHONPATH=tests/helpers python benchmarks/report.py [rows | report.html]

The molecules are BACE's, in a fixed random order; an existing report is only opened. The browser is
a headless Chromium without a GPU. Prints a Markdown table.
"""

import os
import random
import sys
import tempfile
import time
from pathlib import Path

import torch

import graphxai
from browser import browsing
from graphxai.datasets.molecules import load_bace
from graphxai.tables.report import report

# Scrolls from top to bottom, %d pixels per frame; resolves to each frame's time in milliseconds.
SCROLL = """
new Promise(done => {
  const times = []; let last = performance.now();
  const step = now => {
    times.push(now - last); last = now;
    if (scrollY + innerHeight >= document.documentElement.scrollHeight - 2) return done(times);
    scrollBy(0, %d); requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})
"""
# Time from an action until the next frame is on the screen.
TIMED = """
new Promise(done => {
  const begun = performance.now(); %s;
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - begun), 0));
})
"""
SORT = "(s => { s.value = 'strongest atom'; s.dispatchEvent(new Event('change')); })(byId('sort'))"
SEARCH = "byId('search').value = 'F'; arrange()"
OPEN = "openMolecule(shown[0])"
DRAWN = "document.querySelectorAll('.card svg circle').length > 100"
SPEEDS = (120, 600)  # pixels per frame: mouse wheel; dragged scroll bar
REPEATS = 5


def make(rows: int, path: Path) -> None:
    """Write the report and print how long it takes."""
    smiles = [graph.smiles for graph in load_bace()]
    random.Random(0).shuffle(smiles)
    model = graphxai.load("bace")
    begun, used = time.perf_counter(), time.process_time()
    report(model, smiles[:rows], path, progress=False)
    took, used = time.perf_counter() - begun, time.process_time() - used
    text = f"{took:.0f} s ({1000 * used / rows:.0f} ms of processor time per molecule)"
    print(f"| making it, one thread | {text} |")


def look(path: Path) -> None:
    """Open the report, scroll, sort, search and open a molecule; print how long each takes."""
    print(f"| size of the file | {path.stat().st_size / 1e6:.1f} MB |")
    with browsing() as page:
        page.size(1280, 900)
        page.open(path)
        page.wait(DRAWN)
        timing = "performance.getEntriesByType('navigation')[0].loadEventEnd"
        print(f"| until the page is loaded, cold | {page.js(timing):.0f} ms |")
        print(f"| until the first molecules are drawn, warm | {_first(page, path):.0f} ms |")
        for speed in SPEEDS:
            page.open(path)
            page.wait(DRAWN)
            frames = sorted(page.js(SCROLL % speed))
            at = [frames[int(share * len(frames))] for share in (0.5, 0.95)]
            text = " / ".join(f"{ms:.0f}" for ms in (*at, frames[-1]))
            name = f"frame time at {speed} pixels per frame: median / 95 % / longest"
            print(f"| {name}, n = {len(frames)} | {text} ms |")
        print(f"| elements in the page after that | {page.js(ELEMENTS):,} |")
        for name, action in (("sorting", SORT), ("searching", SEARCH), ("opening", OPEN)):
            times = sorted(page.js(TIMED % action) for _ in range(REPEATS))
            print(
                f"| {name}: median / longest of {REPEATS} | {times[2]:.0f} / {times[-1]:.0f} ms |"
            )
        assert not page.errors, page.errors


def main(given: str) -> None:
    torch.set_num_threads(1)
    print(f"| load average of {os.cpu_count()} cores, before | {_load()} |")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(given)
        if given.isdigit():
            path = Path(folder) / "report.html"
            make(int(given), path)
        look(path)
    print(f"| load average, after | {_load()} |")


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


ELEMENTS = "document.querySelectorAll('*').length"


def _first(page, path: Path) -> float:
    """Return milliseconds from navigation until the first molecules are drawn."""
    page.open(path)
    return page.js(
        "new Promise(done => { const look = () =>"
        f" {DRAWN} ? done(performance.now()) : requestAnimationFrame(look); look(); }})"
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "1000")
