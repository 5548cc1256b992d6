"""Models of public tables beside forests and chemprop, on the same test molecules.

    python benchmarks/own_data.py --data FOLDER --out runs/own-data [--tables solubility ...]
        [--splits scaffold random] [--seeds 0] [--chemprop COMMAND] [--report]

Trains on each table as `graphxai train` does, with its defaults. The forests' scores are the run's
own. chemprop is trained with its defaults on the same training, validation and test molecules. It
belongs in an environment of its own; COMMAND starts it (`chemprop`). What is there already is not
trained again; `--report` trains nothing. Prints the table of own_data.md.

FOLDER contains `bace/raw/bace.csv` and the tables of `benchmarks/zoo.py`.
"""

import argparse
import csv
import json
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zoo import MODELS, Model, write_table

from graphxai.datasets.hygiene import clean_table
from graphxai.datasets.labels import is_missing
from graphxai.models.graphormer.recipes.table import train_table
from graphxai.models.graphormer.training.scores import measure

FloatArray = NDArray[np.float64]
Interval = tuple[float, float, float]  # value, low, high
NAMES = {"forest": "forest, ECFP4", "descriptor_forest": "forest, + descriptors"}
RIVALS = ("forest", "descriptor_forest", "chemprop")
BACE = "../bace/raw/bace.csv"
CLASSES = {"0": "inactive", "1": "active"}
TABLES = {
    **MODELS,
    "bace": Model(BACE, "", "", {"Class": "BACE-1 inhibition"}, CLASSES, smiles="mol"),
    "bace-pic50": Model(BACE, "", "", {"pIC50": "pIC50"}, smiles="mol"),
}


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def train(name: str, split: str, seed: int, data: Path, out: Path) -> None:
    """Train on a table as the command line does; its CSV file lies beside the runs."""
    model, path = TABLES[name], out / f"{name}.csv"
    write_table(model, data / "molecules" / model.file, path)
    table = clean_table(path, "smiles", list(model.columns.values()))
    train_table(
        table, out / name / f"{split}-{seed}", split=split, seed=seed, resume=True,
        say=lambda line: print(f"{name}, {split} {seed}: {line}", flush=True),
    )  # fmt: skip


def write_for_chemprop(run: Path, known: dict[str, Any], path: Path) -> None:
    """Write molecules, labels as numbers, and the part that each molecule is in."""
    targets, split = known["targets"], known["split"]
    valid = set(split["valid_rows"])
    table = rows_of(run.parent.with_suffix(".csv"))
    parts = {
        "train": rows_of(run / "model" / "training.csv"),
        "val": [row for number, row in enumerate(table, start=1) if number in valid],
        "test": rows_of(run / "test.csv"),
    }
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["smiles", *(target["name"] for target in targets), "split"])
        for part, rows in parts.items():
            for row in rows:
                labels = [number_of(row, target) for target in targets]
                writer.writerow([row["smiles"], *labels, part])


def number_of(row: dict[str, str], target: dict[str, Any]) -> str:
    """A label as a number, "" if it is missing; in some files a column's name has the unit."""
    cell = next(row[name] for name in (target["name"], heading(target)) if name in row)
    if is_missing(cell):
        return ""
    return str(target["classes"].index(cell)) if target["classes"] else cell


def heading(target: dict[str, Any]) -> str:
    """The target's name with its unit."""
    return f"{target['name']} ({target['unit']})" if target["unit"] else target["name"]


