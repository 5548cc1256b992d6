"""What pictures and files of an explained molecule cost, beside explaining it.

    python benchmarks/pictures.py [--data FOLDER] [--molecules 60] [--repeats 5]
                                  [--before CHECKOUT] [--out benchmarks/pictures.md]

Processor milliseconds per molecule, each the least of several runs in new processes. With
`--before`, another checkout of the package takes turns with this one. The molecules are BACE's, in
a fixed random order.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
PNG = 12  # molecules drawn as PNG: they take longest


def per_molecule(run: Callable[[], object], count: int, repeats: int = 3) -> float:
    """Return the least processor time, milliseconds per molecule."""
    times = []
    for _ in range(repeats):
        begun = time.process_time()
        run()
        times.append((time.process_time() - begun) / count * 1e3)
    return min(times)


def measured(smiles: list[str]) -> dict[str, float]:
    """Return the milliseconds of each step with the package on the path."""
    import torch

    import graphxai as gx
    from graphxai.runtime.writing import Appended, write_whole

    torch.set_num_threads(1)
    model, count = gx.load("bace"), len(smiles)
    explained = gx.explain(model, smiles, progress=False)
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "a.svg"

        def append() -> None:
            with Appended(Path(folder) / "rows.csv") as file:
                for _ in range(count):
                    file.write("x" * 300)

        return {
            "explaining": per_molecule(lambda: gx.explain(model, smiles, progress=False), count),
            "SVG": per_molecule(lambda: [e.svg() for e in explained], count),
            "PNG": per_molecule(lambda: [e.png() for e in explained[:PNG]], PNG),
            "SDF": per_molecule(lambda: [e.to_sdf() for e in explained], count),
            "a row appended by itself": per_molecule(append, count),
            "a file of 40 kB": per_molecule(
                lambda: [write_whole(picture, "x" * 40_000) for _ in smiles], count
            ),
        }


def in_turn(folders: dict[str, Path], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the least times of every checkout; these take turns, in processes of their own."""
    best: dict[str, dict[str, float]] = {name: {} for name in folders}
    for _ in range(options.repeats):
        for name, folder in folders.items():
            path = os.pathsep.join([str(folder), *sys.path[1:]])
            done = subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], "--child"],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                check=True,
            )
            for step, taken in json.loads(done.stdout).items():
                best[name][step] = min(taken, best[name].get(step, taken))
    return best


def report(best: dict[str, dict[str, float]], options: argparse.Namespace) -> str:
    now, before = best["now"], best.get("before")
    lines = [
        "# Pictures and files",
        "",
        f"`python benchmarks/pictures.py`: {options.molecules} molecules of BACE, the bundled"
        f" model, one thread. Processor milliseconds per molecule, the least of {options.repeats}"
        " processes that take turns. A PNG has two pixels per SVG pixel. Compare the ratios, not"
        " the times."
        f" Load average of {os.cpu_count()} cores: {os.getloadavg()[0]:.1f}.",
        "",
        "| | " + ("before | now | now / before | " if before else "now | ") + "now / explaining |",
        "|---|" + "---|" * (4 if before else 2),
    ]
    for step, taken in now.items():
        cells = [f"{taken:.2f}"]
        if before:
            cells = [f"{before[step]:.2f}", *cells, f"{taken / before[step]:.2f}"]
        lines.append(f"| {step} | {' | '.join(cells)} | {taken / now['explaining']:.1f} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder with bace/raw/bace.csv")
    parser.add_argument("--molecules", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        from graphxai.datasets.molecules import load_bace

        smiles = [graph.smiles for graph in load_bace(options.data, download=False)]
        random.Random(0).shuffle(smiles)
        print(json.dumps(measured(smiles[: options.molecules])))
        return
    folders = {"before": options.before.resolve()} if options.before else {}
    text = report(in_turn(folders | {"now": HERE}, options), options)
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
