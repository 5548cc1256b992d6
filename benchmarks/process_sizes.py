"""Measure the time and memory that a Gaussian process takes to be chosen and fitted.

    python benchmarks/process_sizes.py --table hiv.csv --value HIV_active --sizes 1000 3000 20000

For each size, a process of its own reads so many molecules of the table, counts their structures,
tries both noises on four folds, and fits, as `graphxai train --model process` does. It then says
the seconds of processor time and the largest memory. Forests for comparison, intervals and scores
come on top.
"""

import argparse
import multiprocessing
import resource
import time

import numpy as np
import pandas as pd
from rdkit import Chem, RDLogger

from graphxai.datasets.fingerprints import similarity, structure_counts
from graphxai.learning.teachers.choosing import NOISES
from graphxai.learning.teachers.gaussian_process import Process, carriers_of


def measure(path: str, column: str, size: int) -> None:
    """Fit a process to some molecules of a table, and print what that took."""
    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined]
    table = pd.read_csv(path).sample(frac=1, random_state=0)
    table = table[[Chem.MolFromSmiles(each) is not None for each in table.smiles[: 2 * size]]
                  + [False] * max(0, len(table) - 2 * size)][:size]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = [time.process_time()]
    counts = structure_counts(list(table.smiles))
    times.append(time.process_time())
    carriers = carriers_of(size)
    kernel = similarity(counts, tuple(kind[carriers] for kind in counts))
    times.append(time.process_time())
    y = table[column].to_numpy(float)[:, None]
    for noise in NOISES:
        for fold in np.array_split(np.arange(size), 4):
            rest = y.copy()
            rest[fold] = np.nan
            Process.fit(kernel, carriers, rest, noise, left_out=False)
    Process.fit(kernel, carriers, y)
    times.append(time.process_time())
    parts = zip(("counts", "kernel", "fits"), np.diff(times), strict=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{size:,} molecules, {len(carriers):,} carriers: "
        + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in parts)
        + f", {(peak - before) / 2**20:.1f} GiB above {before / 2**20:.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", required=True)
    parser.add_argument("--value", default="HIV_active")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 3000, 20000])
    options = parser.parse_args()
    for size in options.sizes:
        work = multiprocessing.get_context("spawn").Process(
            target=measure, args=(options.table, options.value, size)
        )
        work.start()
        work.join()


if __name__ == "__main__":
    main()
