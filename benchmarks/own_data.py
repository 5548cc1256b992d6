"""Compare models of public tables with forests and chemprop on the same test molecules.

    python benchmarks/own_data.py [--data FOLDER] [--out runs/own-data] [--tables solubility ...]
        [--splits scaffold random] [--seeds 0] [--chemprop COMMAND] [--report]

The script trains on each table as `graphxai train` does, with its defaults. Every run scores its
own forests. chemprop is trained with its defaults and the run's seed on the same training,
validation and test molecules. It belongs in its own environment, and COMMAND starts it (`chemprop`,
with a recent Lightning `env TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 chemprop`). Finished runs are not
repeated, and `--report` trains nothing. The scores of every run are kept in own_data.json, so that
the runs can be made on several days. At the end tables are printed, that of own_data.md first.

FOLDER, by default `$GRAPHXAI_DATA`, contains `bace/raw/bace.csv` and the tables of
`benchmarks/zoo.py`.
"""

import argparse
import csv
import json
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zoo import MODELS, PublicTable, write_table

from graphxai.datasets.labels import is_missing
from graphxai.learning.cleaning import clean_table
from graphxai.learning.run import train_table
from graphxai.learning.scores import measure
from graphxai.runtime.download import data_root
from graphxai.runtime.writing import markdown_table

FloatArray = NDArray[np.float64]
Interval = tuple[float, float, float]  # value, low, high
NAMES = {"forest": "forest, ECFP4", "descriptor_forest": "forest, + descriptors"}
RIVALS = ("forest", "descriptor_forest", "chemprop")
GAP = "network minus the best of the other three"
RESULTS = Path(__file__).with_suffix(".json")
BACE = "../bace/raw/bace.csv"
ON_PAGE = {
    "solubility": "ESOL",
    "lipophilicity": "Lipophilicity",
    "blood-brain-barrier": "BBBP",
    "tox21": "Tox21",
    "hiv": "HIV",
    "bace": "BACE, class",
    "bace-pic50": "BACE, pIC50",
}
CLASSES = {"0": "inactive", "1": "active"}
TABLES = {
    "solubility": PublicTable("esol.csv", "", "", {"logSolubility": "solubility (log mol/L)"}),
    "lipophilicity": MODELS["lipophilicity"],
    "blood-brain-barrier": PublicTable(
        "bbbp.csv",
        "",
        "",
        {"p_np": "blood-brain barrier"},
        {"0": "non-penetrant", "1": "penetrant"},
    ),
    "tox21": MODELS["tox21"],
    "hiv": MODELS["hiv"],
    "bace": PublicTable(BACE, "", "", {"Class": "BACE-1 inhibition"}, CLASSES, smiles="mol"),
    "bace-pic50": PublicTable(BACE, "", "", {"pIC50": "pIC50"}, smiles="mol"),
}


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def train(name: str, split: str, seed: int, data: Path, out: Path) -> None:
    """Train on a table as the command line does, and write its CSV file beside the runs."""
    model, path = TABLES[name], out / f"{name}.csv"
    write_table(model, data / "molecules" / model.file, path)
    table = clean_table(path, "smiles", list(model.columns.values()))
    train_table(
        table, out / name / f"{split}-{seed}", split=split, seed=seed, resume=True,
        log=lambda line: print(f"{name}, {split} {seed}: {line}", flush=True),
    )  # fmt: skip


def write_for_chemprop(run: Path, metadata: dict[str, Any], path: Path) -> None:
    """Write molecules, labels as numbers, and the part that each molecule is in.

    Chemprop needs validation molecules. Where ours needed none, they are a ninth of the others.
    """
    targets, split = metadata["targets"], metadata["split"]
    valid = set(split["valid_rows"])
    table = rows_of(run.parent.with_suffix(".csv"))
    parts = {
        "train": rows_of(run / "model" / "training.csv"),
        "val": [row for number, row in enumerate(table, start=1) if number in valid],
        "test": rows_of(run / "test.csv"),
    }
    if not valid:
        whole = parts["train"]
        parts["train"] = [row for k, row in enumerate(whole) if k % 9]
        parts["val"] = whole[::9]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["smiles", *(target["name"] for target in targets), "split"])
        for part, rows in parts.items():
            for row in rows:
                labels = [number_of(row, target) for target in targets]
                writer.writerow([row["smiles"], *labels, part])


def number_of(row: dict[str, str], target: dict[str, Any]) -> str:
    """Return a label as a number, or "" if it is missing. A column's name may have the unit."""
    cell = next(row[name] for name in (target["name"], heading(target)) if name in row)
    if is_missing(cell):
        return ""
    return str(target["classes"].index(cell)) if target["classes"] else cell