def train_chemprop(run: Path, known: dict[str, Any], command: list[str]) -> float:
    """Train chemprop with its defaults, which keeps its test predictions; return the seconds."""
    out = run / "chemprop"
    out.mkdir(exist_ok=True)
    data = out / "data.csv"
    write_for_chemprop(run, known, data)
    kind = "classification" if known["targets"][0]["classes"] else "regression"
    targets = [target["name"] for target in known["targets"]]
    arguments = ["train", "--data-path", data, "--smiles-columns", "smiles", "--target-columns"]
    arguments += [*targets, "--splits-column", "split", "--task-type", kind, "--output-dir", out]
    arguments += ["--accelerator", "cpu", "--pytorch-seed", "0", "--num-workers", "0"]
    begun = time.perf_counter()
    subprocess.run([*command, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def compared(run: Path, known: dict[str, Any]) -> dict[str, Any]:
    """By target, the scores of the network and of chemprop, and their difference."""
    test = rows_of(run / "test.csv")
    predicted = next((run / "chemprop").glob("**/test_predictions.csv"))
    rival = {row["smiles"]: row for row in rows_of(predicted)}
    found = {}
    for target in known["targets"]:
        judged = [row for row in test if number_of(row, target) and row["smiles"] in rival]
        own = own_column(test[0], target)
        y = np.array([float(number_of(row, target)) for row in judged])
        both: dict[str, FloatArray] = {
            "graphormer": np.array([float(row[own]) for row in judged]),
            "chemprop": np.array([float(rival[row["smiles"]][target["name"]]) for row in judged]),
        }
        found[target["name"]] = measure("binary" if target["classes"] else "regression", both, y)
    return found


def own_column(row: dict[str, str], target: dict[str, Any]) -> str:
    """The column of the network's prediction: a value, or the probability of the second class."""
    start = f"{target['name']}: "
    end = f"probability of {target['classes'][1]}" if target["classes"] else "predicted"
    return next(name for name in row if name.startswith(start + end))


@dataclass(frozen=True)
class Row:
    """One target of one run: scores by model, and the network's minus those of the others."""

    table: str
    split: str
    target: str
    n: int
    metric: str
    values: dict[str, float]
    gaps: dict[str, Interval]


def rows_of_run(run: Path) -> list[Row]:
    """The rows of a run, with chemprop's scores where it was trained."""
    known = json.loads((run / "model" / "config.json").read_text())["metadata"]
    kept = run / "chemprop.json"
    rival = json.loads(kept.read_text())["targets"] if kept.exists() else {}
    found = []
    for target, own in known["scores"].items():
        metric = next(iter(own["scores"]["graphormer"]))
        more = rival.get(target, {"scores": {}, "differences": {}})
        scores = {**more["scores"], **own["scores"]}
        gaps = {**own["differences"], **more["differences"]}
        found.append(
            Row(
                run.parent.name, run.name, target, own["n"], metric,
                {key: scores[key][metric][0] for key in ("graphormer", *RIVALS) if key in scores},
                {key: tuple(gaps[key][metric]) for key in RIVALS if key in gaps},
            )
        )  # fmt: skip
    return found


def cells(rows: list[Row], name: str) -> list[str]:
    """A row of the printed table: the mean over targets, or one target with an interval."""
    mean = {
        key: float(np.mean([row.values[key] for row in rows]))
        for key in ("graphormer", *RIVALS)
        if all(key in row.values for row in rows)
    }
    best = max((key for key in RIVALS if key in mean), key=mean.__getitem__)
    gap = f"{mean['graphormer'] - mean[best]:+.3f}"
    if len(rows) == 1:
        gap = "{:+.3f} ({:+.3f} to {:+.3f})".format(*rows[0].gaps[best])
    shown = [f"{mean[key]:.3f}" if key in mean else "" for key in ("graphormer", *RIVALS)]
    count = f"{rows[0].n:,}" if len(rows) == 1 else f"{len(rows)} targets"
    return [name, rows[0].split, rows[0].metric, count, *shown, f"{NAMES.get(best, best)}: {gap}"]


def report(out: Path, tables: Sequence[str]) -> None:
    """Print a row for every run, and the targets of tables that have many."""
    names = ["table", "split, seed", "score", "test", "network"]
    names += [NAMES.get(key, key) for key in RIVALS]
    header = [*names, "network minus the best of the other three"]
    details: list[list[str]] = []
    print("|", " | ".join(header), "|\n" + "|---" * len(header) + "|")
    for name in tables:
        for path in sorted((out / name).glob("*/model/scores.json")):
            rows = rows_of_run(path.parent.parent)
            print("|", " | ".join(cells(rows, name)), "|")
            details += [cells([row], row.target) for row in rows] if len(rows) > 1 else []
    print("\n|", " | ".join(header), "|\n" + "|---" * len(header) + "|")
    for row in details:
        print("|", " | ".join(row), "|")


def main() -> None:
    """Train what is asked for and missing; print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--splits", nargs="+", default=["scaffold", "random"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--chemprop", type=shlex.split, default=None, help="command")
    parser.add_argument("--report", action="store_true", help="only print what is there")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for seed, split, name in product(args.seeds, args.splits, args.tables):
        run = args.out / name / f"{split}-{seed}"
        if not args.report and not (run / "model" / "scores.json").exists():
            train(name, split, seed, args.data, args.out)
        if not args.report and args.chemprop and not (run / "chemprop.json").exists():
            known = json.loads((run / "model" / "config.json").read_text())["metadata"]
            seconds = train_chemprop(run, known, args.chemprop)
            content = {"seconds": seconds, "targets": compared(run, known)}
            (run / "chemprop.json").write_text(json.dumps(content, indent=1))
    report(args.out, args.tables)


if __name__ == "__main__":
    main()
