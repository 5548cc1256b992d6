"""Measure the speed of the toolkit relative to the published pipelines, as ratios from one run.

    python benchmarks/speed.py [--data FOLDER] [--molecules 512] [--many TABLE]
                               [--out benchmarks/speed.md]
    python benchmarks/speed.py --many TABLE --only-many
    python benchmarks/speed.py --many TABLE --only-sizes
    python benchmarks/speed.py --only-backward
    python benchmarks/speed.py --only-start

If BACE is not available, the molecules are the package's samples, repeated. The comparison with the
published Graphormer pipeline needs `transformers==4.57.6` (the last release that has it) and
`cython<3.1`. Without them its rows are left out. Everything runs in one thread.

TABLE is a CSV file with a column `smiles` and some 20,000 molecules, such as MoleculeNet's HIV.
These are also featurised by worker processes, and some of each size are explained.

The start-up of a program (`--only-start`) is the processor time of new processes, from a warm disk
cache. Each section has a file of its own beside this one, `speed_*.py`.
"""

import argparse
from pathlib import Path

import torch
from rdkit import RDLogger
from speed_explaining import (
    measure_backward,
    measure_explaining,
    measure_large,
    measure_preparing,
    report_backward,
    report_explaining,
    report_large,
)
from speed_many import measure_many, report_many
from speed_models import in_compiled_code, molecules
from speed_sizes import measure_sizes, report_sizes
from speed_start import measure_start, report_start
from speed_steps import measure_steps, report_steps
from speed_wrapped import measure_wrapped, report_wrapped

SECTIONS = {
    "backward": "the backward pass",
    "sizes": "sizes of molecules",
    "many": "many molecules",
    "wrapped": "wrapped models",
    "start": "the start-up",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder with bace/raw/bace.csv")
    parser.add_argument("--molecules", type=int, default=512)
    parser.add_argument("--many", type=Path, metavar="TABLE", help="CSV file with many SMILES")
    for name, content in SECTIONS.items():
        parser.add_argument(f"--only-{name}", action="store_true", help=f"only {content}")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    RDLogger.DisableLog("rdApp.*")
    chosen = {name for name in SECTIONS if getattr(options, f"only_{name}")} or set(SECTIONS)
    whole = chosen == set(SECTIONS)
    parts = []
    if "backward" in chosen:
        smiles = molecules(options.molecules, options.data)
        smiles = [s for s in smiles if "." not in s]
        if whole:
            in_compiled_code(True)
            parts.append(report_steps(*measure_steps(smiles), len(smiles)))
            explaining = measure_explaining(smiles)
            parts.append(report_explaining(explaining, measure_preparing(smiles)))
            parts.append(report_large(measure_large()))
        parts.append(report_backward(measure_backward(smiles), len(smiles)))
    if options.many and "sizes" in chosen:
        parts.append(report_sizes(measure_sizes(options.many)))
    if options.many and "many" in chosen:
        parts.append(report_many(measure_many(options.many, 20_000)))
    if "wrapped" in chosen:
        parts.append(report_wrapped(measure_wrapped()))
    if "start" in chosen:
        parts.append(report_start(measure_start()))
    text = "\n".join(parts)
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
