"""Compare trained models with the published methods of MoleculeACE, on activity cliffs too.

    python benchmarks/moleculeace.py [--data FOLDER] [--out runs/moleculeace]
        [--tables CHEMBL234_Ki ...] [--seeds 0 1 2] [--report]

MoleculeACE (van Tilborg 2022) has tables of ligands with their affinities, and says which of them
have an activity cliff with another one. The script trains on each table as `graphxai train` does,
with its defaults, and keeps to the authors' split: nothing is learned from the molecules marked
"test". The measures are theirs, the RMSE over the test molecules and over those with a cliff.
Every test row counts. Also measured are the intervals (how many test values they hold, and how wide
they are) and the errors by how far a molecule is from the training set, in the words of
`graphxai.trust`. Finished runs are not repeated, and `--report` trains nothing. The scores of every
run are kept in moleculeace.json.

FOLDER, by default `moleculeace` in `$GRAPHXAI_DATA`, contains the tables and `published.csv`, with
the columns dataset, algorithm, descriptor, rmse and cliff_rmse. The first table printed is that of
moleculeace.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import wilcoxon

import graphxai as gx
from graphxai.evaluation.trust.errors import distance_of
from graphxai.explanation.prediction import Prediction
from graphxai.learning.cleaning import clean_table
from graphxai.learning.run import train_table
from graphxai.learning.settings import TableSettings
from graphxai.learning.table import split_table
from graphxai.learning.teachers.choosing import choose_teacher
from graphxai.learning.teachers.stacking import MoleculeFeatures
from graphxai.runtime.download import data_root

FloatArray = NDArray[np.float64]
Counts = dict[str, tuple[int, float]]
RESULTS = Path(__file__).with_suffix(".json")
MEASURES = {"rmse": "RMSE", "cliff_rmse": "RMSE on cliffs"}
MODELS = {"network": "network", "teacher": "its teacher"}
RIVALS = ("SVM, ECFP", "CheMeleon, pre-trained graph")
BEST = "best published"  # on each table, so it is not a method
LEVELS = (0.5, 0.8, 0.9, 0.95)  # of the intervals
VERDICTS = ("good", "caution", "warning", "unknown", "known")


def measured(y: FloatArray, predicted: FloatArray, cliff: NDArray[np.bool_]) -> dict[str, float]:
    """Return the RMSE over all test molecules (n,) and over those with an activity cliff."""
    squares = (predicted - y) ** 2
    return {
        "rmse": float(np.sqrt(squares.mean())),
        "cliff_rmse": float(np.sqrt(squares[cliff].mean())),
    }


def measured_intervals(
    predictions: Sequence[Prediction], y: FloatArray
) -> dict[str, dict[str, float]]:
    """Return how the intervals of test molecules do at each of `LEVELS`.

    For each level there are the share of values that are held, the median width, and the width that
    would do: the one for all molecules that holds the level's share of the test values.
    """
    errors = np.abs(np.array([p.value for p in predictions]) - y)
    measures = {}
    for level in LEVELS:
        low, high = np.array([p.at(level).interval for p in predictions]).T
        measures[f"{level:g}"] = {
            "held": float(((low <= y) & (y <= high)).mean()),
            "width": float(np.median(high - low)),
            "would_do": float(2 * np.quantile(errors, level)),
        }
    return measures


def errors_by_distance(folder: Path, predictions: Sequence[Prediction], y: FloatArray) -> Counts:
    """Return the number and the mean absolute error of test molecules by the level of a sign.

    The sign is that of `graphxai.trust` for how far a molecule is from the training set.
    """
    model = gx.load(folder)
    levels = np.array([distance_of(model, p).level for p in predictions])
    errors = np.abs(np.array([p.value for p in predictions]) - y)
    return {
        level: (int((levels == level).sum()), float(errors[levels == level].mean()))
        for level in VERDICTS
        if (levels == level).any()
    }


def run_table(path: Path, seed: int, out: Path, **options: Any) -> dict[str, Any]:
    """Train on a table, and score the network and its teacher on every test row.

    Args:
        path: the table, with the columns smiles, y, cliff_mol and split.
        seed: seed of the run.
        out: folder of the run.
        options: fields of `TableSettings` to change.

    Returns:
        JSON values: the table's name, the seed, the processor time in seconds, the numbers of rows,
        the measures of each model, and what `measured_intervals` and `errors_by_distance` return.
    """
    begun = time.process_time()
    table = clean_table(path, "smiles", ["y"])
    folder = train_table(
        table, out, split_column="split", seed=seed, resume=True,
        log=lambda line: print(f"{path.stem}, {seed}: {line}", flush=True), **options,
    )  # fmt: skip
    seconds = time.process_time() - begun
    rows = pd.read_csv(path)
    test = rows[rows["split"] == "test"]
    smiles, y, cliff = list(test["smiles"]), test["y"].to_numpy(), test["cliff_mol"].to_numpy() == 1
    by_network = [
        each["y"] for each in gx.predict(folder, smiles, on_error="raise", progress=False)
    ]
    predicted = {"network": np.array([each.value for each in by_network], dtype=np.float64)}
    source = split_table(table, TableSettings(split_column="split", seed=seed))
    train = source.train
    teacher = choose_teacher(
        source.tasks, train.smiles, train.y, folds=source.folds, bounds=train.bounds, seed=seed
    )
    (predicted["teacher"],) = teacher.predict(MoleculeFeatures(tuple(smiles)))
    return {
        "table": path.stem,
        "seed": seed,
        "seconds": round(seconds),
        "train": int((rows["split"] == "train").sum()),
        "test": len(test),
        "scores": {name: measured(y, values, cliff) for name, values in predicted.items()},
        "intervals": measured_intervals(by_network, y),
        "errors_by_distance": errors_by_distance(folder, by_network, y),
    }


def published_scores(path: Path) -> pd.DataFrame:
    """Read what was published: a row for each table and method, and the best of each table."""
    scores = pd.read_csv(path)
    scores["method"] = scores["algorithm"] + ", " + scores["descriptor"]
    scores = scores[["dataset", "method", *MEASURES]]
    best = scores.groupby("dataset", as_index=False)[list(MEASURES)].min()
    return pd.concat([scores, best.assign(method=BEST)], ignore_index=True)


def joined_scores(runs: Sequence[Mapping[str, Any]], published: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of all methods on the tables that were run, means over their seeds.

    The result has a row for each table and method, with the columns dataset, method, rmse and
    cliff_rmse.
    """
    ours = pd.DataFrame(
        {"dataset": run["table"], "method": MODELS[name]} | scores
        for run in runs
        for name, scores in run["scores"].items()
    )
    ours = ours.groupby(["dataset", "method"], as_index=False).mean()
    return pd.concat(
        [ours, published[published["dataset"].isin(ours["dataset"])]], ignore_index=True
    )


