"""How long a report of 1,000 molecules takes to make, to open, to scroll and to search.

    PYTHONPATH=tests python benchmarks/report.py [rows]

The molecules are BACE's, in a fixed shuffle; the browser is a headless Chromium without a GPU.
Prints a table in Markdown.
"""

import random
import sys
import tempfile
import time
from pathlib import Path

import torch

import graphxai
from browser import browsing
from graphxai.datasets.molecules import load_bace
from graphxai.reporting import report

# Scrolls from the top to the end, 600 pixels a frame; the time of every frame in milliseconds.
SCROLL = """
new Promise(done => {
  const times = []; let last = performance.now();
  const step = now => {
    times.push(now - last); last = now;
    if (scrollY + innerHeight >= document.documentElement.scrollHeight - 2) return done(times);
    scrollBy(0, 600); requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})
"""
# Until the frame after an action is on the screen.
TIMED = """
new Promise(done => {
  const begun = performance.now(); %s;
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - begun), 0));
})
"""
SORT = "(s => { s.value = 'strongest atom'; s.dispatchEvent(new Event('change')); })(byId('sort'))"
SEARCH = "byId('search').value = 'F'; arrange()"
DRAWN = "document.querySelectorAll('.card svg circle').length > 100"


def main(rows: int) -> None:
    torch.set_num_threads(1)
    smiles = [graph.smiles for graph in load_bace()]
    random.Random(0).shuffle(smiles)
    model = graphxai.load("bace")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        begun = time.perf_counter()
        report(model, smiles[:rows], path, progress=False)
        making = time.perf_counter() - begun
        print(
            f"| making it, one thread | {making:.0f} s ({1000 * making / rows:.0f} ms a molecule) |"
        )
        print(f"| size of the file | {path.stat().st_size / 1e6:.1f} MB |")
        with browsing() as page:
            page.size(1280, 900)
            page.open(path)
            page.wait(DRAWN)
            timing = "performance.getEntriesByType('navigation')[0].loadEventEnd"
            print(f"| until the page is loaded | {page.js(timing):.0f} ms |")
            print(f"| until the first molecules are drawn | {_first(page, path):.0f} ms |")
            frames = sorted(page.js(SCROLL))
            half, most = frames[len(frames) // 2], frames[int(0.99 * len(frames))]
            told = f"{half:.0f} / {most:.0f} / {frames[-1]:.0f} ms"
            print(
                f"| a frame while scrolling: median / 99 % / longest, n = {len(frames)} | {told} |"
            )
            print(f"| elements in the page after that | {page.js(ELEMENTS):,} |")
            for name, action in (("sorting", SORT), ("searching", SEARCH)):
                print(f"| {name} | {page.js(TIMED % action):.0f} ms |")
            opening = page.js(TIMED % "openMolecule(shown[0])")
            print(f"| opening a molecule | {opening:.0f} ms |")
            assert not page.errors, page.errors


ELEMENTS = "document.querySelectorAll('*').length"


def _first(page, path: Path) -> float:
    """Milliseconds from navigation until the first molecules are drawn."""
    page.open(path)
    return page.js(
        "new Promise(done => { const look = () =>"
        f" {DRAWN} ? done(performance.now()) : requestAnimationFrame(look); look(); }})"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
