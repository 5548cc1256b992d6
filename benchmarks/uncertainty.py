"""Measure how often conformal intervals and sets of classes hold, on new scaffolds and at random.

    python benchmarks/uncertainty.py --data FOLDER

FOLDER has `molecules/*.csv` and `bace/raw/bace.csv`. A random forest on ECFP4 stands in for the
network, so that several splits can be measured. Prints the table of uncertainty.md.
"""

import argparse
import csv
import random
from pathlib import Path

import numpy as np
from rdkit import Chem, rdBase

from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import ecfp4
from graphxai.datasets.splits import Split, random_split, scaffold_split
from graphxai.learning import conformal
from graphxai.learning.teachers.forests import Forest

TABLES = {
    "ESOL": ("molecules/esol.csv", "smiles", "logSolubility", "regression"),
    "Lipophilicity": ("molecules/lipo.csv", "smiles", "lipo", "regression"),
    "BACE pIC50": ("bace/raw/bace.csv", "mol", "pIC50", "regression"),
    "BACE class": ("bace/raw/bace.csv", "mol", "Class", "binary"),
    "BBBP": ("molecules/bbbp.csv", "smiles", "p_np", "binary"),
}
MOLECULES, TREES, SEEDS = 1500, 100, 3
SLOPES = (0.0, 1.0, 2.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    root = parser.parse_args().data
    print("| table | split | slope | held | nearer half | farther half | width or single class |")
    print("|---|---|---|---|---|---|---|")
    for name, (path, smiles_column, column, kind) in TABLES.items():
        smiles, y = read(root / path, smiles_column, column)
        task = Task(column, kind, () if kind == "regression" else ("0", "1"))  # type: ignore[arg-type]
        splits = {"scaffold": [scaffold_split(smiles)]}
        splits["random"] = [random_split(len(smiles), seed) for seed in range(SEEDS)]
        for how, parts in splits.items():
            found = [predicted(task, smiles, y, part) for part in parts]
            for slope in SLOPES:
                print("|", " | ".join([name, how, f"{slope:g}", *row(task, found, slope)]), "|")


def read(path: Path, smiles_column: str, column: str) -> tuple[list[str], np.ndarray]:
    """Readable molecules with a label, at most 1,500 drawn with seed 0."""
    with path.open(newline="") as file, rdBase.BlockLogs():
        rows = [row for row in csv.DictReader(file) if row[column]]
        random.Random(0).shuffle(rows)
        rows = [row for row in rows if Chem.MolFromSmiles(row[smiles_column])][:MOLECULES]
    return [row[smiles_column] for row in rows], np.array([float(row[column]) for row in rows])


def predicted(task: Task, smiles: list[str], y: np.ndarray, parts: Split) -> list[list[np.ndarray]]:
    """Predictions, labels and similarities of the validation and of the test part."""
    train = list(parts.train)
    inputs = ecfp4(smiles)
    forest = Forest.fit(task, inputs[train], y[train], trees=TREES, max_features=1 / 3)
    found = []
    for part in (list(parts.valid), list(parts.test)):
        own, others = ([smiles[k] for k in chosen] for chosen in (part, train))
        near = conformal.nearest_similarities(own, others)
        found.append([forest.predict(inputs[part]), y[part], near])
    return found


def row(task: Task, splits: list[list[list[np.ndarray]]], slope: float) -> list[str]:
    """Coverage at 90 %, also of the nearer and farther half of the test part, over all splits."""
    conformal.SLOPE = slope
    found, halves = [], []
    for valid, (read, y, near) in splits:
        made = conformal.conformal_scores(task, *valid)
        assert made is not None
        found.append(conformal.coverage(task, made, read, y, near))
        nearer = near >= np.median(near)
        halves.append(
            [
                conformal.coverage(task, made, read[of], y[of], near[of])["held"]
                for of in (nearer, ~nearer)
            ]
        )
    n = sum(one["n"] for one in found)
    size = np.mean([one["width" if task.kind == "regression" else "single"] for one in found])
    held = [np.mean([one["held"] for one in found]), *np.mean(halves, axis=0)]
    shares = [f"{100 * share:.0f} %" for share in held]
    shares[0] += f" of {n}"
    return [*shares, f"{size:.2f}" if task.kind == "regression" else f"{100 * size:.0f} %"]


if __name__ == "__main__":
    main()