def rank(scores: pd.DataFrame, measure: str) -> pd.Series[int]:
    """Return the network's rank on each table among itself and the published methods."""
    others = scores[~scores["method"].isin([MODELS["teacher"], BEST])]
    ranks = others.groupby("dataset")[measure].rank(method="min").astype(int)
    network = others["method"] == MODELS["network"]
    return pd.Series(ranks[network].to_numpy(), index=others["dataset"][network])


def comparison(scores: pd.DataFrame, rival: str, measure: str) -> tuple[float, int, int, float]:
    """Compare the network with another method over tables.

    Returns:
        The mean of its measure minus the other's, the number of tables on which it is better, the
        number of tables, and the p-value of Wilcoxon's signed-rank test (1945) for equality.
    """
    by_method = scores.pivot(index="dataset", columns="method", values=measure)
    differences = (by_method[MODELS["network"]] - by_method[rival]).to_numpy()
    p_value = float(wilcoxon(differences).pvalue) if np.any(differences) else 1.0
    better = int((differences < 0).sum())
    return float(differences.mean()), better, len(differences), p_value


def report(runs: Sequence[Mapping[str, Any]], published: pd.DataFrame) -> str:
    """Return the tables of moleculeace.md: each table, means over tables, and paired tests."""
    scores = joined_scores(runs, published)
    methods = [*MODELS.values(), *RIVALS, BEST]
    pivots = {
        measure: scores.pivot(index="dataset", columns="method", values=measure)
        for measure in MEASURES
    }
    ranks = {measure: rank(scores, measure) for measure in MEASURES}
    lines = [_row(["table", "seconds", *methods]), "|---" * (2 + len(methods)) + "|"]
    of_tables = [_row(["table", "seeds", "train", "test", "rank of the network"]), "|---" * 5 + "|"]
    for name in pivots["rmse"].index:
        of_table = [run for run in runs if run["table"] == name]
        first = of_table[0]
        seconds = round(float(np.mean([run["seconds"] for run in of_table])))
        cells = [
            f"{pivots['rmse'][m][name]:.3f} / {pivots['cliff_rmse'][m][name]:.3f}" for m in methods
        ]
        place = ", ".join(str(ranks[measure][name]) for measure in MEASURES)
        lines.append(_row([name, str(seconds), *cells]))
        sizes = [str(len(of_table)), str(first["train"]), str(first["test"])]
        of_tables.append(_row([name, *sizes, place]))
    means = {measure: pivot.mean() for measure, pivot in pivots.items()}
    cells = [f"{means['rmse'][m]:.3f} / {means['cliff_rmse'][m]:.3f}" for m in methods]
    lines += [_row(["mean", "", *cells]), "", *of_tables]
    lines += ["", _row(["method", *MEASURES.values()]), "|---" * 3 + "|"]
    order = means["rmse"].sort_values().index
    lines += [_row([m, *(f"{means[k][m]:.3f}" for k in MEASURES)]) for m in order]
    lines += ["", _row(["network against", "measure", "difference", "tables won", "p"])]
    lines.append("|---" * 5 + "|")
    for rival in (MODELS["teacher"], *RIVALS, BEST):
        for measure, heading in MEASURES.items():
            gap, better, n, p_value = comparison(scores, rival, measure)
            lines.append(
                _row([rival, heading, f"{gap:+.3f}", f"{better} of {n}", f"{p_value:.3f}"])
            )
    return "\n".join([*lines, *_intervals_and_errors(runs)])


