"""Learn log D with high values censored: as bounds, dropped, and as they were measured.

`python benchmarks/censored_labels.py --ceiling 3 --molecules 800` writes a table in which every
value above the ceiling is a bound such as ">3". A teacher, and a network without a teacher, learn
from this table, from the table without these rows, and from the true values. Their predictions for
the test molecules are compared with the truth. The molecules are those that the bundled model
`lipophilicity` was trained on.
"""

import argparse
import csv
import json
import random
import tempfile
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

import graphxai as gx
from graphxai.datasets.tables.table import iter_records
from graphxai.learning.cleaning import clean_table
from graphxai.learning.settings import TableSettings
from graphxai.learning.table import split_table
from graphxai.learning.teachers.choosing import choose_teacher
from graphxai.learning.teachers.stacking import MoleculeFeatures
from graphxai.models.graphormer import locate

PARTS = ("train", "valid", "test")
COLUMN = "log D at pH 7.4"
ARMS = ("dropped", "bounds", "true values")
Molecules = list[tuple[str, float, str]]  # SMILES, log D and part


def drawn_molecules(count: int, seed: int) -> Molecules:
    """Draw molecules: half to train, a tenth to calibrate, and two fifths to test."""
    records = list(iter_records(locate("lipophilicity") / "training.csv", ("smiles", COLUMN)))
    drawn = random.Random(seed).sample(records, min(count, len(records)))
    parts = [PARTS[min(2, max(0, k % 10 - 4))] for k in range(len(drawn))]
    return [
        (record.cells["smiles"], float(record.cells[COLUMN]), part)
        for record, part in zip(drawn, parts, strict=True)
    ]


def cell(value: float, part: str, ceiling: float, arm: str) -> str:
    """Write a label as an arm of the comparison has it."""
    if value <= ceiling or arm == "true values" or part == "test":
        return f"{value:.2f}"
    return f">{ceiling:g}" if arm == "bounds" else ""


def write_table(path: Path, molecules: Molecules, ceiling: float, arm: str) -> None:
    """Write the table of an arm."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["smiles", "log D", "part"])
        writer.writerows((s, cell(v, part, ceiling, arm), part) for s, v, part in molecules)


def errors(predicted: np.ndarray, truth: np.ndarray, ceiling: float) -> dict[str, float]:
    """Compare predictions with the true values, also of the molecules above the ceiling."""
    high = truth > ceiling
    return {
        "RMSE": float(np.sqrt(np.mean((predicted - truth) ** 2))),
        "RMSE above": float(np.sqrt(np.mean((predicted - truth)[high] ** 2))),
        "mean error above": float(np.mean((predicted - truth)[high])),
        "Spearman": float(spearmanr(predicted, truth).statistic),
    }


def main() -> None:
    """Print the comparison, a line of JSON for each arm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--molecules", type=int, default=800)
    parser.add_argument("--ceiling", type=float, default=3.0)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    molecules = drawn_molecules(args.molecules, args.seed)
    share = np.mean([v > args.ceiling for _, v, part in molecules if part != "test"])
    print(json.dumps({"molecules": len(molecules), "censored": round(float(share), 3)}))
    tested = [s for s, _, part in molecules if part == "test"]
    truth = np.array([v for _, v, part in molecules if part == "test"])
    settings = TableSettings(
        split_column="part", seed=args.seed, epochs=args.epochs, teacher=False, progress=False
    )
    for arm in ARMS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "table.csv"
            write_table(path, molecules, args.ceiling, arm)
            table = clean_table(path, "smiles", ["log D"])
            split = split_table(table, settings)
            train = split.train
            teacher = choose_teacher(
                split.tasks, train.smiles, train.y, bounds=train.bounds, seed=args.seed
            )
            by_teacher = teacher.predict(MoleculeFeatures(tuple(tested)))[0]
            print(json.dumps({"arm": arm, "teacher": errors(by_teacher, truth, args.ceiling)}))
            out = gx.train_table(table, Path(folder) / "run", settings)
            predictions = gx.predict(gx.load(out), tested, progress=False)
        by_network = np.array([p["log D"].value for p in predictions])
        line = {"arm": arm, "network": errors(by_network, truth, args.ceiling)}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