def heading(target: dict[str, Any]) -> str:
    """Return the target's name with its unit."""
    return f"{target['name']} ({target['unit']})" if target["unit"] else target["name"]


def train_chemprop(run: Path, metadata: dict[str, Any], command: list[str]) -> float:
    """Train chemprop with its defaults, keep its test predictions, and return the seconds."""
    out = run / "chemprop"
    out.mkdir(exist_ok=True)
    data = out / "data.csv"
    write_for_chemprop(run, metadata, data)
    kind = "classification" if metadata["targets"][0]["classes"] else "regression"
    targets = [target["name"] for target in metadata["targets"]]
    arguments = ["train", "--data-path", data, "--smiles-columns", "smiles", "--target-columns"]
    arguments += [*targets, "--splits-column", "split", "--task-type", kind, "--output-dir", out]
    seed = run.name.rsplit("-", 1)[1]
    arguments += ["--accelerator", "cpu", "--pytorch-seed", seed, "--num-workers", "0"]
    begun = time.perf_counter()
    subprocess.run([*command, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def compared(run: Path, metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of the network and of chemprop, and their difference, by target."""
    test = rows_of(run / "test.csv")
    predicted = next((run / "chemprop").glob("**/test_predictions.csv"))
    rival = {row["smiles"]: row for row in rows_of(predicted)}
    scores = {}
    for target in metadata["targets"]:
        judged = [row for row in test if number_of(row, target) and row["smiles"] in rival]
        column = own_column(test[0], target)
        y = np.array([float(number_of(row, target)) for row in judged])
        both: dict[str, FloatArray] = {
            "graphormer": np.array([float(row[column]) for row in judged]),
            "chemprop": np.array([float(rival[row["smiles"]][target["name"]]) for row in judged]),
        }
        scores[target["name"]] = measure("binary" if target["classes"] else "regression", both, y)
    return scores


def own_column(row: dict[str, str], target: dict[str, Any]) -> str:
    """Return the column with the network's value, or its probability of the second class."""
    start = f"{target['name']}: "
    end = f"probability of {target['classes'][1]}" if target["classes"] else "predicted"
    return next(name for name in row if name.startswith(start + end))


@dataclass(frozen=True)
class TargetScores:
    """The scores of all models for one target of a run, and the network's minus the others'."""

    table: str
    split: str
    seed: int
    target: str
    n: int
    metric: str
    values: dict[str, float]
    gaps: dict[str, Interval]


def rows_of_run(run: Path) -> list[TargetScores]:
    """Return the scores of a run's targets, with chemprop's where it was trained."""
    metadata = json.loads((run / "model" / "config.json").read_text())["metadata"]
    kept = run / "chemprop.json"
    rival = json.loads(kept.read_text())["targets"] if kept.exists() else {}
    split, seed = run.name.rsplit("-", 1)
    rows = []
    for target, own_scores in metadata["scores"].items():
        metric = next(iter(own_scores["scores"]["graphormer"]))
        more = rival.get(target, {"scores": {}, "differences": {}})
        scores = {**more["scores"], **own_scores["scores"]}
        gaps = {**own_scores["differences"], **more["differences"]}
        rows.append(
            TargetScores(
                run.parent.name, split, int(seed), target, own_scores["n"], metric,
                {k: round(scores[k][metric][0], 4) for k in ("graphormer", *RIVALS) if k in scores},
                {k: tuple(round(end, 4) for end in gaps[k][metric]) for k in RIVALS if k in gaps},
            )
        )  # fmt: skip
    return rows


def stored(results: Path) -> list[TargetScores]:
    """Return what the file of results has."""
    kept = json.loads(results.read_text()) if results.exists() else []
    return [TargetScores(**row) for row in kept]


def keep(out: Path, results: Path) -> list[TargetScores]:
    """Add the runs in a folder to the file of results, and return all that the file has then."""
    rows = stored(results)
    for path in sorted(out.glob("*/*/model/scores.json")):
        new_rows = rows_of_run(path.parent.parent)
        runs = {(row.table, row.split, row.seed) for row in new_rows}
        rows = [row for row in rows if (row.table, row.split, row.seed) not in runs] + new_rows
    rows.sort(key=lambda row: (list(TABLES).index(row.table), row.split, row.seed))
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    results.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return rows


RunScores = list[TargetScores]  # of all targets of a run


def mean_scores(runs: Sequence[RunScores]) -> dict[str, float]:
    """Return the mean over runs and their targets for each model that all runs have."""
    return {
        key: float(np.mean([np.mean([row.values[key] for row in run]) for run in runs]))
        for key in ("graphormer", *RIVALS)
        if all(key in row.values for run in runs for row in run)
    }


def mean_gap(rows: Sequence[TargetScores], rival: str) -> Interval:
    """Return the mean over seeds of the network's score minus another model's, with its interval.

    On random splits every seed has its own test molecules, so the errors of the seeds are taken as
    independent, and the squares of the half widths add up. (Any two seeds share about a tenth of
    their test molecules.) On a scaffold split all seeds have the same test molecules, so the ends
    are averaged. This takes the errors of all seeds as equal, so the interval is rather too wide.
    """
    value, low, high = np.array([row.gaps[rival] for row in rows]).T
    middle, below, above = value.mean(), value - low, high - value
    if rows[0].split == "random":
        below, above = (np.sqrt(np.sum(side**2)) / len(rows) for side in (below, above))
    return float(middle), float(middle - np.mean(below)), float(middle + np.mean(above))


def gap_to(rival: str, runs: Sequence[RunScores]) -> str:
    """Return the network's score minus another model's, with an interval for a single target."""
    if len(runs[0]) == 1:
        value, low, high = mean_gap([run[0] for run in runs], rival)
        return f"{value:+.3f} ({low:+.3f} to {high:+.3f})"
    scores = mean_scores(runs)
    return f"{scores['graphormer'] - scores[rival]:+.3f}"


def cells(runs: Sequence[RunScores], seeds: str) -> list[str]:
    """Return a row of a printed table."""
    first, scores = runs[0], mean_scores(runs)
    best = max((key for key in RIVALS if key in scores), key=scores.__getitem__)
    shown = [f"{scores[key]:.3f}" if key in scores else "" for key in ("graphormer", *RIVALS)]
    count = f"{first[0].n:,}" if len(first) == 1 else f"{len(first)} targets"
    gap = f"{gap_to(best, runs)}, {NAMES.get(best, best)}"
    return [first[0].table, first[0].split, seeds, first[0].metric, count, *shown, gap]


def of_page(pooled: Mapping[tuple[str, str], Sequence[RunScores]]) -> Iterator[str]:
    """Yield the lines of the page's table, where the best of all is bold."""
    rows = []
    for (name, split), runs in pooled.items():
        _, _, _, _, _, network, *rivals, gap = cells(runs, "")
        best = all(float(network) >= float(rival) for rival in rivals if rival)
        rows.append([ON_PAGE.get(name, name), split, f"**{network}**" if best else network, gap])
    yield from [markdown_table([["table", "split", "network", GAP], *rows]), ""]


def report(rows: Sequence[TargetScores]) -> None:
    """Print the means over seeds of every table and split, then every run, then single targets."""
    runs: dict[tuple[str, str, int], RunScores] = {}
    for row in rows:
        runs.setdefault((row.table, row.split, row.seed), []).append(row)
    pooled: dict[tuple[str, str], list[RunScores]] = {}
    for (table, split, _), run in runs.items():
        pooled.setdefault((table, split), []).append(run)
    tables = [
        [cells(several, f"mean of {len(several)}") for several in pooled.values()],
        [cells([run], str(seed)) for (*_, seed), run in runs.items()],
        [
            [row.target, *cells([[row]], str(row.seed))[1:]]
            for run in runs.values()
            if len(run) > 1
            for row in run
        ],
    ]
    print("\n".join(of_page(pooled)))
    names = ["table", "split", "seed", "score", "test", "network"]
    names += [NAMES.get(key, key) for key in RIVALS]
    header = [*names, GAP]
    for lines in filter(None, tables):
        print("\n|", " | ".join(header), "|\n" + "|---" * len(header) + "|")
        for line in lines:
            print("|", " | ".join(line), "|")


def main() -> None:
    """Train the requested models that are missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=data_root())
    parser.add_argument("--out", type=Path, default=Path("runs/own-data"))
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--splits", nargs="+", default=["scaffold", "random"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--chemprop", type=shlex.split, default=None, help="command")
    parser.add_argument("--report", action="store_true", help="only print what is there")
    args = parser.parse_args()
    if args.report:
        report(stored(RESULTS))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for seed, split, name in product(args.seeds, args.splits, args.tables):
        run = args.out / name / f"{split}-{seed}"
        if not (run / "model" / "scores.json").exists():
            train(name, split, seed, args.data, args.out)
        if args.chemprop and not (run / "chemprop.json").exists():
            metadata = json.loads((run / "model" / "config.json").read_text())["metadata"]
            seconds = train_chemprop(run, metadata, args.chemprop)
            content = {"seconds": seconds, "targets": compared(run, metadata)}
            (run / "chemprop.json").write_text(json.dumps(content, indent=1))
        keep(args.out, RESULTS)
    report(keep(args.out, RESULTS))


if __name__ == "__main__":
    main()