def _intervals_and_errors(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the tables of intervals and of errors by distance, over the runs that have them."""
    having = [run for run in runs if "intervals" in run]
    if not having:
        return []
    lines = ["", _row(["level", "held", "least and most", "width over the width that would do"])]
    lines.append("|---" * 4 + "|")
    for level in map("{:g}".format, LEVELS):
        of_level = [run["intervals"][level] for run in having]
        held = [each["held"] for each in of_level]
        ratio = np.median([each["width"] / each["would_do"] for each in of_level])
        spread = f"{min(held):.0%} to {max(held):.0%}"
        lines.append(_row([level, f"{np.mean(held):.1%}", spread, f"{ratio:.2f}"]))
    lines += ["", _row(["distance is", "molecules", "error over the mean error of its table"])]
    lines.append("|---" * 3 + "|")
    for verdict in VERDICTS:
        relative = [
            (number, error * number, number * _mean_error(run))
            for run in having
            for name, (number, error) in run["errors_by_distance"].items()
            if name == verdict
        ]
        if relative:
            count, wrong, expected = np.sum(relative, axis=0)
            lines.append(_row([verdict, f"{count:.0f}", f"{wrong / expected:.2f}"]))
    return lines


def _mean_error(run: Mapping[str, Any]) -> float:
    """Return the mean absolute error of the network on the test molecules of a run."""
    numbers, errors = np.array([*run["errors_by_distance"].values()]).T
    return float((numbers * errors).sum() / numbers.sum())


def _row(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def keep(runs: Sequence[Mapping[str, Any]], results: Path) -> list[dict[str, Any]]:
    """Add runs to the file of results, in place of earlier ones, and return all that it has."""
    kept = json.loads(results.read_text(encoding="utf-8")) if results.exists() else []
    by_run = {(run["table"], run["seed"]): dict(run) for run in (*kept, *runs)}
    ordered = [by_run[key] for key in sorted(by_run)]
    lines = ",\n".join(map(json.dumps, ordered))
    results.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return ordered


def main() -> None:
    """Train the requested models that are missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=data_root() / "moleculeace")
    parser.add_argument("--out", type=Path, default=Path("runs/moleculeace"))
    parser.add_argument("--tables", nargs="+", default=None)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--report", action="store_true", help="only print what is there")
    args = parser.parse_args()
    paths = {path.stem: path for path in args.data.glob("CHEMBL*.csv")}
    names = args.tables or sorted(paths, key=lambda name: paths[name].stat().st_size)
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for name in names:
            kept = args.out / f"{name}-{seed}.json"
            if not args.report and not kept.exists():
                run = run_table(paths[name], seed, args.out / f"{name}-{seed}")
                kept.write_text(json.dumps(run) + "\n", encoding="utf-8")
    finished = [json.loads(path.read_text(encoding="utf-8")) for path in args.out.glob("*.json")]
    print(report(keep(finished, RESULTS), published_scores(args.data / "published.csv")))


if __name__ == "__main__":
    main()
