"""Score Gaussian processes on the public tables of own_data.md, on the same test molecules.

    python benchmarks/process_rows.py --data FOLDER --out runs/rows [--tables bbbp ...]

The process is that of `graphxai train --model process`: its noise, and how its columns become
probabilities, come from the folds of the training part. Beside the score stand the expected
calibration error, and that of the columns read as probabilities. The forests are in own_data.md.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from own_data import TABLES
from zoo import write_table

import graphxai as gx
from graphxai.contract.prediction_metrics import readings
from graphxai.datasets.fingerprints import similarity, structure_counts
from graphxai.learning.cleaning import clean_table
from graphxai.learning.processes.process import output_scale
from graphxai.learning.scores import METRICS
from graphxai.learning.table import split_table
from graphxai.learning.teachers.choosing import NOISES
from graphxai.learning.teachers.gaussian_process import Process, carriers_of


def measure(name: str, split: str, data: Path, out: Path) -> None:
    """Fit a process to the training part of a table, and print its scores on the test part."""
    model, path = TABLES[name], out / f"{name}.csv"
    if not path.is_file():
        write_table(model, data / "molecules" / model.file, path)
    table = clean_table(path, "smiles", list(model.columns.values()))
    source = split_table(table, gx.TableSettings(split=split, seed=0, model="process"))
    train, test = source.train, source.test
    counts, carriers = structure_counts(train.smiles), carriers_of(len(train.smiles))
    carried = tuple(kind[carriers] for kind in counts)
    kernel = similarity(counts, carried)
    new = similarity(structure_counts(test.smiles), carried)
    for k, task in enumerate(source.tasks):
        y, by_noise = train.y[:, [k]], {}
        for noise in NOISES:
            by_noise[noise] = np.full(y.shape, np.nan)
            for fold in source.folds:
                rest = y.copy()
                rest[fold] = np.nan
                process = Process.fit(kernel, carriers, rest, noise, left_out=False)
                by_noise[noise][fold] = process.predict(kernel[fold])
        noise = min(NOISES, key=lambda each: float(np.nanmean((by_noise[each] - y) ** 2)))
        raw = Process.fit(kernel, carriers, y, noise, left_out=False).predict(new)
        factor, shift = output_scale(task, by_noise[noise], y[:, 0])
        read = readings(task, torch.from_numpy(raw * factor + shift))
        truth = test.y[:, k]
        known = ~np.isnan(truth)
        metric, score = next(iter(METRICS[task.kind].items()))
        said = f"{name}, {split}, {task.name}: {metric} {score(read[known], truth[known]):.3f}"
        if task.classes:
            errors, plain = METRICS[task.kind], raw[known, 0].clip(0, 1)
            said += f", calibration error {errors['ECE'](read[known], truth[known]):.3f}"
            said += f" ({errors['ECE'](plain, truth[known]):.3f} as it is)"
        print(f"{said} on {known.sum():,} test molecules", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/rows"))
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.tables:
        for split in ("scaffold", "random"):
            measure(name, split, options.data, options.out)


if __name__ == "__main__":
    main()
